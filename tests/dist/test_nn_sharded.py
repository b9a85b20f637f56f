"""Modules, optimisers and files on meshes: what comes out is what one device gives."""

import copy
import io

import dtorch
import numpy as np
import pytest
from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh, nn

F = nn.functional
rng = np.random.RandomState(0)


def R(*shape):
    return dtorch.from_numpy(rng.standard_normal(shape).astype(np.float32))


@pytest.fixture(scope="module", params=[2, 3], ids=["D2", "D3"])
def mesh(request):
    return init_device_mesh("cpu", (request.param,), mesh_dim_names=("dp",))


def place(model, mesh, placement):
    """A copy of `model` whose parameters lie as placement(p) says, and whose buffers are everywhere."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = nn.Parameter(distribute_tensor(p.detach(), mesh, [placement(p)]))
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = distribute_tensor(b, mesh, [Replicate()])
    return model


def whole(x):
    return x.detach().full_tensor().numpy()


def tensors(value):
    if isinstance(value, tuple):
        return [t for v in value for t in tensors(v)]
    return [] if value is None else [value]


def classes(*shape, n=5):
    return dtorch.from_numpy(rng.randint(0, n, shape))


MULTI = dtorch.tensor([[1, -1, 0], [2, 0, -1], [-1, 0, 0], [0, 1, 2]])
# name, module, inputs, dimensions that are sharded
MODULES = [
    ("Linear", lambda: nn.Linear(6, 5), [R(4, 6)], (0, 1)),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(3), [R(4, 3, 5, 5)], (0, 1, 2)),
    ("BatchNorm2d.eval", lambda: nn.BatchNorm2d(3).eval(), [R(4, 3, 5, 5)], (0, 1)),
    ("GroupNorm", lambda: nn.GroupNorm(3, 6), [R(4, 6, 5)], (0,)),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(3, affine=True), [R(4, 3, 5, 5)], (0, 1)),
    ("LayerNorm", lambda: nn.LayerNorm(6), [R(4, 3, 6)], (0, 1, 2)),
    ("Conv2d", lambda: nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), [R(4, 3, 6, 6)], (0, 1)),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), [R(4, 3, 4, 4)], (0, 1)),
    ("Embedding", lambda: nn.Embedding(5, 4, padding_idx=1), [classes(4, 3)], (0, 1)),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(5, 4), [classes(4, 3)], (0,)),
    ("LSTM", lambda: nn.LSTM(3, 4, 2, batch_first=True), [R(4, 5, 3)], (0,)),
    ("GRU", lambda: nn.GRU(3, 4, bidirectional=True), [R(5, 4, 3)], (1,)),
    ("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), [R(4, 5, 8), R(4, 6, 8), R(4, 6, 8)], (0,)),
    ("Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True), [R(4, 5, 8), R(4, 6, 8)], (0,)),
    ("MaxPool2d", lambda: nn.MaxPool2d(2), [R(4, 3, 6, 6)], (0, 1)),
    ("LPPool2d", lambda: nn.LPPool2d(2, 2), [R(4, 3, 6, 6).abs()], (0, 1)),
    ("AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d(2), [R(4, 3, 6, 6)], (0, 1)),
    ("Upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), [R(4, 3, 5, 5)], (0, 1)),
    ("Unfold", lambda: nn.Unfold(2), [R(4, 3, 4, 4)], (0,)),
    ("Fold", lambda: nn.Fold((4, 4), 2), [R(4, 12, 9)], (0,)),
    ("PixelShuffle", lambda: nn.PixelShuffle(2), [R(4, 8, 3, 3)], (0, 1)),
    ("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), [R(4, 6, 3, 3)], (0, 1)),
    ("Bilinear", lambda: nn.Bilinear(3, 4, 5), [R(4, 3), R(4, 4)], (0,)),
    ("GLU", lambda: nn.GLU(), [R(4, 6)], (0, 1)),
    ("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), [R(4, 5), classes(4)], (0,)),
    ("MultiMarginLoss", lambda: nn.MultiMarginLoss(), [R(4, 5), classes(4)], (0,)),
    ("MultiLabelMarginLoss", lambda: nn.MultiLabelMarginLoss(), [R(4, 3), MULTI], (0,)),
    ("TripletMarginLoss", lambda: nn.TripletMarginLoss(swap=True), [R(4, 5), R(4, 5), R(4, 5)], (0, 1)),
    ("CosineSimilarity", lambda: nn.CosineSimilarity(), [R(4, 5), R(4, 5)], (0, 1)),
]


@pytest.mark.parametrize("case", MODULES, ids=[c[0] for c in MODULES])
def test_module_on_a_sharded_batch(case, mesh):
    _, make, inputs, dims = case
    model = make()
    for dim in dims:
        one, many = copy.deepcopy(model), place(model, mesh, lambda p: Replicate())
        xs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        ys = [distribute_tensor(x, mesh, [Shard(dim)]).requires_grad_(x.is_floating_point()) for x in inputs]
        a, b = tensors(one(*xs)), tensors(many(*ys))
        for p, q in zip(a, b, strict=True):
            np.testing.assert_allclose(whole(q), p.detach().numpy(), rtol=1e-4, atol=1e-5)
        for out in (a, b):
            sum((t * t).sum() for t in out if t.requires_grad).backward()
        for p, q in zip([*xs, *one.parameters()], [*ys, *many.parameters()], strict=True):
            if p.grad is not None:
                assert q.grad.placements == q.placements
                np.testing.assert_allclose(whole(q.grad), p.grad.numpy(), rtol=1e-3, atol=1e-4)
        for p, q in zip(one.buffers(), many.buffers(), strict=True):
            np.testing.assert_allclose(whole(q), p.numpy(), rtol=1e-4, atol=1e-5)


def mlp():
    dtorch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.LayerNorm(10), nn.Linear(10, 3))


def shard_last(p):
    return Shard(p.dim() - 1)


def train(model, opt, x, n=3):
    for _ in range(n):

        def closure():
            opt.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return loss

        opt.step(closure)


OPTIMIZERS = [
    ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("Adagrad", {}), ("Adadelta", {}), ("Adamax", {}), ("NAdam", {}),
    ("RAdam", {}), ("RMSprop", {"momentum": 0.5, "centered": True}), ("Rprop", {}), ("ASGD", {}), ("Adafactor", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kw"), OPTIMIZERS, ids=[o[0] for o in OPTIMIZERS])
def test_optimizer_on_sharded_parameters(name, kw, mesh):
    one = mlp()
    many = place(one, mesh, shard_last)
    a, b = getattr(dtorch.optim, name)(one.parameters(), **kw), getattr(dtorch.optim, name)(many.parameters(), **kw)
    x = R(8, 6)
    train(one, a, x)
    train(many, b, distribute_tensor(x, mesh, [Shard(0)]))
    for p, q in zip(one.parameters(), many.parameters(), strict=True):
        assert q.placements == (shard_last(q),)
        np.testing.assert_allclose(whole(q), p.detach().numpy(), rtol=2e-4, atol=2e-6)
        for entry in b.state[q].values():
            if isinstance(entry, dtorch.Tensor) and entry.shape == q.shape:
                assert entry.placements == q.placements
    b.load_state_dict(a.state_dict())  # whole state into a sharded optimiser
    many.load_state_dict(one.state_dict())
    for p, q in zip(one.parameters(), many.parameters(), strict=True):
        assert q.placements == (shard_last(q),)
        np.testing.assert_array_equal(whole(q), p.detach().numpy())
        for key, entry in a.state[p].items():
            if isinstance(entry, dtorch.Tensor) and entry.shape == p.shape:
                assert b.state[q][key].placements == q.placements
                np.testing.assert_array_equal(whole(b.state[q][key]), entry.numpy())


def test_files_hold_whole_tensors(mesh):
    one = mlp()
    many = place(one, mesh, shard_last)
    buffer = io.BytesIO()
    dtorch.save({"model": many.state_dict()}, buffer)
    buffer.seek(0)
    saved = dtorch.load(buffer)["model"]
    for name, p in one.state_dict().items():
        np.testing.assert_array_equal(saved[name].numpy(), p.numpy())
    other = place(mlp(), mesh, lambda p: Shard(0))
    other.load_state_dict(saved)
    assert other[0].weight.placements == (Shard(0),)


def test_clipping_counts_every_parameter_once(mesh):
    p = nn.Parameter(distribute_tensor(R(5, 4), mesh, [Shard(0)]))
    q = nn.Parameter(distribute_tensor(R(3), mesh, [Replicate()]))
    p.grad, q.grad = distribute_tensor(R(5, 4), mesh, [Shard(0)]), distribute_tensor(R(3), mesh, [Replicate()])
    flat = np.concatenate([whole(p.grad).ravel(), whole(q.grad).ravel()])
    for norm in (1.0, 2.0, float("inf")):
        total = nn.utils.get_total_norm([p.grad, q.grad], norm)
        assert np.isclose(float(total.full_tensor()), np.linalg.norm(flat, norm), rtol=1e-5)
    nn.utils.clip_grad_norm_([p, q], 0.5)
    after = np.concatenate([whole(p.grad).ravel(), whole(q.grad).ravel()])
    assert np.isclose(np.linalg.norm(after), 0.5, rtol=1e-4) and p.grad.placements == (Shard(0),)


@pytest.mark.parametrize("name", ["Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"])
def test_random_layers_draw_the_same_on_every_mesh(name, mesh):
    module, x = getattr(nn, name)(), R(5, 6, 3, 3)
    dtorch.manual_seed(5)
    want = module(x).numpy()
    for placement in (Replicate(), Shard(0), Shard(1)):
        dtorch.manual_seed(5)
        np.testing.assert_array_equal(whole(module(distribute_tensor(x, mesh, [placement]))), want)


@pytest.mark.parametrize("fill", ["uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "kaiming_normal_", "orthogonal_", "sparse_"])
def test_initialisers_fill_sharded_parameters_as_whole_ones(fill, mesh):
    args = (0.3,) if fill == "sparse_" else ()
    dtorch.manual_seed(7)
    want = getattr(nn.init, fill)(dtorch.empty(7, 5), *args).numpy()
    p = nn.Parameter(distribute_tensor(dtorch.zeros(7, 5), mesh, [Shard(0)]))
    dtorch.manual_seed(7)
    getattr(nn.init, fill)(p, *args)
    assert p.placements == (Shard(0),)
    np.testing.assert_array_equal(whole(p), want)


def test_conversions_keep_placements(mesh):
    model = place(mlp(), mesh, shard_last)
    for convert in (lambda m: m.double(), lambda m: m.to(dtorch.float32), lambda m: m.cpu(), lambda m: m.requires_grad_(False)):
        convert(model)
        assert all(p.placements == (shard_last(p),) for p in model.parameters())


def _tied(seed=3):
    dtorch.manual_seed(seed)
    m = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 30), nn.BatchNorm1d(30), nn.Linear(30, 16), nn.Linear(16, 11, bias=False))
    m[4].weight = m[0].weight
    return m


@pytest.mark.parametrize("how", ["whole", "part of a mesh", "two dimensions", "layer by layer", "beside tensor parallelism"])
def test_fully_shard_trains_as_the_plain_model_does(how):
    from dtorch.distributed.fsdp import fully_shard
    from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def train(m, lay):
        opt = dtorch.optim.AdamW(m.parameters(), lr=1e-2)
        x = lay(dtorch.arange(13) * 7 % 11)
        losses = []
        for _ in range(4):
            loss = nn.functional.cross_entropy(m(x), x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return dtorch.stack(losses).tolist()

    expected = train(_tied(), lambda t: t)
    m = _tied()
    mesh = init_device_mesh("cpu", (4,)) if how == "whole" else init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    part = mesh["dp"] if how in ("part of a mesh", "beside tensor parallelism") else mesh
    if how == "beside tensor parallelism":
        parallelize_module(m, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    if how == "layer by layer":
        fully_shard(m[1], mesh=part)
        first = m[1].weight
    assert fully_shard(m, mesh=part) is m
    assert how != "layer by layer" or m[1].weight is first
    assert m[4].weight is m[0].weight and isinstance(m[0].weight, nn.Parameter)
    along = 0 if how in ("whole", "part of a mesh", "beside tensor parallelism") else 1
    assert all(isinstance(p.placements[along], Shard) and p.placements[along].dim == 0 for p in m.parameters())
    assert how != "beside tensor parallelism" or m[3].weight.placements == (Shard(0), Shard(1))
    got = train(m, lambda t: distribute_tensor(t, part, [Shard(0)] * part.ndim))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_fully_shard_refuses_what_it_would_not_do():
    from dtorch.distributed.fsdp import fully_shard

    with pytest.raises(TypeError, match="mesh must be a DeviceMesh"):
        fully_shard(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="offload_policy"):
        fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (2,)), offload_policy=object())


def test_a_recurrent_layer_of_a_sharded_batch_sends_nothing():
    lstm, x = nn.LSTM(6, 20, 2, bidirectional=True), dtorch.randn(5, 7, 6)
    want = lstm(x)[0]
    mesh = init_device_mesh("cpu", (3,))
    for name, p in list(lstm.named_parameters()):
        setattr(lstm, name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate()])))
    shards = distribute_tensor(x, mesh, [Shard(1)])
    dtorch.synchronize()
    dtorch.comm_report(reset=True)
    out = lstm(shards)[0]
    dtorch.synchronize()
    assert dtorch.comm_report(reset=True) == [] and out.placements == (Shard(1),)
    np.testing.assert_allclose(out.full_tensor().detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
