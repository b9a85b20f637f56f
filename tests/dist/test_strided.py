"""Sharded dimensions that are merged, split and permuted stay sharded: no reshape communicates, and values and gradients are right."""

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, redistribute_policy


def spread(x, m, *placements):
    return distribute_tensor(dtorch.as_tensor(x), m, list(placements))


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_merging_behind_an_unsharded_dimension(devices):
    m = init_device_mesh("cpu", (devices,))
    x = np.random.default_rng(0).standard_normal((3, 8, 5)).astype(np.float32)
    with redistribute_policy("error"):
        t = spread(x, m, Shard(1)).requires_grad_()
        y = t.view(24, 5)
        assert "split_factor=3" in repr(y.placements[0])
        z = (dtorch.tanh(y) * 2).softmax(-1).view(3, 8, 5)
        assert z.placements == (Shard(1),)
        back = z.transpose(0, 1).reshape(8, 15)
        assert back.placements == (Shard(0),)
    e = np.exp(np.tanh(x) * 2)
    want = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(z.full_tensor().detach().numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(y.full_tensor().detach().numpy(), x.reshape(24, 5))
    (y * dtorch.arange(24.0)[:, None]).sum().backward()
    want = np.broadcast_to(np.arange(24.0)[:, None], (24, 5)).reshape(3, 8, 5)
    np.testing.assert_allclose(t.grad.full_tensor().numpy(), want)


def test_batch_and_sequence_merged_on_two_mesh_dimensions():
    m = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    x = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
    w = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    for order in ((0, 1), (1, 0)):
        with redistribute_policy("error"):
            y = spread(x, m, Shard(order[0]), Shard(order[1])).view(-1, 3)
            out = y @ spread(w, m, Replicate(), Replicate())
            loss = out.sum(-1)
        np.testing.assert_allclose(y.full_tensor().numpy(), x.reshape(-1, 3))
        np.testing.assert_allclose(loss.full_tensor().numpy(), (x.reshape(-1, 3) @ w).sum(-1), rtol=2e-4)


def test_random_chains_of_reshapes():
    rng = np.random.default_rng(2)
    for trial in range(150):
        shape = [int(rng.choice([1, 2, 3, 4, 6])) for _ in range(rng.integers(1, 5))]
        m = init_device_mesh("cpu", [(2,), (3,), (2, 2), (3, 2)][rng.integers(4)])
        x = rng.standard_normal(shape).astype(np.float32)
        places = [Shard(int(rng.integers(len(shape)))) if rng.random() < 0.7 else Replicate() for _ in range(m.ndim)]
        t, want = spread(x, m, *places).requires_grad_(), x
        y = t
        for _ in range(4):
            k = rng.integers(4)
            if k == 0 and want.ndim > 1:
                p = [int(i) for i in rng.permutation(want.ndim)]
                y, want = y.permute(p), want.transpose(p)
            elif k == 1 and want.ndim > 1:
                d = int(rng.integers(want.ndim - 1))
                y, want = y.flatten(d, d + 1), want.reshape(want.shape[:d] + (-1,) + want.shape[d + 2 :])
            elif k == 2:
                d = int(rng.integers(want.ndim))
                f = int(rng.choice([i for i in range(1, want.shape[d] + 1) if want.shape[d] % i == 0]))
                if want.ndim < 6:
                    y, want = y.unflatten(d, (f, -1)), want.reshape(want.shape[:d] + (f, -1) + want.shape[d + 1 :])
            else:
                y, want = y * 2 + 1, want * 2 + 1
        np.testing.assert_array_equal(y.full_tensor().detach().numpy(), want, err_msg=f"trial {trial}: {shape} {places}")
        g = rng.standard_normal(want.shape).astype(np.float32)
        (y * spread(g, m, *[Replicate()] * m.ndim)).sum().backward()
        p = dtorch.tensor(x, requires_grad=True)
        assert t.grad.placements == t.placements and p.shape == t.grad.shape
