"""Forward and backward hooks of modules. A part of :class:`Module`.

`_hooked` is the one flag that ``Module.__call__`` looks at. It is False on the class; registering a hook on a module sets it on the
instance, registering a global hook sets it on the class. Removing a hook does not touch it: the next call through the slow path finds that
nothing is left and clears it.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict

import dtorch
from dtorch import Tensor
from dtorch.utils.hooks import RemovableHandle

_global_forward_pre_hooks = OrderedDict()
_global_forward_hooks = OrderedDict()
_global_forward_hooks_always_called = {}
_global_forward_hooks_with_kwargs = {}
_global_backward_pre_hooks = OrderedDict()
_global_backward_hooks = OrderedDict()


def _add(table, hook, prepend=False, flags=()):
    """Put `hook` in `table`, in front if asked, and its id in the flag tables; returns the handle."""
    handle = RemovableHandle(table, extra=flags)
    table[handle.id] = hook
    for flag in flags:
        flag[handle.id] = True
    if prepend:
        table.move_to_end(handle.id, last=False)
    return handle


def _any_global():
    return bool(_global_forward_pre_hooks or _global_forward_hooks or _global_backward_pre_hooks or _global_backward_hooks)


def _flat_tensors(value, found):
    """The tensors of a structure of tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for v in value:
            _flat_tensors(v, found)
    elif isinstance(value, dict):
        for v in value.values():
            _flat_tensors(v, found)
    return found


