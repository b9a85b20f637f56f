"""The Tensor type: making, properties, operators, conversions, copies, the small objects around it."""

import copy
import gc
import math
import operator
import pickle
import weakref

import dtorch
import numpy as np
import pytest


# ---- making -----------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data, dtype, shape",
    [
        (1, "int64", ()), (1.5, "float32", ()), (True, "bool", ()), ([], "float32", (0,)), ([[]], "float32", (1, 0)),
        ([1, 2], "int64", (2,)), ([1, 2.5], "float32", (2,)), ([True, 2], "int64", (2,)), ([[1, 2], [3, 4]], "int64", (2, 2)),
        ((1.0, 2.0), "float32", (2,)), (range(3), "int64", (3,)), (np.float32(2), "float32", ()), (np.int32(2), "int32", ()),
        ([np.float32(1), np.float32(2)], "float32", (2,)), (np.zeros((2, 3)), "float64", (2, 3)), ([np.zeros(2), np.ones(2)], "float64", (2, 2)),
        (np.array(3, np.int16), "int16", ()), (np.bool_(True), "bool", ()),
    ],
)  # fmt: skip
def test_tensor_infers(data, dtype, shape):
    t = dtorch.tensor(data)
    assert str(t.dtype) == "dtorch." + dtype and tuple(t.shape) == shape
    np.testing.assert_array_equal(t.numpy(), np.array(data, dtype))


def test_tensor_options():
    assert dtorch.tensor([1, 2], dtype=dtorch.float64).dtype is dtorch.float64
    assert dtorch.tensor([1.9, -1.9], dtype=dtorch.int64).tolist() == [1, -1]
    assert dtorch.tensor([0.0, 0.5], dtype=dtorch.bool).tolist() == [False, True]
    assert dtorch.tensor([1.0], requires_grad=True).requires_grad
    assert dtorch.tensor(1, dtype=float).dtype is dtorch.float64
    t = dtorch.tensor([dtorch.tensor(1.0), dtorch.tensor(2.0)])
    assert t.tolist() == [1.0, 2.0]
    assert dtorch.tensor(dtorch.ones(2)).tolist() == [1, 1]
    assert dtorch.tensor([1.0], device="cpu:1").device == dtorch.device("cpu:1")


@pytest.mark.parametrize(
    "data, error, text",
    [
        ([1, [2]], (TypeError, ValueError), "sequence|number"),
        ([[1], 2], TypeError, "not a sequence"),
        ([[1, 2], [3]], ValueError, "expected sequence of length 2 at dim 1 \\(got 1\\)"),
        ("abc", TypeError, "invalid data type|real number"),
        (None, TypeError, "NoneType"),
        ([2**70], RuntimeError, "without overflow"),
    ],
)
def test_tensor_refuses(data, error, text):
    with pytest.raises(error, match=text):
        dtorch.tensor(data)


def test_overflow_is_an_error():
    with pytest.raises(RuntimeError, match="without overflow"):
        dtorch.tensor(300, dtype=dtorch.uint8)


def test_the_array_is_copied_at_the_call():
    a = np.zeros(1000, np.float32)
    x = dtorch.from_numpy(a)
    y = dtorch.tensor(a)
    a += 1
    assert x.sum().item() == 0 and y.sum().item() == 0
    b = x.numpy()
    x.add_(1)
    assert b.sum() == 0
    b += 5
    assert x.sum().item() == 1000


def test_legacy_constructors():
    assert dtorch.Tensor(2, 3).shape == (2, 3)
    assert dtorch.Tensor([1, 2]).dtype is dtorch.float32
    assert dtorch.Tensor().shape == (0,)
    assert dtorch.LongTensor([1, 2]).dtype is dtorch.int64
    assert dtorch.FloatTensor(2).shape == (2,)


def test_factories_take_places_and_ignore_layout():
    x = dtorch.zeros(2, 3, dtype=dtorch.int32, device="cpu", layout=dtorch.strided, pin_memory=False)
    assert x.dtype is dtorch.int32 and x.shape == (2, 3)
    assert dtorch.ones((2,), requires_grad=True).requires_grad
    assert dtorch.zeros(size=(4,)).shape == (4,) and dtorch.zeros([]).shape == () and dtorch.zeros(dtorch.Size([2])).shape == (2,)
    assert dtorch.zeros(np.int64(3)).shape == (3,) and dtorch.zeros(dtorch.tensor(3)).shape == (3,)


