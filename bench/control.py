"""How soon a step reaches every node: `python bench/control.py [--nodes 64] [--ops 10000] [--devices 1] [--steps 20] [--real] [--first]`.

One process is client, controller and node 0; the others are `dtorch-node`s (found beside python, or named by --node), all on this machine. Their devices are
simulated, so the control path is all there is: the nodes take messages, make runs of them, bind memory. With --real the devices are CPU devices and compute.

Per replayed step, medians and the worst, in ms, all from its first call on:
  recorded   the client's calls are made
  told       the controller has handed the step's last message to the network
  reached    the last node has that message
  expanded   the last node has made runs of all of it
  done       every device is done, and the client knows
and messages and bytes that a node gets, and what rank 0 sends of them itself. Nodes' times are of the same clock (CLOCK_MONOTONIC, one host), kept by the
profiler, which notes every call, run and message: another line has the time until all is done without it. Then processor time of a step: of rank 0, and of all
nodes together.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HARDWARE = {"name": "plain", "flops": {"float32": 1e12}, "vector_flops": 1e12, "memory_bandwidth": 1e12, "links": [{"bandwidth": 1e10, "latency": 1e-6}]}
KINDS = ("recorded", "told", "reached", "expanded", "done")
SENT = ("messages_sent", "bytes_sent", "posted", "posted_bytes")


def step(x, state, ops, scale):
    y = state[0]
    for _ in range(ops // 4):
        y = ((y * scale + x).relu()) - 0.25
    state[0] = y


def one(dtorch, run):
    """Runs a step under the profiler; its times in ms, messages and bytes of all nodes."""
    with dtorch.profiler.profile() as p:
        dtorch.synchronize()  # the nodes log, and have nothing else to do
        time.sleep(0.02)
        before = dtorch._C._net_stats()
        began = dtorch._C._trace_now()
        run()
        recorded = dtorch._C._trace_now()
        dtorch.synchronize()
        done = dtorch._C._trace_now()
        after = dtorch._C._net_stats()
    messages = [e for e in p.events() if e["kind"] == "message" and began <= e["begin"] <= done]
    there = [e for e in messages if e["lane"] != "controller"]
    last = {e["lane"]: max((m for m in there if m["lane"] == e["lane"]), key=lambda m: m["begin"]) for e in there}
    ends = (
        recorded,
        max(e["end"] for e in messages if e["lane"] == "controller"),
        max(e["begin"] for e in last.values()),
        max(e["end"] for e in last.values()),
        done,
    )
    return [(t - began) / 1e6 for t in ends], len(last), [after[k] - before[k] for k in SENT]


def ranks():
    """Processes of this launcher on this machine, this one among them."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == os.getppid():
                    yield int(pid)
        except OSError:  # it has ended meanwhile
            continue


def processor_time():
    """Of this process, and of all other ranks, in ms."""
    total = [0.0, 0.0]
    for pid in ranks():
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total[pid != os.getpid()] += int(f.read().split()[0]) / 1e6
    return total


def go_first():
    """Other work on this machine waits while a step is under way."""
    for pid in ranks():
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(task), os.SCHED_RR, os.sched_param(1))


def program(args):
    import contextlib

    import dtorch
    from dtorch import Shard, distribute_tensor, init_device_mesh

    nodes = dtorch._C._node_info()[0]
    n = nodes * args.devices
    with contextlib.nullcontext() if args.real else dtorch.simulate(HARDWARE, devices=n):
        mesh = init_device_mesh("cpu", (n,))
        x = distribute_tensor(dtorch.ones(n, 16), mesh, [Shard(0)])
        state = [x]
        for i in range(args.warm):
            step(x, state, args.ops, 0.5 + i)
            dtorch.synchronize()
        if args.first:
            go_first()
        found, alone, spent = [], [], processor_time()
        for i in range(args.steps):
            time.sleep(0.02)
            began = time.perf_counter()
            step(x, state, args.ops, 0.75 + i)
            dtorch.synchronize()
            alone.append((time.perf_counter() - began) * 1e3)
        spent = [(b - a) / args.steps for a, b in zip(spent, processor_time())]
        for i in range(args.steps):
            found.append(one(dtorch, lambda i=i: step(x, state, args.ops, 0.25 + i)))
    times = [list(t) for t in zip(*(f[0] for f in found))]
    print(json.dumps([times, min(f[1] for f in found), [statistics.median(f[2][k] for f in found) for k in range(len(SENT))], alone, spent]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ops", type=int, default=10000)
    parser.add_argument("--devices", type=int, default=1, help="a node")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=40, help="steps before, in which plans are made and repeats found")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--first", action="store_true", help="measure with real-time priority (root): other work on a busy machine waits during a step")
    parser.add_argument("--node", help="path of dtorch-node")
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        program(args)
        return
    here = os.path.dirname(sys.executable)
    node = args.node or shutil.which("dtorch-node", path=os.pathsep.join([here, os.path.join(ROOT, "build", "src")]))
    mpiexec = shutil.which("mpiexec", path=here + os.pathsep + os.environ.get("PATH", ""))
    if not node or not mpiexec:
        sys.exit("bench/control.py needs mpiexec and dtorch-node")
    env = {**os.environ, "DTORCH_PREFIX": os.environ.get("DTORCH_PREFIX", sys.prefix)}
    command = [mpiexec, "-n", "1", sys.executable, __file__, *sys.argv[1:], "--program", ":", "-n", str(args.nodes - 1), node]
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
    times, heard, (messages, size, posted, posted_size), alone, spent = json.loads(out)
    others = args.nodes - 1
    print(f"{args.nodes} nodes of {args.devices} {'' if args.real else 'simulated '}devices, {args.ops} calls a step, {args.steps} steps; {heard} nodes heard")
    print(f"a node gets {messages / others:.2f} messages, {size / others:.0f} bytes a step; rank 0 sends {posted:.0f} messages, {posted_size:.0f} bytes")
    for kind, t in [*zip(KINDS, times), ("done, without the profiler", alone)]:
        print(f"{kind:10}  median {statistics.median(t):8.2f}  best {min(t):8.2f}  worst {max(t):8.2f} ms")
    print(f"processor time of a step: rank 0 {spent[0]:.2f}, all others {spent[1]:.2f} ms")


if __name__ == "__main__":
    main()
