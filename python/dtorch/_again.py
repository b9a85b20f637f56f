"""What `dtorch-run` starts in the place of the program when the run can outlive its nodes (Open MPI's fault-tolerant mode).

`python -m dtorch._again PROGRAM ...` runs the program as `python PROGRAM ...` would. When that ends with NodeLostError and enough nodes are left
(DTORCH_RUN_KEEP="M/N": M of N), it runs it again from its first line, in the same process and over the nodes that are left, which keep running: the program
finds its checkpoint, and a mesh dimension named "dp" is smaller in proportion. Nothing of the first attempt is kept but imported modules.
"""

import contextlib
import gc
import os
import runpy
import sys
import time

import dtorch
from dtorch import checkpoint
from dtorch._nodes import outlives_nodes

PATIENCE_S = 15  # another node may have noticed a loss before this process does


def _is_loss(error):
    while error is not None and not isinstance(error, dtorch.NodeLostError):
        error = error.__cause__ or error.__context__
    return error is not None


def _left_below(before):
    """How many nodes are left, once they are fewer than `before`; or `before`."""
    until = time.monotonic() + PATIENCE_S
    while (left := len(dtorch.devices())) == before and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _attempt(program):
    """The message of the NodeLostError that the program ended with, or None. Other exceptions are the caller's."""
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception as error:
        if not _is_loss(error) or not outlives_nodes():
            raise
        return f"{type(error).__name__}: {error}"
    return None


def main():
    """The command."""
    least, asked = map(int, os.environ["DTORCH_RUN_KEEP"].split("/"))
    del sys.argv[0]
    program = sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    before = len(dtorch.devices())
    while (lost := _attempt(program)) is not None:
        left = _left_below(before)
        if left == before or left < least:
            sys.exit(f"dtorch-run: {lost}\ndtorch-run: {left} nodes are left, too few to go on with (--min-nodes {least})")
        with contextlib.suppress(Exception):
            checkpoint.wait()  # one that was being saved has failed, or is there
        gc.collect()
        attempt = int(os.environ.get("DTORCH_RUN_ATTEMPT", "0")) + 1
        os.environ |= {"DTORCH_RUN_ATTEMPT": str(attempt), "DTORCH_RUN_NODES": f"{left}/{asked}"}
        print(f"dtorch-run: {lost}\ndtorch-run: going on in the same processes with {left} of {asked} nodes", file=sys.stderr, flush=True)
        before = left


if __name__ == "__main__":
    main()
