"""Context managers that are decorators too: grad mode, inference mode, default placement, redistribute policy."""

from __future__ import annotations

import functools

from dtorch import _C

__all__ = ["default_dtype", "enable_grad", "inference_mode", "no_grad", "redistribute_policy", "set_grad_enabled"]


class _Context:
    """``with x:`` and ``@x``; a subclass has __enter__, __exit__ and `_again`, which makes a fresh one for each decorated call."""

    def _again(self):
        return type(self)()

    def __call__(self, fn):
        if isinstance(fn, type):
            raise TypeError(f"{type(self).__name__} cannot decorate a class")
        if getattr(getattr(fn, "__code__", None), "co_flags", 0) & 0x20:  # a generator function

            @functools.wraps(fn)
            def generator(*args, **kwargs):  # the mode holds while fn runs, not while it is suspended
                it = fn(*args, **kwargs)
                step, value = it.send, None
                while True:
                    try:
                        with self._again():
                            out = step(value)
                    except StopIteration as end:
                        return end.value
                    try:
                        step, value = it.send, (yield out)
                    except GeneratorExit:
                        with self._again():
                            it.close()
                        raise
                    except BaseException as e:
                        step, value = it.throw, e

            return generator

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            with self._again():
                return fn(*args, **kwargs)

        return wrapper


class _Grad(_Context):
    _on = False

    def __new__(cls, orig_func=None):
        self = super().__new__(cls)
        return self if orig_func is None else self(orig_func)

    def __enter__(self):
        self._before = _C._grad_set(self._on)

    def __exit__(self, *exc):
        _C._grad_set(self._before)


class no_grad(_Grad):
    """Calls inside are not recorded for backward. ``with no_grad():``, ``@no_grad()`` or ``@no_grad``."""


class enable_grad(_Grad):
    """Calls inside are recorded, also within :class:`no_grad`."""

    _on = True


class set_grad_enabled(_Context):
    """Switch recording on or off: at once as a function, until the block's end as a context manager, per call as a decorator."""

    def __init__(self, mode):
        self.mode = bool(mode)
        self._before = _C._grad_set(self.mode)

    def _again(self):
        return set_grad_enabled(self.mode)

    def __call__(self, fn):
        _C._grad_set(self._before)
        return super().__call__(fn)

    def __enter__(self):
        _C._grad_set(self.mode)

    def __exit__(self, *exc):
        _C._grad_set(self._before)


class inference_mode(_Context):
    """As :class:`no_grad`; tensors made inside can never take part in a graph."""

    def __new__(cls, mode=True):
        self = super().__new__(cls)
        if callable(mode):
            self.mode = True
            return self(mode)
        return self

    def __init__(self, mode=True):
        self.mode = bool(mode)

    def _again(self):
        return inference_mode(self.mode)

    def __enter__(self):
        self._before = _C._inference_set(self.mode), _C._grad_set(not self.mode)

    def __exit__(self, *exc):
        _C._inference_set(self._before[0])
        _C._grad_set(self._before[1])


class default_dtype(_Context):
    """The dtype of float factories and numbers inside: ``with default_dtype(dtorch.bfloat16):``, ``@default_dtype(dtorch.float64)``.

    Args:
        dtype: a floating-point dtype; else TypeError.
    """

    def __init__(self, dtype):
        if not getattr(dtype, "is_floating_point", False):
            raise TypeError(f"default_dtype(): only floating-point dtypes are legal, got {dtype!r}")
        self.dtype = dtype
        self._before = []

    def _again(self):
        return default_dtype(self.dtype)

    def __enter__(self):
        self._before.append(_C.get_default_dtype())
        _C.set_default_dtype(self.dtype)
        return self

    def __exit__(self, *exc):
        _C.set_default_dtype(self._before.pop())


def in_float32(fn):
    """Decorates a composition that autocast computes in float32 as a whole, as the operators of src/client/autocast.c's list: its 16-bit inputs are
    cast, and autocast is off inside."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if not _C._autocast_on():
            return fn(*args, **kwargs)
        from dtorch.amp.autocast_mode import restored

        with restored(None):
            return fn(*map(_single, args), **{k: _single(v) for k, v in kwargs.items()})

    return wrapper


def _single(value):
    return value.to(_C.float32) if isinstance(value, _C.Tensor) and value.dtype in (_C.float16, _C.bfloat16) else value


class redistribute_policy:
    """What happens when a call's inputs fit none of its legal placements.

    Args:
        policy: "auto": the inputs are redistributed the cheapest way; "warn": that, and a warning that names the call; "error": PlacementError.

    A function (``redistribute_policy("error")``) and a context manager (``with redistribute_policy("error"):``). Without argument
    ``redistribute_policy()`` only tells: ``.policy`` is the one in force.
    """

    def __init__(self, policy=None):
        self._before = _C._policy()
        if policy is not None:
            _C._policy_set(policy)
        self.policy = policy or self._before

    def __enter__(self):
        _C._policy_set(self.policy)
        return self

    def __exit__(self, *exc):
        _C._policy_set(self._before)

    def __repr__(self):
        return f"redistribute_policy({self.policy!r})"
