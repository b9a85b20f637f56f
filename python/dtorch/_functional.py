"""Functions that are no operators: questions about tensors, and thin forms of operators that take their arguments differently."""

from __future__ import annotations

from dtorch import _C
from dtorch._C import Tensor

_F = _C._functions

__all__ = [
    "allclose", "as_tensor", "asarray", "broadcast_shapes", "compile", "equal", "is_complex", "is_floating_point", "is_inference",
    "is_nonzero", "is_same_size", "is_signed", "is_storage", "is_tensor", "numel", "scalar_tensor", "sym_int", "tensordot", "typename",
]  # fmt: skip


def is_tensor(obj):
    """Is it a Tensor?"""
    return isinstance(obj, Tensor)


def is_storage(obj):
    """False: there are no storage objects."""
    return False


def is_floating_point(input):
    """Is the dtype of `input` a floating-point type?"""
    return input.is_floating_point()


def is_complex(input):
    """Is the dtype of `input` complex?"""
    return input.is_complex()


def is_signed(input):
    """Can the dtype of `input` hold negative values?"""
    return input.is_signed()


def is_inference(input):
    """Was `input` made in inference mode?"""
    return input.is_inference()


def is_nonzero(input):
    """Is the only element of `input` different from zero? Waits."""
    if input.numel() != 1:
        raise RuntimeError(f"Boolean value of Tensor with {'no values' if input.numel() == 0 else 'more than one value'} is ambiguous")
    return bool(input)


def is_same_size(input, other):
    """Do the shapes agree?"""
    return input.shape == other.shape


def tensordot(a, b, dims=2):
    """Sum of products over pairs of dimensions: the last `dims` of `a` with the first of `b`, or those that two lists name."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.dim(), b.dim()):
            raise RuntimeError(f"tensordot expects dims >= 0 and at most the tensors' dimensions, but got dims={dims}")
        pairs = (list(range(a.dim() - dims, a.dim())), list(range(dims)))
    else:
        pairs = tuple([d] if isinstance(d, int) else list(d) for d in dims)
        if len(pairs) != 2:
            raise RuntimeError(f"tensordot expects dims to be an int or two lists, but got {dims}")
    return _C._ops._tensordot(a, b, *pairs)


def numel(input):
    """The number of elements."""
    return input.numel()


def sym_int(a):
    """int(a)."""
    return int(a)


def typename(obj):
    """The name of a tensor's type ('dtorch.FloatTensor') or of any object's class."""
    if isinstance(obj, Tensor):
        return obj.type()
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def equal(input, other):
    """Have both the same shape and the same elements? Waits."""
    if input.shape != other.shape:
        return False
    return bool((input == other).all().item())


def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Is ``abs(input - other) <= atol + rtol * abs(other)`` everywhere? Waits."""
    if input.dtype != other.dtype:
        raise RuntimeError(f"{str(input.dtype).rpartition('.')[2]} did not match {str(other.dtype).rpartition('.')[2]}")
    return bool(_F["isclose"](input, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all().item())


def as_tensor(data, dtype=None, device=None):
    """`data` itself if it is a tensor of that dtype and device, or a tensor with a copy of it."""
    if isinstance(data, Tensor):
        return data if dtype is None and device is None else data.to(dtype=dtype, device=device)
    return _C.tensor(data, dtype=dtype, device=device)


def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=False):
    """A tensor of an array, sequence, number, buffer, DLPack object or tensor."""
    if isinstance(obj, Tensor):
        out = obj.to(dtype=dtype, device=device, copy=bool(copy))
    elif hasattr(obj, "__dlpack__") and not hasattr(obj, "__array_interface__"):
        out = _C.from_dlpack(obj)
        out = out if dtype is None else out.to(dtype)
    else:
        out = _C.tensor(obj, dtype=dtype, device=device)
    return out.requires_grad_() if requires_grad else out


def scalar_tensor(s, *, dtype=None, device=None, requires_grad=False, **ignored):
    """A 0-dim tensor of a number, in the default dtype unless `dtype` says otherwise."""
    return _C.tensor(s, dtype=_C.get_default_dtype() if dtype is None else dtype, device=device, requires_grad=requires_grad)


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes (or ints) broadcast to."""
    shapes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    out = [1] * max((len(s) for s in shapes), default=0)
    for shape in shapes:
        for i, n in enumerate(reversed(shape), 1):
            if n < 0:
                raise RuntimeError(f"Trying to create tensor with negative dimension ({n}): ({n})")
            if n != 1 and out[-i] not in (1, n):
                raise RuntimeError("Shape mismatch: objects cannot be broadcast to a single shape")
            out[-i] = n if n != 1 else out[-i]
    return _C.Size(out)


def sum_to_size(self, *size):
    """self summed over the dimensions that would have to be broadcast to go from `size` to self's shape."""
    size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    extra = self.ndim - len(size)
    fits = extra >= 0 and all(n in (1, m) for n, m in zip(size, self.shape[extra:], strict=True))
    if not fits:
        raise RuntimeError(f"size {{{list(size)}}} is not expandable to size {{{list(self.shape)}}}.")
    dims = list(range(extra)) + [extra + i for i, n in enumerate(size) if n == 1 and self.shape[extra + i] != 1]
    out = self.sum(dims, keepdim=True) if dims else self
    return out.reshape(size) if extra else out


def compile(model=None, **options):
    """Returns `model` as it is: there is nothing to compile, and nothing to wait for."""
    return (lambda fn: fn) if model is None else model


# ---- operators whose PyTorch form takes its tensors one by one --------------------------------------------------------------------------


def _spread(tensors):
    return list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)


def einsum(equation, *operands):
    """Sums of products by Einstein's convention, such as ``einsum("bij,bjk->bik", x, y)``; also ``einsum(x, [0, 1], y, [1, 2], [0, 2])``."""
    if isinstance(equation, Tensor):
        equation, operands = _sublists((equation, *operands))
    return _F["einsum"](equation, _spread(operands))


def _sublists(items):
    """Interleaved operands and lists of dimension numbers → an equation and the operands."""

    def letters(dims):
        return "".join("..." if d is Ellipsis else chr(ord("A" if d < 26 else "a") + d % 26) for d in dims)

    n = len(items) // 2
    left = ",".join(letters(items[2 * i + 1]) for i in range(n))
    out = "->" + letters(items[-1]) if len(items) % 2 else ""
    return left + out, [items[2 * i] for i in range(n)]


def install(target):
    """Put what is here into the package."""
    for name in __all__:
        target[name] = globals()[name]
    if "einsum" in _F:
        target["einsum"] = einsum
    Tensor.equal = equal
    Tensor.allclose = allclose
    Tensor.is_nonzero = is_nonzero
    Tensor.is_same_size = is_same_size
    Tensor.sum_to_size = sum_to_size
    Tensor.__rdiv__ = Tensor.__rtruediv__
