"""Factories: dtypes as in PyTorch, and the same values wherever the result lies."""

import dtorch as dt
import numpy as np
import pytest

FACTORIES = {
    "full": lambda **k: dt.full((5, 3), 2.5, **k),
    "zeros": lambda **k: dt.zeros(5, 3, **k),
    "eye": lambda **k: dt.eye(5, 7, **k),
    "arange": lambda **k: dt.arange(3, 40, 3, **k),
    "arange_float": lambda **k: dt.arange(0.0, 2.0, 0.3, **k),
    "linspace": lambda **k: dt.linspace(-1, 2, 11, **k),
    "logspace": lambda **k: dt.logspace(-1, 2, 5, **k),
    "long": lambda **k: dt.arange(40000, **k),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize(
    "dims, where", [((2,), [0]), ((3,), [0]), ((4,), [-1]), ((2, 2), [0, 0]), ((2, 2), [None, 0]), ((5,), [0])], ids=str
)
def test_any_placement(name, dims, where):
    want = FACTORIES[name]()
    where = [dt.Replicate() if d is None else dt.Shard(d % want.ndim) for d in where]
    got = FACTORIES[name](device_mesh=dt.init_device_mesh("cpu", dims), placements=where)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.array_equal(got.full_tensor().numpy(), want.numpy())


def test_dtypes():
    assert dt.zeros(2).dtype == dt.ones(2).dtype == dt.rand(2).dtype == dt.eye(2).dtype == dt.linspace(0, 1, 3).dtype == dt.float32
    assert dt.full((2,), 1).dtype == dt.int64 and dt.full((2,), 1.0).dtype == dt.float32 and dt.full((2,), True).dtype == dt.bool
    assert dt.arange(3).dtype == dt.int64 and dt.arange(3.0).dtype == dt.float32 and dt.arange(0, 1, 0.5).dtype == dt.float32
    assert dt.arange(3, dtype=dt.float64).dtype == dt.float64 and dt.zeros(2, dtype=dt.bool).dtype == dt.bool
    assert dt.randperm(3).dtype == dt.randint(3, (2,)).dtype == dt.int64
    x = dt.zeros(2, dtype=dt.float16)
    assert dt.ones_like(x).dtype == dt.rand_like(x).dtype == dt.float16 and dt.zeros_like(x, dtype=dt.int32).dtype == dt.int32
    dt.set_default_dtype(dt.float64)
    try:
        assert dt.zeros(2).dtype == dt.rand(2).dtype == dt.arange(2.0).dtype == dt.full((1,), 0.5).dtype == dt.float64
    finally:
        dt.set_default_dtype(dt.float32)


def test_arange_keeps_64_bits():
    assert dt.arange(2**53 - 1, 2**53 + 3).tolist() == list(range(2**53 - 1, 2**53 + 3))


def test_like_a_partial_needs_no_communication():
    mesh = dt.init_device_mesh("cpu", (2,))
    p = dt.Tensor.from_local([dt.ones(3), dt.ones(3)], mesh, [dt.Partial()])
    assert dt.zeros_like(p).placements == (dt.Replicate(),) or list(dt.zeros_like(p).placements) == [dt.Replicate()]
    assert dt.full_like(p, 4.0).full_tensor().tolist() == [4.0, 4.0, 4.0]


CASTS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_casts(source, target):
    """Every pair of dtypes, on values that all of them can hold, and a length with a tail."""
    x = np.arange(2 if source == "bool" or target == "bool" else 100, dtype=np.float64)
    x = np.resize(x, (7, 31))
    t = dt.tensor(x).to(getattr(dt, source)).to(getattr(dt, target))
    assert t.dtype == getattr(dt, target)
    assert np.array_equal(t.double().numpy(), x)


def test_casts_truncate_and_round():
    x = dt.tensor([1.9, -1.9, 0.5, -0.5])
    assert x.to(dt.int32).tolist() == [1, -1, 0, 0] and x.to(dt.bool).tolist() == [True, True, True, True]
    assert dt.tensor([1 + 2**-9, 1 + 3 * 2**-9]).to(dt.bfloat16).float().tolist() == [1.0, 1 + 2**-7]  # ties to even
    assert dt.tensor([float("nan"), float("inf"), 1e6]).to(dt.float16).tolist()[1:] == [float("inf"), float("inf")]
