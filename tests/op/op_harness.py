"""What every operator case goes through. A case table is a file cases_<family>.py with a list CASES (and, if it likes, ERRORS).

A case is a dict:
    op      the function's name below dtorch: "softmax", "nn.functional.gelu", "special.i0e"; "Tensor.fill_" for a method; or a callable
    args    rng -> tuple of NumPy arrays, lists of arrays, and plain values. Float arrays are float64; each mode converts them
    kwargs  plain values (arrays are allowed); default {}
    ref     the same arguments as NumPy arrays -> the result in float64 (an array or a tuple of arrays); None: no reference, only
            consistency between the modes
    grad    False: not differentiable. True: the gradient is checked against finite differences. 2: so is the gradient of the gradient
    tol     factor on the tolerances; default 1
    dtypes  float dtypes to run in; default all four. Cases without float arrays run once, as they are
    ints    True: also run with the float arrays rounded to every integer dtype
    exact   True: any placement gives the plain result bit for bit (pure elementwise ops); default False
    place   False: no placement modes (random ops, ops whose result is not a function of values alone)
    id      a word to tell cases of one op apart

An error case is dict(op, args, kwargs, error=exception class, match=part of the text).
"""

import importlib.util
import itertools
import pathlib

import dtorch as dt
import numpy as np

