"""Linear algebra: the operators of the table that belong here."""

from dtorch import _C, _planned

LinAlgError = _C.LinAlgError
globals().update(_C._submodules.get("linalg", {}))
__all__ = sorted([*_C._submodules.get("linalg", {}), "LinAlgError"])


def __getattr__(name):
    raise _planned.explain("dtorch.linalg", name)
