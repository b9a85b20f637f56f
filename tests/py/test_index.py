"""Indexing, read and written, against NumPy: random keys of every kind that both understand, views, errors."""

import dtorch
import numpy as np
import pytest


def random_item(rng, n, common, arrays):
    """(for NumPy, for dtorch), for a dimension of size n >= 1."""
    kind = rng.choice(["int", "slice", "slice", *(["array", "mask", "list"] if arrays else [])])
    if kind == "int":
        i = int(rng.integers(-n, n))
        return i, i
    if kind in ("array", "list"):
        a = rng.integers(-n, n, size=common)
        return a, dtorch.from_numpy(a) if kind == "array" else a.tolist()
    if kind == "mask" and n >= common:
        m = np.zeros(n, bool)
        m[rng.choice(n, size=common, replace=False)] = True
        return m, dtorch.from_numpy(m)
    lo, hi = (None if rng.random() < 0.3 else int(rng.integers(-n - 1, n + 2)) for _ in range(2))
    s = slice(lo, hi, int(rng.integers(1, 4)) if rng.random() < 0.5 else None)
    return s, s


def random_key(rng, shape, arrays):
    """A key for NumPy and the same one for dtorch: some first dimensions, perhaps an Ellipsis, some last ones, None in between."""
    common = int(rng.integers(1, 4))
    first = int(rng.integers(0, len(shape) + 1))
    last = int(rng.integers(0, len(shape) - first + 1)) if rng.random() < 0.4 else -1
    items = [random_item(rng, n, common, arrays) for n in shape[:first]]
    if last >= 0:
        items.append((Ellipsis, Ellipsis))
        items += [random_item(rng, n, common, arrays) for n in shape[len(shape) - last :]]
    for _ in range(int(rng.integers(0, 3)) if rng.random() < 0.5 else 0):
        items.insert(int(rng.integers(0, len(items) + 1)), (None, None))
    return tuple(i[0] for i in items), tuple(i[1] for i in items)


@pytest.mark.parametrize("seed", range(8))
def test_views_read_as_numpy(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        shape = tuple(int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 5))))
        a = rng.standard_normal(shape).astype(np.float32)
        nk, tk = random_key(rng, shape, arrays=False)
        want, got = a[nk], dtorch.from_numpy(a)[tk]
        assert tuple(got.shape) == np.shape(want), (shape, nk)
        np.testing.assert_array_equal(got.numpy(), want, err_msg=str(nk))


@pytest.mark.parametrize("seed", range(12))
def test_arrays_read_as_numpy(seed):
    rng = np.random.default_rng(100 + seed)
    for _ in range(40):
        shape = tuple(int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 5))))
        a = rng.standard_normal(shape).astype(np.float32)
        nk, tk = random_key(rng, shape, arrays=True)
        if sum(isinstance(k, (np.ndarray, int)) for k in nk) > 1 and any(isinstance(k, int) for k in nk):
            continue  # PyTorch applies ints before arrays, NumPy beside them: the result's dimensions may be in another order
        got, want = dtorch.from_numpy(a)[tk], a[nk]
        assert tuple(got.shape) == np.shape(want), (shape, nk)
        np.testing.assert_array_equal(got.numpy(), want, err_msg=str(nk))


@pytest.mark.parametrize("seed", range(8))
def test_views_write_as_numpy(seed):
    rng = np.random.default_rng(200 + seed)
    for _ in range(30):
        shape = tuple(int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 5))))
        a = rng.standard_normal(shape).astype(np.float32)
        x = dtorch.from_numpy(a)
        nk, tk = random_key(rng, shape, arrays=False)
        if rng.random() < 0.4:
            value = float(rng.standard_normal())
            a[nk] = value
            x[tk] = value
        else:
            value = rng.standard_normal(np.shape(a[nk])).astype(np.float32)
            a[nk] = value
            x[tk] = dtorch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape)
        np.testing.assert_array_equal(x.numpy(), a, err_msg=str(nk))


@pytest.mark.parametrize("seed", range(8))
def test_arrays_write_as_numpy(seed):
    rng = np.random.default_rng(300 + seed)
    for _ in range(30):
        shape = tuple(int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 4))))
        a = np.zeros(shape, np.float32)
        x = dtorch.from_numpy(a)
        nk, tk = random_key(rng, shape, arrays=True)
        value = float(rng.standard_normal())  # repeated positions get the same value
        a[nk] = np.float32(value)
        x[tk] = value
        np.testing.assert_array_equal(x.numpy(), a, err_msg=str(nk))


def test_keys_of_other_kinds():
    a = np.arange(24).reshape(2, 3, 4)
    x = dtorch.from_numpy(a)
    assert x[1, 2, 3].item() == 23
    assert x[np.int64(1)].shape == (3, 4)
    assert x[()].shape == (2, 3, 4)
    assert x[True].shape == (1, 2, 3, 4)
    assert x[..., None].shape == (2, 3, 4, 1)
    assert x[:, range(2)].tolist() == a[:, [0, 1]].tolist()
    assert x[a > 10].tolist() == a[a > 10].tolist()
    assert x[x > 10].tolist() == a[a > 10].tolist()
    assert x[[]].shape == (0, 3, 4)
    assert x[dtorch.tensor(1)].tolist() == a[1].tolist()
    assert x[[0, 1], :, [1, 2]].tolist() == a[[0, 1], :, [1, 2]].tolist()
    assert x[[[0, 1], [1, 0]]].shape == (2, 2, 3, 4)


