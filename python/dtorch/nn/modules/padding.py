"""Padding of the last dimensions: `padding` is one number for all sides, or one for each side, last dimension first."""

from __future__ import annotations

from dtorch.nn import functional as F
from dtorch.nn.modules.module import Module
from dtorch.nn.modules.utils import ntuple

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    _mode = "constant"
    _dims = 1

    def __init__(self, padding):
        super().__init__()
        self.padding = ntuple(2 * self._dims)(padding)

    def forward(self, input):
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self):
        return f"{self.padding}"


class ConstantPad1d(_Pad):
    """Pads the last dimension with `value`."""

    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """Pads the last 2 dimensions with `value`."""

    _dims = 2


class ConstantPad3d(ConstantPad1d):
    """Pads the last 3 dimensions with `value`."""

    _dims = 3


class ZeroPad1d(ConstantPad1d):
    """Pads the last dimension with 0."""

    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class ZeroPad2d(ZeroPad1d):
    """Pads the last 2 dimensions with 0."""

    _dims = 2


class ZeroPad3d(ZeroPad1d):
    """Pads the last 3 dimensions with 0."""

    _dims = 3


class ReflectionPad1d(_Pad):
    """Pads the last dimension with its reflection at the border."""

    _mode = "reflect"


class ReflectionPad2d(ReflectionPad1d):
    """Pads the last 2 dimensions with their reflection at the border."""

    _dims = 2


class ReflectionPad3d(ReflectionPad1d):
    """Pads the last 3 dimensions with their reflection at the border."""

    _dims = 3


class ReplicationPad1d(_Pad):
    """Pads the last dimension with the value at the border."""

    _mode = "replicate"


class ReplicationPad2d(ReplicationPad1d):
    """Pads the last 2 dimensions with the values at the border."""

    _dims = 2


class ReplicationPad3d(ReplicationPad1d):
    """Pads the last 3 dimensions with the values at the border."""

    _dims = 3


class CircularPad1d(_Pad):
    """Pads the last dimension with its other end."""

    _mode = "circular"


class CircularPad2d(CircularPad1d):
    """Pads the last 2 dimensions with their other ends."""

    _dims = 2


class CircularPad3d(CircularPad1d):
    """Pads the last 3 dimensions with their other ends."""

    _dims = 3
