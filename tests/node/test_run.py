"""`dtorch-run`: a broken run goes on from its last checkpoint, and its losses are those of a run that was never broken."""

import json
import os
import shutil
import subprocess
import sys

import pytest

BIN = os.path.dirname(sys.executable)
MPIEXEC = shutil.which("mpiexec", path=BIN + os.pathsep + os.environ.get("PATH", ""))
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")

PROGRAM = """
import json, os, signal, subprocess, sys, time
import dtorch
from dtorch import Shard, checkpoint, distribute_tensor, init_device_mesh, nn

directory, log, kind = os.environ["DTORCH_CHECKPOINT"], sys.argv[1], sys.argv[2]
attempt = int(os.environ["DTORCH_RUN_ATTEMPT"])
dtorch.manual_seed(0)
mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
for p in model.parameters():
    p.data = distribute_tensor(p.data, mesh)
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer, "rng": checkpoint.RNG(), "step": 0}
newest = checkpoint.latest(directory) if os.path.isdir(directory) else None
if newest:
    state = checkpoint.load(newest, state)


def others():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
            command = open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            continue
        mine = f"DTORCH_RUN_ID={os.environ['DTORCH_RUN_ID']}".encode() in env
        if mine and any(v.startswith((b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")) and not v.endswith(b"=0") for v in env) and b"program.py" in command:
            yield int(pid)


for step in range(state["step"], 8):
    x = distribute_tensor(dtorch.randn(16, 8), mesh, [Shard(0), Shard(1)])
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(log, "a") as f:
        f.write(json.dumps([step, loss.item(), mesh.shape[0]]) + "\\n")
    if kind != "never" and attempt == 0 and step == 4:
        if kind == "raise":
            raise ValueError("a fault of the program")
        for pid in others():
            os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        time.sleep(0.2)
    if step % 2 == 1:
        checkpoint.save(f"{directory}/step-{step + 1}", {**state, "step": step + 1}, keep=2)
"""


def run(tmp_path, kind, *options, nodes=2, timeout=110):
    path, log = tmp_path / "program.py", tmp_path / f"{kind}.log"
    path.write_text(PROGRAM)
    env = {k: v for k, v in os.environ.items() if k != "DTORCH_NODES" and not k.startswith(("PMI", "OMPI_", "HYDRA"))}
    command = [
        sys.executable,
        "-m",
        "dtorch.run",
        "-n",
        str(nodes),
        "--checkpoint",
        str(tmp_path / kind),
        *options,
        str(path),
        str(log),
        kind,
    ]
    out = subprocess.run(command, env=env | {"DTORCH_NODE_TIMEOUT": "3"}, capture_output=True, text=True, timeout=timeout, check=False)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return out, rows


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out, rows = run(tmp_path_factory.mktemp("run"), "never")
    assert out.returncode == 0, out.stderr
    return {step: loss for step, loss, _ in rows}


@pytest.mark.parametrize("kind", ["kill", "stop", "raise"])
def test_a_broken_run_goes_on_from_its_checkpoint(tmp_path, unbroken, kind):
    out, rows = run(tmp_path, kind)
    assert out.returncode == 0, out.stdout + out.stderr
    steps = [step for step, _, _ in rows]
    assert steps[-1] == 7 and 4 in steps and steps.count(4) == 2
    assert "attempt 2 of at most 4 on 2 nodes from" in out.stderr
    assert {step: loss for step, loss, _ in rows} == unbroken  # to the bit


def test_it_goes_on_with_fewer_nodes_and_a_smaller_mesh(tmp_path, unbroken):
    path = tmp_path / "program.py"
    out, rows = run(tmp_path, "raise", "--min-nodes", "1", "--max-restarts", "2")
    assert out.returncode == 0, out.stderr
    assert {d for _, _, d in rows} == {4}  # the first attempt had left checkpoints: nothing shrinks
    shutil.rmtree(tmp_path / "raise")
    (tmp_path / "raise.log").unlink()
    early = PROGRAM.replace("step == 4", "step == 0")
    command = [sys.executable, "-m", "dtorch.run", "-n", "2", "--min-nodes", "1", "--checkpoint", str(tmp_path / "raise")]
    path.write_text(early)
    out = subprocess.run(
        [*command, str(path), str(tmp_path / "raise.log"), "raise"], capture_output=True, text=True, timeout=110, check=False
    )
    rows = [json.loads(line) for line in (tmp_path / "raise.log").read_text().splitlines()]
    assert out.returncode == 0 and "on 1 nodes from the beginning" in out.stderr, out.stderr
    assert [d for _, _, d in rows] == [4] + [2] * 8  # half the nodes: half the "dp"
    for step, loss, _ in rows:
        assert loss == pytest.approx(unbroken[step], rel=1e-4)


@pytest.mark.parametrize(("shape", "expected"), [((4, 2), (3, 2)), ((5, 2), (3, 2)), ((1, 4), (1, 4)), ((2, 1), (1, 1))])
def test_a_mesh_shrinks_to_no_less_than_one(shape, expected):
    text = f"import dtorch; print(dtorch.init_device_mesh('cpu', {shape}, mesh_dim_names=('dp', 'tp')).shape)"
    env = os.environ | {"DTORCH_RUN_NODES": "3/4"}
    out = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert out.stdout.strip() == str(expected), out.stderr


def test_restarts_end(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys; print('tried'); sys.exit(3)")
    out = subprocess.run(
        [sys.executable, "-m", "dtorch.run", "--max-restarts", "2", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert out.returncode == 3 and out.stdout.count("tried") == 3 and "no attempts are left" in out.stderr


def test_the_programs_own_options_are_its_own(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "dtorch.run", str(path), "-n", "7", "--help"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "['-n', '7', '--help']"


@pytest.mark.parametrize(
    ("options", "word"),
    [(["-n", "0"], "--nodes: 0"), (["-n", "2", "--min-nodes", "3"], "--min-nodes: 3"), (["--max-restarts", "-1"], "-1")],
)
def test_bad_numbers_are_named(options, word):
    out = subprocess.run([sys.executable, "-m", "dtorch.run", *options, "p.py"], capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 2 and word in out.stderr
