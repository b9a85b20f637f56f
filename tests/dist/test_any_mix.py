"""A part of the any-mix table (any_mix.py makes all of it): each kind of parallelism alone, each pair, some mixes of three or more."""

import importlib.util
import pathlib

import dtorch
import numpy as np
import pytest
from dtorch import models
from dtorch.models.generation import Memory

spec = importlib.util.spec_from_file_location("any_mix", pathlib.Path(__file__).with_name("any_mix.py"))
any_mix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(any_mix)

# dp, pp, tp, cp, ep; ZeRO; sizes
MIXES = [
    ((8, 1, 1, 1, 1), 1, "even"), ((1, 1, 8, 1, 1), 0, "uneven"), ((1, 1, 1, 8, 1), 0, "uneven"), ((1, 1, 1, 1, 8), 0, "even"),
    ((4, 1, 2, 1, 1), 3, "uneven"), ((2, 1, 1, 4, 1), 2, "even"), ((2, 1, 1, 1, 4), 3, "uneven"), ((1, 1, 4, 2, 1), 0, "uneven"),
    ((1, 1, 2, 1, 4), 0, "even"), ((1, 1, 1, 2, 4), 0, "uneven"), ((2, 1, 2, 2, 1), 3, "even"), ((2, 1, 2, 2, 1), 2, "uneven"),
    ((1, 8, 1, 1, 1), 0, "even"), ((4, 2, 1, 1, 1), 1, "uneven"), ((1, 2, 4, 1, 1), 0, "uneven"), ((1, 4, 1, 2, 1), 0, "even"),
    ((1, 2, 1, 1, 4), 0, "uneven"), ((2, 2, 2, 1, 1), 3, "even"), ((2, 2, 1, 2, 1), 2, "uneven"), ((1, 2, 2, 2, 1), 0, "uneven"),
]  # fmt: skip


def name_of(case):
    return "x".join(map(str, case[0])) + f"-zero{case[1]}-{case[2]}"


@pytest.mark.parametrize("kind", ["llama", "moe"])
@pytest.mark.parametrize("case", MIXES, ids=name_of)
def test_mix_is_the_one_device_run(kind, case):
    mix, zero, sizes = case
    found = any_mix.compare(kind, mix, zero, sizes)
    assert all(x < bound for x, bound in zip(found, any_mix.BOUNDS, strict=True)), found


@pytest.mark.parametrize("case", [((2, 1, 4, 1, 1), 3, "even"), ((1, 1, 2, 2, 2), 0, "uneven")], ids=name_of)
def test_sequence_parallel_is_the_one_device_run(case):
    mix, zero, sizes = case
    found = any_mix.compare("llama", mix, zero, sizes, sequence_parallel=True)
    assert all(x < bound for x, bound in zip(found, any_mix.BOUNDS, strict=True)), found


@pytest.mark.parametrize("case", [case for i, case in enumerate(MIXES) if i % 3 == 0], ids=name_of)
def test_dropout_and_tied_weights_are_the_one_device_run(case):
    mix, zero, sizes = case
    found = any_mix.compare("gpt2", mix, zero, sizes)
    assert all(x < bound for x, bound in zip(found, any_mix.BOUNDS, strict=True)), found


OTHERS = [
    ((3, 1, 2, 1, 1), 3, "uneven"), ((1, 3, 1, 2, 2), 0, "uneven"), ((1, 1, 5, 1, 1), 0, "uneven"), ((1, 1, 1, 7, 1), 0, "even"),
    ((2, 2, 2, 2, 2), 1, "uneven"),
]  # fmt: skip


@pytest.mark.parametrize("case", OTHERS, ids=name_of)
def test_other_numbers_of_devices_are_the_one_device_run(case):
    mix, zero, sizes = case
    found = any_mix.compare("moe", mix, zero, sizes)
    assert all(x < bound for x, bound in zip(found, any_mix.BOUNDS, strict=True)), found


