"""How long does a training step of a GPT take? Forward, backward, AdamW; milliseconds, and the largest memory of the process.

    train.py LAYERS WIDTH HEADS CONTEXT BATCH VOCABULARY THREADS [plain|dp|tp]

dp and tp run the step on a mesh of two virtual devices (dtorch only): the batch split, or the weights.
"""

import os
import resource
import statistics
import sys
import time

L, D, H, T, B, V, THREADS = map(int, sys.argv[1:8] or (2, 64, 4, 64, 4, 512, 1))
MODE = sys.argv[8] if len(sys.argv) > 8 else "plain"
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

from common import compiled, multiply_speed, show, torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (f(h).view(B, T, H, D // H).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(L)]), nn.LayerNorm(D)

    def forward(self, ids, targets):
        x = self.embed(ids) + self.position(torch.arange(T))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((self.norm(x) @ self.embed.weight.t()).view(-1, V), targets.view(-1))


def on_mesh(model, ids, targets):
    from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = torch.init_device_mesh("cpu", (2,), mesh_dim_names=(MODE,))
    if MODE == "tp":
        plan = {f"blocks.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "up")}
        parallelize_module(model, mesh, plan | {f"blocks.*.{n}": RowwiseParallel() for n in ("out", "down")})
        place = [torch.Replicate()]
    else:
        place = [torch.Shard(0)]
    return torch.distribute_tensor(ids, mesh, place), torch.distribute_tensor(targets, mesh, place)


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    begun = time.time() - float(os.environ.get("BENCH_STARTED", time.time()))
    start = time.perf_counter()
    model = GPT()
    ids, targets = torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T))
    if MODE != "plain":
        ids, targets = on_mesh(model, ids, targets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = compiled(model)
    times = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = run(ids, targets)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    products = L * 12 * D * D + D * V  # weights in matrix products, each used twice forward and four times backward, and attention
    limit = (6 * B * T * products + L * 3 * 2 * B * T * T * D) / multiply_speed()
    name = f"GPT {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M, {THREADS} threads, {MODE}"
    show(name + ": step", statistics.median(times[3:]) * 1e3, "ms", limit * 1e3)
    show(name + ": first step from process start", (begun + times[0]) * 1e3, "ms")
    show(name + ": largest memory", memory, "MB")


main()
