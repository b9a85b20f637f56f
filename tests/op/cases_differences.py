"""Finite differences of samples, and the norm that gives its statistics."""

import dtorch as dt
import numpy as np

CASES = []
ERRORS = []


def case(shape, id, *, dim=None, edge_order=1, spacing=1.0):
    """Against numpy.gradient. spacing: numbers, or None for coordinates that are not even."""
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim

    def args(rng):
        steps = [np.cumsum(rng.uniform(0.5, 1.5, shape[d])) for d in dims] if spacing is None else []
        return (rng.standard_normal(shape), *steps)

    def op(x, *steps):
        return dt.gradient(x, spacing=list(steps) if steps else spacing, dim=dim, edge_order=edge_order)

    def ref(x, *steps):
        h = steps or (spacing if isinstance(spacing, list) else [spacing] * len(dims))
        r = np.gradient(x, *h, axis=tuple(dims), edge_order=edge_order)
        return tuple(r) if isinstance(r, (list, tuple)) else r

    op.__name__ = "gradient"
    CASES.append(dict(op=op, args=args, ref=ref, id=id, tol=4, dtypes=("float64", "float32")))


case((7,), "line")
case((2,), "two")
case((3,), "three", edge_order=2)
case((5, 6), "plane", spacing=[0.5, 2.0])
case((5, 6), "edges", edge_order=2, spacing=0.25)
case((4, 3, 5), "dims", dim=(2, 0), spacing=[2.0, 3.0])
case((4, 5), "last", dim=-1)
case((5, 6), "coordinates", spacing=None)
case((5, 6), "coordinates-edges", spacing=None, edge_order=2)


def gradient_spacing_none(x):
    return dt.gradient(x, spacing=None)


CASES.append(
    dict(
        op=gradient_spacing_none,
        args=lambda rng: (rng.standard_normal((4, 5)),),
        ref=lambda x: tuple(np.gradient(x)),
        tol=4,
        dtypes=("float64", "float32"),
    )
)


def group_norm(x, w, b):
    return dt.native_group_norm(x, w, b, 3, 6, 8, 2, 1e-5)


def group_norm_ref(x, w, b):
    y = x.reshape(3, 2, -1)
    mean, rstd = y.mean(2), 1 / np.sqrt(y.var(2) + 1e-5)
    y = ((y - mean[:, :, None]) * rstd[:, :, None]).reshape(x.shape)
    return y * w.reshape(1, 6, 1, 1) + b.reshape(1, 6, 1, 1), mean, rstd


args = lambda rng: (rng.standard_normal((3, 6, 2, 4)), rng.random(6), rng.random(6))
CASES.append(dict(op=group_norm, args=args, ref=group_norm_ref, grad=False, tol=4, dtypes=("float64", "float32")))


def group_norm_alone(x, w, b):
    return group_norm(x, w, b)[0]


CASES.append(dict(op=group_norm_alone, args=args, ref=lambda *a: group_norm_ref(*a)[0], tol=4, dtypes=("float64", "float32")))

for kwargs, error, match in [
    (dict(edge_order=3), RuntimeError, "edge_order=1 and edge_order=2"),
    (dict(dim=(0, -2)), RuntimeError, "dim 0 appears multiple times"),
    (dict(dim=2), IndexError, "Dimension out of range"),
    (dict(spacing=[1.0, 2.0], dim=0), RuntimeError, "same length"),
    (dict(dim=0, edge_order=2), RuntimeError, "at least edge_order"),
]:
    ERRORS.append(dict(op="gradient", args=lambda rng: (np.ones((2, 4)),), kwargs=kwargs, error=error, match=match))
ERRORS.append(
    dict(
        op="native_group_norm",
        args=lambda rng: (np.ones((2, 4)), None, None, 2, 4, 2, 2, 1e-5),
        error=RuntimeError,
        match="does not have N=2",
    )
)
