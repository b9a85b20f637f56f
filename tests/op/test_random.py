"""Random numbers: the same on every mesh, right distributions, gradients of dropout. The statistics are of fixed seeds: they cannot fail by chance."""

import dtorch as dt
import numpy as np
import pytest

N = 200_000
FACTORIES = {
    "rand": lambda **k: dt.rand(5, 7, **k),
    "randn": lambda **k: dt.randn(5, 7, **k),
    "randn64": lambda **k: dt.randn(5, 7, dtype=dt.float64, **k),
    "rand16": lambda **k: dt.rand(5, 7, dtype=dt.bfloat16, **k),
    "randint": lambda **k: dt.randint(0, 1000, (5, 7), **k),
    "randint64": lambda **k: dt.randint(-(2**40), 2**40, (5, 7), **k),
    "large": lambda **k: dt.randn(131, 517, **k),
}
INPLACE = {
    "uniform_": (-1.0, 2.0),
    "normal_": (0.5, 2.0),
    "log_normal_": (0.0, 0.5),
    "exponential_": (2.0,),
    "cauchy_": (),
    "geometric_": (0.3,),
    "bernoulli_": (0.3,),
    "random_": (3, 50),
}
MESHES = [
    ((1,), [0]),
    ((2,), [0]),
    ((2,), [1]),
    ((3,), [0]),
    ((4,), [1]),
    ((4,), [None]),
    ((2, 2), [0, 1]),
    ((2, 2), [1, None]),
    ((2, 2), [0, 0]),
]


def placements(dims):
    return [dt.Replicate() if d is None else dt.Shard(d) for d in dims]


def whole(t):
    t = t.detach().full_tensor()
    return (t.float() if t.dtype == dt.bfloat16 else t).numpy()


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("dims, where", MESHES, ids=str)
def test_any_mesh_gives_the_same_bits(name, dims, where):
    dt.manual_seed(7)
    want = [whole(FACTORIES[name]()) for _ in range(2)]
    dt.manual_seed(7)
    mesh = dt.init_device_mesh("cpu", dims)
    got = [whole(FACTORIES[name](device_mesh=mesh, placements=placements(where))) for _ in range(2)]
    assert np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1])
    assert not np.array_equal(want[0], want[1])


@pytest.mark.parametrize("name", [*INPLACE, "dropout"])
@pytest.mark.parametrize("dims, where", MESHES[1:], ids=str)
def test_in_place_and_dropout_on_any_mesh(name, dims, where):
    mesh = dt.init_device_mesh("cpu", dims)

    def draw(x):
        dt.manual_seed(3)
        return dt.nn.functional.dropout(x, 0.4) if name == "dropout" else getattr(x, name)(*INPLACE[name])

    want = draw(dt.ones(5, 7))
    got = draw(dt.distribute_tensor(dt.ones(5, 7), mesh, placements(where)))
    assert np.array_equal(whole(got), whole(want))


def test_seeds_and_generators():
    dt.manual_seed(1)
    a, b = dt.rand(9).numpy(), dt.rand(9).numpy()
    dt.manual_seed(1)
    assert np.array_equal(dt.rand(9).numpy(), a) and np.array_equal(dt.rand(9).numpy(), b)
    g = dt.Generator().manual_seed(5)
    c = dt.rand(9, generator=g).numpy()
    assert np.array_equal(dt.rand(9, generator=dt.Generator().manual_seed(5)).numpy(), c)
    assert not np.array_equal(dt.rand(9, generator=g).numpy(), c)


