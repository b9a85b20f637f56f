"""What a memory budget costs: one GPT training step at shares of the memory that it takes without one.

    python bench/memory.py [--model "4 256 8 128 32 4096"] [--threads 2] [--steps 5]     L D H T B V, as in the peers' GPT

Prints, per share, the peak that was reached, the processor time of a step, how many buffers were given up a step and how many calls were made again.
Losses must agree bit for bit. A second table says how far the arenas of the step's plans are from the most bytes that live at once.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

import dtorch
import dtorch.nn.functional as F
from dtorch import _C, nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.l1, self.l2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.f, self.p = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.l1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.p(F.gelu(self.f(self.l2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, length, vocabulary):
        super().__init__()
        self.e, self.pe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.b = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)

    def forward(self, i, t):
        x = self.e(i) + self.pe(dtorch.arange(i.shape[1]))
        for b in self.b:
            x = b(x)
        logits = self.ln(x) @ self.e.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), t.view(-1))


def run(sizes, budget, steps):
    layers, width, heads, length, batch, vocabulary = sizes
    dtorch.manual_seed(0)
    model = GPT(layers, width, heads, length, vocabulary)
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = dtorch.randint(0, vocabulary, (batch, length + 1))
    dtorch.synchronize()
    dtorch.set_memory_budget(budget)
    losses, times = [], []
    for step in range(steps + 2):
        if step == 2:  # plans are made, the optimizer has its state
            dtorch.reset_peak_memory_stats()
            before, made = dtorch.memory_stats(), _C._engine_stats().get("recomputed", 0)
        begin = time.process_time()
        optimizer.zero_grad()
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.process_time() - begin)
    stats = dtorch.memory_stats()
    dtorch.set_memory_budget(None)
    evicted = (stats["evicted"] - before["evicted"]) / steps
    return losses, stats["allocated_peak"], sorted(times[2:])[steps // 2], evicted, (_C._engine_stats().get("recomputed", 0) - made) / steps


def packing(sizes):
    """Arena bytes over the most bytes of temporaries alive at one step, for the plans of a step (from DTORCH_DUMP)."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "DTORCH_DUMP": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, __file__, "--once", *map(str, sizes)], env=env, check=True, capture_output=True)
        rows = []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as f:
                plan = f.read().split("== the plan ==")[1]
            arena = int(re.search(r"arena (\d+) bytes", plan)[1])
            live = [
                (int(first), int(last), (max(int(size), 1) + 63) // 64 * 64)
                for size, first, last in re.findall(r"^    temp\d+@\d+ +(\d+) bytes  steps (\d+) to (\d+)", plan, re.M)
            ]
            most = max((sum(s for a, b, s in live if a <= t <= b) for t in {a for a, _, _ in live}), default=0)
            if arena > 1 << 20:
                rows.append((name[:14], arena, most))
        return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="4 256 8 128 32 4096")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--once", nargs=6, type=int)
    a = parser.parse_args()
    dtorch.set_num_threads(a.threads)
    if a.once:
        run(a.once, None, 1)
        return
    sizes = [int(v) for v in a.model.split()]
    want, peak, base, _, _ = run(sizes, None, a.steps)
    print(f"L D H T B V = {a.model}, {a.threads} threads; without a budget {peak / 2**20:.0f} MiB, {base * 1e3:.0f} ms of processor time a step")
    print(f"{'budget':>7} {'MiB':>6} {'peak MiB':>9} {'ms':>7} {'time':>6} {'given up':>9} {'made again':>11}  same bits")
    for share in (1.0, 0.7, 0.5, 0.4, 0.3):
        budget = int(peak * share)
        try:
            losses, held, ms, evicted, again = run(sizes, budget, a.steps)
        except dtorch.OutOfMemoryError as e:
            print(f"{share:7.0%} {budget / 2**20:6.0f}  does not fit: {str(e).splitlines()[0][:110]}")
            dtorch.set_memory_budget(None)
            continue
        print(
            f"{share:7.0%} {budget / 2**20:6.0f} {held / 2**20:9.0f} {ms * 1e3:7.0f} {ms / base:6.2f} {evicted:9.0f} {again:11.0f}  "
            f"{'yes' if losses == want else 'NO'}"
        )
    print(f"\n{'plan':<16} {'arena MiB':>10} {'most alive':>11} {'over':>6}")
    for name, arena, most in packing(sizes):
        print(f"{name:<16} {arena / 2**20:10.1f} {most / 2**20:11.1f} {arena / most - 1:6.1%}")


if __name__ == "__main__":
    main()
