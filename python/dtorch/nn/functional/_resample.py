"""Composites: resampling to another size, sliding windows, channels to pixels. Positions are computed here, once, in NumPy."""

from __future__ import annotations

import math

import dtorch
import dtorch.nn.functional as F
from dtorch.nn.functional._spatial import _ntuple

__all__ = ["fold", "interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold"]


def pixel_shuffle(input, upscale_factor):
    """(..., C r^2, H, W) -> (..., C, H r, W r)"""
    r = upscale_factor
    if input.dim() < 3:
        raise RuntimeError(f"pixel_shuffle expects input to have at least 3 dimensions, but got input with {input.dim()} dimension(s)")
    *lead, c, h, w = input.shape
    if r < 1 or c % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={c} is not divisible by {r * r}"
        )
    n = len(lead)
    x = input.reshape(*lead, c // (r * r), r, r, h, w)
    return x.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(input, downscale_factor):
    """(..., C, H r, W r) -> (..., C r^2, H, W)"""
    r = downscale_factor
    if input.dim() < 3:
        raise RuntimeError(f"pixel_unshuffle expects input to have at least 3 dimensions, but got input with {input.dim()} dimension(s)")
    *lead, c, h, w = input.shape
    if r < 1 or h % r or w % r:
        raise RuntimeError(f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but {h}, {w} are not by {r}")
    n = len(lead)
    x = input.reshape(*lead, c, h // r, r, w // r, r)
    return x.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * r * r, h // r, w // r)


# ---- windows


def _window_positions(size, kernel, dilation, padding, stride):
    """For every place in the windows, (kernel offset, window), its position in the flattened padded plane; and the number of windows."""
    import numpy as np

    rows = []
    counts = []
    for s, k, d, p, st in zip(size, kernel, dilation, padding, stride, strict=True):
        padded = s + 2 * p
        count = (padded - d * (k - 1) - 1) // st + 1
        counts.append(count)
        rows.append((np.arange(k)[:, None] * d + np.arange(count)[None, :] * st).astype(np.int64) if count > 0 else None)
    if min(counts) < 1:
        raise RuntimeError(
            f"Given spatial size {tuple(size)}, kernel_size={tuple(kernel)}, dilation={tuple(dilation)}, padding={tuple(padding)}, "
            f"stride={tuple(stride)}, the calculated shape of the array of sliding blocks is {tuple(counts)}, which is too small"
        )
    width = size[1] + 2 * padding[1]
    at = rows[0][:, None, :, None] * width + rows[1][None, :, None, :]  # (k0, k1, count0, count1)
    return at.reshape(-1), counts[0] * counts[1]


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Sliding windows as columns: (N, C, H, W) -> (N, C k0 k1, L), or without N."""
    kernel, dilation, padding, stride = (
        _ntuple(v, 2, n) for v, n in ((kernel_size, "kernel_size"), (dilation, "dilation"), (padding, "padding"), (stride, "stride"))
    )
    if input.dim() not in (3, 4):
        raise RuntimeError(f"Input Error: Only unbatched (3D) or batched (4D) input Tensors supported (got {input.dim()}D)")
    x = input if input.dim() == 4 else input.unsqueeze(0)
    at, count = _window_positions(x.shape[2:], kernel, dilation, padding, stride)
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    columns = x.flatten(2).index_select(2, dtorch.from_numpy(at).to(input.device))
    columns = columns.reshape(x.shape[0], x.shape[1] * kernel[0] * kernel[1], count)
    return columns if input.dim() == 4 else columns.squeeze(0)


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Add up windows: (N, C k0 k1, L) -> (N, C, *output_size), or without N; the transpose of :func:`unfold`."""
    size, kernel, dilation, padding, stride = (
        _ntuple(v, 2, n)
        for v, n in (
            (output_size, "output_size"),
            (kernel_size, "kernel_size"),
            (dilation, "dilation"),
            (padding, "padding"),
            (stride, "stride"),
        )
    )
    if input.dim() not in (2, 3):
        raise RuntimeError(f"Input Error: Only unbatched (2D) or batched (3D) input Tensors supported (got {input.dim()}D)")
    x = input if input.dim() == 3 else input.unsqueeze(0)
    at, count = _window_positions(size, kernel, dilation, padding, stride)
    n, rows, columns = x.shape
    area = kernel[0] * kernel[1]
    if rows % area or columns != count:
        raise RuntimeError(
            f"Given output_size={size}, kernel_size={kernel}, dilation={dilation}, padding={padding}, stride={stride}, expected input of "
            f"shape (N, C * {area}, {count}), got {tuple(input.shape)}"
        )
    h, w = size[0] + 2 * padding[0], size[1] + 2 * padding[1]
    plane = dtorch.zeros(n, rows // area, h * w, dtype=x.dtype, device=x.device)
    plane = plane.index_add(2, dtorch.from_numpy(at).to(x.device), x.reshape(n, rows // area, area * count))
    plane = plane.reshape(n, rows // area, h, w)[:, :, padding[0] : h - padding[0], padding[1] : w - padding[1]]
    return plane if input.dim() == 3 else plane.squeeze(0)


# ---- interpolation


def _cubic(x, a):
    """The cubic convolution kernel at distance x."""
    import numpy as np

    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _taps(kind, old, new, scale, align_corners, antialias, single):
    """How each of `new` positions is made of `old` ones: indices (taps, new) and weights (taps, new), None for nearest."""
    import numpy as np

    out = np.arange(new, dtype=np.float32 if single else np.float64)
    scale = out.dtype.type(scale)
    if kind == "nearest":
        return np.minimum(np.floor(out * scale), old - 1).astype(np.int64)[None], None
    if kind == "nearest-exact":
        return np.minimum(np.floor((out + out.dtype.type(0.5)) * scale), old - 1).astype(np.int64)[None], None
    if align_corners:
        scale = out.dtype.type(old - 1) / out.dtype.type(new - 1) if new > 1 else out.dtype.type(0)
    if align_corners and not antialias:
        at = out * scale
    else:
        at = (out + out.dtype.type(0.5)) * scale - out.dtype.type(0.5)
    if antialias:
        reach = max(float(scale), 1.0)
        half = (1.0 if kind == "linear" else 2.0) * reach
        first = np.maximum((at + 0.5 - half + 0.5).astype(np.int64), 0)
        last = np.minimum((at + 0.5 + half + 0.5).astype(np.int64), old)
        steps = np.arange(int((last - first).max()))[:, None]
        index = first[None] + steps
        distance = (index - at[None]) / reach
        weight = np.maximum(1 - np.abs(distance), 0) if kind == "linear" else _cubic(distance, -0.5)
        weight = np.where(index < last[None], weight, 0.0)
        return np.minimum(index, old - 1), weight / weight.sum(0, keepdims=True)
    if kind == "linear":
        at = np.maximum(at, 0) if not align_corners else at
        low = np.minimum(np.floor(at).astype(np.int64), old - 1)
        part = np.clip(at - low, 0, 1)
        return np.stack([low, np.minimum(low + 1, old - 1)]), np.stack([1 - part, part])
    low = np.floor(at).astype(np.int64)
    part = at - low
    index = np.stack([low + k for k in (-1, 0, 1, 2)])
    weight = np.stack([_cubic(part - k, -0.75) for k in (-1, 0, 1, 2)])
    return np.clip(index, 0, old - 1), weight


def _resample(x, dim, index, weight):
    """One dimension of x, by taps."""
    size = index.shape[1]
    if weight is None:
        return x.index_select(dim, dtorch.from_numpy(index[0]).to(x.device))
    shape = [1] * x.dim()
    shape[dim] = size
    out = None
    for i, w in zip(index, weight, strict=True):
        part = x.index_select(dim, dtorch.from_numpy(i.copy()).to(x.device))
        part = part * dtorch.from_numpy(w.astype("f8")).to(device=x.device, dtype=x.dtype).reshape(shape)
        out = part if out is None else out + part
    return out


_KINDS = {3: "linear", 4: "bilinear", 5: "trilinear"}


def _target(input, size, scale_factor, recompute_scale_factor):
    """The output size, and the scale of each dimension (input over output)."""
    n = input.dim() - 2
    old = list(input.shape[2:])
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined" if size is not None else "either size or scale_factor should be defined")
    if size is not None:
        sizes = [size] * n if isinstance(size, int) else [int(s) for s in size]
        if len(sizes) != n:
            raise ValueError(
                "Input and output must have the same number of spatial dimensions, but got input with spatial dimensions of "
                f"{old} and output size of {size}. Please provide input tensor in (N, C, d1, d2, ...,dK) format and output size in "
                "(o1, o2, ...,oK) format."
            )
        if recompute_scale_factor:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        factors = None
    else:
        factors = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * n
        if len(factors) != n:
            raise ValueError(f"Input has {n} spatial dimensions, but scale_factor has {len(factors)} entries: {scale_factor}")
        sizes = [math.floor(float(s) * f) for s, f in zip(old, factors, strict=True)]
        if recompute_scale_factor:
            factors = None
    if min(sizes, default=1) < 1:
        raise RuntimeError(f"Input and output sizes should be greater than 0, but got input {old} and output {sizes}")
    scales = [s / t for s, t in zip(old, sizes, strict=True)] if factors is None else [1.0 / f for f in factors]
    return sizes, scales


def interpolate(
    input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False
):
    """Resample (N, C, ...) to `size`, or by `scale_factor`.

    `mode`: "nearest", "nearest-exact" and "area" for 1 to 3 spatial dimensions; "linear", "bilinear", "trilinear" for 1, 2, 3; "bicubic" for 2.
    `antialias` (bilinear and bicubic) averages over all that an output pixel covers.
    """
    if input.dim() not in _KINDS:
        raise NotImplementedError(f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.dim()}D) for the modes: {mode}")
    linear = mode in ("linear", "bilinear", "trilinear")
    if mode in ("nearest", "nearest-exact", "area"):
        if align_corners is not None:
            raise ValueError("align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear")
    elif not linear and mode != "bicubic":
        raise NotImplementedError(f"interpolate: unknown mode {mode!r}")
    elif mode != ("bicubic" if mode == "bicubic" else _KINDS[input.dim()]) or (mode == "bicubic" and input.dim() != 4):
        raise NotImplementedError(f"Got {input.dim()}D input, but {mode} mode needs another number of dimensions")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    sizes, scales = _target(input, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        return getattr(F, f"adaptive_avg_pool{input.dim() - 2}d")(input, sizes if input.dim() > 3 else sizes[0])
    kind = "linear" if linear else "cubic" if mode == "bicubic" else mode
    single = input.dtype != dtorch.float64
    x = input.float() if single and kind in ("linear", "cubic") and input.dtype != dtorch.float32 else input
    for d in reversed(range(len(sizes))):
        if sizes[d] == input.shape[2 + d] and (scales[d] == 1.0 or align_corners):
            continue
        taps = _taps(kind, input.shape[2 + d], sizes[d], scales[d], bool(align_corners), antialias, single)
        x = _resample(x, 2 + d, *taps)
    return x.to(input.dtype)
