"""Reading and writing by indices along a sharded dimension: each device does what it holds; nothing of the table moves."""

import pathlib
import sys

import numpy as np
import pytest

import dtorch
from dtorch import Shard, distribute_tensor, init_device_mesh

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from one_device import LAYOUTS, R, S, same_as_on_one_device  # noqa: E402

I1 = dtorch.tensor([3, 0, 3, 1])
I2 = dtorch.tensor([[3, 0, 2], [1, 1, 4]])
SRC = np.linspace(-2, 3, 12).astype(np.float32).reshape(4, 3)


def written(f):
    def run(x):
        y = x * 1
        f(y)
        return y

    return run


def put(y):
    y[I1] = 7.0
    y[dtorch.tensor([2, -1]), dtorch.tensor([0, 2])] *= 3
    y[dtorch.tensor([4, 4])] += 1


OPS = {
    "index_select": lambda x: x.index_select(0, I1),
    "x[i]": lambda x: x[I1],
    "x[-i]": lambda x: x[dtorch.tensor([-1, 0, -2])],
    "x[i, j]": lambda x: x[I1, dtorch.tensor([0, 2, 1, 1])],
    "x[[i]]": lambda x: x[I2],
    "x[:, j]": lambda x: x[:, dtorch.tensor([2, 0, 0, 1])],
    "x[i, 1:]": lambda x: x[I1, 1:],
    "x[mask]": lambda x: x[dtorch.tensor([True, False, True, True, False] + [False] * (x.shape[0] - 5))],
    "x[none]": lambda x: x[dtorch.tensor([], dtype=dtorch.int64)],
    "gather": lambda x: x.gather(0, I2),
    "gather 1": lambda x: x.gather(1, dtorch.zeros(x.shape[0], 2, dtype=dtorch.int64)),
    "take": lambda x: x.take(dtorch.tensor([0, 14, 3])),
    "take_along_dim": lambda x: x.take_along_dim(I2, 0),
    "index_add": lambda x: x.index_add(0, I1, dtorch.tensor(SRC), alpha=0.5),
    "index_add of shards": lambda x: x.index_add(0, dtorch.arange(x.shape[0] - 1, -1, -1), x * 2),
    "index_copy": lambda x: x.index_copy(0, dtorch.tensor([4, 0, 2, 1]), dtorch.tensor(SRC)),
    "index_fill": lambda x: x.index_fill(0, dtorch.tensor([0, -1]), 3.0),
    "index_reduce": lambda x: x.index_reduce(0, I1, dtorch.tensor(SRC), "amax"),
    "index_reduce mean": lambda x: x.index_reduce(0, I1, dtorch.tensor(SRC), "mean", include_self=False),
    "index_put": lambda x: x.index_put((I1,), dtorch.tensor(SRC[0])),
    "index_put add": lambda x: x.index_put((I1,), dtorch.tensor(SRC), accumulate=True),
    "put": lambda x: x.put(dtorch.tensor([0, 14, 7]), dtorch.tensor(SRC[1])),
    "scatter": lambda x: x.scatter(0, dtorch.tensor([[3, 0, 2], [1, 1, 4]]), dtorch.tensor(SRC[:2])),
    "scatter value": lambda x: x.scatter(0, I2, 2.5),
    "scatter_add": lambda x: x.scatter_add(0, I2, dtorch.tensor(SRC[1:3])),
    "scatter_add of shards": lambda x: x.scatter_add(0, dtorch.zeros(x.shape, dtype=dtorch.int64), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, I2, dtorch.tensor(SRC[1:3]), "prod"),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "writes": written(put),
}


@pytest.mark.parametrize("shape, placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_as_on_one_device(name, shape, placements):
    for n in (6, 5, 9):
        if n % 2 and placements[0] == Shard(0, split_factor=2):
            continue
        a = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        same_as_on_one_device(OPS[name], a, shape, placements)


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "bfloat16"])
def test_every_dtype_is_looked_up(dtype):
    a = (np.arange(15).reshape(5, 3) % 4) > 1 if dtype == "bool" else np.arange(15).reshape(5, 3)
    x = dtorch.tensor(a).to(getattr(dtorch, dtype))
    t = distribute_tensor(x, init_device_mesh("cpu", (3,)), [S(0)])
    for f in (lambda t: t[I1], lambda t: t.index_select(0, I1), lambda t: t.gather(0, I2)):
        np.testing.assert_array_equal(f(t).full_tensor().double().numpy(), f(x).double().numpy())


def test_an_index_out_of_range_is_an_error_on_every_device():
    t = distribute_tensor(dtorch.zeros(5, 3), init_device_mesh("cpu", (4,)), [S(0)])
    for f in (
        lambda i: t[i],
        lambda i: t.index_select(0, i),
        lambda i: t.index_fill(0, i, 1.0),
        lambda i: t.index_put((i,), dtorch.ones(3)),
    ):
        with pytest.raises(IndexError):
            f(dtorch.tensor([1, 5])).full_tensor().numpy()


TABLE = {
    "read": lambda t, i: t[i],
    "select": lambda t, i: t.index_select(0, i),
    "write": lambda t, i: t.index_put((i,), dtorch.ones(8)),
    "fill": lambda t, i: t.index_fill(0, i, 1.0),
    "add": lambda t, i: t.index_add(0, i, dtorch.ones(3, 8)),
    "scatter": lambda t, i: t.scatter(0, i.reshape(3, 1).expand(3, 8), 2.0),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table_stays(name):
    mesh = init_device_mesh("cpu", (4,))
    t = distribute_tensor(dtorch.randn(4096, 8), mesh, [S(0)])
    i = distribute_tensor(dtorch.tensor([5, 4000, 77]), mesh, [R])
    dtorch.comm_report(reset=True)
    y = TABLE[name](t, i)
    y.full_tensor().numpy() if name in ("read", "select") else y.to_local(0).numpy()
    bytes = dtorch.comm_report(reset=True).bytes
    assert bytes <= 12 * 8 * 4 * 4  # three rows, summed on all devices or sent to them; the table has 128 KiB
    np.testing.assert_array_equal(y.full_tensor().numpy(), TABLE[name](t.full_tensor(), i.full_tensor()).numpy())
