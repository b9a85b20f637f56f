"""The same program over several processes: values, late errors and lost nodes. Needs mpiexec (the extra `mpi`)."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch import BIN, MPIEXEC, PYTEST, ROOT, environment, launch, launcher, program

pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")


def passes(nodes, tests, mpiexec, select="", share=""):
    """Files of tests/dist with their program on node 0 of `nodes`; what it prints is pytest's."""
    paths = [os.path.join(ROOT, "tests", "dist", t) for t in tests]
    env = {"DTORCH_TEST_SHARE": share} if share else {}
    out = launch(nodes, *PYTEST, "-x", "--color=no", *paths, "-k", select, mpiexec=mpiexec, env=env)
    assert out.returncode == 0 and " passed" in out.stdout and "failed" not in out.stdout, out.stdout[-2000:] + out.stderr[-2000:]


# Shares of everything in tests/dist but the mixes: another one for each MPI and number of ranks. All of it: tests/node/whole.py.
SHARES = {(2, "mpich"): 0, (4, "mpich"): 11, (2, "openmpi"): 23, (4, "openmpi"): 37}
SHARE_OF = 48
DIST = sorted(f for f in os.listdir(os.path.join(ROOT, "tests", "dist")) if f.startswith("test_") and f != "test_any_mix.py")


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_share_of_the_distributed_core_over_nodes(nodes, mpi):
    passes(nodes, DIST, launcher(mpi), share=f"{SHARES[nodes, mpi]}/{SHARE_OF}")


# Kinds of parallelism alone and mixed.
MIXES = {
    (2, "mpich"): "(4x1x2x1x1 and llama) or (1x2x1x1x4 and moe)",
    (4, "mpich"): "(2x1x2x2x1-zero3 and llama) or (1x2x2x2x1 and moe)",
    (2, "openmpi"): "(2x1x1x1x4 and moe) or (1x4x1x2x1 and llama)",
    (4, "openmpi"): "(2x1x2x2x1-zero2 and moe) or (2x2x2x1x1 and llama)",
}


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_share_of_the_mixes_over_nodes(nodes, mpi):
    passes(nodes, ["test_any_mix.py"], launcher(mpi), "test_mix and (" + MIXES[nodes, mpi] + ")")


NODE = next(filter(None, (shutil.which("dtorch-node", path=p) for p in (BIN, os.path.join(ROOT, "build", "src")))), None)


@pytest.mark.skipif(NODE is None, reason="no dtorch-node")
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_nodes_without_python(tmp_path, mpi):
    mpiexec = launcher(mpi)
    path = tmp_path / "program.py"
    path.write_text(
        textwrap.dedent("""
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (6,))
        x, w = (distribute_tensor(dtorch.randn(61, 61), mesh, [Shard(d)]) for d in (0, 1))
        print(len({d.index // 64 for d in mesh.devices}), dtorch.allclose((x @ w).full_tensor(), x.full_tensor() @ w.full_tensor(), atol=1e-4))
        """)
    )
    command = [mpiexec, "-n", "1", sys.executable, str(path), ":", "-n", "2", NODE]
    out = subprocess.run(
        command, env=environment(mpiexec, {"DTORCH_PREFIX": sys.prefix}), capture_output=True, text=True, timeout=60, check=False
    )
    assert out.returncode == 0 and out.stdout.split() == ["3", "True"], out.stdout + out.stderr


def test_a_node_alone_says_how_it_is_started():
    if NODE is None:
        pytest.skip("no dtorch-node")
    out = subprocess.run([NODE], env={}, capture_output=True, text=True, timeout=20, check=False)
    assert out.returncode == 2 and "mpiexec -n 1 python train.py" in out.stderr


