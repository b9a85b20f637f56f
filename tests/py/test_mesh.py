"""Meshes, placements, distributed tensors and the distributed package, from Python."""

import copy
import pickle

import dtorch
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


@pytest.fixture
def mesh():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


# ---- meshes ---------------------------------------------------------------------------------------------------------------------------------
def test_mesh(mesh):
    assert mesh.shape == (2, 2) and mesh.ndim == 2 and mesh.size() == 4 and mesh.size(0) == 2 and mesh.size("tp") == 2
    assert mesh.mesh_dim_names == ("dp", "tp") and mesh.device_type == "cpu" and [d.index for d in mesh.devices] == [0, 1, 2, 3]
    assert repr(mesh) == "DeviceMesh((dp=2, tp=2), 'cpu')" and repr(init_device_mesh("cpu", (3,))) == "DeviceMesh((3,), 'cpu')"
    same = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh == same and hash(mesh) == hash(same) and mesh != init_device_mesh("cpu", (4,)) and mesh is not same
    assert copy.deepcopy(mesh) == mesh and init_device_mesh("cpu", (2,)).mesh_dim_names is None


def test_mesh_of_given_devices():
    m = dtorch.DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("a", "b"))
    assert [d.index for d in m.devices] == [3, 1, 0, 2] and m.shape == (2, 2)
    assert dtorch.DeviceMesh("cpu", np.arange(3)).size() == 3 and dtorch.DeviceMesh("cpu", dtorch.arange(2)).shape == (2,)
    d = distribute_tensor(dtorch.arange(4), m, [Shard(0), Replicate()])
    assert d.to_local(0).device == dtorch.device("cpu:3") and d.to_local(2).tolist() == [2, 3]


def test_sub_meshes(mesh):
    tp = mesh["tp"]
    assert tp.shape == (2,) and tp.mesh_dim_names == ("tp",) and tp.root == mesh and tp == mesh["tp"] and tp != mesh["dp"]
    assert mesh["dp", "tp"] == mesh and mesh["tp", "dp"].mesh_dim_names == ("tp", "dp")
    d = distribute_tensor(dtorch.arange(4), tp, [Shard(0)])
    assert d.device_mesh == mesh and d.placements == (Replicate(), Shard(0))
    e = distribute_tensor(dtorch.zeros(4, 4), mesh["tp", "dp"], [Shard(0), Shard(1)])
    assert e.placements == (Shard(1), Shard(0))
    row = mesh[1]
    assert row.shape == (2,) and [x.index for x in row.devices] == [2, 3] and row.mesh_dim_names == ("tp",)
    assert [x.index for x in mesh[:, 0].devices] == [0, 2] and [x.index for x in mesh[-1, 1].devices] == [3]


def numbers(m):
    return [d.index for d in m.devices]


def test_positions_of_a_part_are_smaller_meshes():
    m = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("dp", "pp", "tp"))
    for i in range(3):
        stage = m["pp"][i]
        assert stage == stage.root and stage.mesh_dim_names == ("dp", "tp") and stage.shape == (2, 2)
        assert numbers(stage) == [2 * i, 2 * i + 1, 6 + 2 * i, 7 + 2 * i] and stage == m[:, i]
    assert m["pp"][-1] == m["pp"][2] and m["pp"][1] is not m["pp"][1] and m["pp"][1]["tp"].root == m["pp"][1]
    two = m["pp"][:2]
    assert two.shape == (2, 2, 2) and two.mesh_dim_names == ("dp", "pp", "tp") and numbers(two) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert numbers(m["tp", "dp"][1, 0]) == [1, 3, 5] and m["tp", "dp"][1, 0].mesh_dim_names == ("pp",)
    assert numbers(m["tp", "dp"][0]) == [0, 2, 4, 6, 8, 10] and numbers(m["pp"][::-1]["pp"][0]) == numbers(m["pp"][2])
    line = init_device_mesh("cpu", (3,), mesh_dim_names=("pp",))
    for i in range(3):  # nothing would be left: the dimension stays, with size 1
        assert line["pp"][i].shape == (1,) and line["pp"][i].mesh_dim_names == ("pp",) and numbers(line[i]) == [i]
    assert m[1, 2, 1].mesh_dim_names == ("tp",) and numbers(m[1, 2, 1]) == [11]
    x = distribute_tensor(dtorch.arange(8.0).view(4, 2), m["pp"][1], {"dp": Shard(0)})
    assert x.device_mesh == m["pp"][1] and x.placements == (Shard(0), Replicate()) and x.to_local(2).device == dtorch.device("cpu:8")


