"""The state that a checkpoint holds: nested dicts and lists of tensors and plain values, and objects that know their own state.

An object with ``state_dict()`` and ``load_state_dict()`` stands for its state dict; a :class:`dtorch.Generator` for its state. As in
:func:`dtorch.save`, the nesting becomes JSON in which tensors are names (``dtorch/_tree.py``); a tensor's name is its path.
"""

from __future__ import annotations

import dtorch
from dtorch import Tensor, _tree
from dtorch.checkpoint._files import CheckpointError

__all__ = ["RNG", "encode", "fill"]


class RNG:
    """The random state of the whole program as an object with a state dict: dtorch's default generator, Python's, and NumPy's if it is loaded."""

    def state_dict(self):
        """The states, nested plain values."""
        import random
        import sys

        state = {"dtorch": dtorch.get_rng_state(), "python": random.getstate()}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, *rest = numpy.random.get_state()
            state["numpy"] = (kind, keys.astype("int64"), *rest)
        return state

    def load_state_dict(self, state):
        """Go on from such states."""
        import random

        dtorch.set_rng_state(state["dtorch"])
        random.setstate(state["python"])
        if "numpy" in state:
            import numpy

            kind, keys, *rest = state["numpy"]
            numpy.random.set_state((kind, numpy.asarray(keys, "uint32"), *rest))


def _has_state(obj):
    return hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict") and not isinstance(obj, (Tensor, type))


