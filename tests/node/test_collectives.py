"""Collectives between processes: whatever the way (memory of the host's processes, MPI in chunks of any size) the bits are those of one process."""

import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch import LAUNCHERS, MPIEXEC, ROOT, environment, launch, program

pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")


@pytest.fixture(scope="module")
def one_process():
    known = {}

    def lines(path, devices):
        if (path, devices) not in known:
            env = environment(MPIEXEC, {"DTORCH_NODES": "1"})
            out = subprocess.run([sys.executable, path, str(devices)], env=env, capture_output=True, text=True, timeout=100, check=True)
            known[path, devices] = out.stdout.splitlines()[:-1]
        return known[path, devices]

    return lines


def same_as_one_process(one_process, program, nodes, devices, shared, chunk, mpiexec):
    path = os.path.join(ROOT, "tests", "cluster", program)
    env = {"DTORCH_NODE_SHARED": str(shared)} | ({"DTORCH_NODE_CHUNK": str(chunk)} if chunk else {})
    out = launch(nodes, path, str(devices), env=env, mpiexec=mpiexec)
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
    *lines, last = out.stdout.splitlines()
    assert lines == one_process(path, devices)
    found, in_flight, received, read = map(int, last.split())
    assert found == min(nodes, devices)
    assert (read == 0) if not shared else (read > 0 and in_flight == 0)
    if chunk and not shared:  # credits: a window of 8 chunks from and to each other node, in two queues
        assert 0 < in_flight <= 2 * 2 * 8 * (chunk + 63) * (nodes - 1) < received


@pytest.mark.parametrize("mpiexec", LAUNCHERS, ids=["default", "openmpi"])
@pytest.mark.parametrize(
    ("nodes", "devices", "shared", "chunk"),
    [(2, 2, 0, 4096), (2, 4, 0, 0), (2, 4, 0, 448), (2, 4, 1, 0), (2, 6, 0, 20000), (4, 4, 0, 4096), (4, 4, 1, 0), (3, 6, 0, 0)],
)
def test_bits_do_not_depend_on_where_devices_are(one_process, nodes, devices, shared, chunk, mpiexec):
    same_as_one_process(one_process, "bits.py", nodes, devices, shared, chunk, mpiexec)


@pytest.mark.parametrize("mpiexec", LAUNCHERS, ids=["default", "openmpi"])
@pytest.mark.parametrize(
    ("nodes", "devices", "shared", "chunk"), [(2, 2, 0, 0), (2, 4, 0, 448), (2, 4, 1, 0), (3, 3, 0, 448), (3, 6, 1, 0), (4, 4, 0, 4096), (4, 4, 1, 0)]
)
def test_rows_of_experts_go_between_nodes(one_process, nodes, devices, shared, chunk, mpiexec):
    """Uneven and empty ones; and what comm_report counts of them is what one process counts."""
    same_as_one_process(one_process, "rows.py", nodes, devices, shared, chunk, mpiexec)


@pytest.mark.parametrize("shared", [0, 1])
def test_an_error_stays_in_its_group(tmp_path, shared):
    """Of two groups that span the nodes one has a part that failed: the other one's parts are there, small and in chunks."""
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2))                         # along dimension 0 from node to node
        table = distribute_tensor(dtorch.arange(3.), mesh, [Replicate(), Replicate()])
        for n in (1, 60000):
            i = dtorch.ones(2, 2 * n, dtype=dtorch.int64)
            i[1, -1] = 7                                               # the last device's, out of range
            part = table[distribute_tensor(i, mesh, [Shard(0), Shard(1)])]
            whole = part.redistribute(mesh, [Replicate(), Shard(1)])
            for k in range(4):
                try:
                    print(whole.to_local(k).sum().item() == 2 * n)
                except IndexError as e:
                    print("program.py:9" in str(e) and "failed")
        """,
        tmp_path,
        env={"DTORCH_NODE_SHARED": str(shared), "DTORCH_NODE_CHUNK": "4096"},
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["True", "failed"] * 4, out.stdout


def test_computation_goes_on_beside_a_collective(tmp_path):
    out = program(
        """
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        from dtorch.profiler import profile
        mesh = init_device_mesh("cpu", (2,))
        big = distribute_tensor(dtorch.ones(2, 1 << 20), mesh, [Shard(0)])
        small = distribute_tensor(dtorch.ones(1024, 256), mesh, [Shard(0)])
        w = distribute_tensor(dtorch.eye(256), mesh, [Replicate()])
        dtorch.synchronize()
        with profile() as p:
            for _ in range(5):  # where the client pauses, a collective may be all there is to do
                whole = big.redistribute(mesh, [Replicate()])
                for _ in range(20):
                    small = small @ w
                (whole.sum() + small.sum()).item()
        events = p.events()
        moves = [e for e in events if e["kind"] == "communication" and e["name"] == "all_gather"]
        beside = {e["lane"].split()[0] for e in events for m in moves
                  if e["kind"] == "kernel" and m["lane"].split()[0] == e["lane"].split()[0] and m["begin"] < e["begin"] < m["end"]}
        print(len(moves), len(beside) > 0)
        """,
        tmp_path,
        env={"DTORCH_NODE_SHARED": "0", "DTORCH_NODE_CHUNK": "16384"},
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["10", "True"], out.stdout


def test_a_node_lost_in_the_middle_of_chunks_is_named(tmp_path):
    """The node stops while an all-gather of many small chunks is under way."""
    out = program(
        """
        import os, signal, threading, time
        import dtorch
        from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(dtorch.ones(2, 8 << 20), mesh, [Shard(0)])
        dtorch.synchronize()
        def stop():
            while dtorch._C._net_stats()["bulk_received"] < 100000:
                time.sleep(0.001)
            for p in filter(str.isdigit, os.listdir("/proc")):
                try:
                    env = open(f"/proc/{p}/environ").read().split("\\0")
                    if "PMI_RANK=1" in env and "DT_TEST=%s" % os.environ["DT_TEST"] in env and "python" in open(f"/proc/{p}/cmdline").read():
                        os.kill(int(p), signal.SIGSTOP)
                except OSError:
                    pass
        thread = threading.Thread(target=stop)
        thread.start()
        begin = time.time()
        try:
            for _ in range(1000):
                x = x.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)]) + 1
                x.sum().item()
        except dtorch.NodeLostError as e:
            print("node 1" in str(e), time.time() - begin < 30)
        thread.join()
        print(dtorch.ones(3).sum().item(), flush=True)
        """,
        tmp_path,
        env={"DTORCH_NODE_TIMEOUT": "2", "DT_TEST": str(os.getpid()), "DTORCH_NODE_SHARED": "0", "DTORCH_NODE_CHUNK": "1024"},
        timeout=60,
    )
    assert out.stdout.split()[:3] == ["True", "True", "3.0"], out.stdout + out.stderr
