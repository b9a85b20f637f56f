"""Modules that hold modules, and modules that hold parameters."""

from __future__ import annotations

import operator

from dtorch import Tensor
from dtorch.nn.modules.module import Module, _indent, _typename
from dtorch.nn.parameter import Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _wrap(index, size):
    """A list index in [0, size)."""
    index = operator.index(index)
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range")
    return index % size if size else 0


def _grouped_repr(module):
    """The repr of a list of modules: equal neighbours are written once, with their number."""
    groups = []  # [first index, last index, text]
    for i, child in enumerate(module):
        text = repr(child)
        if groups and groups[-1][2] == text:
            groups[-1][1] = i
        else:
            groups.append([i, i, text])
    lines = []
    for first, last, text in groups:
        line = f"({first}): {text}" if first == last else f"({first}-{last}): {last - first + 1} x {text}"
        lines.append(_indent(line, 2))
    return f"{module._get_name()}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{module._get_name()}()"


class Sequential(Module):
    """Calls its children one after the other, each with the result of the one before.

    Takes the modules as arguments, or one ordered dict of named modules.
    """

    def __init__(self, *args):
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def _key(self, index):
        return list(self._modules)[_wrap(index, len(self))]

    def _renumber(self, modules):
        self._modules.clear()
        for i, module in enumerate(modules):
            self._modules[str(i)] = module

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return self._modules[self._key(index)]

    def __setitem__(self, index, module):
        setattr(self, self._key(index), module)

    def __delitem__(self, index):
        keys = list(self._modules)[index] if isinstance(index, slice) else [self._key(index)]
        for key in keys:
            delattr(self, key)
        self._renumber(list(self._modules.values()))

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __dir__(self):
        return [name for name in super().__dir__() if not name.isdigit()]

    def __add__(self, other):
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __iadd__(self, other):
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return self.extend(other)

    def __mul__(self, times):
        self._check_times(times)
        return Sequential(*(module for _ in range(times) for module in self))

    __rmul__ = __mul__

    def __imul__(self, times):
        self._check_times(times)
        return self.extend([module for _ in range(times - 1) for module in self])

    @staticmethod
    def _check_times(times):
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(Sequential())} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(Sequential())}")

    def append(self, module):
        """Add a module at the end; returns self."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, sequential):
        """Add modules at the end; returns self."""
        for module in list(sequential):
            self.append(module)
        return self

    def insert(self, index, module):
        """Insert a module before `index`; returns self."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, index):
        """Take the module at `index` out and return it."""
        module = self[index]
        del self[index]
        return module

    def forward(self, input):
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(Module):
    """A list of modules, registered under their numbers."""

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self += modules

    def _key(self, index):
        return str(_wrap(index, len(self)))

    def _renumber(self, modules):
        self._modules.clear()
        for i, module in enumerate(modules):
            self._modules[str(i)] = module

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return self._modules[self._key(index)]

    def __setitem__(self, index, module):
        setattr(self, self._key(index), module)

    def __delitem__(self, index):
        modules = list(self)
        if not isinstance(index, slice):
            index = _wrap(index, len(self))
        del modules[index]
        self._renumber(modules)

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __iadd__(self, modules):
        return self.extend(modules)

    def __add__(self, other):
        return ModuleList([*self, *other])

    def __dir__(self):
        return [name for name in super().__dir__() if not name.isdigit()]

    def __repr__(self):
        return _grouped_repr(self)

    def insert(self, index, module):
        """Insert a module before `index`."""
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)

    def append(self, module):
        """Add a module at the end; returns self."""
        self.add_module(str(len(self)), module)
        return self

    def pop(self, key):
        """Take the module at `key` out and return it."""
        module = self[key]
        del self[key]
        return module

    def extend(self, modules):
        """Add modules at the end; returns self."""
        try:
            modules = list(modules)
        except TypeError:
            raise TypeError(f"ModuleList.extend should be called with an iterable, but got {type(modules).__name__}") from None
        for module in modules:
            self.append(module)
        return self


class ModuleDict(Module):
    """A dictionary of modules, in the order of insertion."""

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key):
        return self._modules[key]

    def __setitem__(self, key, module):
        self.add_module(key, module)

    def __delitem__(self, key):
        del self._modules[key]

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def __contains__(self, key):
        return key in self._modules

    def clear(self):
        """Take all modules out."""
        self._modules.clear()

    def pop(self, key):
        """Take the module under `key` out and return it."""
        return self._modules.pop(key)

    def keys(self):
        """The names."""
        return self._modules.keys()

    def items(self):
        """Names and modules."""
        return self._modules.items()

    def values(self):
        """The modules."""
        return self._modules.values()

    def update(self, modules):
        """Add the modules of a mapping, or of pairs (name, module)."""
        self._check_iterable(modules)
        if hasattr(modules, "items"):
            modules = modules.items()
        for i, pair in enumerate(modules):
            if not hasattr(pair, "__len__") or len(pair) != 2:
                raise ValueError(f"ModuleDict update sequence element #{i} should be a pair (name, module), got {_typename(pair)}")
            self[pair[0]] = pair[1]

    @staticmethod
    def _check_iterable(modules):
        if not hasattr(modules, "__iter__"):
            raise TypeError(f"ModuleDict.update should be called with an iterable of key/value pairs, but got {type(modules).__name__}")


