"""Shared by tests: what a function of one tensor gives on one device, it gives on meshes, with its gradient."""

import dtorch
import numpy as np
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh

R, S = Replicate(), Shard

LAYOUTS = [
    ((2,), [S(0)]),
    ((3,), [S(0)]),
    ((8,), [S(0)]),
    ((2, 2), [S(0), S(0)]),
    ((2, 2), [S(0), S(1)]),
    ((2, 2), [R, S(0)]),
    ((2, 3), [S(1), S(0)]),
    ((2, 2, 2), [S(0), R, S(0)]),
    ((2, 1, 2), [S(0), S(0), S(1)]),
    ((2, 2), [Shard(0, split_factor=2), R]),
]


def run(f, a, place):
    x = place(dtorch.tensor(a)).requires_grad_()
    y = f(x)
    w = np.linspace(-1, 1, y.numel()).astype(np.float32).reshape(y.shape)
    (y * dtorch.tensor(w)).sum().backward()
    return y.detach(), x.grad


def same_as_on_one_device(f, a, shape, placements, **tolerance):
    mesh = init_device_mesh("cpu", shape)
    for want, got in zip(run(f, a, lambda x: x), run(f, a, lambda x: distribute_tensor(x, mesh, placements))):
        assert got.shape == want.shape
        np.testing.assert_allclose(got.full_tensor().numpy(), want.numpy(), **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))
