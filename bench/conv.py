"""Convolutions, forward and with both gradients: dtorch beside PyTorch, in turns. Options: turns.py."""

import turns

CASES = [  # name, images, input channels, output channels, size, kernel, stride, groups, transposed
    ("3x3", 8, 32, 64, 64, 3, 1, 1, False),
    ("3x3 few channels", 8, 3, 64, 64, 3, 1, 1, False),
    ("3x3 stride 2", 16, 64, 128, 32, 3, 2, 1, False),
    ("7x7 stride 2", 4, 3, 64, 112, 7, 2, 1, False),
    ("1x1", 8, 64, 256, 28, 1, 1, 1, False),
    ("1x1 stride 2", 16, 64, 128, 32, 1, 2, 1, False),
    ("5x5", 8, 32, 64, 28, 5, 1, 1, False),
    ("depthwise 3x3", 8, 128, 128, 28, 3, 1, 128, False),
    ("depthwise 3x3 stride 2", 8, 128, 128, 56, 3, 2, 128, False),
    ("grouped 3x3", 8, 128, 128, 28, 3, 1, 32, False),
    ("transposed 4x4 stride 2", 8, 64, 32, 32, 4, 2, 1, True),
]


def cases():
    from common import torch

    F = torch.nn.functional
    table = {}
    torch.manual_seed(0)
    for name, n, c, o, size, k, stride, groups, transposed in CASES:
        x = torch.randn(n, c, size, size, requires_grad=True)
        w = torch.randn(*((c, o // groups) if transposed else (o, c // groups)), k, k, requires_grad=True)
        p = {"stride": stride, "padding": 1 if transposed else k // 2, "groups": groups}
        op = F.conv_transpose2d if transposed else F.conv2d
        with torch.no_grad():
            y = op(x, w, **p)
            gy = torch.randn(*y.shape)
        flops = 2 * n * (c // groups) * o * k * k * (size * size if transposed else y.shape[2] * y.shape[3])

        def forward(op=op, x=x, w=w, p=p):
            with torch.no_grad():
                return op(x, w, **p)

        def both(op=op, x=x, w=w, p=p, gy=gy):
            return torch.autograd.grad(op(x, w, **p), (x, w), gy)

        title = f"{name} {n}x{c}x{size}x{size} -> {o}"
        table[title] = (forward, flops)
        table[title + " +grad"] = (both, 3 * flops)
    return table


turns.main(cases, 3)
