"""What does one call cost? Tiny tensors, so that nearly all of the time is the call itself; microseconds. Counts swept, so that growth shows.

dtorch's calls do not wait: a line gives the time of the calling thread, and "done" the time until the last value is there.
"""

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import Case, is_dtorch, is_jax, later, main, torch  # noqa: E402

OPS = (1, 10, 100, 1000, 10000)
PARAMETERS = (1, 10, 100, 1000)
DEVICES = (1, 2, 4, 8, 16, 32, 64)


def adds(n, recorded=False):
    x, y = torch.zeros(1, requires_grad=recorded), torch.ones(1)

    def loop():
        with torch.set_grad_enabled(recorded):
            r = x
            for _ in range(n):
                r = r + y
        return r

    return loop


def bare_call():
    """Seconds that one turn of such a loop takes with Python's own numbers: no library's addition can be faster."""
    best = float("inf")
    for _ in range(5):
        r, y, start = 0.0, 1.0, time.perf_counter()
        for _ in range(10000):
            r = r + y
        best = min(best, time.perf_counter() - start)
    return best / 10000


def read(loop):
    """The loop, then the value of its result."""

    def call():
        loop().item()

    return call


def linears(n):
    module, x = torch.nn.Linear(8, 8), torch.zeros(8, 8)

    def loop():
        with torch.no_grad():
            r = x
            for _ in range(n):
                r = module(r)
        return r

    return loop


def sgd_steps(n):
    module, x = torch.nn.Linear(8, 8), torch.zeros(8, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def loop():
        for _ in range(n):
            optimizer.zero_grad()
            loss = module(x).sum()
            loss.backward()
            optimizer.step()
        return loss

    return loop


def optimizer_steps(kind, count):
    """optimizer.step() of `count` parameters of 8 x 8."""
    parameters = [torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.ones(8, 8)
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.01)
    return lambda: optimizer.step()


def sharded(kind, n):
    """n calls on tensors of eight devices; PyTorch's are DTensors of a process group that sends nothing."""
    if is_dtorch:
        mesh = torch.init_device_mesh("cpu", (8,))
        put = lambda t, p: torch.distribute_tensor(t, mesh, [p])  # noqa: E731
        a, b = put(torch.zeros(8), torch.Shard(0)), put(torch.ones(8), torch.Shard(0))
        x, w = put(torch.zeros(8, 8), torch.Replicate()), put(torch.zeros(8, 8), torch.Shard(1))
    else:
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not dist.is_initialized():
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1")
            dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        mesh = init_device_mesh("cpu", (8,))
        put = lambda t, p: DTensor.from_local(t, mesh, [p], run_check=False)  # noqa: E731
        a, b = put(torch.zeros(1), Shard(0)), put(torch.ones(1), Shard(0))
        x, w = put(torch.zeros(8, 8), Replicate()), put(torch.zeros(8, 1), Shard(1))

    def loop():
        with torch.no_grad():
            r = a
            for _ in range(n):
                r = r + b if kind == "add" else x @ w
        return r

    return loop


def on_devices(n):
    """A forward and backward pass of two layers, the batch of 64 rows sharded over n devices (dtorch only)."""
    mesh = torch.init_device_mesh("cpu", (n,))
    layers = [torch.nn.Parameter(torch.distribute_tensor(torch.randn(16, 16), mesh, [torch.Replicate()])) for _ in range(2)]
    x = torch.distribute_tensor(torch.randn(64, 16), mesh, [torch.Shard(0)])

    def step():
        for w in layers:
            w.grad = None
        ((x @ layers[0]).relu() @ layers[1]).square().mean().backward()
        return layers[0].grad

    return step


def in_jax():
    import jax.numpy as jnp

    def loop(n):
        def call():
            x, y = jnp.zeros(1), jnp.ones(1)
            for _ in range(n):
                x = x + y
            return x

        return call

    table = {"add, one element": Case(loop(1000), "us", 1000, client=True)}
    for n in OPS[:-1]:
        table[f"chain of {n} adds, one element, then its value: an add"] = Case(loop(n), "us", n)
    return table


def cases():
    if is_jax:
        return in_jax()
    torch.set_num_threads(1)
    counted = {"unit": "us", "per": 1000, "least": bare_call(), "client": True}
    table = {
        "add, one element": Case(adds(1000), **counted),
        "add, one element, recorded for gradients": Case(adds(1000, True), **counted),
        "nn.Linear(8, 8) module": Case(linears(1000), **counted),
        "nn.Linear(8, 8), backward and SGD step": Case(sgd_steps(100), "us", 100, client=True),
        "add, Shard(0) on 8 devices": Case(later(sharded, "add", 1000), **counted),
        "matmul, Replicate x Shard(1) on 8 devices": Case(later(sharded, "matmul", 1000), **counted),
    }
    for n in OPS:
        table[f"chain of {n} adds, one element, then its value: an add"] = Case(read(adds(n)), "us", n, least=bare_call())
    for kind, tensors in (("SGD", 3), ("AdamW", 7)):  # read and written for a parameter
        for n in PARAMETERS:
            moved = n * tensors * 4 * 64
            table[f"{kind}.step() of {n} parameters"] = Case(later(optimizer_steps, kind, n), "us", client=True, moved=moved)
    if is_dtorch:
        for n in DEVICES:
            table[f"forward and backward of 2 layers, {n} devices"] = Case(later(on_devices, n), "us", client=True)
    return table


if __name__ == "__main__":
    main(__file__, cases)
