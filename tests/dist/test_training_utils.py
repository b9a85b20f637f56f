"""What training loops use, on shards: clipping, optimizers, averages, adapters, dropout. Everything equals the one-device run."""

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, comm_report, distribute_tensor, init_device_mesh, nn, optim
from dtorch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from dtorch.utils.checkpoint import checkpoint, checkpoint_sequential

R, S0, S1 = Replicate(), Shard(0), Shard(1)


def mesh4():
    return init_device_mesh("cpu", (4,))


def mesh22():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def whole(x):
    x = x.detach()
    x = x.full_tensor() if x.device_mesh.ndim else x
    return (x.float() if x.dtype in (dtorch.bfloat16, dtorch.float16) else x).numpy()


# ---- clipping


SHAPES = [(6, 5), (3,), (1, 4), (7, 2), (5,)]


def mixed_layouts():
    """One for each shape: replicated, uneven, empty shards, two stages' meshes, plain."""
    root = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    a, b = root["pp"][0], root["pp"][1]
    return [(a, [S0, S1]), (a, [R, R]), (b, [R, S0]), (b, [S0, R]), None]


def parameters(layouts, dtype=None, scale=1.0):
    dtorch.manual_seed(0)
    out = []
    for shape, layout in zip(SHAPES, layouts, strict=True):
        value, grad = dtorch.randn(shape), dtorch.randn(shape) * scale
        value, grad = (x if dtype is None else x.to(dtype) for x in (value, grad))
        p = nn.Parameter(value if layout is None else distribute_tensor(value, *layout))
        p.grad = grad if layout is None else distribute_tensor(grad, *layout)
        out.append(p)
    return out


PLACED = {
    "one mesh": lambda: [(mesh22(), x) for x in ([S0, S1], [R, R], [S0, S0], [R, S1], [S0, R])],
    "stages and plain": mixed_layouts,
}


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, float("inf"), -float("inf"), 0.0])
def test_norms_equal_one_device(placed, p):
    one = parameters([None] * len(SHAPES))
    want = np.linalg.norm([np.linalg.norm(whole(q.grad).reshape(-1).astype(np.float64), p) for q in one], p)
    many = parameters(PLACED[placed]())
    total = clip_grad_norm_(many, 0.5, p)
    np.testing.assert_allclose(total.item(), 5.0 if p == 0 else want, rtol=1e-5)
    clip_grad_norm_(iter(one), 0.5, p)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(whole(b.grad), whole(a.grad), rtol=1e-5, atol=1e-8)
        assert b.grad.placements == b.placements


