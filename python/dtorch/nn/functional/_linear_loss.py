"""Composite: cross-entropy of a linear layer's outputs, never all of them at once."""

from __future__ import annotations

import dataclasses
import math

import dtorch
import dtorch.nn.functional as F

__all__ = ["LinearCrossEntropyOptions", "linear_cross_entropy"]

_CHUNK = 1 << 22  # logits that one device holds at a time, unless options say otherwise


@dataclasses.dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """How :func:`linear_cross_entropy` cuts its rows. Values do not depend on it but for rounding.

    Args:
        batch_chunk_size: rows whose logits are held at a time, on all devices together; None: so many that a device holds about 4 million logits.
        chunking_method, acc_policy, acc_dtype, allow_retain_graph: accepted for PyTorch's sake. Gradients are summed in the dtype of the
            operands, and the graph may always be kept.
    """

    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: object = None
    allow_retain_graph: bool = True

    def __post_init__(self):
        if self.batch_chunk_size is not None and self.batch_chunk_size < 1:
            raise ValueError(f"LinearCrossEntropyOptions(): batch_chunk_size must be at least 1, got {self.batch_chunk_size}")


def _cuts(t, dim):
    """Over how many devices dimension `dim` of t is sharded."""
    sizes = zip(t.placements, t.device_mesh.shape, strict=True)
    return math.prod([n for p, n in sizes if p.is_shard() and p.dim == dim] or [1])


def _row_weights(target, weight, ignore_index, dtype):
    """What the losses of all rows count together in a weighted mean."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum().to(dtype)
    return F.embedding(target.masked_fill(~counts, 0), weight.detach().unsqueeze(1)).squeeze(-1).mul(counts).sum().to(dtype)


def _check(input, linear_weight, linear_bias, reduction):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction: expected 'none', 'mean' or 'sum'")
    if linear_weight.dim() < 2:
        raise ValueError(f"linear_cross_entropy(): linear_weight must be (C, in_features), got {tuple(linear_weight.shape)}")
    if input.dim() < 1 or input.shape[-1] != linear_weight.shape[-1]:
        raise ValueError(
            f"linear_cross_entropy(): input {tuple(input.shape)} and linear_weight {tuple(linear_weight.shape)} must have the same last size"
        )
    if linear_bias is not None and tuple(linear_bias.shape) != tuple(linear_weight.shape[:-1]):
        raise ValueError(
            f"linear_cross_entropy(): linear_bias must be {tuple(linear_weight.shape[:-1])}, as linear_weight, got {tuple(linear_bias.shape)}"
        )


def linear_cross_entropy(
    input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=None, label_smoothing=0.0, options=None
):
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)``, logits being made a chunk of rows at a time, and again in backward.

    Args:
        input: (in,), (N, in), or (..., in) with a target of class numbers.
        linear_weight: (C, in), or (C, d1, ..., in) for a loss of K dimensions, which is computed at once. Sharded by rows (a vocabulary-parallel
            head), each device makes its classes' logits and a few numbers a row are exchanged.
        target: class numbers () or (N,), as input without its last dimension, (N, d1, ...) for K dimensions; or probabilities (C,), (N, C).
        linear_bias: as linear_weight without its last dimension.
        weight: (C,), how much each class counts.
        reduction: "mean" (weighted, over rows that are not ignored), "sum", "none".
        ignore_index: a class number whose rows count nothing; None: -100.
        label_smoothing: in [0, 1].
        options: :class:`LinearCrossEntropyOptions`; None: the defaults. (In PyTorch None turns chunks off.)

    Raises ValueError for shapes that do not fit, IndexError at the next use of the value for a target outside [0, C).
    """
    _check(input, linear_weight, linear_bias, reduction)
    ignore = -100 if ignore_index is None else ignore_index
    rest = {"weight": weight, "ignore_index": ignore, "label_smoothing": label_smoothing}
    probabilities = target.is_floating_point()
    if input.dim() == 1 or linear_weight.dim() > 2 or (probabilities and input.dim() != 2):
        flat = linear_weight.reshape(-1, linear_weight.shape[-1])
        logits = F.linear(input, flat, None if linear_bias is None else linear_bias.reshape(-1))
        if linear_weight.dim() > 2:
            logits = logits.reshape(*input.shape[:-1], *linear_weight.shape[:-1])
        return F.cross_entropy(logits, target, reduction=reduction, **rest)
    shape = input.shape[:-1]
    if not probabilities and tuple(target.shape) != tuple(shape):
        raise ValueError(f"linear_cross_entropy(): expected a target of shape {tuple(shape)}, as input's rows, got {tuple(target.shape)}")
    x, t = input.reshape(-1, input.shape[-1]), target if probabilities else target.reshape(-1)
    pieces = _pieces(x, t, linear_weight, options)

    def loss_of(rows, goals, w, bias):
        return F.cross_entropy(F.linear(rows, w, bias), goals, reduction="none" if reduction == "none" else "sum", **rest)

    if len(pieces) == 1:
        losses = [loss_of(*pieces[0], linear_weight, linear_bias)]
    else:
        from dtorch.utils.checkpoint import checkpoint

        losses = [
            checkpoint(loss_of, *piece, linear_weight, linear_bias, use_reentrant=False, preserve_rng_state=False) for piece in pieces
        ]
    if reduction == "none":
        parts = _parts(x)
        return (losses[0] if len(losses) == 1 else dtorch.cat([v.reshape(parts, -1) for v in losses], 1)).reshape(shape)
    total = sum(losses[1:], losses[0])
    if reduction == "sum":
        return total
    return total / x.shape[0] if probabilities else total / _row_weights(t, weight, ignore, total.dtype)


def _parts(x):
    """The blocks that rows are seen as, so that every chunk holds some rows of every device."""
    parts = _cuts(x, 0)
    return parts if x.shape[0] and x.shape[0] % parts == 0 else 1


def _pieces(x, t, linear_weight, options):
    """[(rows, their targets)]; blocks of rows are cut alike."""
    parts, n = _parts(x), x.shape[0]
    size = options.batch_chunk_size if options is not None else None
    if size is None:
        size = max(1, _CHUNK * _cuts(linear_weight, 0) // max(1, linear_weight.shape[0])) * parts
    each = max(1, size // parts)
    if n // parts <= each:
        return [(x, t)]
    xs, ts = x.reshape(parts, n // parts, -1), t.reshape(parts, n // parts, *t.shape[1:])
    cut = [(xs[:, i : i + each], ts[:, i : i + each]) for i in range(0, n // parts, each)]
    return [(a.reshape(-1, x.shape[1]), b.reshape(-1, *t.shape[1:])) for a, b in cut]
