"""GPT-2: a decoder with LayerNorm before each half, learned positions and a head that is the embedding table.

Names are those of the Hugging Face layout, except that query, key and value are three linears: `load_hf` splits them.
Source: Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dtorch as torch
from dtorch import nn
from dtorch.models.config import Config
from dtorch.models.generation import Decoder, Memory
from dtorch.models.plan import transformer_plan

F = nn.functional

__all__ = ["GPT2", "GPT2Config"]


@dataclass(frozen=True)
class GPT2Config(Config):
    """Sizes of a GPT-2; the fields are those of a ``config.json``. `dropout` is applied to the embedding and to what each half adds."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    dropout: float = 0.0

    PRESETS = {
        "tiny": {"vocab_size": 256, "n_positions": 256, "n_embd": 64, "n_layer": 4, "n_head": 4},
        "small": {"vocab_size": 256, "n_positions": 1024, "n_embd": 256, "n_layer": 6, "n_head": 8},
        "gpt2": {},
        "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
        "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
        "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    }

    def __post_init__(self):
        self.check_divides("n_embd", "n_head")

    @property
    def n_layers(self):
        """The number of blocks."""
        return self.n_layer


class Attention(nn.Module):
    """Causal attention. With a memory, keys and values of earlier calls take part."""

    def __init__(self, config):
        super().__init__()
        d, self.head_dim = config.n_embd, config.n_embd // config.n_head
        self.q, self.k, self.v, self.c_proj = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, memory=None):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        if memory is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v, seen = memory.extend(k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    """Four times as wide inside, with GELU by its tanh formula."""

    def __init__(self, config):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(config.n_embd, 4 * config.n_embd), nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and a feed-forward half, each on a normalised copy of the stream x: (b, t, n_embd)."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, memory=None):
        x = x + self.drop(self.attn(self.ln_1(x), memory))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT2(Decoder):
    """Tokens (b, t) of integers to logits (b, t, vocab_size) of the next token. `generate` continues a text."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(config.vocab_size, config.n_embd), nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(p, std=config.initializer_range / deep)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, memory: Memory | None = None):
        self.check_length(tokens, memory, self.config.n_positions)
        positions = torch.arange(tokens.shape[1]) if memory is None else memory.positions
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for i, block in enumerate(self.h):
            x = block(x, None if memory is None else memory[i])
        return self.lm_head(self.ln_f(x))

    def convert_hf(self, state):
        """Weights of the Hugging Face layout under the names here: query, key and value apart, matrices (out, in) instead of (in, out)."""
        out = {}
        for name, w in state.items():
            name = name.removeprefix("transformer.")
            if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":  # masks; the head is the table
                continue
            if name.startswith("h.") and w.dim() == 2:
                w = w.t()
            if ".c_attn." in name:
                out |= {name.replace("c_attn", n): part for n, part in zip("qkv", w.chunk(3, dim=0), strict=True)}
            else:
                out[name] = w
        return out | {"lm_head.weight": out["wte.weight"]}

    def tensor_plan(self, sequence_parallel=False):
        """Which module is cut how along "tp": attention by heads, the feed-forward half by its inner features, the table by vocabulary."""
        return transformer_plan(
            embeddings=("wte",),
            norms=("h.*.ln_1", "h.*.ln_2", "ln_f"),
            halves=("h.*.attn", "h.*.mlp"),
            columns=("h.*.attn.[qkv]", "h.*.mlp.c_fc"),
            rows=("h.*.attn.c_proj", "h.*.mlp.c_proj"),
            heads=("lm_head",),
            sequence_parallel=sequence_parallel,
        )
