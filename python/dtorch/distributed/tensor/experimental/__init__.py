"""PyTorch's names for context parallelism and local_map."""

from __future__ import annotations

from dtorch import distribute_tensor
from dtorch._C import Shard
from dtorch.distributed import context_parallel as _way
from dtorch.distributed._local import local_map

__all__ = ["context_parallel", "local_map"]


class context_parallel:
    """``with context_parallel(mesh, buffers=[x, labels], buffer_seq_dims=[1, 1]):`` the buffers' sequence dimensions are sharded along `mesh`.

    Args:
        mesh: a one-dimensional mesh, or part of one by name.
        buffers: tensors; each is sharded in place for the block (views of them taken before are not).
        buffer_seq_dims: the sequence dimension of each buffer.
        no_restore_buffers: those that stay sharded after the block; others are what they were, and lie where they lay.
        mode, load_balance: as in :class:`dtorch.distributed.context_parallel`, which this block includes.

    Unlike PyTorch's, buffers keep their global shape and order: positions and shifted labels need no care.
    """

    def __init__(self, mesh, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None, mode="auto", load_balance=True):
        buffers, dims = list(buffers or []), list(buffer_seq_dims or [])
        if mesh.ndim != 1:
            raise ValueError(f"context_parallel(): a mesh of one dimension is needed, got {mesh}: take one by name, mesh['cp']")
        if len(buffers) != len(dims):
            raise ValueError(f"context_parallel(): {len(buffers)} buffers but {len(dims)} buffer_seq_dims")
        for i, (b, d) in enumerate(zip(buffers, dims, strict=True)):
            if not -b.dim() <= d < b.dim():
                raise ValueError(f"context_parallel(): buffer {i} has {b.dim()} dimensions, buffer_seq_dims[{i}] is {d}")
        self._mesh, self._buffers, self._dims = mesh, buffers, dims
        self._kept = {id(b) for b in no_restore_buffers or ()}
        self._way = _way(mode, load_balance=load_balance)
        self._before = []

    def __enter__(self):
        self._way.__enter__()
        for b, d in zip(self._buffers, self._dims, strict=True):
            self._before.append((b, b.device, b.device_mesh, b.placements))
            place = Shard(d % b.dim())
            if b.device_mesh.ndim:
                b.data = b.data.redistribute(placements={self._mesh.mesh_dim_names[0]: place})
            else:
                b.data = distribute_tensor(b.data, self._mesh, [place])
        return self

    def __exit__(self, *exc):
        for b, device, mesh, placements in self._before:
            if id(b) not in self._kept:
                b.data = b.data.redistribute(mesh, placements) if mesh.ndim else b.data.full_tensor().to(device)
        self._before = []
        self._way.__exit__(*exc)