def test_a_program_that_computes_nothing_ends(tmp_path):
    out = program("import dtorch; raise ValueError('before the first call')", tmp_path, timeout=30)
    assert out.returncode == 1 and "before the first call" in out.stderr, out.stdout + out.stderr
    out = launch(3, "-m", "dtorch", "info", timeout=30)
    assert out.returncode == 0 and "nodes 3, this is node 0" in out.stdout, out.stdout + out.stderr
    assert re.search(r"link to a node of this host: a small all-gather \d+ us, \d+\.\d\d GB/s", out.stdout), out.stdout


def test_only_node_0_runs_the_program(tmp_path):
    out = program(
        """
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh
        print("program")
        mesh = init_device_mesh("cpu", (4,))
        nodes = {d.index // 64 for d in mesh.devices}
        x = distribute_tensor(dtorch.arange(40.).view(10, 4), mesh, [Shard(0)])
        print(len(nodes), (x @ x.T).sum().item(), x.full_tensor()[7].tolist(), dtorch.memory_stats(mesh.devices[3])["allocated"] > 0)
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == ["program", "2 152600.0 [28.0, 29.0, 30.0, 31.0] True"]


def test_a_late_error_on_another_node_names_the_line(tmp_path):
    out = program(
        """
        import dtorch
        from dtorch import Replicate, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (2,))[1:2]
        w = distribute_tensor(dtorch.ones(5, 2), mesh, [Replicate()])
        bad = dtorch.nn.functional.embedding(distribute_tensor(dtorch.tensor([9]), mesh, [Replicate()]), w)   # line 6
        good = w.sum()
        try:
            bad.sum().item()
        except IndexError as e:
            print("program.py:6" in str(e), "9" in str(e))
        print(good.item())
        """,
        tmp_path,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["True", "True", "10.0"]


def test_training_equals_one_process(tmp_path):
    text = """
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh, nn
        from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        dtorch.manual_seed(0)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(20):
            x = distribute_tensor(dtorch.randn(16, 8), mesh["dp"], [Shard(0)])
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{loss.item():.6f}", sum(p.full_tensor().double().sum() for p in model.parameters()).item())
    """
    values = []
    for n in (1, 2, 4):
        out = program(text, tmp_path, n)
        assert out.returncode == 0, out.stderr
        values.append([float(v) for v in out.stdout.split()])
    assert values[1] == pytest.approx(values[0], rel=1e-5) and values[2] == pytest.approx(values[0], rel=1e-5)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP") or not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_stopped_node_is_named(tmp_path):
    out = program(
        """
        import os, signal, time
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh
        x = distribute_tensor(dtorch.arange(8.), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert x.sum().item() == 28
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                env = open(f"/proc/{p}/environ").read().split("\\0")
                if "PMI_RANK=1" in env and "DT_TEST=%s" % os.environ["DT_TEST"] in env and "python" in open(f"/proc/{p}/cmdline").read():
                    os.kill(int(p), signal.SIGSTOP)
            except OSError:
                pass
        start = time.time()
        try:
            (x + 1).sum().item()
        except dtorch.NodeLostError as e:
            print("node 1" in str(e), time.time() - start < 10)
        print(dtorch.ones(3).sum().item(), flush=True)
        """,
        tmp_path,
        env={"DTORCH_NODE_TIMEOUT": "2", "DT_TEST": str(os.getpid())},
    )
    assert out.stdout.split()[:3] == ["True", "True", "3.0"], out.stdout + out.stderr


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_processes_of_a_host_ring_each_other(tmp_path, mpi):
    """Where one may read the other's memory; without, they look for messages as before. Either way everything arrives."""
    text = """
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(dtorch.arange(400.).view(20, 20), mesh, [Shard(0)])
        right = all((x + i).sum().item() == 79800.0 + 400 * i for i in range(0, 30, 3))
        right &= distribute_tensor(dtorch.ones(400, 400), mesh, [Shard(0)]).redistribute(mesh, [Shard(1)]).sum().item() == 160000.0
        stats = dtorch._C._net_stats()
        print(right, stats["bells"], int(stats["read"] > 0))
        """
    on, off = (program(text, tmp_path, mpiexec=launcher(mpi), env={"DTORCH_NODE_SHARED": shared}) for shared in "10")
    assert on.stdout.split() in (["True", "1", "1"], ["True", "0", "0"]), on.stdout + on.stderr
    assert off.stdout.split() == ["True", "0", "0"], off.stdout + off.stderr


def test_a_repeated_step_says_little_and_new_numbers_arrive(tmp_path):
    out = program(
        """
        import dtorch
        from dtorch import Shard, distribute_tensor, init_device_mesh
        x = distribute_tensor(dtorch.ones(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
        def step(factor, n=500):
            y = x
            for _ in range(n):
                y = (y * factor).clamp(max=2.0)
            return y.sum().item()
        values = [step(f) for f in (1.0, 1.5, 0.0, 1.0, 1.5, 1.5, 0.5, 1.0)]
        for _ in range(3):
            step(1.0)
        before = dtorch._C._net_stats()
        for _ in range(10):
            step(1.0)
        after = dtorch._C._net_stats()
        print(values == [8.0, 16.0, 0.0, 8.0, 16.0, 16.0, values[6], 8.0] and values[6] < 1e-9, (after["bytes_sent"] - before["bytes_sent"]) / 10 < 1000)
        """,
        tmp_path,
    )
    assert out.stdout.split() == ["True", "True"], out.stdout + out.stderr


def test_a_program_may_end_in_the_middle_of_its_work(tmp_path):
    out = program(
        """
        import sys, dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (4,))
        x = distribute_tensor(dtorch.ones(256, 256), mesh, [Shard(0)])
        kept = []
        for _ in range(200):
            kept.append((x @ x.redistribute(mesh, [Replicate()])).sum(0).redistribute(mesh, [Replicate()]))
        sys.exit(5)  # nothing was read: collectives are under way, and others were never begun
        """,
        tmp_path,
        n=4,
        timeout=60,
    )
    assert out.returncode == 5 and "not all of the run has ended" not in out.stderr, out.stderr


WHAT_A_STEP_SAYS = """
import contextlib, statistics, sys
import dtorch
from dtorch import Shard, distribute_tensor, init_device_mesh
simulated, each = sys.argv[1] == "simulated", int(sys.argv[2])
n = each * dtorch._C._node_info()[0]
with dtorch.simulate("a100-8x", devices=n) if simulated else contextlib.nullcontext():
    x = distribute_tensor(dtorch.ones(n, 8), init_device_mesh("cpu", (n,)), [Shard(0)])
    def step(n, k):
        y = x
        for i in range(n):
            y = y * 1.0001 if i % 2 else y + k
        return y.sum().item()
    for n in (20, 8000):
        for k in range(8):
            step(n, k)
        stats = [dtorch._C._net_stats()]
        for k in range(21):
            step(n, k / 7)
            stats.append(dtorch._C._net_stats())
        # the median: a step in which the client pauses, on a busy machine, is cut elsewhere and sent as news
        print(*(statistics.median(b[key] - a[key] for a, b in zip(stats, stats[1:])) for key in ("messages_sent", "bytes_sent")))
"""


@pytest.mark.parametrize(("nodes", "each", "kind"), [(2, 1, "real"), (9, 1, "real"), (9, 2, "simulated")])
def test_what_a_step_says_does_not_depend_on_how_many_calls_it_has(tmp_path, nodes, each, kind):
    """Nine nodes are told along a tree."""
    if nodes > 2 and NODE is None:
        pytest.skip("no dtorch-node")
    path = tmp_path / "program.py"
    path.write_text(WHAT_A_STEP_SAYS)
    command = [MPIEXEC, "-n", "1", sys.executable, str(path), kind, str(each), ":", "-n", str(nodes - 1), *([NODE] if NODE else [sys.executable, str(path)])]
    out = subprocess.run(command, env=environment(MPIEXEC, {"DTORCH_PREFIX": sys.prefix}), capture_output=True, text=True, timeout=110, check=False)
    assert out.returncode == 0, out.stderr
    few, many = ([float(v) / (nodes - 1) for v in line.split()] for line in out.stdout.splitlines())
    assert few[0] <= 8 and many[0] <= 16, (few, many)  # messages a node and step, in growing intervals while it is recorded; it has 100 plans or so
    assert few[1] <= 200 and many[1] <= 200, (few, many)  # bytes


WHAT_RANK_0_DOES = """
import dtorch
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
nodes = dtorch._C._node_info()[0]
mesh = init_device_mesh("cpu", (nodes,))
def stats():
    return [dtorch._C._engine_stats()["plan_bytes"], dtorch._C._net_stats()["posted"], dtorch._C._net_stats()["posted_bytes"]]
for work in (lambda x, w: (x * 2 + 1).relu() @ w, lambda x, w: dtorch.rand_like(x) - x.softmax(1), lambda x, w: x.exp().cumsum(1)[:, 1:]):
    found = []
    for k in range(6):  # of other shapes, so that plans are made; on a busy machine the client may pause and a subgraph be cut: the least of all
        x = distribute_tensor(dtorch.ones(8 * nodes, 130 + k), mesh, [Shard(0)])
        w = distribute_tensor(dtorch.ones(130 + k, 5), mesh, [Replicate()])
        dtorch.synchronize()
        before = stats()
        z = work(x, w)
        dtorch.synchronize()
        found.append([b - a for a, b in zip(before, stats())])
    print(*(min(column) for column in zip(*found)))
print(z.sum().item() > 0)
"""


@pytest.mark.skipif(NODE is None, reason="no dtorch-node")
def test_what_rank_0_says_of_plans_does_not_depend_on_how_many_nodes_do_alike(tmp_path):
    """Plans are written once for nodes whose numbers grow evenly, and go out along a tree of two branches: bytes written, messages and bytes posted."""
    path = tmp_path / "program.py"
    path.write_text(WHAT_RANK_0_DOES)
    found = []
    for nodes in (9, 15):
        command = [MPIEXEC, "-n", "1", sys.executable, str(path), ":", "-n", str(nodes - 1), NODE]
        out = subprocess.run(command, env=environment(MPIEXEC, {"DTORCH_PREFIX": sys.prefix}), capture_output=True, text=True, timeout=110, check=False)
        assert out.returncode == 0, out.stderr
        lines = out.stdout.splitlines()
        assert lines[3] == "True"
        found.append([[int(v) for v in line.split()] for line in lines[:3]])
    for few, many in zip(*found):
        assert few[0] > 100 and many[0] <= few[0] + 8, found  # a number may take another byte
        assert many[1] <= few[1] and many[2] <= few[2] + 64, found


SIMULATED = """
import dtorch
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, models
def show(sim):
    print([(s.seconds.hex(), s.bubble.hex()) for s in sim.report().steps], sim.report().seconds.hex(), sim.report().out_of_memory)
print(dtorch.estimate(lambda x: x @ x, dtorch.ones(100, 100), hardware="a100-8x"))
with dtorch.simulate("a100-8x", devices=4) as sim:   # stages on several nodes, collectives between them
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
    model = models.GPT2(models.GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=4, n_head=4))
    models.parallelize(model, mesh)
    opt = dtorch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        x = models.distribute_batch(mesh, dtorch.randint(0, 512, (8, 64)))
        for a in x.chunk(4):
            (models.next_token_loss(model(a), a) / 4).backward()
        opt.step()
        opt.zero_grad()
show(sim)
print(max(sim.report().peak))
del model, opt, x, a
small = {"name": "small", "flops": {"float32": 1e12}, "vector_flops": 1e15, "memory_bandwidth": 1e12, "memory": 1e8,
         "links": [{"bandwidth": 1e9, "latency": 1e-6}]}
with dtorch.simulate(small, devices=9) as sim:       # more than the first simulation had
    mesh = init_device_mesh("cuda", (9,))
    a = distribute_tensor(dtorch.tensor([[1.0] * 10] * 12), mesh, [Shard(0)])   # a host array; zeros come back
    print(a.sum().item(), a.redistribute(mesh, [Replicate()]).full_tensor().tolist() == [[0.0] * 10] * 12)
    print([dtorch.memory_stats(f"cuda:{i}")["allocated"] for i in (0, 8)], dtorch.memory_stats("cuda:4")["limit"])
show(sim)
with dtorch.simulate(small, devices=4) as sim:
    big = dtorch.zeros(30000000, device="cuda:3")
    try:
        print((big + 1).sum().item())
    except dtorch.OutOfMemoryError as e:
        print("bytes wanted" in str(e))
print(sim.report().out_of_memory)
"""


def test_simulated_devices_on_nodes(tmp_path):
    """Times are those of one process, to the bit: the clocks are the controller's. Memory is each node's own."""
    alone, three = (program(SIMULATED, tmp_path, n=n) for n in (1, 3))
    assert alone.returncode == 0 and three.returncode == 0, alone.stderr + three.stderr
    assert alone.stdout == three.stdout and "0x" in alone.stdout and alone.stdout.splitlines()[-2:] == ["True", "[3]"], alone.stdout + three.stdout


def test_the_profiler_sees_what_other_nodes_did(tmp_path):
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        from dtorch.profiler import profile
        mesh = init_device_mesh("cpu", (4,))
        x = distribute_tensor(dtorch.ones(64, 64), mesh, [Shard(0)])
        for _ in range(2):
            with profile() as p:
                begin = p._begin
                y = x @ x.redistribute(mesh, [Replicate()])
                y.sum().item()
            events = [e for e in p.events() if e["kind"] in ("kernel", "communication", "comm")]
            lanes = {e["lane"].split()[0] for e in events if e["name"] == "matmul"}
            line = {e["line"] for e in events if e["name"] == "matmul"}
            print(sorted(lanes), len(line), all(begin <= e["begin"] <= e["end"] <= p._end for e in events))
        """,
        tmp_path,
    )
    assert out.stdout.splitlines() == ["['cpu:0', 'cpu:1', 'cpu:64', 'cpu:65'] 1 True"] * 2, out.stdout + out.stderr


def test_a_full_queue_here_lets_other_nodes_have_their_part(tmp_path):
    """Many short runs without a read fill a worker's queue; the controller that waits for room sends what it has for other nodes first."""
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard
        mesh = dtorch.init_device_mesh("cpu", (4,))
        y = dtorch.distribute_tensor(dtorch.ones(8, 8), mesh, [Shard(0)])
        dtorch.synchronize()
        for _ in range(3000):
            y = (y.redistribute(mesh, [Replicate()]) * 0.5 + 0.5).redistribute(mesh, [Shard(0)])
        print(y.sum().full_tensor().item())
        """,
        tmp_path,
        env={"DTORCH_FLUSH": "1"},
        timeout=60,
    )
    assert out.returncode == 0 and out.stdout.strip() == "64.0", out.stdout + out.stderr


def test_a_node_that_is_far_behind_may_wait_for_another_one(tmp_path):
    """Node 1 has as many runs before it as it may, all of which read what node 2 makes. The controller that waits for it tells node 2 its part first."""
    out = program(
        """
        import dtorch
        from dtorch import DeviceMesh, Replicate
        a, b = (dtorch.distribute_tensor(dtorch.ones(4), DeviceMesh("cpu", [d]), [Replicate()]) for d in (2, 1))
        for _ in range(2000):
            a = a * 0.5 + 0.5
            b = b * 0.5 + a.redistribute(b.device_mesh, b.placements) * 0.5
        print(b.full_tensor().tolist())
        """,
        tmp_path,
        n=3,
        env={"DTORCH_FLUSH": "1", "DTORCH_CPU_DEVICES": "1"},
        timeout=60,
    )
    assert out.returncode == 0 and out.stdout.strip() == "[1.0, 1.0, 1.0, 1.0]", out.stdout + out.stderr
