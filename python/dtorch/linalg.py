"""Linear algebra: the operators of the table that belong here."""

from dtorch import _C, _compose_reduce, _linalg, _planned

LinAlgError = _C.LinAlgError
_names = {**_C._submodules.get("linalg", {}), **_compose_reduce.LINALG, **_linalg.LINALG}
globals().update(_names)
__all__ = sorted([*_names, "LinAlgError"])


def __getattr__(name):
    raise _planned.explain("dtorch.linalg", name)
