"""Attention over a sharded sequence: ring, Ulysses, gather; equal to one device, and no more communication than the papers say."""

import random

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch.distributed import context_parallel

R, S = dt.Replicate, dt.Shard
WAYS = [("ulysses", True), ("ring", False), ("ring", True), ("gather", True), ("auto", True)]
# B, H, Hk, L, S, D, E: even, uneven, tiny (empty shards), queries and keys of different lengths, grouped heads, heads that do not divide
SHAPES = [
    (1, 2, 2, 16, 16, 4, 4), (2, 4, 2, 13, 13, 8, 5), (1, 6, 2, 70, 70, 16, 16), (1, 4, 4, 5, 9, 4, 4), (1, 4, 1, 40, 17, 4, 4),
    (1, 3, 3, 150, 150, 32, 32), (1, 8, 2, 3, 3, 4, 4), (1, 2, 2, 9, 33, 4, 6),
]  # fmt: skip


def attend(q, k, v, g, mask, **options):
    """The output and the gradients of q, k, v, as arrays of whole tensors."""
    leaves = [x.detach().requires_grad_(True) for x in (q, k, v)]
    dt.manual_seed(5)
    y = F.scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=True, **options)
    y.backward(g)
    whole = [y.detach(), *[x.grad for x in leaves]]
    return y, leaves, [x.full_tensor().to(dt.float64).numpy() for x in whole]


def compare(mesh, places, shape, way, mask=None, dtype=dt.float32, tol=2e-5, **options):
    B, H, Hk, L, Sk, D, E = shape
    dt.manual_seed(1)
    made = [dt.randn(s).to(dtype) for s in ((B, H, L, D), (B, Hk, Sk, D), (B, Hk, Sk, E), (B, H, L, E))]
    m = {
        "bool": lambda: dt.rand(L, Sk) > 0.3,
        "float": lambda: dt.randn(B, 1, L, Sk).to(dtype),
        "columns": lambda: dt.rand(B, 1, 1, Sk) > 0.3,
    }
    m = m[mask]() if mask else None
    want = attend(*made, m, **options)[2]
    with context_parallel(way[0], load_balance=way[1]):
        on = [dt.distribute_tensor(x, mesh, places) for x in made]
        y, leaves, got = attend(*on, m if m is None else dt.distribute_tensor(m, mesh, [R()] * mesh.ndim), **options)
    assert list(y.placements) == places
    assert all(list(x.grad.placements) == places for x in leaves)
    for name, w, x in zip(("y", "gq", "gk", "gv"), want, got, strict=True):
        np.testing.assert_allclose(x, w, rtol=tol, atol=tol * (1 + np.abs(w).max(initial=0)), err_msg=f"{name} {shape} {way} {options}")


@pytest.mark.parametrize("way", WAYS, ids=lambda w: f"{w[0]}{'' if w[1] else '-contiguous'}")
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_equal_to_one_device(n, way):
    mesh = dt.init_device_mesh("cpu", (n,))
    for shape in SHAPES:
        for causal in (False, True):
            compare(mesh, [S(2)], shape, way, is_causal=causal)


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda w: f"{w[0]}{'' if w[1] else '-contiguous'}")
@pytest.mark.parametrize("mask", ["bool", "float", "columns"])
@pytest.mark.parametrize("n", [2, 3])
def test_masks(n, mask, way):
    for shape in (SHAPES[1], SHAPES[2], SHAPES[4]):
        compare(dt.init_device_mesh("cpu", (n,)), [S(2)], shape, way, mask=mask)


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda w: f"{w[0]}{'' if w[1] else '-contiguous'}")
@pytest.mark.parametrize(
    ("dims", "places"),
    [
        ((2, 2), [S(0), S(2)]), ((2, 2), [S(1), S(2)]), ((2, 2), [S(2), S(1)]), ((2, 2), [S(2), S(2)]), ((2, 3), [S(2), S(1)]),
        ((3, 2), [R(), S(2)]), ((2, 2, 2), [S(0), S(1), S(2)]), ((2, 2, 2), [S(2), R(), S(2)]),
    ],
)  # fmt: skip
def test_beside_other_sharded_dimensions(dims, places, way):
    mesh = dt.init_device_mesh("cpu", dims)
    for shape in ((2, 4, 2, 29, 29, 8, 8), (3, 6, 6, 18, 18, 4, 4)):
        for causal in (False, True):
            compare(mesh, places, shape, way, is_causal=causal)


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda w: f"{w[0]}{'' if w[1] else '-contiguous'}")
def test_dropped_weights_are_those_of_one_device(way):
    for n in (2, 3):
        for shape in (SHAPES[1], SHAPES[3]):
            for causal in (False, True):
                compare(dt.init_device_mesh("cpu", (n,)), [S(2)], shape, way, dropout_p=0.4, is_causal=causal)


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda w: f"{w[0]}{'' if w[1] else '-contiguous'}")
@pytest.mark.parametrize(("dtype", "tol"), [(dt.float64, 1e-12), (dt.bfloat16, 4e-2), (dt.float16, 6e-3)])
def test_dtypes(dtype, tol, way):
    compare(dt.init_device_mesh("cpu", (3,)), [S(2)], (2, 4, 2, 50, 50, 8, 8), way, dtype=dtype, tol=tol, is_causal=True)


