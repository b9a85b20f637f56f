"""Distributed tensors, under PyTorch's names. A distributed tensor is a Tensor that lies on a mesh: ``DTensor`` is ``Tensor``."""

from __future__ import annotations

import dtorch
from dtorch import distribute_tensor
from dtorch._C import DeviceMesh, Partial, Placement, Replicate, Shard, Tensor, init_device_mesh
from dtorch.distributed._local import local_map
from dtorch.distributed._meshes import Replaced

__all__ = [
    "DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
    "init_device_mesh", "local_map", "ones", "rand", "randn", "zeros",
]  # fmt: skip

DTensor = Tensor


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Put the parameters and buffers of a module on a mesh.

    Args:
        module: the module; changed in place and returned.
        device_mesh: where to; the mesh of the enclosing ``with mesh:`` if left out.
        partition_fn: ``partition_fn(name, submodule, device_mesh)`` distributes parameters; what it leaves plain is replicated.
        input_fn: ``input_fn(module, inputs, device_mesh)`` → the inputs that forward gets.
        output_fn: ``output_fn(module, outputs, device_mesh)`` → what the module returns.
    """
    if device_mesh is None:
        device_mesh = dtorch._C._default_mesh()
        if device_mesh is None:
            raise ValueError("distribute_module(): device_mesh is needed outside of a 'with mesh:' block")
    for name, sub in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, sub, device_mesh)
        replicate_rest(sub, device_mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, inputs, outputs: output_fn(m, outputs, device_mesh))
    return module


def distribute_parameter(module, name, device_mesh, placements):
    """Replace the parameter or buffer `name` of a module (not of its children) by itself on a mesh; a parameter stays the same kind, and
    one that modules share stays shared where they place it alike."""
    old = getattr(module, name)
    new = distribute_tensor(old.detach(), device_mesh, placements)
    if name not in module._parameters:
        module._buffers[name] = new
        return
    before = _replaced[old]
    same = [
        p for p in before if p.device_mesh == new.device_mesh and p.placements == new.placements and p.requires_grad == old.requires_grad
    ]
    if not same:
        same = [type(old)(new, old.requires_grad)]
        before.append(same[0])
    module.register_parameter(name, same[0])


_replaced = Replaced()


def replicate_rest(module, device_mesh):
    """What of a module's own parameters and buffers is plain becomes replicated."""
    for table in (module._parameters, module._buffers):
        for name, value in list(table.items()):
            if value is not None and value.device_mesh.ndim == 0:
                distribute_parameter(module, name, device_mesh, None)


def _factory(name):
    def make(*size, device_mesh=None, placements=None, **kwargs):
        return getattr(dtorch, name)(*size, device_mesh=device_mesh, placements=placements, **kwargs)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"dtorch.{name}(…) on a mesh: device_mesh and placements as for distribute_tensor."
    return make


empty, full, ones, rand, randn, zeros = (_factory(n) for n in ("empty", "full", "ones", "rand", "randn", "zeros"))


def __getattr__(name):
    if name in ("debug", "experimental", "parallel", "placement_types"):
        from importlib import import_module

        return import_module("dtorch.distributed.tensor." + name)
    raise AttributeError(f"module 'dtorch.distributed.tensor' has no attribute {name!r}")
