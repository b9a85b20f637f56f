"""Reductions, statistics, norms and scans. Inputs of extremes have no ties, so that finite differences exist."""

import numpy as np
from scipy import special as sp

CASES = []
ERRORS = []


def normal(*shape):
    return lambda rng: (rng.standard_normal(shape),)


def apart(*shape):
    """Values at least 0.1 from each other, and from zero."""

    def make(rng):
        n = int(np.prod(shape))
        return ((rng.permutation(n) * 0.13 - n * 0.065 + 0.041).reshape(shape),)

    return make


def case(op, args, ref, grad=True, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, **more))


def over(fn):
    """A NumPy reduction with PyTorch's argument names."""

    def ref(x, dim=None, keepdim=False):
        return fn(x, axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)

    return ref


SHAPE = (5, 7, 3)
DIMS = [None, 0, 1, -1, [0, 2], [1, 2], [0, 1, 2]]
for i, d in enumerate(DIMS):
    kw = {"dim": d, "keepdim": bool(i % 2)} if d is not None else {}
    name = f"dim{d}".replace(" ", "")
    case("sum", normal(*SHAPE), over(np.sum), 2, kwargs=kw, id=name, ints=True)
    case("mean", normal(*SHAPE), over(np.mean), 2, kwargs=kw, id=name)
    case("nansum", normal(*SHAPE), over(np.nansum), 2, kwargs=kw, id=name)
    case("nanmean", normal(*SHAPE), over(np.nanmean), 2, kwargs=kw, id=name)
    case("amax", apart(*SHAPE), over(np.max), 2, kwargs=kw, id=name, ints=True)
    case("amin", apart(*SHAPE), over(np.min), 2, kwargs=kw, id=name, ints=True)
    case("any", lambda rng: (rng.random(SHAPE) > 0.8,), over(np.any), False, kwargs=kw, id=name)
    case("all", lambda rng: (rng.random(SHAPE) > 0.2,), over(np.all), False, kwargs=kw, id=name)
    case("var", normal(*SHAPE), over(lambda x, axis, keepdims: np.var(x, axis=axis, keepdims=keepdims, ddof=1)), 2, kwargs=kw, id=name)
    case("std", normal(*SHAPE), over(lambda x, axis, keepdims: np.std(x, axis=axis, keepdims=keepdims, ddof=1)), 2, kwargs=kw, id=name)
    if d is not None:
        case("logsumexp", normal(*SHAPE), over(sp.logsumexp), 2, kwargs=kw, id=name)
case("sum", normal(300, 70), lambda x: x.sum(), id="large", tol=4, dtypes=("float64", "float32", "bfloat16"))
case("sum", lambda rng: (rng.standard_normal((0, 3)), 0), lambda x, d: x.sum(d), id="empty")
case("sum", lambda rng: (rng.standard_normal(()),), np.sum, 2, id="scalar")
case("sum", lambda rng: (rng.random((4, 5)) > 0.5, 1), lambda x, d: x.sum(d), False, id="bool")
case("count_nonzero", lambda rng: (np.rint(rng.standard_normal(SHAPE)),), np.count_nonzero, False, ints=True)
case("count_nonzero", lambda rng: (np.rint(rng.standard_normal(SHAPE)), 1), np.count_nonzero, False, id="dim")
case("prod", normal(4, 5), np.prod, 2)
case("prod", lambda rng: (rng.standard_normal(SHAPE), 1), lambda x, d: np.prod(x, d), 2, id="dim")
case(
    "prod",
    lambda rng: (rng.standard_normal(SHAPE) * (rng.random(SHAPE) > 0.2), -1, True),
    lambda x, d, k: np.prod(x, d, keepdims=k),
    id="zeros",
)


def with_index(value, index):
    def ref(x, d, keepdim=False):
        i = index(x, d)
        v = np.take_along_axis(x, np.expand_dims(i, d), d)
        return (v, np.expand_dims(i, d)) if keepdim else (v.squeeze(d), i)

    return ref


for d in (0, 1, 2):
    case("max", lambda rng, d=d: (*apart(*SHAPE)(rng), d), with_index(np.max, np.argmax), 2, id=f"dim{d}")
    case("min", lambda rng, d=d: (*apart(*SHAPE)(rng), d, True), with_index(np.min, np.argmin), 2, id=f"dim{d}")
    case("argmax", lambda rng, d=d: (*normal(*SHAPE)(rng), d), np.argmax, False, id=f"dim{d}", ints=True)
    case("argmin", lambda rng, d=d: (*normal(*SHAPE)(rng), d), np.argmin, False, id=f"dim{d}", ints=True)
case("argmax", normal(*SHAPE), np.argmax, False)
case("argmax", lambda rng: (rng.standard_normal((40, 700)), 1), np.argmax, False, id="long", dtypes=("float64", "float32"))
case("max", apart(*SHAPE), np.max, 2)
case("min", apart(*SHAPE), np.min, 2)
case("max", lambda rng: (*apart(4, 6)(rng), *apart(6)(rng)), np.maximum, id="other", dtypes=("float64", "float32"))
case("aminmax", apart(*SHAPE), lambda x: (x.min(), x.max()))
case("aminmax", apart(*SHAPE), lambda x, dim: (x.min(dim), x.max(dim)), kwargs={"dim": 1}, id="dim")

