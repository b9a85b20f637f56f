"""Faults that distributed frameworks have shipped. Each test names the right value: what the same calls give on the whole tensor."""

import dtorch
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh


def mesh(*shape):
    return init_device_mesh("cpu", shape)


def spread(x, m, *placements):
    return distribute_tensor(dtorch.as_tensor(x), m, list(placements))


def partial(values, m=None, op="sum"):
    """A Partial whose i-th device holds values[i]."""
    m = m or mesh(len(values))
    return dtorch.Tensor.from_local([dtorch.tensor(v, device=f"cpu:{i}") for i, v in enumerate(values)], m, [Partial(op)])


def whole(t):
    return t.full_tensor().detach().numpy()


# ---- uneven shards
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (5, 3), (7, 1)])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_mean_of_uneven_and_empty_shards(shape, devices, dim):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    t = spread(x, mesh(devices), Shard(dim))
    assert t.mean().item() == pytest.approx(x.mean())
    np.testing.assert_allclose(whole(t.mean(0)), x.mean(0))
    np.testing.assert_allclose(whole(t.mean(1)), x.mean(1))
    np.testing.assert_allclose(whole(t.var(0, correction=0)), x.var(0), rtol=1e-5)
    np.testing.assert_allclose(whole(t.amax(dim)), x.max(dim))
    np.testing.assert_allclose(whole(t.amin(dim)), x.min(dim))


def test_mean_named_value():
    assert spread(np.arange(12, dtype=np.float32).reshape(3, 4), mesh(2), Shard(0)).mean().item() == 5.5


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("devices", [2, 3, 4, 7])
def test_shard_replicate_shard_is_exact(dim, devices):
    x = np.random.default_rng(0).standard_normal((5, 10)).astype(np.float32)
    t = spread(x, mesh(devices), Shard(dim))
    r = t.redistribute(placements=[Replicate()]).redistribute(placements=[Shard(dim)])
    assert tuple(r.shape) == (5, 10) and r.placements == (Shard(dim),)
    np.testing.assert_array_equal(whole(r), x)


def test_local_sizes_are_chunks():
    t = spread(np.zeros((5, 10), np.float32), mesh(4), Shard(0))
    assert [t.to_local(i).shape[0] for i in range(4)] == [2, 2, 1, 0]


