"""Views and joins: reshapes, transposes, expansions, slices, splits, cat and repetition. Pure movement: any placement gives the same bits."""

import numpy as np

CASES = []
ERRORS = []


def one(*shape):
    return lambda rng: (rng.standard_normal(shape),)


def then(shape, *rest):
    return lambda rng: (rng.standard_normal(shape), *rest)


def case(op, args, ref, grad=2, **more):
    CASES.append(dict(op=op, args=args, ref=ref, grad=grad, exact=True, ints=more.pop("ints", False), **more))


def error(op, args, kind, match, **kwargs):
    ERRORS.append(dict(op=op, args=args, kwargs=kwargs, error=kind, match=match))


# ---- reshapes
for tag, shape, to in [
    ("split", (4, 6), (4, 2, 3)),
    ("merge", (4, 2, 3), (8, 3)),
    ("regroup", (4, 6), (8, 3)),
    ("infer", (4, 6), (2, -1)),
    ("flat", (2, 3, 4), (-1,)),
    ("ones", (3, 4), (1, 3, 1, 4, 1)),
    ("drop", (1, 3, 1), (3,)),
    ("scalar", (1, 1), ()),
    ("empty", (0, 3), (3, 0)),
    ("from0d", (), (1, 1)),
    ("uneven", (5, 3), (5, 3, 1)),
]:
    case("Tensor.view", then(shape, to), lambda x, s: x.reshape(s), id=tag, ints=tag == "split")
    case("reshape", then(shape, to), lambda x, s: x.reshape(s), id=tag)
case(
    "Tensor.view_as", lambda rng: (rng.standard_normal((4, 6)), np.zeros((3, 8))), lambda x, o: x.reshape(o.shape), place=False, grad=False
)
for tag, shape, args, to in [
    ("all", (2, 3, 4), (), (24,)),
    ("middle", (2, 3, 4, 5), (1, 2), (2, 12, 5)),
    ("last", (2, 3, 4), (-2, -1), (2, 12)),
    ("0d", (), (), (1,)),
]:
    case("flatten", then(shape, *args), lambda x, *a, s=to: x.reshape(s), id=tag)
case("ravel", one(3, 4), lambda x: x.ravel())
case("unflatten", then((2, 12), 1, (3, -1)), lambda x, d, s: x.reshape(2, 3, 4))
for tag, shape, args, to in [
    ("all", (1, 3, 1), (), (3,)),
    ("dim", (1, 3, 1), (0,), (3, 1)),
    ("not1", (2, 3), (0,), (2, 3)),
    ("dims", (1, 3, 1, 1), ((0, -1),), (3, 1)),
]:
    case("squeeze", then(shape, *args), lambda x, *a, s=to: x.reshape(s), id=tag)
for dim in (0, 1, -1):
    case("unsqueeze", then((3, 4), dim), np.expand_dims, id=str(dim))

# ---- transposes and expansions
case("transpose", then((2, 3, 4), 0, -1), lambda x, a, b: np.swapaxes(x, a, b), ints=True)
case("swapaxes", then((2, 3, 4), 1, 2), np.swapaxes)
case("swapdims", then((2, 3, 4), 1, 0), np.swapaxes)
case("t", one(5, 3), lambda x: x.T)
case("t", one(5), lambda x: x, id="1d")
case("permute", then((2, 3, 4), (2, 0, 1)), np.transpose)
case("permute", then((2, 3, 4, 5), (0, 2, 1, 3)), np.transpose, id="heads")
case("movedim", then((2, 3, 4), 0, 2), np.moveaxis)
case("moveaxis", then((2, 3, 4, 5), (0, 1), (-1, -2)), np.moveaxis)
case("adjoint", one(2, 3, 4), lambda x: np.swapaxes(x, -1, -2))
for tag, shape, to in [
    ("row", (1, 4), (3, 4)),
    ("lead", (3, 4), (2, 3, 4)),
    ("keep", (3, 1), (-1, 5)),
    ("zero", (1, 3), (0, 3)),
    ("0d", (), (2, 2)),
]:
    case(
        "Tensor.expand",
        then(shape, to),
        lambda x, s: np.broadcast_to(x, [x.shape[i - len(s)] if v == -1 else v for i, v in enumerate(s)]),
        id=tag,
    )
