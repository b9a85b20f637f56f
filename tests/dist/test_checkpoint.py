"""Checkpoints: every placement onto every other, asynchronous saves, resuming bit for bit, damage, and death in the middle of a save."""

import importlib.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import dtorch
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, Tensor, checkpoint, distribute_tensor, init_device_mesh, nn

MESHES = [((4,), None), ((3,), None), ((2, 2), ("dp", "tp")), ((2, 3), None), ((2, 2, 2), ("a", "b", "c"))]
SHAPES = [(6,), (5, 10), (1, 4), (3, 5, 2), (7,), (0, 3), ()]


def layouts(shape):
    """None (plain) and meshes with placements, even, uneven and empty shards among them."""
    out = [None]
    rng = random.Random(len(shape) + sum(shape))
    for dims, names in MESHES:
        mesh = init_device_mesh("cpu", dims, mesh_dim_names=names)
        options = [Replicate()] + [Shard(d) for d in range(len(shape))]
        out += [(mesh, [rng.choice(options) for _ in dims]) for _ in range(2)]
        out.append((mesh, [options[-1]] * len(dims)))
    return out


def place(x, layout):
    return x.clone() if layout is None else distribute_tensor(x, *layout)


def bits(x):
    x = x.detach().full_tensor() if x.device_mesh.ndim else x.detach()
    return (x.float() if x.dtype == dtorch.bfloat16 else x).numpy()


def same(a, b):
    assert a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape)
    np.testing.assert_array_equal(bits(a), bits(b))


def test_any_layout_onto_any_other(tmp_path):
    values, state = {}, {}
    for shape in SHAPES:
        x = dtorch.randn(shape) * 10
        for dtype in ("float32", "bfloat16", "int64"):
            for i, layout in enumerate(layouts(shape)):
                key = f"{shape} {dtype} {i}"
                values[key] = x.to(getattr(dtorch, dtype))
                state[key] = place(values[key], layout)
    checkpoint.save(tmp_path / "c", state)
    assert sorted(checkpoint.load(tmp_path / "c")) == sorted(state)
    for turn in (0, 5, 9):
        onto = {}
        for shape in SHAPES:
            all_ = layouts(shape)
            for dtype in ("float32", "bfloat16", "int64"):
                for i in range(len(all_)):
                    key = f"{shape} {dtype} {i}"
                    onto[key] = place(dtorch.zeros_like(values[key]), all_[(i + turn) % len(all_)])
        before = {k: (t, t.placements) for k, t in onto.items()}
        assert checkpoint.load(tmp_path / "c", onto) is onto
        for key, t in onto.items():
            assert t is before[key][0] and t.placements == before[key][1]
            same(t, values[key])


def test_strided_shards_and_partial(tmp_path):
    mesh, flat = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    x = dtorch.arange(24.0).view(4, 6)
    strided = distribute_tensor(x, mesh, [Shard(1), Shard(1)]).reshape(24)
    assert any(getattr(p, "split_factor", 1) > 1 for p in strided.placements)
    partial = Tensor.from_local([dtorch.full((3,), float(i)) for i in range(4)], flat, [Partial("sum")])
    uneven = distribute_tensor(dtorch.arange(6), flat, [Shard(0)])
    assert [t.numel() for t in uneven.to_local()] == [2, 2, 2, 0]
    checkpoint.save(tmp_path / "c", {"s": strided, "p": partial, "u": uneven})
    onto = {
        "s": distribute_tensor(dtorch.zeros(4, 6), mesh, [Shard(1), Shard(0)]).reshape(24),
        "p": distribute_tensor(dtorch.zeros(3), flat, [Shard(0)]),
        "u": distribute_tensor(dtorch.zeros(6, dtype=dtorch.int64), mesh, [Shard(0), Shard(0)]),
    }
    checkpoint.load(tmp_path / "c", onto)
    np.testing.assert_array_equal(bits(onto["s"]), np.arange(24.0))
    np.testing.assert_array_equal(bits(onto["p"]), [6.0, 6.0, 6.0])
    np.testing.assert_array_equal(bits(onto["u"]), np.arange(6))
    again = distribute_tensor(dtorch.zeros(4, 6), mesh, [Shard(1), Shard(1)]).reshape(24)
    checkpoint.load(tmp_path / "c", {"s": again})
    same(again, strided)


