"""ZeRO: sharded parameters, gradients and optimizer states train as one device does, and cost what theory says."""

import copy
import os
import subprocess
import sys
from dataclasses import replace

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, shard_optimizer_state
from dtorch.distributed.tensor import distribute_module

F = nn.functional
VOCABULARY, WIDTH = 11, 12


class Block(nn.Module):
    """Sizes that no number of devices divides, a scalar parameter, a parameter of one element."""

    def __init__(self, hidden=30):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.scale, self.shift = nn.Parameter(dtorch.tensor(0.5)), nn.Parameter(dtorch.zeros(1))

    def forward(self, x):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x)))) + self.shift * x


class Model(nn.Module):
    """Tied embedding and head; two blocks that share a layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block(17), Block()])
        self.blocks[2].up = self.blocks[0].up
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make(freeze=False):
    dtorch.manual_seed(5)
    model = Model()
    if freeze:
        model.blocks[1].up.weight.requires_grad_(False)
        model.embed.weight.requires_grad_(False)
    return model


def train(model, lay=lambda t: t, steps=4, micro=1, rows=13, optimizer=None, sync=lambda on: None):
    """Losses and final parameters of a few steps; each step is the mean over `micro` micro-batches."""
    optimizer = optimizer or dtorch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    ids = dtorch.arange(2 * rows * micro).reshape(micro, rows, 2) * 7 % VOCABULARY
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for k in range(micro):
            sync(k == micro - 1)
            x = lay(ids[k])
            loss = F.cross_entropy(model(x).reshape(-1, VOCABULARY), (x * 3 % VOCABULARY).reshape(-1)) / micro
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return dtorch.stack([loss.full_tensor() for loss in losses]).tolist(), [p.detach().full_tensor().numpy() for p in model.parameters()]


@pytest.fixture(scope="module")
def expected():
    return train(make())


def check(got, want, rtol=1e-5, atol=2e-5):
    np.testing.assert_allclose(got[0], want[0], rtol=rtol)
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def shard_all(model, mesh, **kwargs):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **kwargs)
    return fully_shard(model, mesh=mesh, **kwargs)


def volumes(model):
    """Bytes of the parameters that are cut, and of those that a second unit gathers and reduces once more."""
    return sum(p.numel() for p in model.parameters() if p.ndim) * 4, sum(p.numel() for p in model.blocks[0].up.parameters()) * 4


def batch_on(mesh):
    return lambda t: distribute_tensor(t, mesh, [Shard(0)] * mesh.ndim)


@pytest.mark.parametrize("reshard", [None, True, False, 2])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_units_train_as_one_device_does(n, reshard, expected):
    mesh = init_device_mesh("cpu", (n,))
    model = shard_all(make(), mesh, reshard_after_forward=reshard)
    assert all(isinstance(p.placements[0], Shard if p.ndim else Replicate) for p in model.parameters())
    assert model.head.weight is model.embed.weight and model.blocks[2].up.weight is model.blocks[0].up.weight
    check(train(model, batch_on(mesh)), expected)


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 2), (3, 2)])
def test_hybrid(shape, expected):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = shard_all(make(), mesh["replicate", "shard"], reshard_after_forward=True)
    assert all(p.placements[0] == Replicate() for p in model.parameters())
    check(train(model, batch_on(mesh)), expected)


@pytest.mark.parametrize("names", [("dp", "tp"), ("tp", "dp")])
def test_with_tensor_parallelism(names, expected):
    from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    model = make()
    for block in model.blocks:
        up = {} if block is model.blocks[2] else {"up": ColwiseParallel()}  # it is the first one's
        parallelize_module(block, mesh["tp"], {"down": RowwiseParallel(), **up})
    shard_all(model, mesh["dp"], reshard_after_forward=True)
    dp = names.index("dp")
    assert isinstance(model.blocks[1].up.weight.placements[1 - dp], Shard) and isinstance(model.blocks[1].up.weight.placements[dp], Shard)
    check(train(model, lambda t: distribute_tensor(t, mesh["dp"], [Shard(0)])), expected)


def test_hybrid_beside_tensor_parallelism(expected):
    from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = make()
    parallelize_module(model.blocks[1], mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    shard_all(model, mesh["replicate", "shard"], reshard_after_forward=True)
    assert model.blocks[1].down.weight.placements == (Replicate(), Shard(0), Shard(1))
    part = mesh["replicate", "shard"]
    check(train(model, lambda t: distribute_tensor(t, part, [Shard(0)] * 2)), expected)


def test_frozen_parameters():
    want = train(make(freeze=True))
    mesh = init_device_mesh("cpu", (4,))
    model = shard_all(make(freeze=True), mesh, reshard_after_forward=True)
    assert not model.embed.weight.requires_grad
    check(train(model, batch_on(mesh)), want)
    assert model.embed.weight.grad is None and model.blocks[1].up.weight.grad is None


def test_other_dimensions_and_ignored_parameters(expected):
    mesh = init_device_mesh("cpu", (3,))
    model = make()
    scale = model.blocks[1].scale
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.ndim else None, ignored_params={scale})
    assert model.blocks[1].scale is scale and model.blocks[0].up.weight.placements == (Shard(1),)
    check(train(model, batch_on(mesh)), expected)


@pytest.mark.parametrize("n", [2, 4])
def test_accumulated_gradients_are_reduced_once(n):
    want = train(make(), micro=3)
    mesh = init_device_mesh("cpu", (n,))
    model = shard_all(make(), mesh, reshard_after_forward=False)
    check(train(model, batch_on(mesh), micro=3, sync=model.set_requires_gradient_sync), want)
    dtorch.comm_report(reset=True)
    train(model, batch_on(mesh), micro=3, steps=1, sync=model.set_requires_gradient_sync)
    sent = sum(r["bytes"] for r in dtorch.comm_report() if r["kind"] == "reduce_scatter")
    assert sent == (n - 1) * sum(volumes(model))


def test_mixed_precision_keeps_master_weights(expected):
    policy = MixedPrecisionPolicy(param_dtype=dtorch.bfloat16, reduce_dtype=dtorch.float32)
    mesh = init_device_mesh("cpu", (2,))
    model = make()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=True, mp_policy=replace(policy, output_dtype=dtorch.float32))
    seen = []
    model.blocks[0].up.register_forward_hook(lambda m, args, out: seen.append((m.weight.dtype, args[0].dtype, out.dtype)))
    dtorch.comm_report(reset=True)
    losses, weights = train(model, batch_on(mesh))
    assert set(seen) == {(dtorch.bfloat16,) * 3}
    assert all(p.dtype == dtorch.float32 for p in model.parameters())
    np.testing.assert_allclose(losses, expected[0], rtol=0.02)
    rows = dtorch.comm_report()
    sent = {kind: sum(r["bytes"] for r in rows if r["kind"] == kind) for kind in ("reduce_scatter", "all_gather")}
    assert sent["reduce_scatter"] == 4 * sum(volumes(model))  # four steps, f32
    assert sent["all_gather"] - sum(volumes(model)) <= 2 * 4 * sum(volumes(model)) / 2  # bf16; the final weights are read in f32


def test_parameters_during_forward_are_whole_and_slices_again_after_an_error():
    mesh = init_device_mesh("cpu", (2,))
    model = shard_all(make(), mesh)
    seen = []
    model.blocks[0].norm.register_forward_hook(lambda m, args, out: seen.append(m.weight.placements))
    before = list(model.parameters())
    model(distribute_tensor(dtorch.zeros(4, 2, dtype=dtorch.int64), mesh, [Shard(0)]))
    assert seen == [(Replicate(),)]
    with pytest.raises(TypeError):
        model(None)
    with pytest.raises(RuntimeError):
        model.blocks[0](dtorch.zeros(3, 5))
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert isinstance(model, FSDPModule) and isinstance(model, Model)
    model.unshard()
    assert model.embed.weight.placements == (Replicate(),)
    model.reshard()
    assert model.embed.weight.placements == (Shard(0),)


def test_copies_and_conversions_are_units_of_their_own():
    mesh = init_device_mesh("cpu", (2,))
    model = shard_all(make(), mesh)
    twin = copy.deepcopy(model)
    ids = distribute_tensor(dtorch.arange(8).reshape(4, 2), mesh, [Shard(0)])
    with dtorch.no_grad():
        twin.blocks[0].up.weight.mul_(0)
    twin(ids).square().mean().backward()
    assert model.blocks[1].up.weight.grad is None and twin.blocks[1].up.weight.grad.placements == (Shard(0),)
    assert not dtorch.equal(model(ids).full_tensor(), twin(ids).full_tensor())
    twin.load_state_dict(model.state_dict())
    assert dtorch.equal(model(ids).full_tensor(), twin(ids).full_tensor())
    assert model.double()(ids).dtype == dtorch.float64
    assert all(isinstance(p.placements[0], Shard if p.ndim else Replicate) for p in model.parameters())


def test_backward_twice_and_gradients_of_gradients():
    mesh = init_device_mesh("cpu", (2,))
    model = shard_all(make(), mesh, reshard_after_forward=True)
    plain = make()
    ids = dtorch.arange(8).reshape(4, 2)
    loss, want = model(distribute_tensor(ids, mesh, [Shard(0)])).square().mean(), plain(ids).square().mean()
    for x in (loss, want):
        x.backward(retain_graph=True)
        x.backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.grad.placements == a.placements
        np.testing.assert_allclose(a.grad.full_tensor().numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-6)

    def penalty(m, x):
        g = dtorch.autograd.grad(m(x).square().mean(), list(m.parameters()), create_graph=True)
        return sum(t.square().sum() for t in g)

    for m, x in ((model, distribute_tensor(ids, mesh, [Shard(0)])), (plain, ids)):
        m.zero_grad()
        penalty(m, x).backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(a.grad.full_tensor().numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_no_more_is_sent_than_two_gathers_and_a_reduction():
    n, mesh = 4, init_device_mesh("cpu", (4,))
    model = shard_all(make(), mesh, reshard_after_forward=True)
    train(model, batch_on(mesh), steps=1, rows=16)
    dtorch.comm_report(reset=True)
    train(model, batch_on(mesh), steps=1, rows=16)
    rows, sent = dtorch.comm_report(), {}
    for r in rows:
        sent[r["kind"]] = sent.get(r["kind"], 0) + r["bytes"]
    own, shared = volumes(model)
    assert sent["reduce_scatter"] == (n - 1) * (own + shared)
    assert (n - 1) * own <= sent["all_gather"] <= 2 * (n - 1) * (own + shared)
    assert "all_to_all" not in sent and sent["all_reduce"] <= 1000  # losses and scalar parameters


def test_what_is_refused():
    mesh = init_device_mesh("cpu", (2, 2, 2))
    with pytest.raises(ValueError, match="one dimension"):
        fully_shard(nn.Linear(2, 2), mesh=mesh)
    mesh = init_device_mesh("cpu", (2,))
    with pytest.raises(TypeError, match="mp_policy"):
        fully_shard(nn.Linear(2, 2), mesh=mesh, mp_policy="bf16")
    with pytest.raises(TypeError, match="reshard_after_forward"):
        fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward="yes")
    model = fully_shard(nn.Linear(2, 2), mesh=mesh)
    with pytest.raises(ValueError, match="already"):
        fully_shard(model, mesh=mesh)


OPTIMIZERS = {
    "adamw": lambda p: dtorch.optim.AdamW(p, lr=3e-3, eps=1e-4),
    "momentum": lambda p: dtorch.optim.SGD(p, lr=3e-2, momentum=0.9),
    "adagrad": lambda p: dtorch.optim.Adagrad(p, lr=3e-3, eps=1e-2),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("n", "kind"), [(2, "adamw"), (3, "momentum"), (4, "adagrad"), (8, "adamw")])
def test_sharded_states_train_as_one_device_does(n, kind, gradients):
    model = make()
    want = train(model, optimizer=OPTIMIZERS[kind](model.parameters()))
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("dp",))
    model = replicated(mesh)
    optimizer = shard_optimizer_state(OPTIMIZERS[kind](model.parameters()), mesh["dp"], gradients=gradients)
    check(train(model, batch_on(mesh), optimizer=optimizer), want)
    for p in model.parameters():
        assert p.placements == (Replicate(),) and optimizer.param_groups[0]["params"]
        for value in optimizer.state[p].values():
            if isinstance(value, dtorch.Tensor) and value.ndim:
                assert value.placements == (Shard(0),)
        assert not gradients or not p.ndim or p.grad.placements == (Shard(0),)


def replicated(mesh):
    model = distribute_module(make(), mesh)
    assert model.head.weight is model.embed.weight and model.blocks[2].up.weight is model.blocks[0].up.weight
    return model


def test_sharded_states_beside_a_replicated_dimension(expected):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = replicated(mesh)
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    shard_optimizer_state(optimizer, mesh["replicate", "shard"], gradients=True)
    check(train(model, batch_on(mesh), optimizer=optimizer), expected)
    assert optimizer.state[model.norm.weight]["exp_avg"].placements == (Replicate(), Shard(0))


def test_a_step_on_sharded_states_sends_what_data_parallelism_does():
    n, mesh = 4, init_device_mesh("cpu", (4,))
    for gradients, micro in ((False, 1), (False, 3), (True, 1)):
        model = replicated(mesh)
        optimizer = shard_optimizer_state(dtorch.optim.AdamW(model.parameters()), mesh, gradients=gradients)
        train(model, batch_on(mesh), steps=1, rows=16, micro=micro, optimizer=optimizer)
        dtorch.comm_report(reset=True)
        train(model, batch_on(mesh), steps=1, rows=16, micro=micro, optimizer=optimizer)
        rows = dtorch.comm_report()
        for kind in ("reduce_scatter", "all_gather"):
            assert sum(r["bytes"] for r in rows if r["kind"] == kind) == (n - 1) * volumes(model)[0]


def test_sharded_states_are_saved_and_loaded():
    mesh = init_device_mesh("cpu", (2,))
    a, b = replicated(mesh), replicated(mesh)
    one = shard_optimizer_state(dtorch.optim.AdamW(a.parameters(), lr=1e-2), mesh)
    train(a, batch_on(mesh), steps=2, optimizer=one)
    two = shard_optimizer_state(dtorch.optim.AdamW(b.parameters(), lr=1e-2), mesh)
    two.load_state_dict(one.state_dict())
    b.load_state_dict(a.state_dict())
    got, want = train(b, batch_on(mesh), steps=2, optimizer=two), train(a, batch_on(mesh), steps=2, optimizer=one)
    assert got[0] == want[0]
    assert type(one).__name__ == "AdamW" and isinstance(one, dtorch.optim.AdamW)


def test_sharded_states_refuse():
    mesh = init_device_mesh("cpu", (2,))
    plain = dtorch.optim.AdamW(make().parameters())
    with pytest.raises(ValueError, match="does not lie on"):
        shard_optimizer_state(plain, mesh)
    with pytest.raises(TypeError, match="must be an Optimizer"):
        shard_optimizer_state(make(), mesh)
    model = replicated(mesh)
    with pytest.raises(NotImplementedError, match="LBFGS"):
        shard_optimizer_state(dtorch.optim.LBFGS(model.parameters()), mesh)
    optimizer = shard_optimizer_state(dtorch.optim.AdamW(model.parameters()), mesh)
    with pytest.raises(ValueError, match="already"):
        shard_optimizer_state(optimizer, mesh)


MEMORY = """
import dtorch
from dtorch import nn
from dtorch.distributed.fsdp import fully_shard

