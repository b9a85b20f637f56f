"""Sorting, searching, counting. No ties where a gradient is taken."""

import numpy as np

CASES = []
ERRORS = []


def apart(*shape):
    def make(rng):
        n = int(np.prod(shape))
        return ((rng.permutation(n) * 0.13 - n * 0.065).reshape(shape),)

    return make


def case(op, args, ref, grad=2, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, **more))


SHAPE = (5, 7, 3)
NARROW = ("float64", "float32")  # other dtypes round distinct values to equal ones


def sort(x, d, descending=False):
    i = np.argsort(-x if descending else x, d, kind="stable")
    return np.take_along_axis(x, i, d), i


def kth(x, k, d):
    v, i = sort(x, d)
    return np.take(v, k - 1, d), np.take(i, k - 1, d)


for d in (0, 1, 2):
    x = lambda rng, d=d: (*apart(*SHAPE)(rng), d)
    case("sort", x, sort, id=f"dim{d}", dtypes=NARROW)
    case("argsort", x, lambda x, d: sort(x, d)[1], False, id=f"dim{d}", dtypes=NARROW)
    case(
        "topk",
        lambda rng, d=d: (*apart(*SHAPE)(rng), 2, d),
        lambda x, k, d: tuple(np.take(v, range(k), d) for v in sort(x, d, True)),
        id=f"dim{d}",
        dtypes=NARROW,
    )
    case("kthvalue", lambda rng, d=d: (*apart(*SHAPE)(rng), 3, d), kth, id=f"dim{d}", dtypes=NARROW)
    case("median", x, lambda x, d: kth(x, (x.shape[d] - 1) // 2 + 1, d), id=f"dim{d}", dtypes=NARROW)
case("sort", lambda rng: (*apart(3, 700)(rng), 1), sort, True, id="long", kwargs={"descending": True}, dtypes=NARROW)
case("sort", lambda rng: (rng.integers(-5, 5, (4, 90)), 1), sort, False, id="ties")
case("sort", lambda rng: (rng.integers(-5, 5, (4, 90)), 1), sort, False, id="ties_down", kwargs={"descending": True})
case("msort", apart(6, 4), lambda x: np.sort(x, 0), dtypes=NARROW)
case("median", apart(4, 5), lambda x: np.sort(x.ravel())[9])
case("nanmedian", apart(3, 5), np.nanmedian)
case("searchsorted", lambda rng: (np.sort(rng.random(20)), rng.random((4, 6))), np.searchsorted, False, dtypes=NARROW)
case(
    "searchsorted",
    lambda rng: (np.sort(rng.integers(0, 9, 20)), rng.integers(-1, 10, (4, 6))),
    lambda s, v, right: np.searchsorted(s, v, "right"),
    False,
    kwargs={"right": True},
    id="right",
)
case("bucketize", lambda rng: (rng.random((4, 6)), np.array([0.2, 0.5, 0.7])), lambda v, b: np.searchsorted(b, v), False, dtypes=NARROW)
case(
    "histc", lambda rng: (rng.random(50), 7, 0, 1), lambda x, n, lo, hi: np.histogram(x, n, (lo, hi))[0].astype(float), False, dtypes=NARROW
)
case("histc", lambda rng: (rng.random(50), 7), lambda x, n: np.histogram(x, n)[0].astype(float), False, id="own", dtypes=NARROW)
case("bincount", lambda rng: (rng.integers(0, 9, 40),), np.bincount, False)
case(
    "bincount",
    lambda rng: (rng.integers(0, 9, 40), rng.random(40), 12),
    lambda x, w, n: np.bincount(x, w, n),
    False,
    id="weights",
    dtypes=NARROW,
)
case(
    "unique",
    lambda rng: (rng.integers(0, 9, (4, 10)), True, True, True),
    lambda x, *a: np.unique(x, return_inverse=True, return_counts=True),
    False,
)
case("unique", lambda rng: (rng.integers(0, 2, (9, 3)),), lambda x, dim: np.unique(x, axis=dim), False, kwargs={"dim": 0}, id="rows")
case("unique_consecutive", lambda rng: (np.sort(rng.integers(0, 9, 30)),), np.unique, False)
case("isin", lambda rng: (rng.integers(0, 60, (5, 8)), rng.integers(0, 60, 20)), np.isin, False)
case("histogram", lambda rng: (rng.random(50), 6), lambda x, n: np.histogram(x, n), False, dtypes=NARROW)

ERRORS += [
    dict(op="topk", args=lambda rng: (np.zeros(3), 4), error=RuntimeError, match="out of range"),
    dict(op="kthvalue", args=lambda rng: (np.zeros(3), 0), error=RuntimeError, match="out of range"),
    dict(op="bincount", args=lambda rng: (np.array([1, -1]),), error=RuntimeError, match="non-negative"),
    dict(op="searchsorted", args=lambda rng: (np.zeros(3), np.zeros(3)), kwargs={"side": "up"}, error=RuntimeError, match="side"),
    dict(
        op="searchsorted",
        args=lambda rng: (np.zeros(3), np.zeros(3)),
        kwargs={"sorter": np.array([0, 1, 9])},
        error=IndexError,
        match="sorter index 9 out of range",
    ),
]
