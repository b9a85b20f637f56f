"""Llama: a decoder with RMSNorm before each half, rotary positions, grouped-query attention and SwiGLU.

Names of modules and fields are those of the Hugging Face layout (without its leading ``model.``), so that its weights load as they are.
Sources: arXiv 2302.13971 (Llama), 2104.09864 (rotary positions), 2305.13245 (grouped queries), 2002.05202 (SwiGLU).

    b batch, t positions of this call, h query heads, g key heads, d head size
"""

from __future__ import annotations

from dataclasses import dataclass

import dtorch as torch
from dtorch import nn
from dtorch.models.config import Config
from dtorch.models.generation import Decoder, Memory
from dtorch.models.plan import transformer_plan

F = nn.functional

__all__ = ["Llama", "LlamaConfig"]


@dataclass(frozen=True)
class LlamaConfig(Config):
    """Sizes of a Llama; the fields are those of a ``config.json``."""

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int = 1376
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02

    PRESETS = {
        "tiny": {
            "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "max_position_embeddings": 256,
        },
        "small": {
            "vocab_size": 256, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8,
            "num_key_value_heads": 4, "max_position_embeddings": 1024,
        },
        "135m": {
            "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "tie_word_embeddings": True,
        },
        "1b": {
            "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": True,
        },
        "8b": {
            "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0,
        },
    }  # fmt: skip

    def __post_init__(self):
        self.check_divides("hidden_size", "num_attention_heads")
        self.check_divides("num_attention_heads", "num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError(f"LlamaConfig: rotary positions turn pairs of numbers: the head size must be even, got {self.head_dim}")

    @property
    def head_dim(self):
        """The numbers of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def n_layers(self):
        """The number of blocks."""
        return self.num_hidden_layers


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the angles position * theta^(-2i/d), i = 0 … d/2 - 1, each twice: the halves of a head turn together."""

    def __init__(self, dim, length, theta):
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), theta ** (torch.arange(0, dim, 2).float() / -dim))
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions):
        """positions: (t,) integers, or an int n for 0 … n - 1. Returns (cos, sin), each (t, d)."""
        if isinstance(positions, int):
            return self.cos[:positions], self.sin[:positions]
        return self.cos[positions], self.sin[positions]


def rotate(x, cos, sin):
    """x: (b, h, t, d), with each pair (x[i], x[i + d/2]) turned by the angle of its position; cos, sin: (t, d)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    """Causal attention with fewer key heads than query heads. With a memory, keys and values of earlier calls take part."""

    def __init__(self, config):
        super().__init__()
        c, self.head_dim = config, config.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x, cos, sin, memory=None):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head_dim).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if memory is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v, seen = memory.extend(k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a feed-forward half, each on a normalised copy of the stream x: (b, t, hidden_size)."""

    def __init__(self, config, mlp=MLP):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = mlp(config)

    def forward(self, x, cos, sin, memory=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, memory)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Decoder):
    """Tokens (b, t) of integers to logits (b, t, vocab_size) of the next token. `generate` continues a text."""

    mlp = MLP  # what a block has between its norm and the stream

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.layers = nn.ModuleList([Block(config, self.mlp) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=config.initializer_range)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens, memory: Memory | None = None):
        self.check_length(tokens, memory, self.config.max_position_embeddings)
        cos, sin = self.rotary_emb(tokens.shape[1] if memory is None else memory.positions)
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if memory is None else memory[i])
        return self.lm_head(self.norm(x))

    def convert_hf(self, state):
        """Weights of the Hugging Face layout under the names here."""
        out = {name.removeprefix("model."): w for name, w in state.items() if not name.endswith("rotary_emb.inv_freq")}
        if self.config.tie_word_embeddings:
            out["lm_head.weight"] = out["embed_tokens.weight"]
        return out

    def tensor_plan(self, sequence_parallel=False):
        """Which module is cut how along "tp": attention by heads, the feed-forward half by its inner features, tables by vocabulary."""
        return transformer_plan(
            embeddings=("embed_tokens",),
            norms=("layers.*.input_layernorm", "layers.*.post_attention_layernorm", "norm"),
            halves=("layers.*.self_attn", *self.feed_forward_halves()),
            columns=("layers.*.self_attn.[qkv]_proj", *self.feed_forward_columns()),
            rows=("layers.*.self_attn.o_proj", *self.feed_forward_rows()),
            heads=("lm_head",),
            sequence_parallel=sequence_parallel,
        )

    def feed_forward_halves(self):
        """Names of the feed-forward halves that are cut by inner features."""
        return ("layers.*.mlp",)

    def feed_forward_columns(self):
        """Names of the linears between stream and inner features."""
        return ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj")

    def feed_forward_rows(self):
        """Names of the linears between inner features and stream."""
        return ("layers.*.mlp.down_proj",)