def test_replicas_are_written_once_and_shared_out(tmp_path):
    mesh = init_device_mesh("cpu", (4,))
    state = {str(i): distribute_tensor(dtorch.ones(1000), mesh, [Replicate()]) for i in range(8)}
    path = checkpoint.save(tmp_path / "c", state)
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "c").glob("part-*")}
    assert len(sizes) == 4 and all(8000 <= n < 8600 for n in sizes.values()), sizes
    assert checkpoint.describe(path)["3"] == ((1000,), "float32", 1)


def test_any_reader_reads_the_parts(tmp_path):
    mesh = init_device_mesh("cpu", (2,))
    x = dtorch.arange(10.0)
    checkpoint.save(tmp_path / "c", {"w": distribute_tensor(x, mesh, [Shard(0)]), "b": dtorch.ones(2)})
    got = {}
    for part in sorted((tmp_path / "c").glob("part-*.safetensors")):
        got.update(dtorch.safetensors.load_file(part))
    np.testing.assert_array_equal(got["w[0:5]"].numpy(), np.arange(5.0))
    np.testing.assert_array_equal(got["w[5:10]"].numpy(), np.arange(5.0, 10.0))
    assert got["b"].tolist() == [1, 1]
    index = json.loads((tmp_path / "c" / "index.json").read_text())["index"]
    assert [s["at"] for s in index["tensors"]["w"]["slices"]] == [[0], [5]]


def test_plain_values_and_parts_of_a_state(tmp_path):
    state = {
        "step": 3,
        "lr": 0.1,
        "name": "ü",
        "list": [1, (2, None)],
        "big": 2**70,
        "inf": float("inf"),
        "d": {1: dtorch.ones(2), "x": b"\0"},
    }
    checkpoint.save(tmp_path / "c", state)
    whole = checkpoint.load(tmp_path / "c")
    assert {k: v for k, v in whole.items() if k != "d"} == {k: v for k, v in state.items() if k != "d"}
    assert whole["d"]["x"] == b"\0" and whole["d"][1].tolist() == [1, 1]
    part = {"step": 0, "list": [], "d": {1: dtorch.zeros(2)}}
    inner = part["list"]
    checkpoint.load(tmp_path / "c", part)
    assert part["step"] == 3 and part["list"] is inner == [1, (2, None)] and part["d"][1].tolist() == [1, 1]
    with pytest.raises(checkpoint.CheckpointError, match="not in the checkpoint: 'other'"):
        checkpoint.load(tmp_path / "c", {"other": 1})
    with pytest.raises(checkpoint.CheckpointError, match=r"\['d'\]\[1\].*shape \(2,\).*\(3,\)"):
        checkpoint.load(tmp_path / "c", {"d": {1: dtorch.zeros(3)}})
    with pytest.raises(TypeError, match=r"obj\['f'\]"):
        checkpoint.save(tmp_path / "c", {"f": print})
    assert checkpoint.latest(tmp_path) == str(tmp_path / "c") and os.listdir(tmp_path) == ["c"]


def test_tied_weights_are_written_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

    model = Tied()
    path = checkpoint.save(tmp_path / "c", {"model": model})
    assert len(checkpoint.describe(path)) == 1
    other = Tied()
    checkpoint.load(path, {"model": other})
    same(other.a.weight, model.a.weight)
    assert other.a.weight is other.b.weight


