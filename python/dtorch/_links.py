"""How fast the links between a run's nodes are, as a collective sees them: measured once for each kind of pair, at first use, for people to read.

No plan depends on it: a plan decides the order in which sums are formed, so their bits would depend on what else the network did while it was measured."""

import time

from dtorch import _C

SMALL, LARGE, TRIES, BUDGET_S = 16, 1 << 20, 8, 0.02
_known = {}


def _gather(mesh, numbers):
    """Seconds of an all-gather of `numbers` float32 of each of two devices: the least of several, the first one left out."""
    import dtorch
    from dtorch import Replicate, Shard

    x = dtorch.ones(2, numbers, device_mesh=mesh, placements=[Shard(0)])
    dtorch.synchronize()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or (len(times) < TRIES and time.perf_counter() - begin < BUDGET_S):
        before = time.perf_counter()
        whole = x.redistribute(mesh, [Replicate()])
        dtorch.synchronize()
        times.append(time.perf_counter() - before)
        del whole  # named until here, or nothing would be computed
    return min(times[1:])


def links():
    """{kind: (seconds of a small all-gather, bytes/s that a device receives)} between node 0 and the first node of its host, and of another one."""
    import dtorch

    _, _, devices = _C._node_info()
    hosts = _C._node_hosts()
    for node, host in enumerate(hosts):
        kind = "this host" if host == hosts[0] else "another host"
        if node == 0 or kind in _known:
            continue
        mesh = dtorch.DeviceMesh("cpu", [0, node * devices])
        small, large = _gather(mesh, SMALL), _gather(mesh, LARGE)
        _known[kind] = small, 4 * (LARGE - SMALL) / max(large - small, 1e-9)
    return dict(_known)
