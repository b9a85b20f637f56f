"""Memory: budgets and recomputation, limits, statistics, and what an out-of-memory error says."""

import dtorch
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Shard, distribute_tensor, nn


@pytest.fixture
def device(request, n=iter(range(20, 38))):
    """A CPU device that no other test has used: its peak is this test's."""
    d = f"cpu:{next(n)}"
    yield d
    dtorch.set_memory_budget(None, d)
    dtorch.set_memory_limit(d, None)


def stack(width, depth):
    def block():
        return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(width))

    return nn.Sequential(*[block() for _ in range(depth)], nn.Linear(width, 10))


def train(device, budget, steps=2, rows=512, depth=6, place=None, devices=()):
    """Losses and gradients as bytes, and the peaks of the devices."""
    dtorch.manual_seed(0)
    with dtorch.device(device):
        model, x, y = stack(128, depth), dtorch.randn(rows, 128), dtorch.randint(0, 10, (rows,))
    if place:
        model, x, y = place(model, x, y)
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-2)
    devices = devices or [device]
    dtorch.synchronize()
    before = [dtorch.memory_stats(d)["evicted"] for d in devices]
    for d in devices:
        dtorch.set_memory_budget(budget and budget[d], d)
        dtorch.reset_peak_memory_stats(d)
    out = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        out.append(loss.item())
        out += [(p.grad.full_tensor() if place else p.grad).numpy().tobytes() for p in model.parameters()]
        optimizer.step()
    stats = [dtorch.memory_stats(d) for d in devices]
    for d in devices:
        dtorch.set_memory_budget(None, d)
    return out, {d: s["allocated_peak"] for d, s in zip(devices, stats, strict=True)}, sum(s["evicted"] for s in stats) - sum(before)


@pytest.mark.parametrize("share", [0.8, 0.65, 0.52])
def test_budget_changes_no_bit_and_is_kept(device, share):
    want, peak, none = train(device, None)
    assert none == 0
    budget = {device: int(peak[device] * share)}
    got, held, evicted = train(device, budget)
    assert got == want and evicted > 0
    assert held[device] <= budget[device]


@pytest.mark.every_pass("what fits into the budget depends on reuse of memory and on cuts")
def test_what_is_evicted_does_not_depend_on_timing(device):
    _, peak, _ = train(device, None)
    budget = {device: int(peak[device] * 0.5)}
    runs = [train(device, budget, steps=1)[1:] for _ in range(3)]
    assert runs[0][1] > 0 and runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("kind", ["data", "tensor", "both"])
def test_budget_on_meshes(kind):
    shape, names = {"data": ((2,), ("dp",)), "tensor": ((2,), ("tp",)), "both": ((2, 2), ("dp", "tp"))}[kind]
    first = {"data": 38, "tensor": 40, "both": 42}[kind]
    n = int(np.prod(shape))
    devices = [f"cpu:{first + i}" for i in range(n)]
    mesh = dtorch.DeviceMesh("cpu", np.arange(first, first + n).reshape(shape).tolist(), mesh_dim_names=names)

    def place(model, x, y):
        for block in model[:-1]:
            for k, (name, p) in enumerate(list(block[0].named_parameters())):
                cut = {"tp": Shard(0)} if "tp" in names and k == 0 else {}
                block[0].register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, cut)))
        for m in model.modules():
            for name, p in list(m._parameters.items()):
                if not p.is_distributed if hasattr(p, "is_distributed") else p.device_mesh is None:
                    m.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, {})))
        cut = {"dp": Shard(0)} if "dp" in names else {}
        return model, distribute_tensor(x, mesh, cut), distribute_tensor(y, mesh, cut)

    want, peak, _ = train("cpu", None, rows=511, place=place, devices=devices)
    budget = {d: int(p * 0.65) for d, p in peak.items()}
    got, held, evicted = train("cpu", budget, rows=511, place=place, devices=devices)
    assert got == want and evicted > 0
    assert all(held[d] <= budget[d] for d in devices)


