"""Random programs of what fused groups are made of, as a process of its own: a line of digests for each seed.

    python random_groups.py FIRST LAST

Elementwise operators, reductions of the last or the first dimensions, reads by index, casts, dropout, reshapes and transposes, plain and on meshes, forward and backward.
"""

import hashlib
import sys

import dtorch
import numpy as np
from dtorch.distributed import Replicate, Shard, init_device_mesh

MESHES = [None, None, (2,), (3,), (2, 2)]
FLOATS = [dtorch.float32, dtorch.float64, dtorch.bfloat16, dtorch.float16]


def digest(t):
    t = t.full_tensor() if t.device_mesh is not None else t
    t = t.detach().float() if t.dtype in FLOATS[2:] else t.detach()
    return hashlib.sha256(np.ascontiguousarray(t.numpy()).tobytes()).hexdigest()[:10]


def reduced(r, a):
    n = int(r.integers(1, a.ndim + 1))
    dims = tuple(range(a.ndim - n, a.ndim)) if r.random() < 0.7 else tuple(range(n))
    return getattr(a, ["sum", "mean", "amax", "amin"][r.integers(4)])(dims, bool(r.random() < 0.75))


def unary(r, a, dtype):
    k = int(r.integers(10))
    if k < 5:
        return [lambda: a.tanh(), lambda: a.sigmoid(), lambda: (a * 0.5).exp(), lambda: a.relu(), lambda: a.abs() + 1][k]()
    if k < 7:
        return a.to([dtorch.float32, dtorch.float64, dtype][r.integers(3)])
    if k == 7:
        return dtorch.nn.functional.dropout(a, 0.3)
    if k == 8:
        return a.transpose(0, -1) if a.ndim > 1 else a * 2
    return a.reshape(-1) * 1 if a.ndim and a.device_mesh is None else a.unsqueeze(0)


def looked_up(r, a):
    """Rows or elements of a by index; also along a sharded dimension, where each device has some and zeros stand for the others."""
    n, k = a.shape[0], int(r.integers(4))
    rows = dtorch.tensor(r.integers(0, n, size=int(r.integers(1, 9))))
    if k == 0:
        return a[rows - (n if r.random() < 0.5 else 0)]
    if k == 1:
        return a.index_select(0, rows)
    if k == 2 and a.ndim == 2:
        return dtorch.nn.functional.embedding(rows.reshape(1, -1) if r.random() < 0.5 else rows, a)
    return a.gather(-1, dtorch.tensor(r.integers(0, a.shape[-1], size=(*a.shape[:-1], int(r.integers(1, 4))))))


def binary(r, a, b):
    k = int(r.integers(6))
    ops = [lambda: a + b, lambda: a * b, lambda: a - b, lambda: dtorch.maximum(a, b), lambda: dtorch.where(a > 0, a, b), lambda: a / (b.abs() + 1)]
    return ops[k]()


def fits(a, b):
    return all(x == y or 1 in (x, y) for x, y in zip(a.shape[::-1], b.shape[::-1], strict=False))


def program(seed):
    r = np.random.default_rng(seed)
    dtorch.manual_seed(seed)
    dtype = FLOATS[r.integers(4)]
    shape = tuple(int(v) for v in r.choice([1, 2, 3, 5, 8, 17, 64, 130, 700], size=r.integers(1, 4)))
    while np.prod(shape) > 400_000:
        shape = shape[1:]
    mesh = MESHES[r.integers(len(MESHES))]
    mesh = mesh and init_device_mesh("cpu", mesh)

    def leaf(size):
        t = dtorch.randn(*size).to(dtype)
        if mesh:
            t = dtorch.distribute_tensor(t, mesh, [Shard(int(r.integers(t.ndim))) if r.random() < 0.6 else Replicate() for _ in range(mesh.ndim)])
        return t.requires_grad_()

    leaves = [leaf(tuple(1 if r.random() < 0.25 else d for d in shape)[r.integers(2) if len(shape) > 1 else 0 :]) for _ in range(3)] + [leaf(shape)]
    pool, kept = list(leaves), []
    for _ in range(int(r.integers(5, 22))):
        a, b = pool[r.integers(max(0, len(pool) - 5), len(pool))], pool[r.integers(len(pool))]
        k = r.random()
        if k < 0.45:
            if not fits(a, b):
                continue
            c = binary(r, a, b)
        elif k < 0.65 and a.ndim:
            c = reduced(r, a)
        elif k < 0.75 and a.ndim:
            c = looked_up(r, a)
        else:
            c = unary(r, a, dtype)
        if c.numel() > 800_000 or c.ndim > 5:
            continue
        pool.append(c)
        if r.random() < 0.2:
            kept.append(c)
    out = pool[-1]
    loss = (out if out.dtype == dtorch.float64 else out.float()).mean()
    loss.backward()
    return [loss, out, *kept, *(t.grad for t in leaves if t.grad is not None)]


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        print(seed, *(digest(t) for t in program(seed)))
