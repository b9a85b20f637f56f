"""Weights and checkpoints are read by the nodes that hold them; large values come back in pieces; what lies on other nodes is reached as what lies here."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch import LAUNCHERS, MPIEXEC, program  # noqa: E402

pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")

both = pytest.mark.parametrize("mpiexec", LAUNCHERS, ids=["default", "openmpi"])


@both
@pytest.mark.parametrize("n", [2, 4])
def test_weights_are_read_by_those_who_hold_them(tmp_path, n, mpiexec):
    """What node 0 sends does not depend on how large the weights are, and nobody but it would have them otherwise."""
    out = program(
        """
        import os, sys
        import dtorch
        os.chdir(os.path.dirname(__file__))
        from dtorch import Shard, Replicate, init_device_mesh, nn
        from dtorch.io import load_file, save_file
        nodes = dtorch._C._net_stats
        flat = init_device_mesh("cpu", (4,))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        for rows in (67, 1667):
            whole = dtorch.arange(rows * 384.).view(rows, 384)
            save_file({"weight": whole, "low": whole.to(dtorch.bfloat16), "bias": dtorch.arange(384.)}, f"w{rows}.safetensors")
            dtorch.synchronize()
            before = nodes()
            state = load_file(f"w{rows}.safetensors")
            layer = nn.Linear(384, rows)
            layer.weight.data = dtorch.zeros(rows, 384, device_mesh=mesh, placements=[Replicate(), Shard(1)])
            layer.load_state_dict({"weight": state["weight"], "bias": layer.bias})
            low = dtorch.zeros(rows, 384, device_mesh=flat, placements=[Shard(0)])
            low.copy_(state["low"])
            views = [
                state["weight"].redistribute(flat, [Shard(0)]),                     # uneven
                state["weight"].t().redistribute(flat, [Shard(0)]),
                state["weight"][3:60].redistribute(mesh, [Shard(0), Shard(0)]),
                state["weight"].chunk(3, 1)[1].redistribute(mesh, [Shard(1), Shard(0)]),
            ]
            dtorch.synchronize()
            after = nodes()
            sent = {k: after[k] - before[k] for k in after}
            print(sent["bytes_sent"] + sent["bulk_sent"] + sent["bulk_received"] + sent["bytes_received"] + sent["read"])
            right = [whole, whole.t(), whole[3:60], whole.chunk(3, 1)[1]]
            assert all(bool((v.full_tensor() == r).all()) for v, r in zip(views, right))
            assert bool((layer.weight.detach().full_tensor() == whole).all())
            assert bool((low.full_tensor() == whole.to(dtorch.bfloat16).float()).all())
            assert state["bias"].tolist() == list(range(384))
        """,
        tmp_path,
        n,
        mpiexec=mpiexec,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    few, many = map(int, out.stdout.split())
    assert many < few + 1000 and many < 20000, (few, many)


def test_a_node_without_the_file_is_sent_its_part(tmp_path):
    """A descriptor of node 0 is a path that other processes do not have."""
    out = program(
        """
        import os, warnings
        import dtorch
        os.chdir(os.path.dirname(__file__))
        from dtorch import Shard, init_device_mesh
        from dtorch.io import load_file, save_file
        x = dtorch.arange(60000.).view(100, 600)
        save_file({"x": x}, "x.safetensors")
        fd = os.open("x.safetensors", os.O_RDONLY)
        while fd < 200: fd = os.dup(fd)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            there = load_file("x.safetensors")["x"]
            print(len(told))
            here = load_file(f"/proc/self/fd/{fd}")["x"]
        print(len(told), os.path.basename(told[0].filename), f"/proc/self/fd/{fd}: node 1 (" in str(told[0].message))
        mesh = init_device_mesh("cpu", (4,))
        for t in (there, here):
            print(bool((t.redistribute(mesh, [Shard(1)]).full_tensor() == x).all()))
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == ["0", "1 program.py True", "True", "True"]


