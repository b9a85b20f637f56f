"""Seeing where things lie: shards as text and SVG, meshes and modules as tables."""

import io
import re
import xml.etree.ElementTree as ET

import dtorch as dt
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed import describe, visualize_sharding
from dtorch.distributed._show import _held, sharding_text
from dtorch.distributed.tensor.debug import CommDebugMode
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

pytestmark = pytest.mark.one_process("the texts name the devices of one process")
R, S, P = Replicate, Shard, Partial


@pytest.fixture
def mesh():
    return init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))


def cells(text):
    return [[c.strip() for c in re.sub(r"\x1b\[[0-9;]*m", "", line).split("│")[1:-1]] for line in text.splitlines() if "│" in line]


@pytest.mark.parametrize(
    "shape, placements",
    [
        ((8, 6), (S(0), S(1))), ((8, 6), (S(1), S(1))), ((7, 5), (S(0), S(0))), ((5,), (S(0), S(0))), ((2, 2), (R(), S(1))), ((0, 3), (S(0), R())),
        ((4, 6, 5), (S(2), S(0))),
    ],
)  # fmt: skip
def test_intervals_are_what_devices_hold(mesh, shape, placements):
    numel = 1
    for n in shape:
        numel *= n
    x = dt.arange(numel).view(shape)
    t = distribute_tensor(x, mesh, placements)
    for i, (device, _, runs) in enumerate(_held(t)):
        assert device == mesh.devices[i]
        part = x.numpy()
        for d, r in enumerate(runs):
            part = part.take([k for lo, hi in r for k in range(lo, hi)], d)
        assert part.tolist() == t.to_local(i).tolist()


def test_strided_shards(mesh):
    x = distribute_tensor(dt.arange(48).view(4, 12), mesh, {"tp": S(1)})
    flat = x.view(48)
    assert flat.placements[1].split_factor == 4
    for i, (_, _, runs) in enumerate(_held(flat)):
        assert [k for lo, hi in runs[0] for k in range(lo, hi)] == flat.to_local(i).tolist()
    assert cells(sharding_text(flat)) == [["cpu:0,3", "cpu:1,4", "cpu:2,5"] * 4]


def test_text(mesh):
    text = sharding_text(distribute_tensor(dt.ones(8, 6), mesh, [S(0), S(1)]))
    assert text.splitlines()[0] == "float32 (8, 6) on DeviceMesh((dp=2, tp=3), 'cpu') [Shard(0), Shard(1)]"
    assert text.splitlines()[1].split() == ["0:2", "2:4", "4:6"] and "0:4 │" in text and "4:8 │" in text
    assert cells(text) == [["cpu:0", "cpu:1", "cpu:2"], ["cpu:3", "cpu:4", "cpu:5"]]
    assert cells(sharding_text(distribute_tensor(dt.ones(2, 2), mesh))) == [["cpu:0-5"]]
    uneven = sharding_text(distribute_tensor(dt.ones(4), mesh["tp"], [S(0)]))
    assert cells(uneven) == [["cpu:0,3", "cpu:1,4"]] and uneven.endswith("nothing on cpu:2,5")
    assert len({len(line) for line in uneven.splitlines()[2:5]}) == 1  # frames are straight
    assert sharding_text(dt.tensor(1.0, device="cpu:2")).splitlines()[1] == "cpu:2" and cells(sharding_text(dt.ones(3))) == [["cpu:0"]]


def test_partial(mesh):
    local = [dt.ones(2, 3)] * 6
    assert cells(sharding_text(dt.Tensor.from_local(local, mesh, [P(), S(1)]))) == [["cpu:0+3", "cpu:1+4", "cpu:2+5"]]
    assert cells(sharding_text(dt.Tensor.from_local(local, mesh, [R(), P()]))) == [["cpu:0+1+2,3+4+5"]]
    assert cells(sharding_text(dt.Tensor.from_local(local, mesh, [S(0), P("max")]))) == [["cpu:max(0-2)"], ["cpu:max(3-5)"]]


def test_dimensions_can_be_chosen(mesh):
    t = distribute_tensor(dt.ones(4, 3, 6), mesh, [S(0), S(2)])
    assert cells(sharding_text(t)) == [["cpu:0", "cpu:1", "cpu:2"], ["cpu:3", "cpu:4", "cpu:5"]] and "dimension 1 at 0" in sharding_text(t)
    assert cells(sharding_text(t, dims=[2, 0])) == [["cpu:0", "cpu:3"], ["cpu:1", "cpu:4"], ["cpu:2", "cpu:5"]]
    assert cells(sharding_text(t, dims=[1, -1])) == [["cpu:0", "cpu:1", "cpu:2"]]
    assert cells(sharding_text(t, dims=[1, -1], at={0: 3})) == [["cpu:3", "cpu:4", "cpu:5"]]
    assert cells(sharding_text(t, dims=[0])) == [["cpu:0", "cpu:3"]]
    for bad in ([3], [0, 0], [0, 1, 2]):
        with pytest.raises(ValueError, match="dims must be at most two"):
            sharding_text(t, dims=bad)
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        visualize_sharding([1])


