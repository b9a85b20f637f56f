"""Connectionist temporal classification against the sum over all alignments, its gradient against finite differences, and on a mesh."""

import itertools
import random

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest


def collapse(path, blank):
    return [c for i, c in enumerate(path) if c != blank and (i == 0 or path[i - 1] != c)]


def by_enumeration(p, target, frames, blank):
    """-log of the probability of all paths of `frames` classes that mean `target`; p (T, C)."""
    paths = itertools.product(range(p.shape[1]), repeat=frames)
    total = sum(np.prod([p[t, c] for t, c in enumerate(path)]) for path in paths if collapse(path, blank) == list(target))
    return -np.log(total) if total > 0 else np.inf


def example(seed):
    choose = random.Random(seed)
    T, N, C, S = choose.randint(1, 5), choose.randint(1, 3), choose.randint(2, 4), choose.randint(1, 3)
    blank = choose.randrange(C)
    x = np.random.RandomState(seed).randn(T, N, C)
    frames, labels = [choose.randint(1, T) for _ in range(N)], [choose.randint(0, S) for _ in range(N)]
    classes = [c for c in range(C) if c != blank]
    return x, [[choose.choice(classes) for _ in range(S)] for _ in range(N)], frames, labels, blank


@pytest.mark.parametrize("seed", range(12))
def test_values(seed):
    x, targets, frames, labels, blank = example(seed)
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    want = np.array([by_enumeration(p[:, n], targets[n][: labels[n]], frames[n], blank) for n in range(x.shape[1])])
    lp = dt.tensor(x).log_softmax(2)
    got = F.ctc_loss(lp, dt.tensor(targets), tuple(frames), dt.tensor(labels), blank, "none")
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-12)
    flat = [c for t, n in zip(targets, labels, strict=True) for c in t[:n]]
    got = F.ctc_loss(lp, dt.tensor(flat, dtype=dt.int64), dt.tensor(frames), labels, blank, "none", zero_infinity=True)
    np.testing.assert_allclose(got.numpy(), np.where(np.isinf(want), 0, want), rtol=1e-9, atol=1e-12)
    finite = np.where(np.isinf(want), 0, want)
    got = dt.nn.CTCLoss(blank, zero_infinity=True)(lp, dt.tensor(targets), frames, labels)
    assert float(got) == pytest.approx(float(np.mean(finite / np.maximum(labels, 1))), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_gradient_through_log_softmax(seed):
    x, targets, frames, labels, blank = example(seed)

    def loss(v):
        return F.ctc_loss(v.log_softmax(2), dt.tensor(targets), frames, labels, blank, "sum", zero_infinity=True)

    leaf = dt.tensor(x).requires_grad_(True)
    loss(leaf).backward()
    want = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += 1e-5
        down[at] -= 1e-5
        want[at] = (float(loss(dt.tensor(up))) - float(loss(dt.tensor(down)))) / 2e-5
    np.testing.assert_allclose(leaf.grad.numpy(), want, atol=1e-7)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_on_a_mesh(dim):
    x = np.random.RandomState(0).randn(6, 5, 4)
    targets, frames, labels = [[1, 2], [3, 3], [1, 1], [2, 1], [3, 0]], [6, 4, 5, 3, 6], [2, 2, 1, 0, 1]
    out = []
    for cut in (False, True):
        leaf = dt.tensor(x)
        leaf = (dt.distribute_tensor(leaf, dt.init_device_mesh("cpu", (3,)), [dt.Shard(dim)]) if cut else leaf).requires_grad_(True)
        loss = F.ctc_loss(leaf.log_softmax(2), dt.tensor(targets), frames, labels)
        loss.backward()
        out.append((float(loss), leaf.grad.full_tensor().numpy()))
    assert out[0][0] == pytest.approx(out[1][0], rel=1e-12)
    np.testing.assert_allclose(out[1][1], out[0][1], rtol=1e-9, atol=1e-12)


def test_without_a_batch_and_faults():
    lp = dt.randn(5, 3).log_softmax(1)
    one = F.ctc_loss(lp, dt.tensor([1, 2]), 5, 2, reduction="none")
    many = F.ctc_loss(lp.unsqueeze(1), dt.tensor([[1, 2]]), (5,), (2,), reduction="none")
    assert one.ndim == 0 and float(one) == pytest.approx(float(many))
    with pytest.raises(RuntimeError, match="blank must be in label range"):
        F.ctc_loss(lp, dt.tensor([1]), 5, 1, blank=3)
    with pytest.raises(RuntimeError, match="input_lengths to have values from 0 to 5, got 6"):
        F.ctc_loss(lp, dt.tensor([1]), 6, 1)
    with pytest.raises(RuntimeError, match="add up to 1"):
        F.ctc_loss(lp.unsqueeze(1), dt.tensor([1, 2]), (5,), (1,))