case("broadcast_to", then((3, 1), (2, 3, 4)), np.broadcast_to)
case("broadcast_tensors", lambda rng: (rng.standard_normal((3, 1)), rng.standard_normal((1, 4))), lambda *x: tuple(np.broadcast_arrays(*x)))
case("Tensor.contiguous", one(3, 4), lambda x: x)


def transposed_copy(x):
    return x.transpose(-1, -2).contiguous()


for shape in ((70, 33), (3, 40, 17), (300, 5), (2, 3)):
    case(transposed_copy, one(*shape), lambda x: np.swapaxes(x, -1, -2), ints=True, id="x".join(map(str, shape)))


# ---- parts
def indexed(x, key):
    return x[key]


for tag, key in [
    ("int", 1),
    ("negative", -1),
    ("slice", slice(1, 3)),
    ("step", slice(None, None, 2)),
    ("clamped", slice(-100, 100)),
    ("empty", slice(3, 1)),
    ("mixed", (slice(1, None), 2)),
    ("ellipsis", (Ellipsis, slice(1, 5, 3))),
    ("none", (None, slice(None), None, 0)),
    ("all", slice(None)),
]:
    case(indexed, then((4, 6), key), lambda x, k: x[k], id=tag, ints=tag == "step")
case("select", then((3, 4, 5), 1, -2), lambda x, d, i: x[:, i])
case("narrow", then((5, 4), 0, 1, 3), lambda x, d, s, n: x[s : s + n])
case("narrow", then((5, 4), 1, -2, 2), lambda x, d, s, n: x[:, -2:], id="negative")
for tag, shape, args, f in [
    ("even", (6, 4), (2,), lambda x: np.split(x, 3)),
    ("rest", (5, 4), (2,), lambda x: np.split(x, [2, 4])),
    ("sizes", (5, 4), ([1, 0, 4],), lambda x: np.split(x, [1, 1])),
    ("dim", (4, 5), (3, 1), lambda x: np.split(x, [3], 1)),
]:
    case("split", then(shape, *args), lambda x, *a, f=f: tuple(f(x)), id=tag)
case("split_with_sizes", then((5, 4), [2, 3]), lambda x, s: tuple(np.split(x, [2])))
case("chunk", then((5, 4), 3), lambda x, n: (x[:2], x[2:4], x[4:]))
case("chunk", then((3, 7), 4, -1), lambda x, n, d: (x[:, :2], x[:, 2:4], x[:, 4:6], x[:, 6:]), id="dim")
case("tensor_split", then((7, 2), 3), lambda x, n: tuple(np.array_split(x, n)))
case("tensor_split", then((7, 2), (2, 5)), lambda x, s: tuple(np.split(x, s)), id="indices")
case("tensor_split", then((7, 2), (5, 2)), lambda x, s: (x[:5], x[5:2], x[2:]), id="overlap")
case("hsplit", then((4, 6), 3), lambda x, n: tuple(np.hsplit(x, n)))
case("vsplit", then((4, 6), (1, 3)), lambda x, n: tuple(np.vsplit(x, n)))
case("dsplit", then((2, 3, 4), 2), lambda x, n: tuple(np.dsplit(x, n)))
for dim in (0, 1):
    case("unbind", then((3, 4), dim), lambda x, d: tuple(np.moveaxis(x, d, 0)), id=str(dim))


def second_of_split(x):
    return x.split(2, 1)[1] * 2


case(second_of_split, one(3, 5), lambda x: x[:, 2:4] * 2)
for tag, shape, args in [
    ("main", (4, 6), ()),
    ("above", (4, 6), (2,)),
    ("below", (4, 6), (-2,)),
    ("none", (3, 3), (5,)),
    ("batch", (2, 3, 4), (1, -2, -1)),
]:
    case("diagonal", then(shape, *args), lambda x, *a: np.diagonal(x, *a) if x.shape != (3, 3) else np.zeros(0), id=tag)
case("linalg.diagonal", one(2, 3, 4), lambda x: np.diagonal(x, 0, -2, -1))
windows = np.lib.stride_tricks.sliding_window_view
case("Tensor.unfold", then((7, 3), 0, 3, 2), lambda x, d, n, s: windows(x, n, d)[::s])
case("Tensor.unfold", then((2, 6), 1, 2, 3), lambda x, d, n, s: windows(x, n, d)[:, ::s], id="gaps")
case(
    "as_strided",
    then((4, 6), (3, 3), (6, 1), 2),
    lambda x, s, st, o: np.lib.stride_tricks.as_strided(x.ravel()[o:], s, [v * x.itemsize for v in st]),
)
case(
    "as_strided",
    then((4, 6), (5, 4), (2, 1)),
    lambda x, s, st: np.lib.stride_tricks.as_strided(x, s, [v * x.itemsize for v in st]),
    id="overlap",
)


