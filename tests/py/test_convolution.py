"""Convolution: large enough for several blocks of Winograd's transform, against float64; the same bits with one thread and with two."""

import dtorch
import dtorch.nn.functional as F
import numpy as np
import pytest

# images, input channels, output channels, height, width, padding
SHAPES = [
    (6, 64, 64, 32, 32, 1),  # several blocks of tile rows
    (3, 64, 40, 61, 45, (1, 0)),  # odd sizes
    (64, 128, 96, 4, 4, 1),
    (1, 32, 32, 9, 900, 1),  # rows longer than what a task takes
    (2, 24, 150, 30, 16, 2),
]


def gradients(shape, dtype):
    n, c, o, h, w, padding = shape
    g = np.random.default_rng(0)
    x = dtorch.tensor(g.standard_normal((n, c, h, w)), dtype=dtype, requires_grad=True)
    k = dtorch.tensor(g.standard_normal((o, c, 3, 3)) / np.sqrt(9 * c), dtype=dtype, requires_grad=True)
    b = dtorch.tensor(g.standard_normal(o), dtype=dtype, requires_grad=True)
    y = F.conv2d(x, k, b, padding=padding)
    gy = dtorch.tensor(g.standard_normal(tuple(y.shape)), dtype=dtype)
    (y * gy).sum().backward()
    return [t.detach().numpy() for t in (y, x.grad, k.grad, b.grad)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(shape):
    for got, want in zip(gradients(shape, dtorch.float32), gradients(shape, dtorch.float64)):
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [(0, 0), (7, 7), (6, 9), (8, 16)])
def test_what_is_not_finite_stays_where_the_plain_sum_has_it(at, value):
    def run(dtype):
        g = np.random.default_rng(0)
        x, w, gy = g.standard_normal((1, 32, 17, 17)), g.standard_normal((24, 32, 3, 3)), g.standard_normal((1, 24, 17, 17))
        x[0, 3][at] = gy[0, 5][at] = value
        tx, tw = (dtorch.tensor(a, dtype=dtype, requires_grad=True) for a in (x, w))
        y = F.conv2d(tx, tw, padding=1)
        return [np.isfinite(t.numpy()) for t in (y.detach(), *dtorch.autograd.grad(y, [tx, tw], dtorch.tensor(gy, dtype=dtype)))]

    got, want = run(dtorch.float32), run(dtorch.float64)
    for a, b in zip(got[:2], want[:2]):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got[2].all((2, 3)), want[2].all((2, 3)))  # of the weight: any tap of the same channels


def test_one_by_one_is_a_matrix_product():
    g = np.random.default_rng(0)
    x, w, gy = (dtorch.tensor(g.standard_normal(s), dtype=dtorch.float32) for s in ((3, 20, 7, 9), (30, 20, 1, 1), (3, 30, 7, 9)))
    x.requires_grad_(True), w.requires_grad_(True)
    y = F.conv2d(x, w)
    (y * gy).sum().backward()
    xn, wn, gn = (t.detach().numpy().astype("d") for t in (x, w[:, :, 0, 0], gy))
    np.testing.assert_allclose(y.detach().numpy(), np.einsum("oc,nchw->nohw", wn, xn), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), np.einsum("oc,nohw->nchw", wn, gn), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w.grad.numpy()[:, :, 0, 0], np.einsum("nohw,nchw->oc", gn, xn), rtol=1e-5, atol=1e-4)


def test_threads_change_no_bit():
    before = dtorch.get_num_threads()
    try:
        dtorch.set_num_threads(1)
        one = gradients(SHAPES[0], dtorch.float32)
        dtorch.set_num_threads(2)
        two = gradients(SHAPES[0], dtorch.float32)
    finally:
        dtorch.set_num_threads(before)
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a, b)
