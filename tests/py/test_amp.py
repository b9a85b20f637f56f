"""Autocast: which operator gets which dtype, nesting, kept casts, gradients, shards. GradScaler: skipping steps without waiting."""

import threading

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, checkpoint, distribute_tensor, init_device_mesh, nn, optim
from dtorch.amp import GradScaler, autocast, custom_bwd, custom_fwd
from dtorch.nn import functional as F

BF, HALF, F32, F64 = dtorch.bfloat16, dtorch.float16, dtorch.float32, dtorch.float64


def whole(x):
    x = x.detach()
    x = x.full_tensor() if x.device_mesh.ndim else x
    return (x.float() if x.dtype in (BF, HALF) else x).numpy()


x, w, b = dtorch.randn(4, 8), dtorch.randn(8, 8), dtorch.randn(8)
batch, image, line = dtorch.randn(2, 4, 4), dtorch.randn(2, 3, 6, 6), dtorch.randn(2, 3, 6)
LOWER = {
    "matmul": lambda: x @ w, "Tensor.matmul": lambda: x.matmul(w), "mm": lambda: dtorch.mm(x, w), "mv": lambda: dtorch.mv(w, b),
    "bmm": lambda: dtorch.bmm(batch, batch), "addmm": lambda: dtorch.addmm(b, x, w), "baddbmm": lambda: dtorch.baddbmm(batch, batch, batch),
    "einsum": lambda: dtorch.einsum("ij,jk->ik", x, w), "linear": lambda: F.linear(x, w, b), "conv1d": lambda: F.conv1d(line, dtorch.randn(2, 3, 2)),
    "conv2d": lambda: F.conv2d(image, dtorch.randn(2, 3, 2, 2), dtorch.randn(2)), "prelu": lambda: F.prelu(x, dtorch.ones(1)),
    "conv_transpose2d": lambda: F.conv_transpose2d(image, dtorch.randn(3, 2, 2, 2)), "Linear": lambda: nn.Linear(8, 2)(x),
    "attention": lambda: F.scaled_dot_product_attention(batch, batch, batch), "multi_dot": lambda: dtorch.linalg.multi_dot([x, w, w]),
    "half in": lambda: x.half() @ w.half(), "of a product": lambda: F.gelu(x @ w) + b.bfloat16(),
}  # fmt: skip
SINGLE = {
    "softmax": lambda: F.softmax(x.bfloat16(), -1), "log_softmax": lambda: F.log_softmax(x.bfloat16(), -1), "exp": lambda: x.bfloat16().exp(),
    "log": lambda: x.bfloat16().abs().log(), "pow": lambda: x.bfloat16() ** 2, "rsqrt": lambda: x.bfloat16().abs().rsqrt(),
    "sum": lambda: x.bfloat16().sum(), "sum dim": lambda: x.half().sum(0), "cumsum": lambda: x.bfloat16().cumsum(0), "prod": lambda: x.bfloat16().prod(),
    "norm": lambda: x.bfloat16().norm(), "layer_norm": lambda: F.layer_norm(x.bfloat16(), (8,)), "group_norm": lambda: F.group_norm(image.bfloat16(), 3),
    "mse_loss": lambda: F.mse_loss(x @ w, x), "cross_entropy": lambda: F.cross_entropy(x @ w, dtorch.arange(4)), "nll": lambda:
    F.nll_loss(F.log_softmax(x @ w, -1), dtorch.arange(4)), "bce": lambda: F.binary_cross_entropy_with_logits(x @ w, x.sigmoid()),
    "cosine": lambda: F.cosine_similarity(x @ w, x), "hinge": lambda: F.hinge_embedding_loss(x @ w, x.sign()), "cdist": lambda: dtorch.cdist(x @ w, x),
    "triplet": lambda: F.triplet_margin_loss(x @ w, x, x.bfloat16()), "poisson": lambda: nn.PoissonNLLLoss()(x @ w, x.abs()),
    "quantile": lambda: (x @ w).quantile(0.5),
    "softplus": lambda: F.softplus(x.bfloat16()), "l1": lambda: F.l1_loss(x.bfloat16(), x.bfloat16()), "inverse": lambda: dtorch.linalg.inv(w.bfloat16()),
}  # fmt: skip
WIDEST = {
    "cat": (lambda p, q: dtorch.cat([p, q])), "stack": (lambda p, q: dtorch.stack([p, q])), "addcmul": (lambda p, q: dtorch.addcmul(p, q, q)),
    "addcdiv": (lambda p, q: dtorch.addcdiv(p, q, q)), "atan2": dtorch.atan2, "dot": (lambda p, q: dtorch.dot(p[0], q[0])),
    "index_put": (lambda p, q: p.index_put((dtorch.tensor([0]),), q[:1])), "scatter_add": (lambda p, q: p.scatter_add(0, dtorch.zeros(1, 8).long(), q)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("dtype", [BF, HALF], ids=["bfloat16", "float16"])
def test_products_are_computed_in_the_lower_dtype(name, dtype):
    before = LOWER[name]().dtype
    with autocast("cpu", dtype=dtype):
        got = LOWER[name]()
        assert got.dtype == (F32 if name == "of a product" and dtype == HALF else dtype)
        with autocast("cpu", enabled=False):
            assert LOWER[name]().dtype == before
    assert LOWER[name]().dtype == before


@pytest.mark.parametrize("name", SINGLE)
def test_what_needs_range_is_computed_in_float32(name):
    with autocast("cpu", dtype=BF):
        assert SINGLE[name]().dtype == F32


@pytest.mark.parametrize("name", WIDEST)
def test_the_widest_of_several(name):
    f, low = WIDEST[name], x.bfloat16()
    with autocast("cpu", dtype=BF):
        assert f(x, x).dtype == F32 and f(low, x).dtype == F32 and f(x, low).dtype == F32 and f(low, low).dtype == BF


def test_what_is_left_alone():
    with autocast("cpu", dtype=BF):
        assert (x.double() @ w.double()).dtype == F64 and (x.double() ** 2).dtype == F64
        assert x.bfloat16().sum(dtype=F64).dtype == F64 and F.softmax(x, -1, dtype=F64).dtype == F64
        assert (x + w[:4]).dtype == F32 and x.relu().dtype == F32 and (x.bfloat16() + w[:4].bfloat16()).dtype == BF
        assert dtorch.arange(3).sum().dtype == dtorch.int64 and (dtorch.ones(2, 2).long() @ dtorch.ones(2, 2).long()).dtype == dtorch.int64
        y = x.clone()
        y.exp_()
        assert y.dtype == F32
        out = dtorch.zeros(4, 8)
        dtorch.mm(x, w, out=out)
    np.testing.assert_array_equal(whole(out), whole(x @ w))


def test_values_are_those_of_casts_by_hand():
    v, m = nn.Parameter(x.clone()), nn.Parameter(w.clone())
    with autocast("cpu"):  # bfloat16 is the default
        y = F.softmax(v @ m, -1)
        loss = (y * x).sum()
    loss.backward()
    v2, m2 = nn.Parameter(x.clone()), nn.Parameter(w.clone())
    y2 = F.softmax((v2.bfloat16() @ m2.bfloat16()).float(), -1)
    (y2 * x).sum().backward()
    assert y.dtype == F32 and v.grad.dtype == m.grad.dtype == F32
    for a, c in ((y, y2), (v.grad, v2.grad), (m.grad, m2.grad)):
        np.testing.assert_array_equal(whole(a), whole(c))


def test_blocks_nest_and_end():
    @autocast("cpu", dtype=BF)
    def f():
        return x @ w

    @autocast("cpu", enabled=False)
    def off():
        return x @ w

    assert f().dtype == BF and (x @ w).dtype == F32 and f.__name__ == "f"
    with autocast("cpu", dtype=HALF):
        assert dtorch.is_autocast_enabled("cpu") and dtorch.get_autocast_dtype("cpu") == HALF
        assert f().dtype == BF and off().dtype == F32 and (x @ w).dtype == HALF
        with pytest.raises(ZeroDivisionError), autocast("cpu", dtype=BF):
            assert (x @ w).dtype == BF
            raise ZeroDivisionError
        assert (x @ w).dtype == HALF
        seen = []
        t = threading.Thread(target=lambda: seen.append((x @ w).dtype))
        t.start()
        t.join()
        assert seen == [F32]  # a mode of this thread
    assert not dtorch.is_autocast_enabled("cpu") and dtorch.get_autocast_dtype("cpu") == BF
    dtorch.set_autocast_enabled("cpu", True)
    assert (x @ w).dtype == BF
    dtorch.set_autocast_enabled("cpu", False)
    c = autocast("cpu")
    with c, c:
        assert (x @ w).dtype == BF
    assert (x @ w).dtype == F32


def test_arguments_are_checked():
    with pytest.raises(RuntimeError, match="unsupported device_type 'tpu'"):
        autocast("tpu")
    with pytest.raises(ValueError, match="of type `str`"):
        autocast(dtorch.float16)
    with pytest.raises(TypeError, match="dtype must be a dtype"):
        autocast("cpu", dtype="bf16")
    with pytest.warns(UserWarning, match="not supported"), autocast("cpu", dtype=F64):
        assert (x @ w).dtype == F32
    with pytest.warns(UserWarning, match="CUDA is not available"), autocast("cuda"):
        assert (x @ w).dtype == F32
    with dtorch.cpu.amp.autocast():
        assert (x @ w).dtype == BF
    with pytest.warns(UserWarning, match="CUDA"):
        from dtorch.cuda.amp import GradScaler as Old

        assert not Old().is_enabled()
    assert dtorch.amp.is_autocast_available("cpu") and not dtorch.amp.is_autocast_available("tpu")


def casts_of(m, n, **options):
    """How many casts of the weight m are recorded by n products."""
    with autocast("cpu", **options):
        outs = [x @ m for _ in range(n)]
        return len({str(f) for y in outs for f, _ in y.grad_fn.next_functions if f is not None}), outs


def test_casts_of_weights_are_kept():
    m = nn.Parameter(w.clone())
    assert casts_of(m, 3)[0] == 1 and casts_of(m, 3, cache_enabled=False)[0] == 3
    with autocast("cpu"):
        with dtorch.no_grad():
            first = x @ m
            assert not first.requires_grad
        y = x @ m  # needs a recorded cast
        y.sum().backward()
        assert m.grad is not None
        with dtorch.no_grad():
            m.mul_(2)
        np.testing.assert_allclose(whole(x @ m), 2 * whole(first), rtol=1e-6)
        for _ in range(2):  # the kept cast serves several backward passes
            (x @ m).sum().backward()
        with autocast("cpu", dtype=HALF):
            assert (x @ m).dtype == HALF
    held = dtorch.memory_stats("cpu:0")["allocated"]
    big = nn.Parameter(dtorch.zeros(512, 512))
    with autocast("cpu"):
        (dtorch.ones(1, 512) @ big).sum().item()
    dtorch.synchronize()
    assert dtorch.memory_stats("cpu:0")["allocated"] - held < 512 * 512 * 4 + 100_000  # the cast is gone


def test_backward_of_a_checkpoint_keeps_no_casts():
    from dtorch.utils.checkpoint import checkpoint as part

    m = nn.Parameter(dtorch.zeros(512, 512))
    v = dtorch.ones(1, 512)

    def step():
        m.grad = None
        with autocast("cpu"):
            loss = part(lambda u: (u @ m).sum(), v)
        loss.backward()
        m.grad = None
        dtorch.synchronize()
        return dtorch.memory_stats("cpu:0")["allocated"]

    first = step()
    assert abs(step() - first) < 100_000
    base = dtorch.memory_stats("cpu:0")["allocated"]
    m = None
    dtorch.synchronize()
    freed = base - dtorch.memory_stats("cpu:0")["allocated"]
    assert 512 * 512 * 4 <= freed < 512 * 512 * 4 + 100_000, freed  # the parameter, which a kept cast would hold, and nothing else


def test_functions_of_ones_own():
    class Mul(dtorch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx, p, q):
            ctx.save_for_backward(p, q)
            return p @ q

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            p, q = ctx.saved_tensors
            assert dtorch.is_autocast_enabled("cpu")
            return g @ q.t(), p.t() @ g

    class Single(dtorch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=F32)
        def forward(ctx, p):
            assert not dtorch.is_autocast_enabled("cpu") and p.dtype == F32
            return p @ p.t()

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            assert not dtorch.is_autocast_enabled("cpu")
            return None

    p, q = nn.Parameter(x.clone()), nn.Parameter(w.clone())
    with autocast("cpu"):
        y = Mul.apply(p, q)
        z = Single.apply(p.bfloat16())
    assert y.dtype == BF and z.dtype == F32
    y.sum().backward()
    assert q.grad is not None
    z.sum().backward()


@pytest.mark.parametrize("placed", ["S0", "S1", "R", "2-D"])
def test_autocast_on_shards(placed):
    flat, square = init_device_mesh("cpu", (3,)), init_device_mesh("cpu", (2, 2))
    mesh, px, pw = {
        "S0": (flat, [Shard(0)], [Replicate()]), "S1": (flat, [Replicate()], [Shard(1)]), "R": (flat, [Replicate()], [Replicate()]),
        "2-D": (square, [Shard(0), Replicate()], [Replicate(), Shard(0)]),
    }[placed]  # fmt: skip
    grads = []
    for place in (None, mesh):
        v = x.clone() if place is None else distribute_tensor(x, mesh, px)
        m = nn.Parameter(w.clone() if place is None else distribute_tensor(w, mesh, pw))
        with autocast("cpu"):
            y = F.gelu(v @ m)
            assert y.dtype == BF
            loss = F.cross_entropy(y, dtorch.arange(4) if place is None else distribute_tensor(dtorch.arange(4), mesh, px))
        loss.backward()
        grads.append((whole(loss), whole(m.grad)))
        assert m.grad.placements == m.placements
    np.testing.assert_allclose(grads[0][0], grads[1][0], rtol=1e-2)
    np.testing.assert_allclose(grads[0][1], grads[1][1], rtol=5e-2, atol=1e-2)


def test_a_model_trains():
    dtorch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    opt = optim.AdamW(model.parameters(), lr=1e-2)
    data, labels = dtorch.randn(64, 8), dtorch.randint(0, 4, (64,))
    losses = []
    for _ in range(30):
        with autocast("cpu"):
            loss = F.cross_entropy(model(data), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    losses = [v.item() for v in losses]
    assert losses[-1] < 0.6 * losses[0]


# ---- GradScaler

OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, dampening=0.3), "Adam": dict(lr=0.1, amsgrad=True), "AdamW": dict(lr=0.1), "Adagrad": dict(lr=0.1),
    "NAdam": dict(lr=0.1), "RAdam": dict(lr=0.1), "RMSprop": dict(lr=0.01, momentum=0.9), "Rprop": dict(lr=0.01), "ASGD": dict(lr=0.1),
    "Adadelta": dict(lr=1.0), "Adamax": dict(lr=0.1), "Adafactor": dict(lr=0.1), "Muon": dict(lr=0.1),
}  # fmt: skip
BAD = {0: "inf", 3: "nan", 4: "-inf", 7: "inf"}  # steps whose gradients are not finite


def parameters(layout):
    dtorch.manual_seed(0)
    values = [dtorch.randn(6, 4), dtorch.randn(5, 3)]
    if layout == "shards":
        root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        values = [distribute_tensor(v, root["pp"][i], [Shard(i)]) for i, v in enumerate(values)]
    return [nn.Parameter(v) for v in values]


def losses_of(params, step, scale):
    bad = BAD.get(step)
    for i, p in enumerate(params):
        loss = ((p - 0.3) ** 2).sum() + p.sin().sum()
        if bad is not None and i == step % 2:
            loss = loss * float(bad)
        scale(loss).backward()


@pytest.mark.parametrize("layout", ["plain", "shards"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_that_are_not_finite_are_as_if_not_made(name, layout):
    want = parameters(layout)
    opt = getattr(optim, name)(want, **OPTIMIZERS[name])
    for step in range(10):
        opt.zero_grad()
        losses_of(want, step, lambda v: v)
        if step not in BAD:
            opt.step()
    params = parameters(layout)
    opt2 = getattr(optim, name)(params, **OPTIMIZERS[name])
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scales = []
    for step in range(10):
        opt2.zero_grad()
        losses_of(params, step, scaler.scale)
        scaler.step(opt2)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4, 4, 4, 2, 1, 1, 1, 0.5, 0.5, 0.5]
    for p, q in zip(want, params, strict=True):  # scales are powers of two: no bit is lost
        np.testing.assert_array_equal(whole(q), whole(p))
    a, c = opt.state_dict()["state"], opt2.state_dict()["state"]
    assert a.keys() == c.keys()
    for i in a:
        assert a[i].keys() == c[i].keys()
        for k in a[i]:
            if isinstance(a[i][k], dtorch.Tensor):
                np.testing.assert_array_equal(whole(c[i][k]), whole(a[i][k]), err_msg=k)


@pytest.mark.parametrize("gradients", [False, True])
def test_with_sharded_state(gradients):
    from dtorch.distributed.fsdp import shard_optimizer_state

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    results = []
    for scaled in (False, True):
        dtorch.manual_seed(0)
        params = [nn.Parameter(distribute_tensor(dtorch.randn(s), mesh, [Replicate()])) for s in ((6, 4), (5, 3))]
        opt = shard_optimizer_state(optim.AdamW(params, lr=0.1), mesh, gradients=gradients)
        scaler = GradScaler("cpu", init_scale=8.0)
        for step in range(10):
            opt.zero_grad()
            losses_of(params, step, scaler.scale if scaled else lambda v: v)
            if scaled:
                scaler.step(opt)
                scaler.update()
            elif step not in BAD:
                opt.step()
        results.append([*map(whole, params), opt.state_dict()["state"][0]["step"].item()])
    for p, q in zip(*results, strict=True):
        np.testing.assert_array_equal(p, q)


def test_the_scale_grows_and_shrinks():
    p = nn.Parameter(dtorch.ones(3))
    opt = optim.SGD([p], lr=0.0)
    scaler = GradScaler("cpu", init_scale=4.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=2)
    scales = []
    for factor in (1, 1, 1, float("inf"), 1, 1, float("nan"), float("nan"), 1):
        opt.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4, 12, 12, 3, 3, 9, 2.25, 0.5625, 0.5625]
    assert scaler.state_dict() == {
        "scale": 0.5625,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 2,
        "_growth_tracker": 1,
    }
    scaler.update(7.0)
    assert scaler.get_scale() == 7.0


def test_unscale_clip_and_two_optimizers():
    a, c = nn.Parameter(dtorch.full((4,), 2.0)), nn.Parameter(dtorch.full((2,), 3.0))
    one, two = optim.SGD([a], lr=1.0), optim.SGD([c], lr=1.0)
    scaler = GradScaler("cpu", init_scale=1024.0)
    scaler.scale((a * 3).sum() + (c * float("inf")).sum()).backward()
    scaler.unscale_(one)
    assert a.grad.tolist() == [3.0] * 4
    assert nn.utils.clip_grad_norm_([a], 1.0).item() == pytest.approx(6.0)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(one)
    scaler.step(one)
    with pytest.raises(RuntimeError, match="already been called since"):
        scaler.step(one)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(one)
    scaler.step(two)
    scaler.update()
    np.testing.assert_allclose(whole(a), 1.5, rtol=1e-5)
    assert c.tolist() == [3.0, 3.0] and scaler.get_scale() == 512.0
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(one, closure=lambda: None)
    with pytest.raises(AssertionError, match="_scale is None"):
        GradScaler("cpu").step(one)
    half = nn.Parameter(dtorch.ones(2).half())
    half.grad = dtorch.ones(2).half()
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(optim.SGD([half], lr=1.0))


def test_disabled():
    scaler = GradScaler("cpu", enabled=False)
    p = nn.Parameter(dtorch.ones(2))
    opt = optim.SGD([p], lr=1.0)
    loss = p.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    assert p.tolist() == [0.0, 0.0] and scaler.get_scale() == 1.0 and scaler.state_dict() == {} and not scaler.is_enabled()


def test_a_step_does_not_wait():
    go = threading.Event()
    p = nn.Parameter(dtorch.ones(2))
    opt = optim.Adam([p], lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0)
    held = dtorch.host_call(lambda v: (go.wait(20), v)[1], p.detach(), out=((2,), F32))
    scaler.scale((p * held).sum()).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_([p], 100.0)
    scaler.step(opt)
    scaler.update()
    assert not go.is_set()
    go.set()
    np.testing.assert_allclose(whole(p), 0.9, rtol=1e-5)


def test_its_state_is_saved(tmp_path):
    def run(scaler, params, opt, steps):
        for step in steps:
            opt.zero_grad()
            losses_of(params, step, scaler.scale)
            scaler.step(opt)
            scaler.update()

    params, scaler = parameters("shards"), GradScaler("cpu", init_scale=16.0, growth_interval=2)
    opt = optim.AdamW(params, lr=0.1)
    run(scaler, params, opt, range(5))  # the last one is skipped
    path = checkpoint.save(tmp_path / "c", {"params": params, "opt": opt, "scaler": scaler})
    run(scaler, params, opt, range(5, 10))
    params2, scaler2 = parameters("shards"), GradScaler("cpu")
    opt2 = optim.AdamW(params2, lr=0.1)
    checkpoint.load(path, {"params": params2, "opt": opt2, "scaler": scaler2})
    run(scaler2, params2, opt2, range(5, 10))
    assert scaler2.state_dict() == scaler.state_dict()
    for p, q in zip(params, params2, strict=True):
        np.testing.assert_array_equal(whole(p), whole(q))
