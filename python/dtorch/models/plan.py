"""Laying a model out on a mesh by the names of its dimensions: "dp", "pp", "tp", "cp", "ep", any of them, of any size.

    dp   the batch is cut; with ZeRO also optimizer state (1), gradients (2) or parameters (3)
    pp   the blocks are cut into stages; the caller loops over micro-batches
    tp   weights are cut: attention by heads, feed-forward halves by inner features, tables by vocabulary
    cp   the positions of a sequence are cut
    ep   the experts of a mixture are cut, and the batch; without a mixture it is further data parallelism

A model says how it is cut along "tp" by its method ``tensor_plan``, along "ep" and "cp", where that takes more than cutting the inputs, by ``expert_plan`` and
``context_plan``; everything else is the same for all models.
"""

from __future__ import annotations

from dtorch import Replicate, Shard, distribute_tensor, nn
from dtorch.distributed import fsdp
from dtorch.distributed._meshes import home
from dtorch.distributed.tensor import distribute_parameter
from dtorch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    _lay,
    _parameter,
    parallelize_module,
)  # fmt: skip

__all__ = ["Channels", "distribute_batch", "next_token_loss", "parallelize", "shard_optimizer", "transformer_plan"]


def transformer_plan(*, embeddings, norms, halves, columns, rows, heads, sequence_parallel=False):
    """The usual plan of a transformer along "tp", from the names of its modules.

    Args:
        embeddings: tables that are cut by vocabulary; their outputs are summed over the devices.
        norms: norms on the stream between the halves of blocks.
        halves: the modules between a norm and the stream, which hold `columns` and `rows`.
        columns, rows: linears from the stream to inner features and back: cut by output and by input features.
        heads: linears to logits, cut by output features; the loss works on logits that stay cut.
        sequence_parallel: keep the stream cut along its positions between the halves, so that norms and residuals are not repeated.
    """
    stream = Shard(1) if sequence_parallel else Replicate()
    plan = {name: RowwiseParallel(input_layouts=Replicate(), output_layouts=stream) for name in embeddings}
    plan |= {name: ColwiseParallel() for name in (*columns, *heads)}
    plan |= {name: RowwiseParallel(output_layouts=stream) for name in rows}
    if sequence_parallel:
        plan |= {name: SequenceParallel() for name in norms}
        # Gathered once for all linears of a half, not once for each: then their gradients are also summed before they are scattered.
        plan |= {name: PrepareModuleInput(desired_input_layouts=Replicate()) for name in halves}
    return plan


class Channels(ParallelStyle):
    """Cut a convolution by its output channels (Shard(0)) or input channels (Shard(1)), a batch norm by its channels (Shard(0)).

    `output`: how the output is laid out, or None for what comes out; a convolution cut by input channels leaves a sum that is still to be made.
    """

    def __init__(self, weight, output=None):
        self.weight, self.output = weight, output

    def _apply(self, module, device_mesh):
        _parameter(module, "weight", device_mesh, self.weight)
        for name in ("bias", "running_mean", "running_var"):
            _parameter(module, name, device_mesh, self.weight if self.weight == Shard(0) else Replicate())
        if self.output is not None:
            module.register_forward_hook(lambda m, inputs, out: _lay(out, device_mesh, self.output))


def _size(mesh, name):
    return mesh[name].size() if mesh.mesh_dim_names and name in mesh.mesh_dim_names else 1


def parallelize(model, mesh, *, sequence_parallel=False, zero=0, split=None):
    """Lay `model` out on `mesh` by the names of the mesh's dimensions; changes it in place and returns it.

    Args:
        model: a model of this package, or any module; "tp" needs its ``tensor_plan(sequence_parallel)``, a plan for ``parallelize_module``.
        mesh: a mesh with names among "dp", "pp", "tp", "cp", "ep"; those it lacks, or has with size 1, change nothing.
        sequence_parallel: cut the stream between the halves of blocks along "tp" by positions.
        zero: 3 cuts the parameters along "dp" as well. 1 and 2 are about the optimizer: call `shard_optimizer` once it exists.
        split: how "pp" cuts the model, as for ``pipeline``; by cost if left out.

    Make the optimizer after it: the parameters are new objects.
    """
    known = {"dp", "pp", "tp", "cp", "ep"}
    if not mesh.mesh_dim_names or not known.issuperset(mesh.mesh_dim_names):
        raise ValueError(f"parallelize(): the mesh's dimensions must be named, by names among {sorted(known)}, got {mesh}")
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"parallelize(): zero must be 0, 1, 2 or 3, got {zero!r}")
    if _size(mesh, "tp") > 1 and not hasattr(model, "tensor_plan"):
        raise ValueError(
            f"parallelize(): 'tp' has size {_size(mesh, 'tp')}, but {type(model).__name__} has no tensor_plan() that says how it is cut"
        )
    if _size(mesh, "pp") > 1:
        from dtorch.distributed.pipelining import pipeline

        pipeline(model, mesh["pp"], **({} if split is None else {"split": split}))
    for name, plan, args in (("tp", "tensor_plan", (sequence_parallel,)), ("cp", "context_plan", ()), ("ep", "expert_plan", ())):
        if _size(mesh, name) > 1 and hasattr(model, plan):
            parallelize_module(model, mesh[name], getattr(model, plan)(*args))
    if zero == 3 and _size(mesh, "dp") > 1:
        for block in _blocks(model):  # each is gathered for use and dropped afterwards
            fsdp.fully_shard(block, mesh=mesh["dp"])
        fsdp.fully_shard(model, mesh=mesh["dp"])
    _replicate_rest(model, mesh)
    return model


def shard_optimizer(optimizer, mesh, zero):
    """ZeRO 1 and 2: cut the optimizer's state (2: gradients as well) along "dp". 0 and 3, or no "dp": nothing to do. Returns the optimizer."""
    if zero in (1, 2) and _size(mesh, "dp") > 1:
        fsdp.shard_optimizer_state(optimizer, mesh["dp"], gradients=zero == 2)
    return optimizer


def distribute_batch(mesh, *tensors, sequence_dim=1):
    """Each tensor on `mesh`: its first dimension cut along "dp" and "ep", dimension `sequence_dim` (None: none) along "cp". One tensor, or a tuple."""
    out = []
    for t in tensors:
        placements = {name: Shard(0) for name in ("dp", "ep") if name in mesh.mesh_dim_names}
        if sequence_dim is not None and sequence_dim < t.dim() and "cp" in mesh.mesh_dim_names:
            placements["cp"] = Shard(sequence_dim)
        out.append(distribute_tensor(t, mesh, [placements.get(name, Replicate()) for name in mesh.mesh_dim_names]))
    return out[0] if len(out) == 1 else tuple(out)


def next_token_loss(logits, targets, **kwargs):
    """Mean cross-entropy of logits (b, t, vocabulary) against targets (b, t); keyword arguments as for ``cross_entropy``."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), **kwargs)


def _blocks(module):
    """The children of the outermost lists of modules that have parameters: a model's blocks."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)


def _replicate_rest(model, mesh):
    """What no plan touched is replicated on the mesh."""
    rest = {}
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and p.device_mesh.ndim == 0:
                if id(p) not in rest:
                    distribute_parameter(module, name, home(p, mesh), None)
                    rest[id(p)] = (p, module._parameters[name])  # p as well: an id is used again once its object is gone
                module.register_parameter(name, rest[id(p)][1])
        for name, b in list(module._buffers.items()):
            if b is not None and b.device_mesh.ndim == 0:
                module._buffers[name] = distribute_tensor(b.detach(), mesh, None)
