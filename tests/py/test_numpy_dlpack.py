"""Arrays in and out: NumPy, buffers, DLPack; what is copied, and when."""

import subprocess
import sys

import dtorch
import numpy as np
import pytest

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_round_trip(dtype, shape):
    a = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 5).astype(dtype)
    x = dtorch.from_numpy(a)
    assert str(x.dtype) == "dtorch." + dtype and tuple(x.shape) == shape
    b = x.numpy()
    assert b.dtype == a.dtype and b.shape == a.shape and (b == a).all()


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[::-1], np.s_[:, ::-2], np.s_[1:, ..., None], np.s_[0]])
def test_strided_arrays(cut):
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)[cut]
    assert (dtorch.from_numpy(a).numpy() == a).all() and (dtorch.tensor(a.T).numpy() == a.T).all()
    i = np.arange(60, dtype=np.int16).reshape(3, 4, 5)[cut]
    assert (dtorch.from_numpy(i.T).numpy() == i.T).all()


def test_numpy_reads_the_whole_and_belongs_to_the_caller():
    mesh = dtorch.init_device_mesh("cpu", (3,))
    d = dtorch.distribute_tensor(dtorch.arange(7), mesh, [dtorch.Shard(0)])
    a = d.numpy()
    assert a.tolist() == list(range(7)) and a.flags.writeable
    a[0] = 99
    d.add_(1)
    assert d.tolist() == list(range(1, 8)) and a.tolist() == [99, *range(1, 7)]


def test_numpy_functions_take_tensors():
    x = dtorch.arange(6.0).view(2, 3)
    assert np.asarray(x).shape == (2, 3) and np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.sum(np.array(x)) == 15 and (np.asarray(x.T) == np.arange(6.0).reshape(2, 3).T).all()
    np.testing.assert_array_equal(np.array([1.0, 2.0]), dtorch.tensor([1.0, 2.0]))


def test_refusals():
    with pytest.raises(RuntimeError, match=r"Use tensor.detach\(\).numpy\(\) instead"):
        dtorch.ones(1, requires_grad=True).numpy()
    assert dtorch.ones(1, requires_grad=True).numpy(force=True).tolist() == [1]
    with pytest.raises(TypeError, match="BFloat16"):
        dtorch.ones(1, dtype=dtorch.bfloat16).numpy()
    assert dtorch.ones(1, dtype=dtorch.bfloat16).float().numpy().tolist() == [1]
    with pytest.raises(TypeError, match=r"expected np.ndarray \(got list\)"):
        dtorch.from_numpy([1])
    for bad in (np.array(["a"]), np.zeros(2, np.uint32), np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.zeros(2, "f4,i4")):
        with pytest.raises(TypeError, match="can't convert"):
            dtorch.from_numpy(bad)


def test_buffers():
    assert dtorch.frombuffer(b"\x01\x02\x03\x04", dtype=dtorch.uint8).tolist() == [1, 2, 3, 4]
    assert dtorch.frombuffer(np.arange(4.0).tobytes(), dtype=dtorch.float64, offset=8, count=2).tolist() == [1, 2]
    with pytest.raises(ValueError, match="do not fit"):
        dtorch.frombuffer(b"abc", dtype=dtorch.int32)
    import array

    assert dtorch.tensor(memoryview(array.array("i", [1, 2]))).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack(dtype):
    a = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    x = dtorch.from_numpy(a)
    b = np.from_dlpack(x)
    assert b.dtype == a.dtype and (b == a).all()
    y = dtorch.from_dlpack(a.T.copy().T)
    assert y.dtype is x.dtype and (y.numpy() == a).all()
    assert (dtorch.from_dlpack(x).numpy() == a).all() and x.__dlpack_device__() == (1, 0)


def test_dlpack_errors():
    with pytest.raises(BufferError, match="require gradient"):
        dtorch.ones(1, requires_grad=True).__dlpack__()
    c = dtorch.ones(2).__dlpack__()
    assert dtorch.from_dlpack(c).tolist() == [1, 1]
    with pytest.raises(BufferError, match="unused capsule"):
        dtorch.from_dlpack(c)
    with pytest.raises(AttributeError):
        dtorch.from_dlpack(3)
    dtorch.ones(2).__dlpack__()  # never consumed: freed


def test_import_is_light():
    code = "import sys, dtorch; x = dtorch.ones(2) + 1; assert x.tolist() == [2, 2]; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
