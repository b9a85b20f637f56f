"""What whole training steps send, against theory: measured by comm_report, no collective more.

Bytes are summed over devices. Over n devices an all-reduce of b bytes sends 2(n-1)b, an all-gather of shards into b bytes or a reduce-scatter of b bytes
(n-1)b. Beside them, losses send a few numbers a row; `few` bounds that.
"""

import dtorch as dt
import dtorch.nn.functional as F
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn
from dtorch.distributed.tensor import distribute_module, distribute_parameter
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

R, S = Replicate, Shard
LAYERS, WIDTH, HEADS, WORDS, BATCH, TIME = 2, 48, 12, 72, 12, 4
ACTIVATION = BATCH * TIME * WIDTH * 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (z.view(b, t, -1, d // HEADS).transpose(1, 2) for z in (self.q(h), self.k(h), self.v(h)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


TENSOR = {"words": RowwiseParallel(), "head": ColwiseParallel()}
TENSOR |= {f"blocks.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "up")} | {f"blocks.*.{n}": RowwiseParallel() for n in ("o", "down")}
SEQUENCE = {"words": RowwiseParallel(output_layouts=S(1)), "norm": SequenceParallel(), "head": ColwiseParallel()}
SEQUENCE |= {f"blocks.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "up")}
SEQUENCE |= {f"blocks.*.{n}": RowwiseParallel(output_layouts=S(1)) for n in ("o", "down")}
SEQUENCE |= {f"blocks.*.{n}": SequenceParallel() for n in ("norm1", "norm2")}


def train(mesh, plan=None, steps=3, micro_batches=1, split=()):
    """Losses of a few steps, the model, and the report of each step."""
    dt.manual_seed(0)
    model = GPT()
    if callable(plan):
        plan(model, mesh)
    elif plan:
        parallelize_module(model, mesh["tp"], plan)
    if mesh:
        distribute_module(model, mesh)
    optimizer, losses, reports = dt.optim.SGD(model.parameters(), lr=0.1), [], []
    place = [S(0) if name in split else R() for name in mesh.mesh_dim_names] if mesh else None
    for _ in range(steps):
        batches = [[dt.randint(0, WORDS, (BATCH, TIME)) for _ in range(2)] for _ in range(micro_batches)]
        if mesh:
            batches = [[distribute_tensor(x, mesh, place) for x in b] for b in batches]
        dt.synchronize()
        with dt.comm_scope() as report:
            optimizer.zero_grad()
            for ids, targets in batches:
                loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) / micro_batches
                loss.backward()
            optimizer.step()
        losses.append(loss.item())
        reports.append(report)
    return losses, model, reports


@pytest.fixture(scope="module")
def alone():
    return train(None)[0], train(None, micro_batches=3)[0]


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_data_parallel(alone, devices, micro_batches):
    mesh = init_device_mesh("cpu", (devices,), mesh_dim_names=("dp",))
    losses, model, reports = train(mesh, micro_batches=micro_batches, split=("dp",))
    np.testing.assert_allclose(losses, alone[micro_batches > 1], rtol=1e-5)
    gradients = sum(p.numel() * 4 for p in model.parameters())
    once = len(list(model.parameters()))
    for report in reports:
        assert {r["kind"] for r in report} == {"all_reduce"} and {r["mesh_dim"] for r in report} == {"dp"}
        few = micro_batches * 4 * 2 * 4 * (devices - 1)  # numbers of the loss, each once forward and once backward
        assert 2 * (devices - 1) * gradients <= report.bytes <= 2 * (devices - 1) * gradients + few
        assert once <= report.count <= once + micro_batches * 4
        assert len(report.per_device) == devices
        if devices != 3:  # even chunks: the same for each
            assert max(report.per_device.values()) <= 2 * (devices - 1) / devices * gradients + few


@pytest.mark.parametrize("devices", [2, 4])
def test_tensor_parallel(alone, devices):
    """Two all-reduces a layer and direction; besides the embedding's forward and the head's backward."""
    mesh = init_device_mesh("cpu", (1, devices), mesh_dim_names=("dp", "tp"))
    losses, _, reports = train(mesh, TENSOR)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    each, rows = 2 * (devices - 1) * ACTIVATION, 2 * (devices - 1) * BATCH * TIME * 4
    for report in reports:
        assert {r["kind"] for r in report} == {"all_reduce"} and {r["mesh_dim"] for r in report} == {"tp"}
        assert each * (4 * LAYERS + 2) <= report.bytes <= each * (4 * LAYERS + 2) + 4 * rows
        assert report.count <= 4 * LAYERS + 2 + 4


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_sequence_parallel(alone, devices):
    """Each all-reduce of tensor parallelism becomes an all-gather and a reduce-scatter; and replicated parameters' gradients are summed up."""
    mesh = init_device_mesh("cpu", (1, devices), mesh_dim_names=("dp", "tp"))
    losses, model, reports = train(mesh, SEQUENCE)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    pairs = 2 * (2 * LAYERS + 1)  # forward and backward: a block's two halves, and from the embedding to the head
    small = [p for p in model.parameters() if p.ndim == 1 and p.placements[1] == R()]
    for report in reports:
        for kind in ("all_gather", "reduce_scatter"):
            only = report.only(kind, "tp")
            assert (only.count, only.bytes) == (pairs, pairs * (devices - 1) * ACTIVATION)
        sums = report.only("all_reduce")
        assert sums.count <= len(small) + 4 and sums.bytes <= 2 * (devices - 1) * 4 * (sum(p.numel() for p in small) + 4 * BATCH * TIME)
        assert {r["kind"] for r in report} == {"all_gather", "reduce_scatter", "all_reduce"}


def place_weights(model, mesh):
    """Weights as TENSOR cuts them, and nothing said of inputs and outputs."""
    for name, module in model.named_modules():
        for key in list(module._parameters):
            last = name.split(".")[-1]
            rows = last in ("words", "head", "q", "k", "v", "up")
            cut = S(0) if rows else S(1) if last in ("o", "down") and key == "weight" else R()
            if module._parameters[key] is not None:
                distribute_parameter(module, key, mesh["tp"], [cut])


@pytest.mark.parametrize("plan", [TENSOR, place_weights], ids=["plan", "placements alone"])
@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (3, 2)])
def test_data_and_tensor_parallel(alone, shape, plan):
    """Each sends what it would alone; placements of the weights are enough, calls find the rest."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    losses, model, reports = train(mesh, plan, split=("dp",))
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    dp, tp = shape
    gradients = sum(p.numel() * 4 * (1 if p.placements[1].is_shard() else tp) for p in model.parameters())
    activations, rows = 2 * (tp - 1) * ACTIVATION * (4 * LAYERS + 2), 2 * (tp - 1) * BATCH * TIME * 4
    for report in reports:
        assert {r["kind"] for r in report} == {"all_reduce"} and {r["mesh_dim"] for r in report} <= {"dp", "tp"}
        assert activations <= report.only(mesh_dim="tp").bytes <= activations + 4 * rows
        assert 2 * (dp - 1) * gradients <= report.only(mesh_dim="dp").bytes <= 2 * (dp - 1) * (gradients + 16 * 4 * tp)


OPTIONS = [{}, {"weight": True}, {"label_smoothing": 0.1}, {"ignore_index": 5, "reduction": "sum"}]


@pytest.mark.parametrize("options", [*OPTIONS, {"weight": True, "label_smoothing": 0.2, "ignore_index": 3}], ids=str)
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_vocabulary_parallel_loss(devices, options):
    """Logits cut by classes are never gathered: a few numbers a row move, forward and backward."""
    dt.manual_seed(0)
    rows, classes = 24, 101
    mesh = init_device_mesh("cpu", (devices,), mesh_dim_names=("tp",))
    logits, targets = dt.randn(rows, classes), dt.randint(0, classes, (rows,))
    targets[2] = options.get("ignore_index", -100)
    options = options | ({"weight": dt.rand(classes)} if "weight" in options else {})
    on_mesh = options | ({"weight": distribute_tensor(options["weight"], mesh)} if "weight" in options else {})
    plain = logits.detach().requires_grad_(True)
    want = F.cross_entropy(plain, targets, **options)
    want.backward()
    cut = distribute_tensor(logits, mesh, [S(1)]).requires_grad_(True)
    labels = distribute_tensor(targets, mesh)
    with dt.comm_bound(kinds="all_reduce", bytes=6 * 2 * (devices - 1) * (rows + 1) * 4):
        loss = F.cross_entropy(cut, labels, **on_mesh)
        loss.backward()
        gradient = cut.grad
    np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), plain.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert gradient.placements == (S(1),)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_vocabulary_parallel_embedding(devices):
    """The table is never gathered, nor is its gradient: one sum of the rows read."""
    dt.manual_seed(0)
    mesh = init_device_mesh("cpu", (devices,), mesh_dim_names=("tp",))
    table, ids = dt.randn(50, 8), dt.randint(0, 50, (4, 6))
    cut, where = distribute_tensor(table, mesh, [S(0)]).requires_grad_(True), distribute_tensor(ids, mesh)
    plain = table.detach().requires_grad_(True)
    with dt.comm_bound(kinds={"all_reduce": 1}, bytes=2 * (devices - 1) * 4 * 6 * 8 * 4) as report:
        out = F.embedding(where, cut).redistribute({"tp": R()})
        out.sin().sum().backward()
        gradient = cut.grad
    F.embedding(ids, plain).sin().sum().backward()
    assert report.count == 1 and gradient.placements == (S(0),)
    np.testing.assert_allclose(gradient.numpy(), plain.grad.numpy(), rtol=1e-5, atol=1e-6)