def test_asynchronous_saves_what_was_there_at_the_call(tmp_path):
    mesh = init_device_mesh("cpu", (2, 2))
    w = distribute_tensor(dtorch.zeros(64, 64), mesh, [Shard(0), Replicate()])
    told, futures = [], []
    for step in range(4):
        w.add_(1)
        futures.append(
            checkpoint.save(tmp_path / f"s{step}", {"w": w, "step": step}, asynchronous=True, progress=lambda *a: told.append(a))
        )
        w.mul_(1)
        w.add_(100)
        w.sub_(100)
    for step, f in enumerate(futures):
        assert f.get() == f.result() == str(tmp_path / f"s{step}") and f.wait() and f.done() and f.bytes_done == f.bytes_total
        got = checkpoint.load(f.get())
        assert got["step"] == step and (got["w"] == step + 1).all().item()
    assert told[-1][0] == told[-1][1] > 0

    async def awaited():
        return await checkpoint.save(tmp_path / "s9", {"w": w}, asynchronous=True)

    import asyncio

    assert asyncio.run(awaited()) == str(tmp_path / "s9") == checkpoint.latest(tmp_path)
    checkpoint.wait()


def test_keep_and_latest(tmp_path):
    assert checkpoint.latest(tmp_path) is None and checkpoint.latest(tmp_path / "none") is None
    other = checkpoint.save(tmp_path / "best", {"x": 0})
    for step in (5, 100, 20, 30):
        checkpoint.save(tmp_path / f"step-{step}", {"x": step}, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["best", "step-20", "step-30"] and os.path.isdir(other)
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-30")
    (tmp_path / "step-40").mkdir()  # not a checkpoint
    (tmp_path / "step-50").mkdir()
    (tmp_path / "step-50" / "index.json").write_text("{")
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-30")
    with pytest.raises(ValueError, match="keep"):
        checkpoint.save(tmp_path / "s", {}, keep=0)


def test_replacing_and_refusing(tmp_path):
    path = checkpoint.save(tmp_path / "c", {"x": dtorch.zeros(3), "y": 1})
    checkpoint.save(path, {"x": dtorch.ones(2)})
    assert checkpoint.load(path)["x"].tolist() == [1, 1] and os.listdir(tmp_path) == ["c"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no checkpoint"):
        checkpoint.save(tmp_path / "mine", {"x": 1})
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        checkpoint.load(tmp_path / "mine")
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "nowhere")


def test_a_failed_save_leaves_the_old_one(tmp_path, monkeypatch):
    from dtorch.checkpoint import _write

    path = checkpoint.save(tmp_path / "c", {"x": dtorch.zeros(3)})

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_write, "_write_all", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, {"x": dtorch.ones(3)})
    with pytest.warns(RuntimeWarning, match="asynchronous"):
        future = checkpoint.save(path, {"x": dtorch.ones(3)}, asynchronous=True)
        with pytest.raises(OSError, match="No space"):
            future.get()
        for _ in range(100):
            if not any(t.name == "dtorch-checkpoint" for t in threading.enumerate()):
                break
            time.sleep(0.01)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["c"] and checkpoint.load(path)["x"].tolist() == [0, 0, 0]


def test_a_late_error_of_a_value_is_the_saves(tmp_path):
    bad = dtorch.arange(3)[dtorch.tensor([7])]
    with pytest.raises(IndexError):
        checkpoint.save(tmp_path / "c", {"ok": dtorch.ones(3), "bad": bad})
    assert os.listdir(tmp_path) == []


def test_interrupted_replacement_is_brought_back(tmp_path):
    """Where two names cannot be exchanged, dying between the two renames leaves the old one hidden."""
    path = checkpoint.save(tmp_path / "c", {"x": 1})
    os.rename(path, tmp_path / ".c.old-1-0")
    (tmp_path / ".c.tmp-999999-0").mkdir()
    (tmp_path / ".c.tmp-999999-0" / "lock").write_text("")  # nobody holds it
    assert checkpoint.latest(tmp_path) == str(path) and checkpoint.load(path)["x"] == 1
    os.rename(path, tmp_path / ".c.old-1-0")
    assert checkpoint.load(path)["x"] == 1
    checkpoint.save(tmp_path / "d", {"x": 2})
    assert sorted(os.listdir(tmp_path)) == ["c", "d"]


