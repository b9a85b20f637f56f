"""Indexing by tensors: index_select, gather, scatter, masks, embedding. Indices are drawn so that every one is legal, repeats included."""

import numpy as np

CASES = []
ERRORS = []


def case(op, args, ref, grad=2, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, **more))


def error(op, args, kind, match, **kwargs):
    ERRORS.append(dict(op=op, args=args, kwargs=kwargs, error=kind, match=match))


def index(rng, high, *shape):
    return rng.integers(0, high, shape)


def distinct(rng, high, n):
    return rng.permutation(high)[:n]


# ---- along one dimension
case("index_select", lambda rng: (rng.standard_normal((5, 4)), 0, index(rng, 5, 7)), lambda x, d, i: x[i], exact=True, ints=True)
case("index_select", lambda rng: (rng.standard_normal((3, 6)), -1, index(rng, 6, 4)), lambda x, d, i: x[:, i], exact=True, id="last")
case("index_select", lambda rng: (rng.standard_normal((3, 6, 2)), 1, index(rng, 6, 0)), lambda x, d, i: x[:, i], exact=True, id="empty")


def added(x, d, i, v, alpha=1):
    y = np.moveaxis(x.copy(), d, 0)
    np.add.at(y, i, alpha * np.moveaxis(v, d, 0))
    return np.moveaxis(y, 0, d)


case("index_add", lambda rng: (rng.standard_normal((5, 4)), 0, index(rng, 5, 7), rng.standard_normal((7, 4))), added, ints=True, tol=4)
case(
    "index_add",
    lambda rng: (rng.standard_normal((3, 6)), 1, index(rng, 6, 4), rng.standard_normal((3, 4))),
    added,
    kwargs={"alpha": 0.5},
    id="alpha",
    tol=4,
)


def copied(x, d, i, v):
    y = np.moveaxis(x.copy(), d, 0)
    y[i] = np.moveaxis(v, d, 0)
    return np.moveaxis(y, 0, d)


case(
    "index_copy",
    lambda rng: (rng.standard_normal((5, 4)), 0, distinct(rng, 5, 3), rng.standard_normal((3, 4))),
    copied,
    exact=True,
    ints=True,
)
case(
    "index_copy",
    lambda rng: (rng.standard_normal((3, 6)), 1, distinct(rng, 6, 2), rng.standard_normal((3, 2))),
    copied,
    exact=True,
    id="dim",
)


def filled(x, d, i, v):
    y = np.moveaxis(x.copy(), d, 0)
    y[i] = v
    return np.moveaxis(y, 0, d)


case("index_fill", lambda rng: (rng.standard_normal((5, 4)), 1, np.array([0, -1, 0]), 2.0), filled, exact=True, ints=True)


def reduced(kind):
    def f(x, d, i, v, *_, include_self=True):
        y, w = np.moveaxis(x.copy(), d, 0), np.moveaxis(v, d, 0)
        for k in range(len(y)):
            rows = [w[j] for j in range(len(i)) if i[j] == k]
            if rows:
                y[k] = {"prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[kind](
                    ([y[k]] if include_self else []) + rows, axis=0
                )
        return np.moveaxis(y, 0, d)

    return f


for kind in ("prod", "mean", "amax", "amin"):
    for own in (True, False):
        case(
            "index_reduce",
            lambda rng, k=kind: (rng.standard_normal((4, 3)), 0, np.array([1, 3, 1]), rng.standard_normal((3, 3)), k),
            reduced(kind),
            1,
            kwargs={"include_self": own},
            id=f"{kind}-{own}",
            tol=4,
        )

# ---- gather and scatter
case(
    "gather",
    lambda rng: (rng.standard_normal((4, 5)), 1, index(rng, 5, 4, 3)),
    lambda x, d, i: np.take_along_axis(x, i, d),
    exact=True,
    ints=True,
)
case(
    "gather",
    lambda rng: (rng.standard_normal((4, 5)), 0, index(rng, 4, 2, 3)),
    lambda x, d, i: np.take_along_axis(x[:, :3], i, d),
    exact=True,
    id="smaller",
)
case(
    "gather",
    lambda rng: (rng.standard_normal((3, 4, 5)), -2, index(rng, 4, 3, 6, 5)),
    lambda x, d, i: np.take_along_axis(x, i, 1),
    exact=True,
    id="3d",
)
case(
    "take_along_dim",
    lambda rng: (rng.standard_normal((4, 5)), index(rng, 5, 1, 3), 1),
    lambda x, i, d: np.take_along_axis(x, np.broadcast_to(i, (4, 3)), d),
)
case("take_along_dim", lambda rng: (rng.standard_normal((4, 5)), index(rng, 20, 6)), lambda x, i: x.ravel()[i], id="flat")
case("take", lambda rng: (rng.standard_normal((4, 5)), rng.integers(-20, 20, (2, 3))), lambda x, i: x.ravel()[i], exact=True)


