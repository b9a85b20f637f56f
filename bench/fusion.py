"""Patterns written by hand, of primitive operators: one pass over memory when fused. Milliseconds, one thread, float32, medians of turns.

    python bench/fusion.py [--peer PYTHON] [--rounds 7]

Columns: dtorch; dtorch with DTORCH_OFF=fuse; PyTorch eager, from the Python that --peer names, if it has one; the time that the memory's bandwidth
allows for reading the operands and writing the results once. `step` is forward and backward.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import Case, memory_bandwidth, serve, torch  # noqa: E402

ROWS, COLUMNS = 4096, 1024
SIZE = 4 * ROWS * COLUMNS
ENGINES = {
    "dtorch": {"FRAMEWORK": "dtorch", "DTORCH_OFF": "dead,cse"},  # or a call equal to an earlier one would cost nothing
    "unfused": {"FRAMEWORK": "dtorch", "DTORCH_OFF": "dead,cse,fuse"},
    "torch": {"FRAMEWORK": "torch"},
}


def softmax(x, w, b):
    e = (x - x.amax(-1, True)).exp()
    return e / e.sum(-1, True)


def rms_norm(x, w, b):
    return x * (x * x).mean(-1, True).add(1e-5).rsqrt() * w


def layer_norm(x, w, b):
    c = x - x.mean(-1, True)
    return c * ((c * c).mean(-1, True) + 1e-5).rsqrt() * w + b


def log_softmax(x, w, b):
    c = x - x.amax(-1, True)
    return c - c.exp().sum(-1, True).log()


def swish_gate(x, w, b):
    return x * (x * w + b).sigmoid()


def chain(x, w, b):
    return torch.tanh((x * w + 1.0) * 0.5 - b) * x + b


PATTERNS = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "RMS norm": rms_norm,
    "layer norm": layer_norm,
    "gate": swish_gate,
    "seven ops": chain,
}


def cases():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, gradient = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    weight, bias = torch.randn(COLUMNS), torch.randn(COLUMNS)

    def forward(f):
        with torch.no_grad():
            return f(x, weight, bias)

    def step(f):
        inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
        f(*inputs).backward(gradient)
        return [t.grad for t in inputs]

    found = {}
    for name, f in PATTERNS.items():
        found[name] = Case(lambda f=f: forward(f), moved=2 * SIZE)
        found[f"{name}, step"] = Case(lambda f=f: step(f), moved=3 * SIZE)
    found["bias gradient of relu"] = Case(lambda: torch.where(x > 0, gradient, 0.0).sum(0), moved=2 * SIZE)
    return found


def start(python, env):
    child = subprocess.Popen(
        [python, __file__],
        env=os.environ | env | {"BENCH_CHILD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return child if ask(child, "?") else None


def ask(child, name):
    try:
        child.stdin.write(name + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        return None
    line = child.stdout.readline()
    return json.loads(line) if line else None


def table(rounds, peer):
    children = {name: start(peer if name == "torch" else sys.executable, env) for name, env in ENGINES.items()}
    children = {name: child for name, child in children.items() if child}
    names = ask(children["dtorch"], "?")
    bandwidth = memory_bandwidth()
    print(f"{'':24}" + "".join(f"{n:>10}" for n in children) + f"{'limit':>10}")
    for name, fields in names.items():
        taken = {engine: [ask(child, name)[0] for _ in range(1)] for engine, child in children.items()}
        for _ in range(rounds - 1):
            for engine, child in children.items():
                taken[engine].append(ask(child, name)[0])
        row = "".join(f"{statistics.median(t) * 1e3:10.2f}" for t in taken.values())
        print(f"{name:24}{row}{fields['moved'] / bandwidth * 1e3:10.2f}", flush=True)
    for child in children.values():
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    if os.environ.get("BENCH_CHILD"):
        serve(cases())
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=7)
        parser.add_argument("--peer", default=sys.executable, help="the Python that has PyTorch (default: this one)")
        given = parser.parse_args()
        table(given.rounds, given.peer)
