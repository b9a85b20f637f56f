"""Compositions that are easier said in Python: quantiles, covariance, unique values, histograms, distances, matrix norms.

`FUNCTIONS` become names of the package, `METHODS` names of Tensor, `LINALG` names of dtorch.linalg.
"""

from __future__ import annotations

import collections
import math

import dtorch
from dtorch import _C
from dtorch._modes import in_float32

_F = _C._functions
_O = _C._ops
Tensor = _C.Tensor
builtins_range = range  # a parameter has that name

Histogram = collections.namedtuple("histogram", ["hist", "bin_edges"])
HistogramDD = collections.namedtuple("histogramdd", ["hist", "bin_edges"])


def _whole(x):
    """`x` as a plain tensor: what depends on all values at once is computed on one device."""
    return x.full_tensor() if isinstance(x, Tensor) and x.device_mesh.ndim else x


# ---- quantiles ----------------------------------------------------------------------------------------------------------------------------


def _interpolate(ordered, ranks, interpolation):
    """Elements of `ordered` (..., n) at fractional `ranks` (..., k)."""
    if interpolation == "nearest":
        return ordered.gather(-1, ranks.round().to(dtorch.int64))
    low = ordered.gather(-1, ranks.floor().to(dtorch.int64))
    if interpolation == "lower":
        return low
    high = ordered.gather(-1, ranks.ceil().to(dtorch.int64))
    if interpolation == "higher":
        return high
    weight = 0.5 if interpolation == "midpoint" else ranks - ranks.floor()
    return low + (high - low) * weight


def _quantile(name, input, q, dim, keepdim, interpolation, ignore_nan):
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {interpolation}")
    if input.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if not input.is_floating_point():
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype, got {input.dtype}")
    many = isinstance(q, Tensor) and q.ndim == 1
    if isinstance(q, Tensor):
        if q.ndim > 1:
            raise RuntimeError(f"{name}() q must be a scalar or 1D tensor, got {q.ndim} dimensions")
        if q.dtype != input.dtype:
            raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor: {q.dtype} is not {input.dtype}")
        q = q.reshape(-1)
    elif not 0 <= q <= 1:
        raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
    nd = input.ndim
    x = input.reshape(-1) if dim is None else input.movedim(dim, -1) if nd else input.reshape(1)
    ordered = x.sort(-1).values
    nan = x.isnan()
    if ignore_nan:
        last = (nan.logical_not().sum(-1, keepdim=True) - 1).clamp(min=0).to(x.dtype)
        ranks = last * q
    else:
        last = dtorch.zeros_like(ordered[..., :1]) + float(x.shape[-1] - 1)
        ranks = dtorch.where(nan.any(-1, keepdim=True), last, last * q)
    out = _interpolate(ordered, ranks.detach(), interpolation)
    if keepdim:
        out = out.reshape([1] * nd + [-1]) if dim is None else out.unsqueeze(dim if dim >= 0 else dim + nd) if nd else out
    return out.movedim(-1, 0) if many else out.squeeze(-1)


@in_float32
def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """The `q`-th quantiles of each row of `input` along `dim` (of all elements if None); NaN where the row holds a NaN.

    Args:
        q: a number in [0, 1] or a 1-D tensor of them; a tensor puts a dimension in front of the result.
        interpolation: "linear", "lower", "higher", "midpoint" or "nearest", where a rank falls between two elements.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@in_float32
def nanquantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """As :func:`quantile`, of what is not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


# ---- covariance ---------------------------------------------------------------------------------------------------------------------------


def cov(input, *, correction=1, fweights=None, aweights=None):
    """The covariance matrix of variables (rows) observed together (columns).

    Args:
        input: (variables, observations) or (observations).
        correction: subtracted from the number of observations in the divisor.
        fweights: (observations) integers, how often each was seen.
        aweights: (observations) relative importance of each.
    """
    if input.ndim > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    count = x.shape[1]
    weight = fweights
    if aweights is not None:
        weight = aweights if fweights is None else fweights * aweights
    if weight is None:
        centred = x - x.mean(1, keepdim=True)
        return ((centred @ centred.t()) / max(count - correction, 0.0)).squeeze()
    total = weight.sum()
    centred = x - ((x * weight).sum(1, keepdim=True) / total)
    if aweights is None or correction == 0:
        divisor = total - correction
    else:
        divisor = total - correction * (weight * aweights).sum() / total
    divisor = divisor.to(x.dtype).clamp(min=0)
    return (((centred * weight) @ centred.t()) / divisor).squeeze()


