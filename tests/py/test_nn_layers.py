"""Layers: values against NumPy, state dict names and printed forms against PyTorch's.

FRAMEWORK=torch runs the same tests on PyTorch.
"""

import copy
import importlib
import math
import os
import warnings

import numpy as np
import pytest

torch = importlib.import_module(os.environ.get("FRAMEWORK", "dtorch"))
nn = torch.nn
rng = np.random.RandomState(0)


def R(*shape):
    return rng.standard_normal(shape)


def t(a):
    return torch.from_numpy(np.array(a, order="C"))


def v(x):
    return x.detach().numpy()


def state(m):
    return {k: v(p) for k, p in m.state_dict().items()}


def close(got, want, tol=1e-9):
    got = v(got) if isinstance(got, torch.Tensor) else got
    assert got.shape == np.shape(want), (got.shape, np.shape(want))
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def erf(x):
    return np.vectorize(math.erf)(x)


def softplus(x):
    return np.log1p(np.exp(x))


SELU_A, SELU_S = 1.6732632423543772, 1.0507009873554805
ACTIVATIONS = [
    (nn.ReLU(), lambda x: np.maximum(x, 0), "ReLU()"),
    (nn.ReLU6(), lambda x: np.clip(x, 0, 6), "ReLU6()"),
    (nn.SiLU(), lambda x: x * sigmoid(x), "SiLU()"),
    (nn.Mish(), lambda x: x * np.tanh(softplus(x)), "Mish()"),
    (nn.GELU(), lambda x: 0.5 * x * (1 + erf(x / 2**0.5)), "GELU(approximate='none')"),
    (
        nn.GELU("tanh"),
        lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "GELU(approximate='tanh')",
    ),
    (nn.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), "ELU(alpha=0.5)"),
    (nn.CELU(0.5), lambda x: np.maximum(x, 0) + np.minimum(0, 0.5 * np.expm1(x / 0.5)), "CELU(alpha=0.5)"),
    (nn.SELU(), lambda x: SELU_S * np.where(x > 0, x, SELU_A * np.expm1(x)), "SELU()"),
    (nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x), "LeakyReLU(negative_slope=0.2)"),
    (nn.Sigmoid(), sigmoid, "Sigmoid()"),
    (nn.Tanh(), np.tanh, "Tanh()"),
    (nn.LogSigmoid(), lambda x: -softplus(-x), "LogSigmoid()"),
    (nn.Softplus(2.0), lambda x: softplus(2 * x) / 2, "Softplus(beta=2.0, threshold=20.0)"),
    (nn.Softsign(), lambda x: x / (1 + abs(x)), "Softsign()"),
    (nn.Tanhshrink(), lambda x: x - np.tanh(x), "Tanhshrink()"),
    (nn.Hardtanh(-0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), "Hardtanh(min_val=-0.5, max_val=0.7)"),
    (nn.Hardsigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1), "Hardsigmoid()"),
    (nn.Hardswish(), lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Hardswish()"),
    (nn.Hardshrink(0.4), lambda x: np.where(abs(x) > 0.4, x, 0), "Hardshrink(0.4)"),
    (nn.Softshrink(0.4), lambda x: np.sign(x) * np.maximum(abs(x) - 0.4, 0), "Softshrink(0.4)"),
    (nn.Threshold(0.1, 20.0), lambda x: np.where(x > 0.1, x, 20.0), "Threshold(threshold=0.1, value=20.0)"),
    (nn.Softmax(dim=1), lambda x: softmax(x, 1), "Softmax(dim=1)"),
    (nn.Softmin(dim=0), lambda x: softmax(-x, 0), "Softmin(dim=0)"),
    (nn.LogSoftmax(dim=-1), lambda x: np.log(softmax(x, -1)), "LogSoftmax(dim=-1)"),
    (nn.GLU(), lambda x: x[:, :3] * sigmoid(x[:, 3:]), "GLU(dim=-1)"),
    (nn.RReLU().eval(), lambda x: np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2), "RReLU(lower=0.125, upper=0.3333333333333333)"),
    (nn.Identity(3, a=4), lambda x: x, "Identity()"),
]


