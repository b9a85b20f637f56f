"""A mixture of experts, forward and backward on one device: dtorch's nn.MoE beside PyTorch's two ways to write one.

    moe.py [--tokens 4096] [--experts 8] [--top-k 2] [--d-model 512] [--d-hidden 1024] [--threads 1] [--rounds 3]
    moe.py --ep 8 …    instead: what one step on so many devices sends, and the memory that it reserves and touches

PyTorch has no such layer. `loop` takes the tokens of one expert after the other (index_select, three products, index_add), which waits for the sizes; `grouped`
sorts the tokens and calls F.grouped_mm. Each runs in a process of its own, in turns; shown are medians over rounds of the best of five steps, in
milliseconds, and the share of the multiplications' own time at the speed of a large matrix product.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def dtorch_layer(a):
    import dtorch as torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    moe = torch.nn.MoE(a.d_model, a.d_hidden, a.experts, a.top_k)
    x = torch.randn(a.tokens, a.d_model, requires_grad=True)

    def step():
        moe.zero_grad()
        x.grad = None
        (moe(x).square().mean() + 0.01 * moe.aux_loss).backward()
        torch.synchronize()

    return torch, step


def torch_layer(a, grouped):
    import torch

    F = torch.nn.functional
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    make = lambda *s: torch.nn.Parameter(torch.randn(s) / s[-2] ** 0.5)  # noqa: E731
    gate, up, down = (make(a.experts, *s) for s in ((a.d_model, a.d_hidden), (a.d_model, a.d_hidden), (a.d_hidden, a.d_model)))
    router = make(a.d_model, a.experts)
    x = torch.randn(a.tokens, a.d_model, requires_grad=True)

    def loop(weight, index):
        y = torch.zeros_like(x)
        g, u, d = gate.unbind(0), up.unbind(0), down.unbind(0)
        for e in range(a.experts):
            t, k = (index == e).nonzero(as_tuple=True)
            h = x[t]
            h = (F.silu(h @ g[e]) * (h @ u[e])) @ d[e]
            y.index_add_(0, t, h * weight[t, k, None])
        return y

    def sort(weight, index):
        order = index.flatten().argsort(stable=True)
        offs = torch.bincount(index.flatten(), minlength=a.experts).cumsum(0).int()
        h = x[order // a.top_k]
        h = F.grouped_mm(F.silu(F.grouped_mm(h, gate, offs=offs)) * F.grouped_mm(h, up, offs=offs), down, offs=offs)
        return torch.zeros_like(x).index_add(0, order // a.top_k, h * weight.flatten()[order, None])

    def step():
        for p in (gate, up, down, router, x):
            p.grad = None
        p = (x @ router).softmax(-1)
        weight, index = p.topk(a.top_k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        share = torch.bincount(index.flatten(), minlength=a.experts) / index.numel()
        y = (sort if grouped else loop)(weight, index)
        (y.square().mean() + 0.01 * a.experts * (share * p.mean(0)).sum()).backward()

    return torch, step


def on_devices(a):
    import dtorch as torch
    from dtorch.distributed.tensor.parallel import ExpertParallel, parallelize_module

    mesh = torch.init_device_mesh("cpu", (a.ep,), mesh_dim_names=("ep",))
    torch.manual_seed(0)
    moe = parallelize_module(torch.nn.MoE(a.d_model, a.d_hidden, a.experts, a.top_k), mesh, ExpertParallel())
    x = torch.distribute_tensor(torch.randn(a.tokens, a.d_model), mesh, [torch.Shard(0)]).requires_grad_()
    for _ in range(4):
        torch.comm_report(reset=True)
        moe.zero_grad()
        x.grad = None
        (moe(x).square().mean() + 0.01 * moe.aux_loss).backward()
        moe.router.weight.grad.full_tensor()
    kinds = {}
    for row in torch.comm_report():
        key = row["kind"], row["mesh_dim"]
        kinds[key] = [old + new for old, new in zip(kinds.get(key, (0, 0)), (row["count"], row["bytes"]), strict=True)]
    for (kind, dim), (count, sent) in kinds.items():
        print(f"{kind:15} along {dim}: {count} times, {sent / 1e6:.3f} MB")
    everything = 4 * a.tokens * a.top_k * a.d_model * 4
    print(
        f"all rows, there and back, forward and backward: {everything / 1e6:.3f} MB; {1 - 1 / a.ep:.3f} of them is what even routing sends elsewhere"
    )
    with open("/proc/self/statm") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    reserved = sum(torch.memory_stats(f"cpu:{i}")["reserved"] for i in range(a.ep))
    print(f"reserved on all devices {reserved / 1e6:.0f} MB, resident memory of the process {resident / 1e6:.0f} MB")


def one(a):
    torch, step = {"dtorch": dtorch_layer, "loop": lambda a: torch_layer(a, False), "grouped": lambda a: torch_layer(a, True)}[a.run](a)
    best = float("inf")
    for i in range(7):
        start = time.perf_counter()
        step()
        if i > 1:
            best = min(best, time.perf_counter() - start)
    print(best * 1e3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (
        ("tokens", 4096),
        ("experts", 8),
        ("top-k", 2),
        ("d-model", 512),
        ("d-hidden", 1024),
        ("threads", 1),
        ("rounds", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ep", type=int, help="devices along the experts' mesh dimension")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.ep:
        return on_devices(a)
    if a.run:
        return one(a)
    times = {"dtorch": [], "grouped": [], "loop": []}
    environment = {**os.environ, "OMP_NUM_THREADS": str(a.threads), "OPENBLAS_NUM_THREADS": "1"}
    for _ in range(a.rounds):
        for run in times:
            out = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--run", run], capture_output=True, text=True, env=environment)
            if out.returncode:
                sys.exit(out.stderr)
            times[run].append(float(out.stdout))
    work = 18 * a.tokens * a.top_k * a.d_model * a.d_hidden
    for run, t in times.items():
        ms = statistics.median(t)
        print(f"{run:8} {ms:8.1f} ms   {work / ms / 1e6:6.1f} GFLOP/s")


if __name__ == "__main__":
    main()
