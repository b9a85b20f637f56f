"""Products of 16-bit floats (src/backend/cpu/isa/gemm_half.c) against float64: layouts, odd sizes, remainders of pairs and lanes, thin ones; on every
instruction set. The error allowed: one rounding of the result, and of f32 sums."""

import os
import subprocess
import sys

import dtorch
import numpy as np
import pytest

SIZES = [
    (1, 1, 7, 1),
    (1, 1, 130, 1000),
    (1, 2, 5, 65),
    (1, 16, 67, 2050),
    (1, 17, 70, 33),
    (1, 100, 200, 515),
    (3, 20, 30, 40),
    (2, 97, 193, 513),
    (4, 1, 64, 4101),
]


def operand(g, b, rows, columns, turned, dtype):
    """(b, rows, columns) with rows or columns contiguous, and its values in float64."""
    t = dtorch.tensor(g.standard_normal((b, columns, rows) if turned else (b, rows, columns)).astype("f")).to(dtype)
    t = t.transpose(1, 2) if turned else t
    return t, t.float().numpy().astype("d")


def check():
    g = np.random.default_rng(0)
    for dtype, unit in ((dtorch.bfloat16, 2.0**-8), (dtorch.float16, 2.0**-11)):
        for b, m, n, k in SIZES:
            for layout in range(8):
                (x, xd), (y, yd) = operand(g, b, m, k, layout & 1, dtype), operand(g, b, k, n, layout & 2, dtype)
                if layout & 4 and k > 4:  # an odd number of terms that begin at an odd address
                    x, xd, y, yd = x[:, :, 1:], xd[:, :, 1:], y[:, 1:], yd[:, 1:]
                want, size = xd @ yd, np.abs(xd) @ np.abs(yd)
                error = np.abs((x @ y).float().numpy() - want)
                assert (error <= 1.05 * (np.abs(want) * unit + size * 4e-7)).all(), (dtype, b, m, n, k, layout)
        x, w, bias = (dtorch.tensor(g.standard_normal(s).astype("f")).to(dtype) for s in ((13, 70), (90, 70), (90,)))
        want = x.float().numpy().astype("d") @ w.float().numpy().astype("d").T + bias.float().numpy()
        assert np.abs(dtorch.nn.functional.linear(x, w, bias).float().numpy() - want).max() <= unit * np.abs(want).max()


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_half_products(isa):
    env = os.environ | {"DTORCH_CPU_ISA": isa}
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]


def test_threads_change_no_bit():
    g = np.random.default_rng(1)
    x, w = (dtorch.tensor(g.standard_normal(s).astype("f")).to(dtorch.bfloat16) for s in ((300, 700), (500, 700)))
    before, results = dtorch.get_num_threads(), []
    try:
        for threads in (1, 2):
            dtorch.set_num_threads(threads)
            results.append([(x[:m] @ w.t()).float().numpy() for m in (1, 16, 300)])
    finally:
        dtorch.set_num_threads(before)
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
    check()
