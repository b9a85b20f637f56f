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


# ---- a sharded class or feature dimension: numbers a row move, never the rows -----------------------------------------------------------
ROWS, WIDE = 12, 203


def only_rows(moved, devices, numbers):
    """Nothing but sums over devices, of at most `numbers` numbers a row on each."""
    assert set(moved) <= {"all_reduce", "reduce_scatter", "transfer"}, moved
    assert sum(moved.values()) <= 2 * devices * ROWS * 4 * numbers, moved


FUNCTIONS = {
    "softmax": lambda x, w, b, t: F.softmax(x, 1),
    "log_softmax": lambda x, w, b, t: F.log_softmax(x, -1),
    "nll_of_log_softmax": lambda x, w, b, t: F.nll_loss(F.log_softmax(x, 1), t, reduction="none"),
    "cross_entropy_none": lambda x, w, b, t: F.cross_entropy(x, t, reduction="none"),
    "cross_entropy_sum": lambda x, w, b, t: F.cross_entropy(x, t, reduction="sum", ignore_index=5, label_smoothing=0.2),
    "cross_entropy_weighted": lambda x, w, b, t: F.cross_entropy(x, t, w.detach().abs(), label_smoothing=0.1),
    "probabilities": lambda x, w, b, t: F.cross_entropy(x, F.softmax(x.detach() * 2, 1), label_smoothing=0.1),
    "layer_norm": lambda x, w, b, t: F.layer_norm(x, (WIDE,), w, b),
    "rms_norm": lambda x, w, b, t: F.rms_norm(x, (WIDE,), w),
}


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_cut_dimension_move_numbers_a_row(name, devices):
    dt.manual_seed(0)
    made = [dt.randn(ROWS, WIDE), dt.randn(WIDE), dt.randn(WIDE)]
    t = dt.randint(0, WIDE, (ROWS,))
    t[2] = 5
    fn = FUNCTIONS[name]
    plain = [v.clone().requires_grad_(True) for v in made]
    y = fn(*plain, t)
    g = dt.randn(y.shape)
    (y * g).sum().backward()
    vector = S(0) if name.endswith("norm") else R()
    cut = [on(made[0], devices, S(1)), on(made[1], devices, vector), on(made[2], devices, vector)]
    cut = [v.requires_grad_(True) for v in cut]
    labels, scale = on(t, devices, R()), on(g, devices, S(1) if g.ndim == 2 else R())
    dt.synchronize()
    held = []
    _, moved = collectives(lambda: (held.append(fn(*cut, labels)), dt.synchronize()))
    only_rows(moved, devices, 6)

    def backward():
        (held[0] * scale).sum().backward()
        dt.synchronize()

    _, moved = collectives(backward)
    only_rows(moved, devices, 6)
    np.testing.assert_allclose(held[0].detach().full_tensor().numpy(), y.detach().numpy(), rtol=2e-5, atol=2e-6)
    for a, b in zip(cut, plain, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            np.testing.assert_allclose(a.grad.full_tensor().numpy(), b.grad.numpy(), rtol=2e-4, atol=1e-5)
    assert cut[0].grad.placements == (S(1),)


def test_rows_of_minus_infinity_in_a_cut_softmax():
    x = dt.zeros(2, 6)
    x[0, :5] = float("-inf")
    x[1, :] = float("-inf")
    y = F.softmax(on(x, 3, S(1)), 1).full_tensor().numpy()
    np.testing.assert_array_equal(y[0], [0, 0, 0, 0, 0, 1])
    assert np.isnan(y[1]).all() and np.isnan(F.softmax(x, 1).numpy()[1]).all()


def test_two_cut_embeddings_in_one_step():
    """Different ids, then both backwards: masks are not mixed up."""
    dt.manual_seed(1)
    tables, ids = [dt.randn(11, 4) for _ in range(2)], [dt.randint(0, 11, (3, 5)) for _ in range(2)]
    scale = [dt.randn(3, 5, 4) for _ in range(2)]
    grads = []
    for cut in (False, True):
        held = [(on(w, 4, S(0)) if cut else w.clone()).requires_grad_(True) for w in tables]
        looked = [F.embedding(on(i, 4, R()) if cut else i, w) for i, w in zip(ids, held, strict=True)]
        for y, g in zip(looked, scale, strict=True):
            (y * (on(g, 4, R()) if cut else g)).sum().backward()
        grads.append([(w.grad.full_tensor() if cut else w.grad).numpy() for w in held])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


# ---- linear_cross_entropy -------------------------------------------------------------------------------------------------------------
def linear_loss(parts, options, **rest):
    leaves = [p.requires_grad_(True) for p in parts[:3]]
    loss = F.linear_cross_entropy(leaves[0], leaves[1], parts[3], linear_bias=leaves[2], options=options, **rest)
    (loss * loss).sum().backward()
    return [t.full_tensor().detach().numpy() for t in (loss, *(p.grad for p in leaves))]


@pytest.mark.parametrize(
    "rest", [{}, {"reduction": "none"}, {"reduction": "sum", "label_smoothing": 0.1}, {"ignore_index": 3, "weighted": True}]
)
@pytest.mark.parametrize(("rows", "vocabulary"), [(None, None), (R(), S(0)), (S(0), R()), (S(0), S(0))])
def test_linear_cross_entropy_is_cross_entropy_of_linear(rest, rows, vocabulary):
    dt.manual_seed(2)
    x, w, b, t = dt.randn(12, 6), dt.randn(21, 6), dt.randn(21), dt.randint(0, 21, (12,))
    t[4] = 3
    rest = dict(rest)
    weight = dt.rand(21) if rest.pop("weighted", False) else None
    leaves = [p.clone().requires_grad_(True) for p in (x, w, b)]
    loss = F.cross_entropy(F.linear(*leaves), t, weight=weight, **rest)
    (loss * loss).sum().backward()
    want = [v.detach().numpy() for v in (loss, *(p.grad for p in leaves))]
    parts = [x.clone(), w.clone(), b.clone(), t]
    if rows is not None:
        grid = dt.init_device_mesh("cpu", (2, 2))
        lay = lambda v, a, c: dt.distribute_tensor(v, grid, [a, c])  # noqa: E731
        parts = [lay(x, rows, R()), lay(w, R(), vocabulary), lay(b, R(), vocabulary), lay(t, rows, R())]
        weight = None if weight is None else lay(weight, R(), R())
    for size in (None, 4, 5, 1):
        options = None if size is None else F.LinearCrossEntropyOptions(batch_chunk_size=size)
        got = linear_loss([p.detach() for p in parts], options, weight=weight, **rest)
        for a, e in zip(got, want, strict=True):
            np.testing.assert_allclose(a, e, rtol=2e-4, atol=2e-5, err_msg=f"chunks of {size}")


def test_linear_cross_entropy_of_other_shapes():
    dt.manual_seed(3)
    x, w, t = dt.randn(2, 5, 6), dt.randn(9, 6), dt.randint(0, 9, (2, 5))
    want = F.cross_entropy(F.linear(x, w).reshape(10, 9), t.reshape(10), reduction="none").reshape(2, 5)
    got = F.linear_cross_entropy(x, w, t, reduction="none", options=F.LinearCrossEntropyOptions(batch_chunk_size=3))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
    one = F.linear_cross_entropy(x[0, 0], w, t[0, 0])
    assert float(one) == pytest.approx(float(want[0, 0]), rel=1e-5)
    p = F.softmax(dt.randn(5, 9), 1)
    got = F.linear_cross_entropy(x[0], w, p, options=F.LinearCrossEntropyOptions(batch_chunk_size=2))
    assert float(got) == pytest.approx(float(F.cross_entropy(F.linear(x[0], w), p)), rel=1e-5)
    many = dt.randn(4, 3, 6)  # four classes, three places
    got = F.linear_cross_entropy(x[0], many, dt.zeros(5, 3, dtype=dt.int64))
    assert float(got) == pytest.approx(
        float(F.cross_entropy(F.linear(x[0], many.reshape(12, 6)).reshape(5, 4, 3), dt.zeros(5, 3, dtype=dt.int64))), rel=1e-5
    )
    with pytest.raises(ValueError, match="same last size"):
        F.linear_cross_entropy(x[0], dt.randn(9, 7), t[0])
    with pytest.raises(ValueError, match="valid value for reduction"):
        F.linear_cross_entropy(x[0], w, t[0], reduction="most")


def test_linear_cross_entropy_holds_a_chunk_of_logits():
    """Peak memory stays far below that of all logits."""
    device = "cpu:60"  # of its own: its peak starts at 0
    x, w, t = (v.to(device) for v in (dt.randn(4096, 8), dt.randn(512, 8), dt.randint(0, 512, (4096,))))
    x.requires_grad_(True), w.requires_grad_(True)
    dt.synchronize()
    F.linear_cross_entropy(x, w, t, options=F.LinearCrossEntropyOptions(batch_chunk_size=256)).backward()
    dt.synchronize()
    assert dt.memory_stats(device)["allocated_peak"] < 4096 * 512 * 4 / 2


def test_linear_cross_entropy_as_a_module():
    dt.manual_seed(4)
    m = dt.nn.LinearCrossEntropyLoss(6, 9, bias=True, ignore_index=2, options=dt.nn.LinearCrossEntropyOptions(batch_chunk_size=2))
    x, t = dt.randn(5, 6), dt.tensor([0, 2, 8, 3, 1])
    want = F.cross_entropy(F.linear(x, m.linear.weight, m.linear.bias), t, ignore_index=2)
    assert float(m(x, t)) == pytest.approx(float(want), rel=1e-5)
    wide = dt.nn.LinearCrossEntropyLoss(6, 4, out_features=(3,))
    t = dt.randint(0, 4, (5, 3))
    want = F.cross_entropy(F.linear(x, wide.linear.weight).reshape(5, 4, 3), t)
    assert float(wide(x, t)) == pytest.approx(float(want), rel=1e-5)
