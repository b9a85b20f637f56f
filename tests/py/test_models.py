"""The models of dtorch.models against formulas in NumPy (float64), their presets, their loaders and generation."""

import json
import struct

import dtorch
import numpy as np
import pytest
from dtorch import models, nn
from dtorch.io import save_file
from dtorch.models.gguf import load_gguf

rng = np.random.default_rng(0)


def weights(model):
    """Every weight as float64, after making all of them random, norms too."""
    with dtorch.no_grad():
        for name, p in model.named_parameters():
            at = 1.0 if "norm" in name or "ln_" in name or "bn" in name else 0.0
            p.copy_(dtorch.from_numpy((at + 0.2 * rng.standard_normal(tuple(p.shape))).astype(np.float32)))
    return {name: w.numpy().astype(np.float64) for name, w in model.state_dict().items()}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, b, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def heads(x, n):
    return x.reshape(*x.shape[:2], n, -1).transpose(0, 2, 1, 3)


def attend(q, k, v, causal):
    """q: (b, h, t, d); k, v: (b, g, t, d), g a divisor of h. Returns (b, t, h d)."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)
    y = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    return y.reshape(*y.shape[:2], -1)


def turn(x, theta):
    """Rotary positions as multiplication by complex numbers: x: (b, h, t, d); x[i] + j x[i + d/2] turns by t theta^(-2i/d)."""
    d = x.shape[-1]
    angle = np.arange(x.shape[2])[:, None] * theta ** (-2 * np.arange(d // 2) / d)
    z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], axis=-1)


def silu(x):
    return x / (1 + np.exp(-x))


def llama(w, c, tokens):
    x = w["embed_tokens.weight"][tokens]
    for i in range(c.num_hidden_layers):
        p = {k.removeprefix(f"layers.{i}."): v for k, v in w.items()}
        h = rms_norm(x, p["input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = (h @ p[f"self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k, v = heads(q, c.num_attention_heads), heads(k, c.num_key_value_heads), heads(v, c.num_key_value_heads)
        x = x + attend(turn(q, c.rope_theta), turn(k, c.rope_theta), v, True) @ p["self_attn.o_proj.weight"].T
        h = rms_norm(x, p["post_attention_layernorm.weight"], c.rms_norm_eps)
        x = x + (silu(h @ p["mlp.gate_proj.weight"].T) * (h @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    return rms_norm(x, w["norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T


def moe_llama(w, c, tokens):
    """Logits, and the mean of the blocks' load-balancing losses."""
    x, losses = w["embed_tokens.weight"][tokens], []
    for i in range(c.num_hidden_layers):
        p = {k.removeprefix(f"layers.{i}."): v for k, v in w.items()}
        h = rms_norm(x, p["input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = (h @ p[f"self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k, v = heads(q, c.num_attention_heads), heads(k, c.num_key_value_heads), heads(v, c.num_key_value_heads)
        x = x + attend(turn(q, c.rope_theta), turn(k, c.rope_theta), v, True) @ p["self_attn.o_proj.weight"].T
        h = rms_norm(x, p["post_attention_layernorm.weight"], c.rms_norm_eps)
        score = softmax(h @ p["mlp.router.weight"].T)
        chosen = np.argsort(-score, axis=-1)[..., : c.num_experts_per_tok]
        picked = np.take_along_axis(score, chosen, -1)
        picked, y = picked / picked.sum(-1, keepdims=True), np.zeros_like(x)
        for e in range(c.num_local_experts):
            gate, up, down = (p[f"mlp.experts.{n}"][e] for n in ("gate", "up", "down"))
            y += (picked * (chosen == e)).sum(-1, keepdims=True) * ((silu(h @ gate) * (h @ up)) @ down)
        if c.n_shared_experts:
            gate, up, down = (p[f"mlp.shared.{n}.weight"].T for n in ("gate", "up", "down"))
            y += (silu(h @ gate) * (h @ up)) @ down
        x = x + y
        share = np.bincount(chosen.ravel(), minlength=c.num_local_experts) / chosen.size
        losses.append(c.num_local_experts * (share * score.mean((0, 1))).sum())
    return rms_norm(x, w["norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T, c.router_aux_loss_coef * np.mean(losses)


def dense(x, p, name):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def gpt2(w, c, tokens):
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(c.n_layer):
        p = {k.removeprefix(f"h.{i}."): v for k, v in w.items()}
        h = layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], c.layer_norm_epsilon)
        q, k, v = (heads(dense(h, p, f"attn.{n}"), c.n_head) for n in "qkv")
        x = x + dense(attend(q, k, v, True), p, "attn.c_proj")
        h = dense(layer_norm(x, p["ln_2.weight"], p["ln_2.bias"], c.layer_norm_epsilon), p, "mlp.c_fc")
        x = x + dense(0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))), p, "mlp.c_proj")
    return layer_norm(x, w["ln_f.weight"], w["ln_f.bias"], c.layer_norm_epsilon) @ w["wte.weight"].T