# ---- damage


def saved(tmp_path):
    mesh = init_device_mesh("cpu", (2,))
    state = {"w": distribute_tensor(dtorch.arange(64.0), mesh, [Shard(0)]), "b": dtorch.ones(4), "n": 7}
    return checkpoint.save(tmp_path / "c", state)


def test_every_truncation_and_flipped_byte_is_noticed(tmp_path):
    path = saved(tmp_path)
    rng = random.Random(0)
    for name in sorted(os.listdir(path)):
        file = os.path.join(path, name)
        data = open(file, "rb").read()
        cuts = [data[:n] for n in (0, 1, 7, 8, 20, len(data) - 1)] + [data + b"x"]
        flips = []
        for at in [*range(12), *(rng.randrange(len(data)) for _ in range(40))]:
            b = bytearray(data)
            b[at] ^= 1 << rng.randrange(8)
            flips.append(bytes(b))
        for damaged in cuts + flips:
            with open(file, "wb") as f:
                f.write(damaged)
            try:
                got = checkpoint.load(path)
            except checkpoint.CheckpointError as e:
                assert name in str(e), (name, str(e))
            else:  # what JSON does not see, as a space for a tab
                assert name == "index.json" and got["n"] == 7 and got["w"].tolist() == list(range(64)), name
        with open(file, "wb") as f:
            f.write(data)
    assert checkpoint.load(path)["n"] == 7


def test_the_message_names_file_and_tensor(tmp_path):
    path = saved(tmp_path)
    part = os.path.join(path, "part-00001.safetensors")
    data = bytearray(open(part, "rb").read())
    data[-3] ^= 4
    with open(part, "wb") as f:
        f.write(data)
    with pytest.raises(checkpoint.CheckpointError, match=r"tensor 'w': .*part-00001.safetensors: the checksum of bytes 120 to 248"):
        checkpoint.load(path)
    assert checkpoint.load(path, {"b": dtorch.zeros(4)})["b"].tolist() == [1] * 4  # which lies elsewhere
    checkpoint.load(path, verify=False)
    os.unlink(part)
    with pytest.raises(checkpoint.CheckpointError, match=r"part-00001.safetensors: the file is missing"):
        checkpoint.load(path)


def rewritten(path, change):
    """The index after `change`, with a right checksum."""
    from dtorch.checkpoint import _files

    file = os.path.join(path, "index.json")
    index = json.loads(open(file).read())["index"]
    change(index)
    with open(file, "wb") as f:
        f.write(_files.index_bytes(index))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda i: i["tensors"]["b"].update(shape=[1] * 40, slices=[]), "40 dimensions"),
        (lambda i: i["tensors"]["b"].update(shape=[5]), "slices hold 4 of the 5"),
        (lambda i: i["tensors"]["b"].update(shape="no"), "'b'"),
        (lambda i: i["tensors"]["b"].update(dtype="F99"), "'b'"),
        (lambda i: i["tensors"]["b"]["slices"][0].update(at=[3]), "outside"),
        (lambda i: i["tensors"]["b"]["slices"][0].update(file="../x"), "'b'"),
        (lambda i: i["tensors"]["b"]["slices"][0].update(key="w[0:32]"), "index says"),
        (lambda i: i["tensors"]["b"]["slices"][0].update(key="zz"), "does not contain"),
        (lambda i: i["files"].update({"../../etc/passwd": {}}), "bad name"),
        (lambda i: i.pop("tensors"), "not as the format says"),
        (lambda i: i.update(format="other"), "format"),
        (lambda i: i.update(version=99), "version 99"),
        (lambda i: i.update(state={"b": {"$": "tensor", "v": "gone"}}), "gone"),
        (lambda i: i.update(state={"b": {"$": "bomb", "v": 1}}), "unknown entry"),
    ],
)
def test_an_index_that_lies(tmp_path, change, text):
    path = saved(tmp_path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=text) as e:
        checkpoint.load(path)
    assert "index.json" in str(e.value) or "part-" in str(e.value)


