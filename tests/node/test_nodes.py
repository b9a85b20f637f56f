"""The same program over several processes: values, late errors and lost nodes. Needs mpiexec (the extra `mpi`)."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.dirname(sys.executable)
MPIEXEC = shutil.which("mpiexec", path=BIN + os.pathsep + os.environ.get("PATH", ""))
pytestmark = pytest.mark.skipif(MPIEXEC is None or os.environ.get("DTORCH_NODES") == "", reason="no mpiexec")


def launch(n, *args, env=None, timeout=110):
    clean = {k: v for k, v in os.environ.items() if k != "DTORCH_NODES" and not k.startswith(("PMI", "OMPI_", "HYDRA"))}
    clean["PATH"] = os.path.dirname(MPIEXEC) + os.pathsep + clean.get("PATH", "")
    return subprocess.run([MPIEXEC, "-n", str(n), sys.executable, *args], env=clean | (env or {}), capture_output=True, text=True, timeout=timeout, check=False)


def program(text, tmp_path, n=2, **kw):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return launch(n, str(path), **kw)


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("tests", ["test_random_programs.py", "test_random_writes.py", "test_movement.py"])
def test_distributed_tensors_over_nodes(nodes, tests):
    out = launch(nodes, "-m", "pytest", "-x", os.path.join(ROOT, "tests", "dist", tests), "-k", "1 or 3 or 5")
    assert out.returncode == 0 and " passed" in out.stdout and "failed" not in out.stdout, out.stdout[-2000:] + out.stderr[-2000:]


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