def test_views_share_storage():
    x = dtorch.zeros(3, 4)
    x[1] += 2
    x[:, 0].add_(1)
    x[2:, 1:3].fill_(7)
    assert x.tolist() == [[1, 0, 0, 0], [3, 2, 2, 2], [1, 7, 7, 0]]
    y = x[:]
    y.zero_()
    assert x.sum().item() == 0


def test_assign_through_masks_and_lists():
    a = np.arange(12.0).reshape(3, 4).astype(np.float32)
    x = dtorch.from_numpy(a)
    x[x > 5] = -1.0
    a[a > 5] = -1
    x[[0, 2], [1, 3]] = dtorch.tensor([10.0, 20.0])
    a[[0, 2], [1, 3]] = [10, 20]
    x[:, dtorch.tensor([True, False, False, True])] = 5
    a[:, [True, False, False, True]] = 5
    x[1] = [1, 2, 3, 4]
    a[1] = [1, 2, 3, 4]
    x[0] = np.ones((1, 4), np.float32)
    a[0] = 1
    np.testing.assert_array_equal(x.numpy(), a)


def test_gradients_flow_through_keys():
    x = dtorch.zeros(4, 3, requires_grad=True)
    (x[1:3, 0].sum() * 2 + x[[0, 0, 3]].sum() + x[dtorch.tensor([True, False, False, False])].sum()).backward()
    assert x.grad.tolist() == [[3, 3, 3], [2, 0, 0], [2, 0, 0], [1, 1, 1]]
    v = dtorch.ones(2, requires_grad=True)
    y = dtorch.zeros(3)
    y[1:] = v * 3
    (y * dtorch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert v.grad.tolist() == [6, 12]


@pytest.mark.parametrize(
    "key, error, text",
    [
        (5, IndexError, "index 5 is out of bounds for dimension 0 with size 3"),
        ((0, -5), IndexError, "index -5 is out of bounds for dimension 0 with size 4"),
        ((0, 0, 0), IndexError, "too many indices for tensor of dimension 2"),
        ((..., ...), IndexError, "single ellipsis"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        (slice("a", None), TypeError, "slice indices must be integers"),
        ("x", TypeError, "only integers, slices"),
        (1.5, IndexError, "only integers, slices"),
    ],
)
def test_errors(key, error, text):
    with pytest.raises(error, match=text.replace("(", r"\(")):
        dtorch.zeros(3, 4)[key]


def test_errors_of_arrays():
    x = dtorch.zeros(3, 4)
    with pytest.raises(IndexError, match="must be long, int, byte or bool"):
        x[dtorch.tensor([0.5])]
    with pytest.raises(IndexError, match=r"shape of the mask \(2,?\) at index 0 does not match"):
        x[dtorch.tensor([True, False])]
    with pytest.raises(TypeError, match="deleting"):
        del x[0]
    with pytest.raises(TypeError, match="0-d"):
        len(dtorch.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(dtorch.tensor(1))


def test_keys_that_hold_themselves_or_consume_more_than_they_show():
    x = dtorch.arange(4.0).reshape(2, 2)
    loop = []
    loop.append(loop)
    for key in (loop, (loop, 0)):
        with pytest.raises((ValueError, IndexError)):
            x[key]
    mask = ((True, False), (False, True))
    numpys = [[np.True_, np.False_], [np.False_, np.True_]]
    assert x[(mask,)].tolist() == [0, 3]
    for key in ((mask, 0), (mask, ..., [0]), (numpys, 0), (numpys, [0]), (numpys, slice(None))):
        with pytest.raises(IndexError, match="too many indices"):
            x[key]
        with pytest.raises(IndexError, match="too many indices"):
            x[key] = 1.0


def test_lists_and_arrays_join_the_tensor_on_its_device():
    x = dtorch.zeros(4, 3, device="cpu:3")
    x[[0, 1]] = [[1.0, 2.0, 3.0]] * 2
    x[np.array([2])] = 5
    x[3] = [7.0, 8.0, 9.0]
    assert x.tolist() == [[1, 2, 3], [1, 2, 3], [5, 5, 5], [7, 8, 9]] and x[True].shape == (1, 4, 3)


def test_a_float_is_cut_off_in_an_integer_tensor():
    x = dtorch.arange(4)
    x[dtorch.tensor([True, False, False, True])] = 2.7
    assert x.tolist() == [2, 1, 2, 2] and x.masked_fill(x > 1, -1.5).tolist() == [-1, 1, -1, -1]


def test_an_index_of_no_elements_makes_the_others_moot():
    x = dtorch.zeros(2, 0, 2, requires_grad=True)
    x[:, dtorch.tensor([7, 9])[:0], dtorch.tensor([0])].sum().backward()
    assert x.grad.shape == (2, 0, 2)
