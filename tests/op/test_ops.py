"""Every operator case in every mode: see op_harness.py for what a case is."""

import dtorch as dt
import numpy as np
import op_harness as h
import pytest

CASES = h.load("CASES")
ERRORS = h.load("ERRORS")
cases = pytest.mark.parametrize("case", CASES, ids=h.name_of)


def reference(case, args, kwargs):
    r = case["ref"](*args, **kwargs)
    return [np.asarray(v) for v in (r if isinstance(r, tuple | list) else (r,))]


@cases
def test_values(case):
    """Against the reference in float64, in every float dtype (inputs are rounded to it first)."""
    if not case.get("ref"):
        pytest.skip("no reference")
    args, kwargs = h.arguments(case)
    has_floats = bool(h.float_inputs(case))
    for dtype in case.get("dtypes", h.FLOATS) if has_floats else ("float64",):
        a, k, _ = h.placed(case, h.contiguous(dtype), dtype, False)
        outs = h.run(case, a, k)
        want = reference(case, h.each(h.to_numpy, a), h.each(h.to_numpy, k))
        assert len(outs) == len(want), f"{len(outs)} results, expected {len(want)}"
        for i, (o, w) in enumerate(zip(outs, want, strict=True)):
            if has_floats and o.is_floating_point() and not case.get("kwargs", {}).get("dtype"):
                assert o.dtype == getattr(dt, case.get("out", dtype)), f"{dtype} in, {o.dtype} out"
            kind = str(o.dtype).removeprefix("dtorch.").removeprefix("torch.")
            h.close(
                h.to_numpy(o),
                w.astype(np.float64) if o.is_floating_point() else w,
                kind if kind in h.TOL and has_floats else "float32",
                case.get("tol", 1),
                f"{dtype}, result {i}",
            )


@pytest.mark.parametrize("case", [c for c in CASES if c.get("ints")], ids=h.name_of)
def test_integers(case):
    args, kwargs = h.arguments(case)
    for dtype in h.INTS:

        def put(x, d=dtype):
            return (np.abs(np.rint(3 * x)) if d == "uint8" else np.rint(3 * x)).astype(d) if h.is_float(x) else x

        a, k = h.each(put, args), h.each(put, kwargs)
        outs = h.run(case, h.each(h.to_tensor, a), h.each(h.to_tensor, k))
        wide = lambda x: x.astype(np.int64) if h.is_array(x) and x.dtype.kind in "iu" else x
        for o, w in zip(outs, reference(case, h.each(wide, a), h.each(wide, k)), strict=True):
            if o.is_floating_point():
                h.close(h.to_numpy(o), w.astype(np.float64), "float32", case.get("tol", 1), dtype)
            else:
                assert np.array_equal(h.to_numpy(o), w.astype(h.to_numpy(o).dtype)), f"{dtype}: {h.to_numpy(o)}, expected {w}"


def along(case, shift, order):
    """The gradients of sum(ct * f(x + shift)), as tensors with history when order is 2; shift: one array an input, or None."""
    floats = h.float_inputs(case)
    put = lambda i, x: h.to_tensor(x if shift is None or i not in floats else x + shift[floats.index(i)], "float64")
    args, kwargs, wanted = h.placed(case, put, "float64", True)
    outs = [o for o in h.run(case, args, kwargs) if o.is_floating_point()]
    ct = [h.to_tensor(c) for c in h.cotangents(outs)]
    if order == 0:
        return sum(float((o.detach() * c).sum()) for o, c in zip(outs, ct, strict=True)), wanted
    live = [(o, c) for o, c in zip(outs, ct, strict=True) if o.requires_grad]
    return dt.autograd.grad([o for o, _ in live], wanted, [c for _, c in live], allow_unused=True, create_graph=order == 2), wanted


def directions(wanted, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(tuple(w.shape)) for w in wanted]


