"""What the number of devices costs the program: a call, a step of small calls, and a large model's step, on simulated devices.

    scale.py [--devices 2,8,64,256,1024] [--llama PP,DP,TP,LAYERS,MICROBATCHES]

Prints, for an addition on Shard(0) and for a sum with its all-reduce along a dimension of 8, results kept, client and controller time a call when it is
replayed (processor time; the controller's with all it does for each device: memory of results, references), and the time to make the plans. The
client's should not depend on the devices.
With --llama, a 70 B Llama's shapes (8192 wide, 28672 in the feed-forward, LAYERS layers a stage) as a pipeline of PP stages of DP x TP devices.
"""

import argparse
import resource
import time

import dtorch as torch
from dtorch import Replicate, Shard, nn

F = nn.functional


def per_call(sim, fn, calls):
    """(client, controller) microseconds a call, the least of three steps, and milliseconds of the first one's controller."""
    steps = []
    for _ in range(5):
        begin = time.thread_time()
        kept = fn(calls)
        client = time.thread_time() - begin
        sim.step()
        del kept
        steps.append((client, sim.report().steps[-1].controller))
    return min(s[0] for s in steps[2:]) / calls * 1e6, min(s[1] for s in steps[2:]) / calls * 1e6, steps[0][1] * 1e3


def small_calls(n):
    with torch.simulate("h100-8x", devices=n) as sim:
        mesh = torch.init_device_mesh("cuda", (n // min(n, 8), min(n, 8)))
        x = torch.empty(8 * n, 64, device_mesh=mesh, placements=[Shard(0), Shard(0)])
        w = torch.empty(64, 64, device_mesh=mesh, placements=[Replicate(), Shard(0)])
        sim.step()
        a = per_call(sim, lambda calls: [x + k for k in range(calls)], 200)
        b = per_call(sim, lambda calls: [(w + k).sum(0).redistribute(placements=[Replicate(), Replicate()]) for k in range(calls)], 20)
    print(f"{n:>8} {a[0]:>9.2f} us {a[1]:>8.1f} us {a[2]:>6.1f} ms   {b[0]:>20.2f} us {b[1]:>8.1f} us {b[2]:>6.1f} ms", flush=True)


class Stage:
    """LAYERS blocks of a 70 B Llama on a mesh: columns and rows of the weights over tp."""

    D, FF, HEAD, T = 8192, 28672, 128, 4096

    def __init__(self, mesh, layers):
        def weight(rows, cols, dim):
            w = torch.empty(rows, cols, dtype=torch.bfloat16, device_mesh=mesh, placements=[Replicate(), Shard(dim)])
            return w.requires_grad_(True)

        def gain():
            return torch.empty(self.D, dtype=torch.bfloat16, device_mesh=mesh, placements=[Replicate(), Replicate()]).requires_grad_(True)

        d, kv, ff = self.D, self.D // 8, self.FF
        self.mesh = mesh
        self.layers = [
            (
                gain(),
                weight(d, d, 1),
                weight(d, kv, 1),
                weight(d, kv, 1),
                weight(d, d, 0),
                gain(),
                weight(d, ff, 1),
                weight(d, ff, 1),
                weight(ff, d, 0),
            )
            for _ in range(layers)
        ]

    def heads(self, y):
        return y.view(y.shape[0], self.T, -1, self.HEAD).transpose(1, 2)

    def __call__(self, x):
        for n1, q, k, v, o, n2, gate, up, down in self.layers:
            h = F.rms_norm(x, (self.D,), n1)
            y = F.scaled_dot_product_attention(self.heads(h @ q), self.heads(h @ k), self.heads(h @ v), is_causal=True, enable_gqa=True)
            x = x + y.transpose(1, 2).reshape(x.shape) @ o
            h = F.rms_norm(x, (self.D,), n2)
            x = x + (F.silu(h @ gate) * (h @ up)) @ down
        return x


def llama(pp, dp, tp, layers, micro):
    with torch.simulate("h100-8x", devices=pp * dp * tp) as sim:
        each = dp * tp
        meshes = [
            torch.DeviceMesh("cuda", [[p * each + d * tp + t for t in range(tp)] for d in range(dp)], mesh_dim_names=("dp", "tp"))
            for p in range(pp)
        ]
        stages = [Stage(m, layers) for m in meshes]
        opt = torch.optim.AdamW([w for s in stages for layer in s.layers for w in layer], lr=1e-4)
        for step in range(4):
            begin = time.time()
            for _ in range(micro):
                x = torch.empty(dp, Stage.T, Stage.D, dtype=torch.bfloat16, device_mesh=meshes[0], placements=[Shard(0), Replicate()])
                for s in stages:
                    x = s(x if s.mesh == meshes[0] else x.redistribute(s.mesh, [Shard(0), Replicate()]))
                x.float().square().mean().backward()
            opt.step()
            opt.zero_grad()
            sim.step()
            s = sim.report().steps[-1]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"step {step}: {s.calls} calls, {s.plans_built} plans made; client {1e3 * s.client:.0f} ms, controller {1e3 * s.controller:.0f} ms, "
                f"{time.time() - begin:.1f} s in all; {peak:.2f} GB",
                flush=True,
            )


if __name__ == "__main__":
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--devices", default="2,8,64,256,1024")
    a.add_argument("--llama")
    args = a.parse_args()
    if args.llama:
        llama(*(int(v) for v in args.llama.split(",")))
    else:
        print(
            f"{'devices':>8} {'add: client':>12} {'controller':>11} {'plan':>9}   {'sum, all-reduce: client':>23} {'controller':>11} {'plan':>9}"
        )
        for n in args.devices.split(","):
            small_calls(int(n))
