"""`python -m dtorch info`: the version, what the processor offers, which MPI was found."""

from __future__ import annotations

import sys

import dtorch
from dtorch import _C


def main(argv=None):
    """The command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv != ["info"]:
        print("usage: python -m dtorch info", file=sys.stderr)
        return 2
    try:
        mpi = _C._mpi_info()
    except NotImplementedError as e:
        mpi = f"none ({e})"
    nodes, rank, _ = _C._node_info()
    print(f"dtorch {dtorch.__version__}\nthreads {dtorch.get_num_threads()}\nMPI {mpi}\nnodes {nodes}, this is node {rank}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
