"""Pipelines: a divided model computes what the whole one does, whatever the number of micro-batches and the shapes of the stages' meshes."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import dtorch
import dtorch.nn.functional as F
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.pipelining import assign_layers_to_stages, pipeline, schedule, stages
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

V, D, T = 50, 32, 16
SGD = {"optimizer": dtorch.optim.SGD, "lr": 0.1}  # Adam makes a step of rounding noise where a gradient is zero (the keys' bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.qkv, self.o = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.n2, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Tiny(nn.Module):
    """Embeddings, a list of layers, a head; the head's weight may be the embedding's."""

    def __init__(self, layers=4, tied=True, masked=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.ModuleList([Block() for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("scale", dtorch.ones(1, 1, D))
        self.masked = masked
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, i):
        n = i.shape[1]
        x = (self.wte(i) + self.wpe(dtorch.arange(n))) * self.scale
        mask = dtorch.ones(n, n, dtype=dtorch.bool).tril() if self.masked else None
        for b in self.h:
            x = b(x, mask=mask)
        return self.head(self.norm(x))


def train(micro, prepare=None, steps=2, batch=12, spread=None, optimizer=dtorch.optim.AdamW, lr=1e-2, target=None, **kwargs):
    dtorch.manual_seed(0)
    model = Tiny(**kwargs)
    if prepare:
        prepare(model)
    opt = optimizer(model.parameters(), lr=lr)
    g, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x, y = (dtorch.tensor(g.integers(0, V, (batch, T))) for _ in range(2))
        opt.zero_grad()
        total = 0
        for a, b in zip(x.chunk(micro), y.chunk(micro), strict=True):
            a = spread(a) if spread else a
            b = target(b) if target else b
            loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten()) / micro
            loss.backward()
            total = total + loss.detach()
        opt.step()
        losses.append(total)
    return model, [v.item() for v in losses]


def whole(t):
    return (t.full_tensor() if t.device_mesh.ndim else t).detach().numpy()


def equal(a, b, weights=1e-6, losses=1e-6):
    np.testing.assert_allclose(a[1], b[1], rtol=losses)
    for (name, p), q in zip(a[0].named_parameters(), b[0].parameters(), strict=True):
        np.testing.assert_allclose(whole(p), whole(q), atol=weights, err_msg=name)


def line(n):
    return init_device_mesh("cpu", (n,), mesh_dim_names=("pp",))


# ---- dividing
def test_assign_layers_to_stages():
    assert assign_layers_to_stages([1, 1, 1, 1, 5], 2) == [range(4), range(4, 5)]
    assert assign_layers_to_stages([1] * 8, 4) == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert [len(r) for r in assign_layers_to_stages([1] * 7, 3)] in ([2, 2, 3], [2, 3, 2], [3, 2, 2])
    assert [len(r) for r in assign_layers_to_stages([1, 2], 4)].count(0) == 2
    assert assign_layers_to_stages([], 2) == [range(0)] * 2
    with pytest.raises(ValueError, match="n must be at least 1"):
        assign_layers_to_stages([1], 0)
    with pytest.raises(ValueError, match="not negative"):
        assign_layers_to_stages([1, -1], 1)


def test_assign_is_the_best_of_all_divisions():
    g = np.random.default_rng(1)
    from itertools import combinations

    for _ in range(40):
        count = int(g.integers(3, 9))
        n, costs = int(g.integers(1, 4)), [float(c) for c in g.integers(0, 9, count)]
        dearest = max(sum(costs[i] for i in r) for r in assign_layers_to_stages(costs, n))
        best = min(
            max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, count), strict=True)) for cuts in combinations(range(1, count), n - 1)
        )
        assert dearest == best


def test_how_a_model_is_divided():
    model = pipeline(Tiny(), line(2)["pp"], "layers")
    assert stages(model) == [["wte", "wpe", "h.0", "h.1"], ["h.2", "h.3", "norm", "head"]]
    mesh = line(2)
    assert model.h[0].qkv.weight.device_mesh == mesh["pp"][0]
    assert model.h[3].qkv.weight.device_mesh == mesh["pp"][1]
    assert model.head.weight is model.wte.weight
    assert stages(pipeline(Tiny(), line(3)["pp"], ["h.1", "h.3"]))[1] == ["h.1", "h.2"]
    assert stages(pipeline(Tiny(), line(2)["pp"], [3, 5])) == [["wte", "wpe", "h.0"], ["h.1", "h.2", "h.3", "norm", "head"]]
    assert stages(pipeline(Tiny(), line(2)["pp"], [["wte", "wpe", "head"], ["h", "norm"]]))[0] == ["wte", "wpe", "head"]
    costs = {"h.0": 10}
    assert stages(pipeline(Tiny(), line(2)["pp"], lambda name, m: costs.get(name, 1)))[1] == ["h.1", "h.2", "h.3", "norm", "head"]


def test_what_is_refused():
    with pytest.raises(ValueError, match="must add up to the 8 parts"):
        pipeline(nn.Sequential(*[nn.Linear(2, 2) for _ in range(8)]), line(2)["pp"], [1, 2])
    with pytest.raises(ValueError, match="'nothing'"):
        pipeline(Tiny(), line(2)["pp"], ["nothing"])
    with pytest.raises(ValueError, match="split must be"):
        pipeline(Tiny(), line(2)["pp"], "evenly")
    with pytest.raises(TypeError, match="mesh must be"):
        pipeline(Tiny(), 3)
    with pytest.raises(ValueError, match="one dimension"):
        pipeline(Tiny(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp")))
    with pytest.raises(RuntimeError, match="two meshes"):  # strangers do not mix
        dtorch.ones(2, device_mesh=init_device_mesh("cpu", (2,))) + dtorch.ones(2, device_mesh=init_device_mesh("cpu", (3,)))


# ---- equal to one device
@pytest.mark.parametrize("micro", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("p", [2, 4])
def test_any_number_of_micro_batches(p, micro):
    batch = micro * 2
    equal(train(micro, batch=batch), train(micro, lambda m: pipeline(m, line(p)["pp"]), batch=batch))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_and_tensors_made_inside_forward(tied, masked):
    equal(train(2, tied=tied, masked=masked), train(2, lambda m: pipeline(m, line(3)["pp"], "layers"), tied=tied, masked=masked))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adafactor"])
def test_optimizers_over_parameters_on_several_meshes(name):
    make = getattr(dtorch.optim, name)
    lr = 1e-3
    equal(
        train(2, optimizer=make, lr=lr, layers=2),
        train(2, lambda m: pipeline(m, line(2)["pp"]), optimizer=make, lr=lr, layers=2),
        weights=1e-5,
    )


def test_stages_on_meshes_of_other_shapes():
    three = init_device_mesh("cpu", (3,))

    def prepare(model):
        pair = dtorch.DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
        single = dtorch.DeviceMesh("cpu", [2], mesh_dim_names=("dp",))
        pipeline(model, [pair, single])
        assert model.head.weight is model.wte.weight and model.norm.weight.device_mesh == single

    assert three.size() == 3
    equal(train(3), train(3, prepare), weights=1e-5)


def test_tensor_parallel_two_then_four():
    plan = {"h.*.up": ColwiseParallel(), "h.*.down": RowwiseParallel()}

    def prepare(model):
        a = dtorch.DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))
        b = dtorch.DeviceMesh("cpu", [2, 3, 4, 5], mesh_dim_names=("tp",))
        pipeline(model, [a, b], "layers")
        parallelize_module(model, a, plan)
        assert model.h[0].up.weight.to_local(0).shape[0] == 4 * D // 2
        assert model.h[3].up.weight.to_local(0).shape[0] == 4 * D // 4

    equal(train(2, **SGD), train(2, prepare, **SGD), weights=1e-5)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4, 2), (2, 4, 1), (3, 2, 1)])
def test_with_data_and_tensor_parallel(shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp", "tp"))
    plan = {"h.*.up": ColwiseParallel(), "h.*.down": RowwiseParallel()}

    def prepare(model):
        pipeline(model, mesh["pp"])
        parallelize_module(model, mesh["tp"], plan)
        w = model.h[3].down.weight
        assert w.device_mesh == mesh["pp"][shape[1] - 1] and w.placements == (Replicate(), Shard(1))

    def spread(t):
        return distribute_tensor(t, mesh["dp"], [Shard(0)])

    a = train(3, **SGD)
    for target in (None, spread):
        equal(a, train(3, prepare, spread=spread, target=target, **SGD), weights=1e-5)


def test_modules_laid_out_by_hand_stay():
    mesh = line(2)
    dtorch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    for i in (0, 3):
        for name in ("weight", "bias"):
            p = getattr(model[i], name)
            model[i].register_parameter(name, nn.Parameter(p.detach().redistribute(mesh["pp"][1 if i == 3 else 0], {})))
    pipeline(model, mesh["pp"], [["1", "2"], []])
    assert stages(model) == [["0", "1", "2"], ["3"]]
    x = dtorch.randn(3, 4)
    dtorch.manual_seed(0)
    same = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    np.testing.assert_array_equal(whole(model(x)), whole(same(x)))


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, extra):
        return {"x": self.b(self.a(x) + extra["add"][0]), "pair": (x, [extra["add"][0]])}


def test_nested_inputs_and_outputs():
    dtorch.manual_seed(0)
    layers = nn.ModuleList([Nest(), Nest()])
    x, add = dtorch.randn(3, 4), dtorch.randn(3, 4)

    def run():
        y = layers[0](x, extra={"add": (add, 1)})
        return layers[1](y["x"], extra={"add": (y["pair"][1][0], 1)})

    want = run()["x"].detach().numpy()
    pipeline(layers, line(2)["pp"], ["1"])
    got = run()
    assert got["pair"][1][0].device_mesh == line(2)["pp"][1]
    np.testing.assert_array_equal(whole(got["x"]), want)


def test_operands_of_two_stages_meet_on_the_later_one():
    mesh = line(3)
    _ = pipeline(nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)]), mesh["pp"])
    a = dtorch.ones(2, 2, device_mesh=mesh["pp"][0], requires_grad=True)
    b = dtorch.full((2, 2), 2.0, device_mesh=mesh["pp"][2], requires_grad=True)
    c = a * b
    assert c.device_mesh == mesh["pp"][2]
    c.sum().backward()
    assert a.grad.device_mesh == mesh["pp"][0] and b.grad.device_mesh == mesh["pp"][2]
    np.testing.assert_array_equal(whole(a.grad), np.full((2, 2), 2.0))
    whole_mesh = dtorch.arange(4, dtype=dtorch.float32).view(2, 2).redistribute(mesh, [Replicate()])
    assert (whole_mesh + b).device_mesh == mesh["pp"][2]
    with dtorch.redistribute_policy("error"), pytest.raises(RuntimeError, match="implied"):
        a + b


def test_checkpointing_state_dict_and_frozen_stage():
    from dtorch.utils.checkpoint import checkpoint

    def prepare(model):
        pipeline(model, line(2)["pp"])
        for b in model.h:
            b.forward = (lambda f: lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k))(b.forward)

    equal(train(3), train(3, prepare))
    model, _ = train(1)
    twin = pipeline(Tiny(), line(2)["pp"])
    twin.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(whole(twin.h[3].up.weight), whole(model.h[3].up.weight))
    for p in twin.h[0].parameters():
        p.requires_grad_(False)
    x = dtorch.tensor(np.arange(2 * T).reshape(2, T) % V)
    twin(x).sum().backward()
    assert twin.h[0].up.weight.grad is None and twin.h[1].up.weight.grad is not None


# ---- the schedule of a plain loop
def even(p, micro, steps=2, fetch=True, wide=128, rows=64, mesh=None):
    """Training steps of p equal stages; returns the schedule of the last step's backward loop and the losses."""
    dtorch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(2 * p) for layer in (nn.Linear(wide, wide, bias=False), nn.Tanh())])
    pipeline(model, (mesh or line(p))["pp"], [4] * p)
    opt = dtorch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = dtorch.randn(micro * rows, wide)
        schedule()
        for a in x.chunk(micro):
            loss = model(a.requires_grad_()).square().mean() / micro  # so that the first stage has as much to do backwards
            loss.backward()
            losses.append(loss.detach())
        got = schedule() if fetch else None
        opt.step()
        opt.zero_grad()
    return got, [v.item() for v in losses], model


