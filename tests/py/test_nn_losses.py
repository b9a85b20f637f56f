"""Losses and the other composites of nn.functional: values against NumPy, gradients against finite differences.

FRAMEWORK=torch runs the same tests on PyTorch.
"""

import importlib
import math
import os

import numpy as np
import pytest

torch = importlib.import_module(os.environ.get("FRAMEWORK", "dtorch"))
nn, F = torch.nn, torch.nn.functional
rng = np.random.RandomState(1)


def R(*shape):
    return rng.standard_normal(shape)


def t(a):
    return torch.from_numpy(np.array(a, order="C"))


def v(x):
    return x.detach().numpy()


def softplus(x):
    return np.log1p(np.exp(x))


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def norm(x, p=2):
    return (abs(x) ** p).sum(-1) ** (1 / p)


X, Y, Z = R(5, 4), R(5, 4), R(5, 4)
P, Q = rng.rand(5, 4) * 0.9 + 0.05, rng.rand(5, 4) * 0.9 + 0.05
W4, SIGN = rng.rand(4) + 0.1, np.array([1.0, -1.0, -1.0, 1.0, 1.0])
CLS = np.array([0, 2, 1, 3, 0])
COUNT = np.array([[0.0, 1, 2, 5]] * 5)
MULTI = np.array([[3, 0, -1, 1], [1, -1, 2, 0], [0, 1, 2, 3], [-1, 1, 1, 1], [2, 2, -1, 0]])


def picked(x):
    return x[np.arange(5), CLS]


def multilabel_margin(x):
    out = np.zeros(5)
    for n in range(5):
        row = list(MULTI[n])
        listed = row[: row.index(-1)] if -1 in row else row
        for j in listed:
            out[n] += sum(max(0, 1 - (x[n, j] - x[n, i])) for i in range(4) if i not in listed) / 4
    return out


def huber(d, delta):
    d = abs(d)
    return np.where(d < delta, d * d / 2, delta * (d - delta / 2))


def cos(a, b):
    return (a * b).sum(-1) / norm(a) / norm(b)


def margin2(x):
    z = np.maximum(0.7 - picked(x)[:, None] + x, 0) ** 2 * W4[CLS][:, None]
    z[np.arange(5), CLS] = 0
    return z.sum(1) / 4


def triplet(x):
    near, far = norm(x - Y + 1e-6), np.minimum(norm(x - Z + 1e-6), norm(Y - Z + 1e-6))
    return np.maximum(1 + near - far, 0)


# name, module, inputs, loss of each sample (a function of the first input), and what "mean" divides by when not their number
LOSSES = [
    ("l1", nn.L1Loss, {}, (X, Y), lambda x: abs(x - Y)),
    ("mse", nn.MSELoss, {}, (X, Y), lambda x: (x - Y) ** 2),
    ("smooth_l1", nn.SmoothL1Loss, {"beta": 0.3}, (X, Y), lambda x: huber(x - Y, 0.3) / 0.3),
    ("huber", nn.HuberLoss, {"delta": 0.3}, (X, Y), lambda x: huber(x - Y, 0.3)),
    ("nll", nn.NLLLoss, {}, (X, CLS), lambda x: -picked(x)),
    ("cross_entropy", nn.CrossEntropyLoss, {}, (X, CLS), lambda x: -picked(log_softmax(x))),
    ("smoothed", nn.CrossEntropyLoss, {"label_smoothing": 0.1}, (X, CLS),
     lambda x: -0.9 * picked(log_softmax(x)) - 0.1 * log_softmax(x).mean(1)),
    ("soft_target", nn.CrossEntropyLoss, {}, (X, P), lambda x: -(log_softmax(x) * P).sum(1)),
    ("bce", nn.BCELoss, {}, (P, Q), lambda x: -(Q * np.log(x) + (1 - Q) * np.log(1 - x))),
    ("bce_logits", nn.BCEWithLogitsLoss, {"pos_weight": W4}, (X, P), lambda x: W4 * P * softplus(-x) + (1 - P) * softplus(x)),
    ("kl", nn.KLDivLoss, {}, (X, P), lambda x: P * (np.log(P) - x)),
    ("kl_log", nn.KLDivLoss, {"log_target": True}, (X, Y), lambda x: np.exp(Y) * (Y - x)),
    ("poisson", nn.PoissonNLLLoss, {}, (X, COUNT), lambda x: np.exp(x) - COUNT * x),
    ("poisson_rate", nn.PoissonNLLLoss, {"log_input": False}, (P, COUNT), lambda x: x - COUNT * np.log(x + 1e-8)),
    ("gaussian", nn.GaussianNLLLoss, {"full": True}, (X, Y, P),
     lambda x: 0.5 * (np.log(P) + (x - Y) ** 2 / P) + 0.5 * math.log(2 * math.pi)),
    ("gaussian_floor", nn.GaussianNLLLoss, {"eps": 0.5}, (X, Y, P),
     lambda x: 0.5 * (np.log(np.maximum(P, 0.5)) + (x - Y) ** 2 / np.maximum(P, 0.5))),
    ("hinge", nn.HingeEmbeddingLoss, {"margin": 0.8}, (X[:, 0], SIGN), lambda x: np.where(SIGN == 1, x, np.maximum(0, 0.8 - x))),
    ("soft_margin", nn.SoftMarginLoss, {}, (X[:, 0], SIGN), lambda x: softplus(-SIGN * x)),
    ("multilabel_soft_margin", nn.MultiLabelSoftMarginLoss, {"weight": W4}, (X, P),
     lambda x: (W4 * (P * softplus(-x) + (1 - P) * softplus(x))).mean(1)),
    ("multilabel_margin", nn.MultiLabelMarginLoss, {}, (X, MULTI), multilabel_margin),
    ("cosine_embedding", nn.CosineEmbeddingLoss, {"margin": 0.1}, (X, Y, SIGN),
     lambda x: np.where(SIGN == 1, 1 - cos(x, Y), np.maximum(0, cos(x, Y) - 0.1))),
    ("margin_ranking", nn.MarginRankingLoss, {"margin": 0.2}, (X[:, 0], Y[:, 0], SIGN),
     lambda x: np.maximum(0, -SIGN * (x - Y[:, 0]) + 0.2)),
    ("multi_margin", nn.MultiMarginLoss, {"p": 2, "margin": 0.7, "weight": W4}, (X, CLS), margin2),
    ("triplet", nn.TripletMarginLoss, {"swap": True}, (X, Y, Z), triplet),
    ("triplet_distance", nn.TripletMarginWithDistanceLoss, {"distance_function": lambda a, b: (a - b).abs().sum(1)}, (X, Y, Z),
     lambda x: np.maximum(1 + abs(x - Y).sum(1) - abs(x - Z).sum(1), 0)),
]  # fmt: skip