class _Encoder(_tree._Encoder):
    """Objects by their state dicts; handles of one storage (tied weights) once."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def _name(self, tensor, path):
        storage = tensor._storage_id()
        key = ("storage", storage) if storage else None
        if key is not None and key in self.names and self.tensors[self.names[key]].dtype == tensor.dtype:
            return self.names[key]
        name = super()._name(tensor, path)
        self.kept.append(tensor)  # an id means nothing once its object is gone
        if key is not None:
            self.names[key] = name
        return name

    def encode(self, obj, path):
        if isinstance(obj, dtorch.Generator):
            obj = obj.get_state()
        elif _has_state(obj):
            obj = obj.state_dict()
        return super().encode(obj, path)


def encode(state):
    """The tensors of `state` by name, and its tree."""
    encoder = _Encoder()
    return (encoder.tensors, encoder.encode(state, ())) if state is not None else ({}, None)


# ---- trees with tensors to put into


def _pairs(node, decode):
    """The entries of an encoded mapping, {key: node}; None when the node is no mapping."""
    if isinstance(node, dict) and "$" not in node:
        return node
    if isinstance(node, dict) and node.get("$") in ("dict", "odict", "counter") and isinstance(node.get("v"), list):
        return {decode(k): v for k, v in node["v"]}
    return None


def _items(node):
    """The entries of an encoded sequence; None when the node is none."""
    if isinstance(node, list):
        return node
    if isinstance(node, dict) and node.get("$") in ("tuple", "list", "size") and isinstance(node.get("v"), list):
        return node["v"]
    return None


class _Filler:
    """Puts the values of an encoded tree into a state, in place.

    Args:
        read: ``read(name)`` gives a tensor of the checkpoint, plain; ``read(name, like)`` one that lies as the tensor `like` does.
        what: the checkpoint's name, for errors.
    """

    def __init__(self, read, what, strict):
        self.read, self.what, self.strict = read, what, strict
        self.decoder = _tree._Decoder(read, what)

    def fail(self, where, text):
        raise CheckpointError(f"{self.what}: {where or 'state'}: {text}")

    def fill(self, target, node, where=""):
        """What stands in the state's place of `target`: itself, filled, or the loaded value."""
        if isinstance(target, dtorch.Generator):
            target.set_state(self.decoder.decode(node))
            return target
        if isinstance(target, Tensor):
            return self._tensor(target, node, where)
        if _has_state(target):
            return self._object(target, node, where)
        if isinstance(target, dict):
            return self._mapping(target, node, where)
        if isinstance(target, (list, tuple)):
            return self._sequence(target, node, where)
        return self.decoder.decode(node)

    def _tensor(self, target, node, where):
        if not (isinstance(node, dict) and node.get("$") in ("tensor", "complex128")):
            self.fail(where, f"expected a tensor of shape {tuple(target.shape)}, the checkpoint has {str(node)[:80]}")
        if node["$"] == "complex128":
            source = self.decoder.decode(node)
        else:
            source = self.read(node["v"], target, where)
        with dtorch.no_grad():
            target.copy_(source)
        return target

    def _mapping(self, target, node, where):
        found = _pairs(node, self.decoder.decode)
        if found is None:
            self.fail(where, f"expected a dict, the checkpoint has {str(node)[:80]}")
        missing = [k for k in target if k not in found]
        if missing:
            self.fail(where, f"not in the checkpoint: {', '.join(map(repr, missing[:8]))}{', …' if len(missing) > 8 else ''}")
        for key in list(target):
            new = self.fill(target[key], found[key], f"{where}[{key!r}]")
            if new is not target[key]:
                target[key] = new
        return target

    def _sequence(self, target, node, where):
        found = _items(node)
        if found is None or len(found) != len(target):
            new = self.decoder.decode(node)
        else:
            new = [self.fill(t, n, f"{where}[{i}]") for i, (t, n) in enumerate(zip(target, found, strict=True))]
        if isinstance(target, list) and isinstance(new, list):
            target[:] = new
            return target
        return type(target)(new) if type(target) is tuple else new

    # ---- objects

    def _object(self, obj, node, where):
        from dtorch.nn import Module
        from dtorch.optim import Optimizer

        if isinstance(obj, Module):
            self._module(obj, node, where)
        elif isinstance(obj, Optimizer):
            obj.load_state_dict(self._optimizer(obj, node, where))
        else:
            obj.load_state_dict(self._like(obj.state_dict(), node))
        return obj

    def _module(self, module, node, where):
        found = _pairs(node, self.decoder.decode)
        own = module.state_dict()
        if found is None:
            self.fail(where, f"expected the state of a {type(module).__name__}, the checkpoint has {str(node)[:80]}")
        missing = [k for k in own if k not in found]
        unexpected = [k for k in found if k not in own]
        if self.strict and (missing or unexpected):
            parts = [f"{word}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
                     for word, names in (("missing in the checkpoint", missing), ("unexpected in the checkpoint", unexpected)) if names]  # fmt: skip
            self.fail(where, f"{type(module).__name__} does not fit: {'; '.join(parts)}")
        for key in own:
            if key in found:
                own[key] = self.fill(own[key], found[key], f"{where}[{key!r}]")
        module.load_state_dict({k: v for k, v in own.items() if k in found}, strict=False)

    def _optimizer(self, optimizer, node, where):
        """The state dict to load: tensors of a parameter's shape lie as the parameter does."""
        found = _pairs(node, self.decoder.decode)
        if found is None or "state" not in found or "param_groups" not in found:
            self.fail(where, f"expected the state of an optimizer, the checkpoint has {str(node)[:80]}")
        params = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                params.setdefault(len(params), p)
        own = optimizer.state_dict()["state"]
        state = {}
        for number, entries in (_pairs(found["state"], self.decoder.decode) or {}).items():
            p = params.get(number)
            template = None if p is None else optimizer._zeros(p, p.shape) if p.is_floating_point() else p
            templates = dict.fromkeys(_pairs(entries, self.decoder.decode) or (), template)
            templates.update(own.get(number, {}))
            state[number] = self._like(templates, entries)
        return {**self.decoder.decode({k: v for k, v in found.items() if k != "state"}), "state": state}

    def _like(self, template, node):
        """The decoded node, its tensors lying as those of the same shape in `template`."""
        if isinstance(node, dict) and node.get("$") == "tensor" and isinstance(template, Tensor):
            return self.read(node["v"], template, None)
        pairs = _pairs(node, self.decoder.decode)
        if pairs is not None and isinstance(template, dict):
            kind = type(template) if node.get("$") == "odict" else dict
            return kind((k, self._like(template.get(k), v)) for k, v in pairs.items())
        items = _items(node)
        if items is not None and isinstance(template, (list, tuple)) and len(template) == len(items):
            new = [self._like(t, n) for t, n in zip(template, items, strict=True)]
            return tuple(new) if isinstance(node, dict) and node["$"] == "tuple" else new
        if items is not None and isinstance(template, Tensor):  # LBFGS keeps lists of them
            return [self._like(template, n) for n in items]
        return self.decoder.decode(node)


def fill(state, tree, read, what, strict):
    """Put the tree's values into `state`, in place; returns it."""
    return _Filler(read, what, strict).fill(state, tree)
