"""Many devices from one program: meshes, placements, distributed tensors.

There are no process groups and no ranks: one program names devices and says where tensors lie; collectives follow from that.
"""

from __future__ import annotations

from dtorch._C import DeviceMesh, Partial, Placement, Replicate, Shard, init_device_mesh
from dtorch.distributed._context import context_parallel

__all__ = [
    "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "context_parallel", "describe", "init_device_mesh", "is_available", "is_initialized",
    "visualize_sharding",
]  # fmt: skip

_RANKS = {
    "init_process_group", "destroy_process_group", "new_group", "get_rank", "get_world_size", "barrier", "all_reduce", "all_gather",
    "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "send", "recv", "isend", "irecv", "all_to_all",
    "all_to_all_single", "gather", "scatter", "reduce", "monitored_barrier", "get_backend", "broadcast_object_list", "all_gather_object",
}  # fmt: skip


def is_available():
    """True."""
    return True


def is_initialized():
    """False: there are no process groups."""
    return False


def _refuse(name):
    def refuse(*args, **kwargs):
        raise RuntimeError(
            f"dtorch.distributed.{name}: there are no process groups and no ranks. One program drives all devices: make a mesh with "
            "init_device_mesh(...), place tensors with distribute_tensor(t, mesh, [Shard(0)]), and write the rest as for one device; "
            "collectives follow from the placements"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raises: one program drives all devices."
    return refuse


def __getattr__(name):
    if name in _RANKS:
        return _refuse(name)
    if name in ("describe", "visualize_sharding"):
        from dtorch.distributed import _show

        return getattr(_show, name)
    if name in ("checkpoint", "device_mesh", "fsdp", "pipelining", "tensor"):
        from importlib import import_module

        return import_module("dtorch.distributed." + name)
    from dtorch import _planned

    raise _planned.explain("dtorch.distributed", name)
