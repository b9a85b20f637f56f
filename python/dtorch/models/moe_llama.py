"""Llama with a mixture of experts in place of each feed-forward half: a router sends each token to a few of many small SwiGLUs.

Sources: arXiv 2401.04088 (Mixtral), 2401.06066 (shared experts), 2101.03961 (load balancing).
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def expert_plan(self):
        """Which module is cut how along "ep": the experts of each block."""
        from dtorch.distributed.tensor.parallel import ExpertParallel

        return {"layers.*.mlp": ExpertParallel()}
