"""One table of measured times: dtorch beside PyTorch and JAX (where installed) and what the machine allows.

    python bench/run.py [--only calls,kernels,train,start] [--json FILE]

Every program runs in a process of its own, one framework after the other on the same machine. `ratio` is dtorch's time over the best
other framework's: below one, dtorch is faster. PyTorch's functions are its eager ones.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SMALL, MEDIUM = "2 64 4 64 4 512", "4 256 8 128 8 4096"
# (group, program, arguments, frameworks)
PROGRAMS = [
    ("start", "start.py", [], ("dtorch", "torch", "jax")),
    ("calls", "calls.py", [], ("dtorch", "torch")),
    ("kernels", "kernels.py", [], ("dtorch", "torch")),
    ("train", "train.py", [*SMALL.split(), "1"], ("dtorch", "torch", "jax")),
    ("train", "train.py", [*MEDIUM.split(), "2"], ("dtorch", "torch", "jax")),
    ("train", "train.py", [*MEDIUM.split(), "2", "dp"], ("dtorch",)),
    ("train", "train.py", [*MEDIUM.split(), "2", "tp"], ("dtorch",)),
]


def results(program, args, framework):
    """The lines one program prints under one framework, as {name: line}; a program that fails prints why and gives none."""
    if framework == "jax" and program == "train.py":
        program = "train_jax.py"
    run = subprocess.run(
        [sys.executable, HERE / program, *args], capture_output=True, text=True, env=os.environ | {"FRAMEWORK": framework}, timeout=900
    )
    if run.returncode:
        print(f"{program} {' '.join(args)} failed with {framework}:\n{run.stderr[-2000:]}", file=sys.stderr)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


def number(value):
    """Three significant digits, never with an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def row(name, by_framework):
    """One line of the table."""
    cells = {f: r[name]["value"] for f, r in by_framework.items() if name in r}
    first = next(r[name] for r in by_framework.values() if name in r)
    others = [v for f, v in cells.items() if f != "dtorch"]
    ratio = f"{cells['dtorch'] / min(others):.2f}" if others and "dtorch" in cells else ""
    limit = number(first["limit"]) if first["limit"] else ""
    values = "".join(f"{number(cells[f]) if f in cells else '':>10}" for f in ("dtorch", "torch", "jax"))
    return f"{name:<52}{first['unit']:>4}{values}{limit:>10}{ratio:>8}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="start,calls,kernels,train")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    have = [f for f in ("dtorch", "torch", "jax") if importlib.util.find_spec(f)]
    print(f"{'':<52}{'':>4}{'dtorch':>10}{'PyTorch':>10}{'JAX':>10}{'limit':>10}{'ratio':>8}")
    everything = []
    for group, program, extra, frameworks in PROGRAMS:
        if group not in args.only.split(","):
            continue
        by_framework = {f: results(program, extra, f) for f in frameworks if f in have}
        names = dict.fromkeys(n for r in by_framework.values() for n in r)
        for name in names:
            if name.endswith(", done") and "dtorch" not in have:
                continue
            print(row(name, by_framework), flush=True)
        everything += [{"framework": f, **line} for f, r in by_framework.items() for line in r.values()]
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
