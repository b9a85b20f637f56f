"""Helpers around training: :mod:`dtorch.utils.data`, :mod:`dtorch.utils.hooks`, :mod:`dtorch.utils.checkpoint`."""

_LAZY = ("_pytree", "checkpoint", "data", "hooks")
__all__ = ["checkpoint", "data", "hooks"]


def __getattr__(name):
    if name in _LAZY:
        from importlib import import_module

        return import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(list(globals()) + list(_LAZY))
