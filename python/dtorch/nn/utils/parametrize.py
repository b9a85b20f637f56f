"""Parameters that are functions of other parameters.

``register_parametrization(m, "weight", P)`` moves ``m.weight`` to ``m.parametrizations.weight.original`` and gives the module a class of
its own, in which ``weight`` is a property that computes ``P(original)``.
"""

from __future__ import annotations

from contextlib import contextmanager

import dtorch
from dtorch import Tensor
from dtorch.nn.modules.container import ModuleDict, ModuleList
from dtorch.nn.parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

_cache_depth = 0
_cache = {}


@contextmanager
def cached():
    """Within it, each parametrised tensor is computed once."""
    global _cache_depth
    _cache_depth += 1
    try:
        yield
    finally:
        _cache_depth -= 1
        if not _cache_depth:
            _cache.clear()


def _right_inverse(parametrization, value):
    """The original(s) from which `parametrization` computes `value`; the value itself when it does not say."""
    inverse = getattr(parametrization, "right_inverse", None)
    return value if inverse is None else inverse(value)


class ParametrizationList(ModuleList):
    """The parametrisations of one tensor, applied in turn, and the tensor(s) they start from: ``original`` or ``original0``, ..."""

    def __init__(self, modules, original, unsafe=False):
        if not len(modules):
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        with dtorch.no_grad():
            new = original
            for module in reversed(list(self)):
                new = _right_inverse(module, new)
        if not isinstance(new, Tensor) and not (isinstance(new, (list, tuple)) and all(isinstance(t, Tensor) for t in new)):
            raise ValueError(f"'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got {type(new).__name__}")
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            if isinstance(original, Parameter) and new is not original:
                with dtorch.no_grad():
                    original.data = new
                new = original
            self._register("original", new, original)
        else:
            for i, tensor in enumerate(new):
                self._register(f"original{i}", tensor, original)
        if not unsafe:
            self._check(original)

    def _register(self, name, tensor, original):
        if isinstance(original, Parameter):
            tensor = tensor if isinstance(tensor, Parameter) else Parameter(tensor.detach(), requires_grad=original.requires_grad)
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)

    def _check(self, original):
        out = self()
        if not isinstance(out, Tensor):
            raise ValueError(f"A parametrization must return a tensor. Got {type(out).__name__}.")
        if out.dtype != original.dtype:
            raise ValueError(
                f"Registering a parametrization may not change the dtype of the tensor, unless `unsafe` flag is enabled. "
                f"before: {original.dtype}, after: {out.dtype}"
            )
        if tuple(out.shape) != tuple(original.shape):
            raise ValueError(
                f"Registering a parametrization may not change the shape of the tensor, unless `unsafe` flag is enabled. "
                f"before: {tuple(original.shape)}, after: {tuple(out.shape)}"
            )

    def right_inverse(self, value):
        """Write into the original(s) what makes the parametrised tensor equal to `value`."""
        with dtorch.no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                value = module.right_inverse(value)
            if self.is_tensor:
                if tuple(value.shape) != tuple(self.original.shape):
                    raise ValueError(
                        f"The tensor returned by `right_inverse` has shape {tuple(value.shape)}, expected {tuple(self.original.shape)}"
                    )
                self.original.copy_(value)
            else:
                if len(value) != self.ntensors:
                    raise ValueError(f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got {len(value)}.")
                for i, tensor in enumerate(value):
                    getattr(self, f"original{i}").copy_(tensor)

    def forward(self):
        first, *others = self._modules.values()
        if self.is_tensor:
            x = first(self.original)
        else:
            x = first(*(getattr(self, f"original{i}") for i in range(self.ntensors)))
        for module in others:
            x = module(x)
        return x


def _property(name):
    def get(self):
        if not _cache_depth:
            return self.parametrizations[name]()
        key = (id(self), name)
        if key not in _cache:
            _cache[key] = self.parametrizations[name]()
        return _cache[key]

    def put(self, value):
        self.parametrizations[name].right_inverse(value)

    return property(get, put)


def _own_class(module):
    """Give the module a class of its own, of which attributes can be changed."""
    cls = type(module)

    def deepcopy(self, memo):
        import copy

        found = memo.get(id(self))
        if found is None:
            found = object.__new__(cls)
            memo[id(self)] = found
            found.__class__ = type(self)
            found.__setstate__(copy.deepcopy(self.__dict__, memo))
        return found

    def setattr_(self, name, value):
        # Parametrised names are properties: the module's own rules for parameters do not apply to them.
        if name in (self.__dict__.get("_modules", {}).get("parametrizations") or ()):
            object.__setattr__(self, name, value)
        else:
            super(own, self).__setattr__(name, value)

    fields = {"__setattr__": setattr_, "__module__": cls.__module__}
    if not hasattr(cls, "__deepcopy__"):
        fields["__deepcopy__"] = deepcopy
    own = type("Parametrized" + cls.__name__, (cls,), fields)
    module.__class__ = own


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """Make the parameter or buffer `tensor_name` of `module` the result of the module `parametrization`; returns `module`.

    Several on one name are applied in turn. `unsafe` allows a change of shape or dtype.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        entry = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            after = parametrization(before)
            if not isinstance(after, Tensor):
                raise ValueError(f"A parametrization must return a tensor. Got {type(after).__name__}.")
            if tuple(after.shape) != tuple(before.shape) or after.dtype != before.dtype:
                raise ValueError(
                    f"Registering a parametrization may not change the shape or dtype of the tensor, unless `unsafe` flag is enabled: "
                    f"{tuple(before.shape)} {before.dtype} -> {tuple(after.shape)} {after.dtype}"
                )
        entry.append(parametrization)
        entry.unsafe = entry.unsafe or unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        original = getattr(module, tensor_name)
        entry = ParametrizationList([parametrization], original, unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            _own_class(module)
            module.parametrizations = ModuleDict()
        setattr(type(module), tensor_name, _property(tensor_name))
        module.parametrizations._modules[tensor_name] = entry
    else:
        raise ValueError(
            f"Module '{type(module).__name__}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    return module


def is_parametrized(module, tensor_name=None):
    """Whether the module has parametrisations (of `tensor_name`)."""
    entries = module._modules.get("parametrizations")
    if not isinstance(entries, ModuleDict):
        return False
    return len(entries) > 0 if tensor_name is None else tensor_name in entries


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Take the parametrisations of a tensor away; returns `module`. Leaves the computed value, or the original (not `leave_parametrized`)."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {type(module).__name__} does not have a parametrization on {tensor_name}")
    entry = module.parametrizations[tensor_name]
    if entry.is_tensor:
        original = entry.original
        if leave_parametrized:
            with dtorch.no_grad():
                value = getattr(module, tensor_name)
                original.data = value.detach().clone()
    elif leave_parametrized:
        value = getattr(module, tensor_name).detach().clone()
        original = Parameter(value) if any(isinstance(p, Parameter) for p in entry.parameters(recurse=False)) else value
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if isinstance(original, Parameter):
        module.register_parameter(tensor_name, original)
    else:
        module.register_buffer(tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module):
    """The class of the module without its parametrisations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(from_module, to_module, tensor_name=None):
    """Put the parametrisations of one module (of one tensor) on another; returns `to_module`."""
    names = list(from_module.parametrizations) if tensor_name is None else [tensor_name]
    for name in names:
        entry = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach().clone()))
        for parametrization in entry:
            register_parametrization(to_module, name, parametrization, unsafe=entry.unsafe)
        target = to_module.parametrizations[name]
        with dtorch.no_grad():
            for key, tensor in entry.named_parameters(recurse=False):
                getattr(target, key).copy_(tensor)
    return to_module
