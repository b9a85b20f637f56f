"""All of tests/dist, and the whole table of mixes, over several processes: under each MPI, with 2 and with 4 ranks. `make test-nodes`.

    python tests/node/whole.py [--mpi mpich openmpi] [--nodes 2 4] [--only test_zero.py any_mix.py …]

A file of tests/dist runs as a program of its own: node 0 runs pytest, the others serve it. What holds of one process must hold, since the
tests compare with one device or with NumPy. What only one process has is skipped, with a reason. Prints a line a file and a table at the end; exit
status 1 when anything failed. It takes an hour."""

import argparse
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch import MPIEXEC, OPENMPI, PYTEST, ROOT, launch

DIST = os.path.join(ROOT, "tests", "dist")
LIMIT_S = 3600
LAUNCHERS = {"mpich": MPIEXEC, "openmpi": OPENMPI}


def files():
    return sorted(f for f in os.listdir(DIST) if f.startswith("test_") and f.endswith(".py")) + ["any_mix.py"]


def run(mpi, nodes, file):
    """(whether it went well, passed, skipped, seconds, the end of what it said)."""
    path = os.path.join(DIST, file)
    args = [path] if file == "any_mix.py" else [*PYTEST, "--color=no", path]
    begin = time.time()
    try:
        out = launch(nodes, *args, timeout=LIMIT_S, mpiexec=LAUNCHERS[mpi])
        says, code = out.stdout + out.stderr, out.returncode
    except subprocess.TimeoutExpired as e:
        says, code = (e.stdout or b"").decode(errors="replace") + f"\nno end after {LIMIT_S} s", None
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|skipped|failed|error)", says)}
    if file == "any_mix.py":
        runs = re.findall(r"^.* ZeRO \d: .*$", says, re.M)
        counts = {"passed": sum("FAILS" not in r for r in runs)}
    nothing = code == 5 and "no tests ran" in says
    good = (code == 0 and counts.get("passed", 0) + counts.get("skipped", 0) > 0) or nothing
    return good, counts.get("passed", 0), counts.get("skipped", 0), time.time() - begin, f"exit status {code}\n" + says[-6000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", nargs="+", choices=sorted(LAUNCHERS), default=[m for m in LAUNCHERS if LAUNCHERS[m]])
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--only", nargs="+", default=files(), metavar="FILE")
    args = parser.parse_args()
    rows, bad = [], 0
    for mpi in args.mpi:
        for nodes in args.nodes:
            total = [0, 0, 0.0]
            failed = []
            for file in args.only:
                good, passed, skipped, took, says = run(mpi, nodes, file)
                total = [total[0] + passed, total[1] + skipped, total[2] + took]
                print(f"{'ok ' if good else 'BAD'} {mpi} {nodes} {file}: {passed} passed, {skipped} skipped, {took:.0f} s", flush=True)
                if not good:
                    failed.append(file)
                    print(says, flush=True)
            bad += len(failed)
            rows.append(f"| {mpi} | {nodes} | {total[0]} | {total[1]} | {', '.join(failed) or 'none'} | {total[2]:.0f} |")
    print("\n| MPI | ranks | passed | skipped | failed | s |\n|---|---|---|---|---|---|\n" + "\n".join(rows))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
