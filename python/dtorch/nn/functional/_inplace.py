"""Wrappers of operators of the same name: options that PyTorch has and the operator does not, as working in place."""

from __future__ import annotations

import warnings

import dtorch
from dtorch._C import _nn

__all__ = [
    "alpha_dropout",
    "celu",
    "dropout",
    "elu",
    "embedding",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "scaled_dot_product_attention",
    "selu",
    "silu",
    "softmax",
    "softmin",
    "threshold",
]


def relu(input, inplace=False):
    """``max(0, x)``"""
    return _nn.relu_(input) if inplace else _nn.relu(input)


def relu6(input, inplace=False):
    """``clamp(x, 0, 6)``"""
    return _nn.relu6_(input) if inplace else _nn.relu6(input)


def silu(input, inplace=False):
    """``x sigmoid(x)``"""
    return _nn.silu_(input) if inplace else _nn.silu(input)


def mish(input, inplace=False):
    """``x tanh(softplus(x))``"""
    return _nn.mish_(input) if inplace else _nn.mish(input)


def selu(input, inplace=False):
    """Scaled ELU of self-normalising networks."""
    return _nn.selu_(input) if inplace else _nn.selu(input)


def hardsigmoid(input, inplace=False):
    """``clamp(x / 6 + 1 / 2, 0, 1)``"""
    return _nn.hardsigmoid_(input) if inplace else _nn.hardsigmoid(input)


def hardswish(input, inplace=False):
    """``x hardsigmoid(x)``"""
    return _nn.hardswish_(input) if inplace else _nn.hardswish(input)


def elu(input, alpha=1.0, inplace=False):
    """x above 0, ``alpha (exp(x) - 1)`` below."""
    return _nn.elu_(input, alpha) if inplace else _nn.elu(input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``"""
    return _nn.celu_(input, alpha) if inplace else _nn.celu(input, alpha)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """x above 0, ``negative_slope * x`` below."""
    return _nn.leaky_relu_(input, negative_slope) if inplace else _nn.leaky_relu(input, negative_slope)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """``clamp(x, min_val, max_val)``"""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _nn.hardtanh_(input, min_val, max_val) if inplace else _nn.hardtanh(input, min_val, max_val)


def threshold(input, threshold, value, inplace=False):
    """x where it is above `threshold`, `value` elsewhere."""
    return _nn.threshold_(input, threshold, value) if inplace else _nn.threshold(input, threshold, value)


def dropout(input, p=0.5, training=True, inplace=False):
    """Zero elements with probability `p` and scale the others by 1 / (1 - p), in training; `input` itself otherwise."""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return _nn.dropout_(input, p, training) if inplace else _nn.dropout(input, p, training)


def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Dropout that keeps mean and variance of a self-normalising network."""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return _nn.alpha_dropout_(input, p, training) if inplace else _nn.alpha_dropout(input, p, training)


def _dim(name, input, dim, stacklevel):
    """The dimension that a softmax takes when none is given, with PyTorch's warning."""
    if dim is not None:
        return dim
    text = f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument."
    warnings.warn(text, stacklevel=stacklevel + 1)
    return 0 if input.dim() in (0, 1, 3) else 1


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """``exp(x) / sum exp(x)`` along `dim`; `dtype` converts first."""
    return dtorch.softmax(input, _dim("softmax", input, dim, _stacklevel), dtype=dtype)


def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """``softmax(-x)`` along `dim`; `dtype` converts first."""
    return dtorch.softmax(-input, _dim("softmin", input, dim, _stacklevel), dtype=dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """``log(softmax(x))`` along `dim`; `dtype` converts first."""
    return dtorch.log_softmax(input, _dim("log_softmax", input, dim, _stacklevel), dtype=dtype)


def _renormalize(weight, input, max_norm, norm_type):
    """Scale the rows of `weight` that `input` names and whose norm is above `max_norm` down to it, in place."""
    with dtorch.no_grad():
        norm = weight.norm(norm_type, 1, keepdim=True)
        named = dtorch.zeros_like(norm).index_fill(0, input.reshape(-1), 1.0)
        scale = dtorch.where((named > 0) & (norm > max_norm), max_norm / (norm + 1e-7), dtorch.ones_like(norm))
        weight.mul_(scale)


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """Rows of `weight` (V, D) by index: (...) -> (..., D). The row `padding_idx` gets no gradient.

    With `max_norm`, rows with a larger `norm_type`-norm are first scaled down to it, in `weight` itself. Gradients are dense, also with `sparse`.
    """
    if max_norm is not None:
        _renormalize(weight, input, max_norm, norm_type)
    return _nn.embedding(input, weight, padding_idx, None, 2.0, scale_grad_by_freq)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """softmax(scale query key' + attn_mask) value: (..., H, L, D), (..., H, S, D), (..., H, S, E) -> (..., H, L, E).

    A bool `attn_mask` is True where a key is seen; a float one is added. `scale` defaults to 1 / sqrt(D). `enable_gqa` lets key and value have
    fewer heads. It is computed in tiles: memory grows with the sequence, not with its square. Where the sequence is sharded,
    :class:`dtorch.distributed.context_parallel` says how it runs.
    """
    return _nn.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