def test_many_intervals_are_cut_off():
    line = init_device_mesh("cpu", (40,))
    text = sharding_text(distribute_tensor(dt.ones(40, 40), line, [S(0)]))
    assert "rows more" in text and len(text.splitlines()) < 60
    wide = sharding_text(distribute_tensor(dt.ones(2, 40), line, [S(1)]))
    assert cells(wide)[0][-1] == "…" and len(cells(wide)[0]) == 24


def test_where_it_is_written(mesh, capsys, tmp_path, monkeypatch):
    t = distribute_tensor(dt.ones(8, 6), mesh, [S(0), S(1)])
    visualize_sharding(t, "weights")
    out = capsys.readouterr().out
    assert out.startswith("weights\nfloat32 (8, 6)") and "\x1b" not in out  # not a terminal: no colours
    visualize_sharding(t, color=True)
    painted = capsys.readouterr().out
    assert painted.count("\x1b[48;5;") == 6 and cells(painted) == cells(out)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for setting, count in (("", 6), ("1", 0)):
        monkeypatch.setenv("NO_COLOR", setting)
        terminal = Terminal()
        visualize_sharding(t, file=terminal)
        assert terminal.getvalue().count("\x1b[48;5;") == count
    visualize_sharding(t, file=tmp_path / "x.txt")
    assert cells((tmp_path / "x.txt").read_text(encoding="utf-8")) == cells(out)


@pytest.mark.parametrize("place", [[S(0), S(1)], [R(), S(0)], [S(0), S(0)], [R(), R()]])
@pytest.mark.parametrize("shape", [(8, 6), (5,), (3, 4, 5), ()])
def test_svg(mesh, tmp_path, shape, place):
    if any(p.is_shard() and p.dim >= len(shape) for p in place):
        return
    t = distribute_tensor(dt.ones(shape), mesh, place)
    visualize_sharding(t, file=tmp_path / "x.svg")
    root = ET.parse(tmp_path / "x.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{name}rect")
    labels = [b.find(f"{name}title").text for b in boxes]
    if shape:
        assert labels == [c for row in cells(sharding_text(t)) for c in row]
        assert sum(float(b.get("width")) * float(b.get("height")) for b in boxes) == pytest.approx(
            520 * (320 if len(shape) > 1 else 60), rel=0.01
        )
    assert any("float32" in (e.text or "") for e in root.findall(f"{name}text"))


def test_meshes_print_their_devices(mesh):
    assert repr(mesh) == "DeviceMesh((dp=2, tp=3), 'cpu')" and f"{mesh}" == f"{mesh:s}" == repr(mesh) and f"{mesh:>40}"[:2] == "  "
    assert [line.split() for line in str(mesh).splitlines()[1:]] == [
        ["tp=0", "tp=1", "tp=2"], ["dp=0", "cpu:0", "cpu:1", "cpu:2"], ["dp=1", "cpu:3", "cpu:4", "cpu:5"]]  # fmt: skip
    part = str(mesh["dp"]).splitlines()
    assert "a part of DeviceMesh((dp=2, tp=3), 'cpu')" in part[0] and part[2].split() == ["tp=0", "cpu:0", "cpu:3"]
    deep = str(init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))).splitlines()
    assert deep[1] == "a=0" and deep[5] == "a=1" and deep[8].split() == ["b=1", "cpu:6", "cpu:7"]
    assert "0=1" in str(init_device_mesh("cpu", (2,))) and str(dt.ones(1).device_mesh).endswith(": cpu:0")


def test_modules(mesh):
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    net[2].bias.requires_grad_(False)
    table = describe(net)
    rows = {r["name"]: r for r in table}
    assert rows["0.weight"]["placements"] == (R(), S(0)) and rows["0.weight"]["bytes"] == 6 * 8 * 4  # 16 rows in chunks of 6
    assert rows["2.bias"]["kind"] == "frozen" and rows["1.running_mean"]["kind"] == "buffer"
    text = str(table)
    assert "Replicate(), Shard(1)" in text and "A: DeviceMesh((dp=2, tp=3), 'cpu')" in text and "B: cpu:0" in text
    on_first = sum(r["bytes"] for r in table)
    assert table.bytes == on_first and text.splitlines()[-1].startswith("at most ")
    assert [r["name"] for r in describe({"x": dt.ones(2), "n": 3})] == ["x"]


def test_comm_debug_mode(mesh):
    x = distribute_tensor(dt.ones(6), mesh["dp"], [S(0)])
    with CommDebugMode() as comm:
        y = x.redistribute({"dp": R()})
    assert comm.get_comm_counts() == {"all_gather": 1} and comm.get_total_counts() == 1 and y.tolist() == [1] * 6
    assert "all_gather" in comm.generate_comm_debug_tracing_table()


@pytest.mark.parametrize("placements", [(S(0), R()), (P(), R()), (R(), S(1))])
def test_a_cell_that_nobody_can_hold_anything_of_says_so(mesh, placements):
    out = io.StringIO()
    visualize_sharding(
        distribute_tensor(dt.ones(0, 3), mesh, [R(), R()]).redistribute(mesh, placements), file=out, color=False, dims=(0, 1)
    )
    assert {c for row in cells(out.getvalue()) for c in row} == {"empty"}
