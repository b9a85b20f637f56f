"""Fully sharded data parallelism (ZeRO): each device keeps a slice of every parameter, of its gradient and of the optimizer's state.

    for block in model.blocks:                                   # a unit is gathered and dropped together
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)                                # what is left: embeddings, the last norm
    optimizer = torch.optim.AdamW(model.parameters())            # after it: the parameters are new objects
    loss = model(distribute_tensor(x, mesh, [Shard(0)]))         # the batch is cut along the same dimension

While the forward of a unit runs, its parameters are the gathered ones: differentiable redistributions of the slices. Autograd saves how to
gather them, not what was gathered, so that a gathered parameter lives from its first use to the last in forward and once more in backward;
its gradient is reduced into slices where it is made. :func:`shard_optimizer_state` keeps parameters whole and cuts the rest.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import dtorch
from dtorch import _C, distribute_tensor
from dtorch._C import DeviceMesh, Placement, Replicate, Shard
from dtorch.distributed._meshes import Replaced, home
from dtorch.distributed._zero import inside, positions, shard_optimizer_state
from dtorch.utils._pytree import tree_map

__all__ = ["CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard", "shard_optimizer_state"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Types of a unit's work; the parameters themselves, their gradients and the optimizer's state keep their own type.

    Attributes:
        param_dtype: parameters are cast to it before they are gathered, and forward and backward compute with it. None: as they are.
        reduce_dtype: gradients are cast to it before they are reduced. None: as they come, that is `param_dtype`.
        output_dtype: what forward returns is cast to it. None: as it comes.
        cast_forward_inputs: cast forward's floating-point inputs to `param_dtype`.
    """

    param_dtype: object = None
    reduce_dtype: object = None
    output_dtype: object = None
    cast_forward_inputs: bool = True


@dataclass(frozen=True)
class OffloadPolicy:
    """No offloading."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards in host memory: what every CPU device has. Accepted where the mesh is of CPU devices."""

    pin_memory: bool = True


# ---- one parameter


def _whole_root(p, mesh):
    """(the mesh p shall lie on, the positions in it of mesh's dimensions)"""
    part = home(p, mesh)
    return part.root, positions(part, part.root)


def _cut(p, mesh, cut: Placement):
    """The parameter with `cut` along mesh's last dimension, replicated along its others; elsewhere as it was. None: it is cut there already."""
    root, dims = _whole_root(p, mesh)
    placements = list(p.placements) if p.device_mesh == root else [Replicate()] * root.ndim
    if isinstance(placements[dims[-1]], Shard):
        return None
    placements[dims[-1]] = inside(cut, p, placements, root, dims[-1]) if isinstance(cut, Shard) and p.ndim else Replicate()
    value = p.detach()
    value = distribute_tensor(value, root, placements) if value.device_mesh.ndim == 0 else value.redistribute(root, placements)
    new = type(p)(value, p.requires_grad)
    new.__dict__.update(p.__dict__)
    new._fully_sharded_along = dims[-1]
    return new


class _Entry:
    """A managed parameter of a unit: its slice, where it is used, the gradient that waits for others to be reduced with."""

    def __init__(self, param):
        self.param = param
        self.along = param._fully_sharded_along  # the mesh dimension; here, as copies of parameters have no attributes
        self.mesh = param.device_mesh
        self.uses = []  # (module, name)
        self.pending = None
        self.whole = None  # what is gathered at present, and its version

    def target(self):
        placements = list(self.param.placements)
        placements[self.along] = Replicate()
        return placements


class _Gather(dtorch.autograd.Function):
    """The gathered parameter; backward casts, collects while gradients are not to be reduced yet, and reduces."""

    @staticmethod
    def forward(ctx, param, entry, unit):
        ctx.entry, ctx.unit = entry, unit
        return unit.gathered(param.detach(), entry)

    @staticmethod
    def backward(ctx, grad):
        entry, unit = ctx.entry, ctx.unit
        reduce_dtype = unit.policy.reduce_dtype
        if reduce_dtype is not None and grad.dtype != reduce_dtype:
            grad = grad.to(reduce_dtype)
        if entry.pending is not None:
            grad, entry.pending = entry.pending + grad, None
        if not unit.sync:
            entry.pending = grad
            known = entry.param.__dict__.setdefault("_collected_in", [])  # so that zero_grad finds it
            if entry not in known:
                known.append(entry)
            return None, None, None
        return grad.redistribute(placements=list(entry.param.placements)).to(entry.param.dtype), None, None


# ---- units

_running = []  # units whose forward runs, outermost first