def test_checkpoint_of_an_empty_shard(tmp_path):
    x = np.arange(6, dtype=np.float32)
    t = spread(x, mesh(4), Shard(0))
    assert [t.to_local(i).shape[0] for i in range(4)] == [2, 2, 2, 0]
    dtorch.safetensors.save_file({"x": t}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(dtorch.safetensors.load_file(tmp_path / "x.safetensors")["x"].numpy(), x)
    u = spread(np.zeros(6, np.float32), mesh(4), Shard(0))
    u.copy_(dtorch.safetensors.load_file(tmp_path / "x.safetensors")["x"])
    np.testing.assert_array_equal(whole(u), x)


# ---- Partial
def test_adding_to_a_partial_adds_once():
    assert (partial([10.0, 35.0]) + 10).item() == 55
    assert (10 - partial([10.0, 35.0])).item() == -35
    assert (partial([10.0, 35.0]) * 2).item() == 90
    p = partial([10.0, 35.0])
    p += 10
    assert p.item() == 55


@pytest.mark.parametrize("op,want", [("sum", 45.0), ("avg", 22.5), ("max", 35.0), ("min", 10.0)])
def test_kinds_of_partial(op, want):
    p = partial([10.0, 35.0], op=op)
    assert p.item() == want and (p + p).item() == 2 * want and dtorch.relu(p).item() == want


def test_clamp_in_place_on_a_partial():
    p = partial([3.0, -2.5])
    p.clamp_(max=2)
    assert p.item() == 0.5 and p.placements == (Replicate(),)
    q = partial([3.0, 2.5])
    q.clamp_(max=2)
    assert q.item() == 2


def test_numbers_reach_the_kernel():
    x = spread(np.arange(8, dtype=np.float32), mesh(2), Shard(0))
    assert [(x.mean() * k).item() for k in (1, 2, 3)] == [3.5, 7.0, 10.5]


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Partial()])
def test_from_local_of_to_local_keeps_gradients(placement):
    m = mesh(2)
    x = dtorch.arange(4.0, requires_grad=True)
    t = distribute_tensor(x, m, [Replicate()])
    if not isinstance(placement, Replicate):
        t = t.redistribute(placements=[placement])
    y = dtorch.Tensor.from_local([t.to_local(i) for i in range(2)], m, [placement])
    (y.redistribute(placements=[Replicate()]) * dtorch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    np.testing.assert_array_equal(x.grad.full_tensor().numpy() if x.grad.device_mesh is not None else x.grad.numpy(), [1, 2, 3, 4])


# ---- indices and views on a sharded dimension
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_indices_are_global(devices):
    m = mesh(devices)
    x = np.array([10, 5, 3, 8, 10], np.float32)
    t = spread(x, m, Shard(0))
    assert t.argmax().item() == 0 and t.argmin().item() == 2
    v, i = t.max(0)
    assert (v.item(), i.item()) == (10, 0)
    v, i = t.topk(3)
    np.testing.assert_array_equal(whole(v), [10, 10, 8])
    v, i = t.sort(stable=True)
    np.testing.assert_array_equal(whole(v), np.sort(x))
    np.testing.assert_array_equal(whole(i), np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(whole(t.cumsum(0)), x.cumsum())
    assert spread(np.array([10, 5, 3, 8], np.float32), mesh(2), Shard(0)).argmax().item() == 0


def test_writes_through_views_of_shards():
    for devices in (2, 3):
        x = spread(np.ones((5, 4), np.float32), mesh(devices), Shard(0))
        x[:2].zero_()
        want = np.ones((5, 4), np.float32)
        want[:2] = 0
        np.testing.assert_array_equal(whole(x), want)
        x[1:][:, 2:].mul_(7)
        want[1:][:, 2:] *= 7
        np.testing.assert_array_equal(whole(x), want)
        y = x.t()
        y[3].add_(1)
        want.T[3] += 1
        np.testing.assert_array_equal(whole(x), want)
        np.testing.assert_array_equal(whole(y), want.T)


def test_two_mesh_dimensions_on_one_tensor_dimension():
    m = mesh(2, 2)
    t = spread(np.arange(6), m, Shard(0), Shard(0))
    np.testing.assert_array_equal(whole(t), np.arange(6))
    assert [t.to_local(i).tolist() for i in range(4)] == [[0, 1], [2], [3, 4], [5]]
    np.testing.assert_array_equal(whole(t.flip(0)), np.arange(6)[::-1])
    np.testing.assert_array_equal(whole(t.view(2, 3)), np.arange(6).reshape(2, 3))


# ---- embedding and loss
def test_two_vocabulary_sharded_embeddings_in_one_step():
    m, rng = mesh(2), np.random.default_rng(1)
    w = [rng.standard_normal((7, 3)).astype(np.float32) for _ in range(2)]
    ids = [np.array([0, 6, 3, 3]), np.array([5, 1, 0, 2])]
    ts = [spread(x, m, Shard(0)).requires_grad_() for x in w]
    outs = [F.embedding(spread(i, m, Replicate()), t) for i, t in zip(ids, ts)]
    for o, x, i in zip(outs, w, ids):
        np.testing.assert_allclose(whole(o), x[i])
    (outs[0] * 2).sum().backward()
    (outs[1] * 3).sum().backward()
    for t, i, k in zip(ts, ids, (2, 3)):
        want = np.zeros((7, 3), np.float32)
        np.add.at(want, i, k)
        np.testing.assert_array_equal(whole(t.grad), want)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
@pytest.mark.parametrize("devices", [2, 3])
def test_class_weighted_mean(devices, placement):
    m = mesh(devices)
    logp = np.zeros((4, 4), np.float32)
    for i in range(4):
        logp[i, i] = -(i + 1)
    weight = np.array([1, 1, 1, 10], np.float32)
    loss = F.nll_loss(spread(logp, m, placement), spread(np.arange(4), m, placement), weight=spread(weight, m, Replicate()))
    assert loss.item() == pytest.approx(3.53846, abs=1e-5)


def test_labels_shifted_before_the_sequence_is_sharded():
    m, rng = mesh(2), np.random.default_rng(2)
    tokens = rng.integers(0, 11, (1, 9))
    logits = rng.standard_normal((1, 8, 11)).astype(np.float32)
    lt = spread(logits, m, Shard(1)).requires_grad_()
    got = F.cross_entropy(lt.view(-1, 11), spread(tokens[:, 1:].copy(), m, Shard(1)).view(-1))
    p = dtorch.tensor(logits, requires_grad=True)
    want = F.cross_entropy(p.view(-1, 11), dtorch.tensor(tokens[:, 1:].copy()).view(-1))
    assert got.item() == pytest.approx(want.item(), abs=1e-6)
    got.backward()
    want.backward()
    np.testing.assert_allclose(whole(lt.grad), p.grad.numpy(), atol=1e-7)


# ---- gradients, norms, random numbers
def test_gradient_norm_counts_each_parameter_once():
    m = mesh(2, 2)
    rng = np.random.default_rng(3)
    places = [(Replicate(), Replicate()), (Shard(0), Replicate()), (Replicate(), Shard(0)), (Shard(0), Shard(0)), (Shard(0), Shard(1))]
    params, grads = [], []
    for p in places:
        t = dtorch.nn.Parameter(spread(np.zeros((5, 3), np.float32), m, *p))
        g = rng.standard_normal((5, 3)).astype(np.float32)
        t.grad = spread(g, m, *p)
        params.append(t)
        grads.append(g)
    norm = dtorch.nn.utils.clip_grad_norm_(params, 1.0)
    want = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
    assert norm.item() == pytest.approx(want, rel=1e-6)
    for p, g in zip(params, grads):
        np.testing.assert_allclose(whole(p.grad), g / (want + 1e-6), rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
def test_random_numbers_do_not_depend_on_the_mesh(devices, placement):
    def draw(**kw):
        dtorch.manual_seed(7)
        x = [dtorch.rand(5, 6, **kw), dtorch.randn(5, 6, **kw), dtorch.randint(0, 100, (5, 6), **kw)]
        x.append(F.dropout(dtorch.ones(5, 6, **kw), 0.4))
        x.append(dtorch.bernoulli(dtorch.full((5, 6), 0.3, **kw)))
        x.append(dtorch.empty(5, 6, **kw).normal_())
        return x

    plain = draw()
    for p, d in zip(plain, draw(device_mesh=mesh(devices), placements=[placement])):
        assert d.placements == (placement,)
        np.testing.assert_array_equal(whole(d), p.numpy())


@pytest.mark.every_pass("counts plans")
# ---- engine
@pytest.mark.usefixtures("on_simulated_device")
def test_a_hundred_adamw_steps_make_no_new_plans():
    from dtorch import _C

    w = dtorch.nn.Parameter(dtorch.ones(4, 4))
    opt = dtorch.optim.AdamW([w], lr=1e-2)
    sched = dtorch.optim.lr_scheduler.ExponentialLR(opt, 0.99)

    def step():
        opt.zero_grad()
        ((w * 2) ** 2).sum().backward()
        opt.step()
        sched.step()
        return w.sum().item()

    for _ in range(60):
        step()
    before = _C._engine_stats()
    for _ in range(100):
        step()
    after = _C._engine_stats()
    assert after["plans_built"] == before["plans_built"]
    assert after["plan_hits"] - before["plan_hits"] >= 100


def test_five_hundred_shapes_leave_bounded_caches():
    from dtorch import _C

    for n in range(1, 501):
        dtorch.ones(n, 3).mul(2).sum().item()
    s = _C._engine_stats()
    assert s["plans_cached"] <= 256
    assert dtorch.memory_stats("cpu:0")["reserved"] < 512 << 20


def test_a_late_error_names_its_line_and_harms_nobody_else():
    x, ids = dtorch.arange(10.0), dtorch.tensor([1, 2, 99])
    keep, bad = [], None
    for k in range(200):
        if k == 77:
            bad = x.index_select(0, ids)  # the faulty line
        keep.append(x * k)
    after = bad * 2
    assert keep[150].sum().item() == 45 * 150
    with pytest.raises(IndexError) as e:
        after.sum().item()
    assert "99" in str(e.value) and "test_faults.py" in str(e.value)
    line = open(__file__).read().split("\n").index("            bad = x.index_select(0, ids)  # the faulty line") + 1
    assert str(line) in str(e.value)
    assert (x + 1).sum().item() == 55