@pytest.mark.parametrize("way", ["ring", "ulysses"])
@pytest.mark.parametrize(
    "case", [((2, 1, 1, 4, 1), 3, "even"), ((1, 2, 2, 2, 1), 0, "uneven"), ((1, 1, 1, 8, 1), 0, "uneven")], ids=name_of
)
def test_both_ways_of_context_parallelism_are_the_one_device_run(case, way):
    mix, zero, sizes = case
    with dtorch.distributed.context_parallel(way):
        found = any_mix.compare("llama", mix, zero, sizes)
    assert all(x < bound for x, bound in zip(found, any_mix.BOUNDS, strict=True)), found


def test_there_are_35_mixes():
    found = any_mix.mixes()
    assert len(found) == 35 == len(set(found)) and all(np.prod(mix) == 8 for mix in found)


def sent(layers, mix, sequence_parallel=False, zero=0):
    """(collective, mesh dimension) -> [count, bytes] of the third step of a Llama with this many blocks."""
    model = models.Llama(models.LlamaConfig.preset("tiny", num_hidden_layers=layers))
    mesh = names_mesh(*mix)
    models.parallelize(model, mesh, sequence_parallel=sequence_parallel, zero=zero)
    optimizer = dtorch.optim.AdamW(model.parameters())
    x = models.distribute_batch(mesh, dtorch.zeros(4, 32, dtype=dtorch.int64))
    for step in range(3):
        with dtorch.comm_scope() as report:
            loss = (model(x) ** 2).mean()  # not cross-entropy, whose small sums are made once or twice as time permits
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    out = {}
    for row in report:
        entry = out.setdefault((row["kind"], row["mesh_dim"]), [0, 0])
        entry[0] += row["count"]
        entry[1] += row["bytes"]
    return out


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_block_sends_two_sums_of_the_stream_each_way(n, sequence_parallel):
    two, three = (sent(layers, (1, 1, n, 1, 1), sequence_parallel) for layers in (2, 3))
    block = {key: [b - a for a, b in zip(two.get(key, [0, 0]), three[key], strict=True)] for key in three}
    stream = (
        4 * 32 * 64 * 4 * (n - 1)
    )  # bytes that all devices together send for a gather or a scattered sum of (batch, positions, features)
    if sequence_parallel:
        assert block.pop(("all_gather", "tp")) == [4, 4 * stream] and block.pop(("reduce_scatter", "tp")) == [4, 4 * stream]
        _, size = block.pop(("all_reduce", "tp"))  # gradients of the two norms, in as many collectives as there was time to merge them
        assert size == 2 * 64 * 4 * 2 * (n - 1)
    else:
        assert block.pop(("all_reduce", "tp")) == [4, 8 * stream]
    assert not any(count for count, _ in block.values()), block


def test_zero_3_gathers_blocks_twice():
    """Blocks are gathered for forward and again for backward, what is around them once; gradients are scattered. Plainly, gradients are summed."""
    model, n = models.Llama(models.LlamaConfig.preset("tiny", num_hidden_layers=2)), 4
    whole = sum(p.numel() for p in model.parameters())
    blocks = sum(p.numel() for p in model.layers.parameters())
    plain, cut = (sum(size for _, size in sent(2, (n, 1, 1, 1, 1), zero=zero).values()) for zero in (0, 3))
    assert abs(plain - 2 * whole * 4 * (n - 1)) < 200
    # A second gather that follows close on the first, in the last block, may be the same one; one that the stream's cut separates from its use is made again.
    largest = max(p.numel() for p in model.parameters())
    assert (2 * whole + blocks // 2) * 4 * (n - 1) < cut < (2 * whole + blocks + largest) * 4 * (n - 1) + 200


@pytest.mark.parametrize("mix", [(1, 1, 2, 1, 1), (2, 2, 2, 1, 1), (1, 2, 1, 2, 1)], ids=str)
def test_tied_weights_stay_one(mix):
    config = models.GPT2Config.preset("tiny", n_embd=32, n_head=4)
    x = dtorch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 17)))

    def run(mesh):
        dtorch.manual_seed(0)
        model = models.GPT2(config)
        given, targets = x[:, :-1], x[:, 1:]
        if mesh is not None:
            models.parallelize(model, mesh)
            given, targets = models.distribute_batch(mesh, given, targets)
        assert model.lm_head.weight is model.wte.weight and len(list(model.parameters())) == 4 * 16 + 4
        loss = models.next_token_loss(model(given), targets)
        loss.backward()
        return loss.item(), model.wte.weight.grad.full_tensor().numpy()

    (loss, grad), (loss2, grad2) = run(None), run(names_mesh(*mix))
    assert abs(loss - loss2) < 1e-5
    np.testing.assert_allclose(grad2, grad, atol=1e-5 * np.abs(grad).max())