@pytest.mark.parametrize("case", [c for c in CASES if c.get("grad", True) and h.float_inputs(c)], ids=h.name_of)
def test_gradient(case):
    """<gradient, v> = central difference of f along v, for random v: one input at a time, then all together."""
    grads, wanted = along(case, None, 1)
    step, tol = case.get("step", 1e-6), case.get("tol", 1)
    picks = [[i] for i in range(len(wanted))] + ([list(range(len(wanted)))] if len(wanted) > 1 else [])
    for seed, pick in enumerate(picks):
        v = [d if i in pick else np.zeros_like(d) for i, d in enumerate(directions(wanted, seed + 2))]
        want = (along(case, [step * d for d in v], 0)[0] - along(case, [-step * d for d in v], 0)[0]) / (2 * step)
        got = sum(float(np.sum(h.to_numpy(g) * d)) for g, d in zip(grads, v, strict=True) if g is not None)
        assert got == pytest.approx(want, rel=2e-5 * tol, abs=2e-6 * tol), f"inputs {pick}"


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.get("grad", True) == 2 and c.get("grad") is not True and h.float_inputs(c)], ids=h.name_of
)
def test_second_gradient(case):
    """The gradient of <u, gradient> against differences of the first gradient."""
    first, wanted = along(case, None, 2)
    u = directions(wanted, 7)
    v = directions(wanted, 8)
    live = [(g, d) for g, d in zip(first, u, strict=True) if g is not None and g.requires_grad]
    got = 0.0
    if live:
        second = dt.autograd.grad([g for g, _ in live], wanted, [h.to_tensor(d) for _, d in live], allow_unused=True)
        got = sum(float(np.sum(h.to_numpy(g) * d)) for g, d in zip(second, v, strict=True) if g is not None)
    step, tol = case.get("step", 1e-6), case.get("tol", 1)

    def slope(sign):
        gs, _ = along(case, [sign * step * d for d in v], 1)
        return sum(float(np.sum(h.to_numpy(g) * d)) for g, d in zip(gs, u, strict=True) if g is not None)

    want = (slope(1) - slope(-1)) / (2 * step)
    assert got == pytest.approx(want, rel=1e-4 * tol, abs=1e-5 * tol)


@cases
def test_strided(case):
    """Views that are not contiguous give what contiguous tensors give, gradients included."""
    if not h.leaves(h.arguments(case), np.ndarray) or case.get("place") is False:
        pytest.skip("no tensors, or random")
    want, want_grads = h.values_and_grads(case, h.contiguous("float32"), "float32")
    got, got_grads = h.values_and_grads(case, h.strided("float32"), "float32")
    for g, w in zip(got + got_grads, want + want_grads, strict=True):
        if w is not None:
            h.same_bits(g, w, "strided") if case.get("exact") else h.close(g, w, "float32", case.get("tol", 1), "strided")


@cases
def test_placements(case):
    """Any placement of the inputs gives the plain result and the plain gradients."""
    arrays = h.leaves(h.arguments(case), np.ndarray)
    if not arrays or case.get("place") is False:
        pytest.skip("no tensors, or random")
    want, want_grads = h.values_and_grads(case, h.contiguous("float32"), "float32")
    for layout in h.layouts(arrays):
        got, got_grads = h.values_and_grads(case, h.on_mesh(layout, "float32"), "float32")
        partial = any(isinstance(p, dt.Partial) for ps in layout[1] for p in ps)
        for what, gs, ws in (("result", got, want), ("gradient", got_grads, want_grads)):
            assert len(gs) == len(ws)
            for i, (g, w) in enumerate(zip(gs, ws, strict=True)):
                assert (g is None) == (w is None), f"{what} {i} on {layout}"
                if w is None:
                    continue
                if case.get("exact") and not partial and what == "result":
                    h.same_bits(g, w, f"{what} {i} on {layout}")
                else:
                    h.close(g, w, "float32", 5 * case.get("tol", 1), f"{what} {i} on {layout}")


@pytest.mark.parametrize("case", ERRORS, ids=h.name_of)
def test_errors(case):
    args, kwargs = h.arguments(case)
    args, kwargs = h.each(h.to_tensor, args), h.each(h.to_tensor, kwargs)
    with pytest.raises(case["error"], match=case.get("match", "")):
        outs = h.run(case, args, kwargs)
        for o in outs:  # what cannot be known at the call is raised at the read
            o.tolist()