@pytest.mark.parametrize("case", ACTIVATIONS, ids=[c[2].split("(")[0] for c in ACTIVATIONS])
def test_activation(case):
    module, want, text = case
    x = R(4, 6) * 2
    close(module(t(x)), want(x), 1e-6)
    assert repr(module) == text and not list(module.state_dict())


@pytest.mark.parametrize(
    "name", ["ReLU", "ReLU6", "SiLU", "Mish", "SELU", "ELU", "CELU", "LeakyReLU", "Hardtanh", "Hardswish", "Hardsigmoid"]
)
def test_activation_in_place(name):
    x = R(3, 4)
    want = v(getattr(nn, name)()(t(x)))
    y = t(x)
    out = getattr(nn, name)(inplace=True)(y)
    close(out, want)
    close(y, want)


def test_softmax2d_prelu_and_implicit_softmax():
    x = R(2, 3, 4, 5)
    close(nn.Softmax2d()(t(x)), softmax(x, 1))
    with pytest.raises(ValueError, match="expected input to be 3D or 4D, got 2D"):
        nn.Softmax2d()(t(R(2, 3)))
    m = nn.PReLU(3, dtype=torch.float64)
    close(m(t(x)), np.where(x > 0, x, 0.25 * x))
    assert repr(m) == "PReLU(num_parameters=3)" and list(m.state_dict()) == ["weight"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        close(nn.Softmax()(t(R(2, 3))).sum(1), np.ones(2))
    assert any("Implicit dimension choice" in str(w.message) for w in seen)


def test_linear_bilinear_embedding():
    x = R(2, 5, 3)
    m = nn.Linear(3, 4).double()
    s = state(m)
    close(m(t(x)), x @ s["weight"].T + s["bias"])
    assert repr(m) == "Linear(in_features=3, out_features=4, bias=True)" and abs(s["weight"]).max() <= 1 / 3**0.5
    m = nn.Linear(3, 4, bias=False).double()
    close(m(t(x)), x @ state(m)["weight"].T)
    assert m.bias is None and list(m.state_dict()) == ["weight"]
    m = nn.Bilinear(3, 2, 4).double()
    y = R(2, 5, 2)
    close(m(t(x), t(y)), np.einsum("bti,kij,btj->btk", x, state(m)["weight"], y) + state(m)["bias"])
    ids = np.array([[1, 2], [3, 2]])
    m = nn.Embedding(10, 4, padding_idx=2)
    out = m(t(ids))
    close(out, state(m)["weight"][ids])
    assert not v(out)[0, 1].any() and repr(m) == "Embedding(10, 4, padding_idx=2)"
    out.sum().backward()
    assert v(m.weight.grad)[[1, 3]].all() and not v(m.weight.grad)[2].any()
    frozen = nn.Embedding.from_pretrained(t(R(5, 3)))
    assert not frozen.weight.requires_grad and frozen.weight.shape == (5, 3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    m = nn.EmbeddingBag(10, 4, mode=mode).double()
    w = state(m)["weight"]
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode]
    ids = np.array([1, 2, 3, 4, 5])
    want = np.stack([reduce(w[ids[0:2]], axis=0), np.zeros(4), reduce(w[ids[2:5]], axis=0)])
    close(m(t(ids), t(np.array([0, 2, 2]))), want)
    close(m(t(ids[:4].reshape(2, 2))), np.stack([reduce(w[[1, 2]], axis=0), reduce(w[[3, 4]], axis=0)]))
    assert repr(m) == f"EmbeddingBag(10, 4, mode={mode!r})"
    skip = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=3, include_last_offset=True).double()
    w = state(skip)["weight"]
    want = np.stack([reduce(w[[1, 2]], axis=0), reduce(w[[4, 5]], axis=0)])
    close(skip(t(ids), t(np.array([0, 2, 5]))), want)
    if mode == "sum":
        k = R(5)
        close(m(t(ids), t(np.array([0, 2])), t(k)), np.stack([k[:2] @ state(m)["weight"][1:3], k[2:] @ state(m)["weight"][3:6]]))