def vit(w, c, images):
    from scipy.special import erf

    b, s, n = len(images), c.patch_size, c.image_size // c.patch_size
    patches = images.reshape(b, c.num_channels, n, s, n, s).transpose(0, 2, 4, 1, 3, 5).reshape(b, n * n, -1)
    kernel = w["embeddings.patch.weight"].reshape(c.hidden_size, -1)
    x = patches @ kernel.T + w["embeddings.patch.bias"]
    x = np.concatenate([np.broadcast_to(w["embeddings.cls_token"], (b, 1, c.hidden_size)), x], axis=1) + w["embeddings.position"]
    for i in range(c.num_hidden_layers):
        p = {k.removeprefix(f"layers.{i}."): v for k, v in w.items()}
        h = layer_norm(x, p["norm1.weight"], p["norm1.bias"], c.layer_norm_eps)
        q, k, v = (heads(dense(h, p, f"attn.{m}"), c.num_attention_heads) for m in ("query", "key", "value"))
        x = x + dense(attend(q, k, v, False), p, "attn.out")
        h = dense(layer_norm(x, p["norm2.weight"], p["norm2.bias"], c.layer_norm_eps), p, "mlp.up")
        x = x + dense(h * 0.5 * (1 + erf(h / np.sqrt(2))), p, "mlp.down")
    return dense(layer_norm(x, w["norm.weight"], w["norm.bias"], c.layer_norm_eps)[:, 0], w, "head")