class _Unit:
    """The parameters that one call of fully_shard manages: gathered when forward begins, slices again when it ends."""

    def __init__(self, module, mesh, reshard, policy):
        self.module, self.mesh, self.policy = module, mesh, policy
        self.reshard = reshard
        self.entries = []
        self.depth = 0
        self.sync, self.collects = True, False

    def add(self, param, module, name):
        for entry in self.entries:
            if entry.param is param:
                break
        else:
            entry = _Entry(param)
            self.entries.append(entry)
        entry.uses.append((module, name))

    def keeps(self):
        """Does what is gathered stay until the backward pass? By default of the outermost unit alone: its backward comes first."""
        return not self.reshard if self.reshard is not None else not _running or _running[0] is self

    def gathered(self, value, entry):
        dtype = self.policy.param_dtype
        was = _C._recipe_set(not self.keeps())
        try:
            if dtype is not None and value.dtype != dtype and value.is_floating_point():
                value = value.to(dtype)
            return value.redistribute(placements=entry.target())
        finally:
            _C._recipe_set(was)

    def _through_function(self, param):
        policy = self.policy
        casts = policy.reduce_dtype is not None and policy.reduce_dtype != (policy.param_dtype or param.dtype)
        return param.requires_grad and (casts or self.collects)

    def unshard(self):
        self.depth += 1
        if self.depth > 1:
            return
        for entry in self.entries:
            # a parameter that was replaced since (load_state_dict(assign=True)) is the new one
            module, name = entry.uses[0]
            entry.param = module._parameters[name]
            if entry.param.device_mesh != entry.mesh:
                continue  # somebody put a tensor of their own there (functional_call): it lies as they want it
            value = _Gather.apply(entry.param, entry, self) if self._through_function(entry.param) else self.gathered(entry.param, entry)
            entry.whole = value, value._version
            for module, name in entry.uses:
                module._parameters[name] = value

    def reshard_now(self):
        if self.depth != 1:
            self.depth = max(self.depth - 1, 0)
            return
        for entry in self.entries:  # may be called once more for what an interrupt left
            if entry.whole is None:
                continue
            value, version = entry.whole
            if value._version != version:  # forward wrote into its parameter, as Embedding(max_norm=…) does
                with dtorch.no_grad():
                    entry.param.copy_(value.detach().redistribute(placements=list(entry.param.placements)))
            for module, name in entry.uses:
                module._parameters[name] = entry.param
            entry.whole = None
        self.depth = 0

    # hooks

    def before(self, module, args, kwargs):
        _running.append(self)
        self.unshard()
        dtype = self.policy.param_dtype
        if dtype is None or not self.policy.cast_forward_inputs:
            return None
        return tree_map(lambda x: _cast(x, dtype), args), tree_map(lambda x: _cast(x, dtype), kwargs)

    def after(self, module, args, out):
        if self in _running:
            while _running.pop() is not self:
                pass
        self.reshard_now()
        dtype = self.policy.output_dtype
        return None if dtype is None else tree_map(lambda x: _cast(x, dtype), out)


def _cast(x, dtype):
    return x.to(dtype) if isinstance(x, dtorch.Tensor) and x.is_floating_point() and x.dtype != dtype else x


