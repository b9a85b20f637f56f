"""The base class of all networks.

A module keeps hook tables and three registries (parameters, buffers, children), each mirrored into its ``__dict__`` (see ``_registry.py``).
``__call__`` (in C: ``_Callable``) looks at one flag and calls ``forward``. State dictionaries are in ``_state.py``, hooks in ``_hooks.py``.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

import dtorch
from dtorch import Tensor
from dtorch._C import _Callable
from dtorch.nn.modules._hooks import (
    HookMixin,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from dtorch.nn.modules._registry import Registry
from dtorch.nn.modules._state import StateMixin, _IncompatibleKeys
from dtorch.nn.parameter import Buffer, Parameter, clear_grad

__all__ = [
    "Module",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_ORDERED_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


def _indent(text, by):
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * by + line for line in rest)])


def _typename(value):
    cls = type(value)
    return cls.__qualname__ if cls.__module__ in ("builtins", "") else f"{cls.__module__}.{cls.__qualname__}"


def _parse_to(args, kwargs):
    """The arguments of ``Module.to`` (a device, a dtype, both, or a tensor) as the keywords of ``Tensor.to``."""
    out = {}
    legal = ("device", "dtype", "non_blocking", "memory_format", "tensor", "copy")
    for name in kwargs:
        if name not in legal:
            raise TypeError(f"to() received an unexpected keyword argument '{name}'; it takes {', '.join(legal)}")
    args = list(args)
    if "tensor" in kwargs:
        args.insert(0, kwargs["tensor"])
    for value in args:
        if isinstance(value, Tensor):
            out["device"], out["dtype"] = value.device, value.dtype
        elif isinstance(value, dtorch.dtype):
            out["dtype"] = value
        elif isinstance(value, bool):
            out["non_blocking"] = value
        elif isinstance(value, (str, int, dtorch.device)):
            out["device"] = value
        elif value is not None:
            raise TypeError(f"to() takes a device, a dtype or a tensor, got {type(value).__name__}: {value!r}")
    for name in ("device", "dtype", "non_blocking", "memory_format"):
        if kwargs.get(name) is not None:
            out[name] = kwargs[name]
    return out


def _no_attribute(self, name):
    """``Module.__getattr__``, for those who call it: a registry's entry is in ``__dict__``, where ordinary look-up finds it."""
    try:
        return self.__dict__[name]
    except KeyError:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'") from None