# ---- a part replaced
def put(x, key, v):
    x = x.copy()
    x[key] = v
    return x


def pair(a, b, *rest):
    return lambda rng: (rng.standard_normal(a), rng.standard_normal(b), *rest)


case("select_scatter", pair((3, 4), (3,), 1, -1), lambda x, v, d, i: put(x, (slice(None), -1), v))
case("slice_scatter", pair((6, 3), (2, 3), 0, 1, 5, 2), lambda x, v, d, a, b, s: put(x, slice(1, 5, 2), v))
case("slice_scatter", pair((3, 6), (3, 6), 1), lambda x, v, d: v, id="whole")


def diagonal_put(x, v, k=0):
    x = x.copy()
    i = np.arange(len(v))
    x[i, i + k] = v
    return x


case("diagonal_scatter", pair((4, 6), (4,), 1), diagonal_put)
case("as_strided_scatter", pair((4, 6), (2, 2), (2, 2), (6, 1), 1), lambda x, v, *a: put(x, (slice(0, 2), slice(1, 3)), v))


# ---- joins
def several(*shapes):
    return lambda rng: ([rng.standard_normal(s) for s in shapes],)


def several_then(shapes, *rest):
    return lambda rng: ([rng.standard_normal(s) for s in shapes], *rest)


case("cat", several((2, 3), (4, 3)), lambda x: np.concatenate(x), ints=True)
case("cat", several_then([(2, 3), (2, 1), (2, 5)], -1), lambda x, d: np.concatenate(x, d), id="dim")
case("cat", several((0,), (2, 3), (0, 3)), lambda x: x[1], id="empty")
case("concat", several((2,), (3,)), lambda x: np.concatenate(x))
for dim in (0, 1, -1):
    case("stack", several_then([(2, 3), (2, 3)], dim), np.stack, id=str(dim))
case("hstack", several((2, 3), (2, 1)), np.hstack)
case("hstack", several((2,), (3,)), np.hstack, id="1d")
case("vstack", several((3,), (2, 3)), np.vstack)
case("row_stack", several((3,), (3,)), np.vstack)
case("dstack", several((2, 3), (2, 3)), np.dstack)
case("column_stack", several((3,), (3, 2)), np.column_stack)
case(
    "block_diag",
    lambda rng: (rng.standard_normal((2, 3)), rng.standard_normal((1, 2))),
    lambda a, b: np.block([[a, np.zeros((2, 2))], [np.zeros((1, 3)), b]]),
)
case("atleast_1d", one(), np.atleast_1d)
case("atleast_2d", one(3), np.atleast_2d)
case("atleast_3d", one(2, 3), np.atleast_3d)
for tag, shape, reps in [("plain", (2, 3), (2, 3)), ("lead", (2,), (3, 2)), ("zero", (2, 3), (0, 1)), ("ones", (1, 3), (4, 1))]:
    case("Tensor.repeat", then(shape, reps), np.tile, id=tag, ints=tag == "plain")
case("tile", then((2, 3), (2,)), np.tile)
case("repeat_interleave", then((2, 3), 2, 1), np.repeat)
case("repeat_interleave", then((2, 3), 3), lambda x, n: np.repeat(x, n), id="flat")
case("repeat_interleave", lambda rng: (rng.standard_normal((3, 2)), np.array([2, 0, 3]), 0), np.repeat, id="tensor")
case("meshgrid", lambda rng: (rng.standard_normal(3), rng.standard_normal(4)), lambda *x: tuple(np.meshgrid(*x, indexing="ij")), kwargs={})
case(
    "cartesian_prod",
    lambda rng: (rng.standard_normal(2), rng.standard_normal(3)),
    lambda a, b: np.stack([np.repeat(a, 3), np.tile(b, 2)], 1),
)
case("combinations", one(4), lambda x: np.array([[x[i], x[j]] for i in range(4) for j in range(i + 1, 4)]))

