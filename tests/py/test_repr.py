"""How tensors print, character by character as PyTorch 2.13 does (where it says torch., here it says dtorch.)."""

import dtorch
import pytest

# fmt: off
# expression, text
CASES = [
    ('tensor(1)', 'tensor(1)'),
    ('tensor(1.5)', 'tensor(1.5000)'),
    ('tensor(3.0)', 'tensor(3.)'),
    ('tensor(True)', 'tensor(True)'),
    ('tensor([])', 'tensor([])'),
    ('tensor([], dtype=int64)', 'tensor([], dtype=dtorch.int64)'),
    ('zeros(0, 3)', 'tensor([], size=(0, 3))'),
    ('zeros(2, 0, dtype=int32)', 'tensor([], size=(2, 0), dtype=dtorch.int32)'),
    ('tensor([1, 2, 3])', 'tensor([1, 2, 3])'),
    ('tensor([1, -20, 300])', 'tensor([  1, -20, 300])'),
    ('tensor([True, False])', 'tensor([ True, False])'),
    ('tensor([1.0, 2.0])', 'tensor([1., 2.])'),
    ('tensor([1.5, 2.25, -3.125])', 'tensor([ 1.5000,  2.2500, -3.1250])'),
    ('tensor([1e-5, 1.0])', 'tensor([1.0000e-05, 1.0000e+00])'),
    ('tensor([1e9, 1.0])', 'tensor([1.0000e+09, 1.0000e+00])'),
    ('tensor([1e5, 1.0])', 'tensor([1.0000e+05, 1.0000e+00])'),
    ('tensor([123456.0, 2.0])', 'tensor([1.2346e+05, 2.0000e+00])'),
    ('tensor([1.0, float("inf"), float("nan")])', 'tensor([1., inf, nan])'),
    ('tensor([float("-inf"), 0.5])', 'tensor([  -inf, 0.5000])'),
    ('tensor([0.0, 0.0])', 'tensor([0., 0.])'),
    ('tensor([1e-10])', 'tensor([1.0000e-10])'),
    ('tensor([0.1, 1000.5])', 'tensor([1.0000e-01, 1.0005e+03])'),
    ('tensor([99999.5, 100.25])', 'tensor([99999.5000,   100.2500])'),
    ('tensor([1.5], dtype=float64)', 'tensor([1.5000], dtype=dtorch.float64)'),
    ('tensor([1.5, 2.0], dtype=float16)', 'tensor([1.5000, 2.0000], dtype=dtorch.float16)'),
    ('tensor([1.5, 2.0], dtype=bfloat16)', 'tensor([1.5000, 2.0000], dtype=dtorch.bfloat16)'),
    ('tensor([1, 2], dtype=uint8)', 'tensor([1, 2], dtype=dtorch.uint8)'),
    ('tensor([[1, 2], [3, 4]])', 'tensor([[1, 2],\n        [3, 4]])'),
    ('tensor([[1.5, -2.0], [3.0, 4.25]])', 'tensor([[ 1.5000, -2.0000],\n        [ 3.0000,  4.2500]])'),
    ('tensor([[[1.0, 2.0]], [[3.0, 4.0]]])', 'tensor([[[1., 2.]],\n\n        [[3., 4.]]])'),
    ('arange(24).reshape(2, 3, 4)', 'tensor([[[ 0,  1,  2,  3],\n         [ 4,  5,  6,  7],\n         [ 8,  9, 10, 11]],\n\n      '
        '  [[12, 13, 14, 15],\n         [16, 17, 18, 19],\n         [20, 21, 22, 23]]])'),
    ('arange(10)', 'tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])'),
    ('arange(30)', 'tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n        18, 19, 20, 21, 22, 2'
        '3, 24, 25, 26, 27, 28, 29])'),
    ('arange(40) * 1.5', 'tensor([ 0.0000,  1.5000,  3.0000,  4.5000,  6.0000,  7.5000,  9.0000, 10.5000,\n        12.0000, 13.500'
        '0, 15.0000, 16.5000, 18.0000, 19.5000, 21.0000, 22.5000,\n        24.0000, 25.5000, 27.0000, 28.5000, 30.0000, 31.5000, 3'
        '3.0000, 34.5000,\n        36.0000, 37.5000, 39.0000, 40.5000, 42.0000, 43.5000, 45.0000, 46.5000,\n        48.0000, 49.50'
        '00, 51.0000, 52.5000, 54.0000, 55.5000, 57.0000, 58.5000])'),
    ('arange(2000)', 'tensor([   0,    1,    2,  ..., 1997, 1998, 1999])'),
    ('arange(2000).reshape(50, 40)', 'tensor([[   0,    1,    2,  ...,   37,   38,   39],\n        [  40,   41,   42,  ...,   77, '
        '  78,   79],\n        [  80,   81,   82,  ...,  117,  118,  119],\n        ...,\n        [1880, 1881, 1882,  ..., 1917, 1'
        '918, 1919],\n        [1920, 1921, 1922,  ..., 1957, 1958, 1959],\n        [1960, 1961, 1962,  ..., 1997, 1998, 1999]])'),
    ('arange(2000.0).reshape(2, 25, 40)', 'tensor([[[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 3.7000e+01,\n          3.8000e+01, '
        '3.9000e+01],\n         [4.0000e+01, 4.1000e+01, 4.2000e+01,  ..., 7.7000e+01,\n          7.8000e+01, 7.9000e+01],\n      '
        '   [8.0000e+01, 8.1000e+01, 8.2000e+01,  ..., 1.1700e+02,\n          1.1800e+02, 1.1900e+02],\n         ...,\n         [8'
        '.8000e+02, 8.8100e+02, 8.8200e+02,  ..., 9.1700e+02,\n          9.1800e+02, 9.1900e+02],\n         [9.2000e+02, 9.2100e+0'
        '2, 9.2200e+02,  ..., 9.5700e+02,\n          9.5800e+02, 9.5900e+02],\n         [9.6000e+02, 9.6100e+02, 9.6200e+02,  ...,'
        ' 9.9700e+02,\n          9.9800e+02, 9.9900e+02]],\n\n        [[1.0000e+03, 1.0010e+03, 1.0020e+03,  ..., 1.0370e+03,\n   '
        '       1.0380e+03, 1.0390e+03],\n         [1.0400e+03, 1.0410e+03, 1.0420e+03,  ..., 1.0770e+03,\n          1.0780e+03, 1'
        '.0790e+03],\n         [1.0800e+03, 1.0810e+03, 1.0820e+03,  ..., 1.1170e+03,\n          1.1180e+03, 1.1190e+03],\n       '
        '  ...,\n         [1.8800e+03, 1.8810e+03, 1.8820e+03,  ..., 1.9170e+03,\n          1.9180e+03, 1.9190e+03],\n         [1.'
        '9200e+03, 1.9210e+03, 1.9220e+03,  ..., 1.9570e+03,\n          1.9580e+03, 1.9590e+03],\n         [1.9600e+03, 1.9610e+03'
        ', 1.9620e+03,  ..., 1.9970e+03,\n          1.9980e+03, 1.9990e+03]]])'),
    ('arange(1001) / 7', 'tensor([  0.0000,   0.1429,   0.2857,  ..., 142.5714, 142.7143, 142.8571])'),
    ('(arange(1200) * 0.5).reshape(10, 120)', 'tensor([[0.0000e+00, 5.0000e-01, 1.0000e+00,  ..., 5.8500e+01, 5.9000e+01,\n       '
        '  5.9500e+01],\n        [6.0000e+01, 6.0500e+01, 6.1000e+01,  ..., 1.1850e+02, 1.1900e+02,\n         1.1950e+02],\n      '
        '  [1.2000e+02, 1.2050e+02, 1.2100e+02,  ..., 1.7850e+02, 1.7900e+02,\n         1.7950e+02],\n        ...,\n        [4.200'
        '0e+02, 4.2050e+02, 4.2100e+02,  ..., 4.7850e+02, 4.7900e+02,\n         4.7950e+02],\n        [4.8000e+02, 4.8050e+02, 4.8'
        '100e+02,  ..., 5.3850e+02, 5.3900e+02,\n         5.3950e+02],\n        [5.4000e+02, 5.4050e+02, 5.4100e+02,  ..., 5.9850e'
        '+02, 5.9900e+02,\n         5.9950e+02]])'),
    ('zeros(100, 20)', 'tensor([[0., 0., 0.,  ..., 0., 0., 0.],\n        [0., 0., 0.,  ..., 0., 0., 0.],\n        [0., 0., 0.,  ..'
        '., 0., 0., 0.],\n        ...,\n        [0., 0., 0.,  ..., 0., 0., 0.],\n        [0., 0., 0.,  ..., 0., 0., 0.],\n        '
        '[0., 0., 0.,  ..., 0., 0., 0.]])'),
    ('ones(7, 200)', 'tensor([[1., 1., 1.,  ..., 1., 1., 1.],\n        [1., 1., 1.,  ..., 1., 1., 1.],\n        [1., 1., 1.,  ...,'
        ' 1., 1., 1.],\n        ...,\n        [1., 1., 1.,  ..., 1., 1., 1.],\n        [1., 1., 1.,  ..., 1., 1., 1.],\n        [1'
        '., 1., 1.,  ..., 1., 1., 1.]])'),
    ('tensor([1.5], requires_grad=True)', 'tensor([1.5000], requires_grad=True)'),
    ('tensor([1.5], requires_grad=True) * 2', 'tensor([3.], grad_fn=<MulBackward0>)'),
    ('tensor([[1.5] * 8] * 2, dtype=float64, requires_grad=True)', 'tensor([[1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.500'
        '0, 1.5000],\n        [1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000]],\n       dtype=dtorch.float64, req'
        'uires_grad=True)'),
    ('tensor([1.5, 2.5], dtype=float64, requires_grad=True) + 1', 'tensor([2.5000, 3.5000], dtype=dtorch.float64, grad_fn=<AddBack'
        'ward0>)'),
    ('tensor([-1e-6, 1e-6])', 'tensor([-1.0000e-06,  1.0000e-06])'),
    ('tensor([2**40, 1])', 'tensor([1099511627776,             1])'),
    ('tensor([1e10, 2e10])', 'tensor([1.0000e+10, 2.0000e+10])'),
    ('tensor([12345678.0])', 'tensor([12345678.])'),
    ('tensor([0.00001])', 'tensor([1.0000e-05])'),
    ('tensor([1e38, 1e-38])', 'tensor([1.0000e+38, 1.0000e-38])'),
    ('full((3,), 7.0)', 'tensor([7., 7., 7.])'),
    ('eye(3)', 'tensor([[1., 0., 0.],\n        [0., 1., 0.],\n        [0., 0., 1.]])'),
    ('arange(6).reshape(1, 1, 1, 6)', 'tensor([[[[0, 1, 2, 3, 4, 5]]]])'),
    ('arange(8).reshape(2, 2, 2, 1) > 3', 'tensor([[[[False],\n          [False]],\n\n         [[False],\n          [False]]],\n\n'
        '\n        [[[ True],\n          [ True]],\n\n         [[ True],\n          [ True]]]])'),
]
OPTIONS = [
    ({'precision': 2}, 'tensor([1.2345, 10.0])', 'tensor([ 1.23, 10.00])'),
    ({'sci_mode': True}, 'tensor([1.0, 2.5])', 'tensor([1.0000e+00, 2.5000e+00])'),
    ({'sci_mode': False}, 'tensor([1e-6, 2.5e7])', 'tensor([       0.0000, 25000000.0000])'),
    ({'threshold': 5}, 'arange(8)', 'tensor([0, 1, 2,  ..., 5, 6, 7])'),
    ({'threshold': 5, 'edgeitems': 1}, 'arange(8)', 'tensor([0,  ..., 7])'),
    ({'edgeitems': 2, 'threshold': 10}, 'arange(100).reshape(10, 10)', 'tensor([[ 0,  1,  ...,  8,  9],\n        [10, 11,  ..., 18'
        ', 19],\n        ...,\n        [80, 81,  ..., 88, 89],\n        [90, 91,  ..., 98, 99]])'),
    ({'linewidth': 40}, 'arange(30)', 'tensor([ 0,  1,  2,  3,  4,  5,  6,  7,\n         8,  9, 10, 11, 12, 13, 14, 15,\n        1'
        '6, 17, 18, 19, 20, 21, 22, 23,\n        24, 25, 26, 27, 28, 29])'),
    ({'profile': 'short'}, 'tensor([1.23456])', 'tensor([1.23])'),
    ({'profile': 'full'}, 'arange(1001)[:3]', 'tensor([0, 1, 2])'),
    ({'threshold': 3, 'edgeitems': 1}, 'arange(24.0).reshape(2,3,4)', 'tensor([[[ 0.,  ...,  3.],\n         ...,\n         [ 8.,  '
        '..., 11.]],\n\n        [[12.,  ..., 15.],\n         ...,\n         [20.,  ..., 23.]]])'),
]
# fmt: on