def test_a_file_that_is_cut_off_gives_an_error_with_its_line(tmp_path):
    out = program(
        """
        import os
        import dtorch
        os.chdir(os.path.dirname(__file__))
        from dtorch import Shard, init_device_mesh
        from dtorch.io import load_file, save_file
        mesh = init_device_mesh("cpu", (2,))
        save_file({"x": dtorch.arange(60000.).view(100, 600)}, "x.safetensors")
        x = load_file("x.safetensors")["x"]        # line 9
        os.truncate("x.safetensors", 150_000)
        parts = x.redistribute(mesh, [Shard(0)])
        for value in (parts, parts.to_local(1), x):
            try:
                value.sum().item()
            except ValueError as e:
                print("x.safetensors: the file" in str(e) and "program.py:9" in str(e))
        print(dtorch.ones(3, device_mesh=mesh, placements=[Shard(0)]).sum().item())
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["True"] * 3 + ["3.0"]


@both
def test_a_checkpoint_is_read_by_those_who_hold_it(tmp_path, mpiexec):
    out = program(
        """
        import os
        import dtorch
        os.chdir(os.path.dirname(__file__))
        from dtorch import Replicate, Shard, checkpoint, distribute_tensor, init_device_mesh
        mesh, flat = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (3,))
        for rows in (70, 1370):
            x = dtorch.arange(rows * 384.).view(rows, 384)
            strided = distribute_tensor(x[:30], mesh, [Shard(1), Shard(0)]).reshape(-1)
            checkpoint.save(f"c{rows}", {"a": distribute_tensor(x, mesh, [Shard(0), Shard(1)]), "s": strided, "n": 3})
            like = {"n": 0, "a": dtorch.zeros(rows, 384, device_mesh=flat, placements=[Shard(1)])}
            like["s"] = dtorch.zeros(30 * 384, device_mesh=flat, placements=[Shard(0)])
            dtorch.synchronize()
            before = dtorch._C._net_stats()
            checkpoint.load(f"c{rows}", like)
            after = dtorch._C._net_stats()
            print(after["bytes_sent"] + after["bulk_sent"] - before["bytes_sent"] - before["bulk_sent"])
            assert like["n"] == 3 and bool((like["a"].full_tensor() == x).all()) and bool((like["s"].full_tensor() == x[:30].reshape(-1)).all())
        with open("c1370/part-00000.safetensors", "r+b") as f:
            f.seek(-7, 2)
            f.write(b"?")
        try:
            checkpoint.load("c1370", like)
        except checkpoint.CheckpointError as e:
            print("tensor" in str(e) and "part-00000.safetensors: the checksum of bytes" in str(e))
        """,
        tmp_path,
        3,
        mpiexec=mpiexec,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    few, many, told = out.stdout.split()
    assert int(many) < int(few) + 1000 and told == "True", out.stdout


def test_large_values_come_in_pieces(tmp_path):
    """A read takes the memory of its result and of a few pieces; saving takes that of a few pieces."""
    out = program(
        """
        import os
        import dtorch
        os.chdir(os.path.dirname(__file__))
        from dtorch import Shard, init_device_mesh, io
        def memory(key):
            return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) / 1024
        mesh = init_device_mesh("cpu", (3,))       # two devices here, one there, uneven
        x = dtorch.arange(12_000_003.).clone()
        parts = [x.redistribute(mesh, [Shard(0)]), x[:12_000_000].view(3000, 4000).redistribute(mesh, [Shard(1)])]
        for p in parts:
            p.sum().item()
        del x
        for p in parts:
            for what in ("read", "save"):
                open("/proc/self/clear_refs", "w").write("5")
                before = memory("VmRSS")
                if what == "read":
                    value = p.numpy()
                    assert (value.reshape(-1)[::99_991] == range(0, p.numel(), 99_991)).all()
                else:
                    io.save_file({"x": p}, "x.safetensors")
                print(memory("VmHWM") - before)
            assert (io.load_file("x.safetensors")["x"].numpy() == value).all()
            del value
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    read, save, read1, save1 = map(float, out.stdout.split())
    assert read < 46 + 30 and read1 < 46 + 30, out.stdout  # MiB; the tensor has 45.8
    assert save < 60 and save1 < 60, out.stdout


def test_reads_of_later_values_do_not_reach_pieces(tmp_path):
    """A value that is being read is not overwritten, nor its memory given away, though nobody names it any more."""
    out = program(
        """
        import dtorch
        from dtorch import Shard, init_device_mesh
        mesh = init_device_mesh("cpu", (2,))
        x = dtorch.zeros(8_000_000, device_mesh=mesh, placements=[Shard(0)])
        futures = []
        for i in range(4):
            futures.append(x.numpy_async())
            x = x + 1
        del x
        y = dtorch.full((8_000_000,), 9.0, device_mesh=mesh, placements=[Shard(0)])
        for i, f in enumerate(futures):
            v = f.get()
            assert v.min() == v.max() == i, (i, v.min(), v.max())
        print((y + 1).sum().item())
        """,
        tmp_path,
    )
    assert out.returncode == 0 and float(out.stdout) == 80_000_000, out.stdout + out.stderr


