"""Functions that are no operators: questions about tensors, and thin forms of operators that take their arguments differently."""

from __future__ import annotations

from dtorch import _C
from dtorch._C import Tensor

_F = _C._functions

__all__ = [
    "allclose", "as_tensor", "asarray", "broadcast_shapes", "compile", "equal", "gradient", "is_complex", "is_floating_point", "is_inference",
    "is_nonzero", "is_same_size", "is_signed", "is_storage", "is_tensor", "native_group_norm", "numel", "scalar_tensor", "sym_int",
    "tensordot", "typename",
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


# ---- norms ----------------------------------------------------------------------------------------------------------------------------------


def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    """group_norm of input (N, C, …), and, without gradient, the mean and reciprocal standard deviation (N, group) that it used.

    HxW is the number of elements of a channel. RuntimeError if the sizes do not fit input.
    """
    if input.numel() != N * C * HxW or group < 1 or C % group:
        raise RuntimeError(
            f"native_group_norm: input {tuple(input.shape)} does not have N={N} times C={C} times HxW={HxW} elements in {group} groups of channels"
        )
    x = input.reshape(N, group, C // group * HxW)
    y, mean, rstd = _F["native_layer_norm"](x, x.shape[2:], None, None, eps)
    y, channels = y.reshape(input.shape), [1, C] + [1] * (input.dim() - 2)
    y = y if weight is None else y * weight.reshape(channels)
    y = y if bias is None else y + bias.reshape(channels)
    return y, mean.detach().reshape(N, group), rstd.detach().reshape(N, group)


# ---- differences ---------------------------------------------------------------------------------------------------------------------------


def gradient(input, *, spacing=1, dim=None, edge_order=1):
    """Estimates of the derivatives of a function from its samples: central differences of second order inside, one-sided ones at the edges.

    Args:
        input: the samples; along `dim` at least edge_order + 1 of them.
        spacing: the distance between samples, for all dimensions; or a sequence with one distance, or one 1-D tensor of coordinates, a dimension.
        dim: an int or a sequence of them; all dimensions if left out.
        edge_order: 1 or 2: the order of the differences at the edges.

    Returns a tuple of tensors like input, one for each dimension of `dim`. RuntimeError for sizes and arguments that do not fit.
    """
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    if dim is None:
        dims = list(range(input.dim()))
    else:
        for d in [dim] if isinstance(dim, int) else dim:
            if not -input.dim() <= d < input.dim():
                raise IndexError(f"Dimension out of range (expected to be in range of [-{input.dim()}, {input.dim() - 1}], but got {d})")
        dims = [d % input.dim() for d in ([dim] if isinstance(dim, int) else dim)]
    for i, d in enumerate(dims):
        if d in dims[:i]:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    spacing = list(spacing) if isinstance(spacing, (tuple, list)) else [1 if spacing is None else spacing] * len(dims)
    if len(spacing) != len(dims):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar or it's spacing and dim arguments to have the same length, but got a spacing "
            f"argument of length {len(spacing)} and a dim argument of length {len(dims)}."
        )
    if any(input.shape[d] < edge_order + 1 for d in dims):
        raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    x = input if input.is_floating_point() else input.to(_C.get_default_dtype())
    return tuple(_differences(x, d, h, edge_order) for d, h in zip(dims, spacing, strict=True))


def _differences(x, d, spacing, edge_order):
    """The derivative along one dimension."""
    n = x.shape[d]
    if isinstance(spacing, Tensor) and spacing.dim() == 1:
        if spacing.shape[0] != n:
            raise RuntimeError(
                f"torch.gradient expected each spacing tensor to have as many coordinates as input has samples: {spacing.shape[0]} for {n} along "
                f"dimension {d}"
            )
        steps = (spacing[1:] - spacing[:-1]).to(x.dtype).reshape([-1] + [1] * (x.dim() - 1 - d))
        step = lambda lo, hi: steps[lo:hi]  # noqa: E731
    else:
        step = lambda lo, hi: spacing  # noqa: E731
    at = lambda lo, length: x.narrow(d, lo, length)  # noqa: E731
    slope = (at(1, n - 1) - at(0, n - 1)) / step(0, n - 1)  # between neighbours
    part = lambda lo, length: slope.narrow(d, lo, length)  # noqa: E731
    first, last = part(0, 1), part(n - 2, 1)
    if edge_order == 2:  # the parabola through the three outermost samples
        a, b = step(0, 1), step(1, 2)
        y, z = step(n - 3, n - 2), step(n - 2, n - 1)
        first = first + (first - part(1, 1)) * (a / (a + b))
        last = last + (last - part(n - 3, 1)) * (z / (y + z))
    if n == 2:
        return _F["cat"]([first, last], d)
    a, b = step(0, n - 2), step(1, n - 1)
    inner = (part(0, n - 2) * b + part(1, n - 2) * a) / (a + b)
    return _F["cat"]([first, inner, last], d)


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
