"""Collectives along some dimensions of a mesh: groups that meet on their own, whatever the shards' sizes."""

import random

import dtorch as dt
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

R, S, P = Replicate, Shard, Partial
MESHES = [
    ((2, 2, 2), ("dp", "cp", "tp")),
    ((3, 2, 3), ("dp", "cp", "tp")),
    ((9, 2), ("dp", "tp")),
    ((3, 2, 1, 4), ("pp", "dp", "cp", "tp")),
]
SHAPES = [(8, 8), (5, 3), (1, 7), (2, 2), (0, 4), (13, 1)]  # uneven, shorter than the mesh dimension, empty


def random_placements(rng, ndim):
    return [rng.choice([R(), S(0), S(1), P(), P("max") if ndim == 2 else P()]) for _ in range(ndim)]


def whole(parts, placements):
    """The tensor that shards and shares stand for: shares are added, or compared, along their mesh dimensions."""
    total = parts.astype(np.float64)
    for axis in reversed(range(len(placements))):
        p = placements[axis]
        if isinstance(p, Partial):
            total = {"sum": np.sum, "max": np.max}[p.reduce_op](total, axis=axis)
        else:
            total = np.take(total, 0, axis=axis)
    return total


@pytest.mark.parametrize("dims, names", MESHES, ids=lambda v: "x".join(map(str, v)))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda v: "x".join(map(str, v)))
def test_any_to_any(dims, names, shape):
    rng = random.Random(f"{dims}{shape}")
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=names)
    for _ in range(25):
        before, after = random_placements(rng, len(dims)), random_placements(rng, len(dims))
        if len({p.reduce_op for p in before + after if isinstance(p, Partial)}) > 1:
            continue
        shares = [p if isinstance(p, Partial) else R() for p in before]
        values = np.zeros((*dims, *shape), np.float32)
        for at in np.ndindex(dims):  # devices that differ along shares hold different numbers, replicas the same
            own = sum(c * 7 ** (k + 1) for k, c in enumerate(at) if isinstance(shares[k], Partial))
            values[at] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 11 + own % 13
        x = dt.Tensor.from_local([dt.tensor(values[at]) for at in np.ndindex(dims)], mesh, shares).redistribute(placements=before)
        y = x.redistribute(placements=after)
        want = whole(values, shares)
        assert y.placements == tuple(after)
        np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.one_process("all that meet over several nodes share an error")
def test_a_group_meets_only_itself():
    """A failure on one device fails its group's results; the other groups' parts are there. (Few devices of one machine meet all together.)"""
    mesh = init_device_mesh("cpu", (9, 2), mesh_dim_names=("dp", "tp"))
    table = distribute_tensor(dt.arange(8.0).view(4, 2), mesh, [R(), R()])
    rows = [dt.tensor([0, 1]), dt.tensor([2, 3])] * 8 + [dt.tensor([9, 0]), dt.tensor([1, 1])]  # 9 is no row: on dp 8, tp 0
    index = dt.Tensor.from_local(rows, mesh, [S(0), P()])
    picked = dt.Tensor.from_local([table.to_local(i)[index.to_local(i)] for i in range(18)], mesh, [S(0), P()])
    summed = picked.redistribute(placements=[S(0), R()])
    for i in (0, 1, 14, 15):
        np.testing.assert_array_equal(summed.to_local(i).numpy(), [[4, 6], [8, 10]])
    for i in (16, 17):
        with pytest.raises(IndexError):
            summed.to_local(i).numpy()


def test_counts_do_not_depend_on_groups():
    """One redistribution is one entry of the report, however many groups there are, and its bytes are those of all of them."""
    mesh = init_device_mesh("cpu", (5, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    x = dt.Tensor.from_local([dt.ones(6, 4)] * 20, mesh, [R(), R(), P()])
    with dt.comm_scope() as report:
        y = x.redistribute(placements=[R(), R(), R()])
    assert (y.numpy() == 2).all()
    assert [(r["kind"], r["mesh_dim"], r["count"]) for r in report] == [("all_reduce", "tp", 1)]
    assert report.bytes == 10 * 2 * 6 * 4 * 4  # each of 10 pairs: half to reduce and half to copy, both ways
