"""Composites: activations, dropout of whole channels, embedding bags."""

from __future__ import annotations

import dtorch
import dtorch.nn.functional as F

__all__ = [
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "embedding_bag",
    "feature_alpha_dropout",
    "gumbel_softmax",
    "rrelu",
    "rrelu_",
]


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """Leaky ReLU whose slope is drawn from U(lower, upper) for each element in training, and is their mean otherwise."""
    if lower > upper:
        raise ValueError(f"rrelu: lower ({lower}) must not be greater than upper ({upper})")
    if training:
        slope = dtorch.rand_like(input) * (upper - lower) + lower
        out = dtorch.where(input >= 0, input, input * slope)
    else:
        out = F.leaky_relu(input, (lower + upper) / 2)
    return input.copy_(out) if inplace else out


def rrelu_(input, lower=1.0 / 8, upper=1.0 / 3, training=False):
    """In-place :func:`rrelu`."""
    return rrelu(input, lower, upper, training, inplace=True)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """A sample of the Gumbel-softmax distribution of `logits` (any shape), summing to 1 along `dim`.

    With `hard` it is one-hot, with the gradient of the soft sample. `eps` has no effect.
    """
    noise = -dtorch.rand_like(logits).log()  # exponential
    soft = ((logits - noise.log()) / tau).softmax(dim)
    if not hard:
        return soft
    index = soft.argmax(dim, keepdim=True)
    one_hot = dtorch.zeros_like(soft).scatter_(dim, index, 1.0)
    return one_hot - soft.detach() + soft


def _check_probability(p):
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _channel_noise(input, p):
    """Zeros and 1 / (1 - p), one for each sample and channel: (N, C, 1, ...)."""
    one = input.detach()
    for d in range(2, input.dim()):
        one = one.narrow(d, 0, 1)
    return F.dropout(dtorch.ones_like(one), p, True)


def _feature_dropout(name, input, p, training, inplace, batched_dims):
    """Dropout of whole channels of (N, C, ...), or of (C, ...) with one dimension less."""
    _check_probability(p)
    if input.dim() not in (batched_dims - 1, batched_dims):
        raise RuntimeError(f"{name}: expected {batched_dims - 1}D or {batched_dims}D input, but received a {input.dim()}D input")
    if not training or p == 0.0:
        return input
    x = input if input.dim() == batched_dims else input.unsqueeze(0)
    out = x * _channel_noise(x, p)
    out = out if input.dim() == batched_dims else out.squeeze(0)
    return input.copy_(out) if inplace else out


def dropout1d(input, p=0.5, training=True, inplace=False):
    """Zero whole channels of (N, C, L) or (C, L) with probability `p`, scaling the others by 1 / (1 - p)."""
    return _feature_dropout("dropout1d", input, p, training, inplace, 3)


def dropout2d(input, p=0.5, training=True, inplace=False):
    """Zero whole channels of (N, C, H, W) or (N, C, L) with probability `p`, scaling the others by 1 / (1 - p)."""
    _check_probability(p)
    if input.dim() == 3:  # read as (N, C, L), as PyTorch does
        return _feature_dropout("dropout2d", input, p, training, inplace, 3)
    return _feature_dropout("dropout2d", input, p, training, inplace, 4)


def dropout3d(input, p=0.5, training=True, inplace=False):
    """Zero whole channels of (N, C, D, H, W) or (C, D, H, W) with probability `p`, scaling the others by 1 / (1 - p)."""
    return _feature_dropout("dropout3d", input, p, training, inplace, 5)


def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Alpha dropout of whole channels of (N, C, ...): keeps mean and variance of a self-normalising network."""
    _check_probability(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        out = input * 0.0
    else:
        saturation = -1.7580993408473766  # -scale * alpha of SELU
        keep = (_channel_noise(input, p) > 0).to(input.dtype)
        a = ((1 - p) * (1 + p * saturation**2)) ** -0.5
        out = (input * keep + saturation * (1 - keep)) * a - a * saturation * p
    return input.copy_(out) if inplace else out


def _bag_ids(input, offsets, include_last_offset):
    """For each of the indices the number of its bag, and the number of bags."""
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    starts = offsets[:bags]
    position = dtorch.arange(input.shape[0], device=input.device)
    return (position.unsqueeze(1) >= starts.unsqueeze(0)).sum(1) - 1, bags


def embedding_bag(
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Sums, means or maxima of bags of rows of `weight` (V, D): (B, D).

    `input` is (B, N): B bags of N; or (N,) with `offsets` (B,), where the bags begin. `per_sample_weights` (as `input`) only with
    ``mode="sum"``. Entries equal to `padding_idx` count for nothing; an empty bag gives zeros.
    """
    if weight.dtype in (dtorch.int64, dtorch.int32) and input.is_floating_point():  # the order of the first two was once the other
        input, weight = weight, input
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode has to be one of sum, mean or max, got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights was not None, which is only supported for mode='sum' (got mode={mode!r})"
        )
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError("embedding_bag: if input is 2D, then offsets has to be None: the bags all have the length of a row")
    elif input.dim() == 1:
        if offsets is None or offsets.dim() != 1:
            raise ValueError("embedding_bag: offsets has to be a 1D Tensor if input is 1D")
    else:
        raise ValueError(f"embedding_bag: input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    counted = dtorch.ones_like(input) if padding_idx is None else (input != padding_idx).to(input.dtype)
    scale = counted.to(rows.dtype) if per_sample_weights is None else counted.to(rows.dtype) * per_sample_weights
    if input.dim() == 2:
        if mode == "max":
            return _bag_max(rows, counted.unsqueeze(-1) > 0, 1)
        total = (rows * scale.unsqueeze(-1)).sum(1)
        return total if mode == "sum" else total / counted.sum(1, keepdim=True).clamp(min=1)
    bag, bags = _bag_ids(input, offsets, include_last_offset)
    if mode == "max":
        member = bag.unsqueeze(1) == dtorch.arange(bags, device=input.device)
        member = member & (counted > 0).unsqueeze(1)
        return _bag_max(rows.unsqueeze(1), member.unsqueeze(-1), 0)
    total = dtorch.zeros(bags, weight.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, bag, rows * scale.unsqueeze(-1))
    if mode == "sum":
        return total
    size = dtorch.zeros(bags, dtype=counted.dtype, device=rows.device).index_add(0, bag, counted)
    return total / size.clamp(min=1).unsqueeze(-1)


def _bag_max(rows, member, dim):
    """Maximum over `dim` of the rows that are members; 0 where none is."""
    if rows.shape[dim] == 0:
        return rows.sum(dim)
    top = rows.masked_fill(~member, float("-inf")).amax(dim)
    return top.masked_fill(~member.any(dim), 0.0)
