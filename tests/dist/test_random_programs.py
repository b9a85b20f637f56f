"""Random programs on random meshes with random placements give what they give on one device: values, and gradients of every input."""

import dtorch
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh

MESHES = [(2,), (3,), (4,), (2, 2), (3, 2), (2, 1, 2)]


def unary(rng):
    return [
        lambda x: dtorch.tanh(x),
        lambda x: x * 0.5 + 1,
        lambda x: F.gelu(x),
        lambda x: x.exp().clamp(max=3),
        lambda x: -x,
        lambda x: x.sigmoid(),
        lambda x: x.softmax(int(rng_dim(rng, x))),
        lambda x: x - x.mean(int(rng_dim(rng, x)), keepdim=True),
        lambda x: x.cumsum(int(rng_dim(rng, x))),
        lambda x: x / (x.abs().amax(int(rng_dim(rng, x)), keepdim=True) + 1),
        lambda x: x.flip(int(rng_dim(rng, x))),
        lambda x: dtorch.roll(x, 1, int(rng_dim(rng, x))),
        lambda x: x.sort(int(rng_dim(rng, x)))[0],
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.pad(x, (1, 1)),
        lambda x: dtorch.tril(x) if x.ndim > 1 else x,
        lambda x: x.contiguous(),
        lambda x: dtorch.where(x > 0, x, x * 0.1),
    ]


def rng_dim(rng, x):
    return rng.integers(x.ndim)


def reshape(rng, x):
    kind = rng.integers(5)
    if kind == 0 and x.ndim > 1:
        return x.permute([int(i) for i in rng.permutation(x.ndim)])
    if kind == 1 and x.ndim > 1:
        d = int(rng.integers(x.ndim - 1))
        return x.flatten(d, d + 1)
    if kind == 2 and x.ndim < 4:
        d = int(rng.integers(x.ndim))
        f = [i for i in range(1, x.shape[d] + 1) if x.shape[d] % i == 0]
        return x.unflatten(d, (int(rng.choice(f)), -1))
    if kind == 3:
        d = int(rng.integers(x.ndim))
        lo = int(rng.integers(x.shape[d]))
        return x.narrow(d, lo, int(rng.integers(1, x.shape[d] - lo + 1)))
    return x.unsqueeze(int(rng.integers(x.ndim + 1))) if x.ndim < 4 else x


def binary(rng, x, weight):
    kind = rng.integers(6)
    if kind == 0:
        return x @ weight(x.shape[-1], int(rng.integers(1, 6)))
    if kind == 1:
        return x + weight(*x.shape[-1:])
    if kind == 2:
        return x * weight(*x.shape)
    if kind == 3:
        return dtorch.cat([x, weight(*x.shape)], int(rng_dim(rng, x)))
    if kind == 4:
        return F.linear(x, weight(int(rng.integers(1, 6)), x.shape[-1]), None)
    index = dtorch.from_numpy(rng.integers(0, x.shape[0], 5))
    return x.index_select(0, index)


def run(seed, place):
    """The program of this seed. `place` distributes an array; it draws from a generator of its own, so the program does not depend on it."""
    rng, inputs = np.random.default_rng(seed), []

    def weight(*shape):
        inputs.append(place(rng.standard_normal(shape).astype(np.float32)).requires_grad_())
        return inputs[-1]

    x = weight(*[int(rng.integers(1, 7)) for _ in range(rng.integers(1, 4))])
    for _ in range(rng.integers(3, 9)):
        kind = rng.integers(10)
        if kind < 5:
            ops = unary(rng)
            x = ops[rng.integers(len(ops))](x)
        elif kind < 8:
            x = reshape(rng, x)
        else:
            x = binary(rng, x, weight)
    if rng.random() < 0.3:
        y = x * 1
        y[0].mul_(3)
        x = y
    loss = (x * x).mean() + x.sum() * 0.1
    loss.backward()
    return [loss.detach(), x.detach()] + [i.grad for i in inputs]


def numbers(t):
    return (t.full_tensor() if t.device_mesh is not None else t).numpy()


@pytest.mark.parametrize("block", range(12))
def test_random_programs(block):
    for seed in range(block * 25, block * 25 + 25):
        choice = np.random.default_rng(seed + 10**6)
        mesh = init_device_mesh("cpu", MESHES[choice.integers(len(MESHES))])

        def distributed(a):
            return distribute_tensor(
                dtorch.from_numpy(a),
                mesh,
                [Shard(int(choice.integers(a.ndim))) if choice.random() < 0.6 else Replicate() for _ in range(mesh.ndim)],
            )

        want = run(seed, dtorch.from_numpy)
        got = run(seed, distributed)
        assert len(want) == len(got)
        for k, (a, b) in enumerate(zip(got, want)):
            assert (a is None) == (b is None), f"seed {seed}, result {k}"
            if a is not None:
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(numbers(a), numbers(b), rtol=2e-4, atol=2e-5, err_msg=f"seed {seed} on {mesh}, result {k}")