# ---- properties ---------------------------------------------------------------------------------------------------------------------------
def test_properties():
    x = dtorch.zeros(2, 3, 4)
    assert x.shape == (2, 3, 4) and isinstance(x.shape, dtorch.Size) and x.shape.numel() == 24
    assert x.size() == x.shape and x.size(-1) == 4 and x.size(dim=0) == 2 and len(x) == 2
    assert (x.ndim, x.dim(), x.numel(), x.nelement(), x.element_size(), x.itemsize, x.nbytes) == (3, 3, 24, 24, 4, 4, 96)
    assert x.stride() == (12, 4, 1) and x.stride(1) == 4 and x.is_contiguous()
    assert x.device == "cpu" or x.device == dtorch.device("cpu")
    assert x.is_floating_point() and not x.is_complex() and not x.is_cuda and x.is_cpu and x.get_device() == -1
    assert x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3) and x.layout is dtorch.strided
    assert x.names == (None, None, None) and x.type() == "dtorch.FloatTensor"
    with pytest.raises(NotImplementedError, match="no address"):
        x.data_ptr()
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.size(3)


def test_size_is_a_tuple():
    s = dtorch.Size([2, 3])
    assert s == (2, 3) and s + (4,) == (2, 3, 4) and isinstance(s + (4,), dtorch.Size) and isinstance(s[1:], dtorch.Size) and s[0] == 2
    assert pickle.loads(pickle.dumps(s)) == s and hash(s) == hash((2, 3))
    with pytest.raises(TypeError, match="takes an iterable of 'int'"):
        dtorch.Size(["a"])


def test_dtypes_and_devices():
    assert dtorch.float is dtorch.float32 and dtorch.long is dtorch.int64 and dtorch.half is dtorch.float16
    assert dtorch.float32.itemsize == 4 and dtorch.bfloat16.is_floating_point and not dtorch.int8.is_floating_point
    assert pickle.loads(pickle.dumps(dtorch.float16)) is dtorch.float16 and copy.deepcopy(dtorch.int8) is dtorch.int8
    d = dtorch.device("cpu:3")
    assert (d.type, d.index) == ("cpu", 3) and d == dtorch.device("cpu", 3) and pickle.loads(pickle.dumps(d)) == d
    assert dtorch.device("cpu") == dtorch.device("cpu:0") and dtorch.device("cpu").index is None
    with pytest.raises(RuntimeError, match="expected one of the device types"):
        dtorch.device("gpu")
    with pytest.raises(RuntimeError, match="invalid device string"):
        dtorch.device("cpu:x")
    f = dtorch.finfo(dtorch.float32)
    assert f.eps == np.finfo(np.float32).eps and f.max == np.finfo(np.float32).max and f.tiny == np.finfo(np.float32).tiny
    assert dtorch.iinfo(dtorch.int16).max == 32767 and dtorch.iinfo(dtorch.uint8).min == 0
    with pytest.raises(TypeError):
        dtorch.finfo(dtorch.int32)


def test_promotion():
    assert dtorch.promote_types(dtorch.int32, dtorch.float16) is dtorch.float16
    assert dtorch.result_type(dtorch.zeros(1, dtype=dtorch.int32), 1.5) is dtorch.float32
    assert dtorch.result_type(dtorch.zeros(1, dtype=dtorch.float16), dtorch.tensor(1.0)) is dtorch.float16
    assert dtorch.can_cast(dtorch.int32, dtorch.float32) and not dtorch.can_cast(dtorch.float32, dtorch.int32)
    assert (dtorch.zeros(1, dtype=dtorch.int32) + 1.5).dtype is dtorch.float32
    assert (dtorch.zeros(1, dtype=dtorch.uint8) + 1).dtype is dtorch.uint8
    before = dtorch.get_default_dtype()
    try:
        dtorch.set_default_dtype(dtorch.float64)
        assert dtorch.tensor(1.0).dtype is dtorch.float64 and dtorch.zeros(1).dtype is dtorch.float64
    finally:
        dtorch.set_default_dtype(before)
    with pytest.raises(TypeError, match="floating-point"):
        dtorch.set_default_dtype(dtorch.int32)


