"""Trading time for memory: a part of the forward pass whose intermediate values are not kept, but computed again in backward."""

from __future__ import annotations

import dtorch
from dtorch import Tensor

__all__ = ["checkpoint", "checkpoint_sequential"]

_function = None


def _detached(value):
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def _make_function():
    class Checkpoint(dtorch.autograd.Function):
        @staticmethod
        def forward(ctx, run, rng, trigger, *args):
            ctx.run, ctx.rng, ctx.args = run, rng, args
            with dtorch.no_grad():
                out = run(*args)
            ctx.is_tuple = isinstance(out, tuple)
            return out

        @staticmethod
        def backward(ctx, *grads):
            args = [_detached(a) for a in ctx.args]
            now = dtorch.get_rng_state() if ctx.rng is not None else None
            if ctx.rng is not None:
                dtorch.set_rng_state(ctx.rng)
            try:
                with dtorch.enable_grad():
                    out = ctx.run(*args)
            finally:
                if now is not None:
                    dtorch.set_rng_state(now)
            outs = out if ctx.is_tuple else (out,)
            pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if isinstance(o, Tensor) and o.requires_grad and g is not None]
            if pairs:
                dtorch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            return (None, None, None, *(a.grad if isinstance(a, Tensor) and a.requires_grad else None for a in args))

    return Checkpoint


def checkpoint(function, *args, use_reentrant=None, preserve_rng_state=True, context_fn=None, determinism_check=None, debug=None, **kwargs):
    """``function(*args, **kwargs)`` without keeping what backward needs: backward runs it again.

    Args:
        function: returns a tensor or a tuple of tensors; gradients reach `args` and every parameter that it uses.
        preserve_rng_state: draw the same random numbers (dropout) the second time.
        use_reentrant, context_fn, determinism_check, debug: accepted; have no effect.
    """
    global _function
    if not dtorch.is_grad_enabled():
        return function(*args, **kwargs)
    if _function is None:
        _function = _make_function()
    run = (lambda *a: function(*a, **kwargs)) if kwargs else function
    rng = dtorch.get_rng_state() if preserve_rng_state else None
    # The trigger makes the result part of the graph even when no argument is: parameters inside may want gradients.
    return _function.apply(run, rng, dtorch.zeros(1, requires_grad=True), *args)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, preserve_rng_state=True):
    """A :class:`~dtorch.nn.Sequential` (or list of functions) in `segments` parts, each but the last checkpointed."""
    functions = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(functions) // segments

    def chain(start, end):
        def run(x):
            for f in functions[start:end]:
                x = f(x)
            return x

        return run

    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(chain(start, end), input, preserve_rng_state=preserve_rng_state)
    return chain(end, len(functions))(input)
