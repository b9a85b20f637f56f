"""What does each way of data parallelism send and hold? Bytes of one training step and memory of one device, as multiples of the parameters' bytes.

    zero.py [DEVICES]

A step is AdamW on residual blocks of two Linear layers, in float32; a batch of two rows a device, so that activations do not count. Peaks are of a device
other than the first one, where the model was made as a whole.
"""

import json
import subprocess
import sys

MODES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
LAYERS, D = 12, 256


def run(mode, n):
    import dtorch
    from dtorch import nn
    from dtorch.distributed.fsdp import fully_shard, shard_optimizer_state
    from dtorch.distributed.tensor import distribute_module

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

        def forward(self, x):
            return x + self.down(dtorch.relu(self.up(x)))

    model, mesh = nn.Sequential(*(Block() for _ in range(LAYERS))), dtorch.init_device_mesh("cpu", (n,))
    if mode == "ZeRO-3":
        for block in model:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
    else:
        distribute_module(model, mesh)
    optimizer = dtorch.optim.AdamW(model.parameters())
    if mode in ("ZeRO-1", "ZeRO-2"):
        shard_optimizer_state(optimizer, mesh, gradients=mode == "ZeRO-2")
    x = dtorch.distribute_tensor(dtorch.randn(2 * n, D), mesh, [dtorch.Shard(0)])
    for _ in range(3):
        dtorch.comm_report(reset=True)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    sent = {}
    for row in dtorch.comm_report():
        sent[row["kind"]] = sent.get(row["kind"], 0) + row["bytes"] / n
    whole = sum(p.numel() for p in model.parameters()) * 4
    stats = dtorch.memory_stats(f"cpu:{n - 1}")
    kinds = {k: v / whole for k, v in sent.items() if v / whole > 0.005}
    print(json.dumps({"sent": kinds, "held": stats["allocated"] / whole, "peak": stats["allocated_peak"] / whole}))


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    if len(sys.argv) > 2:
        return run(sys.argv[2], n)
    print(f"{n} devices; in units of the parameters' bytes, a device\n{'':<16}{'sent':>6}{'held':>7}{'peak':>7}   collectives")
    for mode in MODES:
        out = json.loads(subprocess.run([sys.executable, __file__, str(n), mode], capture_output=True, text=True, check=True).stdout)
        kinds = ", ".join(f"{k} {v:.2f}" for k, v in sorted(out["sent"].items()))
        print(f"{mode:<16}{sum(out['sent'].values()):>6.2f}{out['held']:>7.2f}{out['peak']:>7.2f}   {kinds}", flush=True)


main()
