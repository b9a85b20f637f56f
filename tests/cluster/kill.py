"""Kills and stops processes of a run at random moments; whatever happens must end soon, with a word about it, and leave nothing behind.

    python tests/cluster/kill.py [--kills 20] [--nodes 3] [--mpiexec PATH] [--seed 0] [--resume [--min-nodes 2]]

Each round starts a small training run over several nodes, lets it work for a moment, sends SIGKILL or SIGSTOP to rank 0 or to a node, and checks that
the launcher ends within 30 s, that stderr or stdout says why, and that no process of the round is left. A process that was stopped and that the launcher
cannot end either is woken first, as whoever stopped it would.

With --resume the run is dtorch-run's: it saves every few steps, cuts its weights anew in between, and is started again after the kill, which may fall
into any of these. It must go on within 30 s (be at work in the next attempt) and end well; its losses must be those of a run that nobody disturbed, to the bit
(with --min-nodes and a mesh that is smaller for a lost node, to rounding); its last checkpoint must load, and no process may be left. Exit status
0 when all rounds were right."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import dtorch.run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = """
import sys, dtorch
from dtorch import Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(10**9):
    x = distribute_tensor(dtorch.randn(16, 16), mesh["dp"], [Shard(0)])
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        loss.item()
    if step == 3:
        print("running", flush=True)
"""


RESUMED = """
import json, os, sys, time, dtorch
from dtorch import Replicate, Shard, checkpoint, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
log, folder = sys.argv[1], os.environ["DTORCH_CHECKPOINT"]
dtorch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer, "rng": checkpoint.RNG(), "step": 0}
newest = checkpoint.latest(folder) if os.path.isdir(folder) else None
if newest:
    state = checkpoint.load(newest, state)
begun = state["step"]
for step in range(begun, 40):
    x = distribute_tensor(dtorch.randn(16, 16), mesh["dp"], [Shard(0)])
    moved = [p.redistribute(mesh, [Shard(0), Shard(0)]).redistribute(mesh, [Replicate(), Shard(p.ndim - 1)]) for p in model.parameters()]
    loss = model(x).pow(2).mean() + 1e-3 * sum(m.pow(2).sum() for m in moved)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(log, "a") as f:
        f.write(json.dumps([int(os.environ["DTORCH_RUN_ATTEMPT"]), step, loss.item(), mesh.shape[0]]) + "\\n")
    if step % 4 == 3:
        state["step"] = step + 1
        checkpoint.save(f"{folder}/step-{step + 1}", state, keep=2, asynchronous=step % 8 == 3)