# ---- dying in the middle

WRITER = """
import sys, os, dtorch
from dtorch import Shard, Replicate, checkpoint, distribute_tensor, init_device_mesh
mesh = init_device_mesh("cpu", (4,))
where, asynchronous, same = sys.argv[1], sys.argv[2] == "1", sys.argv[3] == "1"
start = checkpoint.latest(where)
step = checkpoint.load(start)["step"] if start else 0
while True:
    step += 1
    state = {f"w{i}": distribute_tensor(dtorch.full((n,), float(step)), mesh, [p]) for i, (n, p) in enumerate([(100000, Shard(0)), (7, Shard(0)),
             (50000, Replicate()), (3001, Shard(0))])}
    state["step"] = step
    r = checkpoint.save(os.path.join(where, "c" if same else f"step-{step}"), state, asynchronous=asynchronous, keep=3)
    print(step, flush=True)
"""


def killed_saves(where, times, seed, monkeypatch):
    """Start, kill at a random moment, look; `times` times. Returns how often a save was under way."""
    from dtorch.checkpoint import _files

    rng, last, interrupted = random.Random(seed), 0, 0
    for k in range(times):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(where), str(k % 2), str(k // 2 % 2)], stdout=subprocess.PIPE)
        child.stdout.readline()  # it runs
        time.sleep(rng.random() * 0.12)
        child.send_signal(signal.SIGKILL)
        told = [int(line) for line in child.stdout.read().split()]
        child.wait()
        interrupted += any(name.startswith(".") for name in os.listdir(where))
        path = checkpoint.latest(where)
        got = checkpoint.load(path)
        step = got["step"]
        assert step >= last and step >= (max(told, default=last) - 1 if k % 2 else max(told, default=last)), (k, step, last, told)
        for i, n in enumerate((100000, 7, 50000, 3001)):
            assert tuple(got[f"w{i}"].shape) == (n,) and (got[f"w{i}"] == step).all().item(), (k, i)
        last = step
    monkeypatch.setattr(_files, "_GRACE", 0.0)  # killed before it had a lock
    checkpoint.save(os.path.join(where, "end"), {"step": 0})
    assert not [name for name in os.listdir(where) if name.startswith(".")]
    return interrupted


def test_kill_in_the_middle_of_a_save(tmp_path, monkeypatch):
    killed_saves(tmp_path, 6, 0, monkeypatch)


@pytest.mark.slow
def test_kill_in_the_middle_of_a_save_many_times(tmp_path, monkeypatch):
    times = int(os.environ.get("DTORCH_TEST_KILLS", "20"))
    assert killed_saves(tmp_path, times, 1, monkeypatch) > times // 5


# ---- resuming

OPTIMIZERS = [
    ("SGD", dict(lr=0.1, momentum=0.9)), ("Adam", dict(lr=0.1, amsgrad=True)), ("AdamW", dict(lr=0.1)), ("Adagrad", dict(lr=0.1)),
    ("Adadelta", dict(lr=1.0)), ("Adamax", dict(lr=0.1)), ("NAdam", dict(lr=0.1)), ("RAdam", dict(lr=0.1)),
    ("RMSprop", dict(lr=0.01, momentum=0.9, centered=True)), ("Rprop", dict(lr=0.01)), ("ASGD", dict(lr=0.1)), ("Adafactor", dict(lr=0.1)),
    ("Muon", dict(lr=0.1)), ("LBFGS", dict(lr=0.3, max_iter=4)),
]  # fmt: skip


def started(name, options, layout, seed):
    dtorch.manual_seed(seed)
    params = [nn.Parameter(place(dtorch.randn(shape), layout)) for shape in ((8, 4), (5, 3))]
    return params, getattr(dtorch.optim, name)(
        [{"params": params[:1]}, {"params": params[1:], "lr": options["lr"] / 2}] if name != "LBFGS" else params, **options
    )


def stepped(params, opt, steps):
    def closure():
        opt.zero_grad()
        loss = sum(((p - 0.3) ** 2).sum() + p.sin().sum() for p in params)
        loss.backward()
        return loss

    for _ in range(steps):
        if isinstance(opt, dtorch.optim.LBFGS):
            opt.step(closure)
        else:
            closure()
            opt.step()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=[n for n, _ in OPTIMIZERS])
