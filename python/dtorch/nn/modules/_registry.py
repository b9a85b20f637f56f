"""The dictionaries in which a module keeps its parameters, buffers and children.

Each is mirrored into the module's ``__dict__``, so that ``self.weight`` is an ordinary attribute look-up (some 15 ns) and not a
failed look-up followed by a Python ``__getattr__`` (300 ns), which would be most of the cost of a small layer's call.

Invariants: for every name in a registry, the owner's ``__dict__`` holds the same object under that name, whoever changed the registry.
The registry refers to its owner weakly: a module that goes out of scope is freed at once, with its parameters.
"""

from __future__ import annotations

import copy

_MISSING = object()


class Registry(dict):
    """A dictionary whose entries are also attributes of the module that owns it."""

    __slots__ = ("_owner",)

    def __init__(self, owner, items=()):
        super().__init__(items)
        self._owner = owner
        module = owner()
        if module is not None:
            module.__dict__.update(self)

    def __setitem__(self, name, value):
        dict.__setitem__(self, name, value)
        module = self._owner()
        if module is not None:
            module.__dict__[name] = value

    def __delitem__(self, name):
        dict.__delitem__(self, name)
        module = self._owner()
        if module is not None:
            module.__dict__.pop(name, None)

    def pop(self, name, default=_MISSING):
        if name in self:
            value = self[name]
            del self[name]
            return value
        if default is _MISSING:
            raise KeyError(name)
        return default

    def popitem(self):
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        name = next(reversed(self))
        return name, self.pop(name)

    def clear(self):
        for name in list(self):
            del self[name]

    def update(self, *args, **kwargs):
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other):
        self.update(other)
        return self

    def setdefault(self, name, default=None):
        if name not in self:
            self[name] = default
        return self[name]

    def copy(self):
        return dict(self)

    # A copy belongs to no module until the module's __setstate__ takes it over.
    def __copy__(self):
        return dict(self)

    def __deepcopy__(self, memo):
        return {name: copy.deepcopy(value, memo) for name, value in self.items()}

    def __reduce__(self):
        return dict, (dict(self),)
