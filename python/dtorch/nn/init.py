"""Initialisers: each fills its tensor in place, outside of autograd, and returns it."""

from __future__ import annotations

import math
import warnings

import dtorch

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")


def _with_generator(generator):
    return {} if generator is None else {"generator": generator}


def calculate_gain(nonlinearity, param=None):
    """The factor by which `nonlinearity` shrinks the standard deviation of what goes through; `param` is the slope of leaky_relu."""
    if nonlinearity in _LINEAR:
        return 1
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {slope} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Fill with U(a, b)."""
    with dtorch.no_grad():
        return tensor.uniform_(a, b, **_with_generator(generator))


def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Fill with N(mean, std^2)."""
    with dtorch.no_grad():
        return tensor.normal_(mean, std, **_with_generator(generator))


def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Fill with N(mean, std^2) restricted to [a, b], by inverting the distribution function."""

    def below(x):  # the normal distribution function
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect.", stacklevel=2
        )
    with dtorch.no_grad():
        low, high = below((a - mean) / std), below((b - mean) / std)
        tensor.uniform_(2 * low - 1, 2 * high - 1, **_with_generator(generator))
        tensor.erfinv_()
        tensor.mul_(std * math.sqrt(2.0)).add_(mean)
        return tensor.clamp_(min=a, max=b)


def constant_(tensor, val):
    """Fill with `val`."""
    with dtorch.no_grad():
        return tensor.fill_(val)


def ones_(tensor):
    """Fill with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor):
    """Fill with 0."""
    with dtorch.no_grad():
        return tensor.zero_()


def eye_(tensor):
    """Fill the matrix (n, m) with the identity."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with dtorch.no_grad():
        return tensor.copy_(dtorch.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


def dirac_(tensor, groups=1):
    """Fill a convolution's weight (out, in, ...) so that it passes on as many channels as possible; per group."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    out, inner = tensor.shape[:2]
    if out % groups:
        raise ValueError("dim 0 must be divisible by groups")
    with dtorch.no_grad():
        tensor.zero_()
        centre = tuple(s // 2 for s in tensor.shape[2:])
        per_group = out // groups
        for g in range(groups):
            for d in range(min(per_group, inner)):
                tensor[(g * per_group + d, d, *centre)] = 1
    return tensor


def _calculate_fan_in_and_fan_out(tensor):
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = 1
    for s in tensor.shape[2:]:
        field *= s
    return tensor.shape[1] * field, tensor.shape[0] * field


def _calculate_correct_fan(tensor, mode):
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return fan_in if mode == "fan_in" else fan_out


def _xavier_std(tensor, gain):
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return gain * math.sqrt(2.0 / float(fan_in + fan_out))


def xavier_uniform_(tensor, gain=1.0, generator=None):
    """Fill with U(-a, a), a = gain sqrt(6 / (fan_in + fan_out)). Glorot & Bengio, 2010."""
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    """Fill with N(0, std^2), std = gain sqrt(2 / (fan_in + fan_out)). Glorot & Bengio, 2010."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def _kaiming_std(tensor, a, mode, nonlinearity):
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def _nothing_to_fill(tensor):
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return True
    return False


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fill with U(-b, b), b = gain sqrt(3 / fan). He et al., 2015. `a` is the slope when nonlinearity is leaky_relu."""
    if _nothing_to_fill(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fill with N(0, std^2), std = gain / sqrt(fan). He et al., 2015. `a` is the slope when nonlinearity is leaky_relu."""
    if _nothing_to_fill(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor, gain=1, generator=None):
    """Fill with a (semi-)orthogonal matrix (rows, the other dimensions flattened), times `gain`. Saxe et al., 2013."""
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if 0 in tensor.shape:
        return tensor
    rows = tensor.shape[0]
    cols = 1
    for s in tensor.shape[1:]:
        cols *= s
    with dtorch.no_grad():
        flat = dtorch.empty(rows, cols, dtype=dtorch.float32).normal_(0, 1, **_with_generator(generator))
        wide = rows < cols
        q = _orthonormal_columns(flat.t() if wide else flat)
        q = (q.t() if wide else q).reshape(tensor.shape)
        return tensor.copy_(q).mul_(gain)


def _orthonormal_columns(a):
    """Q of the QR decomposition of `a` (n, m), n >= m, its signs such that R's diagonal is positive: then Q is uniformly distributed."""
    import numpy as np

    q, r = np.linalg.qr(a.contiguous().numpy().astype(np.float64))
    d = np.sign(np.diag(r))
    d[d == 0] = 1.0
    return dtorch.tensor((q * d).astype(np.float32))


def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Fill the matrix with N(0, std^2) and zero the fraction `sparsity` of each column, at random rows."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, cols = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with dtorch.no_grad():
        tensor.normal_(0, std, **_with_generator(generator))
        order = dtorch.rand(rows, cols, **_with_generator(generator)).argsort(0)  # a random permutation in each column
        return tensor.masked_fill_((order < zeros).to(tensor.device), 0.0)


def _deprecated(name):
    fn = globals()[name + "_"]

    def old(*args, **kwargs):
        warnings.warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning, stacklevel=2)
        return fn(*args, **kwargs)

    old.__name__ = name
    old.__doc__ = f"The old name of :func:`{name}_`."
    return old


for _name in (
    "uniform",
    "normal",
    "constant",
    "eye",
    "dirac",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
    "orthogonal",
    "sparse",
):
    globals()[_name] = _deprecated(_name)
del _name