@pytest.mark.every_pass("what fits into the budget depends on reuse of memory and on cuts")
def test_evicted_values_are_read_written_and_viewed(device):
    """Values that lost their memory behave as if nothing had happened: reads, views, writes in place, also after the budget is gone."""
    rng = np.random.default_rng(0)
    start = rng.standard_normal((256, 256)).astype("f4")

    def program(budget):
        r = np.random.default_rng(1)
        x = dtorch.from_numpy(start).to(device)
        dtorch.synchronize()
        dtorch.set_memory_budget(budget, device)
        dtorch.manual_seed(7)
        live, out = [x * 1.5], []
        for _ in range(120):
            k = int(r.integers(len(live)))
            t = live[k]
            what = int(r.integers(9))
            if what == 0:
                live.append(t.tanh() + 1)
            elif what == 1:
                live.append(t @ x * 0.01)
            elif what == 2:
                live.append(t.T)
            elif what == 3:
                t[3:40].mul_(0.5)
            elif what == 4:
                t.add_(live[int(r.integers(len(live)))])
            elif what == 5:
                live.append(F.dropout(t, 0.3))
            elif what == 6:
                live.append(t.narrow(0, 0, 256))
            elif what == 7:
                a, b = t.split(128)
                live.append(dtorch.cat([b, a]))
            else:
                out.append(t.numpy().copy())
            if len(live) > 14:
                del live[int(r.integers(len(live)))]
        dtorch.set_memory_budget(None, device)
        return [*out, *(t.numpy().copy() for t in live)]

    want = program(None)
    before = dtorch.memory_stats(device)["evicted"]
    got = program(3_300_000)
    assert dtorch.memory_stats(device)["evicted"] > before
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(want, got, strict=True))


def test_budget_and_higher_gradients(device):
    def grads(budget):
        dtorch.manual_seed(0)
        x = dtorch.randn(400, 64, device=device, requires_grad=True)
        w = dtorch.randn(64, 64, device=device, requires_grad=True)
        dtorch.synchronize()
        dtorch.set_memory_budget(budget, device)
        dtorch.reset_peak_memory_stats(device)
        h = x
        for _ in range(5):
            h = F.silu(F.layer_norm(h @ w, (64,)))
        (g,) = dtorch.autograd.grad((h**2).sum(), x, create_graph=True)
        (gg,) = dtorch.autograd.grad((g**2).sum(), w)
        out = gg.numpy().tobytes(), g.detach().numpy().tobytes()
        return out, dtorch.memory_stats(device)["allocated_peak"]

    want, peak = grads(None)
    got, held = grads(int(peak * 0.6))
    assert got == want and held <= int(peak * 0.6)


def test_budget_with_checkpointing(device):
    from dtorch.utils.checkpoint import checkpoint

    def grads(budget):
        dtorch.manual_seed(0)
        with dtorch.device(device):
            model, x = stack(128, 6), dtorch.randn(512, 128)
        dtorch.synchronize()
        dtorch.set_memory_budget(budget, device)
        dtorch.reset_peak_memory_stats(device)
        h = x
        for block in model[:-1]:
            h = checkpoint(block, h, use_reentrant=False)
        model[-1](h).sum().backward()
        return [p.grad.numpy().tobytes() for p in model.parameters()], dtorch.memory_stats(device)["allocated_peak"]

    want, peak = grads(None)
    got, held = grads(int(peak * 0.75))
    assert got == want and held <= int(peak * 0.75)


@pytest.mark.every_pass("what fits into the budget depends on reuse of memory and on cuts")
def test_budget_of_a_pipeline():
    from dtorch.distributed.pipelining import pipeline

    def run(budget):
        dtorch.manual_seed(0)
        mesh = dtorch.DeviceMesh("cpu", [46, 47], mesh_dim_names=("pp",))
        model = pipeline(stack(128, 4), mesh["pp"], [8, 9])
        xs = [dtorch.randn(256, 128) for _ in range(4)]
        dtorch.synchronize()
        for d in budget or ():
            dtorch.set_memory_budget(budget[d], d)
            dtorch.reset_peak_memory_stats(d)
        for x in xs:
            model(x).sum().backward()
        out = [p.grad.full_tensor().numpy().tobytes() for p in model.parameters()]
        peaks = {d: dtorch.memory_stats(d)["allocated_peak"] for d in ("cpu:46", "cpu:47")}
        for d in peaks:
            dtorch.set_memory_budget(None, d)
        return out, peaks

    want, peaks = run(None)
    budget = {d: int(p * 0.7) for d, p in peaks.items()}
    got, held = run(budget)
    assert got == want and all(held[d] <= budget[d] for d in budget)


