"""Products of a few rows by transposed weights (src/backend/cpu/isa/thin.h): all remainders of lanes and columns, on every instruction set."""

import os
import subprocess
import sys

import dtorch
import numpy as np
import pytest

SIZES = [(m, n, k) for m in (1, 2, 3, 8, 9) for n in (1, 7, 8, 10, 65) for k in (1, 5, 8, 63, 128, 1031, 2100)]


def check():
    rng = np.random.default_rng(0)
    for m, n, k in SIZES:
        x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (n,)))
        tx, tw, tb = map(dtorch.tensor, (x, w, b))
        want = x.astype(np.float64) @ w.T.astype(np.float64)
        limit = 5e-7 * (np.abs(x).astype(np.float64) @ np.abs(w.T).astype(np.float64) + np.abs(b))
        for got, ref in ((dtorch.nn.functional.linear(tx, tw, tb), want + b), (tx @ tw.T, want), (dtorch.addmm(tb, tx, tw.T), want + b)):
            assert (np.abs(got.numpy() - ref) <= limit).all(), (m, n, k)
        one = dtorch.stack([dtorch.nn.functional.linear(row, tw, tb) for row in tx.unbind(0)])
        assert (np.abs(one.numpy() - want - b) <= limit).all(), (m, n, k)


def test_values():
    check()


@pytest.mark.parametrize("isa", ["avx2", "base"])
def test_values_on_other_instruction_sets(isa):
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_few_rows as t; t.SIZES = t.SIZES[::3]; t.check_close()"
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "DTORCH_CPU_ISA": isa}, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def check_close():
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
        want = x.astype(np.float64) @ w.T.astype(np.float64)
        limit = 5e-7 * (np.abs(x).astype(np.float64) @ np.abs(w.T).astype(np.float64) + 1e-3)
        assert (np.abs(dtorch.nn.functional.linear(dtorch.tensor(x), dtorch.tensor(w)).numpy() - want) <= limit).all(), (m, n, k)
