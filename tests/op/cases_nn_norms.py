"""Softmax family, normalisations and losses."""

import numpy as np
from scipy import special as sp

CASES = []
ERRORS = []


def case(op, args, ref, grad=2, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, **more))


SHAPE = (5, 7, 3)
for d in (0, 1, -1):
    x = lambda rng, d=d: (rng.standard_normal(SHAPE), d)
    case("softmax", x, sp.softmax, id=f"dim{d}")
    case("log_softmax", x, sp.log_softmax, id=f"dim{d}")
    case("nn.functional.softmin", x, lambda x, d: sp.softmax(-x, d), id=f"dim{d}")
case("softmax", lambda rng: (rng.standard_normal((3, 1300)), 1), sp.softmax, True, id="long")
case("softmax", lambda rng: (rng.standard_normal((4, 6)) * 200, 1), sp.softmax, False, id="extreme", dtypes=("float64", "float32"))
case("log_softmax", lambda rng: (rng.standard_normal((4, 6)) * 200, 1), sp.log_softmax, False, id="extreme", dtypes=("float64", "float32"))


def layer_norm(x, shape, w=None, b=None, eps=1e-5):
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    return (y if w is None else y * w) + (0 if b is None else b)


def rms_norm(x, shape, w=None, eps=None):
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y = x / np.sqrt((x * x).mean(axes, keepdims=True) + eps)
    return y if w is None else y * w


HALF = {"tol": 2}
case("nn.functional.layer_norm", lambda rng: (rng.standard_normal((4, 3, 6)), (6,), rng.random(6), rng.random(6)), layer_norm, **HALF)
case("nn.functional.layer_norm", lambda rng: (rng.standard_normal((5, 4, 6)), (4, 6), rng.random((4, 6))), layer_norm, id="two", **HALF)
case("nn.functional.layer_norm", lambda rng: (rng.standard_normal((7, 5)) + 3, (5,)), layer_norm, id="plain", tol=4)
case(
    "nn.functional.layer_norm",
    lambda rng: (rng.standard_normal((3, 1200)), (1200,), rng.random(1200), rng.random(1200)),
    layer_norm,
    True,
    id="long",
    **HALF,
)
case("nn.functional.rms_norm", lambda rng: (rng.standard_normal((4, 3, 6)), (6,), rng.random(6), 1e-5), rms_norm, **HALF)
case("nn.functional.rms_norm", lambda rng: (rng.standard_normal((4, 6)), (6,), None, 1e-3), rms_norm, id="plain", **HALF)


def channels(v, x):
    return v.reshape([1, -1] + [1] * (x.ndim - 2))


def group_norm(x, groups, w, b, eps=1e-5):
    y = x.reshape(x.shape[0], groups, -1)
    y = ((y - y.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + eps)).reshape(x.shape)
    return y * channels(w, x) + channels(b, x)


def batch_norm(x, mean, var, w, b, training, eps=1e-5):
    axes = (0, *range(2, x.ndim))
    if training:
        mean, var = x.mean(axes), x.var(axes)
    return (x - channels(mean, x)) / np.sqrt(channels(var, x) + eps) * channels(w, x) + channels(b, x)


case("nn.functional.group_norm", lambda rng: (rng.standard_normal((3, 6, 4)), 2, rng.random(6), rng.random(6)), group_norm, **HALF)
case("nn.functional.instance_norm", lambda rng: (rng.standard_normal((3, 4, 5)), None, None, rng.random(4), rng.random(4)),
     lambda x, m, v, w, b: group_norm(x, 4, w, b), **HALF)  # fmt: skip
for training in (True, False):
    case("nn.functional.batch_norm",
         lambda rng, t=training: (rng.standard_normal((6, 4, 3)), np.zeros(4) + 0.1, np.ones(4) * 1.5, rng.random(4), rng.random(4), t),
         batch_norm, 2 if training else False, id="train" if training else "eval", place=not training, **HALF)  # fmt: skip
case(
    "nn.functional.batch_norm",
    lambda rng: (rng.standard_normal((7, 4)), None, None, rng.random(4), rng.random(4), True),
    batch_norm,
    id="no_stats",
    **HALF,
)


# -- losses; class weights are integers here, since no gradient flows to them --
def reduced(loss, reduction):
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def nll(x, t, w=None, ignore_index=-100, reduction="mean"):
    w = np.ones(x.shape[1]) if w is None else w
    keep = t != ignore_index
    at = np.where(keep, t, 0)
    rows = np.take_along_axis(x, np.expand_dims(at, 1), 1).squeeze(1)
    weight = w[at] * keep
    return (-rows * weight).sum() / weight.sum() if reduction == "mean" else reduced(-rows * weight, reduction)