# mean and variance of each distribution
MOMENTS = {
    "rand": (lambda: dt.rand(N), 0.5, 1 / 12),
    "rand64": (lambda: dt.rand(N, dtype=dt.float64), 0.5, 1 / 12),
    "rand16": (lambda: dt.rand(N, dtype=dt.float16), 0.5, 1 / 12),
    "randn": (lambda: dt.randn(N), 0.0, 1.0),
    "randn64": (lambda: dt.randn(N, dtype=dt.float64), 0.0, 1.0),
    "randint": (lambda: dt.randint(3, 13, (N,)), 7.5, 99 / 12),
    "randint64": (lambda: dt.randint(0, 2**40, (N,)) / 2**40, 0.5, 1 / 12),
    "bernoulli": (lambda: dt.bernoulli(dt.full((N,), 0.3)), 0.3, 0.21),
    "poisson": (lambda: dt.poisson(dt.full((N,), 3.0)), 3.0, 3.0),
    "poisson30": (lambda: dt.poisson(dt.full((N,), 30.0)), 30.0, 30.0),
    "normal": (lambda: dt.normal(dt.full((N,), 2.0), 3.0), 2.0, 9.0),
    "normal_size": (lambda: dt.normal(2.0, 3.0, (N,)), 2.0, 9.0),
    "uniform_": (lambda: dt.empty(N).uniform_(-1, 3), 1.0, 16 / 12),
    "normal_": (lambda: dt.empty(N).normal_(1, 0.5), 1.0, 0.25),
    "log_normal_": (lambda: dt.empty(N).log_normal_(0.0, 0.5), np.exp(0.125), (np.exp(0.25) - 1) * np.exp(0.25)),
    "exponential_": (lambda: dt.empty(N).exponential_(2.0), 0.5, 0.25),
    "geometric_": (lambda: dt.empty(N).geometric_(0.25), 4.0, 12.0),
    "bernoulli_": (lambda: dt.empty(N).bernoulli_(0.25), 0.25, 0.1875),
    "random_": (lambda: dt.empty(N, dtype=dt.int32).random_(10), 4.5, 99 / 12),
    "dropout": (lambda: dt.nn.functional.dropout(dt.ones(N), 0.2), 1.0, 0.25),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name):
    draw, mean, variance = MOMENTS[name]
    dt.manual_seed(11)
    x = draw().double().numpy()
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / N)
    assert abs(x.var() / variance - 1) < 0.05


def test_uniform_and_normal_are_independent_and_shaped_right():
    dt.manual_seed(2)
    u, z = dt.rand(N).numpy(), dt.randn(N).numpy()
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, 50, (0, 1))[0]
    assert ((counts - N / 50) ** 2 / (N / 50)).sum() < 90  # chi squared, 49 degrees of freedom
    for lag in (1, 2, 3, 4):
        assert abs(np.corrcoef(z[:-lag], z[lag:])[0, 1]) < 0.01 and abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 0.01
    assert abs((np.abs(z) < 1).mean() - 0.682689) < 0.005 and abs((np.abs(z) > 2).mean() - 0.0455) < 0.003
    assert abs(np.mean(z**3)) < 0.03 and abs(np.mean(z**4) - 3) < 0.1
    median = np.median(dt.empty(N).cauchy_(1.0, 2.0).numpy())
    assert abs(median - 1) < 0.05


def test_dropout_backward_uses_the_same_mask():
    dt.manual_seed(4)
    x = dt.randn(40, 30, requires_grad=True)
    y = dt.nn.functional.dropout(x, 0.3)
    (g,) = dt.autograd.grad([y], [x], [dt.ones(40, 30)])
    kept = y.detach().numpy() != 0
    assert np.allclose(g.numpy(), np.where(kept, 1 / 0.7, 0))
    assert dt.nn.functional.dropout(x, 0.3, training=False) is x or np.array_equal(
        dt.nn.functional.dropout(x, 0.3, False).detach().numpy(), x.detach().numpy()
    )
    assert not dt.nn.functional.dropout(x, 1.0).detach().numpy().any()


def test_permutations():
    for n in (0, 1, 2, 100):
        assert sorted(dt.randperm(n).tolist()) == list(range(n))
    dt.manual_seed(1)
    first = np.array([dt.randperm(4)[0].item() for _ in range(400)])
    assert all(60 < (first == k).sum() < 140 for k in range(4))


def test_multinomial():
    dt.manual_seed(1)
    w = dt.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 5.0]])
    x = dt.multinomial(w, 20000, replacement=True).numpy()
    assert x.shape == (2, 20000)
    assert abs((x[0] == 2).mean() - 0.75) < 0.02 and not (x[0] == 1).any()
    assert abs((x[1] == 1).mean() - 0.5) < 0.02 and not (x[1] == 0).any()
    y = dt.multinomial(dt.ones(6), 6).numpy()
    assert sorted(y) == list(range(6))
    first = np.array([dt.multinomial(dt.tensor([1.0, 3.0]), 1).item() for _ in range(400)])
    assert 250 < first.sum() < 350
    mesh = dt.init_device_mesh("cpu", (2,))
    dt.manual_seed(5)
    a = dt.multinomial(w, 4, replacement=True)
    dt.manual_seed(5)
    b = dt.multinomial(dt.distribute_tensor(w, mesh, [dt.Shard(0)]), 4, replacement=True)
    assert np.array_equal(whole(a), whole(b))