# ---- operators ------------------------------------------------------------------------------------------------------------------------------
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_match_numpy(name):
    f = getattr(operator, name)
    a, b = np.array([1.5, 2.0, 7.0], np.float32), np.array([2.0, 2.0, 3.0], np.float32)
    x, y = dtorch.from_numpy(a), dtorch.from_numpy(b)
    np.testing.assert_allclose(f(x, y).numpy(), f(a, b), rtol=1e-6)
    np.testing.assert_allclose(f(x, 2).numpy(), f(a, np.float32(2)), rtol=1e-6)
    np.testing.assert_allclose(f(x, 2.0).numpy(), f(a, np.float32(2)), rtol=1e-6)
    np.testing.assert_allclose(f(3, x).numpy(), f(np.float32(3), a), rtol=1e-6)
    np.testing.assert_allclose(f(x, np.float32(2)).numpy(), f(a, np.float32(2)), rtol=1e-6)


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bit_operators_match_numpy(name):
    f = getattr(operator, name)
    a, b = np.array([1, 6, 12]), np.array([3, 2, 1])
    x, y = dtorch.from_numpy(a), dtorch.from_numpy(b)
    assert f(x, y).tolist() == f(a, b).tolist() and f(x, 2).tolist() == f(a, 2).tolist() and f(5, x).tolist() == f(5, a).tolist()


def test_other_operators():
    x = dtorch.tensor([1.0, -2.0])
    assert (-x).tolist() == [-1, 2] and abs(x).tolist() == [1, 2] and (+x).tolist() == [1, -2]
    assert (~dtorch.tensor([True, False])).tolist() == [False, True] and (~dtorch.tensor([1])).tolist() == [-2]
    q, r = divmod(dtorch.tensor([7.0]), 2)
    assert (q.item(), r.item()) == (3, 1)
    m = dtorch.ones(2, 3)
    assert (m @ m.T).tolist() == [[3, 3], [3, 3]]
    assert dtorch.tensor([1.0, 2.0]).__contains__(2.0) and 3.0 not in dtorch.tensor([1.0, 2.0])
    assert [t.item() for t in dtorch.arange(3)] == [0, 1, 2]
    a, b = dtorch.tensor([1, 2])
    assert (a.item(), b.item()) == (1, 2)
    assert (x == None) is False and (x != None) is True  # noqa: E711
    with pytest.raises(TypeError):
        x + "a"
    with pytest.raises(TypeError):
        x < "a"  # noqa: B015


def test_inplace_operators():
    x = dtorch.tensor([1.0, 2.0])
    y = x
    x += 1
    x *= dtorch.tensor([2.0, 3.0])
    x -= 1
    x /= 2
    assert y is x and x.tolist() == [1.5, 4.0]
    i = dtorch.tensor([5])
    i //= 2
    i |= 4
    assert i.tolist() == [6]
    with pytest.raises(RuntimeError, match="can't be cast"):
        i += 1.5


def test_arrays_as_operands():
    x = dtorch.tensor([1.0, 2.0])
    assert (x + np.array([1.0, 1.0], np.float32)).tolist() == [2, 3]


def test_hash_and_identity():
    x, y = dtorch.zeros(2), dtorch.zeros(2)
    d = {x: 1, y: 2}
    assert d[x] == 1 and len({x, y}) == 2 and hash(x) != hash(y)


# ---- reading ----------------------------------------------------------------------------------------------------------------------------------
def test_numbers():
    assert float(dtorch.tensor(1.5)) == 1.5 and int(dtorch.tensor(2.7)) == 2 and bool(dtorch.tensor(0.0)) is False
    assert [10, 20, 30][dtorch.tensor(1)] == 20 and list(range(dtorch.tensor(2))) == [0, 1]
    assert math.sqrt(dtorch.tensor(4.0)) == 2 and dtorch.tensor([[3]]).item() == 3
    for x, text in [(dtorch.zeros(2), "more than one value"), (dtorch.zeros(0), "no values")]:
        with pytest.raises(RuntimeError, match=text):
            bool(x)
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        dtorch.zeros(2).item()
    with pytest.raises(TypeError, match="only integer tensors"):
        [1, 2][dtorch.tensor(1.0)]
    assert dtorch.tensor([[1.5, 2], [3, 4]]).tolist() == [[1.5, 2], [3, 4]] and dtorch.tensor(True).tolist() is True


