"""Models as a user writes them for one device, and plans that lay them out on a mesh.

    model = models.Llama(models.LlamaConfig.preset("tiny"))
    mesh = dtorch.init_device_mesh("cpu", (2, 1, 2, 2, 1), mesh_dim_names=("dp", "pp", "tp", "cp", "ep"))
    models.parallelize(model, mesh, zero=3)
    tokens, targets = models.distribute_batch(mesh, tokens, targets)
    loss = models.next_token_loss(model(tokens), targets)

No forward function here knows of a mesh: the plans (`dtorch.models.plan`) place parameters and inputs, and the rest follows.
"""

from dtorch.models.gguf import load_gguf
from dtorch.models.gpt2 import GPT2, GPT2Config
from dtorch.models.hf import load_hf
from dtorch.models.llama import Llama, LlamaConfig
from dtorch.models.moe_llama import MoELlama, MoELlamaConfig
from dtorch.models.plan import distribute_batch, next_token_loss, parallelize, shard_optimizer
from dtorch.models.resnet import ResNet, ResNetConfig
from dtorch.models.vit import ViT, ViTConfig

__all__ = [
    "GPT2", "GPT2Config", "Llama", "LlamaConfig", "MoELlama", "MoELlamaConfig", "ResNet", "ResNetConfig", "ViT", "ViTConfig",
    "distribute_batch", "load_gguf", "load_hf", "next_token_loss", "parallelize", "shard_optimizer",
]  # fmt: skip
