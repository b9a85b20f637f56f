"""comm_report, comm_scope, comm_bound: the name, mesh dimension, bytes and line of every collective."""

import dtorch as dt
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

R, S, P = Replicate, Shard, Partial


@pytest.fixture
def mesh():
    return init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))


def moved(x, *where):
    """The rows of one redistribution."""
    dt.synchronize()
    with dt.comm_scope() as report:
        y = x.redistribute(*where)
    return y, report


KINDS = [  # from, to, kind, mesh dimension, bytes for a (12, 12) f32 tensor of 576 bytes on 2 × 3 devices
    ((S(0), R()), (R(), R()), "all_gather", "dp", 576 * 1 * 3),
    ((R(), S(1)), (R(), R()), "all_gather", "tp", 576 * 2 * 2),
    ((P(), R()), (R(), R()), "all_reduce", "dp", 2 * 576 * 1 * 3),
    ((R(), P()), (R(), R()), "all_reduce", "tp", 2 * 576 * 2 * 2),
    ((R(), P("max")), (R(), R()), "all_reduce", "tp", 2 * 576 * 2 * 2),
    ((P(), R()), (S(0), R()), "reduce_scatter", "dp", 576 * 1 * 3),
    ((S(0), P()), (S(0), S(1)), "reduce_scatter", "tp", 288 * 2 * 2),
    ((R(), S(0)), (R(), S(1)), "all_to_all", "tp", 576 // 3 * 2 * 2),
    ((P(), P()), (R(), R()), "all_reduce", "dp,tp", 2 * 576 * 5),
    ((S(0), S(1)), (R(), R()), "all_gather", "dp,tp", 576 * 5),
    ((P(), S(1)), (R(), R()), "reshard", "dp,tp", None),
    ((S(0), R()), (R(), S(0)), "all_to_all", "dp,tp", None),
    ((R(), R()), (S(0), S(1)), None, None, 0),
    ((R(), R()), (P(), R()), None, None, 0),
    ((P(), S(0)), (P(), S(0)), None, None, 0),
]


@pytest.mark.parametrize("before, after, kind, dim, size", KINDS, ids=lambda v: repr(v) if isinstance(v, tuple) else "")
def test_names_and_bytes(mesh, before, after, kind, dim, size):
    x = dt.arange(144.0).view(12, 12)
    local = [p if isinstance(p, Partial) else R() for p in before]
    d = dt.Tensor.from_local([x] * 6, mesh, local).redistribute(placements=before)
    y, report = moved(d, None, after)
    times = np.prod([n for p, n in zip(before, (2, 3), strict=True) if p == P()] or [1])
    assert (y.numpy() == times * x.numpy()).all() and y.placements == after
    if kind is None:
        assert report == [] and report.bytes == 0 and repr(report) == "no communication"
        return
    assert [(r["kind"], r["mesh_dim"], r["count"]) for r in report] == [(kind, dim, 1)]
    assert size is None or report.bytes == size
    assert sum(report.per_device.values()) == report.bytes
    if size is not None:
        assert len(report.per_device) == 6 and set(report.per_device.values()) == {report.bytes // 6}


def test_uneven_and_empty_shards_count_what_they_hold():
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
    y, report = moved(distribute_tensor(dt.arange(5.0), line, [S(0)]), None, [R()])  # 2, 2, 1, 0
    assert report.bytes == 5 * 4 * 3 and y.tolist() == [0, 1, 2, 3, 4]
    assert [report.per_device[d] for d in line.devices[:3]] == [24, 24, 12] and line.devices[3] not in report.per_device


def test_between_meshes(mesh):
    x = dt.arange(12.0).view(4, 3)
    pair, plain = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), dt.device("cpu", 7)
    dt.synchronize()
    for make, kind, dim, size in (
        (lambda: distribute_tensor(x, pair), "broadcast", "tp", 48),
        (lambda: distribute_tensor(x, pair, [S(0)]), "scatter", "tp", 24),
        (lambda: distribute_tensor(x, pair, [S(0)]).full_tensor(), "gather", "tp", 24),
        (lambda: dt.Tensor.from_local([x, x], pair, [P()]).full_tensor(), "reduce", "tp", 48),
        (lambda: x.to(plain), "send", "", 48),
        (lambda: distribute_tensor(x, pair, [S(0)]).redistribute(dt.DeviceMesh("cpu", [3, 4]), [S(0)]), "send", "", 48),
        (lambda: distribute_tensor(x, pair, [S(0)]).redistribute(dt.DeviceMesh("cpu", [1, 2]), [S(0)]), "send", "", 48),
    ):
        with dt.comm_scope() as report:
            make().numpy()
        assert (kind, dim, 1, size) in [(r["kind"], r["mesh_dim"], r["count"], r["bytes"]) for r in report], report


def test_dimensions_without_names_are_numbers():
    _, report = moved(distribute_tensor(dt.ones(4), init_device_mesh("cpu", (2, 2)), [R(), S(0)]), None, [R(), R()])
    assert report[0]["mesh_dim"] == "1"


def test_rows_name_the_line(mesh):
    a = distribute_tensor(dt.ones(6, 6), mesh, [S(0), R()])
    b = distribute_tensor(dt.ones(6, 6), mesh, [S(1), R()])
    with dt.comm_scope() as report:
        c = a + b  # an implied redistribution: this line
        d = c.redistribute(mesh, [R(), R()])
        d.numpy()
    lines = {r["line"] for r in report}
    assert len(lines) == 2 and max(lines) - min(lines) == 1
    assert all(r["file"] == __file__ and r["function"].endswith("test_rows_name_the_line") for r in report)
    text = repr(report)
    assert text.splitlines()[0].split() == ["collective", "mesh", "dim", "count", "bytes", "line"]
    assert "test_comm_report.py:" in text and "total" in text and "summed over devices" in text


def test_scopes_count_for_themselves(mesh):
    x = [distribute_tensor(dt.ones(6), mesh, [S(0), R()]) for _ in range(4)]
    whole, kept = (mesh, [R(), R()]), []  # what nobody keeps may never run
    dt.comm_report(reset=True)
    with dt.comm_scope() as outer:
        kept.append(x[0].redistribute(*whole))
        with dt.comm_scope() as inner:
            kept.append(x[1].redistribute(*whole))
            dt.comm_report(reset=True)
            kept.append(x[2].redistribute(*whole))
        kept.append(x[3].redistribute(*whole))
    assert sum(inner.per_device.values()) == inner.bytes > 0
    assert (outer.count, inner.count, dt.comm_report().count) == (4, 2, 2) and dt.comm_report(reset=True).count == 2
    assert dt.comm_report() == [] and outer.bytes == 4 * 24 * 3
    grouped = outer.by("kind", "mesh_dim")
    assert [(r["kind"], r["mesh_dim"], r["count"], r["file"], r["line"]) for r in grouped] == [("all_gather", "dp", 4, "", 0)]
    assert outer.only("all_reduce") == [] and outer.only(mesh_dim="dp").count == 4 and outer.only({"all_gather"}, "tp") == []
    with pytest.raises(ValueError, match="'lines' is not a field"):
        outer.by("lines")


def test_bounds(mesh):
    x = distribute_tensor(dt.ones(6, 4), mesh, [S(0), S(1)])

    kept = []

    def gather_dp():
        kept.append(x.redistribute({"dp": R()}))

    size = 96 * 1  # of 96 bytes, cut in 3 along tp, each of 6 devices reads a half: 6 × 16
    with dt.comm_bound(bytes=size, count=1, kinds="all_gather") as report:
        gather_dp()
    assert report.count == 1
    with dt.comm_bound(kinds={"all_gather": 2, "all_reduce": 0}), dt.comm_bound(mesh_dim="tp", bytes=0, count=0), dt.comm_bound():
        gather_dp()
    for bound, text in (
        (dict(bytes=size - 1), f"{size} bytes were sent, at most {size - 1} are allowed"),
        (dict(count=0), "1 collectives ran, at most 0"),
        (dict(kinds=["all_reduce", "reduce"]), "1 × all_gather ran, only all_reduce, reduce allowed"),
        (dict(kinds={"all_gather": 0}), "1 × all_gather ran"),
        (dict(kinds=()), "1 × all_gather ran, nothing allowed"),
        (dict(count=0, mesh_dim="dp"), "1 collectives ran along mesh dimension 'dp'"),
    ):
        with pytest.raises(dt.CommBoundError, match=text) as error, dt.comm_bound(**bound):
            gather_dp()
        assert "test_comm_report.py:" in str(error.value) and "gather_dp" in str(error.value)
        assert isinstance(error.value, AssertionError) and error.value.report.count == 1
    with pytest.raises(KeyError), dt.comm_bound(count=0):  # the block's own error wins
        gather_dp()
        raise KeyError
    for bad in (-1, "1", True):
        with pytest.raises(ValueError, match="bytes must be"):
            dt.comm_bound(bytes=bad)


def test_the_error_lists_the_lines_with_most():
    line, keep = init_device_mesh("cpu", (2,), mesh_dim_names=("x",)), []
    source = "\n".join(f"keep += [distribute_tensor(dt.ones({4 * (i + 1)}), line, [S(0)]).redistribute(line, [R()])]" for i in range(15))
    with pytest.raises(dt.CommBoundError) as error, dt.comm_bound(count=3, mesh_dim="x", kinds={"all_gather", "scatter"}):
        exec(
            compile(source, "<many>", "exec"),
            {"dt": dt, "distribute_tensor": distribute_tensor, "line": line, "S": S, "R": R, "keep": keep},
        )
    lines = str(error.value).splitlines()
    assert lines[0].startswith("comm_bound: 30 collectives") and len(lines) == 13 and lines[-1].strip() == "and 20 lines more"
    assert "<many>:15" in lines[2]