# ---- conversions --------------------------------------------------------------------------------------------------------------------------------
def test_casts():
    x = dtorch.tensor([1.7, -1.7])
    for name, t in [("double", "float64"), ("half", "float16"), ("bfloat16", "bfloat16"), ("int", "int32"), ("long", "int64"), ("short", "int16"),
                    ("char", "int8"), ("bool", "bool"), ("float", "float32")]:  # fmt: skip
        assert str(getattr(x, name)().dtype) == "dtorch." + t
    assert x.long().tolist() == [1, -1] and x.float() is x and x.to(dtorch.float32) is x and x.to("cpu") is x
    assert x.to(dtorch.float64).dtype is dtorch.float64 and x.to(dtype=dtorch.int32).tolist() == [1, -1]
    assert x.to(dtorch.zeros(1, dtype=dtorch.float64)).dtype is dtorch.float64
    assert x.to("cpu", dtorch.float64, non_blocking=True, copy=True).dtype is dtorch.float64
    assert x.to(dtorch.float32, copy=True) is not x and x.cpu() is x and x.type(dtorch.int32).dtype is dtorch.int32
    assert x.type_as(dtorch.zeros(1, dtype=dtorch.int8)).dtype is dtorch.int8 and x.type("dtorch.DoubleTensor").dtype is dtorch.float64
    y = x.to("cpu:1")
    assert y.device == dtorch.device("cpu:1") and y.tolist() == x.tolist() and y.to("cpu").device.index is None
    with pytest.raises(RuntimeError, match="no CUDA"):
        x.cuda()
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        x.to(foo=1)


def test_new_tensors():
    x = dtorch.zeros(2, dtype=dtorch.float64)
    assert x.new_zeros(2, 3).dtype is dtorch.float64 and x.new_ones((2,)).tolist() == [1, 1]
    assert x.new_full((2,), 3).tolist() == [3, 3] and x.new_empty(4).shape == (4,) and x.new_tensor([1, 2]).dtype is dtorch.float64
    assert x.new_zeros(2, dtype=dtorch.int32).dtype is dtorch.int32
    mesh = dtorch.init_device_mesh("cpu", (2,))
    d = dtorch.distribute_tensor(dtorch.zeros(4), mesh, [dtorch.Shard(0)])
    assert d.new_zeros(4).placements == (dtorch.Shard(0),) and d.new_zeros(3, 3).placements == (dtorch.Replicate(),)


def test_host_loops():
    assert dtorch.tensor([1.0, 2.0]).apply_(lambda v: v * 2).tolist() == [2, 4]
    assert dtorch.tensor([1.0, 2.0]).map_(dtorch.tensor([10.0, 20.0]), lambda a, b: a + b).tolist() == [11, 22]


def test_functions_about_tensors():
    x = dtorch.zeros(2)
    assert dtorch.is_tensor(x) and not dtorch.is_tensor(1) and dtorch.numel(x) == 2 and dtorch.is_floating_point(x)
    assert dtorch.equal(x, dtorch.zeros(2)) and not dtorch.equal(x, dtorch.zeros(3))
    assert dtorch.as_tensor(x) is x and dtorch.as_tensor([1]).tolist() == [1] and dtorch.asarray(np.arange(2)).tolist() == [0, 1]
    assert dtorch.compile(len) is len


