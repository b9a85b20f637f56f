"""Random programs on random meshes with random placements (strided and Partial ones too) give what they give on one device, and so do their
gradients. DTORCH_EXAMPLES=5000 runs that many; hypothesis shrinks what fails to the shortest program."""

import math
import os

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dtorch
import dtorch.nn.functional as F
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

EXAMPLES = int(os.environ.get("DTORCH_EXAMPLES", "250"))
MESHES = [(2,), (3,), (4,), (5,), (2, 2), (3, 2), (2, 3), (1, 3), (2, 1, 2), (2, 2, 2)]
MOST = 400  # elements of an intermediate result


class Run:
    """One run of a program: `pick(n)` gives the program's next choice below n, `leaf` an input, `lay` may move a tensor."""

    def __init__(self, pick, place=lambda t: t, lay=lambda t: t):
        self.pick, self.place, self.lay = pick, place, lay
        self.leaves, self.rng = [], np.random.default_rng(0)

    def leaf(self, *shape):
        self.leaves.append(self.place(dtorch.tensor(self.rng.standard_normal(shape))).requires_grad_())
        return self.leaves[-1]

    def ints(self, low, high, *shape):
        return dtorch.tensor(self.rng.integers(low, max(high, low + 1), shape))

    def dim(self, x):
        return self.pick(x.ndim)

    def distinct(self, x):
        """Values far enough apart: rounding may not decide between two of them."""
        return x * 0.01 + self.place(dtorch.tensor(self.rng.permutation(x.numel()).reshape(x.shape) * 1.0))


def pointwise(r, x):
    fs = [
        lambda x: x.tanh(),
        lambda x: x * 0.5 + 1,
        lambda x: F.gelu(x),
        lambda x: x.sigmoid().log(),
        lambda x: dtorch.where(x > 0, x, x * 0.1),
        lambda x: x.clamp(-1, 1),
        lambda x: (x.tanh() + 2).reciprocal(),
        lambda x: x.sin() ** 2,
        lambda x: x.masked_fill(x < -0.5, 0.25),
        lambda x: x.contiguous(),
        lambda x: -x,
        lambda x: x.abs().add(1).sqrt(),
        lambda x: F.silu(x),
    ]
    return fs[r.pick(len(fs))](x)


def along(r, x):
    d = r.dim(x)
    fs = [
        lambda: x.softmax(d),
        lambda: x.log_softmax(d),
        lambda: x - x.mean(d, keepdim=True),
        lambda: x / (x.abs().amax(d, keepdim=True) + 1),
        lambda: x.cumsum(d),
        lambda: (x.tanh() + 2).cumprod(d).log(),
        lambda: x.logcumsumexp(d),
        lambda: x.flip(d),
        lambda: x.roll(r.pick(5) - 2, d),
        lambda: x.diff(dim=d) if x.shape[d] > 1 else x,
        lambda: F.normalize(x, dim=d),
        lambda: x.logsumexp(d, keepdim=True),
        lambda: x.var(d, correction=0, keepdim=True),
        lambda: x.std(d, correction=0, keepdim=True) + x,
        lambda: x.norm(dim=d, keepdim=True),
        lambda: x.sum(d, keepdim=True) * x,
        lambda: x.prod(d, keepdim=True).tanh(),
        lambda: F.layer_norm(x, x.shape[-1:]),
        lambda: F.rms_norm(x, x.shape[-1:]),
        lambda: F.glu(x, d) if x.shape[d] % 2 == 0 else x,
    ]
    return fs[r.pick(len(fs))]()


def ordered(r, x):
    x = r.distinct(x)
    d = r.dim(x)
    k = 1 + r.pick(x.shape[d])
    fs = [
        lambda: x.sort(d, descending=True)[0],
        lambda: x.topk(k, d)[0],
        lambda: x.topk(k, d, largest=False)[0],
        lambda: x.max(d, keepdim=True)[0],
        lambda: x.min(d, keepdim=True)[0],
        lambda: x.cummax(d)[0],
        lambda: x.cummin(d)[0],
        lambda: x.kthvalue(k, d, keepdim=True)[0],
        lambda: x.median(d, keepdim=True)[0],
        lambda: x.gather(d, x.argmax(d, keepdim=True)),
        lambda: x.gather(d, x.argsort(d)),
        lambda: x * (x.argmin().to(x.dtype) * 0.01 + 1),
        lambda: x.amax(d, keepdim=True) - x.amin(d, keepdim=True),
    ]
    return fs[r.pick(len(fs))]() * 0.1


