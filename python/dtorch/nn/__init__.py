"""Building blocks of networks: modules, parameters, initialisers and functions."""

from dtorch.nn.parameter import Buffer, Parameter  # isort: skip
from dtorch.nn import functional, init  # isort: skip
from dtorch.nn import modules  # isort: skip
from dtorch.nn.modules import *  # noqa: F403
from dtorch.nn.modules import Module  # noqa: F401
from dtorch.nn.moe import MoE

__all__ = ["Buffer", "MoE", "Parameter", "factory_kwargs", "functional", "init", "modules", *modules.__all__]


def factory_kwargs(kwargs):
    """``device``, ``dtype`` and ``memory_format`` out of `kwargs` and its ``factory_kwargs``; TypeError for anything else."""
    if kwargs is None:
        return {}
    simple = {"device", "dtype", "memory_format"}
    extra = set(kwargs) - simple - {"factory_kwargs"}
    if extra:
        raise TypeError(f"unexpected kwargs {extra}")
    out = dict(kwargs.get("factory_kwargs", {}))
    for name in simple & set(kwargs):
        if name in out:
            raise TypeError(f"{name} specified twice, in **kwargs and in factory_kwargs")
        out[name] = kwargs[name]
    return out


def __getattr__(name):
    if name in ("attention", "utils"):  # loaded when they are used
        from importlib import import_module

        return import_module("." + name, __name__)
    from dtorch import _planned

    raise _planned.explain(__name__, name)
