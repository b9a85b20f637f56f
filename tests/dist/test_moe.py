"""nn.MoE: against a loop over experts on one device; then the same layer on meshes against one device."""

import copy
import math

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import ExpertParallel, ExpertTensorParallel, parallelize_module
from dtorch.nn import functional as F

D, H = 6, 10


def tokens(*shape, seed=0, skew=0.0):
    rng = np.random.default_rng(seed)
    return dtorch.tensor((rng.standard_normal((*shape, D)) + skew).astype(np.float32))


def mixture(n_experts, top_k=2, seed=1, **kwargs):
    dtorch.manual_seed(seed)
    return nn.MoE(D, H, n_experts, top_k, **kwargs)


ACT = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu, "gelu": F.gelu, "relu": F.relu, "silu": F.silu}


def by_loop(m, x, activation="swiglu"):
    """(output, balance loss, z loss, kept assignments) of the layer, one expert and one assignment at a time."""
    act, flat = ACT[activation], x.reshape(-1, D)
    logits = F.linear(flat, m.router.weight)
    scores = logits.softmax(-1) if m.score == "softmax" else logits.sigmoid()
    weight, index = scores.topk(m.top_k, -1)
    if m.normalize and (m.top_k > 1 or m.score == "sigmoid"):
        weight = weight / weight.sum(-1, keepdim=True)
    weight = weight * m.route_scale
    chosen = index.numpy()
    room = math.inf if m.capacity_factor is None else math.ceil(m.capacity_factor * chosen.size / m.n_experts)
    taken, out = [0] * m.n_experts, []
    for t in range(flat.shape[0]):
        y = dtorch.zeros(D)
        for k in range(m.top_k):
            e = int(chosen[t, k])
            taken[e] += 1
            if taken[e] > room:
                continue
            u = flat[t] @ m.experts.up[e]
            u = act(u) if m.experts.gate is None else act(flat[t] @ m.experts.gate[e]) * u
            y = y + weight[t, k] * (u @ m.experts.down[e])
        out.append(y)
    y = dtorch.stack(out) if out else flat
    if m.shared is not None:
        y = y + m.shared(flat)
    p = scores if m.score == "softmax" else scores / scores.sum(-1, keepdim=True)
    f = dtorch.tensor(np.bincount(chosen.ravel(), minlength=m.n_experts) / max(1, chosen.size), dtype=dtorch.float32)
    return y.reshape(x.shape), m.n_experts * (f * p.mean(0)).sum(), logits.logsumexp(-1).square().mean(), [min(n, room) for n in taken]


VARIANTS = [
    ("plain", dict(n_experts=4), "swiglu"),
    ("one", dict(n_experts=5, top_k=1), "swiglu"),
    ("all", dict(n_experts=3, top_k=3), "swiglu"),
    ("single", dict(n_experts=1, top_k=1), "swiglu"),
    ("capacity", dict(n_experts=4, capacity_factor=0.7), "swiglu"),
    ("tight", dict(n_experts=4, capacity_factor=0.01), "swiglu"),
    ("shared", dict(n_experts=4, n_shared=2), "swiglu"),
    ("sigmoid", dict(n_experts=6, score="sigmoid", route_scale=2.5), "swiglu"),
    ("raw", dict(n_experts=4, normalize=False), "geglu"),
    ("reglu", dict(n_experts=4), "reglu"),
    ("gelu", dict(n_experts=4), "gelu"),
    ("relu", dict(n_experts=4), "relu"),
    ("silu", dict(n_experts=4, n_shared=1), "silu"),
]


@pytest.mark.parametrize(("kwargs", "activation"), [v[1:] for v in VARIANTS], ids=[v[0] for v in VARIANTS])
@pytest.mark.parametrize("skew", [0.0, 3.0], ids=["even", "skewed"])
def test_against_a_loop(kwargs, activation, skew):
    m = mixture(activation=activation, balance_coef=0.5, z_coef=0.25, **kwargs)
    results = []
    for f in (lambda x: m(x), lambda x: by_loop(m, x, activation)[0]):
        m.zero_grad()
        x = tokens(3, 7, skew=skew).requires_grad_()
        y = f(x)
        (y.sin().sum()).backward()
        results.append([y, x.grad, *[p.grad for p in m.parameters()]])
    for got, want in zip(*results, strict=True):
        if want is None:  # the loop did not meet any assignment that was kept
            assert got is None or not got.numpy().any()
        else:
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=2e-4, atol=2e-5)
    x = tokens(3, 7, skew=skew)
    m(x)
    _, balance, z, taken = by_loop(m, x, activation)
    assert m.tokens_per_expert.tolist() == taken
    assert float(m.balance_loss) == pytest.approx(float(balance), rel=1e-5)
    assert float(m.z_loss) == pytest.approx(float(z), rel=1e-5)
    assert float(m.aux_loss) == pytest.approx(0.5 * float(balance) + 0.25 * float(z), rel=1e-5)