def scattered(kind):
    def f(x, d, i, v, *_, include_self=True, reduce=None):
        y = np.moveaxis(x.copy(), d, 0)
        i, v = np.moveaxis(i, d, 0), np.moveaxis(np.broadcast_to(v, i.shape) if np.ndim(v) == 0 else v, d, 0)
        got = {}
        for at in np.ndindex(*i.shape):
            got.setdefault((i[at], *at[1:]), []).append(v[at])
        for at, values in got.items():
            values = ([y[at]] if include_self else []) + values
            y[at] = {"set": lambda z: z[-1], "sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[kind](values)
        return np.moveaxis(y, 0, d)

    return f


def unrepeated(rng):
    return rng.standard_normal((4, 5)), 1, np.argsort(rng.random((4, 5)), 1)[:, :3], rng.standard_normal((4, 3))


case("scatter", unrepeated, scattered("set"), exact=True, ints=True)
case("scatter", lambda rng: (rng.standard_normal((4, 5)), 0, index(rng, 4, 2, 5), 1.5), scattered("set"), exact=True, id="number")
case(
    "scatter",
    lambda rng: (rng.standard_normal((4, 5)), 0, index(rng, 4, 6, 5), rng.standard_normal((6, 5))),
    scattered("sum"),
    kwargs={"reduce": "add"},
    id="add",
    tol=4,
)
case(
    "scatter_add",
    lambda rng: (rng.standard_normal((4, 5)), 0, index(rng, 4, 6, 5), rng.standard_normal((6, 5))),
    scattered("sum"),
    ints=True,
    tol=4,
)
case(
    "scatter_add",
    lambda rng: (rng.standard_normal((4, 5)), 1, index(rng, 5, 2, 3), rng.standard_normal((4, 5))),
    lambda x, d, i, v: scattered("sum")(x, d, i, v[:2, :3]),
    id="smaller",
    tol=4,
)
for kind in ("sum", "prod", "mean", "amax", "amin"):
    for own in (True, False):
        case(
            "scatter_reduce",
            lambda rng, k=kind: (rng.standard_normal((3, 4)), 1, index(rng, 4, 3, 5), rng.standard_normal((3, 5)), k),
            scattered(kind),
            1,
            kwargs={"include_self": own},
            id=f"{kind}-{own}",
            tol=4,
        )


# ---- by tensors and masks
def pick(x, *key):
    return x[key if len(key) > 1 else key[0]]


case(pick, lambda rng: (rng.standard_normal((5, 4)), index(rng, 5, 3)), lambda x, i: x[i], exact=True, ints=True, id="one")
case(
    pick,
    lambda rng: (rng.standard_normal((5, 4)), index(rng, 5, 2, 3), rng.integers(-4, 4, 3)),
    lambda x, i, j: x[i, j],
    exact=True,
    id="two",
)
case(
    pick,
    lambda rng: (rng.standard_normal((5, 4, 3)), slice(None), index(rng, 4, 2), index(rng, 3, 2)),
    lambda x, *k: x[k],
    exact=True,
    id="adjacent",
)
case(
    pick,
    lambda rng: (rng.standard_normal((5, 4, 3)), index(rng, 5, 2), slice(None), index(rng, 3, 2)),
    lambda x, *k: x[k],
    exact=True,
    id="apart",
)
case(pick, lambda rng: (rng.standard_normal((5, 4, 3)), slice(1, 4), None, index(rng, 4, 2)), lambda x, *k: x[k], exact=True, id="mixed")
case(pick, lambda rng: (rng.standard_normal((4, 5)), rng.random((4, 5)) > 0.5), lambda x, m: x[m], exact=True, id="mask")
case(pick, lambda rng: (rng.standard_normal((4, 5)), np.array([True, False, True, True])), lambda x, m: x[m], exact=True, id="rows")


def assigned(x, i, v):
    y = x.clone() if hasattr(x, "clone") else x.copy()
    y[i] = v
    return y


case(assigned, lambda rng: (rng.standard_normal((5, 4)), distinct(rng, 5, 3), rng.standard_normal((3, 4))), assigned, exact=True, ints=True)
case(assigned, lambda rng: (rng.standard_normal((5, 4)), rng.random((5, 4)) > 0.5, 2.0), assigned, exact=True, id="mask")


def put_added(x, key, v, _):
    y = x.copy()
    np.add.at(y, tuple(key), v)
    return y


case(
    "index_put",
    lambda rng: (rng.standard_normal((5, 4)), (index(rng, 5, 6), index(rng, 4, 6)), rng.standard_normal(6), True),
    put_added,
    ints=True,
    tol=4,
)
case(
    "put",
    lambda rng: (rng.standard_normal((3, 4)), distinct(rng, 12, 4), rng.standard_normal(4)),
    lambda x, i, v: np.put_along_axis(y := x.ravel().copy(), i, v, 0) or y.reshape(x.shape),
    exact=True,
)
case("masked_select", lambda rng: (rng.standard_normal((4, 5)), rng.random((4, 5)) > 0.5), lambda x, m: x[m], exact=True)
case(
    "masked_select",
    lambda rng: (rng.standard_normal((4, 1)), rng.random(5) > 0.5),
    lambda x, m: np.broadcast_to(x, (4, 5))[np.broadcast_to(m, (4, 5))],
    id="broadcast",
)
case(
    "masked_scatter",
    lambda rng: (rng.standard_normal((4, 5)), rng.random((4, 5)) > 0.5, rng.standard_normal(20)),
    lambda x, m, v: np.place(y := x.copy(), m, v) or y,
    exact=True,
)
case("nonzero", lambda rng: (rng.integers(0, 2, (4, 5)),), lambda x: np.argwhere(x), False)
case("nonzero", lambda rng: (rng.standard_normal((3, 2)) * (rng.random((3, 2)) > 0.5),), lambda x: np.argwhere(x), False, id="float")
case("argwhere", lambda rng: (rng.random((4, 5)) > 0.5,), lambda x: np.argwhere(x), False)
case("where", lambda rng: (rng.random((4, 5)) > 0.5,), lambda x: np.nonzero(x), False, id="condition")
case("nn.functional.one_hot", lambda rng: (index(rng, 4, 2, 3), 6), lambda x, n: np.eye(n, dtype=np.int64)[x], False)
case("nn.functional.one_hot", lambda rng: (np.array([2, 0, 3]),), lambda x: np.eye(4, dtype=np.int64)[x], False, id="inferred")
case("tril_indices", lambda rng: (4, 3, 1), lambda r, c, k: np.stack(np.tril_indices(r, k, c)), False, place=False)
case("triu_indices", lambda rng: (3, 5, -1), lambda r, c, k: np.stack(np.triu_indices(r, k, c)), False, place=False)

# ---- embedding
case("nn.functional.embedding", lambda rng: (index(rng, 7, 3, 4), rng.standard_normal((7, 5))), lambda i, w: w[i], exact=True)
case("nn.functional.embedding", lambda rng: (index(rng, 7, 6), rng.standard_normal((7, 300))), lambda i, w: w[i], exact=True, id="wide")

# ---- errors: shapes at the call, values when the result is read
error("index_select", lambda rng: (rng.standard_normal((4, 5)), 0, np.array([4])), IndexError, "index 4 is out of bounds")
error(
    "gather",
    lambda rng: (rng.standard_normal((4, 5)), 0, np.array([[9]])),
    RuntimeError,
    "index 9 is out of bounds for dimension 0 with size 4",
)
error(
    "scatter_add",
    lambda rng: (rng.standard_normal((4, 5)), 0, np.array([[-1]]), rng.standard_normal((1, 1))),
    RuntimeError,
    "index -1 is out of bounds",
)
error(pick, lambda rng: (rng.standard_normal((4, 5)), np.array([4])), IndexError, "index 4 is out of bounds for dimension of size 4")
error(pick, lambda rng: (rng.standard_normal((4, 5)), np.array([True, False])), IndexError, "shape of the mask")
error("take", lambda rng: (rng.standard_normal((4, 5)), np.array([20])), IndexError, "index 20 is out of bounds")
error("nn.functional.embedding", lambda rng: (np.array([7]), rng.standard_normal((7, 2))), IndexError, "index 7, legal are 0 to 6")
error("nn.functional.one_hot", lambda rng: (np.array([5]), 3), RuntimeError, "smaller than num_classes")
error(
    "masked_scatter",
    lambda rng: (rng.standard_normal((4, 5)), np.ones((4, 5), bool), rng.standard_normal(3)),
    RuntimeError,
    "Number of elements of source",
)
error("gather", lambda rng: (rng.standard_normal((4, 5)), 0, np.array([1.0])), RuntimeError, "Expected dtype int32/int64")
error(
    "scatter_reduce",
    lambda rng: (rng.standard_normal((4, 5)), 0, np.array([[0]]), rng.standard_normal((1, 1)), "median"),
    RuntimeError,
    "median",
)