def test_expert_sharded_parameters_count_once():
    """Replicated, sharded and expert-sharded together, and a gradient that is still a sum over devices."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    dense, experts, table = dtorch.ones(4), dtorch.full((4, 2, 3), 2.0), dtorch.full((5, 2), 3.0)
    grads = [distribute_tensor(dense, mesh, [R, R]), distribute_tensor(experts, mesh, [R, S0]), distribute_tensor(table, mesh, [S0, S0])]
    grads.append(dtorch.Tensor.from_local([dtorch.ones(3) * i for i in range(4)], mesh, [dtorch.Partial(), R]))
    locals_ = [dtorch.full((3,), float(v)) for v in (1, 1, 3, 3)]
    grads[-1] = dtorch.Tensor.from_local(locals_, mesh, [dtorch.Partial(), R])
    assert get_total_norm(grads).item() == pytest.approx((4 + 24 * 4 + 10 * 9 + 3 * 16) ** 0.5)


def test_clipping_sends_one_number_for_each_mesh():
    many = parameters(PLACED["one mesh"]())
    dtorch.synchronize()
    comm_report(reset=True)
    clip_grad_norm_(many, 0.1)
    rows = comm_report()
    assert sum(r["count"] for r in rows) == 1 and sum(r["bytes"] for r in rows) <= 64, rows
    many = parameters(mixed_layouts())
    dtorch.synchronize()
    comm_report(reset=True)
    clip_grad_norm_(many, 0.1)
    rows = comm_report()
    assert sum(r["bytes"] for r in rows) <= 300, rows


def test_nonfinite_norms():
    many = parameters(mixed_layouts())
    many[0].grad.mul_(float("inf"))
    with pytest.raises(RuntimeError, match=r"total norm of order 2\.0 .* non-finite"):
        clip_grad_norm_(many, 1.0, error_if_nonfinite=True)
    assert not np.isfinite(clip_grad_norm_(many, 1.0).item())
    assert get_total_norm([]).item() == 0.0
    assert clip_grad_norm_([nn.Parameter(dtorch.ones(2))], 1.0).item() == 0.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_of_16_bit_gradients_are_float32(dtype):
    grads = [
        distribute_tensor(dtorch.full((4000,), 1.0 / 64).to(getattr(dtorch, dtype)), mesh4(), [S0]),
        dtorch.full((100,), 300.0).to(getattr(dtorch, dtype)),
    ]
    total = get_total_norm(grads)
    assert total.dtype == dtorch.float32
    assert total.item() == pytest.approx((4000 / 4096 + 100 * 9e4) ** 0.5, rel=1e-5)


def test_clip_value_and_given_norm():
    one, many = parameters([None] * len(SHAPES)), parameters(mixed_layouts())
    for ps in (one, many):
        clip_grads_with_norm_(ps, 2.0, dtorch.tensor(8.0))
        clip_grad_value_(ps, 0.2)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(whole(b.grad), whole(a.grad))
        assert np.abs(whole(a.grad)).max() <= 0.2


# ---- optimizers

OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), "Adam": dict(lr=0.1, amsgrad=True, weight_decay=0.01), "AdamW": dict(lr=0.1),
    "Adagrad": dict(lr=0.1), "Adadelta": dict(lr=1.0), "Adamax": dict(lr=0.1), "NAdam": dict(lr=0.1), "RAdam": dict(lr=0.1),
    "RMSprop": dict(lr=0.01, momentum=0.9, centered=True), "Rprop": dict(lr=0.01), "ASGD": dict(lr=0.1), "Adafactor": dict(lr=0.1),
    "LBFGS": dict(lr=0.5), "Muon": dict(lr=0.1),
}  # fmt: skip
LAYOUTS = {
    "plain": None, "R": (mesh4, [R]), "S0": (mesh4, [S0]), "S1": (mesh4, [S1]), "S0 S1": (mesh22, [S0, S1]), "R S0": (mesh22, [R, S0]),
    "S0 S0": (mesh22, [S0, S0]),
}  # fmt: skip


def trained(name, layout, steps=4):
    """Parameters and optimizer after some steps: one evenly cut, one with empty shards, one of one dimension, one frozen."""
    dtorch.manual_seed(0)
    shapes = [(8, 4), (1, 6), (7, 3)] + ([(5,)] if name != "Muon" else [])
    params = []
    for shape in shapes:
        x = dtorch.randn(shape)
        if layout is not None:
            mesh, placements = layout
            x = distribute_tensor(x, mesh(), [Shard(min(p.dim, len(shape) - 1)) if p.is_shard() else p for p in placements])
        params.append(nn.Parameter(x))
    params.append(nn.Parameter(params[0].detach().clone(), requires_grad=False))
    opt = getattr(optim, name)(params, **OPTIMIZERS[name])
    assert {n for n, c in vars(optim).items() if isinstance(c, type) and issubclass(c, optim.Optimizer)} - {"Optimizer"} == set(OPTIMIZERS)

    def closure():
        opt.zero_grad()
        loss = 0
        for p in params:
            loss = loss + ((p - 0.3) ** 2).sum() + p.sin().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        if name == "LBFGS":
            opt.step(closure)
        else:
            closure()
            opt.step()
    return params, opt


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_equals_one_device(name):
    want, _ = trained(name, None)
    tolerance = 1e-4 if name == "LBFGS" else 2e-6  # eighty iterations, whose history magnifies rounding
    for layout in list(LAYOUTS)[1:]:
        got, opt = trained(name, LAYOUTS[layout])
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(whole(b), whole(a), rtol=tolerance, atol=tolerance, err_msg=f"{name} {layout}")
        for p, state in opt.state.items():
            for key, v in state.items():
                if isinstance(v, dtorch.Tensor) and v.shape == p.shape:
                    assert v.placements == p.placements and v.device_mesh == p.device_mesh, (layout, key)


# ---- activation checkpointing


def grads_of(f, inputs, params):
    for t in (*inputs, *params):
        t.grad = None
    dtorch.manual_seed(3)
    out = f(*inputs)
    (out * out.detach().cos()).sum().backward()
    return [whole(out), *(whole(t.grad) for t in (*inputs, *params) if t.grad is not None), dtorch.get_rng_state().tolist()]


def equal(a, b):
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        np.testing.assert_array_equal(p, q)


def near(a, b):
    equal(a[:1] + a[-1:], b[:1] + b[-1:])
    for p, q in zip(a[1:-1], b[1:-1], strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-5)


def block(layout=None):
    dtorch.manual_seed(0)
    m = nn.Sequential(nn.Linear(6, 10), nn.Dropout(0.4), nn.GELU(), nn.Linear(10, 6), nn.LayerNorm(6))
    if layout is not None:
        mesh, placements = layout
        for sub in m.modules():
            for name, p in list(sub._parameters.items()):
                if p is not None:
                    at = [q if not q.is_shard() or q.dim < p.ndim else R for q in placements]
                    sub.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, at)))
    return m


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layout", ["plain", "S0", "S1", "dp S0"])
def test_checkpoint_equals_keeping(layout, reentrant):
    place = {"plain": None, "S0": (mesh4(), [S0]), "S1": (mesh4(), [S1]), "dp S0": (mesh22(), [R, S0])}[layout]
    m = block(place)
    x = dtorch.randn(7, 6)
    if place is not None:
        x = distribute_tensor(x, place[0], [S0] + [R] * (place[0].ndim - 1))
    x.requires_grad_()
    inner = lambda v: checkpoint(m, v, use_reentrant=reentrant)  # noqa: E731
    want = grads_of(lambda v: m(m(v)), [x], list(m.parameters()))
    check = equal if place is None else near
    check(grads_of(inner, [x], list(m.parameters())), grads_of(m, [x], list(m.parameters())))
    near(grads_of(lambda v: m(inner(v)), [x], list(m.parameters())), want)  # two gradients of a weight are added in another order
    near(grads_of(lambda v: inner(inner(v)), [x], list(m.parameters())), want)
    nested = lambda v: checkpoint(lambda u: inner(inner(u)), v, use_reentrant=reentrant)  # noqa: E731
    near(grads_of(nested, [x], list(m.parameters())), want)
    near(grads_of(lambda v: checkpoint_sequential([m, m], 2, v, use_reentrant=reentrant), [x], list(m.parameters())), want)


def test_checkpoint_of_nested_arguments_and_results():
    a, c, w = (nn.Parameter(dtorch.randn(3, 3)) for _ in range(3))
    mid = (a * 2).tanh()  # from outside, with a history

    def f(pair, *, scale, more):
        u = pair[0] @ w + mid
        return {"u": u * scale, "v": [more["c"].sin() * u, 5]}

    def run(call):
        out = call(f, (a.exp(), 1), scale=2.0, more={"c": c})
        assert out["v"][1] == 5
        return out["u"].sum() + (out["v"][0] * out["u"]).sum()

    plain = lambda f, *args, **kwargs: f(*args, **kwargs)  # noqa: E731
    want = dtorch.autograd.grad(run(plain), [a, c, w], retain_graph=True)
    got = dtorch.autograd.grad(run(checkpoint), [a, c, w], retain_graph=True)
    for p, q in zip(want, got, strict=True):
        np.testing.assert_allclose(whole(q), whole(p), rtol=1e-5, atol=1e-6)
    assert a.grad is None and w.grad is None
    count = []
    w.register_hook(lambda g: count.append(1))
    run(checkpoint).backward()
    assert len(count) == 1
    np.testing.assert_allclose(whole(w.grad), whole(want[2]), rtol=1e-5, atol=1e-6)


def test_checkpoint_adds_no_communication():
    """Gradients of replicated weights are summed over devices once, however many micro-batches and parts there are."""
    mesh, counts = mesh4(), []
    layers = [block((mesh, [R])) for _ in range(2)]
    x = distribute_tensor(dtorch.randn(8, 6), mesh, [S0])
    for call in (lambda m, v: m(v), checkpoint):
        for m in layers:
            m.zero_grad()
        dtorch.synchronize()
        comm_report(reset=True)
        for _ in range(3):
            h = x
            for m in layers:
                h = call(m, h)
            (h * h).sum().backward()
        grads = [p.grad for m in layers for p in m.parameters()]
        assert all(g is not None for g in grads)
        counts.append((sum(r["count"] for r in comm_report()), comm_report().bytes))
    assert counts[0] == counts[1], counts


def test_second_derivatives_through_a_checkpoint():
    x, w = dtorch.randn(4).requires_grad_(), dtorch.randn(4).requires_grad_()
    want = got = None
    for call in (lambda f, v: f(v), checkpoint):
        y = call(lambda v: (v * w).sin() * v.exp(), x * 1.5).sum()
        (g,) = dtorch.autograd.grad(y, [x], create_graph=True)
        got = [whole(t) for t in dtorch.autograd.grad((g * g).sum(), [x, w])]
        want = want or got
    for p, q in zip(want, got, strict=True):
        np.testing.assert_allclose(q, p, rtol=1e-5, atol=1e-6)


def test_checkpoint_notices():
    x = dtorch.randn(3).requires_grad_()
    y = x * 1
    out = checkpoint(lambda v: v.sin(), y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="in-?place"):
        out.sum().backward()
    calls = []
    out = checkpoint(lambda v: v.sin() if calls.append(1) or len(calls) < 2 else v.sin()[:2], x)
    with pytest.raises(RuntimeError, match="different metadata"):
        out.sum().backward()
    seen = []

    class Seen:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            seen.append(self.name)

        def __exit__(self, *exc):
            pass

    checkpoint(lambda v: v.sin(), x, context_fn=lambda: (Seen("first"), Seen("again"))).sum().backward()
    assert seen == ["first", "again"]
    with dtorch.no_grad():
        assert not checkpoint(lambda v: v.sin(), x).requires_grad
    assert not checkpoint(lambda v: v.sin(), x.detach()).requires_grad
    with pytest.raises(ValueError, match="segments"):
        checkpoint_sequential([nn.ReLU()], 3, x)


def test_autocast_and_dropout_are_the_same_the_second_time():
    m = block()
    x = dtorch.randn(5, 6).requires_grad_()

    def run(call):
        with dtorch.autocast("cpu"):
            out = call(m, x)
        return out.float()

    want = grads_of(lambda v: run(lambda f, v: f(v)), [x], list(m.parameters()))
    equal(grads_of(lambda v: run(checkpoint), [x], list(m.parameters())), want)


PEAK = """
import sys, dtorch
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.utils.checkpoint import checkpoint
mesh = init_device_mesh("cpu", (2,))
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12)]
for m in layers:
    for sub in m.modules():
        for name, p in list(sub._parameters.items()):
            sub.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate()])))
x = distribute_tensor(dtorch.randn(2048, 64), mesh, [Shard(0)])
for step in range(2):
    h = x
    for m in layers:
        h = checkpoint(m, h, use_reentrant=False) if sys.argv[1] == "1" else m(h)
    h.sum().backward()
    dtorch.synchronize()
print(max(dtorch.memory_stats(f"cpu:{i}")["allocated_peak"] for i in range(2)))
"""


def test_checkpoints_lower_the_peak():
    import subprocess
    import sys

    peaks = [int(subprocess.run([sys.executable, "-c", PEAK, c], capture_output=True, check=True, text=True).stdout) for c in "01"]
    assert peaks[1] < 0.45 * peaks[0], peaks
