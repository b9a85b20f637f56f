"""local_map with uneven parts and several results; distribute_module; redistribution between meshes, also overlapping ones of other shapes, and backward."""

import dtorch as dt
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor import distribute_module, distribute_parameter
from dtorch.distributed.tensor.experimental import local_map

R, S, P = Replicate, Shard, Partial


@pytest.fixture
def line():
    return init_device_mesh("cpu", (3,), mesh_dim_names=("x",))


def grads(*tensors):
    out = [t.grad.numpy() for t in tensors]
    for t in tensors:
        t.grad = None
    return out


@pytest.mark.parametrize("columns", [7, 6, 2])  # 3, 3, 1; 2, 2, 2; 1, 1, 0
def test_products_of_parts(line, columns):
    dt.manual_seed(0)
    a = distribute_tensor(dt.randn(4, 5), line).requires_grad_(True)
    b = distribute_tensor(dt.randn(5, columns), line, [S(1)]).requires_grad_(True)
    shapes = []

    def product(u, v):
        shapes.append((u.device_mesh.ndim, tuple(v.shape)))
        return u @ v

    y = local_map(product, out_placements=[S(1)])(a, b)
    assert y.placements == (S(1),) and len(shapes) == 3 and all(n == 0 for n, _ in shapes) and sum(s[1] for _, s in shapes) == columns
    y.sin().sum().backward()
    got = grads(a, b)
    (a @ b).sin().sum().backward()
    for g, w in zip(got, grads(a, b), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y.detach().numpy(), (a @ b).detach().numpy(), rtol=1e-5)


def test_partial_and_several_results(line):
    dt.manual_seed(1)
    a = distribute_tensor(dt.randn(7, 5), line, [S(1)]).requires_grad_(True)
    b = distribute_tensor(dt.randn(5, 2), line, [S(0)]).requires_grad_(True)

    def both(u, v, *, scale, name):
        return u @ v, name, u * scale

    y, name, z = local_map(both, ([P()], None, {"x": S(1)}))(a, b, scale=2, name="n")
    assert (y.placements, z.placements, name) == ((P(),), (S(1),), "n")
    (y.cos().sum() + z.sum()).backward()
    got = grads(a, b)
    ((a @ b).cos().sum() + (2 * a).sum()).backward()
    for g, w in zip(got, grads(a, b), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_replicated_results(line):
    x = distribute_tensor(dt.arange(6.0), line).requires_grad_(True)
    y = local_map(lambda v: v * v, [R()])(x)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.arange(6))


# ---- modules ------------------------------------------------------------------------------------------------------------------------------
def test_distribute_module_with_all_its_functions(line):
    dt.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    x = dt.randn(5, 4)
    want = net(x).detach().numpy()
    net[1].reset_running_stats()
    seen = []

    def cut(name, module, mesh):
        seen.append(name)
        if name == "0":
            distribute_parameter(module, "weight", mesh, [S(0)])
            distribute_parameter(module, "bias", mesh, [S(0)])

    out = distribute_module(
        net, line, cut, lambda m, inputs, mesh: tuple(distribute_tensor(i, mesh, [S(0)]) for i in inputs),
        lambda m, y, mesh: y.redistribute(mesh, [R()]),
    )  # fmt: skip
    assert out is net and seen == ["", "0", "1", "2"]
    assert net[0].weight.placements == (S(0),) and net[2].weight.placements == (R(),) and net[1].running_mean.device_mesh == line
    y = net(x)
    assert y.placements == (R(),)
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-4, atol=1e-5)
    y.sum().backward()
    assert net[0].weight.grad.placements == (S(0),)
    with line:
        assert distribute_module(nn.Linear(2, 2)).weight.device_mesh == line
    with pytest.raises(ValueError, match="device_mesh is needed"):
        distribute_module(nn.Linear(2, 2))


# ---- between meshes -------------------------------------------------------------------------------------------------------------------------
MESHES = {
    "pair": (lambda: init_device_mesh("cpu", (2,)), [[S(0)], [S(1)], [R()], [P()]]),
    "square": (lambda: init_device_mesh("cpu", (2, 2)), [[S(0), S(1)], [S(1), S(1)], [R(), S(0)], [P(), S(0)]]),
    "overlapping": (lambda: dt.DeviceMesh("cpu", [3, 1, 5]), [[S(0)], [S(1)], [R()], [P()]]),
    "elsewhere": (lambda: dt.DeviceMesh("cpu", [[6, 7, 8], [9, 10, 11]]), [[S(1), S(0)], [S(0), R()], [R(), P("sum")]]),
}


@pytest.mark.parametrize("there", MESHES)
@pytest.mark.parametrize("here", MESHES)
def test_between_any_meshes_and_back(here, there):
    make, starts = MESHES[here]
    to, ends = MESHES[there]
    value = dt.arange(35.0).view(5, 7)
    for before in starts:
        for after in ends:
            x = distribute_tensor(value, make(), before).requires_grad_(True)
            y = x.redistribute(to(), after)
            assert y.device_mesh == to() and y.placements == tuple(after)
            np.testing.assert_array_equal(y.detach().numpy(), value.numpy())
            (y * y).sum().backward()
            assert x.grad.device_mesh == x.device_mesh
            np.testing.assert_array_equal(x.grad.numpy(), 2 * value.numpy())
