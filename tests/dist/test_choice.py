"""Which redistribution a call implies: the cheapest legal one by what moves, by what mesh dimensions are made of; and what policies say."""

import itertools
import re

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

R, S, P = Replicate, Shard, Partial
PLACES = (R(), S(0), S(1))


def sent(fn):
    """fn()'s result, and the bytes that it sends."""
    dt.synchronize()
    with dt.comm_scope() as report:
        out = fn()
    return out, report.bytes


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_no_choice_of_placements_moves_less(devices):
    """Sums of tensors: whatever the operands' placements, bringing both to any legal place by hand never sends less."""
    line = init_device_mesh("cpu", (devices,))
    a, b = dt.randn(240, 240), dt.randn(240, 240)
    for here, there in itertools.product(PLACES, repeat=2):
        x, y = distribute_tensor(a, line, [here]), distribute_tensor(b, line, [there])
        out, auto = sent(lambda x=x, y=y: x + y)
        least = min(sent(lambda x=x, y=y, q=q: x.redistribute(placements=[q]) + y.redistribute(placements=[q]))[1] for q in PLACES)
        assert auto <= least, (here, there, out.placements)
        np.testing.assert_array_equal(out.numpy(), (a + b).numpy())


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2)])
def test_no_combination_moves_less_where_both_dimensions_change(shape):
    """On two mesh dimensions the cheapest rule of each by itself is not the cheapest pair: chunks of chunks lie elsewhere than chunks."""
    mesh = init_device_mesh("cpu", shape)
    a, b = dt.randn(120, 120), dt.randn(120, 120)
    pairs = list(itertools.product(PLACES, repeat=2))
    for here, there in itertools.product(pairs, pairs):
        if any(p == q for p, q in zip(here, there, strict=True)):
            continue  # a dimension along which they agree keeps its rule
        x, y = distribute_tensor(a, mesh, here), distribute_tensor(b, mesh, there)
        out, auto = sent(lambda x=x, y=y: x + y)
        least = min(sent(lambda x=x, y=y, q=q: x.redistribute(placements=q) + y.redistribute(placements=q))[1] for q in pairs)
        assert auto <= least * 1.34, (here, there, out.placements, auto, least)  # the price is that of the busiest device, not the sum
        np.testing.assert_array_equal(out.numpy(), (a + b).numpy())


def test_products_keep_the_large_operand_where_it_is():
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
    x, w = distribute_tensor(dt.randn(512, 64), line, [S(0)]), distribute_tensor(dt.randn(64, 32), line, [S(0)])
    out, moved = sent(lambda: x @ w)
    assert out.placements == (S(0),) and moved == 3 * 64 * 32 * 4
    out, moved = sent(lambda: F.relu(x).sum(1) * 2)
    assert out.placements == (S(0),) and moved == 0


def test_latency_decides_between_one_large_and_two_small_moves():
    a, b, c = dt.randn(64, 64), dt.randn(1, 64), dt.randn(1, 64)
    kinds = {}
    for name, wire in (("at once", (1e10, 0)), ("local", "local"), ("late", (1e10, 1e-3))):
        line = init_device_mesh("cpu", (4,), mesh_dim_names=(f"x{len(name)}",), topology={0: wire})
        x, y, z = distribute_tensor(a, line, [S(0)]), distribute_tensor(b, line, [S(1)]), distribute_tensor(c, line, [S(1)])
        with dt.comm_scope() as report:
            out = dt.addcmul(x, y, z)
        kinds[name] = [r["kind"] for r in report.by("kind")], report.count
        np.testing.assert_allclose(out.numpy(), dt.addcmul(a, b, c).numpy(), rtol=1e-6)
    assert kinds["at once"] == (["all_gather"], 2) and kinds["late"] == (["all_to_all"], 1)