def test_a_limit_recomputes_before_it_fails(device):
    want, peak, _ = train(device, None)
    dtorch.set_memory_limit(device, int(peak[device] * 0.7))
    got, held, evicted = train(device, None)
    assert got == want and evicted > 0 and held[device] <= int(peak[device] * 0.7)


def test_error_when_even_recomputation_cannot_fit(device):
    dtorch.set_memory_budget(1 << 20, device)
    kept = dtorch.ones(1000, 100, device=device) + 1
    with pytest.raises(
        dtorch.OutOfMemoryError, match=rf"4\d{{6}} bytes wanted on {device} .*budget 1048576; largest live tensors: .*test_memory.py"
    ):
        (dtorch.ones(1000, 1000, device=device) + dtorch.rand(1000, 1000, device=device)).numpy()
    assert (kept.sum() + 1).item() == 200001


@pytest.mark.every_pass("what fits into the budget depends on reuse of memory and on cuts")
def test_a_training_that_cannot_fit_fails_and_goes_on_without_the_budget(device):
    """Failed values reach fused groups with sums over columns, in-place steps of the optimizer and everything else."""
    want, peak, _ = train(device, None)
    for share in (0.35, 0.25):
        with pytest.raises(dtorch.OutOfMemoryError, match="that cannot be computed again, budget"):
            train(device, {device: int(peak[device] * share)})
        dtorch.set_memory_budget(None, device)
    assert train(device, None)[0] == want


def test_budget_arguments():
    for bad in (0, -1):
        with pytest.raises(ValueError, match="at least 1, got"):
            dtorch.set_memory_budget(bad)
    with pytest.raises(TypeError):
        dtorch.set_memory_budget("1 GiB")
    dtorch.set_memory_budget(1 << 40)
    assert dtorch.memory_stats("cpu:0")["budget"] == 1 << 40
    assert "budget: none" not in dtorch.memory_summary("cpu:0")
    dtorch.set_memory_budget(None)
    assert dtorch.memory_stats("cpu:0")["budget"] == 0 and "budget: none" in dtorch.memory_summary("cpu:0")


def test_a_long_loop_keeps_no_recipes(device):
    """What came before does not stay in host memory: chains of recipes are cut."""
    import resource

    dtorch.set_memory_budget(1 << 30, device)
    x = dtorch.ones(16, device=device)
    for i in range(40000):
        x = x * 1.0001 + 0.5
        if i == 20000:
            x.sum().item()
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x.sum().item()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 8 << 10  # KiB


ZERO = """
import sys; sys.path.insert(0, {dist!r})
from test_zero import batch_on, fully_shard, init_device_mesh, make, shard_all, train
mesh = init_device_mesh("cpu", (3,))
runs = [train(shard_all(make(), mesh, reshard_after_forward=True), batch_on(mesh)) for _ in range({runs})]
for losses, parameters in runs:
    print(losses, [float(p.astype("f8").sum()) for p in parameters])
"""


def test_evicting_at_random_in_a_sharded_training():
    """Gathered weights, collectives and donated parameters: nothing that an evicted value needs is overwritten."""
    import os
    import subprocess
    import sys

    def run(evict, runs):
        env = {k: v for k, v in os.environ.items() if k != "DTORCH_EVICT"} | evict | {"PYTHONPATH": os.pathsep.join(sys.path)}
        code = ZERO.format(dist=os.path.join(os.path.dirname(__file__), "..", "dist"), runs=runs)
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return set(done.stdout.splitlines())

    want = run({}, 1)
    assert len(want) == 1
    assert run({"DTORCH_EVICT": "2"}, 12) == want
    assert run({"DTORCH_EVICT": "7"}, 12) == want