def test_a_dict_of_placements_changes_what_it_names():
    m = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
    x = dtorch.arange(24.0).view(6, 4)
    d = distribute_tensor(x, m["pp"][0], {"dp": Shard(0), "tp": Shard(1)})
    for same in (
        d.redistribute({"tp": Replicate()}),
        d.redistribute(placements={"tp": Replicate()}),
        d.redistribute(d.device_mesh["tp"], {"tp": Replicate()}),
    ):
        assert same.placements == (Shard(0), Replicate()) and same.device_mesh == d.device_mesh and dtorch.equal(same.full_tensor(), x)
    e = d.redistribute(m["pp"][1], {})  # dimensions of the same name keep their cut
    assert e.device_mesh == m["pp"][1] and e.placements == d.placements and (e.numpy() == x.numpy()).all()
    f = d.redistribute(m, {"pp": Shard(0)})
    assert f.placements == (Shard(0), Shard(0), Shard(1)) and dtorch.equal(f.full_tensor(), x)
    part = dtorch.Tensor.from_local([x] * 4, m["pp"][0], [Partial(), Shard(1)])
    g = part.redistribute(m["pp"][1], {})
    assert g.placements == (Replicate(), Shard(1)) and (g.numpy() == 2 * np.concatenate([x.numpy()] * 2, 1)).all()
    with pytest.raises(KeyError, match="called 'pp'"):
        d.redistribute({"pp": Replicate()})


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda m: init_device_mesh("cpu", (0,)), ValueError, "size 0 of dimension 0"),
        (lambda m: init_device_mesh("gpu", (1,)), RuntimeError, "device types cpu"),
        (lambda m: init_device_mesh("cpu", "a"), TypeError, "mesh_shape"),
        (lambda m: init_device_mesh("cpu", (2,), mesh_dim_names=("a", "b")), ValueError, "2 names for a mesh of 1"),
        (lambda m: init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "a")), ValueError, "twice"),
        (lambda m: dtorch.DeviceMesh("cpu", [0, 0]), ValueError, "appears twice"),
        (lambda m: m["pp"], KeyError, "no dimension of the mesh is called 'pp'"),
        (lambda m: m["dp", "dp"], KeyError, "given twice"),
        (lambda m: m[5], IndexError, "out of range"),
        (lambda m: m["tp"][2], IndexError, "index 2 is out of range for size 2"),
        (lambda m: m["tp"][0, 0], IndexError, "2 indices for a mesh of 1"),
        (lambda m: m[1:1], IndexError, "empty slice"),
        (lambda m: m[0.5], TypeError, "by integers and slices, not by float"),
        (lambda m: m.size(2), IndexError, "dimension 2"),
    ],
)
def test_mesh_errors(mesh, make, error, text):
    with pytest.raises(error, match=text):
        make(mesh)


# ---- placements -------------------------------------------------------------------------------------------------------------------------------
def test_placements():
    assert repr(Shard(1)) == "Shard(dim=1)" and repr(Replicate()) == "Replicate()" and repr(Partial("max")) == "Partial(max)"
    assert Shard(0) == Shard(0) != Shard(1) and Replicate() == Replicate() and Partial() == Partial("sum") != Partial("avg")
    assert len({Shard(0), Shard(0), Replicate(), Partial()}) == 3 and Shard(2).dim == 2 and Partial("avg").reduce_op == "avg"
    s = Shard(1)
    assert s.is_shard() and s.is_shard(1) and s.is_shard(dim=1) and not s.is_shard(0) and not s.is_replicate() and not s.is_partial()
    assert Partial().is_partial("sum") and not Partial().is_partial("max") and pickle.loads(pickle.dumps(s)) == s
    for bad, text in ((lambda: Partial("mean"), "not legal"), (lambda: Shard(99), "not legal")):
        with pytest.raises(ValueError, match=text):
            bad()
    with pytest.raises(TypeError):
        Shard("a")


