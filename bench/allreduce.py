"""An all-reduce between ranks beside MPI's own, in turns: `python bench/allreduce.py [--mb 64] [--ranks 2] [--devices 1] [--rounds 5]`.

Needs mpiexec of a library with MPI 5's standard interface (the extra `mpi`). Ours is `Partial` to `Replicate` on `devices` of each rank; MPI's is
MPI_Allreduce, called through the same library. Prints medians in ms, MPI's time over ours (above 1, ours is faster), and what rank 0 sent by MPI and read
of other processes for one all-reduce, in sizes of the tensor: 2 (n - 1) / n is the least. DTORCH_NODE_SHARED=0: by MPI only. `--mpiexec` is a command line
that starts a launcher (tests/cluster/netns.sh gives one)."""

import argparse
import ctypes
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

BEST_OF = 8


def ours(floats, devices):
    """Medians of all-reduces of `floats` numbers on a mesh of `devices` of each rank (ms), and bytes sent and read for one over the tensor's."""
    import dtorch
    from dtorch import Replicate, Shard, distribute_tensor, init_device_mesh

    n = int(os.environ["PMI_SIZE"]) * devices
    mesh = init_device_mesh("cpu", (n,))
    rows = distribute_tensor(dtorch.ones(n, floats), mesh, [Shard(0)])
    times, moved = [], {}
    for _ in range(BEST_OF):
        partial = rows.sum(0)
        dtorch.synchronize()
        before = dtorch._C._net_stats()
        begin = time.perf_counter()
        whole = partial.redistribute(mesh, [Replicate()])
        dtorch.synchronize()
        times.append(time.perf_counter() - begin)
        after = dtorch._C._net_stats()
        moved = {k: (after[k] - before[k]) / (4 * floats) for k in ("bulk_sent", "read")}
        del whole  # named until here, or nothing would be computed
    print(1e3 * statistics.median(times[2:]), moved["bulk_sent"], moved["read"])


def theirs(floats):
    """The same by MPI_Allreduce."""
    import numpy

    world, float_type, add = (ctypes.c_void_p(n) for n in (0x101, 0x210, 0x21))  # mpi_abi.h
    mpi = ctypes.CDLL("libmpi_abi.so.1" if not os.environ.get("DTORCH_MPI") else os.environ["DTORCH_MPI"])
    mpi.MPI_Init(None, None)
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    a, b = numpy.ones(floats, numpy.float32), numpy.zeros(floats, numpy.float32)
    times = []
    for _ in range(BEST_OF):
        mpi.MPI_Barrier(world)
        begin = time.perf_counter()
        mpi.MPI_Allreduce(ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(b.ctypes.data), ctypes.c_int(floats), float_type, add, world)
        times.append(time.perf_counter() - begin)
    mpi.MPI_Finalize()
    if rank.value == 0:
        print(1e3 * statistics.median(times[2:]), 0, 0)


def launcher():
    """mpiexec beside this Python, or of the path; None."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])


def turns(rounds, mb=64, ranks=2, devices=1, mpiexec=()):
    """Medians over rounds of (ms, sent, read), ours and theirs."""
    library = os.path.join(sys.prefix, "lib")
    env = os.environ | {"LD_LIBRARY_PATH": library + os.pathsep + os.environ.get("LD_LIBRARY_PATH", "")}
    times = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for part, list_ in times.items():
            command = [*(mpiexec or [launcher()]), "-n", str(ranks), sys.executable, os.path.abspath(__file__), "--part", part, "--mb", str(mb)]
            command += ["--devices", str(devices)]
            words = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
            list_.append([float(w) for w in words[-3:]])
    return {part: [statistics.median(x) for x in zip(*t, strict=True)] for part, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--mpiexec", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=["ours", "theirs"])
    args = parser.parse_args()
    floats = int(args.mb * 2**18)
    if args.part:
        return ours(floats, args.devices) if args.part == "ours" else theirs(floats)
    got = turns(args.rounds, args.mb, args.ranks, args.devices, shlex.split(args.mpiexec))
    (a, sent, read), (b, _, _) = got["ours"], got["theirs"]
    where = f"{args.ranks} ranks" + (f" of {args.devices} devices" if args.devices > 1 else "")
    print(f"all-reduce of {args.mb:g} MiB, {where}: dtorch {a:.1f} ms, MPI_Allreduce {b:.1f} ms, MPI/dtorch {b / a:.2f}")
    print(f"rank 0 sent {sent:.2f} and read {read:.2f} times the tensor for each")
    return None


if __name__ == "__main__":
    main()
