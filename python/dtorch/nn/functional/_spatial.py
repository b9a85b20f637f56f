"""Composites: pooling, normalisation and resampling over positions."""

from __future__ import annotations

import dtorch
import dtorch.nn.functional as F
from dtorch._C import _nn
from dtorch.nn.functional._resample import antialiased

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "affine_grid",
    "channel_shuffle",
    "grid_sample",
    "interpolate",
    "local_response_norm",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]


def _ntuple(value, n, name):
    """`value` as a tuple of n numbers."""
    if isinstance(value, (int, float)):
        return (value,) * n
    value = tuple(value)
    if len(value) == 1:
        return value * n
    if len(value) != n:
        raise ValueError(f"{name} must be one number or {n}, got {value}")
    return value


def _max_pool(n):
    both = getattr(_nn, f"max_pool{n}d_with_indices")

    def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        """Maximum over windows of (N, C, size...); with `return_indices` also the flat position of each in its plane."""
        result = both(input, kernel_size, stride, padding, dilation, ceil_mode)
        return result if return_indices else result[0]

    max_pool.__name__ = max_pool.__qualname__ = f"max_pool{n}d"
    return max_pool


max_pool1d, max_pool2d, max_pool3d = _max_pool(1), _max_pool(2), _max_pool(3)


def _keep_sizes(input, output_size, n):
    """An adaptive output size with None replaced by the input's size."""
    if isinstance(output_size, int):
        return (output_size,) * n
    output_size = tuple(output_size)
    if len(output_size) != n:
        raise ValueError(f"output_size must be an int or {n} of them (None keeps a size), got {output_size}")
    return tuple(size if want is None else want for want, size in zip(output_size, input.shape[-n:], strict=True))


def adaptive_avg_pool2d(input, output_size):
    """Mean over as many windows of (N, C, H, W) as `output_size` says; None keeps a size."""
    return _nn._adaptive_avg_pool2d(input, _keep_sizes(input, output_size, 2))


def adaptive_avg_pool3d(input, output_size):
    """Mean over as many windows of (N, C, D, H, W) as `output_size` says; None keeps a size."""
    return _nn._adaptive_avg_pool3d(input, _keep_sizes(input, output_size, 3))


def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, L) as `output_size` says, and the position of each."""
    return _nn._adaptive_max_pool1d(input, _keep_sizes(input, output_size, 1))


def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, H, W) as `output_size` says, and the flat position of each in its plane."""
    return _nn._adaptive_max_pool2d(input, _keep_sizes(input, output_size, 2))


