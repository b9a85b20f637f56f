"""The processes of a run, as far as a program cares: which devices are left."""

from dtorch import _C

__all__ = ["devices"]


def devices(n=None):
    """The CPU devices over which `init_device_mesh` lays a mesh of `n`, in order: neighbours on one node, none on a node that is lost.

    Args:
        n: how many; one for every node of the run that is left if None, so that ``len(dtorch.devices())`` counts them (1 without mpiexec or srun).

    Raises:
        ValueError: the nodes that are left have not so many devices.
    """
    return _C.init_device_mesh("cpu", (len(_C._nodes_left()[0]) if n is None else n,)).devices


def outlives_nodes():
    """May the program go on when a node was lost? True with Open MPI's fault-tolerant mode (`mpiexec --with-ft ulfm`)."""
    return _C._nodes_left()[1]
