"""Gradients that are sums over devices: when they are summed up, how often, and where they lie."""

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor import distribute_module

R, S = Replicate, Shard


@pytest.fixture
def line():
    return init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))


def leaf(mesh, *size, place=None):
    return distribute_tensor(dt.randn(*size), mesh, place).requires_grad_(True)


def batch(mesh, *size):
    return distribute_tensor(dt.randn(*size), mesh, [S(0)] + [R()] * (mesh.ndim - 1))


def sums(report):
    return report.only({"all_reduce", "reduce_scatter"}).count


@pytest.mark.parametrize("shape", [(4,), (3,), (2, 2)])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_accumulation_communicates_once(shape, micro_batches):
    mesh = init_device_mesh("cpu", shape)
    dt.manual_seed(0)
    w = leaf(mesh, 6, 5)
    plain = w.full_tensor().detach().requires_grad_(True)
    xs = [dt.randn(7, 6) for _ in range(micro_batches)]
    cut = [distribute_tensor(x, mesh, [S(0)] * mesh.ndim) for x in xs]
    for step in range(2):
        with dt.comm_scope() as report:
            for x in cut:
                ((x @ w).sin()).sum().backward()
            w.grad.sum().item()
        assert report.only("all_reduce").count == 1 and w.grad.placements == w.placements
        assert report.bytes == 2 * (mesh.size() - 1) * 30 * 4
        for x in xs:
            ((x @ plain).sin()).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), plain.grad.numpy(), rtol=1e-5, atol=1e-5)
        w.grad = plain.grad = None


def test_a_step_reads_gradients_once(line):
    dt.manual_seed(0)
    model = distribute_module(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), line)
    optimizer = dt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    size = sum(p.numel() * 4 for p in model.parameters())
    for _ in range(3):
        with dt.comm_scope() as report:
            optimizer.zero_grad()
            for _ in range(3):
                F.mse_loss(model(batch(line, 12, 8)), batch(line, 12, 4)).backward()
            optimizer.step()
        dp = report.only("all_reduce")
        assert sum(r["bytes"] for r in dp if r["bytes"] > 4 * 24) <= 2 * 3 * size
        assert 2 * 3 * size <= dp.bytes <= 2 * 3 * (size + 6 * 4)  # besides, a number or two for each loss
        assert all(p.grad.placements == (R(),) for p in model.parameters())


def test_what_holds_grad_sees_further_contributions(line):
    w = leaf(line, 4)
    (batch(line, 8, 4) * w).sum().backward()
    held = w.grad
    before = held.numpy()
    x = batch(line, 8, 4)
    (x * w).sum().backward()
    np.testing.assert_allclose(held.numpy(), before + x.numpy().sum(0), rtol=1e-5)
    assert w.grad is held or (w.grad.numpy() == held.numpy()).all()
    held.zero_()
    (x * w).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), x.numpy().sum(0), rtol=1e-5)


def test_contributions_that_need_no_sum_are_added(line):
    w = leaf(line, 4)
    x = batch(line, 8, 4)
    (x * w).sum().backward()  # a sum over devices
    (3 * w).sum().backward()  # none
    (x * w).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * x.numpy().sum(0) + 3, rtol=1e-5)
    w.grad = None
    assert w.grad is None
    (x * w).sum().backward()
    w.grad = None  # what waits goes too
    assert w.grad is None
    (x * w).sum().backward()
    w.grad = distribute_tensor(dt.ones(4), line)
    np.testing.assert_array_equal(w.grad.numpy(), 1)
    w.requires_grad_(False)
    assert w.grad is not None


def test_hooks_see_sums(line):
    w, x, seen = leaf(line, 4), batch(line, 8, 4), []
    w.register_hook(lambda g: seen.append(g.placements))
    (x * w).sum().backward()
    v = leaf(line, 4)
    v.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.placements))
    (x * v).sum().backward()
    (g,) = dt.autograd.grad((x * leaf(line, 4) * v).sum(), [v])
    assert seen == [(R(),), (R(),)] and g.placements == (R(),)
    np.testing.assert_allclose(w.grad.numpy(), x.numpy().sum(0), rtol=1e-5)
    np.testing.assert_allclose(v.grad.numpy(), x.numpy().sum(0), rtol=1e-5)


def test_a_recorded_backward_does_not_wait(line):
    w, x = leaf(line, 4), batch(line, 8, 4)
    (x * w * w).sum().backward(create_graph=True)
    assert w.grad.requires_grad
    (second,) = dt.autograd.grad(w.grad.sum(), w)
    np.testing.assert_allclose(second.numpy(), 2 * x.numpy().sum(0), rtol=1e-5)


def test_rows_name_the_backward_pass(line):
    w = leaf(line, 4)
    with dt.comm_scope() as report:
        (batch(line, 8, 4) * w).sum().backward()
        source = "grad = w.grad.numpy()"
        exec(source, {"w": w})
    row = report.only("all_reduce").by("file", "line")[0]
    assert row["file"] == __file__


def test_grad_placements():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    w = leaf(mesh, 6, 4, place={"tp": S(1)})
    assert w.grad_placements == (R(), S(1)) == w.placements
    w.grad_placements = {"dp": S(0)}
    assert w.grad_placements == (S(0), S(1))
    x = distribute_tensor(dt.randn(8, 6), mesh, {"dp": S(0)})
    with dt.comm_scope() as report:
        (x @ w).sum().backward()
        (x @ w).sin().sum().backward()
        w.grad.numpy()
    assert w.grad.placements == (S(0), S(1)) and [(r["kind"], r["mesh_dim"]) for r in report.by("kind", "mesh_dim")] == [
        ("reduce_scatter", "dp")
    ]
    assert report.bytes == 2 * 6 * 4 * 4 * 1  # twice, all of it once over dp
    plain = w.full_tensor().detach().requires_grad_(True)
    (x.full_tensor() @ plain).sum().backward()
    (x.full_tensor() @ plain).sin().sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), plain.grad.numpy(), rtol=1e-5, atol=1e-5)
    w.grad, w.grad_placements = None, None
    assert w.grad_placements == w.placements
    part = dt.Tensor.from_local([dt.ones(2)] * 4, mesh, [Partial(), R()]).requires_grad_(True)
    assert part.grad_placements == (R(), R())
    w.grad_placements = [S(0), R()]
    (x @ w).sum().backward()
    assert w.grad.placements == (S(0), R())
    with pytest.raises(dt.PlacementError, match="not Partial"):
        w.grad_placements = [Partial(), R()]
    with pytest.raises(RuntimeError, match="not a leaf"):
        (w * 2).grad_placements = [R(), R()]
    with pytest.raises(ValueError, match="1 given"):
        w.grad_placements = [R()]