def adaptive_max_pool3d_with_indices(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, D, H, W) as `output_size` says, and the flat position of each in its volume."""
    return _nn._adaptive_max_pool3d(input, _keep_sizes(input, output_size, 3))


def adaptive_max_pool1d(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, L) as `output_size` says; with `return_indices` also where each was."""
    result = adaptive_max_pool1d_with_indices(input, output_size)
    return result if return_indices else result[0]


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, H, W) as `output_size` says; with `return_indices` also where each was."""
    result = adaptive_max_pool2d_with_indices(input, output_size)
    return result if return_indices else result[0]


def adaptive_max_pool3d(input, output_size, return_indices=False):
    """Maximum over as many windows of (N, C, D, H, W) as `output_size` says; with `return_indices` also where each was."""
    result = adaptive_max_pool3d_with_indices(input, output_size)
    return result if return_indices else result[0]


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """`input` (N, C, ...) over ``(k + alpha * mean of squares over `size` neighbouring channels) ** beta``."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if size < 1:
        raise ValueError(f"local_response_norm: size must be at least 1, got {size}")
    channels = input.shape[1]
    margin = [0, 0] * (input.dim() - 2) + [size // 2, (size - 1) // 2]
    padded = F.pad(input * input, margin)
    total = padded.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + padded.narrow(1, i, channels)
    return input / (total * (alpha / size) + k) ** beta


def _lp_pool(n, pool, input, norm_type, kernel_size, stride, ceil_mode):
    kernel = _ntuple(kernel_size, n, "kernel_size")
    count = 1
    for k in kernel:
        count *= k
    stride = kernel if stride is None else _ntuple(stride, n, "stride")
    mean = pool(input**norm_type, kernel, stride, (0,) * n, ceil_mode)
    return (mean.sign() * F.relu(mean.abs()) * count) ** (1.0 / norm_type)


def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Power-average pooling ``(sum x^p)^(1/p)`` of (N, C, L)."""
    return _lp_pool(1, F.avg_pool1d, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Power-average pooling ``(sum x^p)^(1/p)`` of (N, C, H, W)."""
    return _lp_pool(2, F.avg_pool2d, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Power-average pooling ``(sum x^p)^(1/p)`` of (N, C, D, H, W)."""
    return _lp_pool(3, F.avg_pool3d, input, norm_type, kernel_size, stride, ceil_mode)


def _max_unpool(n, input, indices, kernel_size, stride, padding, output_size):
    """Put each value at the position (in the flattened output plane) that max pooling took it from."""
    kernel = _ntuple(kernel_size, n, "kernel_size")
    stride = kernel if stride is None else _ntuple(stride, n, "stride")
    padding = _ntuple(padding, n, "padding")
    if tuple(indices.shape) != tuple(input.shape):
        raise ValueError(f"Expected shape of indices to be same as that of the input tensor ({input.shape}), but got {indices.shape}")
    if output_size is None:
        sizes = input.shape[-n:]
        output_size = [(s - 1) * st + k - 2 * p for s, st, k, p in zip(sizes, stride, kernel, padding, strict=True)]
    output_size = list(output_size)[-n:]
    lead = list(input.shape[:-n])
    plane = 1
    for s in output_size:
        plane *= s
    flat = dtorch.zeros(*lead, plane, dtype=input.dtype, device=input.device)
    return flat.scatter(-1, indices.flatten(-n), input.flatten(-n)).reshape(*lead, *output_size)


def max_unpool1d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Inverse of :func:`max_pool1d` with ``return_indices``; the other places are 0."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Inverse of :func:`max_pool2d` with ``return_indices``; the other places are 0."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Inverse of :func:`max_pool3d` with ``return_indices``; the other places are 0."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


_RANKS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}


def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
    """Resample (N, C, ...) to `size`, or by `scale_factor`.

    `mode` is "nearest", "nearest-exact", "linear" (3-D), "bilinear", "bicubic" (4-D), "trilinear" (5-D) or "area".
    `antialias` (bilinear and bicubic) averages over all that an output pixel covers.
    """
    n = input.dim() - 2
    if n not in (1, 2, 3):
        raise NotImplementedError(f"interpolate: expected (N, C, ...) of 3 to 5 dimensions, got {input.dim()}")
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "only one of size or scale_factor should be defined" if size is not None else "either size or scale_factor should be defined"
        )
    if mode in _RANKS and _RANKS[mode] != input.dim():
        raise NotImplementedError(f"interpolate: mode '{mode}' takes {_RANKS[mode]}-D input, got {input.dim()}-D")
    if mode not in _RANKS and mode not in ("nearest", "nearest-exact", "area"):
        raise NotImplementedError(f"interpolate: mode '{mode}' is not one of nearest, nearest-exact, area, {', '.join(_RANKS)}")
    if align_corners is not None and mode not in _RANKS:
        raise ValueError("align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    factors = [None] * n
    if scale_factor is not None:
        factors = [float(f) for f in _ntuple(scale_factor, n, "scale_factor")]
        size = [int(s * f) for s, f in zip(input.shape[2:], factors, strict=True)]
        if recompute_scale_factor:
            factors = [None] * n
    elif recompute_scale_factor:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    else:
        size = _ntuple(size, n, "size")
    if mode == "area":
        return (_nn.adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](input, tuple(size))
    kind = mode if mode.startswith("nearest") else "cubic" if mode == "bicubic" else "linear"
    if antialias:
        return antialiased(input, size, kind, bool(align_corners), factors)
    return dtorch._C._ops._resample(input, tuple(size), kind, bool(align_corners), *factors)


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """The same as :func:`interpolate`."""
    return F.interpolate(input, size=size, scale_factor=scale_factor, mode=mode, align_corners=align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """:func:`interpolate` with ``mode="nearest"``."""
    return F.interpolate(input, size=size, scale_factor=scale_factor, mode="nearest")


def upsample_bilinear(input, size=None, scale_factor=None):
    """:func:`interpolate` with ``mode="bilinear"`` and aligned corners."""
    return F.interpolate(input, size=size, scale_factor=scale_factor, mode="bilinear", align_corners=True)


def channel_shuffle(input, groups):
    """Interleave `groups` groups of channels of (N, C, ...): channel g * (C / groups) + i goes to i * groups + g."""
    if input.dim() < 3:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input.shape)}")
    n, c, *rest = input.shape
    if groups < 1 or c % groups:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups.")
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)


def affine_grid(theta, size, align_corners=False):
    """Sampling grid of an affine map: theta (N, 2, 3) and size (N, C, H, W) -> (N, H, W, 2); or (N, 3, 4) and (N, C, D, H, W)."""
    dims = len(size) - 2
    if dims not in (2, 3) or tuple(theta.shape[1:]) != (dims, dims + 1):
        raise ValueError(f"affine_grid: theta must be (N, 2, 3) for 4 sizes or (N, 3, 4) for 5, got {tuple(theta.shape)} and {tuple(size)}")

    def axis(length):
        if align_corners:
            return dtorch.linspace(-1, 1, length, dtype=theta.dtype, device=theta.device) if length > 1 else theta.new_zeros(1)
        return (dtorch.arange(length, dtype=theta.dtype, device=theta.device) * 2 + 1) / length - 1

    spatial = list(size[2:])
    columns = []
    for d in reversed(range(dims)):  # x first, then y, then z
        shape = [1] * dims
        shape[d] = spatial[d]
        columns.append(axis(spatial[d]).reshape(shape).expand(spatial))
    columns.append(dtorch.ones(spatial, dtype=theta.dtype, device=theta.device))
    base = dtorch.stack(columns, -1).reshape(1, -1, dims + 1)
    return (base @ theta.transpose(1, 2)).reshape(theta.shape[0], *spatial, dims)


def _unnormalize(coordinate, length, align_corners):
    """From [-1, 1] to pixel positions."""
    if align_corners:
        return (coordinate + 1) / 2 * (length - 1)
    return ((coordinate + 1) * length - 1) / 2


def _reflect(position, low, high):
    """Reflect positions at low and high (both in half pixels)."""
    if low == high:
        return position * 0.0
    low, span = low / 2, (high - low) / 2
    distance = (position - low).abs()
    extra = distance % span
    flips = (distance / span).floor()
    return dtorch.where(flips % 2 == 0, extra + low, span - extra + low)


def _bring_inside(position, length, padding_mode, align_corners):
    if padding_mode == "border":
        return position.clamp(0, length - 1)
    if padding_mode == "reflection":
        low, high = (0, 2 * (length - 1)) if align_corners else (-1, 2 * length - 1)
        return _reflect(position, low, high).clamp(0, length - 1)
    return position


def _linear_taps(position, spatial, padding_mode, align_corners):
    """The corners of the cells in which positions lie: (coordinates, weight)."""
    position = [_bring_inside(p, s, padding_mode, align_corners) for p, s in zip(position, spatial, strict=True)]
    base = [p.floor() for p in position]
    taps = []
    for bits in range(1 << len(position)):
        at, weight = [], 1.0
        for d, p in enumerate(position):
            up = bits >> d & 1
            at.append(base[d] + up)
            weight = weight * (p - base[d] if up else 1 - (p - base[d]))
        taps.append((at, weight))
    return taps


def _cubic_weights(t):
    """The cubic kernel (a = -3/4) at the distances 1 + t, t, 1 - t, 2 - t."""

    def near(x):
        return (1.25 * x - 2.25) * x * x + 1

    def far(x):
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic_taps(position, spatial, padding_mode, align_corners):
    """The 4 x 4 pixels around positions: (coordinates, weight). Padding applies to each pixel."""
    base = [p.floor() for p in position]
    weights = [_cubic_weights(p - b) for p, b in zip(position, base, strict=True)]
    taps = []
    for i in range(4):
        for j in range(4):
            at = [_bring_inside(b + k - 1, s, padding_mode, align_corners) for b, k, s in zip(base, (i, j), spatial, strict=True)]
            taps.append((at, weights[0][i] * weights[1][j]))
    return taps


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    """Values of `input` (N, C, H, W) at the positions `grid` (N, h, w, 2), x before y, in [-1, 1]: (N, C, h, w); the same in 3-D.

    `mode` is "bilinear", "nearest" or (in 2-D) "bicubic"; `padding_mode` is "zeros", "border" or "reflection".
    """
    dims, align_corners = input.dim() - 2, bool(align_corners)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(f"grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: '{padding_mode}'")
    if dims not in (2, 3) or grid.dim() != input.dim() or grid.shape[-1] != dims or grid.shape[0] != input.shape[0]:
        raise RuntimeError(f"grid_sample(): expected input (N, C, ...) and grid (N, ..., {dims}), got {input.shape} and {grid.shape}")
    if mode == "bicubic" and dims != 2:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    n, c, *spatial = input.shape
    # d counts from the first spatial dimension; the grid's last entry belongs to it.
    position = [_unnormalize(grid[..., dims - 1 - d], spatial[d], align_corners) for d in range(dims)]
    if mode == "nearest":
        inside = [_bring_inside(p, s, padding_mode, align_corners) for p, s in zip(position, spatial, strict=True)]
        taps = [([p.round() for p in inside], position[0] * 0 + 1)]  # the grid's gradient is 0, not absent
    else:
        taps = (_cubic_taps if mode == "bicubic" else _linear_taps)(position, spatial, padding_mode, align_corners)
    flat = input.reshape(n, c, -1)
    total = None
    for at, weight in taps:
        index, inside = None, None
        for d in range(dims):
            ok = (at[d] >= 0) & (at[d] <= spatial[d] - 1)
            inside = ok if inside is None else inside & ok
            i = at[d].detach().clamp(0, spatial[d] - 1).to(dtorch.int64)
            index = i if index is None else index * spatial[d] + i
        value = flat.gather(2, index.reshape(n, 1, -1).expand(n, c, -1)).reshape(n, c, *grid.shape[1:-1])
        value = value * (weight * inside.to(input.dtype)).unsqueeze(1)
        total = value if total is None else total + value
    return total