def simulated(p, micro):
    """even()'s schedule on simulated devices, where it is a function of the program: nothing is dispatched because the client pauses."""
    with dtorch.simulate("cpu-plain", devices=p):
        got = even(p, micro)[0]
    last = max((i for i, r in enumerate(got) if r["opener"]), default=0)
    assert not any(r["forced"] for r in got[:last])  # nor is anything else: no read, no full window before the loop's end
    return got


@pytest.mark.every_pass("the order of work, or memory under it")
@pytest.mark.parametrize(("p", "micro"), [(2, 4), (2, 8), (4, 1), (4, 3), (4, 8), (4, 16), (8, 16)])
def test_simulated_bubble_and_memory_of_1f1b(p, micro):
    got = simulated(p, micro)
    theory = (p - 1) / (micro + p - 1)
    bubble = got.bubble()
    assert len(bubble) == p
    assert sum(bubble.values()) / p <= theory + 0.05
    assert all(b >= theory - 0.05 for b in bubble.values())
    for stage, held in got.in_flight().items():
        assert held <= min(micro, p - stage)


@pytest.mark.every_pass("the order of work, or memory under it")
def test_simulated_schedule_is_the_same_every_time():
    def order(got):
        first = got[0]["id"]
        return [(r["device"], r["id"] - first, r["opener"], r["closing"]) for r in got if not r["plain"]]

    a, b = simulated(4, 6), simulated(4, 6)
    assert order(a) == order(b)
    assert "F" in repr(a) and "b" in repr(a)


