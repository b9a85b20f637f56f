"""Extremes, scans and topk along a sharded dimension: local results, a small exchange, a last step. Values, places and gradients are the whole's."""

import pathlib
import sys

import numpy as np
import pytest

import dtorch
from dtorch import Shard, distribute_tensor, init_device_mesh

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from one_device import LAYOUTS, S, same_as_on_one_device  # noqa: E402

OPS = {
    "max": lambda x: x.max(0)[0],
    "min": lambda x: x.min(0, keepdim=True)[0],
    "max 1": lambda x: x.max(1)[0],
    "cumsum": lambda x: x.cumsum(0),
    "cumsum 1": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0)[0],
    "cummin": lambda x: x.cummin(0)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "topk": lambda x: x.topk(1, 0)[0],
    "topk smallest": lambda x: x.topk(2, 0, largest=False)[0],
    "sort": lambda x: x.sort(0)[0],
    "kthvalue": lambda x: x.kthvalue(2, 0)[0],
    "median": lambda x: x.median(0)[0],
    "flat cumsum": lambda x: x.reshape(-1).cumsum(0),
    "twice": lambda x: x.cumsum(0).cumsum(1).max(0)[0],
}
PLACES = {
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(0, keepdim=True),
    "argmax 1": lambda x: x.argmax(1),
    "argmax of all": lambda x: x.argmax(),
    "argmin of all": lambda x: x.argmin(keepdim=True),
    "max": lambda x: x.max(0)[1],
    "min": lambda x: x.min(0)[1],
    "cummax": lambda x: x.cummax(0)[1],
    "cummin": lambda x: x.cummin(0)[1],
    "topk": lambda x: x.topk(1, 0)[1],
    "topk 3": lambda x: x.topk(3, 0, largest=False)[1],
    "sort": lambda x: x.sort(0, stable=True)[1],
}


def even(n, placements):
    return n % 2 == 0 or placements[0] != Shard(0, split_factor=2)


@pytest.mark.parametrize("shape, placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(name, shape, placements):
    for n in (6, 5, 9, 30):
        if even(n, placements):
            a = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
            same_as_on_one_device(OPS[name], a, shape, placements, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("shape, placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["ties", "nan", "int64", "bool"])
def test_places(name, kind, shape, placements):
    mesh = init_device_mesh("cpu", shape)
    for n in (6, 5, 30):
        if not even(n, placements):
            continue
        a = np.random.default_rng(n).integers(-2, 3, (n, 3))
        a = a > 0 if kind == "bool" else a if kind == "int64" else a.astype(np.float32)
        if kind == "nan":
            a[a == 2] = np.nan
        x = dtorch.tensor(a)
        got = PLACES[name](distribute_tensor(x, mesh, placements))
        np.testing.assert_array_equal(got.full_tensor().numpy(), PLACES[name](x).numpy())


BYTES = {  # of a summary (values, and indices of 8 bytes) of each shard, sent to three others
    "argmax": (lambda x: x.argmax(0), 12),
    "argmax of all": (lambda x: x.argmax(), 12),
    "max": (lambda x: x.max(0)[0], 12),
    "cumsum": (lambda x: x.cumsum(0), 4),
    "cumprod": (lambda x: x.cumprod(0), 4),
    "cummax": (lambda x: x.cummax(0)[0], 12),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), 4),
    "topk": (lambda x: x.topk(5)[0], 5 * 12),
}


@pytest.mark.parametrize("name", BYTES)
def test_only_summaries_are_exchanged(name):
    f, each = BYTES[name]
    x = dtorch.rand(4096)
    t = distribute_tensor(x, init_device_mesh("cpu", (4,)), [S(0)])
    dtorch.comm_report(reset=True)
    y = f(t)
    y.to_local(0).numpy()
    assert 0 < dtorch.comm_report(reset=True).bytes <= each * 4 * 3
    np.testing.assert_allclose(y.full_tensor().numpy(), f(x).numpy(), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float64", "uint8"])
def test_dtypes(dtype):
    x = (dtorch.arange(21) * 5 % 7).to(getattr(dtorch, dtype))
    t = distribute_tensor(x, init_device_mesh("cpu", (3,)), [S(0)])
    for f in (lambda t: t.cumsum(0), lambda t: t.max(0)[0], lambda t: t.topk(2)[1], lambda t: t.cummin(0)[1]):
        np.testing.assert_array_equal(f(t).full_tensor().double().numpy(), f(x).double().numpy())
    t.cumsum_(0)
    np.testing.assert_array_equal(t.full_tensor().double().numpy(), x.cumsum(0).to(x.dtype).double().numpy())
