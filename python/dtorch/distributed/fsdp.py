"""Fully sharded data parallelism: each device keeps a slice of every parameter, of its gradient and of the optimizer's state.

    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())            # after it: the parameters are new objects
    loss = f(model(distribute_tensor(x, mesh, [Shard(0)])))      # the batch is cut along the same dimension

Nothing else changes: what a layer needs whole is gathered where it is used, and gradients are summed into their slices.
"""

from __future__ import annotations

from dtorch import _C, distribute_tensor
from dtorch._C import DeviceMesh, Placement, Replicate, Shard

__all__ = ["fully_shard"]


def fully_shard(
    module,
    *,
    mesh=None,
    reshard_after_forward=None,
    shard_placement_fn=None,
    mp_policy=None,
    offload_policy=None,
    ignored_params=None,
):
    """Cut the parameters of a module and of its children along the last dimension of a mesh; buffers are replicated.

    Args:
        module: changed in place and returned. Parameters that are cut along that mesh dimension already stay as they are.
        mesh: a mesh, or a part of one such as ``mesh["dp"]``: what ``mesh["tp"]`` cut stays cut. Along the other dimensions of a mesh of
            several, parameters are replicated. The mesh of the enclosing ``with mesh:`` if left out.
        reshard_after_forward: accepted; what was gathered lives as long as something reads it.
        shard_placement_fn: ``shard_placement_fn(parameter)`` → a Shard, or None for Shard(0).
        mp_policy: must be None; convert the module instead (``module.to(dtorch.bfloat16)``).
        offload_policy: must be None.
        ignored_params: parameters to leave alone.
    """
    if mesh is None:
        mesh = _C._default_mesh()
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fully_shard(): mesh must be a DeviceMesh, not {type(mesh).__name__}: mesh=init_device_mesh(...)")
    for name, policy in (("mp_policy", mp_policy), ("offload_policy", offload_policy)):
        if policy is not None:
            raise NotImplementedError(f"fully_shard(): {name} is not supported, got {policy!r}")
    ignored = {id(p) for p in ignored_params or ()}
    made = {}  # a parameter that two modules share stays shared
    for sub in module.modules():
        for name, p in list(sub._parameters.items()):
            if p is None or id(p) in ignored:
                continue
            if id(p) not in made:
                cut = (shard_placement_fn(p) if shard_placement_fn is not None else None) or Shard(0)
                made[id(p)] = (p, _cut(p, mesh, cut if p.ndim else Replicate()))
            if made[id(p)][1] is not p:
                sub.register_parameter(name, made[id(p)][1])
        for name, b in list(sub._buffers.items()):
            if b is not None and b.device_mesh.ndim == 0:
                sub._buffers[name] = distribute_tensor(b.detach(), mesh, None)
    return module


def _cut(p, mesh, cut: Placement):
    """The parameter with `cut` along mesh's last dimension; along dimensions of its own mesh that are not mesh's it keeps what it has."""
    placements = [Replicate()] * (mesh.ndim - 1) + [cut]
    if p.device_mesh == mesh.root:
        names = mesh.root.mesh_dim_names
        if names:
            old = dict(zip(names, p.placements, strict=True))
            last = mesh.mesh_dim_names[-1]
            if isinstance(old[last], Shard):
                return p
            placements, mesh = {**old, last: cut}, mesh.root
        elif isinstance(p.placements[-1], Shard):
            return p
    return type(p)(distribute_tensor(p.detach(), mesh, placements), p.requires_grad)
