"""Methods of Tensor that are written in Python: they are added to the class when the package is imported."""

from __future__ import annotations

import copy as _copy

from dtorch import _C
from dtorch._C import Tensor

_NAMES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16", "ByteTensor": "uint8",
    "CharTensor": "int8", "ShortTensor": "int16", "IntTensor": "int32", "LongTensor": "int64", "BoolTensor": "bool",
}  # fmt: skip


def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """Add the gradients of self to the ``.grad`` of the leaves it was computed from.

    Args:
        gradient: the gradient of self, of its shape; may be left out when self has one element (then 1).
        retain_graph: keep what backward needs, for another backward; as `create_graph` by default.
        create_graph: record the backward pass itself, for higher derivatives.
        inputs: leaves to add gradients to; all by default.
    """
    from dtorch import autograd

    autograd.backward(self, gradient, retain_graph, create_graph, inputs)


def type_(self, dtype=None, non_blocking=False):
    """``x.type()``: the name of x's type, such as 'dtorch.FloatTensor'; ``x.type(dtype)``: x in that dtype."""
    if dtype is None:
        name = str(self.dtype).rpartition(".")[2]
        return "dtorch." + next(k for k, v in _NAMES.items() if v == name)
    if isinstance(dtype, str):
        short = dtype.rpartition(".")[2]
        if short not in _NAMES and not hasattr(_C, short):
            raise ValueError(f"invalid type: {dtype!r}")
        dtype = getattr(_C, _NAMES.get(short, short))
    return self.to(dtype)


def _place(self, shape, kwargs):
    """Where a new tensor of this shape goes: as the caller says, or to self's devices."""
    if kwargs.get("device") is None and kwargs.get("device_mesh") is None:
        kwargs.pop("device", None)
        if self.device_mesh.ndim:
            same = tuple(shape) == tuple(self.shape)
            kwargs["device_mesh"] = self.device_mesh
            kwargs["placements"] = [p if same and not p.is_partial() else _C.Replicate() for p in self.placements]
        else:
            kwargs["device"] = self.device
    if kwargs.get("dtype") is None:
        kwargs["dtype"] = self.dtype
    for name in ("layout", "pin_memory", "memory_format"):
        kwargs.pop(name, None)
    return kwargs


def _shape(size):
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) and hasattr(size[0], "__iter__") else size


def _size(size, kwargs):
    return _shape(size) if size else _shape((kwargs.pop("size"),))


def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
    """A tensor with a copy of `data`, by default of self's dtype and on self's devices."""
    options = _place(self, (-1,), dict(kwargs, dtype=dtype, device=device))
    return _C.tensor(data, requires_grad=requires_grad, **options)


def new_zeros(self, *size, **kwargs):
    """Zeros of self's dtype, on self's devices (as self lies when the shape is the same)."""
    size = _size(size, kwargs)
    return _C._functions["zeros"](size, **_place(self, size, kwargs))


def new_ones(self, *size, **kwargs):
    """Ones of self's dtype, on self's devices."""
    size = _size(size, kwargs)
    return _C._functions["ones"](size, **_place(self, size, kwargs))


def new_empty(self, *size, **kwargs):
    """A tensor of unspecified values of self's dtype, on self's devices."""
    size = _size(size, kwargs)
    return _C._functions["empty"](size, **_place(self, size, kwargs))


def new_full(self, size, fill_value, **kwargs):
    """`fill_value` everywhere, of self's dtype, on self's devices."""
    size = _shape((size,))
    return _C._functions["full"](size, fill_value, **_place(self, size, kwargs))


def copy_(self, src, non_blocking=False):
    """Write the values of `src` (a tensor or number, broadcast, cast and redistributed) into self; returns self."""
    if not isinstance(src, Tensor):
        src = _C.tensor(src, dtype=self.dtype)
    _C._assign(self, src)
    return self


def apply_(self, fn):
    """Replace each element x by fn(x), on the host; waits for the values."""
    flat = [fn(v) for v in self.detach().reshape(-1).tolist()]
    return self.copy_(_C.tensor(flat, dtype=self.dtype).reshape(self.shape))


def map_(self, other, fn):
    """Replace each element x by fn(x, y), y from `other` (broadcast), on the host; waits for the values."""
    ys = other.detach().expand(self.shape).reshape(-1).tolist()
    flat = [fn(x, y) for x, y in zip(self.detach().reshape(-1).tolist(), ys, strict=False)]
    return self.copy_(_C.tensor(flat, dtype=self.dtype).reshape(self.shape))


def _contains(self, value):
    if not isinstance(value, (Tensor, int, float, bool)):
        raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(value)}.")
    return bool((self == value).any().item())


def __format__(self, spec):
    if self.ndim == 0 and type(self) is Tensor:
        return self.item().__format__(spec)
    return object.__format__(self, spec)


def __copy__(self):
    return _like(self, self.detach())


def _like(self, value):
    if type(self) is Tensor:
        return value.requires_grad_(self.requires_grad) if self.requires_grad else value
    return Tensor._make_subclass(type(self), value, self.requires_grad)


def __deepcopy__(self, memo):
    found = memo.get(id(self))
    if found is not None:
        return found
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.")
    new = _like(self, self.detach().clone())
    memo[id(self)] = new
    if self.grad is not None:
        new.grad = self.grad.__deepcopy__(memo)
    for k, v in self.__dict__.items():
        setattr(new, k, _copy.deepcopy(v, memo))
    return new


def __reduce_ex__(self, protocol):
    raise TypeError(
        "tensors are not pickled: pickle runs code when it is read. Use dtorch.save(...) and dtorch.load(...), or safetensors files"
    )


def __dir__(self):
    return sorted(set(dir(type(self))) | set(self.__dict__))


def share_storage(self, other):
    """Do in-place writes to the one reach the other? (set_ has no meaning here; this answers what people compare data_ptr() for.)"""
    return _C._same_storage(self, other)


def set_(self, source):
    """self becomes another handle on the storage of `source`."""
    self.data = source
    return self


def cpu(self, memory_format=None):
    """self on the CPU: what is on CPU devices already, plain or distributed, comes back as it is."""
    return self if self.device.type == "cpu" else self.to("cpu")


def cuda(self, device=None, non_blocking=False, memory_format=None):
    """Raises: there are no CUDA devices yet."""
    raise RuntimeError("no CUDA devices are available: this build drives CPU devices ('cpu', 'cpu:1', …)")


def untyped_storage(self):
    raise NotImplementedError("untyped_storage(): a tensor has no storage that a user could touch; use numpy() or share_storage(other)")


def _names(self):
    return (None,) * self.ndim


def where(self, condition, other):
    """dtorch.where(condition, self, other)."""
    import dtorch

    return dtorch.where(condition, self, other)


def install():
    """Add the methods to the class."""
    here = globals()
    own = [
        "backward", "new_tensor", "new_zeros", "new_ones", "new_empty", "new_full", "copy_", "apply_", "map_", "_contains", "__format__",
        "__copy__", "__deepcopy__", "__reduce_ex__", "__dir__", "share_storage", "set_", "cpu", "cuda", "untyped_storage", "where",
    ]  # fmt: skip
    for name in own:
        setattr(Tensor, name, here[name])
    Tensor.type = type_
    Tensor.storage = untyped_storage
    Tensor.names = property(_names)
    Tensor.__array_priority__ = 1000
