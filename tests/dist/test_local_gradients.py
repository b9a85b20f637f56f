"""Placements of gradients: to_local, from_local, redistribute, parameters; functions of local tensors."""

import dtorch
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from dtorch.distributed.tensor import local_map

R, S, P = Replicate(), Shard, Partial()


def spread(a, shape, *placements):
    return distribute_tensor(dtorch.tensor(a), init_device_mesh("cpu", shape), list(placements)).requires_grad_()


X = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize("placements, times", [([R], 1), ([P], 3), (None, 3)])
def test_copies_that_do_the_same_work(placements, times):
    x = spread(X, (3,), R)
    sum((p * p).sum().to("cpu:0") for p in x.to_local(grad_placements=placements)).backward()
    np.testing.assert_allclose(x.grad.full_tensor().numpy(), times * 2 * X)
    assert x.grad.placements == x.placements


def test_parts_without_a_gradient_count_as_zero():
    x = spread(X, (3,), S(0))
    x.to_local(1, grad_placements=[S(0)]).sum().backward()
    want = np.zeros_like(X)
    want[2:4] = 1
    np.testing.assert_array_equal(x.grad.full_tensor().numpy(), want)
    y = x.to_local(grad_placements=[S(0)])
    assert [p.shape[0] for p in y] == [2, 2, 1] and y[1].device == x.device_mesh.devices[1]


def test_gradients_of_redistribute_lie_as_asked():
    seen = []
    x = spread(X, (4,), R)
    y = x * 1
    y.register_hook(lambda g: seen.append(g.placements))
    (y.redistribute(placements=[S(0)], grad_placements=[S(1)]) * 2).sum().backward()
    (y.detach().requires_grad_() * 1).sum()
    assert seen == [(S(1),)]
    np.testing.assert_array_equal(x.grad.full_tensor().numpy(), np.full_like(X, 2))
    assert x.grad.placements == (R,)
    w = dtorch.tensor(X, requires_grad=True)
    mesh = init_device_mesh("cpu", (4,))
    (distribute_tensor(w, mesh, [S(0)], grad_placements=[R]) * 3).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full_like(X, 3))


def test_gradients_of_from_local_lie_as_asked():
    mesh = init_device_mesh("cpu", (2,))
    parts = [dtorch.ones(2, 3, device=f"cpu:{i}", requires_grad=True) for i in range(2)]
    seen = []
    y = dtorch.Tensor.from_local(parts, mesh, [S(0)], grad_placements=[R])
    z = y * dtorch.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    z.register_hook(lambda g: seen.append(g.placements))
    z.sum().backward()
    np.testing.assert_array_equal(np.concatenate([p.grad.numpy() for p in parts]), np.arange(12).reshape(4, 3))


@pytest.mark.parametrize("placement", [R, S(0), S(1)])
@pytest.mark.parametrize("use", ["contract", "add", "gather"])
def test_a_parameters_gradient_has_the_parameters_placements(placement, use):
    w = spread(X, (4,), placement)
    x = distribute_tensor(dtorch.tensor(X), w.device_mesh, [S(0)])
    y = {"contract": lambda: x @ w.t(), "add": lambda: x + w, "gather": lambda: w[dtorch.tensor([0, 3, 3])]}[use]()
    y.sum().backward()
    assert w.grad.placements == w.placements
    v = dtorch.tensor(X, requires_grad=True)
    u = dtorch.tensor(X)
    {"contract": lambda: u @ v.t(), "add": lambda: u + v, "gather": lambda: v[dtorch.tensor([0, 3, 3])]}[use]().sum().backward()
    np.testing.assert_allclose(w.grad.full_tensor().numpy(), v.grad.numpy())


def test_local_map_contracts_over_shards():
    a, b = spread(X, (3,), S(1)), spread(X.T.copy(), (3,), S(0))
    multiply = local_map(lambda p, q, scale: p @ q * scale, out_placements=[P], in_placements=([S(1)], [S(0)], None))
    y = multiply(a, b, 2.0)
    assert y.placements == (P,)
    np.testing.assert_allclose(y.full_tensor().detach().numpy(), X @ X.T * 2)
    (y * y).sum().backward()
    u, v = dtorch.tensor(X, requires_grad=True), dtorch.tensor(X.T.copy(), requires_grad=True)
    z = u @ v * 2.0
    (z * z).sum().backward()
    np.testing.assert_allclose(a.grad.full_tensor().numpy(), u.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(b.grad.full_tensor().numpy(), v.grad.numpy(), rtol=1e-5)


def test_local_map_checks_and_moves_its_arguments():
    a = spread(X, (4,), S(0))
    f = local_map(lambda p: (p.softmax(0), p.shape[0]), out_placements=([S(1)], None), in_placements=([S(1)],))
    with pytest.raises(ValueError, match="argument 0 has placements"):
        f(a)
    y, n = local_map(lambda p: (p.softmax(0), p.shape[0]), ([S(1)], None), ([S(1)],), redistribute_inputs=True)(a)
    assert n == 5 and y.placements == (S(1),)
    np.testing.assert_allclose(y.full_tensor().detach().numpy(), dtorch.tensor(X).softmax(0).numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="no argument lies on a mesh"):
        f(3)
