"""Trading time for memory: a part of the forward pass whose intermediate values are not kept, but computed again in backward.

The part runs as usual, so that it is known which leaves (parameters, and tensors that it took from outside) its results depend on. Then its
graph is let go, and with it what it had saved; one node takes its place, with the arguments and those leaves as inputs. In backward that node
runs the part again and gives the gradients of its inputs. So gradients reach parameters through the graph, once: hooks, ``autograd.grad`` and
second derivatives work as without. What PyTorch calls reentrant and not reentrant is this one way.
"""

from __future__ import annotations

import contextlib

import dtorch
from dtorch import _C, Tensor
from dtorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential", "noop_context_fn", "set_checkpoint_debug_enabled"]

_function = _gated = None


class CheckpointError(RuntimeError):
    """The second run did not do what the first one did."""


def noop_context_fn():
    """Two contexts that do nothing: for the first run and for those in backward."""
    return contextlib.nullcontext(), contextlib.nullcontext()


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled):
    """Accepted; has no effect."""
    yield


class _Part:
    """What is to be run, with everything that the second run needs."""

    def __init__(self, function, args, kwargs, preserve_rng_state, context_fn, check):
        from dtorch.amp.autocast_mode import state

        self.function, self.check = function, check
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self.tensors = [i for i, v in enumerate(self.leaves) if isinstance(v, Tensor)]
        self.rng = _C._rng_get() if preserve_rng_state else None
        self.autocast = state()
        self.first, self.again = context_fn()
        self.outside = ()  # leaves that are no arguments

    def run(self, tensors):
        """The function of other tensors in place of the arguments': the flat results, and how they nest."""
        flat = list(self.leaves)
        for i, t in zip(self.tensors, tensors, strict=True):
            flat[i] = t
        args, kwargs = tree_unflatten(flat, self.spec)
        with dtorch.enable_grad():
            return tree_flatten(self.function(*args, **kwargs))

    def rerun(self, tensors):
        """The same in backward: with the random numbers and the autocast of the first run."""
        from dtorch.amp.autocast_mode import restored

        now = None
        if self.rng is not None:
            now = _C._rng_get()
            _C._rng_set(*self.rng)
        try:
            with restored(self.autocast), self.again:
                flat, _ = self.run(tensors)
        finally:
            if now is not None:
                _C._rng_set(*now)
        outs = [flat[i] for i in self.wanted if i < len(flat)]
        if self.check:
            self._compare(outs)
        return outs

    def describe(self, outs):
        return [(tuple(o.shape), o.dtype, o.device_mesh) if isinstance(o, Tensor) else None for o in outs]

    def _compare(self, outs):
        now = self.describe(outs)
        for i, was in enumerate(self.meta):
            if i >= len(now) or now[i] != was:
                got = now[i] if i < len(now) else "nothing"
                raise CheckpointError(
                    f"torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass: "
                    f"result {i} was {was[:2] if was else was}, is now {got[:2] if isinstance(got, tuple) else got}"
                )


class _Gate:
    open = False


def _cut(tensor, gate):
    """An argument of which gradients go no further: a leaf; or one with its history behind a gate, which is closed for the first derivative.
    (Else what a leaf gets through an argument would count twice when the part takes that leaf from outside, too.)"""
    if not tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_(True) if gate is None else _gated.apply(gate, tensor)


def _make_functions():
    class Gated(dtorch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, x):
            ctx.gate = gate
            return x.detach()

        @staticmethod
        def backward(ctx, g):
            return None, g if ctx.gate.open else None

    class Checkpoint(dtorch.autograd.Function):
        @staticmethod
        def forward(ctx, part, results, *inputs):
            ctx.part = part
            ctx.save_for_backward(*inputs[len(part.outside) :])
            return tuple(r.detach() for r in results)

        @staticmethod
        def backward(ctx, *grads):
            part = ctx.part
            again = dtorch.is_grad_enabled()  # the gradients' own derivatives are wanted: they lead on through the arguments
            gate = _Gate()
            saved = [_cut(t, gate if again else None) for t in ctx.saved_tensors]
            outs = part.rerun(saved)
            pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if g is not None and o.requires_grad]
            wanted = [(i, t) for i, t in enumerate((*part.outside, *saved)) if ctx.needs_input_grad[i + 2]]
            found = [None] * (len(part.outside) + len(saved))
            if pairs and wanted:
                # Kept, as a tensor from outside may lead into a graph that others need. Inner: leaves' hooks and sums over devices come later.
                roots, ins, given = tuple(o for o, _ in pairs), tuple(t for _, t in wanted), tuple(g for _, g in pairs)
                got = _C._backward(roots, given, ins, True, again, True, False, True)
                gate.open = True
                for (i, _), g in zip(wanted, got, strict=True):
                    found[i] = g
            return (None, None, *found)

    return Checkpoint, Gated


def checkpoint(
    function,
    *args,
    use_reentrant=None,
    preserve_rng_state=True,
    context_fn=noop_context_fn,
    determinism_check="default",
    debug=None,
    early_stop=True,
    **kwargs,
):
    """``function(*args, **kwargs)`` without keeping what backward needs: backward runs it again.

    Args:
        function: what to run; gradients reach tensors among the arguments (also inside of lists and dicts), every parameter that it uses and
            every tensor that it takes from outside. Results may be nested, too.
        preserve_rng_state: draw the same random numbers (dropout) the second time.
        context_fn: gives two context managers, for the first run and for those in backward.
        determinism_check: "default": CheckpointError if shapes, dtypes or meshes differ the second time; "none": no check.
        use_reentrant, debug, early_stop: accepted; have no effect.
    """
    global _function, _gated
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check must be 'default' or 'none', got {determinism_check!r}")
    if not dtorch.is_grad_enabled():
        return function(*args, **kwargs)
    if _function is None:
        _function, _gated = _make_functions()
    part = _Part(function, args, kwargs, preserve_rng_state, context_fn, determinism_check == "default")
    given = [part.leaves[i] for i in part.tensors]
    apart = [t.detach().requires_grad_(True) if t.requires_grad else t for t in given]
    with part.first:
        flat, spec = part.run(apart)
    part.wanted = [i for i, o in enumerate(flat) if isinstance(o, Tensor) and o.requires_grad]
    if not part.wanted:
        return tree_unflatten(flat, spec)
    results = [flat[i] for i in part.wanted]
    part.meta = part.describe(results)
    own = {id(t) for t in apart}
    part.outside = tuple(t for t in _C._graph_leaves(results) if id(t) not in own)
    for i in part.tensors:  # the node saves them, and notices when they are changed
        part.leaves[i] = None
    outs = _function.apply(part, results, *part.outside, *given)
    del results
    for i, o in zip(part.wanted, outs, strict=True):
        flat[i] = o
    return tree_unflatten(flat, spec)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, preserve_rng_state=True, **kwargs):
    """A :class:`~dtorch.nn.Sequential` (or list of functions) in `segments` parts, each but the last checkpointed.

    Args:
        functions: the modules or functions, applied one after the other.
        segments: how many parts.
        input: what the first one gets.
    """
    functions = list(functions.children()) if hasattr(functions, "children") else list(functions)
    if not isinstance(segments, int) or not 1 <= segments <= max(1, len(functions)):
        raise ValueError(
            f"checkpoint_sequential(): segments must be between 1 and {len(functions)}, the number of functions, got {segments!r}"
        )
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
        input = checkpoint(chain(start, end), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, **kwargs)
    return chain(end, len(functions))(input)
