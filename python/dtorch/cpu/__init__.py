"""The CPU devices, under the names that PyTorch has for them."""

from __future__ import annotations

import dtorch
from dtorch.cpu import amp

__all__ = ["amp", "current_device", "device_count", "is_available", "synchronize"]


def is_available():
    """True."""
    return True


def device_count():
    """1: ``cpu``. Virtual devices ``cpu:0``, ``cpu:1`` … start at first use."""
    return 1


def current_device():
    """'cpu'."""
    return "cpu"


def synchronize(device=None):
    """Wait until all work submitted so far is done."""
    dtorch.synchronize()
