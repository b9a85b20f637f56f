"""Resampling with an anti-aliasing filter: each output pixel is a weighted mean of all that it covers. Weights are computed in NumPy."""

from __future__ import annotations

import dtorch

__all__ = []  # a part of interpolate


def _cubic(x, a):
    """The cubic convolution kernel at distance x."""
    import numpy as np

    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _taps(kind, old, new, scale):
    """How each of `new` positions is made of `old` ones: indices (taps, new) and weights (taps, new)."""
    import numpy as np

    at = (np.arange(new) + 0.5) * scale - 0.5
    reach = max(scale, 1.0)
    half = (1.0 if kind == "linear" else 2.0) * reach
    first = np.maximum((at + 1.0 - half).astype(np.int64), 0)
    last = np.minimum((at + 1.0 + half).astype(np.int64), old)
    index = first[None] + np.arange(int((last - first).max()))[:, None]
    distance = (index - at[None]) / reach
    weight = np.maximum(1 - np.abs(distance), 0) if kind == "linear" else _cubic(distance, -0.5)
    weight = np.where(index < last[None], weight, 0.0)
    return np.minimum(index, old - 1), weight / weight.sum(0, keepdims=True)


def _along(x, dim, index, weight):
    """One dimension of x, by taps."""
    shape = [1] * x.dim()
    shape[dim] = index.shape[1]
    out = None
    for i, w in zip(index, weight, strict=True):
        part = x.index_select(dim, dtorch.from_numpy(i.copy()).to(x.device))
        part = part * dtorch.from_numpy(w.copy()).to(device=x.device, dtype=x.dtype).reshape(shape)
        out = part if out is None else out + part
    return out


def antialiased(input, size, kind, align_corners, factors):
    """`input` (N, C, H, W) resampled to `size`; `kind` is "linear" or "cubic", `factors` the scale factors or None."""
    wide = input.dtype in (dtorch.float32, dtorch.float64)
    x = input if wide else input.float()
    for d in (1, 0):
        old, new = input.shape[2 + d], size[d]
        if align_corners:
            scale = (old - 1) / (new - 1) if new > 1 else 0.0
        else:
            scale = old / new if factors[d] is None else 1.0 / factors[d]
        if new != old or scale != 1.0:
            x = _along(x, 2 + d, *_taps(kind, old, new, scale))
    return x.to(input.dtype)
