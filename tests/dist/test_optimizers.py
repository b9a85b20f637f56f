"""Optimisers' steps over many tensors: of any placements and dtypes, each element as if its tensor were alone."""

import os
import subprocess
import sys

import dtorch as torch
import numpy as np
import pytest
from dtorch import Replicate, Shard, init_device_mesh, optim

ALL = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adamax", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.5}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("ASGD", {"t0": 1, "lambd": 0.1}),
    ("Rprop", {}),
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(ALL)]

# shape, dtype, how it lies on two devices: uneven and empty shards, several dtypes, views of one base, scalars
KINDS = [
    ((7, 3), "float32", Shard(0)),
    ((5,), "float32", Shard(0)),
    ((1, 4), "float32", Shard(0)),
    ((6, 2), "float32", Replicate()),
    ((), "float32", Replicate()),
    ((0, 3), "float32", Shard(0)),
    ((9, 2), "bfloat16", Shard(1)),
    ((3, 3), "float64", Shard(0)),
    ((4, 5), "float16", Shard(1)),
]


def values(shape, dtype, seed):
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.tensor(x).to(getattr(torch, dtype))


def train(name, options, mesh, steps=7, copies=3):
    """Bits of all parameters and states after some steps; one parameter has a gradient now and then only."""
    params = []
    for i in range(copies):
        for k, (shape, dtype, placement) in enumerate(KINDS):
            x = values(shape, dtype, 31 * i + k)
            params.append(torch.nn.Parameter(torch.distribute_tensor(x, mesh, [placement]) if mesh else x))
    optimizer = getattr(optim, name)(params, **{"lr": 0.05, **options})
    for t in range(steps):
        for k, p in enumerate(params):
            g = values(tuple(p.shape), str(p.dtype).split(".")[-1], 1000 * t + k)
            p.grad = torch.distribute_tensor(g, mesh, list(p.placements)) if mesh else g
            if k == 4 and t % 3 == 1:
                p.grad = None
        optimizer.step()
    whole = [*params, *(v for p in params for v in optimizer.state[p].values() if isinstance(v, torch.Tensor))]
    return [(x.full_tensor() if mesh else x).detach().to(torch.float64).numpy() for x in whole]


@pytest.mark.parametrize(("name", "options"), ALL, ids=IDS)
def test_shards_are_stepped_as_the_whole(name, options):
    """Bit for bit, uneven and empty shards included."""
    for a, b in zip(train(name, options, None), train(name, options, init_device_mesh("cpu", (2,))), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


GRADS = [
    ((7, 3), "float32", Shard(0)),
    ((200, 300), "float32", Shard(1)),
    ((5,), "bfloat16", Shard(0)),
    ((), "float32", Replicate()),
    ((9, 2), "float64", Shard(1)),
]


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, 0.5, float("inf"), float("-inf")])
@pytest.mark.parametrize("spread", [False, True])
def test_norm_of_many_tensors(p, spread):
    """Against numpy in float64; lists of several dtypes and placements, large and small tensors, many copies."""
    mesh, grads, flat = init_device_mesh("cpu", (3,)), [], []
    for i in range(20):
        for k, (shape, dtype, placement) in enumerate(GRADS):
            x = values(shape, dtype, 17 * i + k)
            flat.append(np.abs(x.to(torch.float64).numpy()).ravel())
            grads.append(torch.distribute_tensor(x, mesh, [placement]) if spread else x)
    x = np.concatenate(flat)
    want = x.max() if p == float("inf") else x.min() if p == -float("inf") else (x**p).sum() ** (1 / p)
    got = torch.nn.utils.get_total_norm(grads, p)
    assert abs(float(got) / want - 1) < 1e-6


@pytest.mark.parametrize("p", [2.0, float("inf"), float("-inf")])
def test_norm_of_nan_is_nan(p):
    grads = [torch.ones(40), torch.ones(40), torch.ones(3)]
    grads[1][39] = float("nan")
    assert np.isnan(float(torch.nn.utils.get_total_norm(grads, p)))


def test_norm_does_not_depend_on_threads():
    grads, before = [values((n, 97), "float32", n) for n in (1, 3, 500, 2, 900)], torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = float(torch.nn.utils.get_total_norm(grads))
        torch.set_num_threads(2)
        assert float(torch.nn.utils.get_total_norm(grads)) == one
    finally:
        torch.set_num_threads(before)


def test_clipping_scales_every_gradient_once():
    mesh = init_device_mesh("cpu", (2,))
    params = []
    for k, (shape, dtype, placement) in enumerate(GRADS):
        x = values(shape, dtype, k)
        params.append(torch.nn.Parameter(torch.distribute_tensor(x, mesh, [placement]) if k % 2 else x))
        params[-1].grad = params[-1].detach().clone()
    before = [p.grad.detach().full_tensor().to(torch.float64).numpy() for p in params]
    norm = float(torch.nn.utils.clip_grad_norm_(params, 1.0))
    for p, g in zip(params, before, strict=True):
        assert np.allclose(p.grad.full_tensor().to(torch.float64).numpy(), g / norm, rtol=1e-2 if p.dtype == torch.bfloat16 else 1e-5)


# ---- many small kernels together (passes/many.c)
SCRIPT = """
import hashlib, sys
sys.path.insert(0, {here!r})
import numpy as np
import dtorch as torch
from dtorch import init_device_mesh
from test_optimizers import ALL, train, values
torch.set_num_threads(2)
digest = hashlib.sha256()
for name, options in ALL:
    for mesh in (None, init_device_mesh("cpu", (3,))):
        for x in train(name, options, mesh, steps=3, copies=9):
            digest.update(x.tobytes())
# one gradient for two parameters, views of one base, a parameter twice in a row, results that are read in between
base = values((40, 30), "float32", 1)
grad = values((20, 30), "float32", 2)
params = [torch.nn.Parameter(base[:20].clone()), torch.nn.Parameter(base[20:].clone())]
for p in params:
    p.grad = grad
with torch.no_grad():
    for optimizer in (torch.optim.SGD(params, lr=0.1), torch.optim.AdamW(params, lr=0.1)):
        for _ in range(3):
            optimizer.step()
            optimizer.step()
            grad.mul_(params[0])
            base[:20].mul_(params[1])
            base[5:25].add_(1.0)
            base[1].copy_(base[2])
for x in (base, grad, *params):
    digest.update(x.detach().numpy().tobytes())
print(digest.hexdigest())
"""


def run(**env):
    code = SCRIPT.format(here=os.path.dirname(__file__))
    out = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_kernels_together_give_the_same_bits(tmp_path):
    """Every optimiser, plain and on three devices, each pass verified; and groups were formed."""
    want = run(DTORCH_OFF="many", DTORCH_VERIFY="1")
    assert run(DTORCH_OFF="", DTORCH_VERIFY="1", DTORCH_DUMP=str(tmp_path)) == want
    assert run(DTORCH_OFF="", DTORCH_FLUSH="7") == want
    texts = [f.read_text() for f in tmp_path.glob("*.txt")]
    assert any(text.count("together") > 8 for text in texts)
    assert run(DTORCH_OFF="fuse,reuse") == want