# ---- objects ----------------------------------------------------------------------------------------------------------------------------------------
def test_copies():
    x = dtorch.tensor([1.0, 2.0], requires_grad=True)
    x.grad = dtorch.ones(2)
    x.note = ["a"]
    y = copy.deepcopy(x)
    assert y.requires_grad and y.grad.tolist() == [1, 1] and y.note == ["a"] and y.note is not x.note
    with dtorch.no_grad():
        y.add_(1)
    assert x.tolist() == [1, 2]
    z = copy.copy(x)
    assert z is not x and z.share_storage(x)
    a = dtorch.zeros(2)
    pair = copy.deepcopy([a, a])
    assert pair[0] is pair[1] and pair[0] is not a
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)
    with pytest.raises(TypeError, match="dtorch.save"):
        pickle.dumps(x)


def test_attributes_references_and_cycles():
    x = dtorch.zeros(2)
    x.name = "weights"
    assert x.name == "weights" and x.__dict__ == {"name": "weights"}
    ref = weakref.ref(x)
    x.self = x
    del x
    gc.collect()
    assert ref() is None
    y = dtorch.zeros(1)
    ref = weakref.ref(y)
    del y
    assert ref() is None
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nothing'"):
        dtorch.zeros(1).nothing  # noqa: B018


def test_subclasses():
    class Mine(dtorch.Tensor):
        def twice(self):
            return self * 2

    m = dtorch.Tensor._make_subclass(Mine, dtorch.ones(2), True)
    assert isinstance(m, Mine) and m.requires_grad and m.twice().tolist() == [2, 2] and type(m + 1) is dtorch.Tensor
    m.twice().sum().backward()
    assert m.grad.tolist() == [2, 2] and m.grad is m.grad
    assert isinstance(copy.deepcopy(m), Mine)
    with pytest.raises(TypeError, match="subclass of Tensor"):
        dtorch.Tensor._make_subclass(int, dtorch.ones(2))


def test_modes():
    assert dtorch.is_grad_enabled()

    @dtorch.no_grad()
    def f():
        return dtorch.is_grad_enabled()

    @dtorch.no_grad
    def g():
        yield dtorch.is_grad_enabled()
        yield dtorch.is_grad_enabled()

    assert f() is False and dtorch.is_grad_enabled()
    it = g()
    assert next(it) is False and dtorch.is_grad_enabled() and next(it) is False
    with dtorch.no_grad(), dtorch.enable_grad():
        assert dtorch.is_grad_enabled()
    with dtorch.set_grad_enabled(False):
        assert not dtorch.is_grad_enabled()
    dtorch.set_grad_enabled(False)
    assert not dtorch.is_grad_enabled()
    dtorch.set_grad_enabled(True)
    x = dtorch.ones(1, requires_grad=True)
    with dtorch.inference_mode():
        assert dtorch.is_inference_mode_enabled() and not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_generators():
    dtorch.manual_seed(5)
    assert dtorch.initial_seed() == 5
    state = dtorch.get_rng_state()
    a = dtorch.rand(4)
    dtorch.set_rng_state(state)
    assert dtorch.equal(a, dtorch.rand(4)) and not dtorch.equal(a, dtorch.rand(4))
    g = dtorch.Generator().manual_seed(5)
    assert dtorch.equal(dtorch.rand(4, generator=g), a) and g.initial_seed() == 5
    assert dtorch.equal(dtorch.rand(4, generator=dtorch.Generator().set_state(state)), a)
    with pytest.raises(TypeError, match="uint8 tensor"):
        dtorch.set_rng_state(dtorch.zeros(3))


def test_unknown_names_say_whether_they_are_planned():
    with pytest.raises(AttributeError, match="planned with Fourier transforms"):
        dtorch.fft  # noqa: B018
    with pytest.raises(AttributeError, match="not planned, there is nothing to compile"):
        dtorch.jit  # noqa: B018
    with pytest.raises(AttributeError, match="no plan names it"):
        dtorch.frobnicate  # noqa: B018
    with pytest.raises(AttributeError, match="not planned, shard the batch"):
        dtorch.nn.DataParallel  # noqa: B018
    with pytest.raises(AttributeError, match=r"write a plain loop over micro-batches"):
        dtorch.distributed.pipelining.Schedule1F1B  # noqa: B018
    with pytest.raises(AttributeError, match=r"distribute_tensor\(x, mesh, \[Shard\(0\)\]\)"):
        dtorch.utils.data.DistributedSampler  # noqa: B018
    assert not hasattr(dtorch, "fft") and dtorch.cuda.is_available() is False


