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


def processor_time():
    """Processor seconds of this process so far. The kernel adds up a thread's time when it stops running: so workers get the time to fall asleep."""
    time.sleep(2e-4)
    return time.process_time()


def _run(fn, n):
    """Processor seconds of n calls, each waited for: what nobody keeps is not computed, and what is equal is computed once."""
    begin = processor_time()
    for _ in range(n):
        kept = fn()
        dtorch.synchronize()
        del kept
    return processor_time() - begin


_waiting = 0.0  # what calling and waiting costs, without the operator


def _seconds(fn, at_least=0.0015, times=5, share=1):
    """Processor seconds of one fn(), over the threads that share the work: the least of several measurements."""
    _run(fn, 2)
    n = 1
    while (took := _run(fn, n)) < at_least:
        n = max(n + 1, int(n * min(20.0, 1.3 * at_least / max(took, 1e-9))))
    return max(min([took, *(_run(fn, n) for _ in range(times - 1))]) / n - _waiting, 1e-8) / share


def _gemm(n, dtype, share):
    a, b = dtorch.randn(n, n).to(dtype), dtorch.randn(n, n).to(dtype)
    return _seconds(lambda: a @ b, share=share)


def _matmul_rates(share):
    """FLOP/s of large products by dtype, and the FLOP of a product that reaches half of it in float32."""
    rates = {
        t: 2 * n**3 / _gemm(n, getattr(dtorch, t), share)
        for t, n in (("float32", 512), ("bfloat16", 512), ("float16", 512), ("float64", 320))
    }
    small = _gemm(96, dtorch.float32, share)
    return rates, max(0.0, small * rates["float32"] - 2 * 96**3)


def _steps():
    """Forward and backward of what has gradients of other kinds: {kind of work: (function, its arguments, FLOP as the operators count them)}."""
    found = {}

    def add(kind, fn, *shapes):
        def run(*args):
            for a in args:
                a.grad = None
            fn(*args).sum().backward()
            return [a.grad for a in args]

        args = [dtorch.randn(*s).requires_grad_() for s in shapes]
        found[kind] = (run, args, dtorch.estimate(run, *args, hardware=load_hardware("cpu-plain")).flops)

    add("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(2, 4, 256, 64)] * 3)
    add("conv", lambda x, w: F.conv2d(x, w, padding=1, stride=2), (4, 64, 32, 32), (128, 64, 3, 3))
    add("winograd", lambda x, w: F.conv2d(x, w, padding=1), (4, 64, 32, 32), (64, 64, 3, 3))
    net = nn.LSTM(8, 384)  # few inputs: their product is a large one, the recurrent ones are not
    x = dtorch.randn(8, 20, 8)

    def recurrent():
        net.zero_grad()
        net(x)[0].sum().backward()
        return [p.grad for p in net.parameters()]

    def simulated():
        model = nn.LSTM(8, 384)
        model(dtorch.randn(8, 20, 8))[0].sum().backward()
        return [p.grad for p in model.parameters()]

    found["recurrent"] = (recurrent, [], dtorch.estimate(simulated, hardware=load_hardware("cpu-plain")).flops)
    return found


def measure(threads, steps):
    """A hardware description of one device with so many threads. steps: see _steps."""
    before = dtorch.get_num_threads()
    dtorch.set_num_threads(threads)
    try:
        rates, half = _matmul_rates(threads)
        peak = rates["float32"]
        shares = {
            k: flops / _seconds(lambda run=run, args=args: run(*args), share=threads) / peak for k, (run, args, flops) in steps.items()
        }
        small, near, large, other = (dtorch.randn(1 << k) for k in (16, 16, 23, 23))
        vector = 24 * small.numel() / _seconds(lambda: F.gelu(small), share=threads)
        cached = 3 * 4 * small.numel() / _seconds(lambda: dtorch.add(small, near), share=threads)
        bandwidth = 3 * 4 * large.numel() / _seconds(lambda: dtorch.add(large, other), share=threads)
    finally:
        dtorch.set_num_threads(before)
    return {
        "name": f"this processor, {threads} thread{'s' * (threads > 1)} a device",
        "flops": rates,
        "vector_flops": vector,
        "efficiency": {"matmul": 1, **shares, "vector": 1},
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

    def parts(n):
        return dtorch.randn(2, n, device_mesh=mesh, placements=[dtorch.Shard(0)])

    def all_reduce(n):
        x = parts(n).sum(0)
        return _seconds(lambda: x.redistribute(mesh, [dtorch.Replicate()]), share=2)

    few = parts(16)
    latency = max((all_reduce(16) - _seconds(lambda: few + few, share=2)) / 2, 1e-6)
    n = 1 << 21
    return [{"bandwidth": 4 * n / max(all_reduce(n) - 2 * latency, 1e-6), "latency": latency}]


def main():
    """Measures, writes the file, says where."""
    global _waiting
    cores = dtorch.get_num_threads()
    one = dtorch.ones(1)
    _waiting = _seconds(lambda: one + one)
    for dtype in (dtorch.float32, dtorch.float64):
        _gemm(256, dtype, 1)
    time.sleep(0.06)  # a library for products that was loaded just now starts threads, which spin at first
    steps = _steps()
    # links last: from its first use on a second device shares the threads
    found = {
        "cores": cores,
        "by_threads": {str(threads): measure(threads, steps) for threads in sorted({1, cores}, reverse=True)},
        "links": _links(),
    }
    for h in found["by_threads"].values():
        print(
            f"{h['name']}: {h['flops']['float32'] / 1e9:.4g} GFLOP/s float32, {h['flops']['bfloat16'] / 1e9:.4g} bfloat16, "
            f"attention {100 * h['efficiency']['attention']:.0f} %, convolution {100 * h['efficiency']['conv']:.0f} to "
            f"{100 * h['efficiency']['winograd']:.0f} % of it, {h['memory_bandwidth'] / 1e9:.3g} GB/s"
        )
    path = cache_file()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1)
    os.replace(path + ".new", path)
    print(f"written to {path}")
    return 0