def bits(n, way, H=4, Hk=4, L=133):
    """Arrays of y, gq, gk, gv; n None: on one device."""
    mesh = n and dt.init_device_mesh("cpu", (n,))
    dt.manual_seed(0)
    xs = [dt.randn(2, h, L, 32) for h in (H, Hk, Hk)]
    xs = [(dt.distribute_tensor(x, mesh, [S(2)]) if n else x).requires_grad_(True) for x in xs]
    with context_parallel(way):
        y = F.scaled_dot_product_attention(*xs, is_causal=True, enable_gqa=True, dropout_p=0.1)
    g = y.detach().full_tensor() * 2
    y.backward(dt.distribute_tensor(g, mesh, [R()]) if n else g)
    return [t.detach().full_tensor().numpy() for t in (y, *(x.grad for x in xs))]


@pytest.mark.parametrize(("n", "heads"), [(2, (4, 4)), (4, (8, 4)), (3, (6, 3))])
def test_bits(n, heads):
    """Ulysses does one device's sums in its order; so does gather but for gradients of keys. Every way repeats itself, on any number of threads."""
    want = bits(None, "auto", *heads)
    for way in ("ulysses", "gather", "ring"):
        got = bits(n, way, *heads)
        same = {"ulysses": 4, "gather": 2, "ring": 0}[way]
        for a, b in zip(want[:same], got, strict=False):
            np.testing.assert_array_equal(a, b)
        for threads in (1, dt.get_num_threads()):
            before = dt.get_num_threads()
            dt.set_num_threads(threads)
            try:
                again = bits(n, way, *heads)
            finally:
                dt.set_num_threads(before)
            for a, b in zip(got, again, strict=True):
                np.testing.assert_array_equal(a, b)


def test_dropout_is_the_composition_with_dropout():
    """The kernel draws what dropout of the whole matrix of weights draws."""
    q, k, v = dt.randn(2, 3, 10, 4, dtype=dt.float64), dt.randn(2, 3, 7, 4, dtype=dt.float64), dt.randn(2, 3, 7, 5, dtype=dt.float64)
    dt.manual_seed(3)
    got = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    dt.manual_seed(3)
    want = F.dropout((q @ k.mT / 2).softmax(-1), 0.5) @ v
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-14)


def test_gradients_of_gradients():
    """Second derivatives go through plain operators, with dropout too."""
    for dropout in (0.0, 0.3):
        out = []
        for mesh in (None, dt.init_device_mesh("cpu", (3,))):
            dt.manual_seed(2)
            leaves = [dt.randn(1, 2, 7, 3, dtype=dt.float64) for _ in range(3)]
            leaves = [(x if mesh is None else dt.distribute_tensor(x, mesh, [S(2)])).requires_grad_(True) for x in leaves]
            with context_parallel("ring"):
                y = F.scaled_dot_product_attention(*leaves, dropout_p=dropout, is_causal=dropout == 0)
            g = dt.autograd.grad((y * y).sum(), leaves, create_graph=True)
            h = dt.autograd.grad(sum((x * x).sum() for x in g), leaves)
            out.append([(x.full_tensor() if mesh else x).numpy() for x in h])
        for a, b in zip(*out, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


def any_call(choose):
    """Shapes, mesh, placements, options of a call, at random."""
    dims = choose.choice([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)])
    kv_heads, group = choose.choice([1, 2, 3, 4]), choose.choice([1, 1, 2, 3])
    B, L, D = choose.choice([1, 2, 3]), choose.randint(1, 40), choose.choice([1, 3, 8, 16])
    Sk, E = choose.choice([L, L, choose.randint(1, 40)]), choose.choice([D, 5])
    causal = choose.random() < 0.5
    mask = None if causal else choose.choice([None, (L, Sk), (B, 1, L, Sk), (1, kv_heads * group, L, Sk), (B, 1, 1, Sk)])
    places = lambda nd, often=(): [choose.choice([R(), *map(S, range(nd)), *often]) for _ in dims]  # noqa: E731
    q = places(3, [S(2)] * 3)
    k = q if choose.random() < 0.6 else places(3, [S(2)])
    v = k if choose.random() < 0.8 else places(3, [S(2)])
    return {
        "dims": dims, "shape": (B, kv_heads * group, kv_heads, L, Sk, D, E), "places": [q, k, v], "causal": causal, "mask": mask,
        "mask_kind": choose.choice(["bool", "float", "grad"]), "mask_places": places(len(mask)) if mask else None,
        "dropout": choose.choice([0.0, 0.0, 0.3]), "way": choose.choice([*WAYS, WAYS[2]]),
    }  # fmt: skip