def test_topology_can_change_later():
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("wire",))
    x = distribute_tensor(dt.randn(64, 64), line, [S(0)])
    y, z = (distribute_tensor(dt.randn(1, 64), line, [S(1)]) for _ in range(2))
    seen = []
    for latency in (0, 1e-3, 0):
        line.topology = {"wire": (1e10, latency)}
        with dt.comm_scope() as report:
            out = dt.addcmul(x, y, z)
        seen.append(report.count)
        del out
    assert seen == [2, 1, 2]


def test_topology():
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("machines", "p", "t"), topology={"machines": "network", "t": (3e11, 2e-6)})
    local = init_device_mesh("cpu", (1,)).topology[0]
    assert local[0] > 1e9 > 0 and local[1] < 1e-5 and mesh.topology["p"] == local
    assert mesh.topology["t"] == (3e11, 2e-6) and mesh.topology["machines"][0] < local[0] and mesh.topology["machines"][1] > local[1]
    assert mesh["p"][0].topology == {k: v for k, v in mesh.topology.items() if k != "p"} and mesh["t"].topology == {"t": (3e11, 2e-6)}
    assert mesh == init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("machines", "p", "t"))
    mesh.topology = {"t": "local", 0: "local"}
    assert mesh.topology["t"] == local == mesh.topology["machines"]
    for bad, error, text in (
        ({"x": "local"}, KeyError, "called 'x'"),
        ({5: "local"}, IndexError, "dimension 5"),
        ({"t": "fast"}, ValueError, "'local', 'network'"),
        ({"t": (0, 1)}, ValueError, "above 0"),
        ({"t": (1, float("nan"))}, ValueError, "above 0"),
        ({"t": 3}, TypeError, "expected 'local'"),
        ([1], TypeError, "dict"),
    ):
        with pytest.raises(error, match=text):
            mesh.topology = bad


def test_the_error_names_call_placements_and_what_is_legal():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x, y = distribute_tensor(dt.ones(4, 6), mesh, {"dp": S(0)}), distribute_tensor(dt.ones(4, 6), mesh, {"dp": S(1), "tp": S(0)})
    with dt.redistribute_policy("error"), pytest.raises(dt.PlacementError) as error:
        x + y
    text = str(error.value)
    assert text.startswith("add(): an implied redistribution")
    assert re.search(r"\(4, 6\).*\[Shard\(0\), Replicate\(\)\]", text) and re.search(r"  would become .*Shard", text)
    for dim in ("dp", "tp"):
        legal = text.split(f"legal along mesh dimension '{dim}':")[1]
        assert "Shard(0), Shard(0) -> Shard(0)" in legal and "Replicate(), Replicate() -> Replicate()" in legal
        assert 'Partial("sum"), Partial("sum") -> Partial("sum")' in legal
    with dt.redistribute_policy("error"):  # what fits, numbers, and explicit redistribution are no errors
        assert (x + x * 2 + 1).placements == x.placements
        assert (x.redistribute(placements=y.placements) + y).placements == y.placements
        dt.Tensor.from_local([dt.ones(2)] * 4, mesh, [P(), R()]) * 2
    with dt.redistribute_policy("error"), pytest.raises(dt.PlacementError, match="sin"):
        dt.Tensor.from_local([dt.ones(2)] * 4, mesh, [P(), R()]).sin()


def test_warnings_come_from_the_call():
    line = init_device_mesh("cpu", (2,))
    x, y = distribute_tensor(dt.ones(4, 4), line, [S(0)]), distribute_tensor(dt.ones(4, 4), line, [S(1)])
    with dt.redistribute_policy("warn"):
        with pytest.warns(UserWarning, match=r"add\(\): an implied redistribution") as seen:
            out = x + y
        assert seen[0].filename == __file__ and out.sum().item() == 32
        with pytest.warns(UserWarning, match="implied"):  # also from the cache of calls
            x + y
    dt.redistribute_policy("warn")
    try:
        assert dt.redistribute_policy().policy == "warn"
    finally:
        dt.redistribute_policy("auto")
