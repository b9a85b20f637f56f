"""`dtorch-run`: starts a program over several nodes, and again from its last checkpoint when the run breaks.

    dtorch-run -n 4 --max-restarts 3 --checkpoint run train.py --lr 1e-3

It calls the MPI launcher (`mpiexec` beside this Python, or on the PATH; `--launcher "srun --mpi=pmi2"` names another one) and waits. A run that ends with
another status than 0 is started again: the program finds its way by `dtorch.checkpoint.latest(...)`, as it would by hand. When an attempt ended without
a new checkpoint in `--checkpoint DIR`, the next one takes a node less, down to `--min-nodes`; a mesh dimension named "dp" then shrinks in proportion.

With Open MPI 5 a run that may go on with fewer nodes (--min-nodes) is started in its fault-tolerant mode: when a node is lost, the others stay, and the program
is begun again in the process that ran it (dtorch._again). Only when too few are left, or rank 0 is lost, does everything start anew.

What the program sees: `DTORCH_CHECKPOINT` (the directory), `DTORCH_RUN_ATTEMPT` (0, 1, …) and, with fewer nodes than asked for, `DTORCH_RUN_NODES=3/4`.

Processes of this host that a broken run leaves behind are ended before the next attempt; those of other hosts are the launcher's to end.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid

MARK = "DTORCH_RUN_ID"
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
STUCK_S = 8  # the launcher lives, but no process of the run works


def _parser():
    parser = argparse.ArgumentParser(
        prog="dtorch-run", description=__doc__.splitlines()[0].split(": ", 1)[1], epilog="Everything behind PROGRAM is the program's."
    )
    parser.add_argument(
        "-n", "--nodes", type=int, default=1, metavar="N", help="processes: one of them runs the program, the others serve it"
    )
    parser.add_argument("--min-nodes", type=int, metavar="M", help="go on with as few as this many after attempts that made no progress; N")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="R", help="attempts after the first one")
    parser.add_argument("--checkpoint", metavar="DIR", help="where the program writes its checkpoints")
    parser.add_argument("--launcher", help='the command that starts processes, as "mpiexec" or "srun --mpi=pmi2"; "-n N" is added')
    parser.add_argument("--c-nodes", action="store_true", help="the serving processes are dtorch-node: no Python is started for them")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="...")
    return parser


def _arguments(argv):
    parser = _parser()
    args = parser.parse_args(argv)
    args.min_nodes = args.nodes if args.min_nodes is None else args.min_nodes
    if args.nodes < 1:
        parser.error(f"--nodes: {args.nodes} is not a positive number")
    if not 1 <= args.min_nodes <= args.nodes:
        parser.error(f"--min-nodes: {args.min_nodes} does not lie in 1 … {args.nodes} (--nodes)")
    if args.max_restarts < 0:
        parser.error(f"--max-restarts: {args.max_restarts} is negative")
    if args.launcher is None:
        found = shutil.which("mpiexec", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""))
        if not found and args.nodes > 1:
            parser.error("no mpiexec beside this Python or on the PATH: `pip install mpich`, or --launcher")
        args.launcher = shlex.quote(found) if found else ""
    return args


def _is_tolerant(launcher):
    """Is it Open MPI's, of a version that can keep the processes of a run in which one is lost?"""
    try:
        says = subprocess.run([launcher[0], "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r"Open MPI\)? v?(\d+)", says)
    return version is not None and int(version[1]) >= 5


def _command(args, nodes):
    launcher = shlex.split(args.launcher)
    program = [sys.executable, args.program, *args.args]
    if nodes == 1:
        return program
    if nodes > args.min_nodes and _is_tolerant(launcher):
        launcher += [] if "--with-ft" in launcher else ["--with-ft", "ulfm"]
        program[1:1] = ["-m", "dtorch._again"]
    if not args.c_nodes:
        return [*launcher, "-n", str(nodes), *program]
    node = shutil.which("dtorch-node", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""))
    if not node:
        raise FileNotFoundError("dtorch-run: --c-nodes: no dtorch-node beside this Python or on the PATH")
    return [*launcher, "-n", "1", *program, ":", "-n", str(nodes - 1), node]