def reshape(r, x):
    d, kind = r.dim(x), r.pick(9)
    if kind == 0 and x.ndim > 1:
        return x.transpose(d, r.dim(x))
    if kind == 1 and x.ndim > 2:
        return x.permute(*range(1, x.ndim), 0)
    if kind == 2 and x.ndim > 1:
        d = r.pick(x.ndim - 1)
        return x.flatten(d, d + 1)
    if kind == 3 and x.ndim < 4:
        f = [i for i in range(1, x.shape[d] + 1) if x.shape[d] % i == 0]
        return x.unflatten(d, (f[r.pick(len(f))], -1))
    if kind == 4 and x.ndim < 4:
        return x.unsqueeze(r.pick(x.ndim + 1))
    if kind == 5 and x.ndim > 1 and x.shape[d] == 1:
        return x.squeeze(d)
    if kind == 6 and x.shape[d] == 1:
        return x.expand(*x.shape[:d], 3, *x.shape[d + 1 :])
    if kind == 7:
        return x.reshape(-1)
    f = [i for i in range(1, x.numel() + 1) if x.numel() % i == 0]
    return x.reshape(f[r.pick(len(f))], -1)


def cut(r, x):
    d, n, kind = r.dim(x), 0, r.pick(11)
    n = x.shape[d]
    lo = r.pick(n)
    if kind == 0:
        return x.narrow(d, lo, 1 + r.pick(n - lo))
    if kind == 1:
        return x[(slice(None),) * d + (slice(lo, None, 1 + r.pick(3)),)]
    if kind == 2 and x.ndim > 1:
        return x.select(d, lo)
    if kind == 3:
        return F.pad(x, (r.pick(3), r.pick(3)) + ((r.pick(2), 0) if x.ndim > 1 else ()), value=0.5)
    if kind == 4:
        return dtorch.cat([x, x.narrow(d, lo, 1)], d)
    if kind == 5:
        return dtorch.cat([x.narrow(d, lo, n - lo), r.lay(r.leaf(*x.shape))], d)
    if kind == 6 and x.ndim < 4:
        return dtorch.stack([x, x * 2], d)
    if kind == 7:
        parts = x.split(1 + r.pick(n), d)
        return parts[r.pick(len(parts))] * 2
    if kind == 8 and x.ndim > 1:
        parts = x.unbind(d)
        return parts[0] + parts[-1]
    if kind == 9 and x.ndim < 4:
        return x.unfold(d, 1 + r.pick(n), 1 + r.pick(2))
    parts = x.chunk(2, d)
    return dtorch.cat(parts[::-1], d)


def indexed(r, x):
    d, kind = r.dim(x), r.pick(13)
    n = x.shape[d]
    i = r.ints(0, n, 3)
    whole = (slice(None),) * d
    if kind == 0:
        return x.index_select(d, i)
    if kind == 1:
        return x[(*whole, i)]
    if kind == 2 and x.ndim > 1:
        return x[i % x.shape[0], r.ints(0, x.shape[1], 3)]
    if kind == 3:
        return x.gather(d, r.ints(0, n, *x.shape))
    if kind == 4:
        return x.index_add(d, i, r.lay(r.leaf(*x.shape[:d], 3, *x.shape[d + 1 :])))
    if kind == 5:
        return x.index_fill(d, i, 0.5)
    if kind == 6:
        return x.scatter_add(d, r.ints(0, n, *x.shape), r.lay(r.leaf(*x.shape)))
    if kind == 7:
        return x.index_put((i % x.shape[0],), r.leaf(*x.shape[1:]), accumulate=True)
    if kind == 8:
        return x.scatter(d, r.ints(0, n, *x.shape[:d], 1, *x.shape[d + 1 :]), 2.0)
    if kind == 9:
        return x.index_copy(d, r.ints(0, n, 1), r.leaf(*x.shape[:d], 1, *x.shape[d + 1 :]))
    if kind == 10:
        return x.take(r.ints(0, x.numel(), 2, 3))
    if kind == 11:
        return F.embedding(r.ints(0, x.shape[0], 4), x) if x.ndim == 2 else x
    return x[r.ints(0, 2, x.shape[0]) == 0] if x.shape[0] > 8 else x.tril() if x.ndim > 1 else x


