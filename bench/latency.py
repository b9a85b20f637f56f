"""What does each kind of call cost the caller, and how long does a read take? Tiny tensors, one thread; microseconds.

Calls are measured in processor time of the calling thread, reads by the clock. `FRAMEWORK=torch python bench/latency.py` is the same in PyTorch;
the figures are in docs/performance.md.
"""

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import show, torch, wait  # noqa: E402

F, nn = torch.nn.functional, torch.nn


def caller(name, call, n=2000, rounds=9):
    for _ in range(200):
        call()
    best = float("inf")
    for _ in range(rounds):
        wait()
        begin = time.thread_time()
        for _ in range(n):
            call()
        best = min(best, (time.thread_time() - begin) / n)
    show(name, best * 1e6, "us")


def clock(name, call, n=2000, rounds=7):
    for _ in range(300):
        call()
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - begin) / n)
    show(name, best * 1e6, "us")


def calls():
    a, b, x, w, q = torch.ones(1), torch.ones(1), torch.randn(8, 8), torch.randn(8, 8), torch.randn(1, 2, 8, 8)
    g, linear, norm = torch.ones(1, requires_grad=True), nn.Linear(8, 8), nn.LayerNorm(8)
    relu, three = nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with torch.no_grad():
        caller("a + b", lambda: a + b)
        caller("a + 1", lambda: a + 1)
        caller("x @ w", lambda: x @ w)
        caller("x.sum()", lambda: x.sum())
        caller("x.view(64)", lambda: x.view(64))
        caller("x[0]", lambda: x[0])
        caller("x.add_(1.0)", lambda: x.add_(1.0))
        caller("F.linear", lambda: F.linear(x, w))
        caller("F.layer_norm", lambda: F.layer_norm(x, (8,), norm.weight, norm.bias))
        caller("F.scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
        caller("nn.ReLU", lambda: relu(x))
        caller("nn.Linear", lambda: linear(x))
        caller("nn.LayerNorm", lambda: norm(x))
        caller("nn.Sequential of three", lambda: three(x))
    caller("a + b, recorded", lambda: g + b)
    caller("nn.Linear, recorded", lambda: linear(x))

    def chain(backward):
        h = g
        for _ in range(50):
            h = h * b
        if backward:
            h.backward()

    caller("50 multiplications, recorded", lambda: chain(False), 100)
    caller("50 multiplications and backward", lambda: chain(True), 100)


def reads():
    x, i, rows = torch.ones(1), torch.randn(1, 64), [torch.randn(1, 64) for _ in range(1000)]
    mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    with torch.no_grad():
        clock("x.item()", lambda: x.item())
        clock("(x + 1).item()", lambda: (x + 1).item())
        clock("MLP 64-128-128-10 of one row, each read", lambda: mlp(i).sum().item())

        def stream():
            torch.stack([mlp(r) for r in rows]).sum().item()

        best = float("inf")
        for _ in range(12):
            begin = time.perf_counter()
            stream()
            best = min(best, time.perf_counter() - begin)
        show("the same in a stream, 1,000 rows", best * 1e3, "us")


def steps():
    params = [nn.Parameter(torch.randn(8, 8)) for _ in range(1000)]
    for p in params:
        p.grad = torch.zeros(8, 8)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"):
        optimizer = getattr(torch.optim, name)(params, lr=1e-3)
        caller(f"{name}.step() of 1,000 parameters", optimizer.step, 5, 7)
    caller("clip_grad_norm_ of 1,000 parameters", lambda: nn.utils.clip_grad_norm_(params, 1.0), 5, 7)


if __name__ == "__main__":
    torch.set_num_threads(1)
    calls()
    reads()
    steps()