N, LAYERS, D = 8, 10, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return x + self.down(dtorch.relu(self.up(x)))


mesh = dtorch.init_device_mesh("cpu", (N,))
model = nn.Sequential(*(Block() for _ in range(LAYERS)))
for block in model:
    fully_shard(block, mesh=mesh, reshard_after_forward=True)
fully_shard(model, mesh=mesh)
optimizer = dtorch.optim.AdamW(model.parameters())
x = dtorch.distribute_tensor(dtorch.randn(2 * N, D), mesh, [dtorch.Shard(0)])
for _ in range(3):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
dtorch.synchronize()
whole = sum(p.numel() for p in model.parameters()) * 4
for i in range(1, N):  # the model was made on the first device, as a whole
    stats = dtorch.memory_stats(f"cpu:{i}")
    print(whole, whole // LAYERS, stats["allocated"], stats["allocated_peak"])
"""


@pytest.mark.every_pass("measures the peak")
def test_memory_is_an_eighth_and_a_layer():
    """In a process of its own: peaks are the process's."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        whole, layer, held, peak = map(int, line.split())
        slack = 0.02 * whole  # sizes of the allocator, activations
        assert held <= 4 * whole / 8 + slack  # parameters, gradients, two moments
        # and layers as a whole: one is gathered while another's gradients are reduced, and a plan's inputs stay until it is done
        assert peak <= 4 * whole / 8 + 4 * layer + slack


BITS = """
import hashlib
import dtorch
from dtorch import nn
from dtorch.distributed.fsdp import fully_shard
from dtorch.distributed.tensor import distribute_module

for mode in ("dp", "zero"):
    for n in (2, 5):
        dtorch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(40, 70), nn.GELU(), nn.Linear(70, 40), nn.LayerNorm(40)) for _ in range(4)))
        mesh = dtorch.init_device_mesh("cpu", (n,))
        if mode == "zero":
            for block in model:
                fully_shard(block, mesh=mesh, reshard_after_forward=True)
        distribute_module(model, mesh)
        optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-2)
        x = dtorch.distribute_tensor(dtorch.randn(17, 40), mesh, [dtorch.Shard(0)])
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        print(hashlib.sha256(b"".join(p.detach().full_tensor().numpy().tobytes() for p in model.parameters())).hexdigest())
        dtorch.comm_report(reset=True)
"""


def test_where_collectives_stand_changes_no_bit():
    """Alone or in buckets, ahead of their use or where they were called, beside compute or in line: the same values."""
    outputs = set()
    for off in ("", "bucket", "overlap", "bucket,overlap"):
        run = subprocess.run(
            [sys.executable, "-c", BITS], capture_output=True, text=True, timeout=120, env={**os.environ, "DTORCH_OFF": off}
        )
        assert run.returncode == 0, run.stderr
        outputs.add(run.stdout)
    assert len(outputs) == 1 and len(outputs.pop().split()) == 4


class Clamped(nn.Module):
    """Writes into its own parameters while it runs."""

    def __init__(self):
        super().__init__()
        self.embed, self.w = nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0), nn.Parameter(dtorch.randn(5, WIDTH))

    def forward(self, ids):
        with dtorch.no_grad():
            self.w.clamp_(-0.3, 0.3)
            self.w[2, 1:] = 0.1
        return self.embed(ids) @ self.w.t()


