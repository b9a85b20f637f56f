"""ZeRO-1 and ZeRO-2: parameters stay whole on every device, the optimizer's state (and gradients) are slices.

For the time of a step the optimizer works on slices: each parameter that is replicated along the mesh dimension is exchanged for a local slice of
itself, its gradient is reduced into slices, and afterwards the new slices are gathered. Between steps the optimizer's groups hold the parameters
themselves, so that schedulers, hooks and state dicts see nothing of it.
"""

from __future__ import annotations

import dtorch
from dtorch import _C
from dtorch._C import DeviceMesh, Replicate, Shard
from dtorch.distributed._meshes import home
from dtorch.optim.optimizer import Optimizer

__all__ = ["shard_optimizer_state"]


def positions(mesh, root):
    """The positions of mesh's dimensions in its root."""
    names = root.mesh_dim_names
    if mesh == root or not names:
        return list(range(mesh.ndim))
    return [names.index(n) for n in mesh.mesh_dim_names]


def inside(cut, p, placements, root, at):
    """`cut` so that it goes inside of what later mesh dimensions cut of the same tensor dimension: gathering then stays within their group."""
    dim = cut.dim % p.ndim
    rows = 1
    for k in range(at + 1, root.ndim):
        if isinstance(placements[k], Shard) and placements[k].dim % p.ndim == dim:
            rows *= root.shape[k]
    return Shard(dim, split_factor=rows) if rows > 1 and p.shape[dim] % rows == 0 else Shard(dim)


class _ShardedSteps:
    """What is added to the optimizer's class."""

    def step(self, closure=None):
        """One step on slices; returns what `closure` returns, which is called once, before."""
        loss = Optimizer._loss(closure)
        exchanged = []
        try:
            with dtorch.no_grad():
                self._slice(exchanged)
            super().step()
        finally:
            with dtorch.no_grad():
                self._gather(exchanged)
        return loss

    def add_param_group(self, param_group):
        """Add a dict of ``params`` and options; options left out are the optimiser's defaults."""
        super().add_param_group(param_group)
        self._place_gradients(self.param_groups[-1])

    def _place_gradients(self, group):
        for p in group["params"] if self._sharded_gradients else ():
            p.grad_placements = self._sliced(p)

    def _sliced(self, p):
        """The placements of p's slices; None if p stays as it is: it has no dimensions, or is cut along the mesh dimension already."""
        mesh = home(p, self._sharded_mesh)
        root = mesh.root
        if p.device_mesh != root:
            raise ValueError(
                f"shard_optimizer_state(): a parameter of shape {tuple(p.shape)} does not lie on {root}: distribute_module(model, mesh)"
            )
        at = positions(mesh, root)[-1]
        if p.ndim == 0 or not isinstance(p.placements[at], Replicate):
            return None
        placements = list(p.placements)
        placements[at] = inside(Shard(0), p, placements, root, at)
        return placements

    def _placements(self, param, shape):
        """How a state lies between steps: in slices, if it is of its parameter's shape."""
        sliced = self._sliced(param) if tuple(shape) == tuple(param.shape) and param.device_mesh.ndim else None
        return super()._placements(param, shape) if sliced is None else sliced

    def _slice(self, exchanged):
        for group in self.param_groups:
            params = group["params"]
            for i, p in enumerate(params):
                placements = self._sliced(p)
                if placements is None:
                    continue
                if not self._sharded_gradients:
                    p.grad_placements = placements  # sums over devices that are left to do become a reduce-scatter
                grad = p.grad
                if not self._sharded_gradients:
                    p.grad_placements = None
                if grad is None:
                    continue
                q = type(p)(p.detach().redistribute(placements=placements), p.requires_grad)
                q.grad = grad.detach().redistribute(placements=placements)
                exchanged.append((params, i, p, q))
                params[i] = q
                if p in self.state:
                    self.state[q] = {k: _lay(v, p, placements) for k, v in self.state.pop(p).items()}

    def _gather(self, exchanged):
        for params, i, p, q in exchanged:
            params[i] = p
            p.copy_(q.detach().redistribute(placements=p.placements))
            if q in self.state:
                self.state[p] = self.state.pop(q)


def _lay(value, p, placements):
    if isinstance(value, dtorch.Tensor) and value.shape == p.shape and value.device_mesh == p.device_mesh:
        return value.redistribute(placements=placements)
    return value


def shard_optimizer_state(optimizer, mesh=None, gradients=False):
    """Let each device keep a slice of an optimizer's state, for parameters that are replicated along a mesh dimension (ZeRO-1, ZeRO-2).

    A step costs the same communication as data parallelism: gradients are reduced into slices, and the new parameters are gathered. Parameters
    that are cut along the dimension already, and those without dimensions, are stepped as they are.

    Args:
        optimizer: changed in place and returned. Every optimizer will do but those that call the closure themselves (LBFGS).
        mesh: a mesh of one dimension or a part of one, ``mesh["dp"]``; of several dimensions the last. The mesh of the enclosing ``with mesh:`` if
            left out.
        gradients: True is ZeRO-2: gradients become slices in the backward pass (``p.grad`` is then a tensor in slices), so that no device holds
            a whole one for longer than its reduction; micro-batches cost a reduction each. With False they are summed up when the step reads them.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"shard_optimizer_state(): optimizer must be an Optimizer, not {type(optimizer).__name__}")
    mesh = _C._default_mesh() if mesh is None else mesh
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"shard_optimizer_state(): mesh must be a DeviceMesh, not {type(mesh).__name__}: mesh=init_device_mesh(...)")
    kind = type(optimizer)
    if issubclass(kind, _ShardedSteps):
        raise ValueError("shard_optimizer_state(): this optimizer's state has been sharded already")
    if issubclass(kind, dtorch.optim.LBFGS):
        raise NotImplementedError("shard_optimizer_state(): LBFGS evaluates its closure within a step and is not supported")
    optimizer._sharded_mesh, optimizer._sharded_gradients = mesh, bool(gradients)
    optimizer.__class__ = type(kind.__name__, (_ShardedSteps, kind), {"__module__": kind.__module__, "step": _ShardedSteps.step})
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer._sliced(p)  # complains now rather than at the first step
        optimizer._place_gradients(group)
    return optimizer