@pytest.mark.parametrize("case", LOSSES, ids=[c[0] for c in LOSSES])
def test_loss(case):
    _, cls, options, inputs, want = case
    options = {k: t(o) if isinstance(o, np.ndarray) else o for k, o in options.items()}
    each = want(inputs[0])
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.mean())):
        m = cls(reduction=reduction, **options)
        got = m(*(t(a) for a in inputs))
        assert got.shape == np.shape(expected)
        np.testing.assert_allclose(v(got), expected, rtol=1e-9, atol=1e-10)
    x = t(inputs[0]).requires_grad_()
    m(x, *(t(a) for a in inputs[1:])).backward()
    h, fd = 1e-6, np.zeros(inputs[0].shape)
    for at in np.ndindex(*fd.shape):
        up, down = inputs[0].copy(), inputs[0].copy()
        up[at] += h
        down[at] -= h
        fd[at] = (want(up).mean() - want(down).mean()) / (2 * h)
    np.testing.assert_allclose(v(x.grad), fd, rtol=1e-5, atol=1e-6)


def test_weights_and_ignored_classes_of_nll():
    x, w = log_softmax(X), W4
    keep = CLS != 2
    each = -picked(x) * w[CLS] * keep
    for loss, arg in ((nn.NLLLoss, x), (nn.CrossEntropyLoss, X)):
        options = {"weight": t(w), "ignore_index": 2}
        np.testing.assert_allclose(v(loss(reduction="none", **options)(t(arg), t(CLS))), each, rtol=1e-10)
        np.testing.assert_allclose(float(loss(**options)(t(arg), t(CLS))), each.sum() / (w[CLS] * keep).sum(), rtol=1e-10)
    images = R(2, 4, 3, 2)
    classes = rng.randint(0, 4, (2, 3, 2))
    want = -np.take_along_axis(log_softmax(images), classes[:, None], 1)[:, 0]
    np.testing.assert_allclose(v(nn.CrossEntropyLoss(reduction="none")(t(images), t(classes))), want, rtol=1e-10)


def test_kl_batchmean_and_full_poisson():
    want = (P * (np.log(P) - X)).sum() / 5
    np.testing.assert_allclose(float(nn.KLDivLoss(reduction="batchmean")(t(X), t(P))), want, rtol=1e-10)
    c = np.maximum(COUNT, 1)
    stirling = np.where(COUNT > 1, c * np.log(c) - c + 0.5 * np.log(2 * np.pi * c), 0)
    got = F.poisson_nll_loss(t(X), t(COUNT), full=True, reduction="none")
    np.testing.assert_allclose(v(got), np.exp(X) - COUNT * X + stirling, rtol=1e-10)