def test_every_optimizer_goes_on(tmp_path, name, options):
    square, flat = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (3,))
    here, there = (square, [Shard(0), Shard(1)]), (flat, [Shard(1)])
    params, opt = started(name, options, here, 0)
    stepped(params, opt, 3)
    path = checkpoint.save(tmp_path / "c", {"params": params, "opt": opt}, asynchronous=True).get()
    stepped(params, opt, 3)
    for layout in (here, there, None):
        params2, opt2 = started(name, options, layout, 1)
        if layout is there:
            stepped(params2, opt2, 1)  # state that is replaced
        checkpoint.load(path, {"params": params2, "opt": opt2})
        assert opt2.param_groups[-1]["lr"] == opt.param_groups[-1]["lr"]
        for p, state in opt2.state.items():
            for v in state.values():
                assert not (isinstance(v, Tensor) and v.shape == p.shape) or v.placements == p.placements
        stepped(params2, opt2, 3)
        for a, b in zip(params, params2, strict=True):
            if layout is here:
                same(a, b)
            else:
                np.testing.assert_allclose(bits(b), bits(a), rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.drop, self.b = nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.Dropout(0.3), nn.Linear(10, 3)

    def forward(self, x):
        return self.b(self.drop(self.bn(self.a(x)).relu()))


class Run:
    """A small training run: shuffled data, dropout, running statistics, AdamW, a schedule, an average of the weights."""

    def __init__(self, kind, seed):
        from dtorch.distributed.fsdp import fully_shard, shard_optimizer_state
        from dtorch.distributed.tensor import distribute_module
        from dtorch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        from dtorch.utils.data import DataLoader, TensorDataset

        self.mesh = None if kind == "one" else init_device_mesh("cpu", (4,)) if kind == "fsdp4" else init_device_mesh("cpu", (2,))
        dtorch.manual_seed(11)
        x = dtorch.randn(42, 6)
        data = TensorDataset(x, (x.sum(1) > 0).long())
        dtorch.manual_seed(seed)
        self.model = Net()
        if kind.startswith("fsdp"):
            fully_shard(self.model, mesh=self.mesh)
        elif kind in ("ddp", "zero1", "zero2"):
            distribute_module(self.model, self.mesh)
        self.opt = dtorch.optim.AdamW(self.model.parameters(), lr=0.02)
        if kind.startswith("zero"):
            shard_optimizer_state(self.opt, self.mesh, gradients=kind == "zero2")
        self.schedule = dtorch.optim.lr_scheduler.CosineAnnealingLR(self.opt, 20)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.step, self.epoch, self.losses = 0, 0, []

    def state(self):
        return {
            "model": self.model,
            "opt": self.opt,
            "schedule": self.schedule,
            "ema": self.ema,
            "loader": self.loader,
            "rng": dtorch.default_generator,
            "run": self,
        }

    def state_dict(self):
        return {"step": self.step, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.step, self.epoch = state["step"], state["epoch"]

    def train(self, until, save_at=None, where=None):
        while self.step < until:
            for x, y in self.loader:
                if self.mesh is not None:
                    x, y = (distribute_tensor(t, self.mesh, [Shard(0)]) for t in (x, y))
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.schedule.step()
                self.ema.update_parameters(self.model)
                self.losses.append(loss.detach())
                self.step += 1
                if self.step == save_at:
                    checkpoint.save(where, self.state(), asynchronous=True)
                if self.step >= until:
                    break
        return self


@pytest.mark.parametrize("at", [4, 6, 9])
@pytest.mark.parametrize("kind", ["one", "ddp", "zero1", "zero2", "fsdp", "fsdp4"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, kind, at):
    whole = Run(kind, 0).train(14, at, tmp_path / "c")
    checkpoint.wait()
    for other in (kind, "one", "zero1", "fsdp4"):
        resumed = Run(other, 5)
        checkpoint.load(checkpoint.latest(tmp_path), resumed.state())
        assert resumed.step == at
        resumed.train(14)
        check = np.testing.assert_array_equal if other == kind else lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3)
        check(np.array([bits(x) for x in resumed.losses]), np.array([bits(x) for x in whole.losses[at:]]))
        for a, b in ((resumed.model, whole.model), (resumed.ema, whole.ema)):
            for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
                check(bits(p), bits(q)), name
        assert resumed.schedule.get_last_lr() == whole.schedule.get_last_lr()


def test_rng_of_the_whole_program(tmp_path):
    rng = checkpoint.RNG()
    checkpoint.save(tmp_path / "c", {"rng": rng, "own": dtorch.Generator().manual_seed(5)})
    draw = lambda: (dtorch.rand(3).tolist(), random.random(), np.random.rand(3).tolist())  # noqa: E731
    want = draw()
    generator = dtorch.Generator()
    checkpoint.load(tmp_path / "c", {"rng": rng, "own": generator})
    assert draw() == want
    assert dtorch.rand(2, generator=generator).tolist() == dtorch.rand(2, generator=dtorch.Generator().manual_seed(5)).tolist()


def test_modules_that_do_not_fit(tmp_path):
    path = checkpoint.save(tmp_path / "c", {"m": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))})
    with pytest.raises(checkpoint.CheckpointError, match=r"\['m'\].*missing in the checkpoint: 1.bias"):
        checkpoint.load(path, {"m": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))})
    with pytest.raises(checkpoint.CheckpointError, match="unexpected in the checkpoint: 1.weight"):
        checkpoint.load(path, {"m": nn.Sequential(nn.Linear(3, 4))})
    with pytest.raises(checkpoint.CheckpointError, match=r"\['m'\]\['0.weight'\].*\(4, 3\).*\(5, 3\)"):
        checkpoint.load(path, {"m": nn.Sequential(nn.Linear(3, 5), nn.Linear(4, 2, bias=False))})
    some = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    checkpoint.load(path, {"m": some}, strict=False)
    same(some[0].weight, checkpoint.load(path)["m"]["0.weight"])