# ---- rearranging
case("flip", then((3, 4), (0, 1)), lambda x, d: np.flip(x, d), ints=True)
case("flip", then((3, 4, 2), 1), np.flip, id="one")
case("fliplr", one(3, 4), np.fliplr)
case("flipud", one(3, 4), np.flipud)
case("roll", then((3, 4), 2, 1), np.roll)
case("roll", then((3, 4), -5), np.roll, id="flat")
case("roll", then((3, 4), (1, -1), (0, 1)), np.roll, id="dims")
for k in (0, 1, 2, 3, -1):
    case("rot90", then((3, 4), k, (0, 1)), np.rot90, id=str(k))
case("tril", then((4, 5), 1), np.tril, ints=True)
case("tril", one(2, 5, 4), np.tril, id="batch")
case("triu", then((4, 5), -1), np.triu)
case("triu", one(2, 5, 4), np.triu, id="batch")
case("diag", then(3, 1), np.diag)
case("diag", then((3, 4), -1), np.diag, id="matrix")
case("diagflat", one(2, 2), np.diagflat)
case("diag_embed", one(2, 3), lambda x: np.stack([np.diag(v) for v in x]))
case("trace", one(3, 4), np.trace, tol=4)
case("diff", one(3, 5), lambda x: np.diff(x))
case("diff", then((5, 3), 2, 0), lambda x, n, d: np.diff(x, n, d), id="twice")
for mode, numpy_mode in (("constant", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
    case(
        "nn.functional.pad",
        then((2, 5, 4), (1, 2), mode),
        lambda x, p, m, f=numpy_mode: np.pad(x, [(0, 0), (0, 0), (1, 2)], mode=f),
        id=mode,
    )
    case(
        "nn.functional.pad",
        then((2, 1, 4, 5), (2, 1, 1, 3), mode),
        lambda x, p, m, f=numpy_mode: np.pad(x, [(0, 0), (0, 0), (1, 3), (2, 1)], mode=f),
        id=mode + "2d",
    )
case("nn.functional.pad", then((3, 5), (-1, -2, 1, 0)), lambda x, p: np.pad(x[:, 1:-2], [(1, 0), (0, 0)]), id="crop")
case("nn.functional.pad", then((3,), (1, 1), "constant", 2.5), lambda x, *a: np.pad(x, 1, constant_values=2.5), id="value")

# ---- errors
x = one(4, 6)
error("Tensor.view", then((4, 6), (5, 5)), RuntimeError, "invalid for input of size 24")
error("Tensor.view", then((4, 6), (-1, -1)), RuntimeError, "only one dimension can be inferred")
error("transpose", then((4, 6), 0, 2), IndexError, "Dimension out of range")
error("permute", then((4, 6), (0, 0)), RuntimeError, "duplicate dims")
error("permute", then((4, 6), (0,)), RuntimeError, "number of dimensions")
error("select", then((4, 6), 0, 4), IndexError, "index 4 out of range")
error("narrow", then((4, 6), 0, 3, 5), RuntimeError, "exceeds dimension size")
error("Tensor.expand", then((4, 6), (3, 6)), RuntimeError, "must match the existing size")
error("split", then((4, 6), 0), RuntimeError, "split_size can only be 0")
error("split", then((4, 6), [1, 2]), RuntimeError, "sum exactly to 4")
error("chunk", then((4, 6), 0), RuntimeError, "greater than 0")
error("hsplit", then((4, 6), 4), RuntimeError, "not divisible")
error("cat", several((2, 3), (2, 2)), RuntimeError, "Sizes of tensors must match")
error("stack", several((2, 3), (3, 2)), RuntimeError, "equal size")
error("diagonal", then((4, 6), 0, 1, 1), RuntimeError, "identical")
error("Tensor.unfold", then((4, 6), 0, 9, 1), RuntimeError, "maximum size")
error("as_strided", then((4, 6), (5, 5), (6, 1)), RuntimeError, "of 24 elements")
error("flip", then((4, 6), (0, 0)), RuntimeError, "multiple times")
error("nn.functional.pad", then((4, 6), (9, 9), "reflect"), RuntimeError, "less than the corresponding input dimension")
error("nn.functional.pad", then((4, 6), (1,)), RuntimeError, "must be even")
error("tril", one(3), RuntimeError, "at least 2 dimensions")
