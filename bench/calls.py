"""What does one call cost the calling thread? Tiny tensors, so that nearly all of the time is the call itself; microseconds.

For dtorch, whose calls do not wait, "done" lines give the time until the last value is there.
"""

import os
import time

from common import is_dtorch, show, torch

torch.set_num_threads(1)
CALLS = 20000


def measure(name, loop, calls):
    """loop(n) makes n calls and returns the last result."""
    loop(calls // 10)
    returned = done = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        last = loop(calls)
        returned = min(returned, time.perf_counter() - start)
        last.sum().item()
        done = min(done, time.perf_counter() - start)
    show(name, returned / calls * 1e6, "us")
    show(name + ", done", done / calls * 1e6, "us")


def add_plain(n):
    with torch.no_grad():
        x, y = torch.zeros(1), torch.ones(1)
        for _ in range(n):
            x = x + y
    return x


def add_recorded(n):
    x, y = torch.zeros(1, requires_grad=True), torch.ones(1)
    for _ in range(n):
        x = x + y
    return x


def linear_module(n):
    with torch.no_grad():
        module, x = torch.nn.Linear(8, 8), torch.zeros(8, 8)
        for _ in range(n):
            y = module(x)
    return y


def step_of_sgd(n):
    module, x = torch.nn.Linear(8, 8), torch.zeros(8, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(n):
        optimizer.zero_grad()
        loss = module(x).sum()
        loss.backward()
        optimizer.step()
    return loss


measure("add, one element", add_plain, CALLS)
measure("add, one element, recorded for gradients", add_recorded, CALLS // 10)
measure("nn.Linear(8, 8) module", linear_module, CALLS // 10)
measure("nn.Linear(8, 8), backward and SGD step", step_of_sgd, CALLS // 100)

if is_dtorch:
    mesh = torch.init_device_mesh("cpu", (8,))
    a = torch.distribute_tensor(torch.zeros(8), mesh, [torch.Shard(0)])
    b = torch.distribute_tensor(torch.ones(8), mesh, [torch.Shard(0)])
    w = torch.distribute_tensor(torch.zeros(8, 8), mesh, [torch.Shard(1)])
    x = torch.distribute_tensor(torch.zeros(8, 8), mesh, [torch.Replicate()])
else:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    mesh = init_device_mesh("cpu", (8,))
    a = DTensor.from_local(torch.zeros(1), mesh, [Shard(0)], run_check=False)
    b = DTensor.from_local(torch.ones(1), mesh, [Shard(0)], run_check=False)
    w = DTensor.from_local(torch.zeros(8, 1), mesh, [Shard(1)], run_check=False)
    x = DTensor.from_local(torch.zeros(8, 8), mesh, [Replicate()], run_check=False)


def add_sharded(n):
    with torch.no_grad():
        r = a
        for _ in range(n):
            r = r + b
    return r


def matmul_sharded(n):
    with torch.no_grad():
        for _ in range(n):
            r = x @ w
    return r


measure("add, Shard(0) on 8 devices", add_sharded, CALLS // 10)
measure("matmul, Replicate x Shard(1) on 8 devices", matmul_sharded, CALLS // 10)