def test_names_of_pytorch(tmp_path):
    from dtorch.distributed import checkpoint as dcp

    mesh = init_device_mesh("cpu", (2,))
    w = distribute_tensor(dtorch.arange(6.0), mesh, [Shard(0)])
    dcp.save({"w": w, "step": 4}, checkpoint_id=tmp_path / "c")
    state = {"w": dtorch.zeros(6), "step": 0}
    dcp.load(state, checkpoint_id=tmp_path / "c")
    assert state["w"].tolist() == list(range(6)) and state["step"] == 4
    dcp.async_save({"w": w * 2}, storage_writer=dcp.FileSystemWriter(tmp_path / "d")).result()
    dcp.load(state := {"w": dtorch.zeros(6)}, storage_reader=dcp.FileSystemReader(tmp_path / "d"))
    assert state["w"].tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ValueError, match="checkpoint_id"):
        dcp.save({})
    with pytest.raises(NotImplementedError, match="planner"):
        dcp.save({}, checkpoint_id=tmp_path / "e", planner=object())


def test_stages_of_a_pipeline(tmp_path):
    """Parameters on slices of a mesh, onto a plain model and back."""
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    plain = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    staged = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    for i, layer in enumerate(staged):
        for name, p in list(layer._parameters.items()):
            layer.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), root["pp"][i], [Shard(0)])))
    path = checkpoint.save(tmp_path / "c", {"m": staged})
    assert len([n for n in os.listdir(path) if n.startswith("part-")]) == 4
    checkpoint.load(path, {"m": plain})
    for p, q in zip(plain.parameters(), staged.parameters(), strict=True):
        same(p, q)
    path = checkpoint.save(tmp_path / "d", {"m": nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))})
    checkpoint.load(path, {"m": staged})
    checkpoint.load(path, {"m": plain})
    for p, q in zip(plain.parameters(), staged.parameters(), strict=True):
        same(p, q)


