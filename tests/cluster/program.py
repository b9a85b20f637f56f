"""What netns.sh and slurm.sh run: `python program.py DP`. Trains on a mesh (DP, 2); prints the loss of every fifth step, an element of a large tensor that
lies on all devices, and how many nodes the mesh lies on. With DTORCH_CHECKPOINT, as dtorch-run sets it, it saves, fails in its first attempt and goes on in
the next."""

import os
import sys

import dtorch
from dtorch import Shard, checkpoint, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dtorch.manual_seed(0)
mesh = init_device_mesh("cpu", (int(sys.argv[1]), 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 8))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer, "rng": checkpoint.RNG(), "step": 0}
folder = os.environ.get("DTORCH_CHECKPOINT")
newest = checkpoint.latest(folder) if folder and os.path.isdir(folder) else None
if newest:
    state = checkpoint.load(newest, state)
for step in range(state["step"], 20):
    x = distribute_tensor(dtorch.randn(48, 32), mesh["dp"], [Shard(0)])
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 12 and folder and os.environ["DTORCH_RUN_ATTEMPT"] == "0":
        sys.exit(3)
    if step % 5 == 4:
        print(f"{loss.item():.5f}", end=" ")
        if folder:
            checkpoint.save(f"{folder}/step-{step + 1}", {**state, "step": step + 1})
big = distribute_tensor(dtorch.arange(600000.0), mesh, [Shard(0), Shard(0)])
print(int(big.full_tensor()[599999].item()), len({d.index // 64 for d in mesh.devices}))