def cross_entropy(x, t, w=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    lp = sp.log_softmax(x, 1)
    classes = x.shape[1]
    w = np.ones(classes) if w is None else w
    shape = [1, classes] + [1] * (x.ndim - 2)
    if t.shape == x.shape:
        t = t * (1 - label_smoothing) + label_smoothing / classes
        rows = -(lp * t * w.reshape(shape)).sum(1)
        return rows.sum() / (rows.size) if reduction == "mean" else reduced(rows, reduction)
    keep = t != ignore_index
    weight = w[np.where(keep, t, 0)] * keep
    rows = nll(lp, t, w, ignore_index, "none") * (1 - label_smoothing) - (lp * w.reshape(shape)).sum(1) * keep * label_smoothing / classes
    return rows.sum() / weight.sum() if reduction == "mean" else reduced(rows, reduction)


def labels(rng, shape, classes):
    t = rng.integers(0, classes, shape)
    t.flat[::4] = -100
    return t


for reduction in ("mean", "sum", "none"):
    kw = {"reduction": reduction}
    case(
        "nn.functional.nll_loss",
        lambda rng: (sp.log_softmax(rng.standard_normal((9, 4)), 1), labels(rng, 9, 4), rng.integers(1, 5, 4)),
        nll,
        kwargs=kw,
        id=reduction,
    )
    case(
        "nn.functional.cross_entropy",
        lambda rng: (rng.standard_normal((9, 4)), labels(rng, 9, 4), rng.integers(1, 5, 4)),
        cross_entropy,
        kwargs=kw,
        id=reduction,
    )
    case("nn.functional.cross_entropy", lambda rng: (rng.standard_normal((3, 4, 5)), labels(rng, (3, 5), 4), rng.integers(1, 5, 4)), cross_entropy,
         kwargs=kw | {"label_smoothing": 0.2}, id=f"{reduction}-spatial")  # fmt: skip
    case(
        "nn.functional.mse_loss",
        lambda rng: (rng.standard_normal((5, 4)), rng.standard_normal((5, 4))),
        lambda x, t, reduction: reduced((x - t) ** 2, reduction),
        kwargs=kw,
        id=reduction,
    )
    case(
        "nn.functional.l1_loss",
        lambda rng: (rng.random((5, 4)) + 2, rng.random((5, 4))),
        lambda x, t, reduction: reduced(np.abs(x - t), reduction),
        kwargs=kw,
        id=reduction,
    )
case("nn.functional.nll_loss", lambda rng: (rng.standard_normal((3, 4, 5, 2)), labels(rng, (3, 5, 2), 4)), nll, id="spatial")
case("nn.functional.cross_entropy", lambda rng: (rng.standard_normal((9, 4)), labels(rng, 9, 4)), cross_entropy, id="plain")
case("nn.functional.cross_entropy", lambda rng: (rng.standard_normal((6, 900)), rng.integers(0, 900, 6)), cross_entropy, True, id="wide")
case("nn.functional.cross_entropy", lambda rng: (rng.standard_normal((9, 4)), sp.softmax(rng.standard_normal((9, 4)), 1), rng.integers(1, 5, 4)), cross_entropy,
     kwargs={"label_smoothing": 0.1}, id="probabilities")  # fmt: skip


def smooth_l1(x, t, beta):
    d = np.abs(x - t)
    return np.where(d < beta, 0.5 * d**2 / beta, d - 0.5 * beta).mean()


def huber(x, t, delta):
    d = np.abs(x - t)
    return np.where(d <= delta, 0.5 * d**2, delta * (d - 0.5 * delta)).mean()


def bce(x, t, w):
    return (-w * (t * np.log(x) + (1 - t) * np.log(1 - x))).mean()


def bce_logits(x, t, pos_weight):
    return (-(pos_weight * t * np.log(sp.expit(x)) + (1 - t) * np.log(sp.expit(-x)))).mean()


pair = lambda rng: (rng.standard_normal((5, 4)), rng.standard_normal((5, 4)))
case("nn.functional.smooth_l1_loss", pair, smooth_l1, True, kwargs={"beta": 0.7})
case("nn.functional.huber_loss", pair, huber, True, kwargs={"delta": 0.7})
case(
    "nn.functional.binary_cross_entropy",
    lambda rng: (rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0.1, 0.9, (5, 4)), rng.random((5, 4))),
    bce,
    tol=2,
)
case("nn.functional.binary_cross_entropy_with_logits", lambda rng: (rng.standard_normal((5, 4)), rng.random((5, 4))), bce_logits,
     kwargs={"pos_weight": np.array([1.0, 2.0, 0.5, 3.0])})  # fmt: skip
case(
    "nn.functional.kl_div",
    lambda rng: (rng.standard_normal((5, 4)), rng.uniform(0.1, 1, (5, 4))),
    lambda x, t, reduction: (t * (np.log(t) - x)).sum() / 5,
    kwargs={"reduction": "batchmean"},
)
case(
    "nn.functional.kl_div",
    pair,
    lambda x, t, log_target, reduction: (np.exp(t) * (t - x)).sum(),
    kwargs={"log_target": True, "reduction": "sum"},
    id="log",
)

ERRORS += [
    dict(op="softmax", args=lambda rng: (np.zeros((2, 3)), 2), error=IndexError, match="out of range"),
    dict(op="softmax", args=lambda rng: (np.arange(3), 0), error=NotImplementedError, match="floating point"),
    dict(op="nn.functional.layer_norm", args=lambda rng: (np.zeros((2, 3)), (4,)), error=RuntimeError, match="normalized_shape"),
    dict(
        op="nn.functional.cross_entropy",
        args=lambda rng: (np.zeros((2, 3)), np.array([0, 3])),
        error=IndexError,
        match="Target 3 is out of bounds",
    ),
    dict(op="nn.functional.cross_entropy", args=lambda rng: (np.zeros((2, 3)), np.array([0, 1, 2])), error=ValueError, match="batch_size"),
    dict(
        op="nn.functional.nll_loss",
        args=lambda rng: (np.zeros((2, 3)), np.array([0, 1]), None),
        kwargs={"reduction": "average"},
        error=ValueError,
        match="average",
    ),
    dict(
        op="nn.functional.batch_norm",
        args=lambda rng: (np.zeros((1, 3)), None, None, None, None, True),
        error=ValueError,
        match="more than 1 value",
    ),
]
