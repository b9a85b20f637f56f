"""Expert parallelism: plans for ``nn.MoE``.

    parallelize_module(model, mesh["ep"], {"layers.*.mlp": ExpertParallel()})
    parallelize_module(model, mesh["tp"], {"layers.*.mlp": ExpertTensorParallel()})     # as well, if wanted

Outside of such layers "ep" is further data parallelism: cut the batch along "dp" and "ep". Inside, tokens travel to their experts and back.
"""

from __future__ import annotations

from dtorch import nn
from dtorch._C import Shard
from dtorch.distributed.tensor import parallel

__all__ = ["ExpertParallel", "ExpertTensorParallel"]


def _mixture(module, style):
    if not isinstance(module, nn.MoE):
        raise NotImplementedError(f"{style}: only nn.MoE is supported, not {type(module).__name__}")
    return module


class ExpertParallel(parallel.ParallelStyle):
    """Cut the experts of an ``nn.MoE`` along the mesh dimension: each device keeps some of them whole, and computes the tokens of all devices for them.

    Router and shared experts are replicated. The input may lie in any way; it is cut by tokens along the dimension, and the output lies as the
    input did. Any number of experts and of devices: some devices may have fewer experts, or none.
    """

    def _apply(self, module, device_mesh):
        _mixture(module, "ExpertParallel")
        for name, p in list(module.experts._parameters.items()):
            if p is not None:
                parallel._parameter(module.experts, name, device_mesh, Shard(0))
        for part in (module.router, *(module.shared.modules() if module.shared is not None else ())):
            parallel.replicate_rest(part, device_mesh)
        names = device_mesh.mesh_dim_names
        module.expert_dim = names[0] if names else 0


class ExpertTensorParallel(parallel.ParallelStyle):
    """Cut the hidden features of every expert of an ``nn.MoE`` (and of its shared experts) along the mesh dimension, as ColwiseParallel and RowwiseParallel
    cut a feed-forward network. Tokens are whole along that dimension inside the layer; the output, a sum over the devices, lies as the input did."""

    def _apply(self, module, device_mesh):
        _mixture(module, "ExpertTensorParallel")
        for name, dim in (("gate", 2), ("up", 2), ("down", 1)):
            if module.experts._parameters.get(name) is not None:
                parallel._parameter(module.experts, name, device_mesh, Shard(dim))
        for name, dim in (("gate", 0), ("up", 0), ("down", 1)):
            linear = getattr(module.shared, name, None) if module.shared is not None else None
            if linear is not None:
                parallel._parameter(linear, "weight", device_mesh, Shard(dim))
        parallel.replicate_rest(module.router, device_mesh)
