"""Convolutions. Input (N, C, ...) or (C, ...); weight (out, in / groups, ...), transposed (in, out / groups, ...)."""

from __future__ import annotations

import math

import dtorch
from dtorch.nn import functional as F
from dtorch.nn import init
from dtorch.nn.modules.module import Module
from dtorch.nn.modules.utils import pair, single, triple
from dtorch.nn.parameter import Parameter

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What all convolutions keep; subclasses say how many spatial dimensions there are."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        bias,
        padding_mode,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}")
            if padding == "same" and any(s != 1 for s in stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {set(_PADDING_MODES)}, but got padding_mode='{padding_mode}'")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.transposed = transposed
        self.output_padding = output_padding
        self.groups = groups
        self.padding_mode = padding_mode
        self._reversed_padding_repeated_twice = self._both_sides()
        shape = (in_channels, out_channels // groups) if transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(dtorch.empty((*shape, *kernel_size), device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(dtorch.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _both_sides(self):
        """The padding as :func:`~dtorch.nn.functional.pad` takes it: last dimension first, both sides."""
        sides = []
        for d in reversed(range(len(self.kernel_size))):
            if self.padding == "same":
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                sides += [total // 2, total - total // 2]
            else:
                sides += [0, 0] if self.padding == "valid" else [self.padding[d]] * 2
        return sides

    def reset_parameters(self):
        """Weight and bias uniform in +-1 / sqrt(fan in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in != 0:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def extra_repr(self):
        zeros = (0,) * len(self.kernel_size)
        ones = (1,) * len(self.kernel_size)
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != zeros:
            text += f", padding={self.padding}"
        if self.dilation != ones:
            text += f", dilation={self.dilation}"
        if self.output_padding != zeros:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    """A convolution: subclasses give the operator and how sizes are read."""

    _size = staticmethod(single)
    _op = "conv1d"

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        size = self._size
        super().__init__(
            in_channels,
            out_channels,
            size(kernel_size),
            size(stride),
            padding if isinstance(padding, str) else size(padding),
            size(dilation),
            False,
            size(0),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input, weight, bias):
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = self._size(0)
        return getattr(F, self._op)(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input):
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    """Convolution of (N, C, L) or (C, L). `padding` is a number, "same" or "valid"."""


class Conv2d(_Conv):
    """Convolution of (N, C, H, W) or (C, H, W). `padding` is a number, a pair, "same" or "valid"."""

    _size = staticmethod(pair)
    _op = "conv2d"


class Conv3d(_Conv):
    """Convolution of (N, C, D, H, W) or (C, D, H, W). `padding` is a number, a triple, "same" or "valid"."""

    _size = staticmethod(triple)
    _op = "conv3d"


class _ConvTranspose(_ConvNd):
    """A transposed convolution: subclasses give the operator and how sizes are read."""

    _size = staticmethod(single)
    _op = "conv_transpose1d"

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        size = self._size
        super().__init__(
            in_channels,
            out_channels,
            size(kernel_size),
            size(stride),
            size(padding),
            size(dilation),
            True,
            size(output_padding),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _output_padding(self, input, output_size):
        """The output padding with which the result has the spatial size `output_size`."""
        if output_size is None:
            return self.output_padding
        n = len(self.kernel_size)
        output_size = list(output_size)
        if len(output_size) == input.dim():
            output_size = output_size[-n:]
        if len(output_size) != n:
            raise ValueError(
                f"ConvTranspose{n}D: for {input.dim()}D input, output_size must have {n} or {input.dim()} elements (got {len(output_size)})"
            )
        low = []
        for d in range(n):
            grown = (input.shape[input.dim() - n + d] - 1) * self.stride[d]
            low.append(grown - 2 * self.padding[d] + self.dilation[d] * (self.kernel_size[d] - 1) + 1)
        high = [low[d] + self.stride[d] - 1 for d in range(n)]
        for d in range(n):
            if not low[d] <= output_size[d] <= high[d]:
                raise ValueError(
                    f"requested an output size of {output_size}, but valid sizes range from {low} to {high} "
                    f"(for an input of {tuple(input.shape[2:])})"
                )
        return tuple(output_size[d] - low[d] for d in range(n))

    def forward(self, input, output_size=None):
        extra = self._output_padding(input, output_size)
        return getattr(F, self._op)(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of (N, C, L) or (C, L)."""


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of (N, C, H, W) or (C, H, W)."""

    _size = staticmethod(pair)
    _op = "conv_transpose2d"


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of (N, C, D, H, W) or (C, D, H, W)."""

    _size = staticmethod(triple)
    _op = "conv_transpose3d"
