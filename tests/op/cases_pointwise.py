"""Arithmetic, comparisons, logic, selection, rounding: elementwise, so any placement gives the same bits."""

import numpy as np


def normal(*shape):
    return lambda rng: rng.standard_normal(shape)


def pair(a=(4, 5), b=(4, 5), away=0.0):
    """Two arrays; the second stays `away` from 0."""

    def make(rng):
        x, y = rng.standard_normal(a), rng.standard_normal(b)
        return x, y + away * np.where(y < 0, -1, 1)

    return make


def positive(*shapes, low=0.2):
    return lambda rng: tuple(np.abs(rng.standard_normal(s)) + low for s in shapes)


def ints(*shapes, low=-5, high=6, dtype=np.int64):
    return lambda rng: tuple(rng.integers(low, high, s).astype(dtype) for s in shapes)


def bools(*shapes):
    return lambda rng: tuple(rng.integers(0, 2, s).astype(bool) for s in shapes)


def with_mask(*shapes, mask=(4, 5)):
    return lambda rng: (rng.integers(0, 2, mask).astype(bool), *(rng.standard_normal(s) for s in shapes))


def then(make, *rest):
    """The arrays of `make` and plain values behind them."""
    return lambda rng: (*make(rng), *rest)


def one(*shape):
    return lambda rng: (rng.standard_normal(shape),)


def special(rng):
    return (np.array([[0.0, -0.0, np.inf, -np.inf], [np.nan, 1.5, -2.5, 0.5]]),)


CASES = []


def case(op, args, ref, grad=True, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, exact=True, **more))


# ---- two operands, broadcast in several ways
SHAPES = {
    "same": ((4, 5), (4, 5)),
    "row": ((4, 5), (5,)),
    "column": ((3, 4), (3, 1)),
    "outer": ((3, 1), (1, 4)),
    "zerodim": ((2, 3), ()),
    "deep": ((2, 3, 4), (3, 1)),
    "empty": ((0, 3), (3,)),
}
for tag, (a, b) in SHAPES.items():
    case("add", pair(a, b), np.add, 2, id=tag, ints=tag == "same")
    case("mul", pair(a, b), np.multiply, 2, id=tag, ints=tag == "same")
case("sub", pair(), np.subtract, 2, ints=True)
case("sub", pair((4, 5), (1, 5)), np.subtract, id="row")
case("rsub", pair(), lambda x, y: y - x, 2)
case("div", pair(away=0.5), np.divide, 2)
case("div", pair((4, 5), (5,), away=0.5), np.divide, id="row")
case("true_divide", ints((4, 5), (4, 5), low=1), np.divide, False)
for op in ("add", "sub", "mul"):
    ref = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
    case(op, then(one(4, 5), 2.5), ref, 2, id="number")
case("div", then(one(4, 5), 2.5), np.divide, 2, id="number")
case("add", pair(), lambda x, y, alpha: x + alpha * y, 2, kwargs={"alpha": 0.5}, id="alpha")
case("sub", pair(), lambda x, y, alpha: x - alpha * y, 2, kwargs={"alpha": 0.5}, id="alpha")
case("add", lambda rng: (rng.standard_normal((3, 4)), rng.integers(-3, 4, (3, 4))), np.add, id="mixed")
case("add", bools((3, 4), (3, 4)), np.logical_or, False, id="bool")
case("mul", bools((3, 4), (3, 4)), np.logical_and, False, id="bool")
case("div", pair(away=0.5), lambda x, y, rounding_mode: np.floor(x / y), kwargs={"rounding_mode": "floor"}, id="floor")
case("div", pair(away=0.5), lambda x, y, rounding_mode: np.trunc(x / y), kwargs={"rounding_mode": "trunc"}, id="trunc")
case("floor_divide", pair(away=0.5), np.floor_divide, False)
case("floor_divide", lambda rng: (rng.integers(-20, 20, (4, 5)), rng.choice([-3, -2, 2, 5], (4, 5))), np.floor_divide, False, id="int")
case("remainder", pair(away=0.5), np.remainder)
case("remainder", lambda rng: (rng.integers(-20, 20, (4, 5)), rng.choice([-3, -2, 2, 5], (4, 5))), np.remainder, False, id="int")
case("fmod", pair(away=0.5), np.fmod)
case("fmod", lambda rng: (rng.integers(-20, 20, (4, 5)), rng.choice([-3, -2, 2, 5], (4, 5))), np.fmod, False, id="int")
for e in (2, 3, 0.5, -1, 1, 0):
    case("pow", then(positive((4, 5)), e), np.power, 2, id=f"number{e}")
