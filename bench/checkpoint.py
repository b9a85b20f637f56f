"""Speed of checkpoints: saving and loading `mb` megabytes of parameters and AdamW state on n devices, beside the disk's and memory's own speed.

    python bench/checkpoint.py [--mb 1024] [--devices 4] [--dir PATH]

`stall` is how long an asynchronous save holds the program; `done` when the checkpoint has its name.
"""

import argparse
import os
import shutil
import tempfile
import time

import dtorch
from dtorch import Replicate, Shard, checkpoint, distribute_tensor, init_device_mesh, nn


def timed(f):
    dtorch.synchronize()
    t = time.perf_counter()
    out = f()
    return time.perf_counter() - t, out


def raw(folder, size):
    """Seconds to write and fsync as many bytes with one write call."""
    data = os.urandom(1 << 20) * (size >> 20)
    path = os.path.join(folder, "raw")
    t = time.perf_counter()
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    t = time.perf_counter() - t
    os.unlink(path)
    return t


def state_of(mb, devices, cut):
    """A model of layers of 4 MiB and AdamW after a step: three times the parameters."""
    mesh = init_device_mesh("cpu", (devices,))
    layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(max(1, mb // 12)))
    for m in layers:
        m.weight = nn.Parameter(distribute_tensor(m.weight.detach(), mesh, [Shard(0) if cut else Replicate()]))
    opt = dtorch.optim.AdamW(layers.parameters())
    for m in layers:
        m.weight.grad = dtorch.zeros_like(m.weight)
    opt.step()
    opt.zero_grad()
    return {"model": layers, "optimizer": opt, "step": 1}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--mb", type=int, default=1024)
    args.add_argument("--devices", type=int, default=4)
    args.add_argument("--dir")
    args = args.parse_args()
    folder = tempfile.mkdtemp(dir=args.dir)
    try:
        state = state_of(args.mb, args.devices, True)
        other = state_of(args.mb, args.devices // 2 or 1, True)
        size = sum(p.nbytes for p in state["model"].parameters()) * 3
        rate = lambda t: f"{t:6.2f} s {size / t / 2**30:5.2f} GiB/s"  # noqa: E731
        print(f"{size / 2**20:.0f} MiB on {args.devices} devices")
        print("write + fsync alone   ", rate(raw(folder, size)))
        path = os.path.join(folder, "c")
        print("save                  ", rate(timed(lambda: checkpoint.save(path, state))[0]))
        stall, future = timed(lambda: checkpoint.save(path, state, asynchronous=True))
        done = timed(future.get)[0] + stall
        print(f"save, asynchronous     stall {stall * 1e3:.1f} ms, done {rate(done)}")

        def load(into, **options):
            checkpoint.load(path, into, **options)
            dtorch.synchronize()

        print("load, same mesh       ", rate(timed(lambda: load(state))[0]))
        print("load, half the devices", rate(timed(lambda: load(other))[0]))
        print("load, unverified      ", rate(timed(lambda: load(state, verify=False))[0]))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