def _put_tensors(value, source):
    """The same structure with its tensors taken from the iterator `source`."""
    if isinstance(value, Tensor):
        return next(source)
    if isinstance(value, tuple):
        items = [_put_tensors(v, source) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return type(value)(_put_tensors(v, source) for v in value)
    if isinstance(value, dict):
        return type(value)((k, _put_tensors(v, source)) for k, v in value.items())
    return value


_tap_class = None


def _tap(callback, tensors):
    """Identity on `tensors`; in backward, `callback(grads)` sees all their gradients at once and may return others."""
    global _tap_class
    if _tap_class is None:

        class GradTap(dtorch.autograd.Function):
            @staticmethod
            def forward(ctx, callback, *tensors):
                ctx.callback = callback
                return tuple(t.view_as(t) for t in tensors)

            @staticmethod
            def backward(ctx, *grads):
                return (None, *ctx.callback(grads))

        _tap_class = GradTap
    out = _tap_class.apply(callback, *tensors)
    return out if isinstance(out, tuple) else (out,)


class _BackwardHooks:
    """The full backward hooks of one call: taps on the inputs and outputs, and the gradients of the outputs in between."""

    def __init__(self, module, pre_hooks, hooks):
        self.module, self.pre_hooks, self.hooks = module, pre_hooks, hooks
        self.grad_output = None
        self.n_inputs = 0
        self.input_slots = None  # which inputs carry a gradient; None: no input does

    @staticmethod
    def _replace(old, new, what):
        if new is None:
            return old
        new = new if isinstance(new, tuple) else (new,)
        if len(new) != len(old):
            raise RuntimeError(f"Backward hook returned an invalid number of {what}, got {len(new)}, but expected {len(old)}")
        return new

    def tap_inputs(self, args):
        tensors = _flat_tensors(args, [])
        self.n_inputs = len(tensors)
        slots = [i for i, t in enumerate(tensors) if t.requires_grad]
        if not slots or not dtorch.is_grad_enabled():
            return args
        self.input_slots = slots
        for i, t in zip(slots, _tap(self._input_grads, [tensors[i] for i in slots]), strict=True):
            tensors[i] = t
        return _put_tensors(args, iter(tensors))

    def tap_outputs(self, result):
        tensors = _flat_tensors(result, [])
        slots = [i for i, t in enumerate(tensors) if t.requires_grad]
        if not slots or not dtorch.is_grad_enabled():
            return result
        self.n_outputs, self.output_slots = len(tensors), slots
        for i, t in zip(slots, _tap(self._output_grads, [tensors[i] for i in slots]), strict=True):
            tensors[i] = t
        return _put_tensors(result, iter(tensors))

    def _output_grads(self, grads):
        full = [None] * self.n_outputs
        for i, g in zip(self.output_slots, grads, strict=True):
            full[i] = g
        full = tuple(full)
        for hook in self.pre_hooks:
            full = self._replace(full, hook(self.module, full), "grad_output")
        self.grad_output = full
        if self.input_slots is None:
            for hook in self.hooks:
                if hook(self.module, (None,) * self.n_inputs, full) is not None:
                    raise RuntimeError(
                        "Backward hook for Modules where no input requires gradient should always return None or None for all gradients."
                    )
        return tuple(full[i] for i in self.output_slots)

    def _input_grads(self, grads):
        full = [None] * self.n_inputs
        for i, g in zip(self.input_slots, grads, strict=True):
            full[i] = g
        full = tuple(full)
        for hook in self.hooks:
            full = self._replace(full, hook(self.module, full, self.grad_output), "grad_input")
        self.grad_output = None
        return tuple(full[i] for i in self.input_slots)


class HookMixin:
    """Registering hooks, and the call of a module that has some."""

    _hooked = False

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Call ``hook(module, args)`` (``hook(module, args, kwargs)``) before ``forward``; it may return other arguments."""
        self.__dict__["_hooked"] = True
        return _add(self._forward_pre_hooks, hook, prepend, (self._forward_pre_hooks_with_kwargs,) if with_kwargs else ())

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Call ``hook(module, args, output)`` (``hook(module, args, kwargs, output)``) after ``forward``; it may return another output.

        With `always_call` it is called even when ``forward`` raises (its `output` is None then).
        """
        self.__dict__["_hooked"] = True
        flags = []
        if with_kwargs:
            flags.append(self._forward_hooks_with_kwargs)
        if always_call:
            flags.append(self._forward_hooks_always_called)
        return _add(self._forward_hooks, hook, prepend, tuple(flags))

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are known; it may return others."""
        self.__dict__["_hooked"] = True
        return _add(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known; it may return other `grad_input`."""
        self.__dict__["_hooked"] = True
        return _add(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook):
        """The same as :meth:`register_full_backward_hook`."""
        return self.register_full_backward_hook(hook)

    def _unhook_if_empty(self):
        """Clear the flag when no hook is left; returns whether any is."""
        if _any_global():
            return True
        if "_hooked" not in self.__dict__:
            for cls in type(self).__mro__:
                if cls.__dict__.get("_hooked"):
                    cls._hooked = False
            return False
        if self._forward_pre_hooks or self._forward_hooks or self._backward_pre_hooks or self._backward_hooks:
            return True
        del self.__dict__["_hooked"]
        return False

    def _run_pre_hooks(self, args, kwargs):
        for hook_id, hook in [*_global_forward_pre_hooks.items(), *self._forward_pre_hooks.items()]:
            if hook_id in self._forward_pre_hooks_with_kwargs:
                result = hook(self, args, kwargs)
                if result is not None:
                    if not (isinstance(result, tuple) and len(result) == 2):
                        raise RuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {result}.")
                    args, kwargs = result
            else:
                result = hook(self, args)
                if result is not None:
                    args = result if isinstance(result, tuple) else (result,)
        return args, kwargs

    def _forward_hook_list(self):
        """``(hook, takes kwargs, always called)`` in the order they are called."""
        found = []
        for hook_id, hook in _global_forward_hooks.items():
            kw, always = hook_id in _global_forward_hooks_with_kwargs, hook_id in _global_forward_hooks_always_called
            found.append((hook, kw, always))
        for hook_id, hook in self._forward_hooks.items():
            found.append((hook, hook_id in self._forward_hooks_with_kwargs, hook_id in self._forward_hooks_always_called))
        return found

    def _call_hooked(self, args, kwargs):
        """The call of a module that has hooks, or had them."""
        if not self._unhook_if_empty():
            return self.forward(*args, **kwargs)
        hooks = self._forward_hook_list()
        called = 0
        result = None
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            backward = None
            pre = [*_global_backward_pre_hooks.values(), *self._backward_pre_hooks.values()]
            full = [*_global_backward_hooks.values(), *self._backward_hooks.values()]
            if pre or full:
                backward = _BackwardHooks(self, pre, full)
                if full:
                    args = backward.tap_inputs(args)
            result = self.forward(*args, **kwargs)
            for hook, with_kwargs, _ in hooks:
                called += 1
                changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                if changed is not None:
                    result = changed
            return result if backward is None else backward.tap_outputs(result)
        except BaseException as why:
            # Ctrl-C, too, leaves what hooks undo undone otherwise; and it may have come in the middle of a hook, which then runs again
            for hook, with_kwargs, always in hooks[called if isinstance(why, Exception) else max(called - 1, 0) :]:
                if always:
                    try:
                        changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                        if changed is not None:
                            result = changed
                    except Exception as e:
                        text = f"module forward hook with `always_call=True` raised an exception that was silenced: {e}"
                        warnings.warn(text, stacklevel=2)
            raise


def _register_global(table, hook, flags=()):
    from dtorch.nn.modules.module import Module

    Module._hooked = True
    return _add(table, hook, False, flags)


def register_module_forward_pre_hook(hook):
    """Call ``hook(module, args)`` before the ``forward`` of every module."""
    return _register_global(_global_forward_pre_hooks, hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    """Call ``hook(module, args, output)`` after the ``forward`` of every module."""
    flags = []
    if with_kwargs:
        flags.append(_global_forward_hooks_with_kwargs)
    if always_call:
        flags.append(_global_forward_hooks_always_called)
    return _register_global(_global_forward_hooks, hook, tuple(flags))


def register_module_full_backward_pre_hook(hook):
    """Call ``hook(module, grad_output)`` in the backward of every module."""
    return _register_global(_global_backward_pre_hooks, hook)


def register_module_full_backward_hook(hook):
    """Call ``hook(module, grad_input, grad_output)`` in the backward of every module."""
    return _register_global(_global_backward_hooks, hook)
