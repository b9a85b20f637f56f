"""Matrix products, shapes by dtypes: dtorch beside PyTorch, in turns. Options: turns.py."""

import turns

SHAPES = [  # batch, m, n, k
    (1, 1, 4096, 1024),
    (1, 1, 1024, 4096),
    (1, 2, 1024, 1024),
    (1, 4, 4096, 1024),
    (1, 8, 1024, 1024),
    (1, 16, 1024, 4096),
    (1, 37, 501, 129),
    (1, 64, 64, 64),
    (1, 128, 128, 128),
    (1, 256, 1024, 256),
    (1, 512, 512, 512),
    (1, 1024, 1024, 1024),
    (1, 1000, 10, 1000),
    (1, 4096, 16, 64),
    (1, 64, 64, 16384),
    (64, 64, 64, 64),
    (256, 16, 16, 16),
    (32, 128, 64, 128),
    (16, 1, 512, 64),
]


def cases():
    from common import torch

    F = torch.nn.functional
    table = {}
    torch.manual_seed(0)

    def add(name, call, operations):
        def run():
            with torch.no_grad():
                return call()

        table[name] = (run, operations)

    for dtype in ("float32", "bfloat16", "float16"):
        for b, m, n, k in SHAPES:
            t = getattr(torch, dtype)
            x, w = torch.randn(b, m, k).to(t), torch.randn(b, n, k).to(t)
            operations = 2 * b * m * n * k
            if b > 1:
                y = w.transpose(1, 2).contiguous()
                add(f"{dtype} bmm {b}x({m}x{k} . {k}x{n})", lambda x=x, y=y: torch.bmm(x, y), operations)
            else:
                x, w = x[0].contiguous(), w[0].contiguous()
                y = w.t().contiguous()
                add(f"{dtype} linear {m}x{k} . ({n}x{k})'", lambda x=x, w=w: F.linear(x, w), operations)
                add(f"{dtype} mm {m}x{k} . {k}x{n}", lambda x=x, y=y: x @ y, operations)
        q = torch.randn(2, 8, 256, 64).to(getattr(torch, dtype))
        add(f"{dtype} attention 2x8x256x64", lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True), 2 * 2 * 16 * 256 * 256 * 64 / 2)
    return table


turns.main(cases, 3)