case("pow", then(one(4, 5), 3), np.power, 2, id="cube", ints=True)
case("pow", positive((4, 5), (4, 5)), np.power, 2)
case("pow", lambda rng: (2.0, rng.standard_normal((4, 5))), np.power, 2, id="base")
case("pow", lambda rng: (rng.integers(-3, 4, (4, 5)), rng.integers(0, 5, (4, 5))), np.power, False, id="int")
case("float_power", then(positive((4, 5)), 1.5), np.power, out="float64", tol=1)
case("hypot", pair(), np.hypot, 2)
case("atan2", pair(away=0.1), np.arctan2, 2)
case("maximum", pair(), np.maximum)
case("minimum", pair(), np.minimum)
case("maximum", ints((4, 5), (4, 5)), np.maximum, False, id="int")
case("fmax", pair(), np.fmax)
case("fmin", pair(), np.fmin)
case("copysign", pair(away=0.1), np.copysign)
case("heaviside", pair(), np.heaviside, False)
case("nextafter", pair((3, 4), (3, 4)), np.nextafter, False, dtypes=("float64",))
case(
    "ldexp",
    lambda rng: (rng.standard_normal((3, 4)), rng.integers(-3, 4, (3, 4)).astype(np.int32)),
    np.ldexp,
    dtypes=("float64", "float32"),
)
case("logaddexp", pair(), np.logaddexp, 2)
case("logaddexp2", pair(), np.logaddexp2, 2)
case("gcd", ints((4, 5), (4, 5), low=-30, high=31), np.gcd, False)
case("lcm", ints((4, 5), (4, 5), low=-12, high=13), np.lcm, False)
for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    case(op, ints((4, 5), (5,), low=-99, high=99), getattr(np, op), False)
    case(op, bools((4, 5), (4, 5)), getattr(np, op), False, id="bool")
case("bitwise_not", ints((4, 5)), np.bitwise_not, False)
case("bitwise_not", bools((4, 5)), np.bitwise_not, False, id="bool")
case("bitwise_left_shift", ints((4, 5), (4, 5), low=0, high=9), np.left_shift, False)
case("bitwise_right_shift", lambda rng: (rng.integers(-99, 99, (4, 5)), rng.integers(0, 5, (4, 5))), np.right_shift, False)

# ---- comparisons and logic
for op in ("eq", "ne", "lt", "le", "gt", "ge"):
    ref = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[op]
    case(op, ints((4, 5), (5,), low=-2, high=3), ref, False)
    case(op, lambda rng: (np.rint(rng.standard_normal((4, 5))), np.rint(rng.standard_normal((4, 5)))), ref, False, id="float")
    case(op, lambda rng: (np.rint(rng.standard_normal((4, 5))), 0), ref, False, id="number")
for op in ("logical_and", "logical_or", "logical_xor"):
    case(op, lambda rng: (np.rint(rng.standard_normal((4, 5))), np.rint(rng.standard_normal((4, 5)))), getattr(np, op), False)
    case(op, bools((4, 5), (4, 5)), getattr(np, op), False, id="bool")
case("logical_not", lambda rng: (np.rint(rng.standard_normal((4, 5))),), np.logical_not, False)
for op in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"):
    case(op, special, getattr(np, op), False)
case("isreal", one(3, 4), np.isreal, False)
case(
    "isclose",
    lambda rng: (np.array([1.0, 1.0, np.nan, np.inf]), np.array([1.0 + 1e-7, 1.1, np.nan, np.inf])),
    np.isclose,
    False,
    dtypes=("float64",),
)
case(
    "isclose",
    lambda rng: (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
    lambda x, y, equal_nan: np.isclose(x, y, equal_nan=equal_nan),
    False,
    kwargs={"equal_nan": True},
    id="nan",
)

# ---- one operand
case("neg", one(4, 5), np.negative, 2, ints=True)
case("abs", one(4, 5), np.abs, 2)
case("abs", ints((4, 5)), np.abs, False, id="int")
case("sign", one(4, 5), np.sign)
case("sgn", ints((4, 5)), np.sign, False)
case("square", one(4, 5), np.square, 2, ints=True)
case("reciprocal", positive((4, 5)), np.reciprocal, 2)
case("positive", one(4, 5), np.positive, 2)
case("clone", one(4, 5), np.copy, 2)
case("real", one(4, 5), np.real)
for op in ("floor", "ceil", "trunc"):
    case(op, one(4, 5), getattr(np, op))
    case(op, ints((4, 5)), getattr(np, op), False, id="int")
case("round", lambda rng: (np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.4, 7.6, -7.6]),), np.round, False, id="halves")
case("round", one(4, 5), np.round)
case("round", one(4, 5), lambda x, decimals: np.round(x, decimals), kwargs={"decimals": 2}, id="decimals", dtypes=("float64", "float32"))
case(
    "round",
    lambda rng: (100 * rng.standard_normal((4, 5)),),
    lambda x, decimals: np.round(x, decimals),
    kwargs={"decimals": -1},
    id="tens",
    dtypes=("float64", "float32"),
)
case("frac", one(4, 5), lambda x: x - np.trunc(x))
case(
    "nan_to_num",
    special,
    lambda x, nan, posinf, neginf: np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf),
    False,
    kwargs={"nan": 1.0, "posinf": 2.0, "neginf": -3.0},
)
case("deg2rad", one(4, 5), np.deg2rad)
case("rad2deg", one(4, 5), np.rad2deg)