def test_a_bar_shows_how_far_it_is(tmp_path, capsys, monkeypatch):
    checkpoint.save(tmp_path / "a", {"w": dtorch.zeros(1000)}, progress=True)  # rich's, where it is installed
    for name in ("rich", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    checkpoint.save(tmp_path / "b", {"w": dtorch.zeros(1000), "v": dtorch.zeros(9)}, progress=True)
    assert "saving b: 100 %" in capsys.readouterr().err


# ---- any mix


class MixedRun:
    """A tiny model of dtorch.models over a mix of parallelism."""

    def __init__(self, kind, mix, zero, seed):
        spec = importlib.util.spec_from_file_location("any_mix", pathlib.Path(__file__).with_name("any_mix.py"))
        any_mix = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(any_mix)
        self.parts, self.model = any_mix, any_mix.make(kind, "uneven")
        with dtorch.no_grad():
            for i, p in enumerate(self.model.parameters()):
                p.add_(0.01 * seed * (i % 3))
        self.kind, self.mesh = kind, None
        if mix is not None:
            self.mesh = init_device_mesh("cpu", mix, mesh_dim_names=any_mix.NAMES)
            dtorch.models.parallelize(self.model, self.mesh, zero=zero)
        self.opt = dtorch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if mix is not None:
            dtorch.models.shard_optimizer(self.opt, self.mesh, zero)

    def state(self):
        return {"model": self.model, "opt": self.opt, "rng": dtorch.default_generator}

    def train(self, start, stop):
        for step in list(self.parts.data(self.kind, "uneven", 2))[start:stop]:
            self.opt.zero_grad()
            for x, y in step:
                if self.mesh is not None:
                    x, y = dtorch.models.distribute_batch(self.mesh, x, y)
                loss = dtorch.models.next_token_loss(self.model(x), y)
                loss = loss + self.model.aux_loss() if self.kind == "moe" else loss
                (loss / 2).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
        return {name: bits(p) for name, p in self.model.state_dict().items()}


@pytest.mark.parametrize(
    ("kind", "mix", "zero"),
    [("gpt2", (2, 2, 2, 1, 1), 1), ("gpt2", (1, 2, 2, 2, 1), 0), ("moe", (2, 1, 2, 1, 2), 3), ("moe", (2, 2, 1, 1, 2), 2)],
)
def test_any_mix_goes_on(tmp_path, kind, mix, zero):
    """Stages, tensor-parallel and expert-parallel cuts, ZeRO: bit for bit on the same mix, to rounding on one device."""
    run = MixedRun(kind, mix, zero, 0)
    dtorch.manual_seed(5)
    run.train(0, 2)
    path = checkpoint.save(tmp_path / "c", run.state(), asynchronous=True).get()
    want = run.train(2, 4)
    for other, z in ((mix, zero), (None, 0)):
        resumed = MixedRun(kind, other, z, 1)
        dtorch.manual_seed(77)
        checkpoint.load(path, resumed.state())
        got = resumed.train(2, 4)
        assert got.keys() == want.keys()
        for name in want:
            if other == mix:
                np.testing.assert_array_equal(got[name], want[name], err_msg=name)
            else:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-3, atol=1e-3, err_msg=name)
