"""`python -m dtorch`: commands.

info                                                       the version, what the processor offers, which MPI was found
simulate [--hardware H] [--devices N] SCRIPT [ARGS...]     run a script on simulated devices (docs/simulate.md) and print the report
calibrate                                                  measure this machine for the cost model
"""

from __future__ import annotations

import sys

import dtorch
from dtorch import _C


def _info():
    try:
        mpi = _C._mpi_info()
    except NotImplementedError as e:
        mpi = f"none ({e})"
    nodes, rank, _ = _C._node_info()
    print(f"dtorch {dtorch.__version__}\nthreads {dtorch.get_num_threads()}\nMPI {mpi}\nnodes {nodes}, this is node {rank}")
    if nodes > 1:
        from dtorch._links import links

        for kind, (seconds, rate) in links().items():
            print(f"link to a node of {kind}: a small all-gather {seconds * 1e6:.0f} us, {rate / 1e9:.2f} GB/s beyond it")
    return 0


def _simulate(argv):
    import argparse
    import os
    import runpy

    parser = argparse.ArgumentParser(
        prog="python -m dtorch simulate", description="Run a script on simulated devices and print the report."
    )
    parser.add_argument("--hardware", default="h100-8x", help="a name (h100-8x, a100-8x, cpu) or a .json file")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if not os.path.isfile(options.script):
        print(f"python -m dtorch simulate: there is no file {options.script}", file=sys.stderr)
        return 2
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    try:
        simulation = dtorch.simulate(options.hardware, options.devices)
    except ValueError as e:
        print(f"python -m dtorch simulate: {e}", file=sys.stderr)
        return 2
    status = 0
    with simulation:
        try:
            runpy.run_path(options.script, run_name="__main__")
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else int(e.code is not None)
            if status and not isinstance(e.code, int):
                print(e.code, file=sys.stderr)  # as the interpreter does
    print(simulation.report())
    return status


def main(argv=None):
    """The command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["info"]:
        return _info()
    if argv[:1] == ["simulate"]:
        return _simulate(argv[1:])
    if argv == ["calibrate"]:
        from dtorch._calibrate import main as calibrate

        return calibrate()
    print("usage: python -m dtorch info | simulate [--hardware H] [--devices N] SCRIPT [ARGS...] | calibrate", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