FLOATS = ("float64", "float32", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
# relative and absolute tolerance of a value in each dtype
TOL = {"float64": (1e-9, 1e-11), "float32": (2e-5, 2e-6), "bfloat16": (3e-2, 2e-2), "float16": (4e-3, 4e-3)}


def load(name):
    """All entries of the lists called `name` in cases_*.py, each with its family in entry["family"]."""
    found = []
    for path in sorted(pathlib.Path(__file__).parent.glob("cases_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [{**c, "family": path.stem.removeprefix("cases_")} for c in getattr(module, name, [])]
    return found


def name_of(case):
    op = case["op"]
    text = op if isinstance(op, str) else op.__name__
    return f"{case['family']}-{text}" + (f"-{case['id']}" if case.get("id") else "")


def function_of(op):
    if callable(op):
        return op
    if op.startswith("Tensor."):
        method = op.removeprefix("Tensor.")
        return lambda x, *a, **k: getattr(x, method)(*a, **k)
    obj = dt
    for part in op.split("."):
        obj = getattr(obj, part)
    return obj


def arguments(case, seed=0):
    """(args, kwargs) with fresh arrays."""
    return tuple(case["args"](np.random.default_rng(seed))), dict(case.get("kwargs", {}))


def is_array(x):
    return isinstance(x, np.ndarray)


def is_float(x):
    return is_array(x) and x.dtype.kind == "f"


def each(fn, x):
    """x with fn applied to its arrays, in lists and tuples too."""
    if is_array(x) or isinstance(x, dt.Tensor):
        return fn(x)
    if isinstance(x, list | tuple) and leaves(x, (np.ndarray, dt.Tensor)):
        return type(x)(each(fn, v) for v in x)
    if isinstance(x, dict):
        return {k: each(fn, v) for k, v in x.items()}
    return x


def leaves(x, kind):
    """The arrays (or tensors) in x, in order."""
    if isinstance(x, kind):
        return [x]
    if isinstance(x, list | tuple):
        return [v for y in x for v in leaves(y, kind)]
    if isinstance(x, dict):
        return [v for y in x.values() for v in leaves(y, kind)]
    return []


def to_tensor(x, dtype=None):
    t = dt.tensor(x)
    return t.to(getattr(dt, dtype)) if dtype and x.dtype.kind == "f" else t


def to_numpy(t):
    t = t.detach()
    if hasattr(t, "full_tensor"):
        t = t.full_tensor()
    return (t.double() if t.is_floating_point() else t).numpy()


def run(case, args, kwargs):
    """-> list of result tensors"""
    return leaves(function_of(case["op"])(*args, **kwargs), dt.Tensor)


def close(got, want, dtype, tol, what):
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if want.dtype.kind != "f":
        assert np.array_equal(got, want), f"{what}: {got!r}, expected {want!r}"
        return
    rtol, atol = TOL[dtype]
    np.testing.assert_allclose(got, want, rtol=rtol * tol, atol=atol * tol, equal_nan=True, err_msg=what)


def same_bits(got, want, what):
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert np.array_equal(got, want, equal_nan=want.dtype.kind == "f"), f"{what}: differs by {np.max(np.abs(got - want))}"


def cotangents(outs, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(o.shape) for o in outs]


def float_inputs(case):
    """Positions (in the flat list of arrays) of differentiable inputs."""
    args, kwargs = arguments(case)
    return [i for i, a in enumerate(leaves((args, kwargs), np.ndarray)) if is_float(a)]


def placed(case, put, dtype, differentiable):
    """Build the inputs with `put(i, array) -> tensor` for the i-th array; -> (args, kwargs, tensors that want a gradient)."""
    args, kwargs = arguments(case)
    count = itertools.count()
    wanted = []

    def make(x):
        t = put(next(count), x)
        if is_float(x) and differentiable:
            t = t.detach().requires_grad_(True)
            wanted.append(t)
        return t

    args, kwargs = each(make, args), each(make, kwargs)
    return args, kwargs, wanted


def values_and_grads(case, put, dtype):
    """(results, gradients) as arrays; the gradients are of a fixed random combination of the float results."""
    differentiable = bool(case.get("grad", True))
    args, kwargs, wanted = placed(case, put, dtype, differentiable)
    outs = run(case, args, kwargs)
    grads = []
    live = [o for o in outs if o.is_floating_point() and o.requires_grad]
    if wanted and live:
        ct = [to_tensor(c, dtype) for c in cotangents(live)]
        grads = dt.autograd.grad(live, wanted, ct, allow_unused=True)
    return [to_numpy(o) for o in outs], [None if g is None else to_numpy(g) for g in grads]


def contiguous(dtype):
    return lambda i, x: to_tensor(x, dtype)


def strided(dtype):
    """Each array as a view that is not contiguous: transposed, or every second element."""

    def put(i, x):
        if x.ndim >= 2:
            return to_tensor(np.ascontiguousarray(np.swapaxes(x, -1, -2)), dtype).transpose(-1, -2)
        if x.ndim == 1:
            return to_tensor(np.repeat(x, 2), dtype)[::2]
        return to_tensor(x, dtype)

    return put


# ---- placements ------------------------------------------------------------------------------------------------------------------------


def mesh(*dims):
    return dt.init_device_mesh("cpu", dims)


def shards(ndim):
    return [dt.Shard(d) for d in range(ndim)]


def layouts(arrays, seed=0):
    """Lists of (mesh shape, one placement tuple an array): each array alone along each dimension, all together, a 2-D mesh, Partial."""
    R = dt.Replicate()
    out = []
    for n in (2, 3):
        for i, x in enumerate(arrays):
            out += [((n,), [(s,) if j == i else (R,) for j in range(len(arrays))]) for s in shards(x.ndim)]
        if len(arrays) > 1:
            top = max(x.ndim for x in arrays)
            for d in range(top):  # aligned from the right, as broadcasting does
                out.append(((n,), [(dt.Shard(d - top + x.ndim),) if d - top + x.ndim >= 0 else (R,) for x in arrays]))
    rng = np.random.default_rng(seed)
    for _ in range(2):
        choice = [[R, *shards(x.ndim)] for x in arrays]
        out.append(((2, 2), [tuple(c[rng.integers(len(c))] for _ in range(2)) for c in choice]))
    for i, x in enumerate(arrays):
        if is_float(x):
            out.append(((2,), [(dt.Partial(),) if j == i else (R,) for j in range(len(arrays))]))
    return out


def on_mesh(layout, dtype):
    """put for a layout: arrays distributed as it says. A Partial is made of two halves, which sum up exactly."""
    dims, placements = layout
    m = mesh(*dims)

    def put(i, x):
        p = placements[i]
        t = to_tensor(x, dtype)
        if any(isinstance(v, dt.Partial) for v in p):
            half = t * 0.5
            return dt.Tensor.from_local([half, half], m, list(p))
        return dt.distribute_tensor(t, m, list(p))

    return put
