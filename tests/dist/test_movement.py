"""Views, writes through views, and indexing on sharded tensors: values of the one-device run, and no gather where a rule can be stated."""

import dtorch as dt
import numpy as np
import pytest

R, S = dt.Replicate, dt.Shard


def mesh(n=2):
    return dt.init_device_mesh("cpu", (n,))


def spread(x, placement, n=2):
    return dt.distribute_tensor(dt.tensor(x), mesh(n), [placement])


def whole(n=24, shape=(4, 6)):
    return np.arange(n, dtype=np.float32).reshape(shape)


@pytest.fixture
def strict():
    """Any implied redistribution is an error."""
    before = dt.redistribute_policy("error")
    yield
    dt.redistribute_policy(before if isinstance(before, str) else "auto")


LOCAL = {
    "split a dim": (lambda x: x.view(2, 2, 8, 6), S(0), (2, 2, 8, 6), S(0)),
    "merge dims": (lambda x: x.view(32, 6), S(0), (32, 6), S(0)),
    "merge heads": (lambda x: x.view(4, 48), S(1), (4, 48), S(1)),
    "split heads": (lambda x: x.view(4, 4, 2, 6), S(1), (4, 4, 2, 6), S(1)),
    "transpose": (lambda x: x.transpose(0, 1), S(0), (8, 4, 6), S(1)),
    "permute": (lambda x: x.permute(2, 0, 1), S(0), (6, 4, 8), S(1)),
    "select": (lambda x: x[:, 3], S(2), (4, 6), S(1)),
    "slice": (lambda x: x[:, 1:7:2], S(0), (4, 3, 6), S(0)),
    "unsqueeze": (lambda x: x.unsqueeze(1), S(1), (4, 1, 8, 6), S(2)),
    "squeeze": (lambda x: x[:, :1].squeeze(1), S(2), (4, 6), S(1)),
    "expand": (lambda x: x[:, :1].expand(4, 5, 6), S(0), (4, 5, 6), S(0)),
    "split": (lambda x: x.split(4, 1)[1], S(2), (4, 4, 6), S(2)),
    "unbind": (lambda x: x.unbind(1)[2], S(0), (4, 6), S(0)),
    "cat": (lambda x: dt.cat([x, x], 1), S(0), (4, 16, 6), S(0)),
    "stack": (lambda x: dt.stack([x, x]), S(1), (2, 4, 8, 6), S(2)),
    "tril": (lambda x: x.tril(), S(1), (4, 8, 6), S(1)),
    "pad": (lambda x: dt.nn.functional.pad(x, (1, 2)), S(0), (4, 8, 9), S(0)),
    "flip": (lambda x: x.flip(1), S(2), (4, 8, 6), S(2)),
    "whole slice": (lambda x: x[:], S(0), (4, 8, 6), S(0)),
}


@pytest.mark.parametrize("name", LOCAL)
def test_views_stay_where_they_are(name, strict):
    f, before, shape, after = LOCAL[name]
    x = np.arange(192, dtype=np.float32).reshape(4, 8, 6)
    y = f(spread(x, before))
    assert tuple(y.shape) == shape
    assert tuple(y.placements) == (after,)
    np.testing.assert_array_equal(y.full_tensor().numpy(), f(dt.tensor(x)).numpy())


