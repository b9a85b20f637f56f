"""How fast are the kernels? One thread, float32, beside what memory bandwidth or multiplication speed allow; sizes swept, so that growth shows."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if os.environ.get("FRAMEWORK") == "jax":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

from common import Case, compiled, is_jax, main, torch  # noqa: E402

M = 1 << 20
SIZES = (1, M // 16, M, 4 * M, 16 * M)
SQUARES = (32, 128, 512, 1024, 2048)


def size_name(n):
    return f"{n // M} M" if n >= M else f"{n // 1024} k" if n >= 1024 else str(n)


def frozen(f):
    """A call of f without gradients, compiled where that is measured."""
    g = compiled(f)

    def call(*args):
        with torch.no_grad():
            return g(*args)

    return call


def in_torch():
    F = torch.nn.functional
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(4096, 1024), torch.ones(1024), torch.zeros(1024)
    q, classes, ids = torch.randn(8, 8, 512, 64), torch.zeros(4096, dtype=torch.int64), torch.randint(0, 4096, (32768,))
    image, kernel = torch.randn(8, 32, 64, 64), torch.randn(64, 32, 3, 3)
    return {
        "array": torch.randn,
        "wrap": frozen,
        "add": lambda x, y: x + y,
        "chain": lambda x, y: torch.tanh((x * y + 1.0) * 0.5 - y) * x + y,
        "sum": lambda x: x.sum(),
        "matmul": lambda x, y: x @ y,
        "softmax": (lambda x: torch.softmax(x, -1), rows),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (1024,), w, b), rows, weight, bias),
        "gelu": (lambda x: F.gelu(x), rows),
        "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), rows),
        "cross_entropy": (lambda x, t: F.cross_entropy(x, t), rows, classes),
        "sum of rows": (lambda x: x.sum(-1), rows),
        "sum of columns": (lambda x: x.sum(0), rows),
        "transposed copy": (lambda x: x.t().contiguous(), rows),
        "embedding": (lambda i, w: F.embedding(i, w), ids, rows),
        "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q),
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), image, kernel),
    }


def in_jax():
    import jax
    import jax.numpy as jnp

    key = jax.random.PRNGKey(0)
    array = lambda *shape: jax.random.normal(key, shape)  # noqa: E731
    rows, weight, bias = array(4096, 1024), jnp.ones(1024), jnp.zeros(1024)
    q, classes, ids = array(8, 512, 8, 64), jnp.zeros(4096, jnp.int32), jax.random.randint(key, (32768,), 0, 4096)

    def layer_norm(x, w, b):
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt((c**2).mean(-1, keepdims=True) + 1e-5) * w + b

    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")

    return {
        "array": array,
        "wrap": jax.jit,
        "add": lambda x, y: x + y,
        "chain": lambda x, y: jnp.tanh((x * y + 1.0) * 0.5 - y) * x + y,
        "sum": lambda x: x.sum(),
        "matmul": lambda x, y: x @ y,
        "softmax": (lambda x: jax.nn.softmax(x, -1), rows),
        "layer_norm": (layer_norm, rows, weight, bias),
        "gelu": (lambda x: jax.nn.gelu(x, approximate=False), rows),
        "gelu tanh": (lambda x: jax.nn.gelu(x), rows),
        "cross_entropy": (lambda x, t: -jnp.take_along_axis(jax.nn.log_softmax(x), t[:, None], -1).mean(), rows, classes),
        "sum of rows": (lambda x: x.sum(-1), rows),
        "sum of columns": (lambda x: x.sum(0), rows),
        "transposed copy": (lambda x: x.T + 0, rows),
        "embedding": (lambda i, w: w[i], ids, rows),
        "attention": (lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True), q),
        "conv2d": (conv, array(8, 32, 64, 64), array(64, 32, 3, 3)),
    }


ROWS = 4 * 4096 * 1024
# name: (title, what it moves or multiplies)
SINGLE = {
    "softmax": ("softmax 4096 x 1024", {"moved": 2 * ROWS}),
    "layer_norm": ("layer_norm 4096 x 1024", {"moved": 2 * ROWS}),
    "gelu": ("gelu 4096 x 1024", {"moved": 2 * ROWS}),
    "gelu tanh": ("gelu tanh 4096 x 1024", {"moved": 2 * ROWS}),
    "cross_entropy": ("cross_entropy 4096 x 1024", {"moved": ROWS}),
    "sum of rows": ("sum of rows 4096 x 1024", {"moved": ROWS}),
    "sum of columns": ("sum of columns 4096 x 1024", {"moved": ROWS}),
    "transposed copy": ("transposed copy 4096 x 1024", {"moved": 2 * ROWS}),
    "embedding": ("embedding 32768 of 4096 x 1024", {"moved": 2 * 4 * 32768 * 1024}),
    "attention": ("attention, causal 8 x 8 x 512 x 64", {"operations": 4 * 64 * 512 * 512 * 64 / 2}),
    "conv2d": ("conv2d 8 x 32 x 64 x 64, 3 x 3, 64", {"operations": 2 * 8 * 64 * 64 * 64 * 32 * 9}),
}


def cases():
    f = in_jax() if is_jax else in_torch()
    table = {}

    def add(title, function, *args, **limit):
        call = f["wrap"](function)
        table[title] = Case(lambda: call(*args), **limit)

    for n in SQUARES:
        add(f"matmul {n} x {n}", f["matmul"], f["array"](n, n), f["array"](n, n), operations=2 * n**3)
    for name in ("attention", "conv2d"):
        add(SINGLE[name][0], *f[name], **SINGLE[name][1])
    for n in SIZES:
        x, y = f["array"](n), f["array"](n)
        add(f"add of {size_name(n)}", f["add"], x, y, moved=12 * n)
        add(f"seven element-wise ops, {size_name(n)}", f["chain"], x, y, moved=12 * n)
        add(f"sum of {size_name(n)}", f["sum"], x, moved=4 * n)
    x, y = f["array"](8 * M), f["array"](8 * M)
    add("seven element-wise ops, 8 M", f["chain"], x, y, moved=12 * 8 * M)
    for name, (title, limit) in SINGLE.items():
        if "moved" in limit:
            add(title, *f[name], **limit)
    return table


if __name__ == "__main__":
    main(__file__, cases)
