"""Two frameworks in turns: a program's cases, run by one process a framework, each case a few times by the one and then by the other.

The table of run.py has parts of these as well. A program says `turns.main(cases, rounds)`, where `cases()` gives {name: (call, operations)}; in a child
process `common.torch` is the framework under test. A machine that is slow for a while is so for both. A line of the table: medians of elapsed
milliseconds and of processor time, operations per second, and the ratios of dtorch's times to PyTorch's. `--threads N`, `--only TEXT`, `--rounds N`,
`--json FILE`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

FRAMEWORKS = ("dtorch", "torch")


def child(framework, argv, threads):
    env = os.environ | {"FRAMEWORK": framework, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "BENCH_CHILD": "1"}
    env["DTORCH_OFF"] = "dead,cse"  # or a call whose result nobody reads, and one equal to an earlier one, would cost nothing
    return subprocess.Popen([sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def ask(process, name):
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main(cases, rounds=5):
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json")
    args = parser.parse_args()
    if os.environ.get("BENCH_CHILD"):
        from common import Case, serve, torch

        torch.set_num_threads(args.threads)
        serve({name: Case(call, operations=operations) for name, (call, operations) in cases().items()})
        return
    os.environ.setdefault("FRAMEWORK", "dtorch")
    table = cases()
    children = {f: child(f, sys.argv, args.threads) for f in FRAMEWORKS}
    print(f"{args.threads} thread(s)".ljust(46) + "".join(f"{c:>10}" for c in ("dtorch ms", "torch ms", "ratio", "cpu ratio", "GFLOP/s")))
    rows = []
    for name, (_, operations) in table.items():
        if args.only not in name:
            continue
        taken = {f: [] for f in FRAMEWORKS}
        for _ in range(args.rounds):
            for f in FRAMEWORKS:
                taken[f].append(ask(children[f], name))
        (wall, busy), (wall2, busy2) = ([statistics.median(t[i] for t in taken[f]) for i in (0, 1)] for f in FRAMEWORKS)
        speed = operations / wall / 1e9
        cpu = busy / busy2 if busy2 else float("nan")
        print(f"{name:<46}{wall * 1e3:>10.3f}{wall2 * 1e3:>10.3f}{wall / wall2:>10.2f}{cpu:>10.2f}{speed:>10.1f}", flush=True)
        rows.append({"name": name, "dtorch": wall, "torch": wall2, "dtorch_cpu": busy, "torch_cpu": busy2})
    for process in children.values():
        process.stdin.close()
        process.wait()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