def corrcoef(input):
    """The correlation matrix (Pearson) of variables (rows) observed together (columns)."""
    if input.ndim > 2:
        raise RuntimeError(f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions")
    c = cov(input)
    if c.ndim == 0:
        return c / c
    std = c.diagonal().sqrt()
    return (c / std.unsqueeze(1) / std.unsqueeze(0)).clamp(-1, 1)


# ---- integration --------------------------------------------------------------------------------------------------------------------------


def _trapezoids(name, y, x, dx, dim):
    """The areas between neighbours along `dim`."""
    if x is not None and dx is not None:
        raise TypeError(f"{name}(): x and dx exclude each other")
    n = y.shape[dim]
    left, right = y.narrow(dim, 0, max(n - 1, 0)), y.narrow(dim, min(n, 1), max(n - 1, 0))
    if x is None:
        return (left + right) * ((1 if dx is None else dx) / 2)
    if x.ndim == 1 and y.ndim > 1:
        x = x.reshape([-1 if i == dim % y.ndim else 1 for i in range(y.ndim)])
    along = dim if dim < 0 else dim - y.ndim
    return (x.narrow(along, 1, n - 1) - x.narrow(along, 0, n - 1)) * (left + right) / 2.0


def trapezoid(y, x=None, *, dx=None, dim=-1):
    """The integral of `y` along `dim` by the trapezoidal rule, at points `x` or `dx` (1) apart."""
    return _trapezoids("trapezoid", y, x, dx, dim).sum(dim)


def cumulative_trapezoid(y, x=None, *, dx=None, dim=-1):
    """The running integral of `y` along `dim` by the trapezoidal rule; one element fewer along `dim`."""
    return _trapezoids("cumulative_trapezoid", y, x, dx, dim).cumsum(dim)


# ---- norms and distances ------------------------------------------------------------------------------------------------------------------


@in_float32
def renorm(input, p, dim, maxnorm):
    """`input` with every slice along `dim` whose p-norm exceeds `maxnorm` scaled down to it."""
    if p <= 0:
        raise RuntimeError(f"renorm: non-positive-norm not supported, got p={p}")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    others = [i for i in range(input.ndim) if i != dim % input.ndim]
    norm = _F["norm"](input, p, others, True)
    return input * dtorch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


@in_float32
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    """The p-norm distances between rows: (..., n, d) and (..., m, d) give (..., n, m)."""
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    if compute_mode not in (None, *modes):
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"cdist: X1 and X2 must be matrices with the same number of columns, got {tuple(x1.shape)} and {tuple(x2.shape)}"
        )
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values, got {p}")
    large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and (compute_mode == modes[1] or (compute_mode != modes[2] and large)):
        square = (x1 * x1).sum(-1, keepdim=True) + (x2 * x2).sum(-1).unsqueeze(-2) - 2.0 * (x1 @ x2.transpose(-1, -2))
        square = dtorch.where(square > 1e-30, square, 0.0)
        zero = square == 0
        return dtorch.where(zero, 0.0, dtorch.where(zero, 1.0, square).sqrt())
    return _F["norm"](x1.unsqueeze(-2) - x2.unsqueeze(-3), p, [-1])


def _singular_values(A, dim, reduce):
    """reduce(singular values) of the matrices that dimensions `dim` span."""
    rows, columns = (d % A.ndim for d in dim)
    return reduce(dtorch.linalg.svdvals(A.movedim((rows, columns), (-2, -1))), -1)


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """The matrix norm of order "fro", "nuc", inf, -inf, 1, -1, 2 or -2 over the two dimensions `dim`."""
    if dtype is not None:
        A = A.to(dtype)
    dim = tuple(dim)
    if A.ndim < 2:
        raise RuntimeError(f"linalg.matrix_norm: The input tensor A must have at least 2 dimensions, got {A.ndim}.")
    if len(dim) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {dim}")
    if dim[0] % A.ndim == dim[1] % A.ndim:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got {dim}")
    if ord == "fro":
        out = _F["norm"](A, 2, dim)
    elif ord == "nuc":
        out = _singular_values(A, dim, _F["sum"])
    elif ord in (2, -2):
        out = _singular_values(A, dim, _F["amax"] if ord > 0 else _F["amin"])
    elif ord in (1, -1, math.inf, -math.inf):
        first, second = (d % A.ndim for d in (dim if abs(ord) == 1 else dim[::-1]))
        sums = A.abs().sum(first, keepdim=True)
        out = (sums.amax if ord > 0 else sums.amin)((first, second))
    else:
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    if keepdim:
        for d in sorted(d % A.ndim for d in dim):
            out = out.unsqueeze(d)
    return out


