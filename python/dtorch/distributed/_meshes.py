"""Which mesh a plan means: parts of meshes named alike.

A plan is applied with a part of a mesh, ``mesh["tp"]``; but the tensors it meets may lie on a slice of that mesh, as the stages of a pipeline do. By
name both mean the same dimension.
"""

from __future__ import annotations

__all__ = ["home"]


def home(t, mesh):
    """The part of t's own mesh that has the dimension names of `mesh`; `mesh` itself where t's mesh lacks one of them or is plain."""
    names, own = mesh.mesh_dim_names, t.device_mesh
    if not names or own.ndim == 0 or own == mesh.root or not own.mesh_dim_names:
        return mesh
    if any(n not in own.mesh_dim_names for n in names):
        return mesh
    return own[names[0]] if len(names) == 1 else own[tuple(names)]