checkpoint.wait()
"""


VARIABLE = "DT_KILL_TEST"


def members(mark):
    """{pid: (rank or None, state)} of this round's processes; only those that run the program have a rank, not the launcher's helpers."""
    all_ = dtorch.run.members(mark, VARIABLE)
    return {pid: (rank if any("victim.py" in c for c in command[1:4]) else None, state) for pid, (rank, state, command) in all_.items()}


def clean_up(run, mark, code):
    """End what is left of a round; the pids that were."""
    time.sleep(0.5)
    left = members(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if code is None:
        run.kill()
        run.wait()
    return left


def finish(run, limit):
    try:
        return run.wait(limit)
    except subprocess.TimeoutExpired:
        return None


def environment(args, mark):
    env = {k: v for k, v in os.environ.items() if k != "DTORCH_NODES"}  # importing the package has set it for children
    env |= {VARIABLE: mark, "DTORCH_NODE_TIMEOUT": str(args.timeout), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    env |= {"PYTHONPATH": os.path.dirname(os.path.dirname(dtorch.run.__file__)), "PATH": os.path.dirname(args.mpiexec) + os.pathsep + os.environ["PATH"]}
    return env


def round_of(number, args, rng, folder):
    mark = f"{os.getpid()}.{number}"
    env = environment(args, mark)
    log = open(os.path.join(folder, "log"), "w+")  # noqa: SIM115
    run = subprocess.Popen(
        [args.mpiexec, "-n", str(args.nodes), sys.executable, os.path.join(folder, "victim.py")], env=env, stdout=log, stderr=log
    )
    start = time.time()
    while time.time() - start < 60 and "running" not in open(log.name).read():  # noqa: SIM115
        time.sleep(0.05)
    time.sleep(rng.random() * 1.5)
    ranks = {rank: pid for pid, (rank, _) in members(mark).items() if rank is not None}
    victim, sig = rng.choice(sorted(ranks)) if ranks else None, rng.choice([signal.SIGKILL, signal.SIGSTOP])
    if victim is None:
        run.kill()
        return False, f"{number}: did not start: {open(log.name).read()[-600:]}"  # noqa: SIM115
    os.kill(ranks[victim], sig)
    begin = time.time()
    code = finish(run, 30)
    woken = ""
    if code is None and sig == signal.SIGSTOP and any(state == "T" for _, state in members(mark).values()):
        others = [rank for rank, state in members(mark).values() if rank is not None and state != "T"]
        woken = f" (launcher waits for the stopped process; ranks still running: {others})"
        os.kill(ranks[victim], signal.SIGCONT)
        code = finish(run, 10)
    took = time.time() - begin
    left = clean_up(run, mark, code)
    text = open(log.name).read()  # noqa: SIM115
    words = [w for w in ("NodeLostError", "is lost", "TERMINATION", "prterun", "Killed", "signal 9") if w in text]
    good = code not in (None, 0) and not left and bool(words) and not woken
    says = f"{number:3d}: {signal.Signals(sig).name} to rank {victim}: {took:.1f} s, exit {code}, left {len(left)}, says {words}{woken}"
    return good, says if good else says + "\n" + text[-800:]


def rows_of(log):
    """What a resumed program wrote, without a line that a kill cut short."""
    rows = []
    try:
        with open(log) as f:
            for line in f:
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    continue
    except OSError:
        pass
    return rows


def start_resumed(args, env, folder, log, keep):
    program = os.path.join(folder, "victim.py")
    options = ["--min-nodes", str(args.min_nodes)] if args.min_nodes else []
    return subprocess.Popen(
        [sys.executable, "-m", "dtorch.run", "-n", str(args.nodes), *options, "--launcher", args.mpiexec, "--checkpoint", keep, program, log],
        env=env,
        stdout=open(log + ".out", "w"),  # noqa: SIM115
        stderr=subprocess.STDOUT,
    )


def agrees(loss, expected, same_mesh):
    """To the bit; on a smaller mesh to the rounding of other sums."""
    return loss == expected if same_mesh else abs(loss - expected) <= 1e-4 * abs(expected)


def resumed_round(number, args, rng, folder, right):
    mark = f"{os.getpid()}.{number}"
    log, keep = os.path.join(folder, f"log-{number}"), os.path.join(folder, f"keep-{number}")
    env = environment(args, mark)
    run = start_resumed(args, env, folder, log, keep)
    first = rng.randrange(1, 36)  # at work on a step of any kind
    begin = time.time()
    while time.time() - begin < 60 and len(rows_of(log)) < first and run.poll() is None:
        time.sleep(0.01)
    time.sleep(rng.random() * 0.05)
    ranks = {rank: pid for pid, (rank, _) in members(mark).items() if rank is not None}
    victim, sig = (rng.choice(sorted(ranks)) if ranks else None), rng.choice([signal.SIGKILL, signal.SIGSTOP])
    if victim is not None:
        os.kill(ranks[victim], sig)
    begin = again = time.time()
    while run.poll() is None and time.time() - begin < 30 and not any(attempt for attempt, *_ in rows_of(log)):
        time.sleep(0.05)
    again = time.time() - begin
    code = finish(run, 60)
    left = clean_up(run, mark, code)
    rows = rows_of(log)
    whole = max((dp for *_, dp in rows), default=0)
    same = {step for _, step, _, _ in rows} == set(right) and all(agrees(loss, right[step], dp == whole) for _, step, loss, dp in rows)
    stayed = "in the same processes" in open(log + ".out").read()  # noqa: SIM115
    check = "import sys; from dtorch import checkpoint; print(checkpoint.load(checkpoint.latest(sys.argv[1]))['step'])"
    loads = subprocess.run(
        [sys.executable, "-c", check, keep], env=env | {"DTORCH_NODES": "1"}, capture_output=True, text=True, check=False
    )
    good = victim is not None and code == 0 and not left and same and again < 30 and loads.stdout.strip() == "40"
    what = f"{signal.Signals(sig).name} to rank {victim} after {first} steps" if victim is not None else "too late to kill"
    again_where = " in the same processes" * stayed
    says = f"{number:3d}: {what}: going on{again_where} after {again:.1f} s, exit {code}, left {len(left)}, losses {'equal' if same else 'DIFFER'}"
    return good, says if good else says + "\n" + open(log + ".out").read()[-1500:] + loads.stdout + loads.stderr[-300:]  # noqa: SIM115


def undisturbed(args, folder):
    """{step: loss} of a run that nobody kills."""
    log = os.path.join(folder, "undisturbed")
    run = start_resumed(args, environment(args, "none"), folder, log, os.path.join(folder, "keep"))
    if run.wait() != 0:
        raise SystemExit("the undisturbed run failed: " + open(log + ".out").read()[-2000:])  # noqa: SIM115
    return {step: loss for _, step, loss, _ in rows_of(log)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--mpiexec", default=os.path.join(os.path.dirname(sys.executable), "mpiexec"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=4, help="DTORCH_NODE_TIMEOUT, s")
    parser.add_argument("--resume", action="store_true", help="runs of dtorch-run, which go on from their checkpoints")
    parser.add_argument("--min-nodes", type=int, help="of dtorch-run: with Open MPI 5 the other processes stay when a node is lost")
    args = parser.parse_args()
    rng, bad = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "victim.py"), "w") as f:
            f.write(RESUMED if args.resume else PROGRAM)
        right = undisturbed(args, folder) if args.resume else None
        for number in range(args.kills):
            good, says = resumed_round(number, args, rng, folder, right) if args.resume else round_of(number, args, rng, folder)
            bad += not good
            print("ok " if good else "BAD", says, flush=True)
    print(f"{args.kills - bad} of {args.kills} right")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
