"""The training step of train.py in JAX, jit-compiled: the same arguments and lines, for the table of run.py."""

import json
import os
import resource
import statistics
import sys
import time

L, D, H, T, B, V, THREADS = map(int, sys.argv[1:8] or (2, 64, 4, 64, 4, 512, 1))
MODE = sys.argv[8] if len(sys.argv) > 8 else "plain"
if MODE != "plain":
    sys.exit(0)
if hasattr(os, "sched_setaffinity"):  # nothing else keeps XLA from using every core
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def init(key):
    def normal(*shape):
        nonlocal key
        key, use = jax.random.split(key)
        return 0.02 * jax.random.normal(use, shape)

    def linear(i, o):
        return {"w": normal(i, o), "b": jnp.zeros(o)}

    def norm():
        return {"w": jnp.ones(D), "b": jnp.zeros(D)}

    def block():
        names = {n: linear(D, D) for n in ("q", "k", "v", "out")}
        return names | {"up": linear(D, 4 * D), "down": linear(4 * D, D), "norm1": norm(), "norm2": norm()}

    return {"embed": normal(V, D), "position": normal(T, D), "blocks": [block() for _ in range(L)], "norm": norm()}


def normalise(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def linear(p, x):
    return x @ p["w"] + p["b"]


def loss_of(params, ids, targets):
    x = params["embed"][ids] + params["position"]
    for p in params["blocks"]:
        h = normalise(p["norm1"], x)
        q, k, v = (linear(p[n], h).reshape(B, T, H, D // H) for n in ("q", "k", "v"))
        x = x + linear(p["out"], jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(B, T, D))
        x = x + linear(p["down"], jax.nn.gelu(linear(p["up"], normalise(p["norm2"], x))))
    logits = normalise(params["norm"], x) @ params["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def step(params, first, second, count, ids, targets):
    loss, grads = jax.value_and_grad(loss_of)(params, ids, targets)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, second, grads)

    def update(p, m, s):
        return p * (1 - 1e-5) - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(update, params, first, second), first, second, loss


def show(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit, "limit": None}), flush=True)


begun = time.time() - float(os.environ.get("BENCH_STARTED", time.time()))
start = time.perf_counter()
params = init(jax.random.PRNGKey(0))
count_of = sum(p.size for p in jax.tree.leaves(params))
first, second = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
ids, targets = (jax.random.randint(jax.random.PRNGKey(i), (B, T), 0, V) for i in (1, 2))
compiled = jax.jit(step, donate_argnums=(0, 1, 2))
times = []
for i in range(15):
    params, first, second, loss = compiled(params, first, second, jnp.float32(i + 1), ids, targets)
    loss.item()
    times.append(time.perf_counter() - start)
    start = time.perf_counter()
name = f"GPT {count_of / 1e6:.2f} M, {THREADS} threads, {MODE}"
show(name + ": step", statistics.median(times[3:]) * 1e3, "ms")
show(name + ": first step from process start", (begun + times[0]) * 1e3, "ms")
show(name + ": largest memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")
