"""host_call: a Python function among the asynchronous calls."""

from dtorch import _C


def host_call(fn, *inputs, out):
    """Call fn(*arrays) on a worker, in order with the other work, and return its results as tensors at once.

    Args:
        fn: gets one read-only NumPy array per input and returns one array per result, or one array.
        inputs: tensors; distributed ones are gathered. bfloat16 is not possible: NumPy lacks it.
        out: the results' (shape, dtype), one pair or a list of pairs.

    Returns a tensor, or a tuple of them when `out` is a list. No gradient flows through. What fn raises surfaces where a value that depends
    on the results is read, and names the line of this call. Errors: TypeError for wrong arguments; ValueError, late, for a wrong shape.
    """
    single = isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], _C.dtype)
    types = [out] if single else list(out)
    types = tuple((tuple(shape), dtype) for shape, dtype in types)
    for i, t in enumerate(inputs):
        if not isinstance(t, _C.Tensor):
            raise TypeError(f"host_call(): input {i} must be a Tensor, not {type(t).__name__}")
    described = [(tuple(t.shape), str(t.dtype).rpartition(".")[2]) for t in inputs]
    names = [str(d).rpartition(".")[2] for _, d in types]
    if "bfloat16" in names or any(d == "bfloat16" for _, d in described):
        raise TypeError("host_call(): bfloat16 is not possible, as NumPy lacks it; convert to float32 first")

    def call(ins):
        import numpy as np

        got = fn(*(np.frombuffer(b, dtype=d).reshape(s) for b, (s, d) in zip(ins, described, strict=False)))
        got = (got,) if single or not isinstance(got, (tuple, list)) else got
        if len(got) != len(types):
            raise ValueError(f"host_call(): the function returned {len(got)} results, {len(types)} were declared")
        results = []
        for g, (shape, _), d in zip(got, types, names, strict=False):
            g = np.asarray(g)
            if g.shape != shape:
                raise ValueError(f"host_call(): the function returned shape {g.shape}, {shape} was declared")
            results.append(np.ascontiguousarray(g.astype(d, casting="same_kind", copy=False)).reshape(-1).view(np.uint8))
        return tuple(results)

    result = _C._host_call(call, inputs, types)
    return result[0] if single else result
