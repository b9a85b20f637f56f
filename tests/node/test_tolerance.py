"""Open MPI's fault-tolerant mode: when a node is lost, the other processes stay, and the program goes on with what they have."""

import json
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch import OPENMPI, environment, needs_openmpi, program

pytestmark = needs_openmpi

# The program's other processes on this host, by rank.
PIDS = """
import os
def pids():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{pid}/environ").read().split("\\0")
            command = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if f"DT_TEST={os.environ['DT_TEST']}" in env and "program.py" in command and "mpiexec" not in command and "prterun" not in command:
            found.update({int(v[10:]): int(pid) for v in env if v.startswith("PMIX_RANK=")})
    return found
"""


@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_the_other_nodes_stay(tmp_path, how):
    out = program(
        PIDS
        + f"""
import signal, dtorch
from dtorch import DeviceMesh, Shard, distribute_tensor, init_device_mesh
mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
across = distribute_tensor(dtorch.arange(80.).view(8, 10), mesh, [Shard(0), Shard(1)])
elsewhere = distribute_tensor(dtorch.arange(8.), DeviceMesh("cpu", [0, 128, 192]), [Shard(0)])
print([d.index for d in dtorch.devices()], across.sum().item(), elsewhere.sum().item())
before = pids()
os.kill(before[1], signal.SIG{how})
try:
    for _ in range(10**6):
        (across.redistribute(mesh, [Shard(1), Shard(0)]) + 1).sum().item()
except dtorch.NodeLostError as e:
    print("node 1" in str(e), "program.py" in str(e))
try:
    across.sum().item()
except dtorch.NodeLostError as e:
    print("node 1" in str(e))
print((elsewhere * 2).full_tensor().tolist())  # nothing of it was lost
mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
print([d.index for d in mesh.devices], [d.index for d in dtorch.devices()])
x = distribute_tensor(dtorch.arange(80.).view(8, 10), mesh, [Shard(0), Shard(1)])
print((x @ x.T).sum().item(), {{r: p for r, p in before.items() if r != 1}} == {{r: p for r, p in pids().items() if r != 1}})
try:
    init_device_mesh("cpu", (3 * 64 + 1,))
except ValueError as e:
    print("64 each" in str(e))
""",
        tmp_path,
        n=4,
        mpiexec=OPENMPI,
        options=["--with-ft", "ulfm"],
        env={"DTORCH_NODE_TIMEOUT": "3", "DT_TEST": f"{os.getpid()}.{how}"},
        timeout=90,
    )
    assert out.stdout.splitlines() == [
        "[0, 64, 128, 192] 3160.0 28.0",
        "True True",
        "True",
        "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]",
        "[0, 1, 128, 129, 192, 193] [0, 128, 192]",
        "1003840.0 True",
        "True",
    ], out.stdout + out.stderr
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("code", [0, 7])
def test_a_program_that_goes_on_ends_with_its_own_status(tmp_path, code):
    out = program(
        PIDS
        + f"""
import signal, sys, dtorch
x = dtorch.distribute_tensor(dtorch.ones(6), dtorch.init_device_mesh("cpu", (3,)), [dtorch.Shard(0)])
x.sum().item()
for rank, pid in pids().items():
    if rank:
        os.kill(pid, signal.SIGKILL)
try:
    while True:
        (x + 1).sum().item()
except dtorch.NodeLostError:
    sys.exit({code} if len(dtorch.devices()) < 3 else 99)  # who hears of a loss does not find the node among those that are left
""",
        tmp_path,
        n=3,
        mpiexec=OPENMPI,
        options=["--with-ft", "ulfm"],
        env={"DT_TEST": f"{os.getpid()}.{code}"},
        timeout=60,
    )
    assert out.returncode == code, out.stdout + out.stderr


TRAINED = """
import json, signal, sys, dtorch
from dtorch import Shard, checkpoint, distribute_tensor, init_device_mesh, nn

directory, log = os.environ["DTORCH_CHECKPOINT"], sys.argv[1]
attempt = int(os.environ["DTORCH_RUN_ATTEMPT"])
dtorch.manual_seed(0)
mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
for p in model.parameters():
    p.data = distribute_tensor(p.data, mesh)
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer, "rng": checkpoint.RNG(), "step": 0}
newest = checkpoint.latest(directory) if os.path.isdir(directory) else None
if newest:
    state = checkpoint.load(newest, state)
for step in range(state["step"], 8):
    x = distribute_tensor(dtorch.randn(12, 8), mesh, [Shard(0), Shard(1)])
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(log, "a") as f:
        f.write(json.dumps([step, loss.item(), mesh.shape[0], attempt, sorted(pids().items())]) + "\\n")
    if attempt == 0 and step == 4 and sys.argv[2] != "never":
        os.kill(pids()[2], signal.SIGKILL)
    if step % 2 == 1:
        checkpoint.save(f"{directory}/step-{step + 1}", {**state, "step": step + 1}, keep=2, asynchronous=step == 5)
checkpoint.wait()
"""


def train(tmp_path, kind, *options):
    path, log = tmp_path / "program.py", tmp_path / f"{kind}.log"
    path.write_text(PIDS + TRAINED)
    command = [sys.executable, "-m", "dtorch.run", "-n", "3", *options, "--launcher", OPENMPI, "--checkpoint", str(tmp_path / kind)]
    env = environment(OPENMPI, {"DTORCH_NODE_TIMEOUT": "3", "DT_TEST": f"{os.getpid()}.{kind}"})
    out = subprocess.run([*command, str(path), str(log), kind], env=env, capture_output=True, text=True, timeout=100, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    return out, [json.loads(line) for line in log.read_text().splitlines()]


def test_dtorch_run_goes_on_in_the_same_processes(tmp_path):
    _, whole = train(tmp_path, "never")
    out, rows = train(tmp_path, "kill", "--min-nodes", "2")
    assert "going on in the same processes with 2 of 3 nodes" in out.stderr and "attempt 2" not in out.stderr
    assert [(step, dp, attempt) for step, _, dp, attempt, _ in rows] == [(s, 3, 0) for s in range(5)] + [(s, 2, 1) for s in range(4, 8)]
    before, after = dict(rows[0][4]), dict(rows[-1][4])
    assert {r: before[r] for r in (0, 1)} == {r: after[r] for r in (0, 1)} and sorted(after) == [0, 1]
    expected = {step: loss for step, loss, _, _, _ in whole}
    for step, loss, dp, _, _ in rows:
        assert loss == (expected[step] if dp == 3 else pytest.approx(expected[step], rel=1e-4))


def test_too_few_nodes_are_left_and_all_start_again(tmp_path):
    out, rows = train(tmp_path, "kill", "--min-nodes", "3", "--max-restarts", "1")
    assert "attempt 2 of at most 2 on 3 nodes" in out.stderr
    assert [(dp, attempt) for _, _, dp, attempt, _ in rows] == [(3, 0)] * 5 + [(3, 1)] * 4