class Module(StateMixin, HookMixin, _Callable):  # first a class of Python: FSDP changes classes of modules, which asks for a base alike
    """The base class of all networks: subclass it, assign parameters and other modules in ``__init__``, write ``forward``.

    ``training`` says whether the module is in training mode (see :meth:`train`).
    """

    dump_patches = False
    call_super_init = False

    def __init__(self, *args, **kwargs):
        if not self.call_super_init:
            if kwargs:
                raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'")
            if args:
                raise TypeError(f"{type(self).__name__}.__init__() takes 1 positional argument but {len(args) + 1} were given")
        fields = self.__dict__
        owner = weakref.ref(self)
        fields["training"] = True
        for name in _REGISTRIES:
            fields[name] = Registry(owner)
        fields["_non_persistent_buffers_set"] = set()
        for name in _ORDERED_HOOKS:
            fields[name] = OrderedDict()
        for name in _HOOK_FLAGS:
            fields[name] = {}
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args, **kwargs):
        """What the module computes; every subclass has its own."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # ---- registering

    def _check_name(self, name, kind, registry):
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {_typename(name)}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."' + (f", got: {name}" if kind == "module" else ""))
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if name not in registry and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    def register_buffer(self, name, tensor, persistent=True):
        """Add a buffer: state that moves with the module and, when `persistent`, is in its ``state_dict``, but is not trained."""
        buffers = self.__dict__.get("_buffers")
        if buffers is None:
            raise AttributeError("cannot assign buffer before Module.__init__() call")
        self._check_name(name, "buffer", buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign '{_typename(tensor)}' object to buffer '{name}' (dtorch Tensor or None required)")
        buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_parameter(self, name, param):
        """Add a parameter; None keeps the name without a parameter."""
        params = self.__dict__.get("_parameters")
        if params is None:
            raise AttributeError("cannot assign parameter before Module.__init__() call")
        self._check_name(name, "parameter", params)
        if param is not None:
            if not isinstance(param, Parameter):
                raise TypeError(f"cannot assign '{_typename(param)}' object to parameter '{name}' (dtorch.nn.Parameter or None required)")
            if not param.is_leaf:
                raise ValueError(
                    f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. "
                    f"To express '{name}' as a function of another Tensor, compute the value in the forward() method."
                )
        params[name] = param

    def add_module(self, name, module):
        """Add a child module under `name`."""
        children = self.__dict__.get("_modules")
        if children is None:
            raise AttributeError("cannot assign module before Module.__init__() call")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{_typename(module)} is not a Module subclass")
        self._check_name(name, "module", children)
        children[name] = module

    def register_module(self, name, module):
        """The same as :meth:`add_module`."""
        self.add_module(name, module)

    def get_submodule(self, target):
        """The module with the full name `target`; the module itself for an empty name. AttributeError when there is none."""
        module = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def set_submodule(self, target, module, strict=False):
        """Put `module` in the place of the child with the full name `target` (with `strict`, one must be there)."""
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def _get_leaf(self, target, registry, what):
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        value = getattr(module, name)
        if name not in getattr(module, registry) and not isinstance(value, Parameter if registry == "_parameters" else Buffer):
            raise AttributeError(f"`{name}` is not {what}")
        return value

    def get_parameter(self, target):
        """The parameter with the full name `target`; AttributeError when there is none."""
        return self._get_leaf(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target):
        """The buffer with the full name `target`; AttributeError when there is none."""
        return self._get_leaf(target, "_buffers", "a buffer")

    # ---- attributes

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A class with `__getattr__` is slow at every look-up in CPython, so Module gets one only when a subclass may call super().__getattr__.
        if "__getattr__" not in Module.__dict__ and any("__getattr__" in c.__dict__ for c in cls.__mro__):
            Module.__getattr__ = _no_attribute

    def _forget(self, name, keep=None):
        """Take `name` out of everything but the registry `keep`."""
        fields = self.__dict__
        for registry in _REGISTRIES:
            if registry != keep and name in fields[registry]:
                del fields[registry][name]
        if keep is None or name not in fields[keep]:
            fields.pop(name, None)
        if keep != "_buffers":
            self._non_persistent_buffers_set.discard(name)

    def __setattr__(self, name, value):
        fields = self.__dict__
        params = fields.get("_parameters")
        if isinstance(value, Parameter):
            if params is None:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif params is not None and name in params:
            if value is not None:
                raise TypeError(f"cannot assign '{_typename(value)}' as parameter '{name}' (dtorch.nn.Parameter or None expected)")
            params[name] = None
        elif isinstance(value, Module):
            if params is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, "_modules")
            fields["_modules"][name] = value
        elif params is None:
            object.__setattr__(self, name, value)
        elif name in fields["_modules"]:
            if value is not None:
                raise TypeError(f"cannot assign '{_typename(value)}' as child module '{name}' (dtorch.nn.Module or None expected)")
            fields["_modules"][name] = None
        elif name in fields["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"cannot assign '{_typename(value)}' as buffer '{name}' (dtorch.nn.Buffer, dtorch.Tensor or None expected)")
            fields["_buffers"][name] = value
        elif isinstance(value, Buffer):
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name):
        for registry in _REGISTRIES:
            entries = self.__dict__.get(registry)
            if entries is not None and name in entries:
                del entries[name]
                if registry == "_buffers":
                    self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self):
        names = set(dir(type(self))) | set(self.__dict__)
        return sorted(n for n in names if not n[:1].isdigit())

    def __setstate__(self, state):
        self.__dict__.update(state)
        owner = weakref.ref(self)
        for name in _REGISTRIES:
            if name in self.__dict__:
                self.__dict__[name] = Registry(owner, self.__dict__[name])

    # ---- walking

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """All modules of the tree, this one first, with their full names."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        """All modules of the tree, this one first; each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self):
        """The direct children and their names; each once."""
        seen = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self):
        """The direct children; each once."""
        for _, child in self.named_children():
            yield child

    def _named_members(self, get_members_fn, prefix="", recurse=True, remove_duplicate=True):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in get_members_fn(module):
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """All parameters with their full names."""
        return self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        """All parameters; each once."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """All buffers with their full names."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """All buffers; each once."""
        for _, buf in self.named_buffers(recurse=recurse):
            yield buf

    # ---- changing everything

    def apply(self, fn):
        """Call ``fn(module)`` for every module of the tree, children first; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _apply(self, fn, recurse=True):
        """Put ``fn(tensor)`` in the place of every parameter's, gradient's and buffer's data; parameters keep their identity."""
        if recurse:
            for child in self.children():
                child._apply(fn)
        for param in self._parameters.values():
            if param is None:
                continue
            with dtorch.no_grad():
                changed = fn(param)
                grad = param.grad
                changed_grad = None if grad is None else fn(grad)
            if grad is not None:
                param.grad = None
            param.data = changed
            if grad is not None:
                param.grad = changed_grad
        for name, buf in self._buffers.items():
            if buf is not None:
                self._buffers[name] = fn(buf)
        return self

    def to(self, *args, **kwargs):
        """Move and cast in place; returns self.

        ``to(device)``, ``to(dtype)``, ``to(device, dtype)`` or ``to(tensor)``; a dtype changes only floating point and complex tensors.
        """
        options = _parse_to(args, kwargs)
        dtype = options.get("dtype")
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}")
        plain = {k: v for k, v in options.items() if k != "dtype"}

        def convert(t):
            if dtype is not None and (t.is_floating_point() or t.is_complex()):
                return t.to(**options)
            return t.to(**plain) if plain else t

        return self._apply(convert)

    def to_empty(self, *, device, recurse=True):
        """Move to `device` without copying: the values are then undefined."""
        return self._apply(lambda t: dtorch.empty_like(t, device=device), recurse=recurse)

    def type(self, dst_type):
        """Cast all parameters and buffers to `dst_type`."""
        return self._apply(lambda t: t.type(dst_type))

    def _cast(self, dtype):
        return self._apply(lambda t: t.to(dtype=dtype) if t.is_floating_point() else t)

    def float(self):
        """Cast all floating point parameters and buffers to float32."""
        return self._cast(dtorch.float32)

    def double(self):
        """Cast all floating point parameters and buffers to float64."""
        return self._cast(dtorch.float64)

    def half(self):
        """Cast all floating point parameters and buffers to float16."""
        return self._cast(dtorch.float16)

    def bfloat16(self):
        """Cast all floating point parameters and buffers to bfloat16."""
        return self._cast(dtorch.bfloat16)

    def cpu(self):
        """Move to the CPU."""
        return self._apply(lambda t: t.to(device="cpu"))

    def cuda(self, device=None):
        """Move to a CUDA device."""
        target = "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device
        return self._apply(lambda t: t.to(device=target))

    def share_memory(self):
        """Nothing to do: tensors belong to the one program. Returns self."""
        return self

    def compile(self, *args, **kwargs):
        """Nothing to compile: the engine plans and fuses by itself."""

    def train(self, mode=True):
        """Set training mode for the whole tree; returns self."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self):
        """Set evaluation mode for the whole tree; returns self."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Set ``requires_grad`` of all parameters; returns self."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Reset the gradients of all parameters: to None, or to zeros in place."""
        for param in self.parameters():
            clear_grad(param, set_to_none)

    # ---- printing

    def _get_name(self):
        return type(self).__name__

    def extra_repr(self):
        """What ``repr`` shows between the brackets, besides the children."""
        return ""

    def __repr__(self):
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        child_lines = [f"({name}): " + _indent(repr(child), 2) for name, child in self._modules.items()]
        lines = extra_lines + child_lines
        if not lines:
            body = ""
        elif len(extra_lines) == 1 and not child_lines:
            body = extra_lines[0]
        else:
            body = "\n  " + "\n  ".join(lines) + "\n"
        return f"{self._get_name()}({body})"


_IncompatibleKeys.__module__ = __name__
