"""Gradients: :func:`backward`, :func:`grad`, custom :class:`Function`, :mod:`functional` derivatives and :func:`gradcheck`."""

from __future__ import annotations

from dtorch import _C
from dtorch._C import Node, Tensor
from dtorch._modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from dtorch.autograd.function import Function, FunctionCtx

__all__ = [
    "Function", "FunctionCtx", "Node", "Variable", "backward", "enable_grad", "functional", "grad", "gradcheck", "gradgradcheck", "inference_mode",
    "no_grad", "set_grad_enabled",
]  # fmt: skip

Variable = Tensor


def _tuple(x, what):
    if isinstance(x, Tensor):
        return (x,)
    if isinstance(x, (tuple, list)) or hasattr(x, "__iter__"):
        return tuple(x)
    raise TypeError(f"{what} must be a Tensor or a sequence of Tensors, not {type(x).__name__}")


def _gradients(grads, roots, what):
    """A gradient per root; missing ones are for one-element roots only."""
    grads = (None,) * len(roots) if grads is None else _tuple(grads, what)
    if len(grads) != len(roots):
        raise RuntimeError(f"got {len(roots)} tensors and {len(grads)} gradients")
    for g, r in zip(grads, roots, strict=False):
        if g is None and r.requires_grad and r.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if g is not None and isinstance(g, Tensor) and g.shape != r.shape:
            raise RuntimeError(f"Mismatch in shape: grad_output has a shape of {g.shape} and output has a shape of {r.shape}.")
    return grads


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    """Add the gradients of `tensors` to the ``.grad`` of the leaves.

    Args:
        tensors: the roots, a Tensor or a sequence.
        grad_tensors: a gradient per root, None where it has one element.
        retain_graph: keep what backward needs, for another backward; as `create_graph` by default.
        create_graph: record the backward pass itself.
        inputs: leaves (or others) to add gradients to; all leaves by default.
    """
    roots = _tuple(tensors, "tensors")
    grads = _gradients(grad_tensors, roots, "grad_tensors")
    if inputs is not None:
        inputs = _tuple(inputs, "inputs")
        if not inputs:
            raise RuntimeError("'inputs' argument to backward cannot be empty")
    keep = create_graph if retain_graph is None else retain_graph
    _C._backward(roots, grads, inputs, keep, create_graph, True, inputs is not None)


def grad(
    outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None, is_grads_batched=False,
    materialize_grads=False,
):  # fmt: skip
    """The gradients of `outputs` with respect to `inputs`, as a tuple; nothing is added to any ``.grad``.

    Args:
        outputs, inputs: a Tensor or a sequence each.
        grad_outputs: a gradient per output, None where it has one element.
        retain_graph, create_graph: as for :func:`backward`.
        allow_unused: give None for inputs that the outputs do not depend on, instead of an error.
        materialize_grads: give zeros for them.
    """
    if is_grads_batched:
        raise NotImplementedError("grad(): is_grads_batched is not available; call grad() once per gradient")
    outs, ins = _tuple(outputs, "outputs"), _tuple(inputs, "inputs")
    if allow_unused is False and materialize_grads:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    keep = create_graph if retain_graph is None else retain_graph
    got = _C._backward(
        outs, _gradients(grad_outputs, outs, "grad_outputs"), ins, keep, create_graph, bool(allow_unused or materialize_grads), False
    )
    if materialize_grads:
        zeros = _C._functions["zeros_like"]
        got = tuple(zeros(x) if g is None else g for g, x in zip(got, ins, strict=False))
    return got


def __getattr__(name):
    if name == "functional":
        from importlib import import_module

        return import_module("dtorch.autograd.functional")
    if name in ("gradcheck", "gradgradcheck"):
        from dtorch.autograd import _check

        return getattr(_check, name)
    raise AttributeError(f"module 'dtorch.autograd' has no attribute {name!r}")
