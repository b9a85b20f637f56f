"""Factories: no tensor goes in, so only values are checked; their placements are in test_factories.py."""

import numpy as np

CASES = []


def case(op, args, ref, id=None, **kwargs):
    CASES.append(dict(op=op, args=lambda rng: args, kwargs=kwargs, ref=ref, grad=False, id=id))


case("zeros", (2, 3), lambda *s: np.zeros(s))
case("ones", ((2, 3),), lambda s: np.ones(s))
case("full", ((2, 3), 2.5), lambda s, v: np.full(s, v))
case("full", ((2, 3), 7), lambda s, v: np.full(s, v), id="int")
case("full", ((2, 3), True), lambda s, v: np.full(s, v), id="bool")
case("arange", (5,), np.arange)
case("arange", (2, 11, 3), np.arange, id="step")
case("arange", (5, -4, -2), np.arange, id="down")
case("arange", (0.5, 3.0, 0.25), np.arange, id="float")
case("arange", (2.5,), np.arange, id="end")
case("arange", (3, 3), np.arange, id="empty")
case("linspace", (-1.0, 2.0, 7), np.linspace)
case("linspace", (3, 3, 1), np.linspace, id="one")
case("linspace", (0, 1, 0), np.linspace, id="empty")
case("logspace", (-1.0, 2.0, 7), np.logspace)
case("logspace", (0, 3, 4), lambda a, b, n, base: np.logspace(a, b, n, base=base), id="base", base=2.0)
case("eye", (3,), np.eye)
case("eye", (2, 4), np.eye, id="wide")
for op, value in (("zeros_like", 0), ("ones_like", 1)):
    CASES.append(dict(op=op, args=lambda rng: (rng.random((3, 4)),), ref=lambda x, v=value: np.full_like(x, v), grad=False, exact=True))
CASES.append(dict(op="full_like", args=lambda rng: (rng.random((3, 4)), 2.5), ref=np.full_like, grad=False, exact=True))

ERRORS = [
    dict(op="arange", args=lambda rng: (0, 5, 0), error=RuntimeError, match="nonzero"),
    dict(op="arange", args=lambda rng: (5, 0, 1), error=RuntimeError, match="inconsistent"),
    dict(op="zeros", args=lambda rng: (2, -1), error=RuntimeError, match="negative"),
    dict(op="linspace", args=lambda rng: (0, 1, -1), error=RuntimeError, match="non-negative"),
    dict(op="eye", args=lambda rng: (-1,), error=RuntimeError, match="at least 0"),
    dict(op="randint", args=lambda rng: (5, 5, (2,)), error=RuntimeError, match="less than"),
    dict(op="Tensor.uniform_", args=lambda rng: (rng.random(3), 2.0, 1.0), error=RuntimeError, match="from"),
    dict(op="Tensor.normal_", args=lambda rng: (rng.random(3), 0.0, -1.0), error=RuntimeError, match="std"),
    dict(op="multinomial", args=lambda rng: (np.array([0.0, 0.0]), 1), error=RuntimeError, match="sum of probabilities"),
    dict(op="multinomial", args=lambda rng: (np.array([0.5, 0.5]), 3), error=RuntimeError, match="n_sample"),
    dict(op="randperm", args=lambda rng: (-1,), error=RuntimeError, match="non-negative"),
]