WRITES = {
    "rows": lambda x: x[:2].zero_(),
    "columns": lambda x: x[:, 1:4].mul_(3),
    "a view of a view": lambda x: x[1:][:, ::2].add_(100),
    "transposed": lambda x: x.t()[2].fill_(7),
    "flat": lambda x: x.view(-1)[3:9].neg_(),
    "one": lambda x: x[3, 5].fill_(-1),
    "diagonal": lambda x: x.diagonal().add_(50),
    "pieces": lambda x: [c.mul_(i) for i, c in enumerate(x.split([1, 2, 1]))],
    "assignment": lambda x: x.__setitem__((slice(1, 3), slice(None, None, 2)), 5.0),
    "mask": lambda x: x.__setitem__(x > 11, 0.0),
}


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views_reach_the_base(name, dim, devices):
    plain, x = dt.tensor(whole()), spread(whole(), S(dim), devices)
    WRITES[name](plain)
    WRITES[name](x)
    assert tuple(x.placements) == (S(dim),)
    np.testing.assert_array_equal(x.full_tensor().numpy(), plain.numpy())


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("ids", [R(), S(0)])
@pytest.mark.parametrize("table", [R(), S(0), S(1)])
def test_embedding_of_a_sharded_table(table, ids, devices):
    rng = np.random.default_rng(0)
    w, i = rng.standard_normal((7, 5)), rng.integers(0, 7, (4, 3))
    weight = spread(w, table, devices).requires_grad_()
    y = dt.nn.functional.embedding(spread(i, ids, devices), weight)
    np.testing.assert_allclose(y.full_tensor().detach().numpy(), w[i])
    if table == S(0) and ids == R():
        assert y.placements[0] == dt.Partial("sum")
    (y * y).sum().backward()
    want = np.zeros_like(w)
    np.add.at(want, i.ravel(), 2 * w[i].reshape(-1, 5))
    assert tuple(weight.grad.placements) == (table,)
    np.testing.assert_allclose(weight.grad.full_tensor().numpy(), want)


def test_two_sharded_embeddings_do_not_mix():
    rng = np.random.default_rng(1)
    tables = [rng.standard_normal((6, 4)) for _ in range(2)]
    ids = [np.array([0, 5, 2]), np.array([3, 3, 1])]
    weights = [spread(w, S(0)).requires_grad_() for w in tables]
    ys = [dt.nn.functional.embedding(dt.distribute_tensor(dt.tensor(i), mesh(), [R()]), w) for i, w in zip(ids, weights, strict=True)]
    (ys[0].sum() + 2 * ys[1].sum()).backward()
    for k, (i, w) in enumerate(zip(ids, weights, strict=True)):
        want = np.zeros((6, 4))
        np.add.at(want, i, float(k + 1))
        np.testing.assert_allclose(w.grad.full_tensor().numpy(), want)


def test_an_index_out_of_range_is_found_on_a_shard():
    w = spread(np.zeros((6, 2)), S(0))
    y = dt.nn.functional.embedding(dt.distribute_tensor(dt.tensor([6]), mesh(), [R()]), w)
    with pytest.raises(IndexError, match="index 6, legal are 0 to 5"):
        y.full_tensor().numpy()


@pytest.mark.parametrize("dim", [0, 1])
def test_index_select_and_gather_on_the_sharded_dimension(dim):
    x = whole()
    i = np.array([3, 0, 2])
    y = spread(x, S(dim), 3).index_select(dim, dt.distribute_tensor(dt.tensor(i), mesh(3), [R()]))
    np.testing.assert_array_equal(y.full_tensor().numpy(), np.take(x, i, dim))
    k = np.array([[1, 0, 3, 2, 1, 0], [2, 2, 0, 0, 1, 1], [0, 1, 2, 3, 3, 3], [1, 1, 1, 1, 1, 1]])
    z = spread(x, S(dim), 3).gather(dim, dt.distribute_tensor(dt.tensor(k), mesh(3), [R()]))
    np.testing.assert_array_equal(z.full_tensor().numpy(), np.take_along_axis(x, k, dim))


def test_partial_passes_views_and_stays_partial(strict):
    parts = [dt.tensor(whole()), dt.tensor(whole() * 10)]
    p = dt.DTensor.from_local(parts, mesh(), [dt.Partial("sum")])
    for f in (lambda x: x.t(), lambda x: x.view(2, 12), lambda x: x[1:, 2], lambda x: x.tril(), lambda x: dt.cat([x, x])):
        y = f(p)
        assert y.placements[0] == dt.Partial("sum")
        np.testing.assert_array_equal(y.redistribute(placements=[R()]).full_tensor().numpy(), f(dt.tensor(whole() * 11)).numpy())