# ---- distributed tensors ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(4, 6), (5, 3), (1, 7), (3,), (0, 2)])
def test_shards_are_chunks(mesh, shape):
    a = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    d = distribute_tensor(dtorch.from_numpy(a), mesh, [Shard(0), Shard(-1)])
    assert d.placements == (Shard(0), Shard(len(shape) - 1)) and (d.numpy() == a).all() and (d.full_tensor().numpy() == a).all()
    back = dtorch.Tensor.from_local(d.to_local(), mesh, d.placements)
    assert back.shape == d.shape and (back.numpy() == a).all()


def test_redistribute(mesh):
    x = dtorch.arange(24.0).view(4, 6)
    d = distribute_tensor(x, mesh)
    assert d.placements == (Replicate(), Replicate())
    for p in ([Shard(0), Shard(1)], [Shard(1), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Replicate()]):
        d = d.redistribute(placements=p)
        assert list(d.placements) == p and dtorch.equal(d.full_tensor(), x)
    d = d.redistribute({"tp": Shard(1)})
    assert d.placements == (Shard(0), Shard(1))
    d = d.redistribute(placements={"dp": Replicate()})
    assert d.placements == (Replicate(), Shard(1))
    other = init_device_mesh("cpu", (3,))
    e = d.redistribute(other, [Shard(0)])
    assert e.device_mesh == other and dtorch.equal(e.full_tensor(), x) and e.full_tensor().device_mesh.ndim == 0
    assert d.to("cpu") is d and dtorch.equal(d.to("cpu:2"), x.to("cpu:2"))


def test_spec_errors(mesh):
    x = dtorch.zeros(4)
    for call, error, text in (
        (lambda: distribute_tensor(x, mesh, [Shard(0)]), ValueError, "1 given for a mesh of 2"),
        (lambda: distribute_tensor(x, mesh, [Shard(3), Replicate()]), (ValueError, RuntimeError), "3|dimension"),
        (lambda: distribute_tensor(x, mesh, [Shard(-3), Replicate()]), ValueError, "not legal for a tensor of 1"),
        (lambda: distribute_tensor(x, mesh, ["a", "b"]), TypeError, "expected Shard, Replicate or Partial, got str"),
        (lambda: distribute_tensor(x, mesh, {"pp": Shard(0)}), KeyError, "pp"),
        (lambda: distribute_tensor(x, "cpu", [Shard(0)]), TypeError, "DeviceMesh"),
        (lambda: distribute_tensor(x), ValueError, "with mesh"),
        (lambda: dtorch.Tensor.from_local([x], mesh, [Shard(0), Shard(0)]), ValueError, "1 local tensors for a mesh of 4"),
        (lambda: x.to_local(3), IndexError, "0 to 0"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_partial(mesh):
    line = init_device_mesh("cpu", (2,))
    p = dtorch.Tensor.from_local([dtorch.tensor([10.0]), dtorch.tensor([35.0])], line, [Partial()])
    assert p.placements == (Partial(),) and p.item() == 45 and (p + 10).item() == 55 and (p * 2).item() == 90
    p.clamp_(max=2)
    assert p.item() == 2 and p.placements == (Replicate(),)


def test_default_mesh(mesh):
    with mesh as m:
        assert m == mesh and dtorch.zeros(2).device_mesh == mesh and dtorch.zeros(2).placements == (Replicate(), Replicate())
        assert distribute_tensor(dtorch.zeros(4), placements=[Shard(0), Shard(0)]).placements == (Shard(0), Shard(0))
        with dtorch.device("cpu:1"):
            assert dtorch.zeros(2).device == dtorch.device("cpu:1")
        assert dtorch.zeros(2).device_mesh == mesh
    assert dtorch.zeros(2).device_mesh.ndim == 0
    x = dtorch.zeros(4, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)])
    assert x.placements == (Shard(0), Shard(1)) and x.to_local(0).shape == (2, 2)


def test_default_dtype():
    with dtorch.default_dtype(dtorch.bfloat16):
        assert dtorch.zeros(2).dtype == dtorch.randn(2).dtype == dtorch.tensor(1.5).dtype == nn.Linear(2, 2).weight.dtype == dtorch.bfloat16
        with dtorch.default_dtype(dtorch.float64) as outer:
            assert dtorch.ones(1).dtype == outer.dtype == dtorch.float64
        with pytest.raises(RuntimeError), dtorch.default_dtype(dtorch.float16):
            raise RuntimeError
        assert dtorch.arange(3).dtype == dtorch.int64 and dtorch.get_default_dtype() == dtorch.bfloat16
    assert (
        dtorch.default_dtype(dtorch.float64)(lambda: dtorch.zeros(1))().dtype == dtorch.float64 and dtorch.zeros(2).dtype == dtorch.float32
    )
    for bad in (dtorch.int64, dtorch.bool, "float32"):
        with pytest.raises(TypeError, match="floating-point"):
            dtorch.default_dtype(bad)