def check_call(c, seed):
    mesh, (B, H, Hk, L, Sk, D, E), results = dt.init_device_mesh("cpu", c["dims"]), c["shape"], []
    for cut in (False, True):
        dt.manual_seed(seed)
        xs = [dt.randn(s, dtype=dt.float64) for s in ((B, H, L, D), (B, Hk, Sk, D), (B, Hk, Sk, E))]
        g = dt.randn(B, H, L, E, dtype=dt.float64)
        mask = dt.randn(c["mask"], dtype=dt.float64) if c["mask"] else None
        if mask is not None and c["mask_kind"] == "bool":
            mask = mask > -0.5
        if cut:
            xs = [dt.distribute_tensor(x, mesh, p) for x, p in zip(xs, c["places"], strict=True)]
            g = dt.distribute_tensor(g, mesh, [R()] * mesh.ndim)
            mask = mask if mask is None else dt.distribute_tensor(mask, mesh, c["mask_places"])
        if mask is not None and c["mask_kind"] == "grad":
            xs.append(mask)
        xs = [x.requires_grad_(True) for x in xs]
        with context_parallel(c["way"][0], load_balance=c["way"][1]):
            y = F.scaled_dot_product_attention(*xs[:3], attn_mask=mask, is_causal=c["causal"], dropout_p=c["dropout"], enable_gqa=True)
        y.backward(g)
        results.append([t.detach().full_tensor().numpy() for t in (y, *(x.grad for x in xs))])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-10, err_msg=str(c))


@pytest.mark.parametrize("seed", range(8))
def test_any_layout(seed):
    choose = random.Random(seed)
    for i in range(25):
        check_call(any_call(choose), i)


@pytest.mark.slow
def test_many_layouts():
    choose = random.Random(100)
    for i in range(1500):
        check_call(any_call(choose), i)


# ---- communication ---------------------------------------------------------------------------------------------------------------
def moved(fn):
    """Kind -> (count, bytes received by all devices together) of the collectives that fn causes."""
    dt.synchronize()
    dt.comm_report(reset=True)
    fn()
    dt.synchronize()
    return {r["kind"]: (r["count"], r["bytes"]) for r in dt.comm_report(reset=True)}


