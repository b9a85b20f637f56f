"""Nestings of containers, tensors and plain values as JSON, for :func:`dtorch.save`.

Text, whole numbers, finite floats, booleans, None, lists and dicts with text keys are themselves. Everything else is an object with the key
"$" that says what it is, and "v": ``{"$": "tuple", "v": [1, 2]}``. A tensor is the name of an entry of the file.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict

import dtorch
from dtorch import Tensor

__all__ = ["decode", "encode"]

_DEPTH = 100


class _Encoder:
    def __init__(self):
        self.tensors = {}
        self.names = {}  # id of a tensor -> its name, so that one tensor in two places is written once

    def _name(self, tensor, path):
        known = self.names.get(id(tensor))
        if known is not None:
            return known
        name = base = ".".join(str(p) for p in path) or "tensor"
        n = 1
        while name in self.tensors or name == "__metadata__":
            n += 1
            name = f"{base}#{n}"
        self.tensors[name] = tensor
        self.names[id(tensor)] = name
        return name

    def _tensor(self, tensor, path):
        from dtorch.nn.parameter import Parameter

        out = {"$": "tensor"}
        if str(tensor.dtype).endswith("complex128"):  # which the format does not have
            out = {"$": "complex128"}
            parts = dtorch.view_as_real(tensor.detach())
            out["v"] = self._name(parts, path)
            self.names[id(tensor)] = out["v"]
            self.kept.append(tensor)
        else:
            out["v"] = self._name(tensor, path)
        if isinstance(tensor, Parameter):
            out["parameter"] = True
        if tensor.requires_grad:
            out["requires_grad"] = True
        return out

    kept = ()

    def _items(self, mapping, path):
        return [[self.encode(k, (*path, "key")), self.encode(v, (*path, k))] for k, v in mapping.items()]

    def _mapping(self, obj, path):
        if type(obj) is dict and all(isinstance(k, str) for k in obj) and "$" not in obj:
            return {k: self.encode(v, (*path, k)) for k, v in obj.items()}
        kind = "counter" if isinstance(obj, Counter) else "odict" if isinstance(obj, OrderedDict) else "dict"
        out = {"$": kind, "v": self._items(obj, path)}
        metadata = getattr(obj, "_metadata", None)
        if metadata is not None:
            out["metadata"] = self._items(metadata, (*path, "_metadata"))
        return out

    def _plain(self, obj, path):
        """A value that is neither container nor tensor, or None when it cannot be written."""
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {"$": "float", "v": repr(float(obj))}
        if isinstance(obj, complex):
            return {"$": "complex", "v": [self.encode(obj.real, path), self.encode(obj.imag, path)]}
        if isinstance(obj, (bytes, bytearray)):
            return {"$": "bytes", "v": base64.b64encode(bytes(obj)).decode("ascii")}
        if isinstance(obj, dtorch.dtype):
            return {"$": "dtype", "v": str(obj).rpartition(".")[2]}
        if isinstance(obj, dtorch.device):
            return {"$": "device", "v": str(obj)}
        import numpy as np

        if isinstance(obj, (np.ndarray, np.generic)) and np.asarray(obj).dtype.kind in "fiubc":
            array = np.ascontiguousarray(obj).reshape(np.shape(obj))
            kind = "array" if isinstance(obj, np.ndarray) else "scalar"
            return {"$": kind, "v": self._tensor(dtorch.from_numpy(array.copy()), path)}
        return None

    def encode(self, obj, path):
        if len(path) > _DEPTH:
            raise ValueError(f"save: nested more than {_DEPTH} deep")
        if obj is None or isinstance(obj, (bool, str)):
            return obj if type(obj) in (bool, str, type(None)) else str(obj)
        if isinstance(obj, int):
            return int(obj)
        if isinstance(obj, Tensor):
            return self._tensor(obj, path)
        if isinstance(obj, dict):
            return self._mapping(obj, path)
        if isinstance(obj, (list, tuple, set, frozenset)):
            items = [self.encode(v, (*path, i)) for i, v in enumerate(obj)]
            if type(obj) is list:
                return items
            size = getattr(dtorch, "Size", None)
            kind = "size" if size is not None and isinstance(obj, size) else "tuple" if isinstance(obj, tuple) else "list"
            kind = "set" if isinstance(obj, (set, frozenset)) else kind
            return {"$": kind, "v": items}
        out = self._plain(obj, path)
        if out is None:
            where = "obj" + "".join(f"[{p!r}]" for p in path)
            hint = "; give its state_dict()" if hasattr(obj, "state_dict") else ""
            raise TypeError(
                f"save: {where} is a {type(obj).__name__}{hint}. Only tensors, arrays, numbers, text, bytes, dtypes and devices in dicts, "
                "lists, tuples and sets can be saved: nothing is pickled"
            )
        return out


def encode(obj):
    """The tensors of `obj` by name, and its tree; no tree for a plain dict of tensors with text keys, whose names are the keys."""
    encoder = _Encoder()
    encoder.kept = []
    tree = encoder.encode(obj, ())
    simple = (
        type(obj) is dict
        and obj
        and all(isinstance(v, dict) and set(v) == {"$", "v"} and v["$"] == "tensor" and v["v"] == k for k, v in tree.items())
    )
    return encoder.tensors, None if simple else tree


class _Decoder:
    def __init__(self, tensor, what):
        self.read, self.what = tensor, what
        self.known = {}

    def fail(self, node):
        from dtorch.io import SafetensorError

        raise SafetensorError(f"{self.what}: unknown entry {str(node)[:200]} in its dtorch.tree")

    def _tensor(self, node):
        from dtorch.nn.parameter import Parameter

        name = node["v"]
        if name not in self.known:
            tensor = self.read(name)
            if node["$"] == "complex128":
                tensor = dtorch.view_as_complex(tensor)
            if node.get("parameter"):
                tensor = Parameter(tensor, requires_grad=bool(node.get("requires_grad")))
            elif node.get("requires_grad"):
                tensor.requires_grad_(True)
            self.known[name] = tensor
        return self.known[name]

    def _pairs(self, node):
        return [(self.decode(k), self.decode(v)) for k, v in node]

    def decode(self, node):
        if isinstance(node, list):
            return [self.decode(v) for v in node]
        if not isinstance(node, dict):
            return node
        kind = node.get("$")
        if kind is None:
            return {k: self.decode(v) for k, v in node.items()}
        make = getattr(self, f"_make_{kind}", None) if isinstance(kind, str) else None
        if make is None or "v" not in node:
            self.fail(node)
        try:
            return make(node)
        except (TypeError, KeyError, AttributeError, IndexError):
            self.fail(node)

    def _make_tensor(self, node):
        return self._tensor(node)

    _make_complex128 = _make_tensor

    def _make_dict(self, node):
        return dict(self._pairs(node["v"]))

    def _make_odict(self, node):
        out = OrderedDict(self._pairs(node["v"]))
        if "metadata" in node:
            out._metadata = OrderedDict(self._pairs(node["metadata"]))
        return out

    def _make_counter(self, node):
        return Counter(dict(self._pairs(node["v"])))

    def _make_tuple(self, node):
        return tuple(self.decode(node["v"]))

    def _make_list(self, node):
        return self.decode(node["v"])

    def _make_set(self, node):
        return set(self.decode(node["v"]))

    def _make_size(self, node):
        return dtorch.Size(self.decode(node["v"]))

    def _make_float(self, node):
        return float(node["v"])

    def _make_complex(self, node):
        real, imag = self.decode(node["v"])
        return complex(real, imag)

    def _make_bytes(self, node):
        return base64.b64decode(node["v"], validate=True)

    def _make_dtype(self, node):
        dtype = getattr(dtorch, node["v"])
        if not isinstance(dtype, dtorch.dtype):
            self.fail(node)
        return dtype

    def _make_device(self, node):
        return dtorch.device(node["v"])

    def _make_array(self, node):
        return self.decode(node["v"]).numpy()

    def _make_scalar(self, node):
        return self.decode(node["v"]).numpy()[()]


def decode(tree, tensor, what):
    """The nesting that `tree` describes; ``tensor(name)`` gives the file's tensors."""
    return _Decoder(tensor, what).decode(tree)
