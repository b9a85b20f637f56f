"""`python bits.py DEVICES`: collectives with uneven and empty shards, sums, maxima, averages, gathers, all-to-alls; prints a line of hashes for each type, then
how many nodes there are, the most bytes that were in flight, the bytes that came from other nodes and those that were read of their memory."""

import hashlib
import sys

import dtorch
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh

devices = int(sys.argv[1])
dtorch.set_num_threads(1)
dtorch.manual_seed(0)
line = init_device_mesh("cpu", (devices,))
plane = init_device_mesh("cpu", (2, devices // 2)) if devices > 2 else None


def bits(t):
    return hashlib.sha256(t.full_tensor().float().numpy().tobytes()).hexdigest()[:8]


for dtype in (dtorch.float32, dtorch.bfloat16, dtorch.float16):
    out = []
    for rows, columns in ((devices * 37 + 5, 401), (devices, 70001), (3, 30000), (devices * 2, 64)):
        x = distribute_tensor(dtorch.randn(rows, columns).to(dtype), line, [Shard(0)])
        for partial in (x.sum(0), x.mean(0), x.amax(0)):
            for to in (Replicate(), Shard(0)):
                out.append(bits(partial.redistribute(line, [to])))
        for to in (Replicate(), Shard(1)):
            out.append(bits(x.redistribute(line, [to])))
        a = distribute_tensor(dtorch.randn(33, columns).to(dtype), line, [Shard(1)])
        b = distribute_tensor(dtorch.randn(columns, 130).to(dtype), line, [Shard(0)])
        out.append(bits((a @ b).redistribute(line, [Replicate()])))
        if plane:
            y = distribute_tensor(x.full_tensor(), plane, [Shard(0), Shard(1)])
            out += [bits(y.sum(1).redistribute(plane, [Replicate(), Replicate()])), bits(y.redistribute(plane, [Shard(1), Shard(0)]))]
            out.append(bits(y.sum(0).redistribute(plane, [Shard(0), Replicate()])))
    print(*out)
s = dtorch._C._net_stats()
print(len({d.index // 64 for d in line.devices}), s["most_in_flight"], s["bulk_received"], s["read"])
