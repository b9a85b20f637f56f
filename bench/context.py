"""What context parallelism sends: bytes per way of attention, as multiples of the bytes of all queries.

    python bench/context.py [--devices 4] [--heads 8] [--kv-heads 8] [--length 1024]

All devices together receive these bytes; a device receives 1/n of them (under an unbalanced causal mask: on average).
"""

import argparse

import dtorch as dt
import dtorch.nn.functional as F
from dtorch.distributed import context_parallel

WAYS = [("gather", True), ("ulysses", True), ("ring", False), ("ring", True)]


def moved(fn):
    """(messages, bytes) of the collectives that fn causes."""
    dt.synchronize()
    dt.comm_report(reset=True)
    held = fn()
    dt.synchronize()
    rows = dt.comm_report(reset=True)
    return held, sum(r["count"] for r in rows), sum(r["bytes"] for r in rows)


def main():
    """Prints one line a way."""
    p = argparse.ArgumentParser(description=__doc__)
    for name, default in (("devices", 4), ("heads", 8), ("kv-heads", 8), ("length", 1024)):
        p.add_argument("--" + name, type=int, default=default)
    a = p.parse_args()
    mesh = dt.init_device_mesh("cpu", (a.devices,), mesh_dim_names=("cp",))
    whole = a.heads * a.length * 64 * 4
    print(f"{a.devices} devices, {a.heads} heads, {a.kv_heads} key heads, {a.length} rows of 64\n")
    print(f"{'':18}{'causal':8}{'forward':>18}{'backward':>18}")
    for way, balance in WAYS:
        for causal in (False, True):
            if way == "ring" and balance and not causal:
                continue
            q, k, v, g = (
                dt.distribute_tensor(dt.randn(1, h, a.length, 64), mesh, [dt.Shard(2)]) for h in (a.heads, a.kv_heads, a.kv_heads, a.heads)
            )
            leaves = [x.requires_grad_(True) for x in (q, k, v)]
            with context_parallel(way, load_balance=balance):
                y, n, size = moved(lambda: F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True))  # noqa: B023
            _, m, back = moved(lambda: (y.backward(g), [x.grad for x in leaves], dt.synchronize()))  # noqa: B023
            name = way + (", balanced" if way == "ring" and balance else "")
            print(f"{name:18}{'yes' if causal else 'no':8}{size / whole:9.2f} in {n:3d}  {back / whole:10.2f} in {m:3d}")


if __name__ == "__main__":
    main()
