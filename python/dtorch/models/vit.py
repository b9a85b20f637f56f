"""ViT: an encoder over patches of an image, with a class token and learned positions.

Names follow the Hugging Face layout loosely. Source: arXiv 2010.11929.
"""

from __future__ import annotations

from dataclasses import dataclass

import dtorch as torch
from dtorch import Replicate, Shard, nn
from dtorch.distributed.tensor.parallel import PrepareModuleOutput
from dtorch.models.config import Config
from dtorch.models.plan import transformer_plan

F = nn.functional

__all__ = ["ViT", "ViTConfig"]


@dataclass(frozen=True)
class ViTConfig(Config):
    """Sizes of a ViT. Images are square, `image_size` pixels, and cut into squares of `patch_size`."""

    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    num_classes: int = 1000
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    layer_norm_eps: float = 1e-6
    dropout: float = 0.0

    PRESETS = {
        "tiny": {
            "image_size": 8, "patch_size": 2, "num_channels": 1, "num_classes": 10, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 4, "num_attention_heads": 4,
        },
        "ti16": {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3},
        "s16": {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6},
        "b16": {},
        "l16": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    }  # fmt: skip

    def __post_init__(self):
        self.check_divides("image_size", "patch_size")
        self.check_divides("hidden_size", "num_attention_heads")


class Attention(nn.Module):
    """Attention of every patch to every patch."""

    def __init__(self, config):
        super().__init__()
        d, self.head_dim = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.query, self.key, self.value, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head_dim).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    """Two linears with GELU between them."""

    def __init__(self, config):
        super().__init__()
        self.up, self.down = (
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.Linear(config.intermediate_size, config.hidden_size),
        )

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and a feed-forward half, each on a normalised copy of the stream x: (b, t, hidden_size)."""

    def __init__(self, config):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps), Attention(config)
        self.norm2, self.mlp = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps), MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Embeddings(nn.Module):
    """Images (b, channels, size, size) to the stream (b, 1 + patches, hidden_size): class token, patches, positions added."""

    def __init__(self, config):
        super().__init__()
        patches = (config.image_size // config.patch_size) ** 2
        self.patch = nn.Conv2d(config.num_channels, config.hidden_size, config.patch_size, stride=config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.position = nn.Parameter(torch.empty(1, patches + 1, config.hidden_size))

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return x + self.position


class ViT(nn.Module):
    """Images (b, channels, size, size) to logits (b, num_classes)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings, self.drop = Embeddings(config), nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_classes)
        for name, p in self.named_parameters():
            if p.dim() > 1 and "cls_token" not in name:
                nn.init.trunc_normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, images):
        c = self.config
        if images.dim() != 4 or tuple(images.shape[1:]) != (c.num_channels, c.image_size, c.image_size):
            raise ValueError(
                f"ViT: images must be (batch, {c.num_channels}, {c.image_size}, {c.image_size}), got shape {tuple(images.shape)}"
            )
        x = self.drop(self.embeddings(images))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])

    def tensor_plan(self, sequence_parallel=False):
        """Which module is cut how along "tp": attention by heads, the feed-forward half by its inner features, the head by classes."""
        return transformer_plan(
            embeddings=(),
            norms=("layers.*.norm1", "layers.*.norm2"),
            halves=("layers.*.attn", "layers.*.mlp"),
            columns=("layers.*.attn.query", "layers.*.attn.key", "layers.*.attn.value", "layers.*.mlp.up"),
            rows=("layers.*.attn.out", "layers.*.mlp.down"),
            heads=("head",),
            sequence_parallel=sequence_parallel,
        )

    def context_plan(self):
        """Along "cp" the stream is cut by patches; images are not cut."""
        return {"embeddings": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))}
