"""Which mesh a plan means: parts of meshes named alike.

A plan is applied with a part of a mesh, ``mesh["tp"]``; but the tensors it meets may lie on a slice of that mesh, as the stages of a pipeline do. By
name both mean the same dimension.
"""

from __future__ import annotations

import weakref

__all__ = ["Replaced", "home"]


class Replaced:
    """What parameters became when they were put on meshes, so that what modules shared they share again. Holds the old ones weakly, by identity."""

    def __init__(self):
        self._by_id = {}

    def __getitem__(self, old):
        """The list of what `old` became; append to it."""
        key = id(old)
        if key not in self._by_id:
            self._by_id[key] = ([], weakref.ref(old, lambda ref: self._by_id.pop(key, None)))
        return self._by_id[key][0]


def home(t, mesh):
    """The part of t's own mesh that has the dimension names of `mesh`; `mesh` itself where t's mesh lacks one of them or is plain."""
    names, own = mesh.mesh_dim_names, t.device_mesh
    if not names or own.ndim == 0 or own == mesh.root or not own.mesh_dim_names:
        return mesh
    if any(n not in own.mesh_dim_names for n in names):
        return mesh
    return own[names[0]] if len(names) == 1 else own[tuple(names)]