@pytest.mark.every_pass("the order of work, or memory under it")
def test_simulated_stages_work_at_the_same_time():
    """In virtual time a step of 4 stages and 8 micro-batches takes 11 of 32 stage-steps, not 32."""
    rows = simulated(4, 8).rows()
    begin, end = min(r["begin"] for rs in rows.values() for r in rs), max(r["end"] for rs in rows.values() for r in rs)
    work = sum(r["end"] - r["begin"] for rs in rows.values() for r in rs)
    assert end - begin < 0.42 * work


@pytest.mark.every_pass("the order of work, or memory under it")
def test_a_pause_under_a_budget_dispatches_nothing():
    """What is given up under a budget depends on the program alone, and so does the order."""
    mesh = dtorch.DeviceMesh("cpu", [54, 55], mesh_dim_names=("pp",))
    even(2, 4, mesh=mesh)  # the first backward shows what is a forward
    dtorch.set_memory_budget(1 << 40)
    try:
        model = even(2, 4, mesh=mesh)[2]
        x = dtorch.randn(256, 128)
        schedule()
        for a in x.chunk(4):
            model(a.requires_grad_()).square().mean().backward()
            time.sleep(0.1)
        got = schedule()
    finally:
        dtorch.set_memory_budget(None)
    last = max(i for i, r in enumerate(got) if r["opener"])
    assert not any(r["forced"] for r in got[:last]), got


