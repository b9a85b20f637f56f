"""Functions of neural networks: the engine's operators, and composites of them written here.

An operator of the engine wins over a composite of the same name, so a composite becomes an operator without a change here.
"""

from __future__ import annotations

import dtorch
from dtorch._C import _nn

__all__ = []
for _name in dir(_nn):
    if not _name.startswith("_"):
        globals()[_name] = getattr(_nn, _name)
        __all__.append(_name)
for _name in ("sigmoid", "tanh", "prelu", "hardshrink"):  # functions that PyTorch has under both names
    if _name not in globals() and hasattr(dtorch, _name):
        globals()[_name] = getattr(dtorch, _name)
        __all__.append(_name)

from dtorch.nn.functional import _inplace  # noqa: E402
from dtorch.nn.functional._inplace import *  # noqa: E402, F403

__all__ += [_name for _name in _inplace.__all__ if _name not in __all__]

from dtorch.nn.functional import _activation, _attention, _ctc, _distance, _linear_loss, _loss, _spatial  # noqa: E402  (they use the names above)

for _module in (_activation, _attention, _ctc, _distance, _linear_loss, _loss, _spatial):
    for _name in _module.__all__:
        if _name not in globals():
            globals()[_name] = getattr(_module, _name)
            __all__.append(_name)
del _name, _module


def __getattr__(name):
    from dtorch import _planned

    raise _planned.explain(__name__, name)