def linalg_norm(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    """A vector norm (`dim` an int, or `ord` None or a 1-D `A`) or a matrix norm (`dim` a pair, or a 2-D `A`) of order `ord`."""
    if dim is not None and not isinstance(dim, int) and len(dim) == 1:
        dim = dim[0]
    if isinstance(ord, str) or (ord is not None and (dim is not None and not isinstance(dim, int) or (dim is None and A.ndim == 2))):
        if dim is None and A.ndim != 2:
            raise RuntimeError(f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D.")
        if isinstance(dim, int):
            raise RuntimeError(f"linalg.norm: order {ord!r} needs two dimensions, got dim={dim}")
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    if ord is not None and dim is None and A.ndim > 2:
        raise RuntimeError(f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D.")
    return _F["_linalg_vector_norm"](A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


# ---- unique values ------------------------------------------------------------------------------------------------------------------------


def _row_order(rows):
    """The order that sorts the rows (n, m) lexicographically."""
    order = dtorch.arange(rows.shape[0], device=rows.device)
    for column in reversed(range(rows.shape[1])):
        order = order[rows[:, column][order].argsort(stable=True)]
    return order


def _groups(ordered, order, shape, return_inverse, return_counts):
    """Of rows (n, ...) in which equal ones are neighbours: the first of each, where each element's group is, how many there are."""
    n = ordered.shape[0]
    if n:
        new = ordered[1:] != ordered[:-1]
        new = new.reshape(n - 1, math.prod(new.shape[1:])).any(1)
        first = dtorch.cat([dtorch.ones(1, dtype=dtorch.bool, device=new.device), new])
    else:
        first = dtorch.zeros(0, dtype=dtorch.bool, device=ordered.device)
    out = [ordered[first]]
    if return_inverse:
        group = first.to(dtorch.int64).cumsum(0) - 1
        if order is not None and n:
            group = dtorch.zeros_like(group).scatter(0, order, group)
        out.append(group.reshape(shape))
    if return_counts:
        at = first.nonzero().reshape(-1)
        out.append(dtorch.cat([at[1:], dtorch.full((min(n, 1),), n, dtype=dtorch.int64, device=at.device)]) - at)
    return out


def _unique(name, input, sort, return_inverse, return_counts, dim):
    input = _whole(input)
    if dim is None:
        flat, order, shape = input.reshape(-1), None, input.shape
        if sort:
            flat, order = flat.sort()
        out = _groups(flat, order, shape, return_inverse, return_counts)
    else:
        if input.numel() == 0 and any(s == 0 for i, s in enumerate(input.shape) if i != dim % input.ndim) and input.shape[dim]:
            raise RuntimeError(f"{name}: There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        rows, order = input.movedim(dim, 0), None
        if sort and rows.shape[0]:
            order = _row_order(rows.reshape(rows.shape[0], -1))
            rows = rows[order]
        out = _groups(rows, order, (rows.shape[0],), return_inverse, return_counts)
        out[0] = out[0].movedim(0, dim)
    return out[0] if len(out) == 1 else tuple(out)


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The different elements of `input`, or its different slices along `dim`, in order. Waits: the size depends on the values.

    Returns:
        the values; with `return_inverse` also where each element's value stands among them; with `return_counts` also how often each occurs.
    """
    return _unique("unique", input, True, return_inverse, return_counts, dim)


def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """As :func:`unique`, but only equal neighbours are merged and nothing is sorted."""
    return _unique("unique_consecutive", input, False, return_inverse, return_counts, dim)


def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Is each of `elements` among `test_elements`? Either may be a number."""
    if not isinstance(elements, Tensor):
        elements = dtorch.tensor(elements, device=test_elements.device if isinstance(test_elements, Tensor) else None)
    if not isinstance(test_elements, Tensor):
        found = elements == test_elements
    else:
        test = test_elements.reshape(-1)
        if test.numel() == 0:
            found = dtorch.zeros_like(elements, dtype=dtorch.bool)
        elif test.numel() <= 16:
            found = (elements.unsqueeze(-1) == test).any(-1)
        else:
            test = test.sort().values
            at = dtorch.searchsorted(test, elements).clamp(max=test.numel() - 1)
            found = test[at] == elements
    return found.logical_not() if invert else found


# ---- histograms ---------------------------------------------------------------------------------------------------------------------------


def _edges(name, x, bins, low, high):
    """Bin edges: those given, or `bins` equal ones over [low, high] (the data's own range if that is None)."""
    if isinstance(bins, Tensor):
        return bins
    if low is None:
        low, high = (float(x.min()), float(x.max())) if x.numel() else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"{name}: range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"{name}: min should not exceed max, but got min {low} max {high}")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return dtorch.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


def _bins(x, edges):
    """The bin of each element (the last one is closed), and whether it has one."""
    n = edges.numel() - 1
    at = dtorch.searchsorted(edges, x.contiguous(), right=True) - 1
    at = dtorch.where(x == edges[-1], n - 1, at)
    return at.clamp(0, n - 1), (x >= edges[0]) & (x <= edges[-1])


def _count(at, inside, weight, bins, dtype):
    weight = inside.to(dtype) if weight is None else dtorch.where(inside, weight.reshape(-1), 0.0).to(dtype)
    return _O._bincount(at, weight, bins)


def histogram(input, bins, *, range=None, weight=None, density=False):
    """How many elements fall between neighbouring edges. `bins`: how many bins, or their edges. Returns (hist, bin_edges)."""
    x, bins, weight = _whole(input).reshape(-1), _whole(bins), _whole(weight)
    edges = _edges("histogram", x, bins, *(range or (None, None)))
    at, inside = _bins(x, edges)
    hist = _count(at, inside, weight, edges.numel() - 1, x.dtype)
    if density:
        hist = hist / (hist.sum() * (edges[1:] - edges[:-1]))
    return Histogram(hist, edges)


def histogramdd(input, bins, *, range=None, weight=None, density=False):
    """The histogram of points (..., d) in d dimensions. `bins`: a number, one per dimension, or edges per dimension. Returns (hist, bin_edges)."""
    input, weight = _whole(input), _whole(weight)
    d = input.shape[-1]
    points = input.reshape(-1, d)
    bins = [bins] * d if isinstance(bins, int) else [_whole(b) for b in bins]
    if len(bins) != d:
        raise RuntimeError(f"histogramdd: expected {d} sequences of bin edges or numbers of bins, got {len(bins)}")
    edges, flat, inside = [], None, None
    for i, b in enumerate(bins):
        x = points[:, i]
        edges.append(_edges("histogramdd", x, b, *((range[2 * i], range[2 * i + 1]) if range else (None, None))))
        at, ok = _bins(x, edges[i])
        flat = at if flat is None else flat * (edges[i].numel() - 1) + at
        inside = ok if inside is None else inside & ok
    shape = [e.numel() - 1 for e in edges]
    hist = _count(flat, inside, weight, math.prod(shape), points.dtype).reshape(shape)
    if density:
        hist = hist / hist.sum()
        for i, e in enumerate(edges):
            hist = hist / (e[1:] - e[:-1]).reshape([-1 if k == i else 1 for k in builtins_range(d)])
    return HistogramDD(hist, tuple(edges))


# ---- batch norm with its statistics -------------------------------------------------------------------------------------------------------


def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """batch_norm with the statistics it used: (output, mean, 1 / sqrt(var + eps)); the latter are empty unless `training`."""
    out = _C._nn.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        empty = dtorch.zeros(0, dtype=input.dtype, device=input.device)
        return out, empty, empty
    dims = [0, *builtins_range(2, input.ndim)]
    var, mean = _F["var_mean"](input.detach(), dims, correction=0)
    return out, mean, (var + eps).rsqrt()


FUNCTIONS = {
    f.__name__: f
    for f in (
        quantile, nanquantile, cov, corrcoef, trapezoid, cumulative_trapezoid, renorm, cdist, unique, unique_consecutive, isin, histogram,
        histogramdd, native_batch_norm,
    )
}  # fmt: skip
FUNCTIONS["trapz"] = trapezoid
METHODS = {
    name: FUNCTIONS[name] for name in ("quantile", "nanquantile", "cov", "corrcoef", "renorm", "unique", "unique_consecutive", "histogram")
}
LINALG = {"matrix_norm": matrix_norm, "norm": linalg_norm}
