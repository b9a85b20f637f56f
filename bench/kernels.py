"""How fast are the kernels? One thread, float32, milliseconds, beside what memory bandwidth or multiplication speed allow."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import best_seconds, memory_bandwidth, multiply_speed, show, torch  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
F = torch.nn.functional
bandwidth, speed = memory_bandwidth(), multiply_speed()
N = 1 << 23
x, y = torch.randn(N), torch.randn(N)
rows, weight, bias = torch.randn(4096, 1024), torch.ones(1024), torch.zeros(1024)
square = torch.randn(1024, 1024)
q = torch.randn(8, 8, 512, 64)
image, kernel = torch.randn(8, 32, 64, 64), torch.randn(64, 32, 3, 3)
classes = torch.zeros(4096, dtype=torch.int64)
ids = torch.randint(0, 4096, (32768,))


def moved(n_bytes):
    return n_bytes / bandwidth


def multiplied(operations):
    return operations / speed


CASES = {
    "seven element-wise ops, 8 M": (lambda: torch.tanh((x * y + 1.0) * 0.5 - y) * x + y, moved(3 * 4 * N)),
    "softmax 4096 x 1024": (lambda: torch.softmax(rows, -1), moved(2 * 4 * 4096 * 1024)),
    "layer_norm 4096 x 1024": (lambda: F.layer_norm(rows, (1024,), weight, bias), moved(2 * 4 * 4096 * 1024)),
    "gelu 4096 x 1024": (lambda: F.gelu(rows), moved(2 * 4 * 4096 * 1024)),
    "gelu tanh 4096 x 1024": (lambda: F.gelu(rows, approximate="tanh"), moved(2 * 4 * 4096 * 1024)),
    "cross_entropy 4096 x 1024": (lambda: F.cross_entropy(rows, classes), moved(4 * 4096 * 1024)),
    "sum of 8 M": (lambda: x.sum(), moved(4 * N)),
    "sum of rows": (lambda: rows.sum(-1), moved(4 * 4096 * 1024)),
    "sum of columns": (lambda: rows.sum(0), moved(4 * 4096 * 1024)),
    "transposed copy 4096 x 1024": (lambda: rows.t().contiguous(), moved(2 * 4 * 4096 * 1024)),
    "embedding 32768 of 4096 x 1024": (lambda: F.embedding(ids, rows), moved(2 * 4 * 32768 * 1024)),
    "matmul 1024": (lambda: square @ square, multiplied(2 * 1024**3)),
    "attention, causal 8 x 8 x 512 x 64": (
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        multiplied(4 * 64 * 512 * 512 * 64 / 2),
    ),
    "conv2d 8 x 32 x 64 x 64, 3 x 3, 64": (lambda: F.conv2d(image, kernel, padding=1), multiplied(2 * 8 * 64 * 64 * 64 * 32 * 9)),
}
for name, (call, limit) in CASES.items():

    def run(call=call):
        with torch.no_grad():
            return call()

    show(name, best_seconds(run, 5) * 1e3, "ms", limit * 1e3)
