"""How Python arguments become an operator's: kinds, keywords, overloads, and what the errors say."""

import dtorch
import numpy as np
import pytest


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: dtorch.relu(dtorch.ones(1), foo=1), r"relu\(\) got an unexpected keyword argument 'foo'"),
        (lambda: dtorch.relu(), r'relu\(\) missing 1 required positional arguments: "input"'),
        (lambda: dtorch.relu(1), r"relu\(\): argument 'input' \(position 1\) must be Tensor, not int"),
        (lambda: dtorch.relu(dtorch.ones(1), 2), r"relu\(\) takes 1 positional argument but 2 were given"),
        (lambda: dtorch.relu(dtorch.ones(1), input=dtorch.ones(1)), r"relu\(\) got multiple values for argument 'input'"),
        (lambda: dtorch.zeros("a"), r"zeros\(\): argument 'size' \(position 1\) must be tuple of ints, not str"),
        (lambda: dtorch.zeros(2, 1.5), r"zeros\(\): argument 'size' .* must be tuple of ints"),
        (lambda: dtorch.zeros(2, dtype="float32"), r"zeros\(\): argument 'dtype' must be dtorch.dtype, not str"),
        (lambda: dtorch.zeros(2, device=3), r"zeros\(\): argument 'device' must be dtorch.device or str, not int"),
        (lambda: dtorch.zeros(2, placements=[dtorch.Shard(0)]), r"zeros\(\): placements= needs device_mesh="),
        (lambda: dtorch.ones(2).transpose(0), r'transpose\(\) missing 1 required positional arguments: "dim1"'),
        (lambda: dtorch.ones(2).flatten(start_dim="a"), r"flatten\(\): argument 'start_dim' must be int, not str"),
        (lambda: dtorch.ones(2).flatten(True), r"flatten\(\): argument 'start_dim' \(position 2\) must be int, not bool"),
        (lambda: dtorch.cat(5), r"cat\(\)"),
        (lambda: dtorch.cat([dtorch.ones(1), 3]), r"cat\(\): argument 'tensors' \(position 1\) must be tuple of Tensors, not list"),
        (lambda: dtorch.add(dtorch.ones(1), 1, out=3), r"add\(\): argument 'out' must be Tensor, not int"),
        (lambda: dtorch.rand(2, generator=3), r"rand\(\).* must be Generator"),
        (lambda: dtorch.Tensor.relu(), r"relu\(\)"),
        (lambda: dtorch.Tensor.relu(3), r"relu\(\): argument 'input' must be Tensor, not int"),
    ],
)
def test_messages(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_overloads_are_listed():
    with pytest.raises(TypeError) as e:
        dtorch.max(dtorch.ones(2), "a", keepdim=3)
    text = str(e.value)
    assert text.startswith("max() received an invalid combination of arguments - got (Tensor, str, keepdim=int), but expected one of:")
    assert "\n * (Tensor input" in text and text.count("\n * ") >= 2


def test_errors_of_the_call_do_not_fall_through():
    with pytest.raises(IndexError, match="Dimension out of range"):
        dtorch.ones(2).max(5)


def test_numbers_of_all_kinds():
    x = dtorch.arange(6).view(2, 3)
    for one in (1, np.int64(1), np.int32(1), dtorch.tensor(1), np.uint8(1)):
        assert x.sum(one).tolist() == [3, 12] and x.sum(dim=one).shape == (2,)
        assert x.select(0, one).tolist() == [3, 4, 5] and dtorch.zeros(one, 2).shape == (1, 2)
    f = dtorch.ones(2)
    for half in (0.5, np.float32(0.5), np.float64(0.5), dtorch.tensor(0.5)):
        assert (f * half).tolist() == [0.5, 0.5] and dtorch.full((2,), half).tolist() == [0.5, 0.5]
        assert dtorch.add(f, f, alpha=half).tolist() == [1.5, 1.5]
    assert (f * np.bool_(True)).tolist() == [1, 1] and x.sum(0, np.bool_(True)).shape == (1, 3)
    with pytest.raises(TypeError):
        x.sum(0, 1)  # keepdim is a bool
    with pytest.raises(TypeError):
        f * 1j


def test_lists_of_ints():
    x = dtorch.arange(24)
    for shape in ((2, 3, 4), [2, 3, 4], dtorch.Size([2, 3, 4]), (np.int64(2), dtorch.tensor(3), 4)):
        assert x.view(shape).shape == (2, 3, 4) and x.reshape(shape).shape == (2, 3, 4)
    assert x.view(2, 3, 4).shape == (2, 3, 4) and x.view(-1, 8).shape == (3, 8)
    y = x.view(2, 3, 4)
    assert (
        y.permute(2, 0, 1).shape == (4, 2, 3) and y.permute((2, 0, 1)).shape == (4, 2, 3) and y.permute(dims=(2, 0, 1)).shape == (4, 2, 3)
    )
    assert y.sum((0, 2)).shape == (3,) and y.sum([0, -1]).shape == (3,) and y.sum(dim=1).shape == (2, 4) and y.sum(None).shape == ()
    assert dtorch.ones((), dtype=dtorch.int8).shape == () and dtorch.ones(size=(2,)).shape == (2,)


def test_numpy_names():
    x = dtorch.arange(6.0).view(2, 3)
    assert x.sum(axis=1, keepdims=True).shape == (2, 1) and dtorch.softmax(x, axis=-1).shape == (2, 3)
    assert dtorch.cat([x, x], axis=1).shape == (2, 6)


def test_tensor_lists():
    a, b = dtorch.ones(1), dtorch.zeros(1)
    assert dtorch.cat([a, b]).tolist() == dtorch.cat((a, b)).tolist() == dtorch.cat(tensors=[a, b]).tolist() == [1, 0]
    many = [dtorch.full((1,), i) for i in range(100)]
    assert dtorch.cat(many).tolist() == list(range(100))
    assert dtorch.stack([a] * 3).shape == (3, 1)


def test_dtypes_as_arguments():
    x = dtorch.ones(2, dtype=dtorch.float16)
    assert x.sum(dtype=dtorch.float64).dtype is dtorch.float64 and x.sum(dtype=float).dtype is dtorch.float64
    assert dtorch.zeros(1, dtype=int).dtype is dtorch.int64 and dtorch.zeros(1, dtype=None).dtype is dtorch.float32
    assert dtorch.zeros_like(x, dtype=dtorch.int32).dtype is dtorch.int32


def test_harmless_options_are_ignored():
    x = dtorch.ones(2)
    assert x.contiguous(memory_format=dtorch.contiguous_format) is not None
    assert x.clone(memory_format=dtorch.preserve_format).tolist() == [1, 1]
    assert dtorch.zeros_like(x, device="cpu", layout=dtorch.strided, requires_grad=True).requires_grad
    assert dtorch.zeros_like(x, device="cpu:1").device == dtorch.device("cpu:1")


def test_methods_and_functions_are_one():
    x = dtorch.tensor([-1.0, 2.0])
    bound = x.relu
    assert bound().tolist() == [0, 2] and list(map(dtorch.Tensor.relu, [x]))[0].tolist() == [0, 2]

    class Holder:
        act = dtorch.relu  # a function in a class does not bind

    assert Holder().act(x).tolist() == [0, 2]
    assert x.where(x > 0, 5.0).tolist() == [5, 2] and dtorch.where(x > 0, x, 5.0).tolist() == [5, 2]


def test_call_sites_name_the_users_line():
    file, line, function = dtorch._C._site()
    assert file == __file__ and function == "test_call_sites_name_the_users_line"

    def inner():
        return dtorch._C._site()

    assert inner()[2] == "inner" and inner()[1] != line


def test_late_errors_name_the_call():
    x = dtorch.arange(4)
    bad = x[dtorch.tensor([9])]  # this line
    good = x + 1
    with pytest.raises(IndexError) as e:
        bad.tolist()
    assert "test_args.py" in str(e.value) and "9" in str(e.value)
    assert good.tolist() == [1, 2, 3, 4]
    with pytest.raises(IndexError):
        (bad + 1).sum().item()
