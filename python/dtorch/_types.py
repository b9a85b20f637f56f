"""finfo and iinfo: the limits of dtypes."""

from __future__ import annotations

from dtorch import _C

__all__ = ["finfo", "iinfo"]

# bits of a float, of its significand's fraction, largest and smallest exponent of a normal number
_FLOATS = {"float64": (64, 52, 1023, -1022), "float32": (32, 23, 127, -126), "float16": (16, 10, 15, -14), "bfloat16": (16, 7, 127, -126)}
_INTS = {"uint8": (8, False), "int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True)}


def _name(dtype, table, what):
    name = str(dtype).rpartition(".")[2]
    if not isinstance(dtype, _C.dtype) or name not in table:
        raise TypeError(f"{what}() takes one of {', '.join('dtorch.' + n for n in table)}, got {dtype!r}")
    return name


class finfo:
    """The limits of a floating-point dtype: bits, eps, max, min, tiny (smallest_normal), resolution. finfo() is the default dtype's."""

    def __init__(self, dtype=None):
        self.dtype = name = _name(_C.get_default_dtype() if dtype is None else dtype, _FLOATS, "finfo")
        self.bits, fraction, top, bottom = _FLOATS[name]
        self.eps = 2.0**-fraction
        self.max = (2.0 - self.eps) * 2.0**top
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0**bottom
        self.resolution = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[name]

    def __repr__(self):
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:
    """The limits of an integer dtype: bits, max, min."""

    def __init__(self, dtype):
        self.dtype = name = _name(dtype, _INTS, "iinfo")
        self.bits, signed = _INTS[name]
        self.max = 2 ** (self.bits - signed) - 1
        self.min = -(2 ** (self.bits - 1)) if signed else 0

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
