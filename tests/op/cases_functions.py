"""Elementary and special functions."""

import numpy as np
from scipy import special as sp

CASES = []


def case(op, low, high, ref, grad=2, **more):
    """One operand, uniform in [low, high]."""
    CASES.append(dict(op=op, args=lambda rng: (rng.uniform(low, high, (4, 7)),), ref=ref, grad=grad, exact=True, **more))


def case2(op, args, ref, grad=2, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, exact=True, **more))


case("exp", -4, 4, np.exp, tol=2)
case("exp2", -4, 4, np.exp2, tol=2)
case("expm1", -4, 4, np.expm1, tol=2)
case("log", 0.05, 5, np.log)
case("log2", 0.05, 5, np.log2)
case("log10", 0.05, 5, np.log10)
case("log1p", -0.9, 5, np.log1p)
case("sqrt", 0.05, 5, np.sqrt)
case("rsqrt", 0.05, 5, lambda x: 1 / np.sqrt(x))
case("sin", -9, 9, np.sin)
case("cos", -9, 9, np.cos)
case("tan", -1.3, 1.3, np.tan, tol=2)
case("asin", -0.95, 0.95, np.arcsin)
case("acos", -0.95, 0.95, np.arccos)
case("atan", -9, 9, np.arctan)
case("sinh", -4, 4, np.sinh, tol=2)
case("cosh", -4, 4, np.cosh, tol=2)
case("tanh", -4, 4, np.tanh)
case("asinh", -9, 9, np.arcsinh)
case("acosh", 1.1, 9, np.arccosh)
case("atanh", -0.95, 0.95, np.arctanh, tol=2)
case("sinc", -3, 3, np.sinc)
case("sigmoid", -6, 6, sp.expit)
case("logit", 0.05, 0.95, sp.logit)
case2(
    "logit",
    lambda rng: (rng.uniform(-0.2, 1.2, (4, 7)), 0.1),
    lambda x, eps: sp.logit(np.clip(x, eps, 1 - eps)),
    True,
    id="eps",
    dtypes=("float64", "float32"),
)
case("erf", -3, 3, sp.erf)
case("erfc", -3, 5, sp.erfc)
case("erfinv", -0.99, 0.99, sp.erfinv, tol=2)
case("special.erfcx", -2, 30, sp.erfcx, tol=4)
case("lgamma", 0.1, 9, sp.gammaln, tol=2)
case("lgamma", -3.9, -0.1, sp.gammaln, grad=False, id="negative", dtypes=("float64", "float32"))
case("digamma", 0.1, 9, sp.digamma)
case("digamma", -3.9, -0.1, sp.digamma, grad=False, id="negative", dtypes=("float64", "float32"), tol=10)
for n in (0, 1, 2, 4):
    CASES.append(
        dict(
            op="polygamma",
            args=lambda rng, n=n: (n, rng.uniform(0.3, 6, (4, 7))),
            ref=lambda n, x: sp.polygamma(n, x),
            grad=True,
            exact=True,
            tol=4,
            id=f"n{n}",
            dtypes=("float64", "float32", "bfloat16"),
        )
    )
case("i0", -6, 6, sp.i0, tol=2)
case("special.i0e", -40, 40, sp.i0e)
case("special.i1", -6, 6, sp.i1, tol=2)
case("special.i1e", -40, 40, sp.i1e)
case("special.ndtr", -4, 4, sp.ndtr)
case("special.ndtri", 0.001, 0.999, sp.ndtri, tol=4)
case("special.ndtri", 1e-30, 1e-20, sp.ndtri, grad=False, id="tail", dtypes=("float64", "float32"))
case("special.log_ndtr", -30, 4, sp.log_ndtr, tol=2)
case("special.entr", 0.01, 3, sp.entr)
case("special.bessel_j0", -12, 12, sp.j0, grad=False)
case("special.bessel_j1", -12, 12, sp.j1, grad=False)
case("special.bessel_y0", 0.1, 12, sp.y0, grad=False)
case("special.bessel_y1", 0.1, 12, sp.y1, grad=False)
case("special.spherical_bessel_j0", -9, 9, lambda x: np.sinc(x / np.pi), grad=False)
case(
    "mvlgamma",
    2.5,
    9,
    lambda x, p: sp.multigammaln(x, p) if np.isscalar(x) else np.vectorize(lambda v: sp.multigammaln(v, p))(x),
    kwargs={"p": 3},
    tol=4,
)


def two(a, b):
    return lambda rng: (rng.uniform(*a, (4, 5)), rng.uniform(*b, (4, 5)))


case2("xlogy", two((0, 2), (0.1, 3)), sp.xlogy)
case2("xlogy", lambda rng: (np.array([0.0, 0.0, 1.0]), np.array([0.0, np.nan, 2.0])), sp.xlogy, False, id="zeros")
case2("special.xlog1py", two((0, 2), (-0.5, 3)), sp.xlog1py)
case2("special.zeta", two((1.5, 6), (0.5, 4)), sp.zeta, False, tol=2)
case2("exp", lambda rng: (np.array([np.inf, -np.inf, np.nan, 1000.0, -1000.0]),), np.exp, False, id="edges", dtypes=("float64", "float32"))
case2("log", lambda rng: (np.array([np.inf, 0.0, np.nan, -1.0]),), np.log, False, id="edges")
case2("tanh", lambda rng: (np.array([np.inf, -np.inf, np.nan, 0.0, 50.0, -50.0]),), np.tanh, False, id="edges")
case2("sin", lambda rng: (np.array([1e5, -3e7, 1e12, 2.5e20, 0.0]),), np.sin, False, id="far", dtypes=("float64", "float32"))

ERRORS = [
    dict(op="polygamma", args=lambda rng: (-1, rng.random(3)), error=RuntimeError, match="negative n"),
    dict(op="mvlgamma", args=lambda rng: (rng.random(3) + 5, 0), error=RuntimeError, match="p has to be"),
]