def _progress(directory):
    """Something that changes with every complete checkpoint."""
    if not directory:
        return None
    from dtorch import checkpoint

    newest = checkpoint.latest(directory) if os.path.isdir(directory) else None
    return newest and (newest, os.stat(os.path.join(newest, "index.json")).st_mtime_ns)


def members(mark, variable=MARK):
    """{pid: (rank or None, state, command line)} of this host's processes that have `variable` = `mark` in their environment; `state` as in proc(5)."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                env = dict(v.split("=", 1) for v in f.read().decode(errors="replace").split("\0") if "=" in v)
            if env.get(variable) != mark:
                continue
            with open(f"/proc/{pid}/stat") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                command = f.read().decode(errors="replace").split("\0")
        except (OSError, ValueError):
            continue
        if state != "Z" and int(pid) != os.getpid():
            rank = next((env[r] for r in RANKS if r in env), None)
            found[int(pid)] = (None if rank is None else int(rank), state, command)
    return found


def _sweep(mark):
    """End what is left of a run on this host."""
    left = members(mark)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _die_with_parent():
    """The launcher is ended when dtorch-run is, however that comes about: prctl(PR_SET_PDEATHSIG, SIGTERM)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


def _wait(run, mark):
    """The launcher's exit status. One that waits for processes which are all stopped is ended."""
    working_at = time.monotonic()
    while True:
        try:
            return run.wait(1)
        except subprocess.TimeoutExpired:
            states = [state for rank, state, _ in members(mark).values() if rank is not None]
            if not states or any(s not in "Tt" for s in states):
                working_at = time.monotonic()
            elif time.monotonic() - working_at > STUCK_S:
                _sweep(mark)


def _attempt(args, nodes, number):
    mark = uuid.uuid4().hex
    env = os.environ | {MARK: mark, "DTORCH_RUN_ATTEMPT": str(number)}
    env.pop("DTORCH_NODES", None)  # importing the package has set it for this process's children
    if args.checkpoint:
        env["DTORCH_CHECKPOINT"] = args.checkpoint
    env["DTORCH_RUN_KEEP"] = f"{args.min_nodes}/{args.nodes}"
    if nodes < args.nodes:
        env["DTORCH_RUN_NODES"] = f"{nodes}/{args.nodes}"
    run = subprocess.Popen(_command(args, nodes), env=env, preexec_fn=_die_with_parent)  # noqa: PLW1509
    try:
        return _wait(run, mark)
    except BaseException:
        run.terminate()
        try:
            run.wait(10)
        except subprocess.TimeoutExpired:
            run.kill()
        raise
    finally:
        _sweep(mark)


def _say(text):
    print(f"dtorch-run: {text}", file=sys.stderr, flush=True)


def _why(status):
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def main(argv=None):
    """The command; returns its exit status: the last attempt's."""
    try:
        return _run(_arguments(argv))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as e:
        _say(str(e))
        return 1


def _run(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    nodes = args.nodes
    for number in range(args.max_restarts + 1):
        before = _progress(args.checkpoint)
        status = _attempt(args, nodes, number)
        if status == 0:
            return 0
        after = _progress(args.checkpoint)
        if number == args.max_restarts:
            break
        if after == before and nodes > args.min_nodes:
            nodes -= 1
        start = f"from {after[0]}" if after else "from the beginning"
        _say(f"attempt {number + 1} {_why(status)}; attempt {number + 2} of at most {args.max_restarts + 1} on {nodes} nodes {start}")
    _say(f"the run {_why(status)}; no attempts are left (--max-restarts {args.max_restarts})")
    return status if status > 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