def test_loss_errors_and_old_arguments():
    for f in (
        lambda: F.soft_margin_loss(t(X), t(X), reduction="no"),
        lambda: F.multi_margin_loss(t(X), t(CLS), p=3),
        lambda: nn.TripletMarginLoss(margin=-1.0),
        lambda: F.gaussian_nll_loss(t(X), t(Y), t(R(3))),
        lambda: nn.MultiMarginLoss(p=3),
    ):
        with pytest.raises(ValueError):
            f()
    with pytest.raises(RuntimeError, match="0D or 1D target tensor expected"):
        F.cosine_embedding_loss(t(X), t(Y), t(X))
    with pytest.warns(UserWarning, match="please use reduction='sum' instead"):
        m = nn.MSELoss(size_average=False)
    assert m.reduction == "sum"


def test_distances():
    np.testing.assert_allclose(v(F.pairwise_distance(t(X), t(Y), p=3)), norm(X - Y + 1e-6, 3), rtol=1e-10)
    assert F.pairwise_distance(t(X), t(Y), keepdim=True).shape == (5, 1)
    np.testing.assert_allclose(v(F.cosine_similarity(t(X), t(Y))), cos(X, Y), rtol=1e-10)
    np.testing.assert_allclose(v(nn.CosineSimilarity(dim=0)(t(X), t(Y))), cos(X.T, Y.T), rtol=1e-10)
    np.testing.assert_allclose(v(F.normalize(t(X))), X / norm(X)[:, None], rtol=1e-10)
    assert not v(F.normalize(torch.zeros(2, 3))).any()
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    np.testing.assert_allclose(v(F.pdist(t(X))), [norm(X[i] - X[j]) for i, j in pairs], rtol=1e-10)
    assert F.pdist(t(X[:1])).shape == (0,)


def test_local_response_norm():
    x = R(2, 6, 3, 2)
    want = np.zeros_like(x)
    for c in range(6):
        lo, hi = max(0, c - 1), min(6, c + 2)
        want[:, c] = x[:, c] / (1 + 0.1 / 3 * (x[:, lo:hi] ** 2).sum(1)) ** 0.75
    np.testing.assert_allclose(v(F.local_response_norm(t(x), 3, alpha=0.1)), want, rtol=1e-10)


def test_gumbel_softmax_draws_with_the_right_probabilities():
    logits = torch.log(torch.tensor([0.1, 0.2, 0.7])).expand(4000, 3)
    hard = v(F.gumbel_softmax(logits, hard=True))
    assert np.allclose(hard.sum(1), 1, atol=1e-5) and set(np.unique(hard.round(4))) == {0.0, 1.0}
    assert abs(hard.mean(0) - [0.1, 0.2, 0.7]).max() < 0.04
    x = torch.zeros(2, 3, requires_grad=True)
    (F.gumbel_softmax(x, hard=True) * torch.arange(3.0)).sum().backward()
    assert np.abs(v(x.grad)).sum() > 0


def test_rrelu_draws_slopes_in_training():
    x = -torch.ones(1000)
    y = v(F.rrelu(x, 0.2, 0.4, training=True))
    assert y.min() >= -0.4 and y.max() <= -0.2 and y.std() > 0.03
    assert np.allclose(v(F.rrelu(x, 0.2, 0.4)), -0.3)


def test_grid_sample_and_affine_grid():
    x = R(2, 3, 5, 6)
    identity = t(np.tile(np.eye(2, 3), (2, 1, 1)))
    for corners in (False, True):
        grid = F.affine_grid(identity, (2, 3, 5, 6), align_corners=corners)
        for mode in ("bilinear", "nearest"):
            np.testing.assert_allclose(v(F.grid_sample(t(x), grid, mode=mode, align_corners=corners)), x, rtol=1e-9, atol=1e-9)
    at = t(np.full((2, 1, 1, 2), 5.0))  # far outside
    zeros, border = (v(F.grid_sample(t(x), at, padding_mode=p, align_corners=False))[..., 0, 0] for p in ("zeros", "border"))
    assert not zeros.any() and np.allclose(border, x[..., -1, -1])
    half = t(np.array([[[[0.0, -1.0]]]] * 2))  # middle of the first row, between the third and fourth column
    got = v(F.grid_sample(t(x), half, align_corners=True))[..., 0, 0]
    np.testing.assert_allclose(got, (x[..., 0, 2] + x[..., 0, 3]) / 2, rtol=1e-9)
    g = t(rng.rand(2, 2, 2, 2) - 0.5).requires_grad_()
    y = t(x).requires_grad_()
    F.grid_sample(y, g, align_corners=False).sum().backward()
    assert np.abs(v(g.grad)).sum() > 0 and np.isclose(v(y.grad).sum(), 2 * 3 * 4)
    z = R(1, 2, 3, 4, 5)
    grid = F.affine_grid(t(np.eye(3, 4)[None]), (1, 2, 3, 4, 5), align_corners=False)
    np.testing.assert_allclose(v(F.grid_sample(t(z), grid, align_corners=False)), z, rtol=1e-9, atol=1e-9)