def test_layer_rms_and_group_norm():
    x = R(2, 3, 4)
    m = nn.LayerNorm((3, 4)).double()
    with torch.no_grad():
        m.weight.copy_(t(R(3, 4)))
        m.bias.copy_(t(R(3, 4)))
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    close(m(t(x)), (x - mean) / np.sqrt(var + 1e-5) * state(m)["weight"] + state(m)["bias"])
    assert repr(m) == "LayerNorm((3, 4), eps=1e-05, elementwise_affine=True, bias=True)"
    assert list(nn.LayerNorm(4, bias=False).state_dict()) == ["weight"] and not nn.LayerNorm(4, elementwise_affine=False).state_dict()
    m = nn.RMSNorm(4, eps=1e-3).double()
    close(m(t(x)), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3))
    assert repr(m) == "RMSNorm((4,), eps=0.001, elementwise_affine=True)"
    x = R(2, 6, 5)
    m = nn.GroupNorm(3, 6).double()
    g = x.reshape(2, 3, -1)
    want = ((g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    close(m(t(x)), want)
    assert list(m.state_dict()) == ["weight", "bias"]
    with pytest.raises(ValueError, match="must be divisible by num_groups"):
        nn.GroupNorm(4, 6)


@pytest.mark.parametrize(
    ("cls", "shape"),
    [("BatchNorm1d", (6, 3)), ("BatchNorm1d", (6, 3, 2)), ("BatchNorm2d", (4, 3, 2, 2)), ("BatchNorm3d", (2, 3, 2, 2, 2))],
)
def test_batch_norm(cls, shape):
    m = getattr(nn, cls)(3).double()
    axes, chan = (0, *range(2, len(shape))), (1, 3, *(1,) * (len(shape) - 2))
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(2):
        x = R(*shape) * 2 + 1
        mu, sd = x.mean(axes).reshape(chan), x.var(axes).reshape(chan)
        close(m(t(x)), (x - mu) / np.sqrt(sd + 1e-5))
        mean, var = 0.9 * mean + 0.1 * x.mean(axes), 0.9 * var + 0.1 * x.var(axes) * (x.size / 3) / (x.size / 3 - 1)
    s = state(m)
    close(s["running_mean"], mean)
    close(s["running_var"], var)
    assert s["num_batches_tracked"] == 2 and list(s) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    m.eval()
    close(m(t(x)), (x - mean.reshape(chan)) / np.sqrt(var.reshape(chan) + 1e-5))
    close(state(m)["running_mean"], mean)
    plain = getattr(nn, cls)(3, affine=False, track_running_stats=False).double().eval()
    close(plain(t(x)), (x - mu) / np.sqrt(sd + 1e-5))
    assert not plain.state_dict()
    with pytest.raises(ValueError, match=r"expected .*D input \(got 1D input\)"):
        m(t(R(3)))


def test_batch_norm_average_of_all_batches_and_old_files():
    m = nn.BatchNorm1d(2, momentum=None).double()
    xs = [R(5, 2) for _ in range(3)]
    for x in xs:
        m(t(x))
    close(state(m)["running_mean"], np.mean([x.mean(0) for x in xs], 0))
    old = {k: p for k, p in m.state_dict().items() if k != "num_batches_tracked"}
    nn.BatchNorm1d(2).load_state_dict(dict(old))  # from before the count existed


@pytest.mark.parametrize(
    ("cls", "shape"), [("InstanceNorm1d", (2, 3, 5)), ("InstanceNorm2d", (2, 3, 3, 2)), ("InstanceNorm3d", (2, 3, 2, 2, 3))]
)
def test_instance_norm(cls, shape):
    x, axes = R(*shape), tuple(range(2, len(shape)))
    want = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    m = getattr(nn, cls)(3)
    close(m(t(x)), want)
    close(m(t(x[0])), want[0])
    assert not m.state_dict()
    tracked = getattr(nn, cls)(3, affine=True, track_running_stats=True).double()
    close(tracked(t(x)), want)
    close(state(tracked)["running_mean"], 0.1 * x.mean((0, *axes)))
    with pytest.raises(ValueError, match="D input"):
        m(t(R(3)))


def conv(x, w, stride=1, dilation=1, groups=1):
    """The definition: x (N, C, *), w (O, C / groups, *)."""
    n = w.ndim - 2
    out = [(x.shape[2 + d] - dilation * (w.shape[2 + d] - 1) - 1) // stride + 1 for d in range(n)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    per_in, per_out = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        g = o // per_out
        for at in np.ndindex(*out):
            window = tuple(slice(a * stride, a * stride + dilation * (k - 1) + 1, dilation) for a, k in zip(at, w.shape[2:], strict=True))
            y[(slice(None), o, *at)] = (
                (x[(slice(None), slice(g * per_in, (g + 1) * per_in), *window)] * w[o]).reshape(x.shape[0], -1).sum(1)
            )
    return y


@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolution(n):
    cls = getattr(nn, f"Conv{n}d")
    x = R(2, 4, *(7, 6, 5)[:n])
    m = cls(4, 6, 3, stride=2, groups=2).double()
    bias = state(m)["bias"].reshape(1, 6, *(1,) * n)
    close(m(t(x)), conv(x, state(m)["weight"], 2, 1, 2) + bias)
    close(m(t(x[0])), conv(x[:1], state(m)["weight"], 2, 1, 2)[0] + bias[0])
    for mode, numpy_mode in (("zeros", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
        m = cls(4, 3, 3, padding="same", dilation=2 if n < 3 else 1, padding_mode=mode, bias=False).double()
        side = 2 if n < 3 else 1
        padded = np.pad(x, [(0, 0), (0, 0)] + [(side, side)] * n, mode=numpy_mode)
        close(m(t(x)), conv(padded, state(m)["weight"], 1, m.dilation[0]))
    m = cls(4, 3, 2, padding=1).double()
    padded = np.pad(x, [(0, 0), (0, 0)] + [(1, 1)] * n)
    close(m(t(x)), conv(padded, state(m)["weight"]) + state(m)["bias"].reshape(1, 3, *(1,) * n))
    assert repr(m) == f"Conv{n}d(4, 3, kernel_size={(2,) * n}, stride={(1,) * n}, padding={(1,) * n})"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_transposed_convolution_is_the_gradient_of_the_convolution(n):
    m = getattr(nn, f"ConvTranspose{n}d")(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False).double()
    forward = getattr(nn.functional, f"conv{n}d")
    x = t(R(2, 4, *(3, 4, 2)[:n]))
    y = m(x)
    assert y.shape[2:] == tuple(2 * s for s in x.shape[2:])
    z = t(R(*y.shape)).requires_grad_()
    forward(z, m.weight, stride=2, padding=1, groups=2).backward(x)
    close(y, v(z.grad))
    size = [2 * s - 1 for s in x.shape[2:]]
    assert list(m(x, output_size=size).shape[2:]) == size
    with pytest.raises(ValueError, match="requested an output size"):
        m(x, output_size=[2 * s + 5 for s in x.shape[2:]])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "in_channels must be divisible by groups"),
        (lambda: nn.Conv2d(4, 3, 3, groups=2), "out_channels must be divisible by groups"),
        (lambda: nn.Conv2d(4, 4, 3, padding="some"), "Invalid padding string 'some'"),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2), "padding='same' is not supported for strided convolutions"),
        (lambda: nn.Conv2d(4, 4, 3, padding_mode="x"), "padding_mode must be one of"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, padding_mode="reflect"), 'Only "zeros" padding mode is supported'),
    ],
)
def test_convolution_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def windows(x, k, stride):
    """(N, C, *out, k^n) of x (N, C, *)."""
    n = x.ndim - 2
    out = [(s - k) // stride + 1 for s in x.shape[2:]]
    rows = [
        x[(slice(None), slice(None), *(slice(a * stride, a * stride + k) for a in at))].reshape(*x.shape[:2], -1) for at in np.ndindex(*out)
    ]
    return np.stack(rows, 2).reshape(*x.shape[:2], *out, k**n)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_pooling(n):
    x = R(2, 3, *(9, 8, 6)[:n])
    w = windows(x, 3, 2)
    close(getattr(nn, f"MaxPool{n}d")(3, 2)(t(x)), w.max(-1))
    close(getattr(nn, f"AvgPool{n}d")(3, 2)(t(x)), w.mean(-1))
    positive = abs(x)
    close(getattr(nn, f"LPPool{n}d")(3, 3, 2)(t(positive)), (windows(positive, 3, 2) ** 3).sum(-1) ** (1 / 3))
    padded = np.pad(x, [(0, 0), (0, 0)] + [(1, 1)] * n)
    close(getattr(nn, f"AvgPool{n}d")(3, 3, 1)(t(x)), windows(padded, 3, 3).mean(-1))
    assert repr(getattr(nn, f"MaxPool{n}d")(3, 2)) == f"MaxPool{n}d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=False)"
    out, where = getattr(nn, f"MaxPool{n}d")(2, return_indices=True)(t(x))
    back = getattr(nn, f"MaxUnpool{n}d")(2)(out, where, output_size=x.shape[2:])
    assert back.shape == x.shape and np.isin(v(back)[v(back) != 0], x).all() and (v(back) != 0).sum() == out.numel()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_adaptive_pooling(n):
    x = R(2, 3, *(7, 6, 5)[:n])
    size = (3, 2, 5)[:n]
    bounds = [[(i * s // o, -(-(i + 1) * s // o)) for i in range(o)] for s, o in zip(x.shape[2:], size, strict=True)]
    for cls, reduce in (("Avg", np.mean), ("Max", np.max)):
        want = np.zeros((2, 3, *size))
        for at in np.ndindex(*size):
            part = x[(slice(None), slice(None), *(slice(*bounds[d][i]) for d, i in enumerate(at)))]
            want[(slice(None), slice(None), *at)] = reduce(part.reshape(2, 3, -1), -1)
        close(getattr(nn, f"Adaptive{cls}Pool{n}d")(size if n > 1 else size[0])(t(x)), want)
    assert repr(nn.AdaptiveAvgPool2d((1, None))) == "AdaptiveAvgPool2d(output_size=(1, None))"


@pytest.mark.parametrize(
    ("name", "mode"),
    [("Constant", "constant"), ("Zero", "constant"), ("Reflection", "reflect"), ("Replication", "edge"), ("Circular", "wrap")],
)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding(name, mode, n):
    x, extra = R(2, 3, 4, 5, 6)[(slice(None),) * (n + 2) + (0,) * (3 - n)], {"constant_values": 2.5} if name == "Constant" else {}
    sides = [1, 2, 0, 1, 2, 1][: 2 * n]
    m = getattr(nn, f"{name}Pad{n}d")(tuple(sides), *([2.5] if extra else []))
    pads = [(0, 0)] * 2 + [(sides[2 * d], sides[2 * d + 1]) for d in reversed(range(n))]
    close(m(t(x)), np.pad(x, pads, mode=mode, **extra))
    want = f"padding={tuple(sides)}, value=2.5" if extra else f"{tuple(sides)}"
    assert repr(m) == f"{name}Pad{n}d({want})"


def test_shapes():
    x = R(2, 8, 3, 4)
    close(nn.Flatten()(t(x)), x.reshape(2, -1))
    close(nn.Unflatten(1, (2, 4))(t(x)), x.reshape(2, 2, 4, 3, 4))
    close(nn.PixelShuffle(2)(t(x)), x.reshape(2, 2, 2, 2, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 8))
    close(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(t(x))), x)
    close(nn.ChannelShuffle(4)(t(x)), x.reshape(2, 4, 2, 3, 4).swapaxes(1, 2).reshape(x.shape))
    close(nn.Upsample(scale_factor=2)(t(x)), x.repeat(2, 2).repeat(2, 3))
    assert repr(nn.Upsample(scale_factor=2)) == "Upsample(scale_factor=2.0, mode='nearest')"
    cols = nn.Unfold(2)(t(x))
    assert cols.shape == (2, 32, 6)
    counts = np.zeros((3, 4))
    for i in range(2):
        for j in range(3):
            counts[i : i + 2, j : j + 2] += 1
    close(nn.Fold((3, 4), 2)(cols), x * counts)


def test_dropout():
    x = torch.ones(200, 50)
    m = nn.Dropout(0.25)
    y = v(m(x))
    assert set(np.unique(y.round(5))) == {0.0, np.float32(1 / 0.75).round(5)} and abs(y.mean() - 1) < 0.05
    assert m.eval()(x) is x or np.array_equal(v(m(x)), v(x))
    for cls, shape in (
        ("Dropout1d", (4, 100, 5)),
        ("Dropout2d", (4, 100, 3, 2)),
        ("Dropout3d", (4, 100, 2, 2, 2)),
        ("FeatureAlphaDropout", (4, 100, 5)),
    ):
        y = v(getattr(nn, cls)(0.5)(torch.ones(*shape))).reshape(400, -1)
        assert (y == y[:, :1]).all() and len(np.unique(y)) == 2, cls  # whole channels
        assert 120 < (y[:, 0] == y.max()).sum() < 280
    z = v(nn.AlphaDropout(0.3)(torch.randn(100, 100)))
    assert abs(z.mean()) < 0.05 and abs(z.std() - 1) < 0.05
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1, but got 2"):
        nn.Dropout(2)


def run_rnn(kind, s, x, h, c, suffix, reverse=False):
    """One layer in one direction, by the equations; x (T, N, in)."""
    wi, wh = s["weight_ih" + suffix], s["weight_hh" + suffix]
    bi, bh = s.get("bias_ih" + suffix, 0), s.get("bias_hh" + suffix, 0)
    outs = []
    for xt in x[::-1] if reverse else x:
        a, b = xt @ wi.T + bi, h @ wh.T + bh
        if kind == "RNN":
            h = np.tanh(a + b)
        elif kind == "LSTM":
            i, f, g, o = np.split(a + b, 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            if "weight_hr" + suffix in s:
                h = h @ s["weight_hr" + suffix].T
        else:
            (xr, xz, xn), (hr, hz, hn) = np.split(a, 3, -1), np.split(b, 3, -1)
            r, z = sigmoid(xr + hr), sigmoid(xz + hz)
            h = (1 - z) * np.tanh(xn + r * hn) + z * h
        outs.append(h)
    return np.stack(outs[::-1] if reverse else outs), h, c


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent(kind):
    x = R(5, 2, 3)
    m = getattr(nn, kind)(3, 4, 2, bidirectional=True).double()
    s, zero = state(m), np.zeros((2, 4))
    layer, lasts = x, []
    for k in range(2):
        parts = [run_rnn(kind, s, layer, zero, zero, f"_l{k}{tail}", bool(tail)) for tail in ("", "_reverse")]
        layer = np.concatenate([p[0] for p in parts], -1)
        lasts += parts
    out, last = m(t(x))
    h = last[0] if kind == "LSTM" else last
    close(out, layer)
    close(h, np.stack([p[1] for p in lasts]))
    if kind == "LSTM":
        close(last[1], np.stack([p[2] for p in lasts]))
    out.sum().backward()
    assert all(p.grad is not None and np.abs(v(p.grad)).sum() > 0 for p in m.parameters())
    first = getattr(nn, kind)(3, 4, 2, bidirectional=True, batch_first=True).double()
    first.load_state_dict(m.state_dict())
    close(first(t(x.swapaxes(0, 1)))[0], layer.swapaxes(0, 1))
    close(m(t(x[:, 0]))[0], layer[:, 0])  # without a batch
    assert repr(m) == f"{kind}(3, 4, num_layers=2, bidirectional=True)" and list(s)[:4] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="Expected 3, got 7"):
        m(t(R(5, 2, 7)))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_cell_and_initial_state(kind):
    x, h, c = R(3, 2, 3), R(2, 4), R(2, 4)
    m, cell = getattr(nn, kind)(3, 4).double(), getattr(nn, kind + "Cell")(3, 4).double()
    cell.load_state_dict({k.replace("_l0", ""): p for k, p in m.state_dict().items()})
    first = (t(h[None]), t(c[None])) if kind == "LSTM" else t(h[None])
    want, _, _ = run_rnn(kind, state(m), x, h, c, "_l0")
    close(m(t(x), first)[0], want)
    hx = (t(h), t(c)) if kind == "LSTM" else t(h)
    for i in range(3):
        hx = cell(t(x[i]), hx)
        close(hx[0] if kind == "LSTM" else hx, want[i])


def test_lstm_projection_and_packed_sequences():
    m = nn.LSTM(3, 5, proj_size=2).double()
    x = R(4, 2, 3)
    out, (h, c) = m(t(x))
    want, _, _ = run_rnn("LSTM", state(m), x, np.zeros((2, 2)), np.zeros((2, 5)), "_l0")
    close(out, want)
    assert h.shape == (1, 2, 2) and c.shape == (1, 2, 5)
    m = nn.GRU(3, 4, bidirectional=True).double()
    seqs = [t(R(n, 3)) for n in (2, 4, 1)]
    packed, last = m(nn.utils.rnn.pack_sequence(seqs, enforce_sorted=False))
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed)
    assert lengths.tolist() == [2, 4, 1]
    for i, seq in enumerate(seqs):
        alone, h = m(seq)
        close(padded[: seq.shape[0], i], v(alone))
        close(last[:, i], v(h))


def test_packed_sequences_are_copied():
    packed = nn.utils.rnn.pack_sequence([t(R(n, 3)) for n in (2, 4)], enforce_sorted=False)
    for other in (copy.copy(packed), copy.deepcopy(packed)):
        assert type(other) is type(packed)
        for a, b in zip(other, packed, strict=True):
            close(a, v(b))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_packed_sequences_with_initial_states_have_gradients(kind):
    """A packed batch is its sequences run alone: outputs, last states, and the gradients of inputs, states and weights."""
    m, lengths = getattr(nn, kind)(3, 5, 2, bidirectional=True).double(), [2, 4, 1, 4]
    xs, hs = [R(n, 3) for n in lengths], [R(4, 4, 5) for _ in range(2 if kind == "LSTM" else 1)]

    def run(packed):
        x = [t(a).requires_grad_(True) for a in xs]
        h = [t(a).requires_grad_(True) for a in hs]
        if packed:
            out, last = m(nn.utils.rnn.pack_sequence(x, enforce_sorted=False), tuple(h) if kind == "LSTM" else h[0])
            padded, sizes = nn.utils.rnn.pad_packed_sequence(out)
            assert sizes.tolist() == lengths
            outs = [padded[:n, i] for i, n in enumerate(lengths)]
            lasts = list(last) if kind == "LSTM" else [last]
        else:
            got = [m(a, tuple(b[:, i] for b in h) if kind == "LSTM" else h[0][:, i]) for i, a in enumerate(x)]
            outs = [g[0] for g in got]
            lasts = [torch.stack(list(s), 1) for s in zip(*(g[1] if kind == "LSTM" else (g[1],) for g in got), strict=True)]
        grads = torch.autograd.grad(sum((o * o).sum() for o in outs + lasts), [*x, *h, *m.parameters()])
        return outs + lasts + list(grads)

    for got, want in zip(run(True), run(False), strict=True):
        close(got, v(want))


def attention(q, k, v_, heads, mask=None):
    """(L, E) each, already projected."""
    split = [a.reshape(a.shape[0], heads, -1).swapaxes(0, 1) for a in (q, k, v_)]
    scores = split[0] @ split[1].swapaxes(1, 2) / split[0].shape[-1] ** 0.5
    w = softmax(scores if mask is None else scores + mask, -1)
    return (w @ split[2]).swapaxes(0, 1).reshape(q.shape[0], -1), w


def test_multihead_attention():
    m = nn.MultiheadAttention(8, 2).double()
    s = state(m)
    x, y = R(4, 8), R(5, 8)
    w, b = np.split(s["in_proj_weight"], 3), R(24)
    with torch.no_grad():
        m.in_proj_bias.copy_(t(b))
    b3 = np.split(b, 3)
    mask = np.where(R(4, 5) > 1, -np.inf, 0.0)
    heads, weights = attention(x @ w[0].T + b3[0], y @ w[1].T + b3[1], y @ w[2].T + b3[2], 2, mask)
    want = heads @ s["out_proj.weight"].T + s["out_proj.bias"]
    for attn_mask in (t(mask), t(np.isinf(mask))):
        out, got = m(t(x), t(y), t(y), attn_mask=attn_mask)
        close(out, want, 1e-7)
        close(got, weights.mean(0), 1e-7)
        close(m(t(x), t(y), t(y), attn_mask=attn_mask, average_attn_weights=False)[1], weights, 1e-7)
        out, none = m(t(x), t(y), t(y), attn_mask=attn_mask, need_weights=False)
        close(out, want, 1e-7)
        assert none is None
    batch = [np.stack([a, R(*a.shape)], 1) for a in (x, y)]
    close(m(t(batch[0]), t(batch[1]), t(batch[1]), attn_mask=t(mask))[0][:, 0], want, 1e-7)
    first = nn.MultiheadAttention(8, 2, batch_first=True).double()
    first.load_state_dict(m.state_dict())
    swapped = [a.swapaxes(0, 1) for a in batch]
    close(first(t(swapped[0]), t(swapped[1]), t(swapped[1]), attn_mask=t(mask))[0][0], want, 1e-7)
    padding = np.zeros((2, 5), bool)
    padding[:, 3:] = True
    close(
        m(t(batch[0]), t(batch[1]), t(batch[1]), key_padding_mask=t(padding))[0],
        v(m(t(batch[0]), t(batch[1][:3]), t(batch[1][:3]))[0]),
        1e-7,
    )
    assert list(s) == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    other = nn.MultiheadAttention(8, 2, kdim=3, vdim=5, bias=False)
    assert list(other.state_dict()) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    with pytest.raises(AssertionError, match="was expecting embedding dimension of 8, but got 7"):
        m(*(t(R(3, 7)),) * 3)
    with pytest.raises(RuntimeError, match=r"The shape of the 2D attn_mask is .* but should be \(4, 5\)"):
        m(t(x), t(y), t(y), attn_mask=t(R(3, 5)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layers_by_their_parts(norm_first):
    enc = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=norm_first, activation="gelu").double()
    dec = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=norm_first).double()
    x, y = t(R(5, 2, 8)), t(R(4, 2, 8))
    mask = nn.Transformer.generate_square_subsequent_mask(5).double()

    def ff(m, z, act):
        return m.linear2(act(m.linear1(z)))

    def attend(a, q, k, mask=None):
        return a(q, k, k, attn_mask=mask)[0]

    if norm_first:
        h = enc.norm1(x)
        want = x + attend(enc.self_attn, h, h, mask)
        want = want + ff(enc, enc.norm2(want), nn.functional.gelu)
        h = dec.norm1(y)
        other = y + attend(dec.self_attn, h, h)
        other = other + attend(dec.multihead_attn, dec.norm2(other), x)
        other = other + ff(dec, dec.norm3(other), torch.relu)
    else:
        want = enc.norm1(x + attend(enc.self_attn, x, x, mask))
        want = enc.norm2(want + ff(enc, want, nn.functional.gelu))
        other = dec.norm1(y + attend(dec.self_attn, y, y))
        other = dec.norm2(other + attend(dec.multihead_attn, other, x))
        other = dec.norm3(other + ff(dec, other, torch.relu))
    close(enc(x, src_mask=mask), v(want), 1e-7)
    close(enc(x, src_mask=mask, is_causal=True), v(want), 1e-7)
    close(dec(y, x), v(other), 1e-7)


def test_transformer_is_causal_and_its_layers_are_copies():
    m = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True).double()
    assert [n for n in m.state_dict() if "encoder" in n][:3] == [
        "encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.self_attn.in_proj_bias", "encoder.layers.0.self_attn.out_proj.weight",
    ]  # fmt: skip
    assert m.encoder.layers[0].linear1.weight is not m.encoder.layers[1].linear1.weight
    src, tgt = R(2, 5, 8), R(2, 6, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(6).double()
    out = v(m(t(src), t(tgt), tgt_mask=mask))
    tgt[:, 4:] += 1
    assert np.allclose(v(m(t(src), t(tgt), tgt_mask=mask))[:, :4], out[:, :4]) and out.shape == (2, 6, 8)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3)
    weights = [state(layer)["linear1.weight"] for layer in encoder.layers]
    assert len(encoder.layers) == 3 and all(np.array_equal(w, weights[0]) for w in weights)
    with pytest.raises(RuntimeError, match="the batch number of src and tgt must be equal"):
        m(t(R(2, 5, 8)), t(R(3, 5, 8)))
