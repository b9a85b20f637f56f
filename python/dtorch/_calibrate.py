"""``python -m dtorch calibrate``: measures this machine for the cost model and writes what it found to the user's cache.

A handful of operators, each large enough to hide what calling it costs, timed for one thread and for all threads a device. Times are of the processor
(divided by the threads), so that other work on the machine disturbs little; the least of several is kept. Without this file a stand-in is used, and the order
of work in pipelines, which rests on the same model, is that of the stand-in.
"""

from __future__ import annotations

import json
import os
import time

import dtorch
from dtorch import nn
from dtorch._simulate import cache_file, load_hardware

F = nn.functional


def _run(fn, n):
    """Processor seconds of n calls, each waited for: what nobody keeps is not computed, and what is equal is computed once."""
    begin = time.process_time()
    for _ in range(n):
        kept = fn()
        dtorch.synchronize()
        del kept
    return time.process_time() - begin


_waiting = 0.0  # what calling and waiting costs, without the operator


def _seconds(fn, at_least=0.03, times=4, share=1):
    """Processor seconds of one fn(), over the threads that share the work: the least of several measurements."""
    _run(fn, 3)
    n = 1
    while (took := _run(fn, n)) < at_least:
        n = max(n + 1, int(n * min(10.0, 1.3 * at_least / max(took, 1e-9))))
    return max(min(_run(fn, n) for _ in range(times)) / n - _waiting, 1e-8) / share


def _gemm(n, dtype, share):
    a, b = dtorch.randn(n, n).to(dtype), dtorch.randn(n, n).to(dtype)
    return _seconds(lambda: a @ b, share=share)


def _matmul_rates(share):
    """FLOP/s of large products by dtype, and the FLOP of a product that reaches half of it in float32."""
    big = {t: _gemm(512, getattr(dtorch, t), share) for t in ("float64", "bfloat16", "float16")}
    rates = {t: 2 * 512**3 / s for t, s in big.items()}
    large = max(2 * n**3 / _gemm(n, dtorch.float32, share) for n in (512, 768))
    rates["float32"] = large
    small = _gemm(96, dtorch.float32, share)
    return rates, max(0.0, small * large - 2 * 96**3)


def _backward(fn, *args):
    def run():
        for a in args:
            a.grad = None
        fn(*args).sum().backward()
        return [a.grad for a in args]

    return run


def _rate_of(fn, args, share):
    """FLOP/s of forward and backward, counted by the simulation of the same."""
    for a in args:
        a.requires_grad_()
    run = _backward(fn, *args)
    took = _seconds(run, share=share)

    def again(*given):
        return _backward(fn, *given)()

    return dtorch.estimate(again, *args, hardware=load_hardware("cpu-plain")).flops / took


def measure(threads):
    """A hardware description of one device with so many threads."""
    before = dtorch.get_num_threads()
    dtorch.set_num_threads(threads)
    try:
        rates, half = _matmul_rates(threads)
        peak = rates["float32"]
        q, k, v = (dtorch.randn(4, 4, 256, 64) for _ in range(3))
        attention = _rate_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), threads)
        x, w = dtorch.randn(16, 64, 32, 32), dtorch.randn(64, 64, 3, 3)
        conv = _rate_of(lambda x, w: F.conv2d(x, w, padding=1), (x, w), threads)
        small, large, other = dtorch.randn(1 << 15), dtorch.randn(1 << 24), dtorch.randn(1 << 24)
        near = dtorch.randn(1 << 15)
        vector = 24 * small.numel() / _seconds(lambda: F.gelu(small), share=threads)
        cached = 3 * 4 * small.numel() / _seconds(lambda: dtorch.add(small, near), share=threads)
        bandwidth = 3 * 4 * large.numel() / _seconds(lambda: dtorch.add(large, other), times=3, share=threads)
    finally:
        dtorch.set_num_threads(before)
    return {
        "name": f"this processor, {threads} thread{'s' * (threads > 1)} a device",
        "flops": rates,
        "vector_flops": vector,
        "efficiency": {"matmul": 1, "conv": conv / peak, "attention": attention / peak, "vector": 1},
        "half_flops": {"matmul": half},
        "memory_bandwidth": bandwidth,
        "cache_bytes": 1 << 20,
        "cache_bandwidth": max(cached, bandwidth),
        "kernel_overhead": 1e-6,
        "memory": 0,
        "overlap": False,
    }


def _links():
    """Two devices: latency of a small all-reduce, bandwidth of a large one."""
    mesh = dtorch.init_device_mesh("cpu", (2,))

    def all_reduce(n):
        x = dtorch.randn(2, n, device_mesh=mesh, placements=[dtorch.Shard(0)])
        return _seconds(lambda: x.sum(0).redistribute(mesh, [dtorch.Replicate()]), share=2) - _seconds(lambda: x.sum(0), share=2)

    latency = max(all_reduce(16) / 2, 1e-6)
    n = 1 << 20
    return [{"bandwidth": 4 * n / max(all_reduce(n) - 2 * latency, 1e-6), "latency": latency}]


def main():
    """Measures, writes the file, says where."""
    global _waiting
    cores = dtorch.get_num_threads()
    one = dtorch.ones(1)
    _waiting = _seconds(lambda: one + one)
    found = {"cores": cores, "links": _links(), "by_threads": {}}
    for threads in sorted({1, cores}):
        found["by_threads"][str(threads)] = measure(threads)
        h = found["by_threads"][str(threads)]
        print(
            f"{h['name']}: {h['flops']['float32'] / 1e9:.4g} GFLOP/s float32, {h['flops']['bfloat16'] / 1e9:.4g} bfloat16, "
            f"attention {100 * h['efficiency']['attention']:.0f} %, convolution {100 * h['efficiency']['conv']:.0f} % of it, "
            f"{h['memory_bandwidth'] / 1e9:.3g} GB/s"
        )
    path = cache_file()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1)
    os.replace(path + ".new", path)
    print(f"written to {path}")
    return 0