def _as_parameter(value):
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _entry_repr(value):
    """One line about an entry of a list or dictionary of parameters."""
    if isinstance(value, Tensor):
        kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
        size = "x".join(str(s) for s in value.shape)
        dtype = str(value.dtype)
        where = "" if value.device.type == "cpu" else f" ({value.device})"
        return f"{kind} containing: [{dtype} of size {size}{where}]"
    return f"Object of type: {type(value).__name__}"


class ParameterList(Module):
    """A list of parameters; tensors put in become parameters, anything else is kept as it is."""

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def __getitem__(self, index):
        if isinstance(index, slice):
            out = type(self)()
            for i in range(*index.indices(len(self))):
                out.append(self[i])
            return out
        return getattr(self, str(_wrap(index, len(self))))

    def __setitem__(self, index, value):
        setattr(self, str(_wrap(index, len(self))), _as_parameter(value))

    def __len__(self):
        return self._size

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])

    def __iadd__(self, values):
        return self.extend(values)

    def __dir__(self):
        return [name for name in super().__dir__() if not name.isdigit()]

    def append(self, value):
        """Add a value at the end; returns self."""
        self._size += 1
        self[len(self) - 1] = value
        return self

    def extend(self, values):
        """Add values at the end; returns self."""
        if isinstance(values, Tensor) or not hasattr(values, "__iter__"):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    def extra_repr(self):
        return "\n".join(f"  ({i}): {_entry_repr(value)}" for i, value in enumerate(self))

    def __call__(self, *args, **kwargs):
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """A dictionary of parameters; tensors put in become parameters, anything else is kept as it is."""

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        if parameters is not None:
            self.update(parameters)

    def _attribute(self, key):
        if not isinstance(key, str):
            raise TypeError(f"Index given to ParameterDict cannot be used as a key as it is not a string (type is '{type(key).__name__}').")
        return key

    def __getitem__(self, key):
        if key not in self._keys:
            raise KeyError(key)
        return self.__dict__[self._attribute(key)]

    def __setitem__(self, key, value):
        name = self._attribute(key)
        if key not in self._keys and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")
        self._keys[key] = None
        setattr(self, name, _as_parameter(value))

    def __delitem__(self, key):
        del self._keys[key]
        delattr(self, self._attribute(key))

    def __len__(self):
        return len(self._keys)

    def __iter__(self):
        return iter(self._keys)

    def __reversed__(self):
        return reversed(list(self._keys))

    def __contains__(self, key):
        return key in self._keys

    def keys(self):
        """The names."""
        return self._keys.keys()

    def items(self):
        """Names and values."""
        return ((k, self[k]) for k in self._keys)

    def values(self):
        """The values."""
        return (self[k] for k in self._keys)

    def copy(self):
        """A new dictionary of the same parameters."""
        return ParameterDict(dict(self.items()))

    def setdefault(self, key, default=None):
        """The value under `key`, which becomes `default` if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self):
        """Take all values out."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key):
        """Take the value under `key` out and return it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self):
        """Take the last pair out and return it."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def get(self, key, default=None):
        """The value under `key`, or `default`."""
        return self[key] if key in self else default  # noqa: SIM401

    def fromkeys(self, keys, default=None):
        """A new dictionary with `default` under each of `keys`."""
        return ParameterDict({k: default for k in keys})

    def update(self, parameters):
        """Add the values of a mapping, or of pairs (name, value)."""
        if not hasattr(parameters, "__iter__"):
            raise TypeError(
                f"ParametersDict.update should be called with an iterable of key/value pairs, but got {type(parameters).__name__}"
            )
        pairs = parameters.items() if hasattr(parameters, "items") else parameters
        for key, value in pairs:
            self[key] = value

    def __or__(self, other):
        out = self.copy()
        out.update(other)
        return out

    def __ior__(self, other):
        self.update(other)
        return self

    def extra_repr(self):
        return "\n".join(f"  ({key}): {_entry_repr(value)}" for key, value in self.items())

    def __call__(self, input):
        raise RuntimeError("ParameterDict should not be called.")
