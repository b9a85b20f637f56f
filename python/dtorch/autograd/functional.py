"""Derivatives of functions: :func:`jacobian`, :func:`hessian`, products with them: :func:`vjp`, :func:`jvp`, :func:`vhp`, :func:`hvp`."""

from __future__ import annotations

import dtorch
from dtorch import Tensor
from dtorch._modes import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _leaves(inputs, create_graph):
    """Inputs as a tuple of tensors that want gradients, and whether there was one alone."""
    alone = isinstance(inputs, Tensor)
    xs = (inputs,) if alone else tuple(inputs)
    return tuple(x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in xs), alone


def _call(func, xs):
    out = func(*xs)
    return (out, True) if isinstance(out, Tensor) else (tuple(out), False)


def _stack(rows, out, x):
    return dtorch.stack(rows).reshape(*out.shape, *x.shape) if rows else dtorch.zeros(*out.shape, *x.shape, dtype=x.dtype)


def _finish(values, create_graph):
    return values if create_graph else values.detach()


def _one_jacobian(out, xs, create_graph, strict):
    rows = [[] for _ in xs]
    flat = out.reshape(-1)
    for i in range(flat.shape[0]):
        got = (None,) * len(xs)
        if out.requires_grad:
            got = dtorch.autograd.grad(flat[i], xs, retain_graph=True, create_graph=create_graph, allow_unused=True)
        for k, (g, x) in enumerate(zip(got, xs, strict=False)):
            if g is None and strict:
                raise RuntimeError(f"jacobian(): the output does not depend on input {k}, which strict=True forbids")
            rows[k].append(dtorch.zeros_like(x) if g is None else g)
    return tuple(_finish(_stack(r, out, x), create_graph) for r, x in zip(rows, xs, strict=False))


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """The derivatives of each output element by each input element.

    Args:
        func: takes Tensors, returns a Tensor or a tuple of Tensors.
        inputs: a Tensor or a tuple of Tensors.
        create_graph: let the result be differentiated again.
        strict: an error when an output does not depend on an input, instead of zeros.

    Returns: of shape output.shape + input.shape; a tuple over inputs and one over outputs where there are tuples.
    """
    with enable_grad():
        xs, alone = _leaves(inputs, create_graph)
        out, single = _call(func, xs)
        all_ = [_one_jacobian(o, xs, create_graph, strict) for o in ((out,) if single else out)]
    all_ = [j[0] if alone else j for j in all_]
    return all_[0] if single else tuple(all_)


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """The second derivatives of a function with one output element, as the jacobian of its gradient."""

    def gradient(*xs):
        out = func(*xs)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise RuntimeError("The Tensor returned by the function given to hessian should contain a single element")
        got = dtorch.autograd.grad(out.reshape(()), xs, create_graph=True, materialize_grads=True)
        return got[0] if isinstance(inputs, Tensor) else got

    return jacobian(gradient, inputs, create_graph=create_graph, strict=strict)


def _direction(v, like, what):
    if v is None:
        if sum(t.numel() for t in like) != 1:
            raise RuntimeError(f"The vector v can only be None if {what} has a single element")
        return tuple(dtorch.ones_like(t) for t in like)
    v = (v,) if isinstance(v, Tensor) else tuple(v)
    if [t.shape for t in v] != [t.shape for t in like]:
        raise RuntimeError(f"v has shapes {[tuple(t.shape) for t in v]}, {what} {[tuple(t.shape) for t in like]}")
    return v


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """(outputs, vᵀJ): the product of v, shaped as the outputs, with the jacobian."""
    with enable_grad():
        xs, alone = _leaves(inputs, create_graph)
        out, single = _call(func, xs)
        outs = (out,) if single else out
        got = dtorch.autograd.grad(outs, xs, _direction(v, outs, "the output"), create_graph=create_graph, materialize_grads=True)
    outs = tuple(_finish(o, create_graph) for o in outs)
    return (outs[0] if single else outs), (got[0] if alone else got)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """(outputs, Jv): the product of the jacobian with v, shaped as the inputs (by differentiating vjp)."""
    with enable_grad():
        xs, _ = _leaves(inputs, create_graph)
        v = _direction(v, xs, "the input")
        out, single = _call(func, xs)
        outs = (out,) if single else out
        dummies = tuple(dtorch.zeros_like(o).requires_grad_() for o in outs)
        back = dtorch.autograd.grad(outs, xs, dummies, create_graph=True, materialize_grads=True)
        got = dtorch.autograd.grad(back, dummies, v, create_graph=create_graph, materialize_grads=True)
    outs = tuple(_finish(o, create_graph) for o in outs)
    return (outs[0] if single else outs), (got[0] if single else got)


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """(output, vᵀH): the product of v, shaped as the inputs, with the hessian of a function with one output element."""
    with enable_grad():
        xs, alone = _leaves(inputs, create_graph)
        out = func(*xs)
        first = dtorch.autograd.grad(out.reshape(()), xs, create_graph=True, materialize_grads=True)
        got = dtorch.autograd.grad(first, xs, _direction(v, xs, "the input"), create_graph=create_graph, materialize_grads=True)
    return _finish(out, create_graph), (got[0] if alone else got)


hvp = vhp  # the hessian is symmetric
