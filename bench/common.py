"""What the benchmark programs share: the framework under test, timing, and how results are handed over.

FRAMEWORK names what runs: dtorch (the default), torch (eager), compile (torch.compile) or jax; `torch` is the module of the first three.

Two kinds of program. One prints a line of JSON a result: {"name", "value", "unit", "limit"}, the limit being what the machine allows. The other has a
function `cases()` that returns {name: Case} and ends in `main(__file__, cases)`: run.py then asks one process a framework for one case after the other,
in turns, so that a machine that is slow for a while is so for all of them. Run alone, such a program prints its own part of the table.
"""

import dataclasses
import importlib
import json
import os
import sys
import time

import numpy as np

framework = os.environ.get("FRAMEWORK", "dtorch")
is_dtorch, is_jax = framework == "dtorch", framework == "jax"
if is_jax and os.environ.get("OMP_NUM_THREADS") and hasattr(os, "sched_setaffinity"):  # nothing else keeps XLA from using every core
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["OMP_NUM_THREADS"])])
torch = None if is_jax else importlib.import_module("torch" if framework == "compile" else framework)


def show(name, value, unit, limit=None):
    print(json.dumps({"name": name, "value": value, "unit": unit, "limit": limit}), flush=True)


def wait(result=None):
    """Until everything called so far is done. PyTorch on a CPU has always just done it."""
    if is_dtorch:
        torch.synchronize()
    elif is_jax:
        import jax

        jax.block_until_ready(result)


def compiled(f):
    """f, compiled where that is what is measured."""
    return torch.compile(f) if framework == "compile" else f


def best_seconds(call, rounds=7, at_least=0.0):
    """The shortest of `rounds` calls, each until its result is there, after two that warm up."""
    best = float("inf")
    for i in range(rounds + 2):
        start = time.perf_counter()
        result = call()
        wait(result)
        if i >= 2:
            best = min(best, time.perf_counter() - start)
        del result
    return max(best, at_least)


def memory_bandwidth():
    """Bytes per second of one thread, from numpy's addition of two arrays into a third."""
    a, b = np.random.rand(1 << 23).astype("f"), np.random.rand(1 << 23).astype("f")
    out = np.empty_like(a)
    return 3 * a.nbytes / best_seconds(lambda: np.add(a, b, out=out))


def multiply_speed(threads=1):
    """Floating-point operations per second of numpy's matrix product, as many threads as OPENBLAS_NUM_THREADS allows it."""
    a = np.random.rand(1024, 1024).astype("f")
    return 2 * 1024**3 / best_seconds(lambda: a @ a)


@dataclasses.dataclass
class Case:
    """One thing to time. `call` does `per` of it and returns what to wait for.

    moved, operations: bytes and floating-point operations of one, for the limit; least: seconds that nothing in this language can do without.
    client: also time the calls alone, without waiting.
    """

    call: object
    unit: str = "ms"
    per: int = 1
    moved: float = 0
    operations: float = 0
    least: float = 0
    client: bool = False


def later(make, *args):
    """The call that make(*args) returns, made when it is called first: what a later case needs (devices, memory) is no earlier one's burden."""
    made = []

    def call():
        if not made:
            made.append(make(*args))
        return made[0]()

    return call


def repeated(case, times):
    """Seconds of `times` calls: [until all is there, of processor time, until the calls returned]."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(times):
        result = case.call()
    returned = time.perf_counter() - start
    wait(result)
    return [time.perf_counter() - start, time.process_time() - busy, returned]


def measure(case, warm, fill=0.03):
    """Seconds of one: [until it is there, of processor time, until the calls returned]; as many calls as `fill` seconds hold.

    The same calls run once before, untimed: other processes had their turns since the last time and have left this one's code and data out of the
    caches, and calls that follow each other at once may need memory that single ones did not, which costs more to touch first than to use.
    """
    if not warm:
        for _ in range(2):
            wait(case.call())
    start = time.perf_counter()
    wait(case.call())
    times = max(1, min(1000, int(fill / (time.perf_counter() - start + 1e-9))))
    if times > 1:
        repeated(case, times)
    return [t / times / case.per for t in repeated(case, times)]


def serve(cases):
    """Time the case that each line of standard input names. `?` asks for the list."""
    warm = set()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name == "?":
            fields = ("unit", "per", "moved", "operations", "least", "client")
            answer = {n: {f: getattr(c, f) for f in fields} for n, c in cases.items()}
        else:
            answer = measure(cases[name], name in warm)
            warm.add(name)
        out.write(json.dumps(answer) + "\n")
        out.flush()


def main(file, cases):
    """The end of a program with cases."""
    if os.environ.get("BENCH_CHILD"):
        serve(cases())
        return
    import run

    run.alone(file)
