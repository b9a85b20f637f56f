"""Custom functions: :class:`Function` with a forward and a backward of one's own."""

from __future__ import annotations

from dtorch import _C
from dtorch._C import Tensor
from dtorch._modes import enable_grad, no_grad

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx:
    """What forward leaves for backward. Attributes of any name may be set on it."""

    _function: type
    _saved: tuple = ()
    _to_save: tuple = ()
    _no_gradient: tuple = ()
    _dirty: tuple = ()
    _materialize = True
    _node = None
    needs_input_grad: tuple = ()

    def save_for_backward(self, *tensors):
        """Keep inputs or outputs of forward; an in-place write to one of them until backward is an error there."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(f"save_for_backward can only save variables, but argument is of type {type(t).__name__}")
        self._to_save = tensors

    @property
    def saved_tensors(self):
        """What save_for_backward kept."""
        return tuple(None if s is None else _unpack(s, self._node) for s in self._saved)

    def mark_non_differentiable(self, *tensors):
        """These outputs have no gradient."""
        self._no_gradient = tensors

    def mark_dirty(self, *tensors):
        """These inputs were written in place by forward, and are among its outputs."""
        self._dirty = tensors

    def set_materialize_grads(self, value):
        """Give backward zeros (True, the default) or None (False) for outputs without a gradient."""
        self._materialize = bool(value)

    def _keep(self, outputs):
        positions = {id(o): i for i, o in enumerate(outputs) if isinstance(o, Tensor)}
        self._saved = tuple(None if t is None else (_C._saved_new(t), positions.get(id(t))) for t in self._to_save)
        self._to_save = ()

    def _run_backward(self, grads, node):
        """Called by the engine: a gradient or None per tensor output → a gradient or None per argument."""
        if self._materialize:
            zeros = _C._functions["zeros"]
            grads = tuple(
                zeros(shape, dtype=dtype, device_mesh=mesh) if g is None else g
                for g, (shape, dtype, mesh) in zip(grads, self._outputs, strict=False)
            )
        full = [None] * self._n_outputs
        for i, g in zip(self._positions, grads, strict=False):
            full[i] = g
        self._node = node
        try:
            got = self._function.backward(self, *full)
        finally:
            self._node = None
        got = got if isinstance(got, tuple) else (got,)
        n = len(self.needs_input_grad)
        if len(got) > n and all(g is None for g in got[n:]):
            got = got[:n]
        if len(got) != n:
            raise RuntimeError(
                f"function {self._function.__name__}Backward returned an incorrect number of gradients (expected {n}, got {len(got)})"
            )
        return got


def _unpack(saved, node):
    capsule, output = saved
    if output is not None and node is not None:
        return _C._saved_get_as(capsule, node, output)
    return _C._saved_get(capsule)


class Function:
    """A differentiable function with formulas of one's own.

    Subclass it with static methods ``forward(ctx, *args)`` (or ``forward(*args)`` and ``setup_context(ctx, inputs, output)``) and
    ``backward(ctx, *grad_outputs)``, which returns one gradient, or None, per argument. Call it as ``F.apply(*args)``.
    """

    @staticmethod
    def forward(*args):
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx, inputs, output):
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx, *grad_outputs):
        raise NotImplementedError("You must implement the backward function for custom autograd.Function.")

    def __init__(self, *args):
        raise RuntimeError(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static: call {type(self).__name__}.apply(...)"
        )

    @classmethod
    def apply(cls, *args):
        """Run forward and record the function when gradients are wanted."""
        ctx = FunctionCtx()
        ctx._function = cls
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        recording = _C.is_grad_enabled() and any(ctx.needs_input_grad)
        with no_grad():
            if cls.setup_context is not Function.setup_context:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
            else:
                result = cls.forward(ctx, *args)
        return _attach(cls, ctx, args, result) if recording else _fresh(args, ctx, result)


def _outputs(result):
    return result if isinstance(result, tuple) else tuple(result) if isinstance(result, list) else (result,)


def _fresh(args, ctx, result):
    """Outputs that are inputs become other handles on them, as PyTorch's views."""
    ins = {id(a) for a in args if isinstance(a, Tensor)} - {id(t) for t in ctx._dirty}
    outs = tuple(o.detach() if isinstance(o, Tensor) and id(o) in ins else o for o in _outputs(result))
    return outs if isinstance(result, (tuple, list)) else outs[0]


def _attach(cls, ctx, args, result):
    skip = {id(t) for t in ctx._no_gradient}
    given = _outputs(result)
    outs = _outputs(_fresh(args, ctx, result))
    ctx._positions = [i for i, o in enumerate(given) if isinstance(o, Tensor) and id(o) not in skip]
    ctx._n_outputs = len(outs)
    chosen = tuple(outs[i] for i in ctx._positions)
    ctx._outputs = tuple((o.shape, o.dtype, o.device_mesh) for o in chosen)
    index = {i: k for k, i in enumerate(ctx._positions)}
    ctx._keep(given)
    ctx._saved = tuple(None if s is None else (s[0], index.get(s[1])) for s in ctx._saved)
    ins = tuple(a if isinstance(a, Tensor) else None for a in args)
    with enable_grad():
        _C._custom_attach(ctx, cls.__name__ + "Backward", ins, chosen)
    return outs if isinstance(result, (tuple, list)) else outs[0]


def once_differentiable(fn):
    """Decorates a backward that cannot be differentiated itself: its result has no history."""
    import functools

    @functools.wraps(fn)
    def wrapper(ctx, *grads):
        with no_grad():
            return fn(ctx, *grads)

    return wrapper
