"""Choosing how attention is computed. The engine has one tiled kernel with the best of all, so a choice is accepted and has no effect."""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(Enum):
    """Names of ways to compute scaled dot product attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends, set_priority=False):
    """A context that asks for one of `backends`: a :class:`SDPBackend` or a list of them. No effect on values or speed."""
    given = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for backend in given:
        if not isinstance(backend, SDPBackend):
            raise AssertionError(f"Backend must be an instance of SDPBackend, got {backend!r}")
    yield {}