def test_steps_without_a_read_follow_each_other():
    _, a, _ = even(3, 4, steps=6, fetch=False)
    _, b, _ = even(3, 4, steps=6)
    assert a == b


def test_a_read_in_the_loop_is_right():
    model = pipeline(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), line(4)["pp"])
    whole_model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    whole_model.load_state_dict({k: v.full_tensor() for k, v in model.state_dict().items()})
    for k in range(5):
        x = dtorch.randn(3, 8)
        a, b = model(x).square().mean(), whole_model(x).square().mean()
        a.backward()
        b.backward()
        assert a.item() == b.item()
        if k % 2:
            np.testing.assert_array_equal(whole(model[0].weight.grad), whole(whole_model[0].weight.grad))


def test_late_errors_name_their_call_and_spare_the_rest():
    model = pipeline(Tiny(), line(4)["pp"])
    ids = [dtorch.tensor(np.full((2, T), v)) for v in (1, V + 7, 2)]
    outs = [model(i).sum() for i in ids]
    assert np.isfinite(outs[0].item())
    with pytest.raises(IndexError):
        outs[1].item()
    assert np.isfinite(outs[2].item())


def test_values_are_the_same_in_stream_order():
    """The interleaved run and the run in the order of the stream agree bit for bit."""
    here = os.path.dirname(__file__)
    code = (
        f"import sys; sys.path.insert(0, {here!r})\n"
        "from test_pipeline import even, line, pipeline, train, whole\n"
        "m, losses = train(3, lambda m: pipeline(m, line(4)['pp']), steps=3)\n"
        "print(losses, [float(whole(p).astype('f8').sum()) for p in m.parameters()], even(4, 5)[1])"
    )
    runs = []
    for off, flush in (("", ""), ("order", ""), ("", "20")):
        env = {**os.environ, "DTORCH_OFF": off, "DTORCH_FLUSH": flush, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        runs.append(done.stdout)
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.every_pass("the order of work, or memory under it")
def test_activations_in_flight_are_bounded_in_memory():
    """Many micro-batches hold no more memory on a stage than a few: what is allocated follows the schedule."""

    def peaks(first, micro):
        mesh = dtorch.DeviceMesh("cpu", [first, first + 1, first + 2], mesh_dim_names=("pp",))  # devices no other test has used
        even(3, micro, rows=256, mesh=mesh)
        return [dtorch.memory_stats(f"cpu:{first + i}")["allocated_peak"] for i in range(3)]

    few, many = peaks(40, 4), peaks(50, 24)
    assert all(m <= 1.25 * f for f, m in zip(few, many, strict=True)), (few, many)
    activations = 256 * 128 * 4
    assert many[0] > 2 * 3 * activations  # the measure sees them: three micro-batches' tanh results, two layers


# ---- any program over several meshes
class Staged:
    """A random program on tensors on stages, on the whole mesh and on one device: sums, moves, writes through views, reads. NumPy does the same."""

    def __init__(self, seed):
        from dtorch import _C

        self.r, self.g = np.random.default_rng(seed), np.random.default_rng(seed)
        stages, tp = int(self.r.integers(2, 5)), int(self.r.integers(1, 3))
        self.mesh = init_device_mesh("cpu", (stages, tp), mesh_dim_names=("pp", "tp"))
        self.stage = [self.mesh["pp"][i] for i in range(stages)]
        _C._mesh_stages(self.stage)
        self.t, self.n = [], []
        for _ in range(6):
            a = self.g.standard_normal((6, 4)).astype(np.float32)
            where = int(self.r.integers(stages + 2))
            t = dtorch.tensor(a)
            if where < stages:
                t = distribute_tensor(t, self.stage[where], [self.cut()])
            elif where == stages:
                t = distribute_tensor(t, self.mesh, [Replicate(), Shard(0)])
            self.t.append(t)
            self.n.append(a.astype(np.float64))

    def cut(self):
        return (Shard(0), Shard(1), Replicate())[int(self.r.integers(3))]

    def step(self):
        i, j, d = (int(k) for k in self.r.integers(6, size=3))
        kind = self.r.random()
        if kind < 0.35:
            self.t[d], self.n[d] = self.t[i] * 0.5 + self.t[j], self.n[i] * 0.5 + self.n[j]
        elif kind < 0.55:
            self.t[d], self.n[d] = (self.t[i] - self.t[j]).tanh(), np.tanh(self.n[i] - self.n[j])
        elif kind < 0.75:
            to = self.stage[int(self.r.integers(len(self.stage)))]
            self.t[d], self.n[d] = self.t[i].redistribute(to, [self.cut()]), self.n[i].copy()
        elif kind < 0.8:
            self.t[d], self.n[d] = dtorch.ones(6, 4) * 0.25, np.full((6, 4), 0.25)
        elif kind < 0.88:
            self.t[d].mul_(0.5)
            self.n[d] = self.n[d] * 0.5
        elif kind < 0.95:
            self.t[d][1:3].add_(1.0)
            self.n[d] = self.n[d].copy()
            self.n[d][1:3] += 1
        else:
            self.check(i)

    def check(self, i):
        np.testing.assert_allclose(whole(self.t[i]), self.n[i], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_over_stages(seed):
    p = Staged(seed)
    for _ in range(250):
        p.step()
    for i in range(6):
        p.check(i)


def test_out_of_memory_on_a_stage_is_an_error_there():
    mesh = dtorch.DeviceMesh("cpu", [58, 59], mesh_dim_names=("pp",))
    model = pipeline(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4096)), mesh["pp"], [1, 1])
    first = model[0](dtorch.ones(4, 64))
    dtorch.synchronize()
    dtorch.set_memory_limit("cpu:59", dtorch.memory_stats("cpu:59")["allocated"] + (1 << 16))
    try:
        with pytest.raises(dtorch.OutOfMemoryError):
            model(dtorch.ones(512, 64)).sum().item()
        assert np.isfinite(whole(first)).all()
    finally:
        dtorch.set_memory_limit("cpu:59", None)
    assert np.isfinite(model(dtorch.ones(512, 64)).sum().item())
