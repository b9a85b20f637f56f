"""`python rows.py DEVICES`: exchanges of rows of experts, forwards and back: uneven, empty, all to one expert, more and fewer experts than devices.

Prints a line of hashes, a line of what comm_report counted, then how many nodes there are, the most bytes that were in flight, the bytes that came
from other nodes and those that were read of their memory."""

import hashlib
import sys
from collections import Counter

import dtorch
from dtorch import Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import ExpertParallel, parallelize_module

devices = int(sys.argv[1])
dtorch.set_num_threads(1)
line = init_device_mesh("cpu", (devices,), mesh_dim_names=("ep",))
planes = [init_device_mesh("cpu", (2, devices // 2), mesh_dim_names=names) for names in (("dp", "ep"), ("ep", "dp"))] if devices % 2 == 0 else []


def bits(t):
    return hashlib.sha256(t.detach().full_tensor().float().numpy().tobytes()).hexdigest()[:8]


def run(mesh, tokens, experts, top_k, skew, dtype=dtorch.float32, width=56):
    dtorch.manual_seed(tokens + experts)
    moe = nn.MoE(width, 24, experts, top_k).to(dtype)
    with dtorch.no_grad():
        moe.router.weight[0] += skew  # and the tokens of the first expert grow with it
    x = (dtorch.randn(tokens, width) + 0.2).to(dtype)
    cut = [Shard(0)] * mesh.ndim
    parallelize_module(moe, mesh["ep"], ExpertParallel())
    x = distribute_tensor(x, mesh, cut).requires_grad_()
    with dtorch.comm_scope() as report:
        y = moe(x)
        y.float().square().sum().backward()
    counted.update({(r["kind"], r["mesh_dim"], r["line"]): r["bytes"] for r in report})
    counted.update({i: report.per_device.get(d, 0) for i, d in enumerate(mesh.devices)})
    return [bits(y), bits(x.grad), *(bits(p.grad) for p in moe.parameters())]


out, counted = [], Counter()
for mesh in [line, *planes]:
    for tokens, experts, skew in ((devices * 33 + 5, 5, 0.0), (devices * 40, 2 * devices, 0.0), (devices * 20, 3, 5.0), (3, 4, 0.0), (devices * 64, 1, 0.0)):
        out += run(mesh, tokens, experts, min(2, experts), skew)
    out += run(mesh, devices * 24, 7, 3, 0.0, dtorch.bfloat16)
print(*out)
print(*sorted(f"{k}:{n}".replace(" ", "") for k, n in counted.items()))
s = dtorch._C._net_stats()
print(len({d.index // 64 for d in line.devices}), s["most_in_flight"], s["bulk_received"], s["read"])
