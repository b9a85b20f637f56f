"""Gradients against finite differences."""

from __future__ import annotations

import dtorch
from dtorch import Tensor
from dtorch._modes import enable_grad, no_grad


def _outputs(fn, inputs):
    out = fn(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    return [o for o in out if isinstance(o, Tensor) and o.is_floating_point()]


def _numeric(fn, inputs, k, eps):
    """d outputs / d inputs[k] by central differences: one (n_in, n_out) list of lists per output."""
    x = inputs[k]
    flat = x.detach().reshape(-1)
    rows = []
    with no_grad():
        for i in range(x.numel()):
            sides = []
            for step in (eps, -eps):
                moved = flat.clone()
                moved[i] += step
                args = [*inputs[:k], moved.reshape(x.shape), *inputs[k + 1 :]]
                sides.append([o.detach().clone().reshape(-1) for o in _outputs(fn, args)])
            rows.append([((a - b) / (2 * eps)).tolist() for a, b in zip(*sides, strict=False)])
    return rows  # [input element][output][output element]


def _analytic(fn, inputs, k):
    """The same from backward."""
    with enable_grad():
        outs = _outputs(fn, inputs)
    columns = []
    for o in outs:
        per = []
        for j in range(o.numel()):
            if not o.requires_grad:
                per.append([0.0] * inputs[k].numel())
                continue
            seed = dtorch.zeros(o.numel(), dtype=o.dtype)
            seed[j] = 1.0
            (g,) = dtorch.autograd.grad(o, inputs[k], seed.reshape(o.shape), retain_graph=True, allow_unused=True)
            per.append([0.0] * inputs[k].numel() if g is None else g.reshape(-1).tolist())
        columns.append(per)
    return columns  # [output][output element][input element]


def _close(a, b, atol, rtol):
    return abs(a - b) <= atol + rtol * abs(b) or (a != a and b != b)


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, **options):
    """Do the gradients of `func` agree with finite differences?

    Args:
        func: takes Tensors, returns a Tensor or a tuple of them.
        inputs: a Tensor or a tuple; those that require grad (and should be float64) are checked.
        eps: the step; atol, rtol: how far they may be apart.
        raise_exception: raise RuntimeError instead of returning False.
    """
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    checked = [k for k, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise ValueError("gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True.")
    for k in checked:
        numeric, analytic = _numeric(func, inputs, k, eps), _analytic(func, inputs, k)
        for i, row in enumerate(numeric):
            for o, values in enumerate(row):
                for j, want in enumerate(values):
                    got = analytic[o][j][i]
                    if _close(got, want, atol, rtol):
                        continue
                    if not raise_exception:
                        return False
                    raise RuntimeError(
                        f"Jacobian mismatch for output {o} with respect to input {k}: element [{i}, {j}] is {got} by backward, {want} by differences"
                    )
    return True


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, **options):
    """Do the second derivatives of `func` agree with finite differences of its gradients? As :func:`gradcheck`."""
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outs = _outputs(func, inputs)
    if grad_outputs is None:
        grad_outputs = [dtorch.rand(o.shape, dtype=o.dtype).requires_grad_() for o in outs]
    grad_outputs = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    n = len(inputs)
    wanted = [k for k, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]

    def first(*args):
        with enable_grad():
            xs = [
                a if not isinstance(a, Tensor) or a.requires_grad or k not in wanted else a.detach().requires_grad_()
                for k, a in enumerate(args[:n])
            ]
            ys = _outputs(func, xs)
            return dtorch.autograd.grad(ys, [xs[k] for k in wanted], list(args[n:]), create_graph=True, materialize_grads=True)

    return gradcheck(first, (*inputs, *grad_outputs), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
