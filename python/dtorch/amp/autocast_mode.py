"""The switch of autocast. The work is done where calls are recorded, in src/client/autocast.c, which has the lists of operators."""

from __future__ import annotations

import functools
import warnings

import dtorch
from dtorch import _C

__all__ = ["autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

_depth = 0  # blocks that are open: with the last one the kept casts of weights go
_defaults = {"cpu": dtorch.bfloat16, "cuda": dtorch.float16, "sim": dtorch.bfloat16}
_LOWER = (dtorch.bfloat16, dtorch.float16)


def is_autocast_available(device_type):
    """Is there autocast for this kind of device?"""
    return device_type in ("cpu", "cuda")


def _check_type(device_type, who):
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if device_type not in _defaults:
        raise RuntimeError(f"{who}: unsupported device_type {device_type!r}: 'cpu' and 'cuda' are legal")


def get_autocast_dtype(device_type):
    """The dtype that products are computed in, now or when autocast is switched on."""
    _check_type(device_type, "get_autocast_dtype()")
    return _C._autocast(device_type) or _defaults[device_type]


def set_autocast_dtype(device_type, dtype):
    """Change that dtype, also where autocast is on."""
    _check_type(device_type, "set_autocast_dtype()")
    _defaults[device_type] = dtype
    if _C._autocast(device_type) is not None:
        _C._autocast_set(device_type, dtype)


def is_autocast_enabled(device_type="cpu"):
    """Is autocast on?"""
    _check_type(device_type, "is_autocast_enabled()")
    return _C._autocast(device_type) is not None


def set_autocast_enabled(device_type, enabled=None):
    """Switch autocast on or off."""
    if enabled is None:
        device_type, enabled = "cpu", device_type
    _check_type(device_type, "set_autocast_enabled()")
    _C._autocast_set(device_type, _defaults[device_type] if enabled else None)
    if not enabled and _depth == 0:
        _C._autocast_forget()


def is_autocast_cache_enabled():
    """Are casts of weights kept until autocast ends?"""
    return _C._autocast_cache()


def set_autocast_cache_enabled(enabled):
    """Keep casts of weights until autocast ends, or do not."""
    _C._autocast_cache_set(bool(enabled))


class autocast:  # noqa: N801
    """Inside, products of matrices, convolutions and attention take their inputs in `dtype`; what needs range takes them in float32.

    ``with autocast("cpu", dtype=dtorch.bfloat16):`` or as a decorator. Parameters keep their dtype, and so do their gradients: call ``backward()``
    outside of the block. Blocks nest; ``enabled=False`` switches it off inside of another. float64 inputs, in-place calls and ``out=`` are left alone.

    Args:
        device_type: "cpu", "cuda".
        dtype: bfloat16 or float16; by default bfloat16 on the CPU.
        enabled: on or off.
        cache_enabled: keep the cast of a weight until the outermost block ends.
    """

    def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        _check_type(device_type, "autocast()")
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        if not isinstance(self.fast_dtype, dtorch.dtype):
            raise TypeError(f"autocast(): dtype must be a dtype, got {type(dtype).__name__}: {dtype!r}")
        if enabled and self.fast_dtype not in _LOWER:
            if self.fast_dtype != dtorch.float32:
                warnings.warn(
                    f"In {device_type.upper()} autocast, but the target dtype {self.fast_dtype} is not supported. Disabling autocast: "
                    "bfloat16 and float16 are supported",
                    stacklevel=2,
                )
            enabled = False
        if enabled and device_type == "cuda" and not _C._sim_on():
            warnings.warn("User provided device_type of 'cuda', but CUDA is not available. Disabling", stacklevel=2)
            enabled = False
        self._enabled = bool(enabled)
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._before = []

    def __enter__(self):
        global _depth
        self._before.append((_C._autocast(self.device), _C._autocast_cache()))
        _C._autocast_set(self.device, self.fast_dtype if self._enabled else None)
        _C._autocast_cache_set(self._cache_enabled)
        _depth += 1
        return self

    def __exit__(self, kind, value, trace):
        global _depth
        dtype, cache = self._before.pop()
        _C._autocast_set(self.device, dtype)
        _C._autocast_cache_set(cache)
        _depth -= 1
        if _depth == 0:
            _C._autocast_forget()
        return False

    def __call__(self, func):
        @functools.wraps(func)
        def decorated(*args, **kwargs):
            with self:
                return func(*args, **kwargs)

        return decorated


def state():
    """What is on, for :func:`restored`."""
    return [(t, _C._autocast(t)) for t in ("cpu", "sim", "cuda")], _C._autocast_cache()


class restored:  # noqa: N801
    """A block in which autocast is as it was at a call of :func:`state`; ``restored(None)``: off."""

    def __init__(self, was):
        self.was = was or ([(t, None) for t in ("cpu", "sim", "cuda")], True)

    def __enter__(self):
        self.before = state()
        self._set(self.was)

    def __exit__(self, *exc):
        self._set(self.before)
        if _depth == 0:
            _C._autocast_forget()

    @staticmethod
    def _set(s):
        for t, dtype in s[0]:
            _C._autocast_set(t, dtype)
        _C._autocast_cache_set(s[1])


def _cast(value, device_type, dtype):
    if isinstance(value, dtorch.Tensor):
        return (
            value.to(dtype) if value.is_floating_point() and value.dtype != dtorch.float64 and value.device.type == device_type else value
        )
    if isinstance(value, dict):
        return {_cast(k, device_type, dtype): _cast(v, device_type, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_cast(v, device_type, dtype) for v in value)
    return value


def custom_fwd(fwd=None, *, device_type, cast_inputs=None):
    """For ``forward`` of an ``autograd.Function``: under autocast, with float inputs cast to `cast_inputs` and autocast off inside; without
    `cast_inputs` as it is."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    _check_type(device_type, "custom_fwd()")

    @functools.wraps(fwd)
    def decorated(*args, **kwargs):
        on = is_autocast_enabled(device_type)
        args[0]._dtype = get_autocast_dtype(device_type)
        args[0]._autocast = state() if on and cast_inputs is None else None
        if cast_inputs is None or not on:
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return decorated


def custom_bwd(bwd=None, *, device_type):
    """For ``backward`` of an ``autograd.Function`` whose forward has :func:`custom_fwd`: autocast as it was in forward."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    _check_type(device_type, "custom_bwd()")

    @functools.wraps(bwd)
    def decorated(*args, **kwargs):
        with restored(args[0]._autocast):
            return bwd(*args, **kwargs)

    return decorated
