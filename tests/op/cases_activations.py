"""Activations. The kinks are avoided by the finite differences: inputs stay away from them."""

import numpy as np
from scipy import special as sp

CASES = []


def inputs(rng, shape=(5, 6)):
    """Values whose distance from -3, -1, -0.5, 0, 0.5, 1, 3 and 6 is at least 0.02."""
    x = rng.uniform(-4, 7, shape)
    for kink in (-3, -1, -0.5, 0, 0.5, 1, 3, 6):
        x = np.where(np.abs(x - kink) < 0.02, x + 0.05, x)
    return x


def case(name, ref, *rest, grad=2, **more):
    CASES.append(dict(op="nn.functional." + name, args=lambda rng: (inputs(rng), *rest), ref=ref, grad=grad, exact=True, **more))


def softplus(x):
    return np.logaddexp(0, x)


def gelu(x):
    return x * sp.ndtr(x)


def gelu_tanh(x, approximate):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


case("relu", lambda x: np.maximum(x, 0), grad=True)
case("relu6", lambda x: np.clip(x, 0, 6), grad=True)
case("gelu", gelu)
case("gelu", gelu_tanh, kwargs={"approximate": "tanh"}, id="tanh")
case("silu", lambda x: x * sp.expit(x))
case("mish", lambda x: x * np.tanh(softplus(x)))
case("elu", lambda x, a: np.where(x > 0, x, a * np.expm1(x)), 0.7)
case("celu", lambda x, a: np.where(x > 0, x, a * np.expm1(x / a)), 0.7)
case("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)))
case("leaky_relu", lambda x, s: np.where(x > 0, x, s * x), 0.1, grad=True)
case("hardtanh", lambda x, lo, hi: np.clip(x, lo, hi), -1.0, 3.0, grad=True)
case("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6)
case("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, grad=True)
case("softplus", lambda x: softplus(x))
case("softplus", lambda x, beta, threshold: np.where(x * beta > threshold, x, softplus(beta * x) / beta), 2.0, 7.9, id="beta")
case("softsign", lambda x: x / (1 + np.abs(x)))
case("logsigmoid", lambda x: -softplus(-x))
case("threshold", lambda x, t, v: np.where(x > t, x, v), 0.5, 9.0, grad=True)
case("tanhshrink", lambda x: x - np.tanh(x))
case("softshrink", lambda x, lam: np.sign(x) * np.maximum(np.abs(x) - lam, 0), 0.5, grad=True)
case("hardshrink", lambda x, lam: np.where(np.abs(x) > lam, x, 0), 0.5, grad=True)
case("glu", lambda x: x[:, :3] * sp.expit(x[:, 3:]))
case("glu", lambda x, dim: x[:2] * sp.expit(x[2:]), 0, id="rows")
CASES[-1]["args"] = lambda rng: (inputs(rng, (4, 6)), 0)
case("sigmoid", sp.expit)
case("tanh", np.tanh)
CASES.append(
    dict(
        op="nn.functional.prelu",
        args=lambda rng: (inputs(rng, (3, 4, 2)), rng.random(4)),
        ref=lambda x, w: np.where(x > 0, x, w[:, None] * x),
        grad=2,
        exact=True,
    )
)
CASES.append(
    dict(
        op="nn.functional.prelu",
        args=lambda rng: (inputs(rng), rng.random(1)),
        ref=lambda x, w: np.where(x > 0, x, w * x),
        grad=2,
        exact=True,
        id="one",
    )
)
for name in ("gelu", "silu", "mish", "softplus", "logsigmoid", "hardswish", "selu", "sigmoid", "tanh"):
    refs = {c["op"]: c["ref"] for c in reversed(CASES)}
    CASES.append(
        dict(
            op="nn.functional." + name,
            args=lambda rng: (np.array([-100.0, -30.0, -12.0, 0.0, 12.0, 30.0, 100.0]),),
            ref=refs["nn.functional." + name],
            grad=False,
            exact=True,
            id="edges",
            dtypes=("float64", "float32"),
        )
    )

ERRORS = [
    dict(
        op="nn.functional.gelu", args=lambda rng: (rng.random(3),), kwargs={"approximate": "sin"}, error=RuntimeError, match="approximate"
    ),
    dict(op="nn.functional.gelu", args=lambda rng: (np.arange(3),), error=RuntimeError, match="float"),
    dict(op="nn.functional.glu", args=lambda rng: (rng.random((2, 3)),), error=RuntimeError, match="even"),
    dict(op="nn.functional.prelu", args=lambda rng: (rng.random((2, 3)), rng.random(2)), error=RuntimeError, match="channel size"),
    dict(op="nn.functional.dropout", args=lambda rng: (rng.random(3), 1.5), error=ValueError, match="between 0 and 1"),
    dict(op="nn.functional.softshrink", args=lambda rng: (rng.random(3), -1.0), error=RuntimeError, match="lambda"),
]