def test_same_random_numbers_on_every_mesh(mesh):
    dtorch.manual_seed(3)
    want = dtorch.randn(5, 7)
    for p in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Shard(0)]):
        dtorch.manual_seed(3)
        assert dtorch.equal(dtorch.randn(5, 7, device_mesh=mesh, placements=p).full_tensor(), want)


def test_policy(mesh):
    x = distribute_tensor(dtorch.ones(4, 4), mesh, [Shard(0), Replicate()])
    y = distribute_tensor(dtorch.ones(4, 4), mesh, [Shard(1), Replicate()])
    with dtorch.redistribute_policy("error"):
        assert dtorch.redistribute_policy().policy == "error"
        with pytest.raises(dtorch.PlacementError, match="add"):
            x + y
    with dtorch.redistribute_policy("warn"), pytest.warns(UserWarning, match="add"):
        x + y
    assert dtorch.redistribute_policy().policy == "auto" and (x + y).sum().item() == 32
    with pytest.raises(ValueError, match="'auto', 'warn' and 'error' are"):
        dtorch.redistribute_policy("never")
    assert issubclass(dtorch.PlacementError, RuntimeError)


def test_comm_report(mesh):
    dtorch.comm_report(reset=True)
    assert repr(dtorch.comm_report()) == "no communication"
    d = distribute_tensor(dtorch.ones(8, 8), mesh, [Shard(0), Replicate()])
    d.redistribute(placements=[Replicate(), Replicate()]).sum().item()  # gathers
    r = dtorch.comm_report(reset=True)
    row = next(e for e in r if e["kind"] == "all_gather")
    assert row["bytes"] > 0 and row["count"] >= 1 and row["file"].endswith("test_mesh.py") and "all_gather" in repr(r) and r.bytes > 0


def test_memory():
    x = dtorch.ones(256, 1024)
    x.sum().item()
    s = dtorch.memory_stats()
    assert s["allocated"] >= 2**20 and s["allocated_peak"] >= s["allocated"] and s["limit"] == 0
    assert "allocated" in dtorch.memory_summary("cpu")
    with pytest.raises(ValueError, match="at least 0"):
        dtorch.set_memory_limit("cpu", -1)


def test_memory_limit():
    dtorch.set_memory_limit("cpu:5", 2**20)
    try:
        assert dtorch.memory_stats("cpu:5")["limit"] == 2**20
        y = dtorch.zeros(1000, 1000, device="cpu:5") + 1
        with pytest.raises(dtorch.OutOfMemoryError, match="out of memory"):
            y.sum().item()
        kept = dtorch.zeros(100, 1000, device="cpu:5") + 1
        kept.sum().item()
        with pytest.raises(
            dtorch.OutOfMemoryError, match=r"largest live tensors: .*float32 \(100, 1000\) of 0.4 MiB from test_mesh.py:\d+"
        ):
            (dtorch.zeros(1000, 1000, device="cpu:5") + 1).sum().item()
        assert (dtorch.ones(2, device="cpu:5") + 1).tolist() == [2, 2]
    finally:
        dtorch.set_memory_limit("cpu:5", None)
    assert issubclass(dtorch.OutOfMemoryError, RuntimeError)


# ---- the package ------------------------------------------------------------------------------------------------------------------------------------
def test_names():
    import dtorch.distributed as dist
    from dtorch.distributed.tensor import DeviceMesh, DTensor

    assert DTensor is dtorch.Tensor and dtorch.DTensor is DTensor and DeviceMesh is dtorch.DeviceMesh and not dist.is_initialized()
    with pytest.raises(RuntimeError, match="One program drives all devices"):
        dist.init_process_group("nccl")
    with pytest.raises(AttributeError):
        dist.frobnicate  # noqa: B018
    z = dtorch.distributed.tensor.zeros(4, device_mesh=init_device_mesh("cpu", (2,)), placements=[Shard(0)])
    assert z.placements == (Shard(0),)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(dtorch.relu(self.up(self.norm(x))))


