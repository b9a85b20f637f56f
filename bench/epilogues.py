"""What is there to gain from activations and residuals inside of products? Processor time of all threads for a chain of linear layers alone, and
with gelu and a residual behind each, for small batches: the difference is all that an epilogue could save, arithmetic included.

`python bench/epilogues.py`; the figures are in docs/design/043.
"""

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import torch, wait  # noqa: E402

F = torch.nn.functional


def spent(step, x, rounds=15):
    best = float("inf")
    for _ in range(rounds):
        wait()
        begin = time.process_time()
        y = x
        for _ in range(40):
            y = step(y)
        wait()
        best = min(best, (time.process_time() - begin) / 40)
    return best * 1e6


def main():
    print(f"{'batch':>6} {'hidden':>7} {'linear':>9} {'+ relu':>9} {'+ gelu + x':>11}   microseconds of processor time a layer")
    with torch.no_grad():
        for hidden in (256, 512, 1024):
            w, b = torch.randn(hidden, hidden) / hidden**0.5, torch.randn(hidden)
            for batch in (1, 8, 64):
                x = torch.randn(batch, hidden)
                plain = spent(lambda y, w=w, b=b: F.linear(y, w, b), x)
                relu = spent(lambda y, w=w, b=b: F.relu(F.linear(y, w, b)), x)
                full = spent(lambda y, w=w, b=b: F.gelu(F.linear(y, w, b), approximate="tanh") + y, x)
                print(f"{batch:>6} {hidden:>7} {plain:>9.1f} {relu:>9.1f} {full:>11.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