def products(r, x):
    kind, m = r.pick(9), 1 + r.pick(5)
    if kind == 0:
        return x @ r.lay(r.leaf(x.shape[-1], m))
    if kind == 1:
        return F.linear(x, r.lay(r.leaf(m, x.shape[-1])), r.leaf(m))
    if kind == 2 and x.ndim > 1:
        return r.lay(r.leaf(m, x.shape[-2])) @ x
    if kind == 3 and x.ndim == 2:
        return dtorch.einsum("ij,kj->ik", x, r.lay(r.leaf(m, x.shape[1])))
    if kind == 4 and x.ndim == 3:
        return dtorch.einsum("bij,bjk->bik", x, r.lay(r.leaf(x.shape[0], x.shape[2], m)))
    if kind == 5 and x.ndim == 3:
        k = 1 + 2 * r.pick(2)
        return F.conv1d(x, r.lay(r.leaf(m, x.shape[1], k)), r.leaf(m), padding=k // 2)
    if kind == 6 and x.ndim == 4:
        return F.conv2d(x, r.lay(r.leaf(m, x.shape[1], 1, 3)), None, padding=(0, 1))
    if kind == 7:
        return x + r.lay(r.leaf(*x.shape[-1:]))
    return x * r.lay(r.leaf(*x.shape))


def write(r, x):
    """Writes through views, as statements."""
    y, d = x * 1, r.dim(x)
    n, lo = x.shape[d], r.pick(x.shape[d])
    whole = (slice(None),) * d
    for _ in range(1 + r.pick(2)):
        kind = r.pick(9)
        if kind == 0:
            y[(*whole, lo)] = 0.5
        elif kind == 1:
            y[(*whole, slice(lo, None))].mul_(3)
        elif kind == 2:
            y.transpose(0, d)[lo % x.shape[d] : 1 + lo].add_(1)
        elif kind == 3:
            y[(*whole, slice(None, None, 2))] = y[(*whole, slice(None, None, 2))].flip(d) * 0.5
        elif kind == 4:
            y.view(-1)[1::2].mul_(0.5)
        elif kind == 5:
            y[(*whole, r.ints(0, n, 2))] = 0.25
        elif kind == 6:
            y.narrow(d, lo, n - lo).copy_(r.lay(r.leaf(*x.shape[:d], n - lo, *x.shape[d + 1 :])))
        elif kind == 7:
            y.clamp_(max=0.75)
        else:
            y.select(d, lo).add_(y.sum() * 0.125)
    return y


def loss(r, x):
    kind = r.pick(8)
    if kind == 0 and x.ndim == 2:
        return F.cross_entropy(x, r.ints(0, x.shape[1], x.shape[0]), label_smoothing=0.1)
    if kind == 1 and x.ndim == 2:
        w = dtorch.tensor(np.abs(r.rng.standard_normal(x.shape[1])) + 0.1)
        return F.nll_loss(x.log_softmax(1), r.ints(0, x.shape[1], x.shape[0]), weight=w)
    if kind == 2:
        return F.mse_loss(x, r.leaf(*x.shape))
    if kind == 3:
        return F.binary_cross_entropy_with_logits(x, r.place(dtorch.tensor(r.rng.random(x.shape))))
    if kind == 4:
        return F.smooth_l1_loss(x, r.leaf(*x.shape))
    if kind == 5:
        return F.kl_div(x.log_softmax(-1), r.lay(r.leaf(*x.shape)).softmax(-1), reduction="batchmean")
    if kind == 6:
        return x.norm() + x.var(correction=0)
    return (x * x).mean() + x.sum() * 0.1


STEPS = [pointwise, along, along, ordered, reshape, reshape, cut, cut, indexed, products, products, write]


def program(r):
    x = r.leaf(*[1 + r.pick(6) for _ in range(1 + r.pick(3))])
    for _ in range(2 + r.pick(6)):
        y = r.lay(STEPS[r.pick(len(STEPS))](r, r.lay(x)))
        if 0 < y.numel() <= MOST and y.ndim:
            x = y
    value = loss(r, x)
    value.backward()
    return [value.detach(), x.detach()] + [leaf.grad for leaf in r.leaves], r.leaves


def placements_for(draw, t, mesh, partial):
    """Placements of every kind that t may have: strided shards where a dimension has rows, Partial(sum) where it may."""
    out, rows = [], {}
    for _ in range(mesh.ndim):
        kind = draw(8)
        if kind < 4 and t.ndim:
            d = draw(t.ndim)
            f = [i for i in range(2, t.shape[d]) if t.shape[d] % i == 0]
            if kind == 3 and f:
                rows.setdefault(d, f[draw(len(f))])
                out.append(Shard(d, split_factor=rows[d]))
            else:
                out.append(Shard(d))
        elif kind == 4 and partial:
            out.append(Partial("sum" if draw(2) else "avg"))
        else:
            out.append(Replicate())
    kinds = {p.reduce_op for p in out if isinstance(p, Partial)}
    return [Replicate() if isinstance(p, Partial) and len(kinds) > 1 else p for p in out]


def check(data):
    def live(n):
        return data.draw(st.integers(0, n - 1)) if n > 1 else 0

    chosen = []

    def record(n):
        chosen.append(live(n))
        return chosen[-1]

    want, _ = program(Run(record))
    mesh = init_device_mesh("cpu", MESHES[live(len(MESHES))])
    replay = iter(chosen)

    def place(t):
        return distribute_tensor(t, mesh, placements_for(live, t, mesh, False))

    def lay(t):
        if t.device_mesh is None or live(4):
            return t
        return t.redistribute(placements=placements_for(live, t, t.device_mesh, True))

    got, leaves = program(Run(lambda n: next(replay), place, lay))
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(got, want)):
        assert (a is None) == (b is None), f"result {k}"
        if a is None:
            continue
        assert a.shape == b.shape and a.dtype == b.dtype
        a = (a.full_tensor() if a.device_mesh is not None else a).numpy()
        b = b.numpy()
        scale = max(1.0, float(np.abs(b).max())) if b.size and math.isfinite(float(np.abs(b).max())) else 1.0
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * scale, err_msg=f"result {k} on {mesh}")
    for leaf in leaves:
        assert leaf.grad is None or leaf.grad.placements == leaf.placements


@settings(max_examples=EXAMPLES, deadline=None, derandomize="DTORCH_EXAMPLES" not in os.environ, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.data())
def test_random_programs(data):
    check(data)
