"""Parameters as one vector, and back."""

from __future__ import annotations

import dtorch
from dtorch import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters):
    """All parameters, flattened and joined: (total,)."""
    return dtorch.cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec, parameters):
    """Make the pieces of `vec` (total,) the data of the parameters."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected dtorch.Tensor, but got: {type(vec).__name__}")
    start = 0
    for p in parameters:
        count = p.numel()
        p.data = vec[start : start + count].view_as(p).data
        start += count