def test_a_device_without_a_backend_raises_at_the_call():
    assert str(dtorch.device("cuda")) == "cuda"
    calls = [
        lambda: dtorch.ones(2, device="cuda"),
        lambda: dtorch.tensor([1.0], device="cuda:1"),
        lambda: dtorch.ones(2).to("cuda"),
        lambda: dtorch.nn.Linear(2, 2).cuda(),
        lambda: dtorch.distribute_tensor(dtorch.ones(2), dtorch.init_device_mesh("cuda", (2,))),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="no CUDA devices are available"):
            call()
    with pytest.raises(RuntimeError, match="got 'gpu:1'"):
        dtorch.device("gpu:1")


def test_switches_that_change_nothing_are_accepted():
    dtorch.set_float32_matmul_precision("high")
    dtorch.use_deterministic_algorithms(True)
    assert dtorch.get_float32_matmul_precision() == "high" and dtorch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="must be 'highest'"):
        dtorch.set_float32_matmul_precision("low")
    dtorch.set_float32_matmul_precision("highest")
    dtorch.use_deterministic_algorithms(False)


def test_named_tuples():
    r = dtorch.tensor([[1.0, 5.0, 3.0]]).max(1)
    assert r.values.item() == 5 and r.indices.item() == 1 and type(r).__name__ == "max" and type(r).__module__ == "dtorch.return_types"
    values, indices = dtorch.tensor([3.0, 1.0]).sort()
    assert values.tolist() == [1, 3] and indices.tolist() == [1, 0]


def test_out():
    out = dtorch.zeros(2)
    assert dtorch.add(dtorch.ones(2), 1, out=out) is out and out.tolist() == [2, 2]
    empty = dtorch.zeros(0)
    dtorch.mul(dtorch.ones(3), 2, out=empty)
    assert empty.tolist() == [2, 2, 2]
    v, i = dtorch.zeros(1), dtorch.zeros(1, dtype=dtorch.int64)
    dtorch.max(dtorch.tensor([[1.0, 5.0]]), 1, out=(v, i))
    assert v.item() == 5 and i.item() == 1


def test_op_table():
    table = dtorch.op_table()
    row = next(r for r in table if r["name"] == "add")
    assert row["signature"].startswith("add(") and row["doc"] and row["where"] & 1
    assert all(r["doc"] and "(" in r["signature"] for r in table)
    assert "relu" in dtorch.relu.__doc__ and dtorch.relu.__name__ == "relu" and pickle.loads(pickle.dumps(dtorch.relu)) is dtorch.relu


def test_small_functions():
    assert dtorch.broadcast_shapes((2, 1), 3, (1, 1)) == (2, 3) and dtorch.broadcast_shapes() == ()
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        dtorch.broadcast_shapes((2,), (3,))
    assert dtorch.scalar_tensor(3).item() == 3.0 and dtorch.scalar_tensor(3, dtype=dtorch.int8).dtype is dtorch.int8
    x = dtorch.arange(6.0).view(2, 3)
    assert x.sum_to_size(1, 3).tolist() == [[3, 5, 7]] and x.sum_to_size(3).tolist() == [3, 5, 7] and x.sum_to_size(()).item() == 15
    with pytest.raises(RuntimeError, match="not expandable"):
        x.sum_to_size(2)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
def test_windows(name):
    ours, theirs = getattr(dtorch.signal.windows, name), {"hann": np.hanning}.get(name) or getattr(np, name)
    for m in (0, 1, 2, 7, 8):
        np.testing.assert_allclose(ours(m, dtype=dtorch.float64).numpy(), theirs(m), atol=1e-12)
        if m:
            classic = getattr(dtorch, name + "_window")
            np.testing.assert_allclose(classic(m, dtype=dtorch.float64).numpy(), theirs(m + 1)[:-1] if m > 1 else [1.0], atol=1e-12)


def test_kaiser_window():
    np.testing.assert_allclose(dtorch.kaiser_window(9, False, beta=5.0, dtype=dtorch.float64).numpy(), np.kaiser(9, 5.0), rtol=1e-6)
