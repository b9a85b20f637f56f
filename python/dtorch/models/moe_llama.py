"""Llama with a mixture of experts in place of each feed-forward half: a router sends each token to a few of many small SwiGLUs.

Sources: arXiv 2401.04088 (Mixtral), 2401.06066 (shared experts), 2101.03961 (load balancing).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import dtorch as torch
from dtorch import nn
from dtorch.models.llama import Llama, LlamaConfig

__all__ = ["MoELlama", "MoELlamaConfig"]


@dataclass(frozen=True)
class MoELlamaConfig(LlamaConfig):
    """Sizes of a Llama with experts; the fields are those of a Mixtral's ``config.json``. `n_shared_experts`: experts that every token goes to."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 0
    capacity_factor: float | None = None
    router_aux_loss_coef: float = 0.01

    PRESETS = {
        "tiny": {**LlamaConfig.PRESETS["tiny"], "intermediate_size": 64},
        "small": {**LlamaConfig.PRESETS["small"], "intermediate_size": 344},
        "8x7b": {**LlamaConfig.PRESETS["8b"], "vocab_size": 32000, "max_position_embeddings": 32768, "rope_theta": 1e6},
    }


WEIGHTS = {"w1": "gate", "w2": "down", "w3": "up"}  # of an expert: Mixtral's names, nn.MoE's


def experts(config):
    """The mixture of one block."""
    return nn.MoE(
        config.hidden_size,
        config.intermediate_size,
        config.num_local_experts,
        top_k=config.num_experts_per_tok,
        capacity_factor=config.capacity_factor,
        n_shared=config.n_shared_experts,
        activation="swiglu",
    )


class MoELlama(Llama):
    """As Llama; after a forward pass `aux_loss()` is what to add to the loss so that experts are used evenly."""

    mlp = staticmethod(experts)

    def aux_loss(self):
        """The mean over blocks of their load-balancing losses, times `router_aux_loss_coef`: a scalar."""
        losses = [layer.mlp.aux_loss for layer in self.layers]
        return sum(losses[1:], losses[0]) * (self.config.router_aux_loss_coef / len(losses))

    def feed_forward_halves(self):
        return ()

    def feed_forward_columns(self):
        return ()

    def feed_forward_rows(self):
        return ()

    def tensor_plan(self, sequence_parallel=False):
        """As Llama's; every expert is cut by its inner features."""
        from dtorch.distributed.tensor.parallel import ExpertTensorParallel

        return {**super().tensor_plan(sequence_parallel), "layers.*.mlp": ExpertTensorParallel()}

    def expert_plan(self):
        """Which module is cut how along "ep": the experts of each block."""
        from dtorch.distributed.tensor.parallel import ExpertParallel

        return {"layers.*.mlp": ExpertParallel()}

    def convert_hf(self, state):
        """Weights of a Mixtral in the Hugging Face layout under the names here: experts of a block in one tensor, matrices (in, out)."""
        out, stacks = {}, defaultdict(dict)
        for name, w in super().convert_hf(state).items():
            name = name.replace("block_sparse_moe.gate.", "mlp.router.")
            found = re.fullmatch(r"(layers\.\d+)\.block_sparse_moe\.experts\.(\d+)\.(w[123])\.weight", name)
            if found is None:
                out[name] = w
            else:
                stacks[f"{found[1]}.mlp.experts.{WEIGHTS[found[3]]}"][int(found[2])] = w.t()
        return out | {name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in stacks.items()}