def test_budgets_of_other_nodes_devices(tmp_path):
    """Values of a device elsewhere are given up and made again: same bits, and what is held there stays below the budget."""
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
        import dtorch.nn.functional as F
        def train(budget, mesh, laid, batch):
            dtorch.manual_seed(0)
            model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(128)) for _ in range(6)], nn.Linear(128, 10))
            x, y = dtorch.randn(512, 128), dtorch.randint(0, 10, (512,))
            for p in model.parameters():
                p.data = distribute_tensor(p.data, mesh, [laid])
            x, y = distribute_tensor(x, mesh, [batch]), distribute_tensor(y, mesh, [batch])
            optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-2)
            dtorch.synchronize()
            before = [dtorch.memory_stats(d)["evicted"] for d in mesh.devices]
            for d in mesh.devices:
                dtorch.set_memory_budget(budget and budget[d], d)
                dtorch.reset_peak_memory_stats(d)
            out = []
            for _ in range(2):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                out.append(loss.item())
                out += [p.grad.full_tensor().numpy().tobytes() for p in model.parameters()]
                optimizer.step()
            stats = [dtorch.memory_stats(d) for d in mesh.devices]
            for d in mesh.devices:
                dtorch.set_memory_budget(None, d)
            return out, {d: s["allocated_peak"] for d, s in zip(mesh.devices, stats)}, [s["evicted"] - b for s, b in zip(stats, before)]
        both = init_device_mesh("cpu", (2,))
        for mesh, batch in ((both[1:2], Replicate()), (both, Shard(0))):
            want, peak, none = train(None, mesh, Replicate(), batch)
            budget = {d: int(p * 0.65) for d, p in peak.items()}
            got, held, evicted = train(budget, mesh, Replicate(), batch)
            print((got == want, none, evicted, [(held[d], budget[d], peak[d]) for d in mesh.devices]))
        dtorch.set_memory_budget(3 << 30)
        print([dtorch.memory_stats(d)["budget"] for d in both.devices])
        dtorch.set_memory_budget(None)
        print([dtorch.memory_stats(d)["budget"] for d in both.devices])
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    lines = out.stdout.splitlines()
    assert [eval(line) for line in lines[2:]] == [[3 << 30] * 2, [0, 0]]
    for line in lines[:2]:
        same, none, evicted, held = eval(line)
        assert same and not any(none) and sum(evicted) > 0 and all(h <= b for h, b, _ in held), line


def test_host_calls_take_and_give_tensors_of_any_node(tmp_path):
    out = program(
        """
        import os
        import numpy as np
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (4,))
        far = mesh[3:4]
        x = distribute_tensor(dtorch.arange(12.).view(6, 2), mesh, [Shard(0)])
        y = distribute_tensor(dtorch.ones(3), far, [Replicate()])
        r, pid = dtorch.host_call(lambda a, b: (a.sum() * b, np.array([os.getpid()])), x, y, out=[((3,), dtorch.float32), ((1,), dtorch.int64)])
        print(pid.item() == os.getpid(), (r.redistribute(far, [Replicate()]) + y).tolist(), r.redistribute(mesh, [Shard(0)]).sum().item())
        def wrong(a):
            raise ValueError("as it says")
        bad = dtorch.host_call(wrong, y, out=((3,), dtorch.float32)).redistribute(far, [Replicate()])   # line 14
        try:
            bad.sum().item()
        except RuntimeError as e:
            print("ValueError: as it says" in str(e), "program.py:14" in str(e))
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == ["True [67.0, 67.0, 67.0] 198.0", "True True"]


@both
def test_nodes_exchange_without_the_client(tmp_path, mpiexec):
    """Between meshes on two other nodes: what node 0 sends and receives does not depend on the size."""
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard, init_device_mesh
        all = init_device_mesh("cpu", (6,))
        second, third = all[2:4], all[4:6]
        assert {d.index // 64 for d in second.devices} == {1} and {d.index // 64 for d in third.devices} == {2}
        for n in (500, 500_000):
            x = dtorch.arange(float(2 * n), device_mesh=second, placements=[Shard(0)]).view(n, 2)
            dtorch.synchronize()
            before = dtorch._C._net_stats()
            y = x.redistribute(third, [Shard(1)])
            z = (y * 2).redistribute(second, [Replicate()])
            dtorch.synchronize()
            after = dtorch._C._net_stats()
            print(sum(after[k] - before[k] for k in after if k not in ("messages_sent", "messages_received")))
            assert y.sum().item() and (z.numpy().reshape(-1) == 2 * dtorch.arange(float(2 * n)).numpy()).all()
        """,
        tmp_path,
        3,
        mpiexec=mpiexec,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    few, many = map(int, out.stdout.split())
    assert many < few + 1000 and many < 10_000, (few, many)


def test_a_run_that_finds_no_memory_gives_back_what_others_were_to_hold(tmp_path):
    """The other node's device comes first in the mesh: its part is given out before memory here turns out to be too short."""
    out = program(
        """
        import dtorch
        from dtorch import Shard
        mesh = dtorch.DeviceMesh("cpu", [64, 0])
        x = dtorch.ones(1000, device_mesh=mesh, placements=[Shard(0)])
        far = mesh.devices[0]
        assert far.index == 64 and x.sum().item() == 1000
        failed = 0
        for _ in range(20):
            try:
                dtorch.zeros(1 << 44, device_mesh=mesh, placements=[Shard(0)]).sum().item()
            except dtorch.OutOfMemoryError:
                failed += 1
        dtorch.set_memory_budget(1 << 20, far)   # counts what was given out
        print(failed, (x * 2).sum().item())
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr[-3000:]
    assert out.stdout.split() == ["20", "2000.0"]