def conv(x, k, stride, padding):
    """x: (b, c, h, w), k: (o, c, s, s)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, k.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("bchwij,ocij->bohw", windows, k)


def batch_norm(x, p, name):
    m, v = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - m) / np.sqrt(v + 1e-5) * p[name + ".weight"][:, None, None] + p[name + ".bias"][:, None, None]


def resnet(w, c, x):
    def relu(v):
        return np.maximum(v, 0)

    if c.cifar_stem:
        x = relu(batch_norm(conv(x, w["conv1.weight"], 1, 1), w, "bn1"))
    else:
        x = relu(batch_norm(conv(x, w["conv1.weight"], 2, 3), w, "bn1"))
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max((-1, -2))
    for i, blocks in enumerate(c.blocks):
        for j in range(blocks):
            p = {k.removeprefix(f"layer{i + 1}.{j}."): v for k, v in w.items()}
            stride = 2 if i and not j else 1
            strides, pads = ((1, stride, 1), (0, 1, 0)) if c.bottleneck else ((stride, 1), (1, 1))
            y = x
            for n, (s, pad) in enumerate(zip(strides, pads), 1):
                y = batch_norm(conv(y, p[f"conv{n}.weight"], s, pad), p, f"bn{n}")
                y = relu(y) if n < len(strides) else y
            if "downsample.0.weight" in p:
                x = batch_norm(conv(x, p["downsample.0.weight"], stride, 0), p, "downsample.1")
            x = relu(y + x)
    return dense(x.mean((2, 3)), w, "fc")


def tokens_of(c, b=3, t=11):
    return rng.integers(0, c.vocab_size, (b, t))


CASES = {
    "llama": (models.Llama, models.LlamaConfig.preset("tiny"), llama),
    "llama.odd": (models.Llama, models.LlamaConfig(97, 36, 50, 2, 6, 2, rope_theta=500.0, rms_norm_eps=1e-3), llama),
    "llama.tied": (models.Llama, models.LlamaConfig(50, 32, 40, 2, 4, 1, tie_word_embeddings=True), llama),
    "gpt2": (models.GPT2, models.GPT2Config.preset("tiny"), gpt2),
    "gpt2.odd": (models.GPT2, models.GPT2Config(61, 20, 30, 2, 5, layer_norm_epsilon=1e-3), gpt2),
    "vit": (models.ViT, models.ViTConfig.preset("tiny"), vit),
    "vit.odd": (models.ViT, models.ViTConfig(12, 4, 3, 7, 30, 50, 2, 5), vit),
    "resnet": (models.ResNet, models.ResNetConfig.preset("tiny"), resnet),
    "resnet.pooled": (models.ResNet, models.ResNetConfig((2, 1), width=6, num_classes=5), resnet),
    "resnet.bottleneck": (models.ResNet, models.ResNetConfig((2, 1, 2), bottleneck=True, width=4, num_classes=5), resnet),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_is_the_formula(case):
    kind, config, formula = CASES[case]
    model = kind(config)
    w = weights(model)
    if formula in (llama, gpt2):
        x = tokens_of(config)
        given = dtorch.from_numpy(x)
    else:
        size = getattr(config, "image_size", 13)
        given = dtorch.from_numpy(rng.standard_normal((3, config.num_channels, size, size)).astype(np.float32))
        x = given.numpy().astype(np.float64)
    expected = formula(w, config, x)
    np.testing.assert_allclose(model(given).detach().numpy(), expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("shared", [0, 2])
def test_mixture_is_the_formula(shared):
    config = models.MoELlamaConfig(83, 32, 24, 2, 4, 2, num_local_experts=5, num_experts_per_tok=2, n_shared_experts=shared)
    model, x = models.MoELlama(config), tokens_of(config)
    expected, loss = moe_llama(weights(model), config, x)
    np.testing.assert_allclose(model(dtorch.from_numpy(x)).detach().numpy(), expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())
    assert abs(model.aux_loss().item() - loss) < 1e-5 * loss


def test_a_mixtral_of_the_other_layout_loads():
    config = models.MoELlamaConfig(83, 32, 24, 2, 4, 2, num_local_experts=3)
    model, other = models.MoELlama(config), {}
    w = weights(model)
    for name, value in w.items():
        block = "model." + ".".join(name.split(".")[:2]) + ".block_sparse_moe"
        if ".mlp.experts." in name:
            part = {"gate": "w1", "down": "w2", "up": "w3"}[name.split(".")[-1]]
            other |= {f"{block}.experts.{i}.{part}.weight": v.T for i, v in enumerate(value)}
        elif ".mlp.router." in name:
            other[f"{block}.gate.weight"] = value
        else:
            other[name if name == "lm_head.weight" else "model." + name] = value
    loaded = models.load_hf(models.MoELlama(config), {k: dtorch.from_numpy(v.astype(np.float32)) for k, v in other.items()})
    for name, value in loaded.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), w[name].astype(np.float32), err_msg=name)


@pytest.mark.parametrize(
    ("kind", "config", "preset", "millions"),
    [
        (models.GPT2, models.GPT2Config, "gpt2", 124.44), (models.Llama, models.LlamaConfig, "135m", 134.52),
        (models.ViT, models.ViTConfig, "b16", 86.57), (models.ResNet, models.ResNetConfig, "18", 11.69),
        (models.ResNet, models.ResNetConfig, "50", 25.557),
    ],
)  # fmt: skip
def test_presets_have_the_published_sizes(kind, config, preset, millions, monkeypatch):
    for fill in [n for n in vars(nn.init) if n.endswith("_") and not n.startswith("_")]:  # only sizes are looked at
        monkeypatch.setattr(nn.init, fill, lambda t, *args, **kwargs: t)
    n = sum(p.numel() for p in kind(config.preset(preset)).parameters())
    assert abs(n / 1e6 - millions) < 0.006, n


def test_configurations_say_what_is_wrong():
    assert dtorch.models is models
    with pytest.raises(ValueError, match="'tiny'"):
        models.LlamaConfig.preset("enormous")
    with pytest.raises(ValueError, match="num_key_value_heads=3 must divide num_attention_heads=8"):
        models.LlamaConfig.preset("tiny", num_key_value_heads=3)
    model = models.GPT2(models.GPT2Config.preset("tiny", n_positions=8))
    with pytest.raises(ValueError, match="at most 8 positions, got 9"):
        model(dtorch.zeros(1, 9, dtype=dtorch.int64))
    with pytest.raises(ValueError, match=r"tokens must be \(batch, positions\), got shape \(4,\)"):
        model(dtorch.zeros(4, dtype=dtorch.int64))
    with pytest.raises(ValueError, match=r"images must be \(batch, 1, 8, 8\)"):
        models.ViT(models.ViTConfig.preset("tiny"))(dtorch.zeros(2, 1, 9, 9))


@pytest.mark.parametrize("case", ["llama", "llama.odd", "gpt2"])
def test_generation_with_memory_is_generation_without(case):
    kind, config, _ = CASES[case]
    model = kind(config)
    weights(model)
    given = dtorch.from_numpy(tokens_of(config, 2, 5))
    text = given
    with dtorch.no_grad():
        for _ in range(7):
            text = dtorch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    assert model.generate(given, 7).tolist() == text.tolist()
    assert model.generate(given, 0).tolist() == given.tolist()


def test_generation_draws_and_stops():
    model = models.Llama(models.LlamaConfig.preset("tiny"))
    given = dtorch.zeros(2, 3, dtype=dtorch.int64)
    dtorch.manual_seed(1)
    a = model.generate(given, 6, temperature=1.0)
    dtorch.manual_seed(1)
    assert model.generate(given, 6, temperature=1.0).tolist() == a.tolist()
    assert model.generate(given, 6, temperature=1.0).tolist() != a.tolist()
    assert model.generate(given, 6, temperature=1.0, top_k=1).tolist() == model.generate(given, 6).tolist()
    seen = []
    out = model.generate(given, 6, stream=lambda t: seen.append(t.tolist()) or len(seen) == 2)
    assert out.shape == (2, 5) and out[:, 3:].t().tolist() == seen
    with pytest.raises(ValueError, match="max_new_tokens"):
        model.generate(given, -1)


def test_weights_of_the_other_layout_load(tmp_path):
    """GPT-2 with query, key and value in one matrix (in, out); Llama with its leading `model.`, in two files with an index."""
    kind, config, formula = CASES["gpt2.odd"]
    model = kind(config)
    w = weights(model)
    other = {}
    for name, value in w.items():
        if ".attn.k." in name or ".attn.v." in name or name == "lm_head.weight":
            continue
        if ".attn.q." in name:
            value = np.concatenate([w[name.replace(".q.", f".{n}.")] for n in "qkv"])
            name = name.replace(".q.", ".c_attn.")
        other["transformer." + name] = value.T if name.startswith("h.") and value.ndim == 2 else value
    save_file({k: dtorch.from_numpy(np.ascontiguousarray(v, np.float32)) for k, v in other.items()}, tmp_path / "model.safetensors")
    x = tokens_of(config)
    loaded = models.load_hf(kind(config), tmp_path)
    assert loaded.lm_head.weight is loaded.wte.weight
    np.testing.assert_allclose(loaded(dtorch.from_numpy(x)).detach().numpy(), formula(w, config, x), rtol=1e-3, atol=1e-3)

    kind, config, formula = CASES["llama.tied"]
    model, folder = kind(config), tmp_path / "llama"
    w = weights(model)
    folder.mkdir()
    names = [n for n in w if n != "lm_head.weight"]
    files = {("model." + n): f"part-{i % 2}.safetensors" for i, n in enumerate(names)}
    for part in set(files.values()):
        save_file({n: model.state_dict()[n[6:]] for n, f in files.items() if f == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    np.testing.assert_allclose(
        models.load_hf(kind(config), folder)(dtorch.from_numpy(x % 50)).detach().numpy(), formula(w, config, x % 50), rtol=1e-3, atol=1e-3
    )
    with pytest.raises(KeyError, match=r"missing \['norm.weight'\]"):
        models.load_hf(kind(config), {"model." + n: model.state_dict()[n] for n in names if n != "norm.weight"})


def test_small_models_learn_to_copy():
    """A text of period 3: after 30 steps the next token is known."""
    dtorch.manual_seed(0)
    model = models.Llama(models.LlamaConfig.preset("tiny", num_hidden_layers=1))
    text = dtorch.from_numpy(np.tile([7, 3, 5], (4, 8)))
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        loss = models.next_token_loss(model(text[:, :-1]), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.generate(dtorch.tensor([[7, 3]]), 4).tolist() == [[7, 3, 5, 7, 3, 5]]


def gguf(entries, tensors):
    """The bytes of a GGUF file: entries {key: value}, tensors {name: (type, shape, raw bytes)}."""

    def string(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def value(v):
        if isinstance(v, str):
            return struct.pack("<I", 8) + string(v)
        if isinstance(v, list) and isinstance(v[0], str):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(string, v))
        if isinstance(v, list):
            return struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v)
        return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(string(k) + value(v) for k, v in entries.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return out + bytes(-len(out) % 32) + data


def quantise(kind, w):
    """Raw bytes of blocks, and the numbers they stand for, by the definitions of the formats one number at a time."""
    raw, numbers = b"", []
    size = 256 if kind == 14 else 32
    for block in w.reshape(-1, size):
        low, high = float(block.min()), float(block.max())
        if kind == 8:
            d = np.float16(max(abs(low), abs(high)) / 127)
            q = np.clip(np.round(block / d), -127, 127).astype(np.int8)
            raw += d.tobytes() + q.tobytes()
            numbers += [float(d) * int(v) for v in q]
        elif kind in (2, 3):
            d = np.float16((high - low) / 15 if kind == 3 else max(abs(low), abs(high)) / 7)
            m = np.float16(low)
            q = np.clip(np.round((block - m) / d if kind == 3 else block / d + 8), 0, 15).astype(int)
            raw += d.tobytes() + (m.tobytes() if kind == 3 else b"") + bytes(int(q[i] | q[i + 16] << 4) for i in range(16))
            numbers += [float(d) * v + float(m) if kind == 3 else float(d) * (v - 8) for v in q]
        else:
            d, scales = np.float16(0.01), rng.integers(-100, 100, 16)
            q = rng.integers(0, 64, 256)
            ql, qh = np.zeros(128, int), np.zeros(64, int)
            for i, v in enumerate(q):  # number i: half i // 128, quarter k of it, place l
                half, k, place = i // 128, i % 128 // 32, i % 32
                ql[half * 64 + k % 2 * 32 + place] |= (v & 15) << (k // 2 * 4)
                qh[half * 32 + place] |= (v >> 4) << (2 * k)
            raw += bytes(map(int, ql)) + bytes(map(int, qh)) + scales.astype(np.int8).tobytes() + d.tobytes()
            numbers += [float(d) * int(scales[i // 16]) * (int(v) - 32) for i, v in enumerate(q)]
    return raw, np.array(numbers).reshape(w.shape)


LETTERS = [chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]] + [chr(256 + i) for i in range(68)]


def small_gguf():
    """A file of a small Llama in mixed formats, its configuration, and its weights as they should be read."""
    c = models.LlamaConfig(260, 64, 96, 2, 4, 2, 64, 1e-3, 500.0, initializer_range=0.1)
    w = weights(models.Llama(c))
    tokens = [*LETTERS, "he", "ll", "hell", "<|end|>"]
    entries = {
        "general.architecture": "llama", "llama.embedding_length": 64, "llama.feed_forward_length": 96, "llama.block_count": 2,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.context_length": 64, "llama.rope.freq_base": 500.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-3, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 259 + [3],
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
    }  # fmt: skip
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "embed_tokens": "token_embd", "norm": "output_norm",
        "lm_head": "output", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip
    kinds = {"q_proj": 3, "k_proj": 2, "v_proj": 8, "lm_head": 14, "gate_proj": 30, "up_proj": 1}
    tensors = {}
    for name, value in w.items():
        part = name.split(".")[-2]
        kind = kinds.get(part, 0)
        if kind == 30:
            raw = (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            raw, w[name] = raw.tobytes(), (raw.astype(np.uint32) << 16).view(np.float32)
        elif kind in (0, 1):
            raw = value.astype([np.float32, np.float16][kind])
            raw, w[name] = raw.tobytes(), raw
        else:
            raw, w[name] = quantise(kind, value)
        if part in ("q_proj", "k_proj"):  # in a file, numbers that turn together stand side by side
            w[name] = w[name].reshape(-1, 8, 2, 64).swapaxes(1, 2).reshape(value.shape)
        block = "blk." + name.split(".")[1] + "." if name.startswith("layers") else ""
        tensors[f"{block}{names[part]}.weight"] = (kind, value.shape, raw)
    return gguf(entries, tensors), c, w


def test_a_gguf_file_is_a_model_and_its_tokens(tmp_path):
    data, config, w = small_gguf()
    path = tmp_path / "small.gguf"
    path.write_bytes(data)
    model, tokenizer = load_gguf(path)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), w[name], rtol=1e-5, atol=1e-6, err_msg=name)
    x = tokens_of(config)
    expected = llama({k: np.asarray(v, np.float64) for k, v in w.items()}, config, x)
    np.testing.assert_allclose(model(dtorch.from_numpy(x)).detach().numpy(), expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())
    text = "hello  hell\n\tÄ 12€'s<|end|>she"
    numbers = tokenizer.encode(text)
    assert tokenizer.decode(numbers) == text
    assert numbers[:2] == [258, LETTERS.index("o")] and 259 in numbers and numbers[-2:] == [LETTERS.index("s"), 256]


def test_a_broken_gguf_file_is_an_error(tmp_path):
    data, path = small_gguf()[0], tmp_path / "broken.gguf"
    for cut in [0, 3, 10, 23, 40, 200, 3000, len(data) // 2, len(data) - 40]:
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError):
            load_gguf(path)
    for at in rng.integers(0, 9000, 100):
        path.write_bytes(data[:at] + bytes([data[at] ^ rng.integers(1, 256)]) + data[at + 1 :])
        try:
            load_gguf(path)
        except (ValueError, KeyError, NotImplementedError):
            pass