case(
    "var", normal(6, 5), lambda x, dim, correction: np.var(x, dim, ddof=correction), 2, kwargs={"dim": 1, "correction": 2}, id="correction"
)
case("var_mean", normal(6, 5), lambda x, dim: (np.var(x, dim, ddof=1), np.mean(x, dim)), 2, kwargs={"dim": 0})
case("std_mean", normal(6, 5), lambda x, dim: (np.std(x, dim, ddof=1), np.mean(x, dim)), 2, kwargs={"dim": 0})
case("std", lambda rng: (rng.standard_normal((6, 5)), False), lambda x, u: np.std(x), 2, id="biased")


def p_norm(x, p=2, dim=None, keepdim=False):
    x = np.abs(x)
    if p == np.inf:
        return x.max(dim, keepdims=keepdim)
    if p == -np.inf:
        return x.min(dim, keepdims=keepdim)
    if p == 0:
        return (x != 0).sum(dim, keepdims=keepdim).astype(float)
    return (x**p).sum(dim, keepdims=keepdim) ** (1 / p)


for p in (2, 1, 3, 2.5, 0.5, -1, -2, np.inf, -np.inf):
    case("norm", apart(4, 5), p_norm, 2, kwargs={"p": p}, id=f"p{p}", dtypes=("float64", "float32"))
    case(
        "linalg.vector_norm",
        lambda rng, p=p: (*apart(4, 5)(rng), p),
        p_norm,
        True,
        kwargs={"dim": 1, "keepdim": True},
        id=f"p{p}",
        dtypes=("float64", "float32"),
    )
case("norm", apart(4, 5), lambda x, p: (x != 0).sum().astype(float), kwargs={"p": 0}, id="p0")
case("dist", lambda rng: (*apart(4, 5)(rng), rng.random((4, 5)), 3), lambda a, b, p: p_norm(a - b, p), 2)
case(
    "cdist",
    lambda rng: (rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 5, 3))),
    lambda a, b: p_norm(a[:, :, None] - b[:, None], 2, -1),
    2,
    dtypes=("float64", "float32"),
)
case("renorm", lambda rng: (rng.standard_normal((4, 5)), 2, 0, 1.5), None)
case("cov", normal(3, 8), np.cov, 2, dtypes=("float64", "float32"))
case("corrcoef", normal(3, 8), np.corrcoef, True, dtypes=("float64", "float32"))
case("trapezoid", normal(4, 6), lambda y: np.trapezoid(y) if hasattr(np, "trapezoid") else np.trapz(y), 2)
case("quantile", lambda rng: (*apart(4, 9)(rng), 0.3, 1), lambda x, q, d: np.quantile(x, q, d), dtypes=("float64", "float32"))
case("nanquantile", lambda rng: (*apart(4, 9)(rng), 0.3, 1), lambda x, q, d: np.nanquantile(x, q, d), dtypes=("float64", "float32"))

# -- scans --
for d in (0, 1, 2):
    case("cumsum", lambda rng, d=d: (*normal(*SHAPE)(rng), d), np.cumsum, 2, id=f"dim{d}", ints=d == 0, tol=2)
    case("cumprod", lambda rng, d=d: (*normal(*SHAPE)(rng), d), np.cumprod, 2, id=f"dim{d}", tol=2)
    case("logcumsumexp", lambda rng, d=d: (*normal(*SHAPE)(rng), d), lambda x, d: np.log(np.cumsum(np.exp(x), d)), 2, id=f"dim{d}")
    case("cummax", lambda rng, d=d: (*apart(*SHAPE)(rng), d), None, 2, id=f"dim{d}")
    case("cummin", lambda rng, d=d: (*apart(*SHAPE)(rng), d), None, 2, id=f"dim{d}")
case("cumprod", lambda rng: (rng.standard_normal(SHAPE) * (rng.random(SHAPE) > 0.3), 1), np.cumprod, id="zeros")
case("cumsum", lambda rng: (rng.standard_normal((3, 1500)), 1), np.cumsum, id="long", tol=4, dtypes=("float64", "float32"))

case("all", lambda rng: (np.zeros((0, 3), np.uint8), 0), lambda x, d: np.ones(3, np.uint8), False, id="empty_bytes")

ERRORS += [
    dict(op="max", args=lambda rng: (np.zeros(0),), error=RuntimeError, match="numel"),
    dict(op="sum", args=lambda rng: (np.zeros((2, 3)), 2), error=IndexError, match="out of range"),
    dict(op="sum", args=lambda rng: (np.zeros((2, 3)), (0, 0)), error=RuntimeError, match="multiple times"),
    dict(op="mean", args=lambda rng: (np.arange(3),), error=RuntimeError, match="floating point"),
    dict(op="amax", args=lambda rng: (np.zeros((0, 3)), 0), error=IndexError, match="non-zero size"),
    dict(op="argmax", args=lambda rng: (np.zeros(0),), error=IndexError, match="numel"),
    dict(op="var", args=lambda rng: (np.arange(3),), error=RuntimeError, match="floating point"),
    dict(op="quantile", args=lambda rng: (np.zeros(3), 1.5), error=RuntimeError, match="range"),
]