class FSDPModule:
    """What :func:`fully_shard` adds to a module's class."""

    def unshard(self, async_op=False):
        """Gather the parameters of this module now, until :meth:`reshard`. Nothing waits, whatever `async_op` says."""
        self._fully_sharded.unshard()

    def reshard(self):
        """Go back to the slices after :meth:`unshard`."""
        self._fully_sharded.reshard_now()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """With False, backward passes keep the gradients unreduced, whole on every device; the first one with True again reduces the sum."""
        for unit in _units(self, recurse):
            unit.sync = bool(requires_gradient_sync)
            unit.collects |= not unit.sync

    @contextlib.contextmanager
    def no_sync(self):
        """A block in which gradients are collected but not reduced: all micro-batches but the last."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """Change what `reshard_after_forward` was."""
        for unit in _units(self, recurse):
            unit.reshard = bool(reshard_after_forward)


def _units(module, recurse):
    modules = module.modules() if recurse else [module]
    return [m._fully_sharded for m in modules if isinstance(m, FSDPModule)]


# ---- the call


def _check(module, mesh, mp_policy, offload_policy):
    if not isinstance(module, dtorch.nn.Module):
        raise TypeError(f"fully_shard(): module must be a Module, not {type(module).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fully_shard(): mesh must be a DeviceMesh, not {type(mesh).__name__}: mesh=init_device_mesh(...)")
    if mesh.ndim not in (1, 2):
        raise ValueError(
            f"fully_shard(): mesh must have one dimension (sharded) or two (replicated, sharded), got {mesh}: take a part by name, mesh['dp']"
        )
    if mp_policy is not None and not isinstance(mp_policy, MixedPrecisionPolicy):
        raise TypeError(f"fully_shard(): mp_policy must be a MixedPrecisionPolicy, not {type(mp_policy).__name__}")
    if offload_policy is not None and not isinstance(offload_policy, OffloadPolicy):
        raise TypeError(f"fully_shard(): offload_policy must be an OffloadPolicy, not {type(offload_policy).__name__}")
    if isinstance(offload_policy, CPUOffloadPolicy) and mesh.device_type != "cpu":
        raise NotImplementedError(f"fully_shard(): CPUOffloadPolicy on {mesh.device_type} devices is not supported")


def _owned(module):
    """The modules below that no unit has yet."""
    found, stack = [], [module]
    while stack:
        m = stack.pop()
        found.append(m)
        stack += [c for c in reversed(list(m.children())) if not isinstance(c, FSDPModule)]
    return dict.fromkeys(found)


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
    """Cut the parameters of a module and of its children along a mesh; gather them while the module's forward and backward run (ZeRO-3).

    Children that were given to ``fully_shard`` before are units of their own and keep theirs. Buffers are replicated.

    Args:
        module: changed in place and returned; its class gains the methods of :class:`FSDPModule`. Parameters become new objects, but shared
            ones stay shared, also between units.
        mesh: a mesh of one dimension, or a part of one such as ``mesh["dp"]``: parameters are cut along it, and what ``mesh["tp"]`` cut
            stays cut. Two dimensions, ``mesh["replicate", "shard"]``: cut along the second and replicated along the first. The mesh of the
            enclosing ``with mesh:`` if left out.
        reshard_after_forward: True: what was gathered is dropped after forward and gathered again for backward. False: it is kept. None:
            kept by the outermost unit only. A number of devices is taken as True unless it is 1: slices go back to where they were.
        shard_placement_fn: ``shard_placement_fn(parameter)`` → a Shard, or None for Shard(0). Sizes need not divide; parameters without
            dimensions are replicated.
        mp_policy: a :class:`MixedPrecisionPolicy`.
        offload_policy: an :class:`OffloadPolicy`.
        ignored_params: parameters to leave alone.
    """
    if mesh is None:
        mesh = _C._default_mesh()
    _check(module, mesh, mp_policy, offload_policy)
    if isinstance(module, FSDPModule):
        raise ValueError("fully_shard(): this module has been sharded already")
    reshard = reshard_after_forward
    if reshard is not None and not isinstance(reshard, int):
        raise TypeError(f"fully_shard(): reshard_after_forward must be a bool, an int or None, not {type(reshard).__name__}")
    if reshard is not None and reshard is not True:
        reshard = reshard > 1
    unit = _Unit(module, mesh, reshard, mp_policy or MixedPrecisionPolicy())
    ignored = {id(p) for p in ignored_params or ()}
    for sub in _owned(module):
        for name, p in list(sub._parameters.items()):
            if p is not None and id(p) not in ignored:
                _manage(unit, sub, name, p, shard_placement_fn)
        for name, b in list(sub._buffers.items()):
            if b is not None and b.device_mesh.ndim == 0:
                sub._buffers[name] = distribute_tensor(b.detach(), mesh, None)
    kind = type(module)
    module.__class__ = type("FSDP" + kind.__name__, (FSDPModule, kind), {"__module__": kind.__module__})
    object.__setattr__(module, "_fully_sharded", unit)
    module.register_forward_pre_hook(unit.before, with_kwargs=True)
    module.register_forward_hook(unit.after, always_call=True)
    return module


_replaced = Replaced()


def _placement_for(p, name, shard_placement_fn):
    cut = None if shard_placement_fn is None else shard_placement_fn(p)
    if cut is None:
        return Shard(0)
    if not isinstance(cut, Shard):
        raise TypeError(
            f"fully_shard(): shard_placement_fn must return a Shard or None, got {cut!r} for {name!r} of shape {tuple(p.shape)}"
        )
    if p.ndim and not -p.ndim <= cut.dim < p.ndim:
        raise ValueError(
            f"fully_shard(): shard_placement_fn gave {cut!r} for {name!r} of shape {tuple(p.shape)}: legal are {-p.ndim} to {p.ndim - 1}"
        )
    return cut


def _manage(unit, sub, name, p, shard_placement_fn):
    if getattr(p, "_fully_sharded_along", None) is None:
        before = _replaced[p]  # shared with a module that came before
        new = before[0] if before else None
        if new is None:
            new = _cut(p, unit.mesh, _placement_for(p, name, shard_placement_fn))
            if new is None:
                return
            before.append(new)
        sub.register_parameter(name, new)
        p = new
    unit.add(p, sub, name)


def __getattr__(name):
    from dtorch import _planned

    raise _planned.explain(__name__, name)