def evaluate(text):
    return eval(text, {**{k: getattr(dtorch, k) for k in dir(dtorch)}, "float": float})


@pytest.fixture(autouse=True)
def defaults():
    yield
    dtorch.set_printoptions(profile="default")


@pytest.mark.parametrize("text, want", CASES, ids=[c[0] for c in CASES])
def test_repr(text, want):
    assert repr(evaluate(text)) == want


@pytest.mark.parametrize("options, text, want", OPTIONS)
def test_options(options, text, want):
    dtorch.set_printoptions(**options)
    assert repr(evaluate(text)) == want


def test_where_a_tensor_lies():
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("x",))
    d = dtorch.distribute_tensor(dtorch.arange(4), mesh, [dtorch.Shard(0)])
    assert repr(d) == "tensor([0, 1, 2, 3], device_mesh=DeviceMesh((x=2), 'cpu'),\n       placements=(Shard(dim=0),))"
    assert repr(dtorch.zeros(1, device="cpu:1")) == "tensor([0.], device='cpu:1')"


def test_parameter_and_subclass():
    class Special(dtorch.Tensor):
        pass

    s = dtorch.Tensor._make_subclass(Special, dtorch.zeros(2))
    assert repr(s) == "Special([0., 0.])"


def test_small_objects():
    assert repr(dtorch.float32) == "dtorch.float32"
    assert repr(dtorch.zeros(2, 3).shape) == "dtorch.Size([2, 3])"
    assert repr(dtorch.device("cpu")) == "device(type='cpu')"
    assert repr(dtorch.device("cpu", 1)) == "device(type='cpu', index=1)"
    assert str(dtorch.device("cpu:1")) == "cpu:1"
    assert f"{dtorch.tensor(1.23456):.2f}" == "1.23"
    assert repr(dtorch.contiguous_format) == "dtorch.contiguous_format"


def test_only_what_is_shown_is_read():
    x = dtorch.arange(10**6)
    assert repr(x) == "tensor([     0,      1,      2,  ..., 999997, 999998, 999999])"


def test_wrong_options():
    with pytest.raises(ValueError, match="profile 'big' is not legal"):
        dtorch.set_printoptions(profile="big")
