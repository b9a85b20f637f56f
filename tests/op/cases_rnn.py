"""Recurrent layers: the operators behind nn.RNN, nn.LSTM and nn.GRU."""

import dtorch as dt
import numpy as np

CASES = []
ERRORS = []
GATES = (1, 1, 4, 3)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(mode, x, h, c, w, b, wr):
    u = h @ w.T + (0 if b is None else b)
    if mode == 3:
        (xr, xz, xn), (ur, uz, un) = np.split(x, 3, -1), np.split(u, 3, -1)
        z = sigmoid(xz + uz)
        n = np.tanh(xn + sigmoid(xr + ur) * un)
        return n + z * (h - n), c
    if mode < 2:
        return (np.tanh(x + u) if mode == 0 else np.maximum(x + u, 0)), c
    i, f, g, o = np.split(x + u, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (h if wr is None else h @ wr.T), c


def reference(mode, reverse):
    def ref(x, h, c=None, w=None, b=None, wr=None, sizes=None):
        counts = [h.shape[0]] * x.shape[0] if sizes is None else list(sizes)
        starts = np.cumsum(counts) - counts
        flat = x.reshape(-1, x.shape[-1])
        y = np.zeros((flat.shape[0], h.shape[1]))
        h, c = h.copy(), None if c is None else c.copy()
        for t in range(len(counts))[:: -1 if reverse else 1]:
            k, at = counts[t], slice(starts[t], starts[t] + counts[t])
            h[:k], new = step(mode, flat[at], h[:k], None if c is None else c[:k], w, b, wr)
            y[at] = h[:k]
            if c is not None:
                c[:k] = new
        y = y.reshape(*x.shape[:-1], h.shape[1])
        return (y, h, c) if mode == 2 else (y, h)

    return ref


def layer(mode, reverse):
    def run(x, h, c, w, b, wr, sizes):
        out = dt._C._ops.rnn_layer(x, h, c, w, b, wr, sizes, mode, reverse)
        return tuple(o.to(x.dtype) for o in (out[:3] if mode == 2 else out[:2]))

    return run


def case(mode, T, N, H, reverse=False, bias=True, out=None, sizes=None, **more):
    G, P = GATES[mode], out or H

    def args(rng):
        r = rng.standard_normal
        rows = (sum(sizes),) if sizes else (T, N)
        x, h, c = r((*rows, G * H)), 0.5 * r((N, P)), 0.5 * r((N, H))
        w, b, wr = r((G * H, P)) / P**0.5, r(G * H), r((P, H)) / H**0.5
        if mode == 1:  # away from the kink, on one side or the other for good
            x = np.where(x < 0, x - 4, x + 4)
            h, w = np.abs(h), w * 0.2
        return x, h, c if mode == 2 else None, w, b if bias else None, wr if out else None, np.array(sizes) if sizes else None

    ref = reference(mode, reverse)
    word = "-".join(
        [("tanh", "relu", "lstm", "gru")[mode], f"{T}x{N}x{H}"]
        + [w for w, on in (("reverse", reverse), ("packed", sizes), (f"out{out}", out), ("plain", not bias)) if on]
    )
    more = {"grad": 2, "tol": 4, **more}
    CASES.append(dict(op=layer(mode, reverse), args=args, ref=ref, id=word, **more))


for mode in range(4):
    case(mode, 3, 5, 6)
    case(mode, 5, 13, 18, reverse=True, bias=False)  # enough rows for packed weights, units beyond a tile
    case(mode, 4, 4, 5, sizes=[4, 3, 3, 1])
    case(mode, 4, 25, 17, sizes=[25, 20, 20, 6], reverse=True, grad=True)
    case(mode, 3, 100, 70, grad=True, place=False, tol=8)  # several blocks of rows, several tiles
case(2, 3, 5, 6, out=4)
case(2, 4, 15, 40, out=35, reverse=True, grad=True, tol=8)
case(2, 5, 20, 18, out=3, sizes=[20, 19, 10, 5, 5])
case(2, 1, 1, 4)
case(3, 2, 0, 4, grad=False)

for change, error, match in [
    (dict(h=(4, 6)), RuntimeError, "batch of 5, h0 of 4"),
    (dict(w=(24, 5)), RuntimeError, r"weight_hh must have shape \(24, 6\)"),
    (dict(c=(5, 5)), RuntimeError, "c0 must have shape"),
    (dict(b=(6,)), RuntimeError, "bias_hh must have shape"),
    (dict(x=(3, 5, 23)), RuntimeError, "23 columns"),
    (dict(x=(15, 24), sizes=[5, 6, 4]), IndexError, r"batch_sizes\[1\] is 6"),
    (dict(x=(15, 24), sizes=[5, 5, 4]), IndexError, "sum up to 14, but there are 15"),
]:
    shapes = {"x": (3, 5, 24), "h": (5, 6), "c": (5, 6), "w": (24, 6), "b": (24,), **change}

    def args(rng, s=shapes):
        return *(np.ones(s[k]) for k in "xhcwb"), None, np.array(s["sizes"]) if "sizes" in s else None

    ERRORS.append(dict(op=layer(2, False), args=args, error=error, match=match))
