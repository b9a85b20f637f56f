"""Random programs of views and writes: on one device they do what NumPy's views do, on meshes the same, and gradients agree."""

import random

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh

MESHES = [None, (2,), (3,), (2, 2)]


def view(r, t):
    """A random view, by operations that NumPy arrays and tensors spell alike (as a function of the operand)."""
    nd = t.ndim
    d = r.randrange(nd) if nd else 0
    kind = r.randrange(5)
    if nd == 0:
        return lambda x: x
    if kind == 0:
        i = r.randrange(t.shape[d])
        return lambda x: x[(slice(None),) * d + (i,)]
    if kind == 1:
        lo = r.randrange(t.shape[d])
        return lambda x: x[(slice(None),) * d + (slice(lo, None, 2),)]
    if kind == 2:
        return lambda x: x.swapaxes(0, nd - 1)
    if kind == 3 and nd < 4:
        return lambda x: x[None]
    return lambda x: x[(slice(0, max(1, t.shape[0] - 1)),)]


def program(seed, arrays):
    """Runs the program of this seed on `arrays` (NumPy arrays or tensors alike); returns every value made on the way."""
    r = random.Random(seed)
    ts = list(arrays)
    for _ in range(r.randint(4, 14)):
        t, u = r.choice(ts), r.choice(ts)
        kind = r.randrange(8)
        if kind < 4:
            ts.append(view(r, t)(t))
        elif kind == 4:
            t *= 0.75
        elif kind == 5:
            t += u.sum() * 0.125
        elif kind == 6:
            t[...] = u.mean()
        else:
            ts.append(t * 2 + u.sum())
    return ts


def start():
    return [np.arange(12, dtype=np.float64).reshape(3, 4) / 7 + k for k in range(2)]


def scalar_safe(values):
    return [np.asarray(v) for v in values]


def placed(arrays, shape, seed):
    if shape is None:
        return [dtorch.tensor(a) for a in arrays]
    r = random.Random(seed)
    mesh = init_device_mesh("cpu", shape)
    return [distribute_tensor(dtorch.tensor(a), mesh, [r.choice([Replicate(), Shard(0), Shard(1)]) for _ in shape]) for a in arrays]


@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("seed", range(40))
def test_values_are_numpys(seed, shape):
    arrays = start()
    # 0-dimensional NumPy views would become scalars; keep them arrays.
    want = scalar_safe(program(seed, [Boxed(a) for a in arrays]))
    got = program(seed, placed(start(), shape, seed))
    assert len(want) == len(got)
    for w, g in zip(want, got):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-12)


class Boxed:
    """A NumPy array whose 0-dimensional views stay views."""

    def __init__(self, a):
        self.a = a

    ndim = property(lambda self: self.a.ndim)
    shape = property(lambda self: self.a.shape)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.a)

    def __getitem__(self, key):
        return Boxed(self.a[(*key, Ellipsis)] if isinstance(key, tuple) else self.a[key])

    def __setitem__(self, key, v):
        self.a[key] = v

    def swapaxes(self, i, j):
        return Boxed(self.a.swapaxes(i, j))

    def __imul__(self, k):
        self.a *= k
        return self

    def __iadd__(self, k):
        self.a += k
        return self

    def __mul__(self, k):
        return Boxed(np.asarray(self.a * k))

    def __add__(self, k):
        return Boxed(np.asarray(self.a + k))

    def sum(self):
        return np.array(self.a.sum())

    def mean(self):
        return np.array(self.a.mean())


def gradients(seed, shape):
    leaves = placed(start(), shape, seed)
    for w in leaves:
        w.requires_grad_(True)
    ts = program(seed, [w * 1.5 for w in leaves])
    try:
        sum((t * t).sum() for t in ts).backward()
    except RuntimeError as e:  # a saved tensor was written to: on every mesh alike
        assert "modified by an inplace operation" in str(e)
        return None
    for w in leaves:
        assert w.grad is None or shape is None or w.grad.placements == w.placements
    return [np.zeros((3, 4)) if w.grad is None else w.grad.numpy() for w in leaves]


@pytest.mark.parametrize("shape", MESHES[1:])
@pytest.mark.parametrize("seed", range(40))
def test_gradients_on_meshes(seed, shape):
    want, got = gradients(seed, None), gradients(seed, shape)
    assert (want is None) == (got is None)
    for w, g in zip(want or [], got or []):
        np.testing.assert_allclose(g, w, rtol=1e-9)
