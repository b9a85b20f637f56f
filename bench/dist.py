"""A training step of a GPT on two devices of one thread each: data parallel, ZeRO-3, tensor parallel; beside PyTorch's under torchrun and gloo.

    dist.py [--modes dp,zero3,tp] [--ranks] [--rounds 3] [--json FILE]

PyTorch runs DistributedDataParallel, FSDP2's fully_shard and DTensor's parallelize_module, in two processes. The two frameworks take turns,
`rounds` times each in processes of their own, so that whatever else the machine does hits both alike; the table shows medians over rounds of
the median step, in milliseconds, and the ratio, which should stay below the target. On a busy machine the processor time of a step, over all threads and
processes, says more: two devices that never wait take half of it.

--ranks: dtorch, too, runs as two processes of one thread each, started by mpiexec (the extra `mpi`), one device in each.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

L, D, H, T, B, V = 4, 256, 8, 128, 8, 4096
TARGET = {"dp": 0.75, "zero3": 0.65, "tp": 0.55}
TARGET_RANKS = 0.85


def make_model(torch):
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
            self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
            self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

        def forward(self, x):
            b, t, d = x.shape
            h = self.norm1(x)
            q, k, v = (f(h).view(b, t, -1, D // H).transpose(1, 2) for f in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
            self.blocks, self.norm = nn.ModuleList([Block() for _ in range(L)]), nn.LayerNorm(D)
            self.head = nn.Linear(D, V, bias=False)

        def forward(self, ids, targets):
            x = self.embed(ids) + self.position(torch.arange(T))
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).view(-1, V), targets.view(-1))

    return GPT()


def tp_plan(colwise, rowwise):
    return {"q": colwise(), "k": colwise(), "v": colwise(), "out": rowwise(), "up": colwise(), "down": rowwise()}


def other_ranks():
    """The other processes that this one's launcher started here: those with the same parent."""
    if "PMI_RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
        return []
    status = (pathlib.Path("/proc") / p / "stat" for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid())
    return [p for p in status if p.exists() and p.read_text().rpartition(")")[2].split()[1] == str(os.getppid())]


def processor_time(others):
    """Seconds of this process and of others (proc(5): fields 14 and 15 in ticks)."""
    ticks = sum(int(t) for p in others for t in p.read_text().rpartition(")")[2].split()[11:13])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def median_step(torch, model, optimizer, ids, targets, steps):
    """Milliseconds of the median step, and of processor time a step; the first three warm up."""
    times, busy, others = [], 0.0, other_ranks() if torch.__name__ == "dtorch" else []
    for step in range(steps):
        if step == 3:
            busy = processor_time(others)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) * 1e3, (processor_time(others) - busy) / (steps - 3) * 1e3


def run_dtorch(mode, steps):
    """One program, two devices: of this process, or under mpiexec one of this and one of another."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import dtorch as torch
    from dtorch.distributed.fsdp import fully_shard
    from dtorch.distributed.tensor import distribute_module
    from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1 if other_ranks() else 2)  # one for each device
    torch.manual_seed(0)
    model = make_model(torch)
    mesh = torch.init_device_mesh("cpu", (2,), mesh_dim_names=(mode,))
    place = torch.Shard(0)
    if mode == "zero3":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif mode == "tp":
        place = torch.Replicate()
        for block in model.blocks:
            parallelize_module(block, mesh, tp_plan(ColwiseParallel, RowwiseParallel))
    distribute_module(model, mesh)  # what is left is replicated
    ids, targets = (torch.distribute_tensor(torch.randint(0, V, (B, T)), mesh, [place]) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(*median_step(torch, model, optimizer, ids, targets, steps))


def run_torch(mode, steps):
    """One of the two processes that torchrun starts."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model, batch = make_model(torch), B if mode == "tp" else B // 2
    if mode == "dp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif mode == "zero3":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2,))
        for block in model.blocks:
            parallelize_module(block, mesh, tp_plan(ColwiseParallel, RowwiseParallel))
    # foreach does not take a mix of plain and distributed parameters
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False if mode == "tp" else None)
    ids, targets = (torch.randint(0, V, (batch, T)) for _ in range(2))
    median, busy = median_step(torch, model, optimizer, ids, targets, steps)
    both = torch.tensor([busy])
    dist.all_reduce(both)
    if dist.get_rank() == 0:
        print(median, both.item())
    dist.destroy_process_group()


def launcher(python=sys.executable):
    """mpiexec beside that Python, or of the path; None."""
    return shutil.which("mpiexec", path=os.path.dirname(python) + os.pathsep + os.environ["PATH"])


def measure(framework, mode, steps, python=sys.executable, ranks=False):
    """(median step, processor time a step) of one run in a process (or two) of its own; None if it fails."""
    command = [python]
    if framework == "dtorch" and ranks:
        command = [launcher(python) or "mpiexec", "-n", "2", python]
    if framework == "torch":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [__file__, "--side", framework, "--modes", mode, "--steps", str(steps)]
    env = os.environ | {"OMP_NUM_THREADS": "1"} if framework == "torch" else os.environ
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    if run.returncode:
        print(f"{mode} failed with {framework}:\n{run.stderr[-2000:]}", file=sys.stderr)
        return None
    return tuple(map(float, run.stdout.split()[-2:]))


def compare(mode, frameworks, rounds, steps, ranks=False):
    """Prints one line of the table; returns {framework: milliseconds}."""
    got = {f: [] for f in frameworks}
    for _ in range(rounds):
        for f in frameworks:
            value = measure(f, mode, steps, ranks=ranks)
            got[f] += [] if value is None else [value]
    medians = {f: [statistics.median(x) for x in zip(*v, strict=True)] for f, v in got.items() if v}
    for i, what in enumerate(("", ", processor time")):
        cells = "".join(f"{medians[f][i]:>10.1f}" if f in medians else f"{'':>10}" for f in ("dtorch", "torch"))
        ratio = f"{medians['dtorch'][i] / medians['torch'][i]:>8.2f}" if len(medians) == 2 else f"{'':>8}"
        name = f"GPT 5.3 M, 2 {'ranks' if ranks else 'devices'}: {mode}{what}"
        print(f"{name:<52}{'ms':>4}{cells}{ratio}{TARGET_RANKS if ranks else TARGET[mode]:>8.2f}", flush=True)
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", default="dp,zero3,tp")
    parser.add_argument("--ranks", action="store_true", help="dtorch as two processes as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--side", choices=("dtorch", "torch"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    modes = args.modes.split(",")
    if args.side:
        (run_dtorch if args.side == "dtorch" else run_torch)(modes[0], args.steps)
        return
    frameworks = [f for f in ("dtorch", "torch") if importlib.util.find_spec(f)]
    print(f"{'':<52}{'':>4}{'dtorch':>10}{'PyTorch':>10}{'ratio':>8}{'target':>8}")
    everything = {mode: compare(mode, frameworks, args.rounds, args.steps, args.ranks) for mode in modes}
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
