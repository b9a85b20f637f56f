"""Parameters and buffers: tensors that a :class:`~dtorch.nn.Module` registers when they are assigned to it."""

from __future__ import annotations

import dtorch
from dtorch import Tensor


class Parameter(Tensor):
    """A tensor that is a parameter of the module it is assigned to.

    Args:
        data: the tensor whose storage the parameter takes (any shape); an empty tensor when left out.
        requires_grad: whether the parameter takes part in autograd.
    """

    def __new__(cls, data=None, requires_grad=True):
        if data is None:
            data = dtorch.empty(0)
        elif not isinstance(data, Tensor):
            raise TypeError(f"{cls.__name__}: data must be a Tensor or None, got {type(data).__name__}")
        return Tensor._make_subclass(cls, data, requires_grad)

    def __init__(self, data=None, requires_grad=True):
        pass

    def __deepcopy__(self, memo):
        found = memo.get(id(self))
        if found is None:
            found = type(self)(self.data.clone(), self.requires_grad)
            memo[id(self)] = found
        return found

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


def clear_grad(p, set_to_none):
    """.grad to None or to zeros in place; what fully_shard has collected for it and not reduced yet (no_sync) goes, too."""
    for entry in p.__dict__.pop("_collected_in", ()):
        entry.pending = None
    if p.grad is None:
        return
    if set_to_none:
        p.grad = None
    elif p.grad.requires_grad:  # part of a graph (create_graph): not to be written
        p.grad = dtorch.zeros_like(p.grad.detach())
    else:
        p.grad.zero_()


class Buffer(Tensor):
    """A tensor that is a buffer of the module it is assigned to: state that is not trained.

    Args:
        data: the tensor whose storage the buffer takes.
        persistent: whether the buffer is part of the module's ``state_dict``.
    """

    def __new__(cls, data=None, *, persistent=True):
        if data is None:
            data = dtorch.empty(0)
        elif not isinstance(data, Tensor):
            raise TypeError(f"{cls.__name__}: data must be a Tensor or None, got {type(data).__name__}")
        self = Tensor._make_subclass(cls, data, data.requires_grad)
        self.persistent = persistent
        return self

    def __init__(self, data=None, *, persistent=True):
        pass

    def __deepcopy__(self, memo):
        found = memo.get(id(self))
        if found is None:
            found = type(self)(self.data.clone(), persistent=self.persistent)
            memo[id(self)] = found
        return found