# ---- selection and bounds
case("where", with_mask((4, 5), (4, 5)), np.where, 2)
case("where", with_mask((4, 1), (5,)), np.where, id="broadcast")
case("where", then(with_mask((4, 5)), 0.5), np.where, id="number")
case(
    "masked_fill",
    lambda rng: (rng.standard_normal((4, 5)), rng.integers(0, 2, (4, 5)).astype(bool), 0.5),
    lambda x, m, v: np.where(m, v, x),
    2,
)
case(
    "masked_fill",
    lambda rng: (rng.standard_normal((4, 5)), rng.integers(0, 2, (5,)).astype(bool), -np.inf),
    lambda x, m, v: np.where(m, v, x),
    False,
    id="row",
)
case("fill", then(one(4, 5), 2.5), lambda x, v: np.full_like(x, v))
case("clamp", then(one(4, 5), -0.5, 0.7), np.clip, 2)
case("clamp", then(one(4, 5), None, 0.3), np.clip, id="max")
case("clamp", then(one(4, 5), -0.2), lambda x, lo: np.maximum(x, lo), id="min")
case(
    "clamp",
    lambda rng: (rng.standard_normal((4, 5)), -np.abs(rng.standard_normal(5)), np.abs(rng.standard_normal((4, 1)))),
    np.clip,
    2,
    id="tensors",
)
case("clamp", then(ints((4, 5)), -2, 3), np.clip, False, id="int")
case("clamp_min", then(one(4, 5), 0.1), np.maximum)
case("clamp_max", then(one(4, 5), 0.1), np.minimum)
case("lerp", then(pair(), 0.3), lambda x, y, w: x + w * (y - x), 2)
case(
    "lerp",
    lambda rng: (rng.standard_normal((4, 5)), rng.standard_normal((4, 5)), rng.random((4, 5))),
    lambda x, y, w: x + w * (y - x),
    2,
    id="tensor",
)
case(
    "addcmul",
    lambda rng: tuple(rng.standard_normal((4, 5)) for _ in range(3)),
    lambda x, a, b, value: x + value * a * b,
    2,
    kwargs={"value": 0.5},
    tol=2,
)
case(
    "addcdiv",
    lambda rng: (rng.standard_normal((4, 5)), rng.standard_normal((4, 5)), 1 + rng.random((4, 5))),
    lambda x, a, b, value: x + value * a / b,
    2,
    kwargs={"value": 0.5},
)


def big(rng):
    """Beyond one task of the kernel, odd sizes, an input that broadcasts: the driver's seams."""
    return rng.standard_normal((37, 1031)), rng.standard_normal((37, 1))


case("mul", big, np.multiply, id="large", dtypes=("float32", "bfloat16"))
case("add", lambda rng: (rng.standard_normal((300, 301)), rng.standard_normal((1, 301))), np.add, id="large", dtypes=("float32", "float16"))

ERRORS = [
    dict(op="add", args=lambda rng: (rng.standard_normal((2, 3)), rng.standard_normal((4,))), error=RuntimeError, match="size of tensor"),
    dict(op="sub", args=bools((2, 2), (2, 2)), error=RuntimeError, match="bool"),
    dict(op="add", args=ints((2,), (2,)), kwargs={"alpha": 0.5}, error=RuntimeError, match="alpha"),
    dict(op="floor_divide", args=lambda rng: (np.array([1, 2]), np.array([1, 0])), error=RuntimeError, match="division by zero"),
    dict(op="remainder", args=lambda rng: (np.array([1, 2]), np.array([1, 0])), error=RuntimeError, match="division by zero"),
    dict(op="div", args=pair(), kwargs={"rounding_mode": "up"}, error=RuntimeError, match="rounding_mode"),
    dict(op="neg", args=bools((2,)), error=RuntimeError, match="bool"),
    dict(op="where", args=lambda rng: (rng.standard_normal(2), rng.standard_normal(2), 0.0), error=RuntimeError, match="condition"),
    dict(op="masked_fill", args=lambda rng: (rng.standard_normal(2), np.array([1, 0]), 0.0), error=RuntimeError, match="mask"),
    dict(op="clamp", args=one(3), error=RuntimeError, match="At least one"),
    dict(op="bitwise_and", args=pair(), error=RuntimeError, match="integer or bool"),
    dict(op="gcd", args=pair(), error=RuntimeError, match="integer"),
]