@pytest.mark.parametrize("sequence", [False, True])
def test_parallelize_module(mesh, sequence):
    dtorch.manual_seed(0)
    m = MLP()
    x = dtorch.randn(4, 6, 8)
    want = m(x)
    want.pow(2).sum().backward()
    grads = {n: p.grad.clone() for n, p in m.named_parameters()}
    for p in m.parameters():
        p.grad = None
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))}
    assert parallelize_module(m, mesh["tp"], plan) is m
    assert m.up.weight.placements == (Replicate(), Shard(0)) and m.down.weight.placements == (Replicate(), Shard(1))
    assert isinstance(m.up.weight, nn.Parameter) and m.down.bias.placements == (Replicate(), Replicate())
    d = distribute_tensor(x, mesh, [Shard(0), Replicate()])
    got = m(d)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-5)
    got.pow(2).sum().backward()
    for n, p in m.named_parameters():
        assert p.grad.placements == p.placements
        np.testing.assert_allclose(p.grad.numpy(), grads[n].numpy(), rtol=1e-4, atol=1e-4, err_msg=n)


def test_prepare_inputs_and_outputs(mesh):
    line = init_device_mesh("cpu", (2,))
    seen = []

    class Probe(nn.Module):
        def forward(self, x, y=None):
            seen.append((x.placements, y.placements if y is not None else None))
            return x * 1

    m = Probe()
    plan = PrepareModuleInput(
        input_layouts=(Shard(0),),
        desired_input_layouts=(Replicate(),),
        input_kwarg_layouts={"y": Replicate()},
        desired_input_kwarg_layouts={"y": Shard(0)},
    )
    parallelize_module(m, line, plan)
    parallelize_module(m, line, PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)))
    out = m(dtorch.ones(4), y=dtorch.ones(4))
    assert seen == [((Replicate(),), (Shard(0),))] and out.placements == (Shard(0),)


def test_plan_errors(mesh):
    with pytest.raises(ValueError, match="one mesh dimension"):
        parallelize_module(nn.Linear(2, 2), mesh, ColwiseParallel())
    with pytest.raises(NotImplementedError, match="only Linear and Embedding"):
        parallelize_module(nn.LayerNorm(2), mesh["tp"], ColwiseParallel())
    with pytest.warns(UserWarning, match="no sub-module is called 'nope'"):
        parallelize_module(MLP(), mesh["tp"], {"nope": ColwiseParallel()})
    with pytest.raises(TypeError, match="DeviceMesh"):
        parallelize_module(MLP(), "cpu", ColwiseParallel())


def test_distribute_module():
    line = init_device_mesh("cpu", (2,))
    from dtorch.distributed.tensor import distribute_module, distribute_parameter

    def cut(name, module, mesh):
        if isinstance(module, nn.Linear):
            distribute_parameter(module, "weight", mesh, [Shard(0)])

    m = distribute_module(MLP(), line, cut, lambda mod, inputs, mesh: (distribute_tensor(inputs[0], mesh),))
    assert m.up.weight.placements == (Shard(0),) and m.up.bias.placements == (Replicate(),) and m(dtorch.ones(2, 8)).shape == (2, 8)


def test_a_mesh_without_devices():
    for devices in ([], np.zeros((0, 4096), "int64")):
        with pytest.raises(ValueError, match="must be at least 1"):
            dtorch.DeviceMesh("cpu", devices)


def test_compositions_away_from_the_first_device():
    apart = dtorch.DeviceMesh("cpu", [5, 2])
    values = dtorch.tensor([[2.0, 1.0], [2.0, 3.0], [2.0, 1.0]])
    for x in (values.to("cpu:3"), distribute_tensor(values, apart, [Shard(0)])):
        v, inverse, counts = x.unique(return_inverse=True, return_counts=True)
        assert v.tolist() == [1, 2, 3] and inverse.tolist() == [[1, 0], [1, 2], [1, 0]] and counts.tolist() == [2, 3, 1]
        rows, counts = x.unique(dim=0, return_counts=True)
        assert rows.tolist() == [[2, 1], [2, 3]] and counts.tolist() == [2, 1]
        assert dtorch.isin(2.0, x).item() and dtorch.histogram(x, 2, range=(1, 3)).hist.tolist() == [2, 4]


def test_an_unknown_device_is_named():
    with pytest.raises(RuntimeError, match="got 'nope:1'"):
        dtorch.ones(2, device="nope:1")
