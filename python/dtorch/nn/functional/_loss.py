"""Composites: losses. `reduction` is "none", "mean" or "sum" everywhere."""

from __future__ import annotations

import math

import dtorch
import dtorch.nn.functional as F
from dtorch._modes import in_float32
from dtorch.nn.functional._distance import pairwise_distance

__all__ = [
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def legacy_reduction(size_average, reduce, reduction):
    """The `reduction` that the deprecated pair (size_average, reduce) stands for, when one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    size_average = True if size_average is None else size_average
    reduce = True if reduce is None else reduce
    return "none" if not reduce else "mean" if size_average else "sum"


def _reduce(loss, reduction, size_average=None, reduce=None):
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


@in_float32
def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """``max(0, -target * (input1 - input2) + margin)``, target 1 or -1; all of one shape."""
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            f"margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.size()}, input2: {input2.size()}, target: {target.size()} "
        )
    return _reduce((-target * (input1 - input2) + margin).clamp(min=0), reduction, size_average, reduce)


@in_float32
def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    """`input` where target is 1, ``max(0, margin - input)`` where it is -1."""
    far = (margin - input).clamp(min=0)
    loss = far.masked_fill(target == 1, 0.0) + input.masked_fill(target == -1, 0.0)
    return _reduce(loss, reduction, size_average, reduce)


@in_float32
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """``log(1 + exp(-target * input))``, target 1 or -1."""
    return _reduce(-F.logsigmoid(target * input), reduction, size_average, reduce)


@in_float32
def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """``1 - cos`` where target is 1, ``max(0, cos - margin)`` where it is -1: (N, D), (N, D), (N,), or without N."""
    if target.dim() not in (0, 1):
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if target.dim() == 1 and (input1.dim() != 2 or input2.dim() != 2):
        raise RuntimeError(f"1D target tensor expects 2D input tensors, but found inputs with sizes {input1.size()} and {input2.size()}.")
    if target.dim() == 0 and (input1.dim() != 1 or input2.dim() != 1):
        raise RuntimeError(f"0D target tensor expects 1D input tensors, but found inputs with sizes {input1.size()} and {input2.size()}.")
    tiny = 1e-12
    square1, square2 = (input1 * input1).sum(-1) + tiny, (input2 * input2).sum(-1) + tiny
    cos = (input1 * input2).sum(-1) / (square1 * square2).sqrt()
    loss = (1 - cos).masked_fill(target != 1, 0.0) + (cos - margin).clamp(min=0).masked_fill(target != -1, 0.0)
    return _reduce(loss, reduction, size_average, reduce)


@in_float32
def triplet_margin_with_distance_loss(anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``; `swap` takes the smaller distance to the negative."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = dtorch.minimum(far, distance(positive, negative))
    return _reduce((margin + near - far).clamp(min=0), reduction)


@in_float32
def triplet_margin_loss(
    anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None, reduce=None, reduction="mean"
):
    """:func:`triplet_margin_with_distance_loss` with the p-norm: (N, D) each, or (D,)."""
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=legacy_reduction(size_average, reduce, reduction),
    )


@in_float32
def multilabel_soft_margin_loss(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """Binary cross-entropy with logits, averaged over the classes: (..., C), (..., C) -> (...) before reduction."""
    loss = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return _reduce(loss.mean(-1), reduction, size_average, reduce)


@in_float32
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Multi-class multi-label hinge loss: (N, C) or (C,); `target` holds class numbers, ended by a negative one."""
    if input.dim() > 2 or tuple(target.shape) != tuple(input.shape):
        raise RuntimeError(f"multilabel_margin_loss: inconsistent target size: {target.shape} for input of size: {input.shape}")
    x, t = (input, target) if input.dim() == 2 else (input.reshape(1, -1), target.reshape(1, -1))
    classes = x.shape[1]
    listed = (t < 0).to(t.dtype).cumsum(1) == 0  # before the first negative entry
    t = t.masked_fill(~listed, 0)
    named = (t.unsqueeze(2) == dtorch.arange(classes, device=t.device)) & listed.unsqueeze(2)  # (N, entry, class)
    is_target = named.any(1)
    z = (1 - (x.gather(1, t).unsqueeze(2) - x.unsqueeze(1))).clamp(min=0)
    counts = listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = z.masked_fill(~counts, 0.0).sum((1, 2)) / classes
    return _reduce(loss if input.dim() == 2 else loss[0], reduction, size_average, reduce)


@in_float32
def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """``sum_i w[y] max(0, margin - x[y] + x[i])^p / C`` over i != y: input (N, C) or (C,), target (N,), or () or (1,)."""
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError(f"weight must be one-dimensional, got {weight.dim()} dimensions")
    x, y = (input, target) if input.dim() == 2 else (input.reshape(1, -1), target.reshape(1))
    z = (margin - x.gather(1, y.unsqueeze(1)) + x).clamp(min=0)
    z = z if p == 1 else z * z
    if weight is not None:
        z = z * weight.index_select(0, y).unsqueeze(1)
    own = y.unsqueeze(1) == dtorch.arange(x.shape[1], device=y.device)
    loss = z.masked_fill(own, 0.0).sum(1) / x.shape[1]
    return _reduce(loss if target.dim() else loss[0], reduction, size_average, reduce)


@in_float32
def poisson_nll_loss(input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
    """Negative log likelihood of counts `target` whose rate is `input`, or ``exp(input)`` when `log_input`."""
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:  # Stirling's approximation of log(target!)
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + stirling.masked_fill(target <= 1, 0.0)
    return _reduce(loss, reduction, size_average, reduce)


@in_float32
def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Negative log likelihood of `target` under N(input, var); `var` (a number, or as `input`, or without the last dim, or 1 there)."""
    if isinstance(var, (int, float)):
        if var < 0:
            raise ValueError(f"var has negative entry/entries: {var}")
        var = dtorch.full_like(input, var)
    if tuple(var.shape) != tuple(input.shape):
        if tuple(input.shape[:-1]) == tuple(var.shape):
            var = var.unsqueeze(-1)
        elif not (var.dim() == input.dim() and all(v in (1, i) for v, i in zip(var.shape, input.shape, strict=True))):
            raise ValueError(f"var is of incorrect size: {tuple(var.shape)} for input of size {tuple(input.shape)}")
    # The floor is not part of the gradient.
    var = var + (var.detach().clamp(min=eps) - var.detach())
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduce(loss, reduction)