def test_interpolate():
    x = R(2, 3, 4, 6)
    np.testing.assert_array_equal(v(F.interpolate(t(x), scale_factor=2)), x.repeat(2, 2).repeat(2, 3))
    np.testing.assert_allclose(v(F.interpolate(t(x), size=(2, 3), mode="area")), x.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)), rtol=1e-10)
    # Linear interpolation reproduces a plane; averaging keeps a constant.
    row, col = np.arange(4.0), np.arange(6.0)
    plane = t((2 * row[:, None] + 3 * col)[None, None])
    got = v(F.interpolate(plane, size=(7, 11), mode="bilinear", align_corners=True))[0, 0]
    np.testing.assert_allclose(got, 2 * np.linspace(0, 3, 7)[:, None] + 3 * np.linspace(0, 5, 11), rtol=1e-6)
    # Cubic: four taps at distances 1.25, 0.25, 0.75, 1.75 of the kernel with a = -3/4.
    taps = np.array(
        [-3 / 4 * (d**3 - 5 * d**2 + 8 * d - 4) if d > 1 else 5 / 4 * d**3 - 9 / 4 * d**2 + 1 for d in (1.25, 0.25, 0.75, 1.75)]
    )
    got = v(F.interpolate(t(x), size=(4, 12), mode="bicubic"))
    np.testing.assert_allclose(got[..., 5], x[..., 1:5] @ taps, rtol=1e-6)
    np.testing.assert_allclose(got[..., 6], x[..., 1:5] @ taps[::-1], rtol=1e-6)
    for mode in ("bilinear", "bicubic"):
        small = v(F.interpolate(t(np.ones((1, 1, 9, 9)) * 5), size=(2, 3), mode=mode, antialias=True))
        np.testing.assert_allclose(small, 5, rtol=1e-6)
    y = t(x).requires_grad_()
    F.interpolate(y, size=(3, 11), mode="bilinear").sum().backward()
    assert np.isclose(v(y.grad).sum(), 2 * 3 * 33)
    assert F.interpolate(t(R(1, 2, 5)), size=3, mode="linear").shape == (1, 2, 3)
    assert F.interpolate(t(R(1, 2, 5, 4, 3)), scale_factor=(1, 2, 3), mode="trilinear").shape == (1, 2, 5, 8, 9)
    for kw, error in (
        ({}, ValueError),
        ({"size": 3, "scale_factor": 2}, ValueError),
        ({"size": (1, 2, 3)}, ValueError),
        ({"size": 3, "align_corners": True}, ValueError),
        ({"size": 3, "mode": "linear"}, NotImplementedError),
        ({"size": 0}, RuntimeError),
    ):
        with pytest.raises(error):
            F.interpolate(t(x), **kw)


def test_fold_is_the_transpose_of_unfold():
    x, options = R(2, 3, 7, 6), {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (2, 1), "stride": (2, 1)}
    columns = F.unfold(t(x), **options)
    y = R(*columns.shape)
    back = v(F.fold(t(y), (7, 6), **options))
    np.testing.assert_allclose((v(columns) * y).sum(), (x * back).sum(), rtol=1e-9)
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (1, 1)))
    np.testing.assert_array_equal(v(columns)[0, :, 0], padded[0, :, 0:3, 0:3:2].reshape(-1))


def test_attention_with_dropout():
    q, k, value = R(2, 4, 5, 8), R(2, 2, 6, 8), R(2, 2, 6, 3)
    mask = R(5, 6) > -0.5
    mask[2] = True
    for kw in ({}, {"is_causal": True}, {"attn_mask": t(mask)}, {"attn_mask": t(R(5, 6))}, {"scale": 0.3}):
        want = v(F.scaled_dot_product_attention(t(q), t(k), t(value), enable_gqa=True, **kw))
        torch.manual_seed(0)
        draws = [v(F.scaled_dot_product_attention(t(q), t(k), t(value), dropout_p=0.3, enable_gqa=True, **kw)) for _ in range(400)]
        assert np.abs(draws[0] - want).max() > 0.05 and np.abs(draws[0] - draws[1]).max() > 0.05
        assert np.abs(np.mean(draws, 0) - want).max() < 0.35 and np.abs(np.mean(draws, 0) - want).mean() < 0.05
    m = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5)
    assert m(torch.ones(3, 1, 8)).shape == (3, 1, 8)
