"""What the benchmark programs share: the framework under test, timing, and how results are printed.

FRAMEWORK=dtorch (the default) or torch names the module that `torch` is in a program. Each result is one line of JSON:
{"name": ..., "value": ..., "unit": ..., "limit": ... or null}. `limit` is what the machine allows: bytes moved over the memory
bandwidth, or operations over the speed of matrix multiplication, both measured in the same process.
"""

import importlib
import json
import os
import time

import numpy as np

framework = os.environ.get("FRAMEWORK", "dtorch")
torch = importlib.import_module(framework)
is_dtorch = framework == "dtorch"


def show(name, value, unit, limit=None):
    print(json.dumps({"name": name, "value": value, "unit": unit, "limit": limit}), flush=True)


def wait():
    """Until everything called so far is done. PyTorch on a CPU has always just done it."""
    if is_dtorch:
        torch.synchronize()


def best_seconds(call, rounds=7, at_least=0.0):
    """The shortest of `rounds` calls, each until its result is there, after two that warm up."""
    best = float("inf")
    for i in range(rounds + 2):
        start = time.perf_counter()
        result = call()
        wait()
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
