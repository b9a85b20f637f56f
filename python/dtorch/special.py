"""Special functions: the operators of the table that belong here."""

from dtorch import _C, _planned

globals().update(_C._submodules.get("special", {}))
__all__ = sorted(_C._submodules.get("special", {}))


def __getattr__(name):
    raise _planned.explain("dtorch.special", name)
