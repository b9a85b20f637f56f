"""Views share storage and in-place calls write through them, with PyTorch's rules for gradients."""

import dtorch
import numpy as np
import pytest


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1], lambda t: t[:, 1:3], lambda t: t.T, lambda t: t.view(4, 3), lambda t: t.reshape(-1), lambda t: t.unsqueeze(0), lambda t: t[::2],
        lambda t: t.transpose(0, 1)[1:], lambda t: t.view(2, 6).T[1], lambda t: t.permute(1, 0).unsqueeze(1)[:, 0], lambda t: t.flatten()[2:9],
        lambda t: t.split(2, 1)[1], lambda t: t.chunk(2)[0], lambda t: t.unbind(1)[2], lambda t: t.diagonal(), lambda t: t.narrow(1, 1, 2),
        lambda t: t.select(0, 2), lambda t: t.squeeze(), lambda t: t.movedim(0, 1),
    ],
)  # fmt: skip
def test_writes_reach_the_base(view):
    def numpy_view(a):  # the same positions, by number
        index = view(dtorch.arange(12).view(3, 4))
        a.reshape(-1)[index.numpy().reshape(-1)] = 7

    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = dtorch.from_numpy(a)
    other = x.view(12)
    v = view(x)
    v.fill_(7)
    numpy_view(a)
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_array_equal(other.numpy(), a.reshape(-1))
    assert v.eq(7).all().item()


def test_writes_to_the_base_reach_views():
    x = dtorch.zeros(3, 4)
    v, w = x[1], x.T[2]
    x.add_(1)
    x[1, 2] = 5
    assert v.tolist() == [1, 1, 5, 1] and w.tolist() == [1, 5, 1]


def test_detach_and_data_share():
    x = dtorch.ones(3, requires_grad=True)
    d = x.detach()
    d[0] = 5
    x.data.mul_(2)
    assert x.tolist() == [10, 2, 2] and not d.requires_grad and d.tolist() == [10, 2, 2]
    x.data = dtorch.zeros(2)
    assert x.tolist() == [0, 0] and x.requires_grad


def test_inplace_methods_return_self():
    x = dtorch.tensor([4.0, -1.0])
    assert x.abs_() is x and x.sqrt_() is x and x.tolist() == [2, 1]
    assert x.add_(1, alpha=2) is x and x.tolist() == [4, 3]
    assert x.copy_(dtorch.tensor([1, 2])) is x and x.tolist() == [1, 2] and x.copy_(3) is x and x.tolist() == [3, 3]
    assert x.zero_() is x and x.fill_(2) is x and x.clamp_(max=1) is x and x.tolist() == [1, 1]


def test_versions_count_writes():
    x = dtorch.zeros(2)
    before = x._version
    v = x[0]
    v.add_(1)
    x.mul_(2)
    assert x._version == before + 2 and v._version == x._version


def test_saved_values_are_guarded():
    x = dtorch.ones(2, requires_grad=True)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_leaves_that_want_gradients_are_not_written():
    x = dtorch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0] = 3
    with dtorch.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 2]


def test_gradients_through_writes():
    x = dtorch.ones(3, requires_grad=True)
    y = x * 1
    y[1:] *= 3
    y[0] = 0
    y.sum().backward()
    assert x.grad.tolist() == [0, 3, 3]
    a = dtorch.zeros(4)
    b = dtorch.ones(2, requires_grad=True)
    a[1:3] += b * 2
    (a * dtorch.arange(4.0)).sum().backward()
    assert b.grad.tolist() == [2, 4]


def test_gradients_of_views_taken_before_a_write():
    x = dtorch.ones(4, requires_grad=True)
    base = x * 2
    v = base.view(2, 2)[1]
    base.mul_(5)
    v.sum().backward()
    assert x.grad.tolist() == [0, 0, 10, 10]


def test_shapes_must_fit():
    with pytest.raises(RuntimeError, match="shape|size|expand|broadcast"):
        dtorch.zeros(2).add_(dtorch.zeros(3, 2))
    with pytest.raises(RuntimeError):
        dtorch.zeros(2, 2)[0] = dtorch.zeros(3)
    with pytest.raises(RuntimeError, match="invalid for input of size 4|shape"):
        dtorch.zeros(4).view(3)


def test_sharded_views_write_through():
    mesh = dtorch.init_device_mesh("cpu", (2,))
    d = dtorch.distribute_tensor(dtorch.arange(10.0).view(5, 2), mesh, [dtorch.Shard(0)])
    d[:2].zero_()
    d[1:][3].add_(100)
    assert d.tolist() == [[0, 0], [0, 0], [4, 5], [6, 7], [108, 109]] and d.placements == (dtorch.Shard(0),)
    d.T[1].mul_(2)
    assert d.full_tensor()[:, 1].tolist() == [0, 0, 10, 14, 218]
