"""Composites: norms and distances."""

from __future__ import annotations

import dtorch
from dtorch._modes import in_float32

__all__ = ["cosine_similarity", "normalize", "pairwise_distance", "pdist"]


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """`input` divided by its p-norm along `dim` (at least `eps`); same shape."""
    norm = input.norm(p, dim, keepdim=True).clamp(min=eps)
    result = input / norm
    return result if out is None else out.copy_(result)


@in_float32
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """Cosine of the angle between `x1` and `x2` (broadcast together) along `dim`, each norm at least `eps`."""
    x1, x2 = dtorch.broadcast_tensors(x1, x2)
    n1 = x1.norm(2, dim, keepdim=True).clamp(min=eps)
    n2 = x2.norm(2, dim, keepdim=True).clamp(min=eps)
    return ((x1 / n1) * (x2 / n2)).sum(dim)


@in_float32
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """p-norm of ``x1 - x2 + eps`` along the last dimension: (N, D), (N, D) -> (N,)."""
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@in_float32
def pdist(input, p=2.0):
    """Distances of all pairs of rows of `input` (N, D), in the order (0, 1), (0, 2), ..., (N-2, N-1): (N (N-1) / 2,)."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    n = input.shape[0]
    if n < 2:
        return input.sum(1)[:0]
    first = dtorch.tensor([i for i in range(n) for _ in range(i + 1, n)], device=input.device)
    second = dtorch.tensor([j for i in range(n) for j in range(i + 1, n)], device=input.device)
    return (input.index_select(0, first) - input.index_select(0, second)).norm(p, -1)