def test_dtypes_shapes_and_names():
    m = mixture(4, n_shared=1)
    assert list(m.state_dict()) == [
        "router.weight", "experts.gate", "experts.up", "experts.down", "shared.gate.weight", "shared.up.weight", "shared.down.weight",
    ]  # fmt: skip
    x = tokens(5)
    want = m(x).detach().numpy()
    assert m(x[0]).shape == (D,)
    np.testing.assert_allclose(m(x[0]).detach().numpy(), want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(m.double()(x.double()).detach().numpy(), want, rtol=1e-5, atol=1e-6)
    m.bfloat16()
    half = m(x.bfloat16())
    assert half.dtype == dtorch.bfloat16
    np.testing.assert_allclose(half.float().detach().numpy(), want, rtol=5e-2, atol=2e-2)
    half.sum().backward()
    assert m.experts.gate.grad.dtype == dtorch.bfloat16
    m = mixture(4)
    y = m(tokens(0))
    (y.sum() + m.aux_loss).backward()
    assert y.shape == (0, D) and m.tokens_per_expert.tolist() == [0] * 4 and not m.experts.up.grad.numpy().any()


def test_autocast_is_for_the_experts():
    """The router stays in float32, so tokens go where they went; rows travel in 16 bits; gradients have the parameters' dtype."""
    m, x = mixture(4, n_shared=1), tokens(8, 3)
    want, counts = m(x).detach().numpy(), m.tokens_per_expert.tolist()
    mesh = mesh_of((2,), ("ep",))
    sent = []
    for on in (False, True):
        many = spread(m, mesh)
        dtorch.comm_report(reset=True)
        with dtorch.autocast("cpu", dtype=dtorch.bfloat16, enabled=on):
            y = many(lay(x, mesh))
        dtorch.synchronize()
        sent.append(sum(r["bytes"] for r in dtorch.comm_report(reset=True) if r["kind"] == "all_to_all"))
        assert y.dtype == (dtorch.bfloat16 if on else dtorch.float32)
        assert many.tokens_per_expert.tolist() == counts and many.aux_loss.dtype == dtorch.float32
        close(whole(y.float()), want, rtol=5e-2, atol=2e-2)
        y.sum().backward()
        assert all(p.grad.dtype == p.dtype for p in many.parameters())
    assert sent[1] * 2 == sent[0] > 0


def test_gradients_of_gradients():
    """Against differences of the first gradient, in float64."""
    for activation in ("swiglu", "gelu"):
        m = mixture(3, activation=activation).double()
        rng = np.random.default_rng(3)
        at, v, u = (rng.standard_normal((4, D)) for _ in range(3))

        def slope(x, m=m, create=False):
            return dtorch.autograd.grad(m(x).sin().sum(), x, create_graph=create)[0]

        x = dtorch.tensor(at).requires_grad_()
        got = float((dtorch.autograd.grad((slope(x, create=True) * dtorch.tensor(u)).sum(), x)[0] * dtorch.tensor(v)).sum())
        near = [float((slope(dtorch.tensor(at + s * 1e-6 * v).requires_grad_()) * dtorch.tensor(u)).sum()) for s in (1, -1)]
        assert got == pytest.approx((near[0] - near[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_jitter_only_in_training():
    m = mixture(4, jitter=0.3)
    x = tokens(6)
    m.eval()
    assert np.array_equal(m(x).detach().numpy(), m(x).detach().numpy())
    m.train()
    assert not np.array_equal(m(x).detach().numpy(), m(x).detach().numpy())


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        (dict(top_k=5), "top_k must be an integer from 1 to n_experts=4, got 5"), (dict(top_k=0), "top_k"), (dict(capacity_factor=0), "capacity_factor"),
        (dict(activation="swish"), "activation must be one of"), (dict(score="max"), "score"), (dict(jitter=1), "jitter"), (dict(n_shared=-1), "n_shared"),
    ],
)  # fmt: skip
def test_errors(kwargs, match):
    with pytest.raises(ValueError, match=match):
        mixture(4, **kwargs)
    with pytest.raises(RuntimeError, match="6 features"):
        mixture(4)(dtorch.zeros(2, D + 1))


# ---- meshes ----------------------------------------------------------------------------------------------------------------------------------


def spread(m, mesh, zero=False):
    """A copy of the layer on a mesh: experts along "ep", their features along "tp", with `zero` everything along "dp"."""
    m = copy.deepcopy(m)
    names = mesh.mesh_dim_names
    if "ep" in names:
        parallelize_module(m, mesh["ep"], ExpertParallel())
    if "tp" in names:
        parallelize_module(m, mesh["tp"], ExpertTensorParallel())
    if zero:
        from dtorch.distributed.fsdp import fully_shard

        fully_shard(m, mesh=mesh["dp"])
    return m


def lay(x, mesh, sequence=()):
    """The batch along "dp" and "ep", dimension 1 along the dimensions in `sequence`."""
    cut = {**{n: Shard(0) for n in mesh.mesh_dim_names if n in ("dp", "ep")}, **{n: Shard(1) for n in sequence}}
    return distribute_tensor(x, mesh, [cut.get(n, Replicate()) for n in mesh.mesh_dim_names])


def whole(t):
    return t.detach().full_tensor().numpy()


def close(got, want, **kw):
    np.testing.assert_allclose(got, want, **{"rtol": 2e-4, "atol": 2e-5, **kw})


def compare(m, mesh, x, steps=1, sequence=(), zero=False):
    """Forward, backward, and `steps` optimizer steps: the layer on one device and on the mesh."""
    one, many = copy.deepcopy(m), spread(m, mesh, zero)
    a = dtorch.optim.AdamW(one.parameters(), lr=1e-2) if steps > 1 else None
    b = dtorch.optim.AdamW(many.parameters(), lr=1e-2) if steps > 1 else None
    y = lay(x, mesh, sequence).requires_grad_()
    x = x.clone().requires_grad_()
    for _ in range(steps):
        for model, opt, v in ((one, a, x), (many, b, y)):
            model.zero_grad()
            v.grad = None
            out = model(v)
            (out.sin().sum() + model.aux_loss).backward()
            if opt is not None:
                opt.step()
            if v is x:
                want = out
            else:
                got = out
    assert got.placements == y.placements
    close(whole(got), want.detach().numpy())
    close(whole(y.grad), x.grad.numpy())
    assert many.tokens_per_expert.tolist() == one.tokens_per_expert.tolist()
    assert float(many.balance_loss) == pytest.approx(float(one.balance_loss), rel=1e-5)
    for (name, p), q in zip(one.named_parameters(), many.parameters(), strict=True):
        if steps > 1:
            close(whole(q), p.detach().numpy(), rtol=1e-3, atol=1e-4)
        else:
            assert q.grad.placements == q.placements, name
            close(whole(q.grad), p.grad.numpy(), err_msg=name)


MESHES = [
    ((2,), ("ep",)), ((3,), ("ep",)), ((4,), ("ep",)), ((8,), ("ep",)), ((2,), ("tp",)), ((2,), ("dp",)), ((2, 2), ("dp", "ep")), ((3, 2), ("dp", "ep")),
    ((2, 2), ("ep", "dp")), ((2, 2), ("ep", "tp")), ((2, 3), ("tp", "ep")), ((2, 2), ("cp", "ep")), ((2, 2, 2), ("dp", "tp", "ep")),
    ((2, 1, 2, 2), ("dp", "pp", "cp", "ep")), ((1, 2), ("ep", "dp")),
]  # fmt: skip


def mesh_of(shape, names):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@pytest.mark.parametrize(("shape", "names"), MESHES, ids=["x".join(f"{n}{s}" for s, n in zip(*m, strict=True)) for m in MESHES])
@pytest.mark.parametrize("case", ["even", "uneven", "shared", "skewed"])
def test_meshes(shape, names, case):
    mesh = mesh_of(shape, names)
    sequence = [n for n in names if n == "cp"]
    if case == "even":
        compare(mixture(8), mesh, tokens(8, 4), sequence=sequence)
    elif case == "uneven":  # batches and experts that do not divide
        compare(mixture(5, 3, activation="gelu"), mesh, tokens(7, 3), sequence=sequence)
    elif case == "shared":
        compare(mixture(4, n_shared=1, capacity_factor=0.8), mesh, tokens(5, 4), sequence=sequence)
    else:  # everything to few experts
        compare(mixture(6), mesh, tokens(4, 4, skew=6.0), sequence=sequence)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("capacity", [None, 0.5, 1.0, 2.0])
def test_top_k_and_capacity(k, capacity):
    for shape, names in (((3,), ("ep",)), ((2, 2), ("dp", "ep"))):
        compare(mixture(4, k, capacity_factor=capacity), mesh_of(shape, names), tokens(9, 2))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_devices_without_tokens(batch):
    for shape, names in (((4,), ("ep",)), ((2, 2), ("dp", "ep"))):
        compare(mixture(4), mesh_of(shape, names), tokens(batch, 3))


def test_devices_without_experts():
    compare(mixture(2), mesh_of((4,), ("ep",)), tokens(6, 2))
    compare(mixture(5), mesh_of((4,), ("ep",)), tokens(6, 2))  # 2, 2, 1, 0


def test_all_tokens_to_one_expert():
    m = mixture(4, 1)
    with dtorch.no_grad():
        m.router.weight.zero_()
        m.router.weight[2] = 1.0
    x = tokens(8, 2).abs()
    compare(m, mesh_of((4,), ("ep",)), x)
    m(x)
    assert m.tokens_per_expert.tolist() == [0, 0, 16, 0]


def test_input_layouts():
    """Plain, replicated, cut by features or by other tokens, a sum that is still to be made: the output lies as the input."""
    mesh = mesh_of((2, 2), ("tp", "ep"))
    m = mixture(4)
    x = tokens(4, 6)
    want = m(x).detach().numpy()
    many = spread(m, mesh)
    close(whole(many(x)), want)
    for placements in (
        [Replicate(), Replicate()],
        [Shard(1), Shard(0)],
        [Replicate(), Shard(1)],
        [Shard(2), Shard(2)],
        [Shard(0), Shard(0)],
    ):
        y = many(distribute_tensor(x, mesh, placements))
        assert y.placements == tuple(placements)
        close(whole(y), want)
    part = dtorch.Tensor.from_local([x * 0.25] * 4, mesh, [dtorch.Partial(), dtorch.Partial()])
    close(whole(many(part)), want)
    flat = distribute_tensor(x, mesh, [Replicate(), Shard(1)]).flatten(0, 1)  # strided shards
    close(whole(many(flat)), want.reshape(-1, D))


@pytest.mark.parametrize(
    ("shape", "names", "zero"),
    [((2,), ("ep",), False), *[(shape, names, zero) for shape, names in [((2, 2), ("dp", "ep")), ((2, 2, 2), ("dp", "tp", "ep"))] for zero in (False, True)]],
)
def test_training(shape, names, zero):
    compare(mixture(4, z_coef=0.01), mesh_of(shape, names), tokens(8, 3), steps=3, zero=zero)


def test_large_exchanges_run_beside_products():
    """Sizes at which exchanges have a queue of their own, in several steps: values do not change, and are the same bits every time."""
    mesh = mesh_of((2, 2), ("dp", "ep"))
    dtorch.manual_seed(3)
    m = nn.MoE(64, 48, 6, 2, n_shared=1)
    x = dtorch.randn(64, 40, 64)
    want = m(x)
    (want.sin().sum() + m.aux_loss).backward()
    runs = []
    for _ in range(3):
        many, y = spread(m, mesh), lay(x, mesh).requires_grad_()
        got = many(y)
        (got.sin().sum() + many.aux_loss).backward()
        runs.append([whole(t) for t in (got, y.grad, *(p.grad for p in many.parameters()))])
    close(runs[0][0], want.detach().numpy())
    for p, g in zip(m.parameters(), runs[0][2:], strict=True):
        close(g, p.grad.numpy(), rtol=1e-3, atol=1e-3)
    assert all(np.array_equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


def test_exchange_moves_what_goes_elsewhere():
    """Exactly the rows that change devices, forward twice and backward twice; no tokens or weights are gathered."""
    mesh = mesh_of((2, 2), ("dp", "ep"))
    m, x = mixture(4), tokens(8, 4)
    with dtorch.no_grad():
        scores = F.linear(x, m.router.weight).softmax(-1)
        chosen = scores.topk(2, -1)[1].numpy()
    position = np.arange(8) // 2 % 2  # of a batch entry along "ep"
    away = int((chosen // 2 != position[:, None, None]).sum())
    many, y = spread(m, mesh), lay(x, mesh).requires_grad_()
    dtorch.comm_report(reset=True)
    out = many(y)
    dtorch.synchronize()
    rows = dtorch.comm_report(reset=True)
    sent = sum(r["bytes"] for r in rows if r["kind"] == "all_to_all" and r["mesh_dim"] == "ep")
    assert sent == 2 * away * D * 4
    assert sum(r["count"] for r in rows if r["kind"] == "all_to_all") == 2
    assert sum(r["bytes"] for r in rows if r["kind"] == "all_gather") == 4 * 4 * 8  # each device reads its peer's four counts
    out.sum().backward()
    dtorch.synchronize()
    rows = dtorch.comm_report(reset=True)
    assert sum(r["bytes"] for r in rows if r["kind"] == "all_to_all") == 2 * away * D * 4
    assert not [r for r in rows if r["kind"] == "all_gather"]
    for p in many.experts.parameters():
        p.grad.full_tensor()
    reduced = [r for r in dtorch.comm_report(reset=True) if "ep" in r["mesh_dim"] and r["kind"] in ("all_reduce", "reduce_scatter")]
    assert not reduced  # experts' gradients are summed along dp alone


def test_the_client_does_not_wait():
    """A step behind something slow is issued before the slow thing ends."""
    import threading
    import time

    many, gate = spread(mixture(4), mesh_of((2,), ("ep",))), threading.Event()
    x = tokens(4, 2)
    want = mixture(4)(x).detach().numpy()
    slow = dtorch.host_call(lambda v: gate.wait(30) and v, x, out=(tuple(x.shape), dtorch.float32))
    begin = time.perf_counter()
    y = many(lay(slow, many.experts.up.device_mesh).requires_grad_())
    (y.sum() + many.aux_loss).backward()
    took = time.perf_counter() - begin
    waiting = not gate.is_set()
    gate.set()
    assert waiting and took < 20
    close(whole(y), want)


@pytest.mark.parametrize("seed", range(12))
def test_random_mixtures_on_random_meshes(seed):
    rng = np.random.default_rng(100 + seed)
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    names = list(rng.permutation(["dp", "tp", "cp", "ep"])[: rng.integers(1, 4)])
    shape = [int(pick(1, 2, 3)) for _ in names]
    n = int(rng.integers(1, 9))
    m = mixture(
        n, int(rng.integers(1, n + 1)), seed=seed, n_shared=int(pick(0, 0, 1)), capacity_factor=pick(None, None, 0.6, 1.3), z_coef=0.1,
        activation=pick("swiglu", "reglu", "gelu"), score=pick("softmax", "sigmoid"), normalize=bool(pick(0, 1)),
    )  # fmt: skip
    x = tokens(int(rng.integers(1, 8)), int(rng.integers(1, 7)), seed=seed, skew=float(pick(0, 0, 2)))
    compare(
        m,
        mesh_of(shape, names),
        x,
        steps=int(pick(1, 2)),
        sequence=[v for v in names if v == "cp"],
        zero="dp" in names and bool(pick(0, 1)),
    )


def test_checkpointed_and_pipelined():
    """Recomputed in backward; and with the mesh's stages elsewhere: the plan follows the module by name."""
    from dtorch.utils.checkpoint import checkpoint

    m, x = mixture(4), tokens(6, 3)
    y = m(x)
    (y.sin().sum() + m.aux_loss).backward()
    mesh = mesh_of((2, 2), ("pp", "ep"))
    for part in (mesh_of((2,), ("ep",)), mesh["pp"][1]):
        many = spread(m, part)
        z = checkpoint(many, lay(x, part), use_reentrant=False)
        close(whole(z), y.detach().numpy())
        z.sin().sum().backward()
        close(whole(many.experts.down.grad), dtorch.autograd.grad(m(x).sin().sum(), m.experts.down)[0].numpy())


def test_an_error_in_the_router_travels():
    mesh = mesh_of((2,), ("ep",))
    many = spread(mixture(4), mesh)
    x = tokens(4)
    bad = F.embedding(dtorch.tensor([0, 1, 2, 9]), x)
    with pytest.raises(IndexError, match="embedding"):
        many(lay(bad, mesh)).sum().item()
    close(whole(many(lay(x, mesh))), whole(many(x)))
