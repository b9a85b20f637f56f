"""Losses, norms, reductions and optimizer steps on meshes: equal to one device, and without gathers where a rule says so."""

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest

R, S = dt.Replicate, dt.Shard


def mesh(n):
    return dt.init_device_mesh("cpu", (n,))


def on(x, n, place):
    return dt.distribute_tensor(x, mesh(n), [place])


def collectives(fn):
    """fn(), and the collectives it caused."""
    dt.comm_report(reset=True)
    out = fn()
    return out, {r["kind"]: r["bytes"] for r in dt.comm_report(reset=True)}


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize(
    "options", [{}, {"weight": True}, {"label_smoothing": 0.1}, {"weight": True, "label_smoothing": 0.1, "reduction": "sum"}]
)
def test_cross_entropy_with_the_vocabulary_cut(devices, options):
    dt.manual_seed(0)
    x, t = dt.randn(17, 203), dt.randint(0, 203, (17,))
    t[3] = -100
    w = dt.rand(203) if options.get("weight") else None
    rest = {k: v for k, v in options.items() if k != "weight"}
    plain = x.detach().requires_grad_(True)
    want = F.cross_entropy(plain, t, weight=w, **rest)
    want.backward()
    cut = on(x, devices, S(1)).requires_grad_(True)
    labels, weights = on(t, devices, R()), None if w is None else on(w, devices, R())
    dt.synchronize()

    def run():
        loss = F.cross_entropy(cut, labels, weight=weights, **rest)
        loss.backward()
        return loss

    loss, moved = collectives(run)
    assert float(loss) == pytest.approx(float(want), rel=1e-5)
    assert cut.grad.placements == (S(1),)
    np.testing.assert_allclose(cut.grad.full_tensor().numpy(), plain.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert set(moved) <= {"all_reduce", "reduce", "broadcast", "scatter", "gather", "send"}, "logits must not be gathered"
    assert sum(moved.values()) < 17 * 203 * 4 * devices, f"only rows may move: {moved}"


def test_a_wrong_label_is_found_with_the_vocabulary_cut():
    x, t = on(dt.randn(4, 10), 2, S(1)), on(dt.tensor([1, 2, 10, 3]), 2, R())
    with pytest.raises(IndexError, match="Target 10 is out of bounds"):
        F.cross_entropy(x, t).item()


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_class_weights_of_a_cut_batch(devices):
    x = dt.tensor([[-1.0, 0.0], [-2.0, 0.0], [-3.0, 0.0], [0.0, -4.0]])
    t, w = dt.tensor([0, 0, 0, 1]), dt.tensor([1.0, 10.0])
    loss = F.nll_loss(on(x, devices, S(0)), on(t, devices, S(0)), on(w, devices, R()))
    assert float(loss) == pytest.approx(46 / 13)


@pytest.mark.parametrize("devices", [2, 4])
def test_choices_along_a_cut_dimension(devices):
    x = dt.tensor([10.0, 5.0, 3.0, 10.0, 8.0])
    y = on(x, devices, S(0))
    assert int(y.argmax()) == 0 and int(y.max(0).indices) == 0 and float(y.max()) == 10
    assert int(y.argmin()) == 2
    np.testing.assert_array_equal(y.topk(3).indices.full_tensor().numpy(), [0, 3, 4])
    np.testing.assert_array_equal(y.sort(stable=True).indices.full_tensor().numpy(), x.sort(stable=True).indices.numpy())
    np.testing.assert_array_equal(y.cumsum(0).full_tensor().numpy(), [10, 15, 18, 28, 36])


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (5, 3), (8, 2)])
@pytest.mark.parametrize("devices", [2, 4])
def test_statistics_of_uneven_shards(shape, devices):
    dt.manual_seed(1)
    x = dt.randn(shape)
    for dim in (0, 1):
        y = on(x, devices, S(dim))
        for name in ("mean", "var", "std", "sum", "norm", "amax", "amin", "logsumexp"):
            fn = lambda v, name=name: getattr(v, name)((0, 1)) if name == "logsumexp" else getattr(v, name)()
            np.testing.assert_allclose(fn(y).full_tensor().numpy(), fn(x).numpy(), rtol=1e-5, err_msg=f"{name} over {dim}")
        assert bool((y == y).all()) and not bool((y != y).any())


def test_reductions_of_a_cut_dimension_do_not_gather():
    x = on(dt.randn(64, 50), 4, S(0))
    dt.synchronize()
    for fn in (lambda: x.sum(0), lambda: x.mean(), lambda: x.amax(0), lambda: x.var(0), lambda: x.norm(), lambda: x.logsumexp(0)):
        out, moved = collectives(lambda fn=fn: fn().full_tensor())
        assert "all_gather" not in moved, moved


@pytest.mark.parametrize("place", [S(0), S(1), R()])
def test_batch_norm_of_a_cut_batch(place):
    dt.manual_seed(2)
    x = dt.randn(5, 3, 4)
    mean, var = dt.zeros(3), dt.ones(3)
    want = F.batch_norm(x, mean, var, training=True, momentum=0.3)
    m, v = on(dt.zeros(3), 2, R()), on(dt.ones(3), 2, R())
    got = F.batch_norm(on(x, 2, place), m, v, training=True, momentum=0.3)
    np.testing.assert_allclose(got.full_tensor().numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(m.full_tensor().numpy(), mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v.full_tensor().numpy(), var.numpy(), rtol=1e-5)


@pytest.mark.parametrize("grad_place", [S(0), R()])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_with_sharded_state(grad_place, amsgrad):
    from dtorch import _C

    step = _C._ops.adam_step
    dt.manual_seed(3)
    shapes = [dt.randn(7, 3) for _ in range(2)] + [dt.zeros(7, 3) for _ in range(3 if amsgrad else 2)]
    rest = (0.01, 0.9, 0.99, 1e-8, 0.1, 0.1, 0.01, True, False)
    plain = [x.clone() for x in shapes]
    cut = [on(x, 3, grad_place if i == 1 else S(0)) for i, x in enumerate(shapes)]
    for tensors in (plain, cut):
        step(*tensors, *([] if amsgrad else [None]), *rest)
    for a, b in zip(plain, cut, strict=True):
        np.testing.assert_allclose(b.full_tensor().numpy(), a.numpy(), rtol=1e-6, atol=1e-7)
    assert cut[0].placements == (S(0),)
