"""Slices, joins, flips, rolls and paddings along a sharded dimension: values and gradients of the one-device run; only what must move moves."""

import pathlib
import sys

import numpy as np
import pytest

import dtorch
import dtorch.nn.functional as F
from dtorch import Shard, distribute_tensor, init_device_mesh

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from one_device import LAYOUTS, R, S, same_as_on_one_device  # noqa: E402


def write(x):
    y = x * 1
    y[2:5] = 7
    y[1:3] = y[3:5] * 2
    y[-1] += 1
    y[0].mul_(3)
    y[::2][1:] -= 0.5
    return y


OPS = {
    "slice": lambda x: x[2:5],
    "step": lambda x: x[1::2],
    "last": lambda x: x[-1:],
    "first": lambda x: x[:1],
    "nothing": lambda x: x[3:3],
    "select": lambda x: x[3],
    "select last": lambda x: x[-1],
    "narrow": lambda x: x.narrow(0, 1, 4),
    "slices of slices": lambda x: x[1:][2:] * x[3:],
    "shift": lambda x: x[1:] * x[:-1],
    "cat": lambda x: dtorch.cat([x, x[1:3], x]),
    "cat with a whole": lambda x: dtorch.cat([x, dtorch.ones(2, 3), x[:0]]),
    "stack": lambda x: dtorch.stack([x, x * 2]),
    "flip": lambda x: x.flip(0),
    "flip both": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(2, 0),
    "roll back": lambda x: x.roll((-1, 1), (0, 1)),
    "roll flat": lambda x: x.roll(4),
    "pad": lambda x: F.pad(x, (0, 0, 2, 3), value=1.5),
    "cut by padding": lambda x: F.pad(x, (1, 0, -2, 3)),
    "diff": lambda x: x.diff(dim=0),
    "windows": lambda x: x.unfold(0, 3, 2),
    "repeat": lambda x: x.repeat(2, 1),
    "split": lambda x: [p * (i + 1) for i, p in enumerate(x.split(2))][1],
    "chunks": lambda x: sum(p.sum() * (i + 1) for i, p in enumerate(x.chunk(3))),
    "unbind": lambda x: x.unbind(0)[2] * x.unbind(0)[-1],
    "slice_scatter": lambda x: x.slice_scatter(x[:2] * 3, 0, 1, 3),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, 4),
    "writes": write,
}


@pytest.mark.parametrize("shape, placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_as_on_one_device(name, shape, placements):
    for n in (6, 8, 7, 5):  # even, uneven and empty shards
        if n % 2 and placements[0] == Shard(0, split_factor=2):
            continue
        a = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        same_as_on_one_device(OPS[name], a, shape, placements)


ROW = 8 * 4
MOVES = {  # rows that any device fetches, over all four devices
    "slice": (lambda x: x[2:], 6, S(0)),
    "step": (lambda x: x[::2], 0, S(0)),
    "select": (lambda x: x[3], 3, R),
    "roll": (lambda x: x.roll(1, 0), 4, S(0)),
    "pad": (lambda x: F.pad(x, (0, 0, 1, 1)), 3, S(0)),
    "diff": (lambda x: x.diff(dim=0), 3, S(0)),
    "windows": (lambda x: x.unfold(0, 3, 1), 6, S(0)),
    "shift": (lambda x: x[1:] * x[:-1], 3, S(0)),
    "flip": (lambda x: x.flip(0), 1024, S(0)),
    "whole": (lambda x: x[0:], 0, S(0)),
}


@pytest.mark.parametrize("name", MOVES)
def test_only_what_must_move_moves(name):
    f, rows, placement = MOVES[name]
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
    x = distribute_tensor(dtorch.arange(1024 * 8).reshape(1024, 8).float(), mesh, [S(0)])
    dtorch.comm_report(reset=True)
    y = f(x)
    y.to_local(0).numpy()
    report = list(dtorch.comm_report(reset=True))
    assert y.placements == (placement,)
    assert sum(r["bytes"] for r in report) <= rows * ROW
    np.testing.assert_array_equal(y.full_tensor().numpy(), f(x.full_tensor()).numpy())


def test_a_write_through_a_slice_moves_no_more_than_the_slice():
    mesh = init_device_mesh("cpu", (4,))
    x = distribute_tensor(dtorch.zeros(1024, 8), mesh, [S(0)])
    dtorch.comm_report(reset=True)
    x[100:900:3] = 5
    x[7] = 2
    x.to_local(0).numpy()
    assert dtorch.comm_report(reset=True).bytes <= 267 * ROW
    want = np.zeros((1024, 8), np.float32)
    want[100:900:3] = 5
    want[7] = 2
    np.testing.assert_array_equal(x.full_tensor().numpy(), want)