def names_mesh(*shape):
    return dtorch.init_device_mesh("cpu", shape, mesh_dim_names=any_mix.NAMES)


def image_run(kind, config, mesh=None, zero=0):
    """Losses of five steps, then every weight and buffer (the running statistics of batch norms, too)."""
    dtorch.manual_seed(0)
    rng, model = np.random.default_rng(0), kind(config)
    size = getattr(config, "image_size", 9)
    x = dtorch.from_numpy(rng.standard_normal((12, config.num_channels, size, size)).astype(np.float32))
    y = dtorch.from_numpy(rng.integers(0, config.num_classes, 12))
    if mesh is not None:
        models.parallelize(model, mesh, zero=zero)
        x, y = models.distribute_batch(mesh, x, y, sequence_dim=None)
    optimizer = dtorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(5):
        loss = dtorch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], {n: t.detach().full_tensor().numpy() for n, t in model.state_dict().items()}


IMAGE_MODELS = {
    "vit": (models.ViT, models.ViTConfig.preset("tiny")),
    "resnet": (models.ResNet, models.ResNetConfig.preset("tiny")),
    "resnet.bottleneck": (models.ResNet, models.ResNetConfig((1, 2), bottleneck=True, width=6, num_channels=2, num_classes=5)),
}


@pytest.mark.parametrize(
    "mix", [(8, 1, 1, 1, 1), (5, 1, 1, 1, 1), (2, 1, 2, 1, 1), (1, 1, 3, 1, 1), (2, 2, 2, 1, 1), (1, 1, 2, 3, 1)], ids=str
)
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models_take_the_statistics_of_the_whole_batch(name, mix):
    kind, config = IMAGE_MODELS[name]
    losses, state = image_run(kind, config)
    many_losses, many_state = image_run(kind, config, names_mesh(*mix), zero=3 if mix[0] == 2 else 0)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(many_losses, losses, atol=1e-4)
    for n, w in state.items():
        np.testing.assert_allclose(many_state[n], w, rtol=1e-3, atol=1e-3, err_msg=n)


@pytest.mark.parametrize("mix", [(1, 1, 2, 1, 1), (2, 1, 2, 1, 1), (1, 2, 4, 1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_generation_with_the_memory_cut_by_heads(kind, mix):
    dtorch.manual_seed(3)
    make = {
        "llama": lambda: models.Llama(models.LlamaConfig.preset("tiny", initializer_range=0.2)),
        "gpt2": lambda: models.GPT2(models.GPT2Config.preset("tiny", initializer_range=0.2)),
    }[kind]
    one, many = make(), make()
    many.load_state_dict(one.state_dict())
    mesh = names_mesh(*mix)
    models.parallelize(many, mesh)
    prompt = dtorch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, 6)))
    given = models.distribute_batch(mesh, prompt, sequence_dim=None)
    assert many.generate(given, 9).full_tensor().tolist() == one.generate(prompt, 9).tolist()
    memory = Memory(4, 16)
    with dtorch.no_grad():
        for tokens in (given, given[:, :1]):
            memory.advance(tokens)
            many(tokens, memory)
    for t in [t for i in range(4) for t in (memory[i].k, memory[i].v)]:
        assert t.placements[t.device_mesh.mesh_dim_names.index("tp")] == dtorch.Shard(1)


def test_plans_say_what_they_do_not_know():
    model = models.Llama(models.LlamaConfig.preset("tiny"))
    with pytest.raises(ValueError, match="must be named"):
        models.parallelize(model, dtorch.init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match="Linear has no tensor_plan"):
        models.parallelize(dtorch.nn.Linear(2, 2), names_mesh(1, 1, 2, 1, 1))
    with pytest.raises(ValueError, match="zero must be 0, 1, 2 or 3, got 4"):
        models.parallelize(model, names_mesh(2, 1, 1, 1, 1), zero=4)
