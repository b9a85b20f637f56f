"""Pooling of (N, C, ...) or (C, ...)."""

from __future__ import annotations

from dtorch.nn import functional as F
from dtorch.nn.modules.module import Module
from dtorch.nn.modules.utils import pair, single, triple

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPool(Module):
    _op = ""

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input):
        return getattr(F, self._op)(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self):
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Maximum over windows of (N, C, L); with `return_indices`, also where each came from."""

    _op = "max_pool1d"


class MaxPool2d(_MaxPool):
    """Maximum over windows of (N, C, H, W); with `return_indices`, also where each came from."""

    _op = "max_pool2d"


class MaxPool3d(_MaxPool):
    """Maximum over windows of (N, C, D, H, W); with `return_indices`, also where each came from."""

    _op = "max_pool3d"


class _MaxUnpool(Module):
    _size = staticmethod(single)
    _op = ""

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size = self._size(kernel_size)
        self.stride = self._size(stride if stride is not None else kernel_size)
        self.padding = self._size(padding)

    def forward(self, input, indices, output_size=None):
        return getattr(F, self._op)(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Inverse of :class:`MaxPool1d`, with its indices."""

    _op = "max_unpool1d"


class MaxUnpool2d(_MaxUnpool):
    """Inverse of :class:`MaxPool2d`, with its indices."""

    _size = staticmethod(pair)
    _op = "max_unpool2d"


class MaxUnpool3d(_MaxUnpool):
    """Inverse of :class:`MaxPool3d`, with its indices."""

    _size = staticmethod(triple)
    _op = "max_unpool3d"


class _AvgPool(Module):
    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """Mean over windows of (N, C, L)."""

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size = single(kernel_size)
        self.stride = single(stride if stride is not None else kernel_size)
        self.padding = single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input):
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AvgPool2d(_AvgPool):
    """Mean over windows of (N, C, H, W)."""

    _op = "avg_pool2d"

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input):
        return getattr(F, self._op)(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        )


class AvgPool3d(AvgPool2d):
    """Mean over windows of (N, C, D, H, W)."""

    _op = "avg_pool3d"


class _LPPool(Module):
    _op = ""

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input):
        return getattr(F, self._op)(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """``(sum x^p)^(1/p)`` over windows of (N, C, L)."""

    _op = "lp_pool1d"


class LPPool2d(_LPPool):
    """``(sum x^p)^(1/p)`` over windows of (N, C, H, W)."""

    _op = "lp_pool2d"


class LPPool3d(_LPPool):
    """``(sum x^p)^(1/p)`` over windows of (N, C, D, H, W)."""

    _op = "lp_pool3d"


class _AdaptiveMaxPool(Module):
    _op = ""

    def __init__(self, output_size, return_indices=False):
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input):
        if self.return_indices:
            return getattr(F, self._op)(input, self.output_size, return_indices=True)
        return getattr(F, self._op)(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maximum over as many windows as `output_size` says."""

    _op = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maximum over as many windows as `output_size` says; None keeps a size."""

    _op = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maximum over as many windows as `output_size` says; None keeps a size."""

    _op = "adaptive_max_pool3d"


class _AdaptiveAvgPool(Module):
    _op = ""

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, input):
        return getattr(F, self._op)(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Mean over as many windows as `output_size` says."""

    _op = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Mean over as many windows as `output_size` says; None keeps a size."""

    _op = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Mean over as many windows as `output_size` says; None keeps a size."""

    _op = "adaptive_avg_pool3d"