@pytest.mark.parametrize("reshard", [True, False])
def test_writes_into_gathered_parameters_reach_the_slices(reshard):
    mesh = init_device_mesh("cpu", (3,))
    after = []
    for cut in (False, True):
        dtorch.manual_seed(0)
        model = Clamped()
        if cut:
            fully_shard(model.embed, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        optimizer = dtorch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            ids = dtorch.tensor(np.random.default_rng(step).integers(0, VOCABULARY, 7))
            optimizer.zero_grad()
            model(distribute_tensor(ids, mesh, [Shard(0)]) if cut else ids).square().sum().backward()
            optimizer.step()
        assert not cut or model.w.placements == (Shard(0),)
        after.append([(p.full_tensor() if cut else p).detach().numpy() for p in model.parameters()])
    for want, got in zip(*after, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_parameters_that_somebody_else_puts_there_are_used_as_they_lie():
    mesh = init_device_mesh("cpu", (4,))
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    plain = {k: v.detach() * 2 for k, v in model.state_dict().items()}
    x = dtorch.randn(4, 5)
    want = nn.utils.stateless.functional_call(model, plain, (x,)).detach().numpy()
    mine = model(x).detach().numpy()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    y = distribute_tensor(x, mesh, [Shard(0)])
    np.testing.assert_allclose(
        nn.utils.stateless.functional_call(model, plain, (y,)).full_tensor().detach().numpy(), want, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(model(y).full_tensor().detach().numpy(), mine, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("placement", [Shard(9), Replicate(), 1])
def test_placements_for_slices_that_are_none_are_refused(placement):
    with pytest.raises((TypeError, ValueError), match="shard_placement_fn.*'weight' of shape"):
        fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (2,)), shard_placement_fn=lambda p: placement)


@pytest.mark.parametrize("by", ["model", "optimizer"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_drops_what_was_collected_and_not_reduced(by, set_to_none):
    mesh = init_device_mesh("cpu", (3,))
    model = fully_shard(nn.Linear(5, 3), mesh=mesh)
    x = distribute_tensor(dtorch.randn(7, 5), mesh, [Shard(0)])
    model(x).sum().backward()
    want = model.weight.grad.full_tensor().numpy()
    with model.no_sync():  # a step that is given up in the middle
        model(x * 5).sum().backward()
        model(x * 7).sum().backward()
    (model if by == "model" else dtorch.optim.SGD(model.parameters())).zero_grad(set_to_none=set_to_none)
    model(x).sum().backward()
    np.testing.assert_allclose(model.weight.grad.full_tensor().numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reads", range(1, 40, 3))
def test_an_interrupt_anywhere_in_forward_leaves_slices(reads):
    """Ctrl-C may come between any two lines; here it comes after so many of this package's."""
    mesh = init_device_mesh("cpu", (3,))
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    x = distribute_tensor(dtorch.randn(7, 5), mesh, [Shard(0)])
    want = model(dtorch.tensor(x.full_tensor().numpy())).detach().numpy()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    left = 5 * reads

    def trace(frame, event, arg):
        nonlocal left
        if "fsdp.py" not in frame.f_code.co_filename and "_hooks.py" not in frame.f_code.co_filename:
            return trace
        left -= event == "line"
        if left == 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        model(x)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert left > 0 or all(p.placements == (Shard(0),) for p in model.parameters())
    np.testing.assert_allclose(model(x).full_tensor().detach().numpy(), want, rtol=1e-5, atol=1e-6)
