"""What netns.sh cuts off: works over as many devices as there are nodes until one is lost, then prints after how long, and what it was told. Exit status 4."""

import sys
import time

import dtorch
from dtorch import Replicate, Shard, distribute_tensor

mesh = dtorch.init_device_mesh("cpu", (len(dtorch.devices()),))
x = distribute_tensor(dtorch.ones(300, 300), mesh, [Shard(0)])
begun = time.monotonic()
while True:
    good = time.monotonic()
    try:
        (x @ x.redistribute(mesh, [Replicate()])).sum().item()
    except dtorch.NodeLostError as e:
        print(f"{time.monotonic() - good:.1f} {' '.join(str(e).split())}", flush=True)
        sys.exit(4)
    if begun and time.monotonic() - begun > 1:
        begun = None
        print("running", flush=True)