def volumes(n, way, causal, heads=8, kv_heads=8, length=48, width=4):
    mesh = dt.init_device_mesh("cpu", (n,))
    shapes = [(1, h, length, width) for h in (heads, kv_heads, kv_heads, heads)]
    q, k, v, g = (dt.distribute_tensor(dt.randn(s), mesh, [S(2)]) for s in shapes)
    leaves, out = [x.requires_grad_(True) for x in (q, k, v)], []
    with context_parallel(way[0], load_balance=way[1]):
        forward = moved(lambda: out.append(F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)))
    return forward, moved(lambda: out[0].backward(g)), heads * length * width * 4, kv_heads * length * width * 4


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ulysses_volume(n):
    """Four all-to-alls a direction, each of 1/n of the activations a device, of which (n - 1) / n move."""
    forward, backward, whole, _ = volumes(n, ("ulysses", True), True)
    assert forward == backward == {"all_to_all": (4, 4 * whole * (n - 1) // n)}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring_volume(n):
    """Forward n - 1 blocks of k and v a device; backward these again, and as many blocks of gradients."""
    forward, backward, _, kv = volumes(n, ("ring", True), False, kv_heads=2)
    assert forward == {"ring": (2 * (n - 1), 2 * kv * (n - 1))}
    assert backward == {"ring": (4 * (n - 1), 4 * kv * (n - 1))}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_causal_ring_skips_what_is_not_seen(n):
    forward, backward, _, kv = volumes(n, ("ring", False), True)
    assert forward == {"ring": (2 * (n - 1), 2 * kv * (n - 1) // 2)}
    assert backward == {"ring": (4 * (n - 1), 4 * kv * (n - 1) // 2)}


@pytest.mark.parametrize("n", [2, 4, 8])
def test_balanced_ring_volume(n):
    """About 3/4 of the blocks, and half of the queries and of the output change places (and two numbers a row)."""
    forward, backward, whole, kv = volumes(n, ("ring", True), True)
    blocks = sum(max(r, n - 1 - r) for r in range(n)) * kv // n
    assert forward["ring"] == (2 * (n - 1), 2 * blocks)
    assert backward["ring"] == (4 * (n - 1), 4 * blocks)
    rows = whole // 4  # bytes of one number a row, width being 4
    assert forward["exchange"] == (3, whole + rows // 2)
    assert backward["exchange"] == (5, 3 * whole // 2 + rows)
    assert set(forward) == set(backward) == {"ring", "exchange"}


def test_auto_takes_the_cheaper_way():
    assert set(volumes(4, ("auto", True), False)[0]) == {"all_to_all"}
    assert set(volumes(4, ("auto", True), False, heads=6, kv_heads=6)[0]) == {"ring"}  # six heads on four devices
    assert set(volumes(4, ("auto", True), False, heads=64, kv_heads=1, length=512, width=8)[0]) == {"ring"}  # one small key head


def test_few_key_heads_are_repeated_only_as_often_as_needed():
    """8 query heads, 2 key heads, 4 devices: every key head is needed on two devices."""
    forward, _, whole, kv = volumes(4, ("ulysses", True), False, heads=8, kv_heads=2)
    assert forward == {"all_to_all": (4, (2 * whole + 2 * 2 * kv) * 3 // 4)}


def test_memory_is_a_few_blocks():
    """Nothing as large as queries times keys, nor the whole sequence: a device's peak is a number of blocks that does not grow with n."""
    length, width, first = 256, 16, 40  # a device's own rows
    for n in (2, 8):
        mesh = dt.DeviceMesh("cpu", list(range(first, first + n)))  # devices of its own: their peaks start at 0
        first += n
        q, k, v, g = (dt.distribute_tensor(dt.randn(1, 1, n * length, width), mesh, [S(2)]) for _ in range(4))
        leaves = [x.requires_grad_(True) for x in (q, k, v)]
        for balance in (False, True):
            with context_parallel("ring", load_balance=balance):
                F.scaled_dot_product_attention(*leaves, is_causal=True).backward(g)
            for x in leaves:
                x.grad = None
        dt.synchronize()
        peak = max(dt.memory_stats(f"cpu:{i}")["allocated_peak"] for i in range(first - n, first))
        assert 0 < peak < 30 * length * width * 4, peak / (length * width * 4)


def test_balance():
    """With halves exchanged all devices do the same work; without, the last of four does seven times that of the first."""
    from dtorch.profiler import profile

    n, length = 4, 1536
    mesh = dt.init_device_mesh("cpu", (n,))
    q, k, v = (dt.distribute_tensor(dt.randn(1, 2, length, 64), mesh, [S(2)]) for _ in range(3))
    ratio = {}
    for balance in (False, True):
        least = {}
        with context_parallel("ring", load_balance=balance):
            for _ in range(10):
                with profile() as p:
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: F841  a result that nobody holds is not computed
                    dt.synchronize()
                busy = {}
                for e in p.events():
                    if e["name"] == "attention_step":
                        busy[e["lane"]] = busy.get(e["lane"], 0) + e["end"] - e["begin"]
                for lane, t in busy.items():
                    least[lane] = min(t, least.get(lane, t))  # what others took of the processor does not count
        assert len(least) == n
        ratio[balance] = max(least.values()) / min(least.values())
    assert ratio[True] < ratio[False] / 2, ratio  # 1 and 7 on an idle machine


# ---- the block -------------------------------------------------------------------------------------------------------------------
def test_the_block_is_checked_restored_and_a_decorator():
    with pytest.raises(ValueError, match="'auto', 'ring'"):
        context_parallel("spiral")
    mesh = dt.init_device_mesh("cpu", (4,))
    q = dt.distribute_tensor(dt.randn(1, 4, 8, 4), mesh, [S(2)])

    def kinds(attention=F.scaled_dot_product_attention):
        held = []
        return set(moved(lambda: held.append(attention(q, q, q))))

    assert kinds(context_parallel("ring")(F.scaled_dot_product_attention)) == {"ring"}
    with context_parallel("ring"):
        with context_parallel("gather"):
            assert kinds() == {"all_gather"}
        assert kinds() == {"ring"}
    assert kinds() == {"all_to_all"}


def test_pytorchs_name_shards_buffers_for_the_block():
    from dtorch.distributed.tensor.experimental import context_parallel as shard

    mesh = dt.init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    q, labels = dt.randn(1, 4, 10, 4), dt.arange(10)
    want = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    values = q.clone()
    with shard(mesh, buffers=[q, labels], buffer_seq_dims=[2, 0], no_restore_buffers={labels}):
        assert q.placements == (S(2),) and labels.placements == (S(0),) and tuple(q.shape) == (1, 4, 10, 4)
        got = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    np.testing.assert_allclose(got.full_tensor().numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    assert not q.device_mesh.ndim and labels.placements == (S(0),)
    np.testing.assert_array_equal(q.numpy(), values.numpy())
    with pytest.raises(ValueError, match="2 buffers but 1"):
        shard(mesh, buffers=[q, labels], buffer_seq_dims=[2])


# ---- positions and labels at the edges of shards ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("length", [8, 13, 5])
def test_positions_and_labels_of_a_sharded_sequence(n, length):
    mesh = dt.init_device_mesh("cpu", (n,))
    tokens = dt.arange(2 * (length + 1)).reshape(2, length + 1) * 3 % 17
    cut = dt.distribute_tensor(tokens, mesh, [S(1)])
    # labels: the next token, shifted before or after sharding
    np.testing.assert_array_equal(cut[:, 1:].full_tensor().numpy(), tokens[:, 1:].numpy())
    x, labels = (dt.distribute_tensor(t, mesh, [S(1)]) for t in (tokens[:, :-1], tokens[:, 1:]))
    np.testing.assert_array_equal((labels - x).full_tensor().numpy(), (tokens[:, 1:] - tokens[:, :-1]).numpy())
    # positions: made sharded, and rows of a table taken by them, by a slice, and added
    positions = dt.arange(length, device_mesh=mesh, placements=[S(0)])
    np.testing.assert_array_equal(positions.full_tensor().numpy(), np.arange(length))
    table, words = dt.randn(length + 3, 6), dt.randn(17, 6)
    want = (words[tokens[:, :-1]] + table[:length]).numpy()
    held = [dt.distribute_tensor(t, mesh, [R()]) for t in (words, table)]
    for where in (F.embedding(positions, held[1]), held[1][:length], dt.distribute_tensor(table[:length], mesh, [S(0)])):
        np.testing.assert_array_equal((F.embedding(x, held[0]) + where).full_tensor().numpy(), want)
    # rotary embedding (Su et al. 2021): angles from the sharded positions
    q = dt.randn(2, 3, length, 8)
    half = dt.arange(4, dtype=dt.float32)

    def rotate(q, t):
        angle = t.to(dt.float32).unsqueeze(-1) * (10000.0 ** (-half / 4))
        a, b = q.chunk(2, -1)
        return dt.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    got = rotate(dt.distribute_tensor(q, mesh, [S(2)]), positions)
    np.testing.assert_allclose(got.full_tensor().numpy(), rotate(q, dt.arange(length)).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_grouped_heads_that_do_not_divide(n):
    """Projections cut by columns: query heads are cut where key heads cannot be; equal to one device, with gradients."""
    mesh, out = dt.init_device_mesh("cpu", (n,)), []
    for cut in (False, True):
        dt.manual_seed(4)
        x = dt.randn(2, 7, 12)
        w = [dt.randn(o, 12) * 0.3 for o in (6 * 4, 2 * 4, 2 * 4)]
        if cut:
            x, w = dt.distribute_tensor(x, mesh, [R()]), [dt.distribute_tensor(v, mesh, [S(0)]) for v in w]
        leaves = [v.requires_grad_(True) for v in (x, *w)]
        q, k, v = (F.linear(x, p).reshape(2, 7, -1, 4).transpose(1, 2) for p in leaves[1:])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        (y * y).sum().backward()
        out.append([(t.full_tensor() if cut else t).detach().numpy() for t in (y, *(p.grad for p in leaves))])
    for a, b in zip(*out, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)
