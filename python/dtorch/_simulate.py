"""Simulation: the same program on devices that do not exist, with a clock that is not real.

    with dtorch.simulate("h100-8x", devices=1024) as sim:
        main()                    # init_device_mesh("cuda", …), models, optimisers: as they are
    print(sim.report())

The client, the controller, its passes and its plans are the real ones; devices hold no data and only add up what each operator and each transfer would take
(docs/simulate.md). ``python -m dtorch simulate --hardware h100-8x --devices 1024 train.py …`` does the same to a script.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field

from dtorch import _C

__all__ = ["Estimate", "SimulatedStep", "SimulationReport", "estimate", "load_hardware", "simulate"]

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hardware")
_active = None


def cache_file():
    """Where ``python -m dtorch calibrate`` keeps what it measured on this machine."""
    base = os.environ.get("DTORCH_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "dtorch"
    )
    return os.path.join(base, "hardware.json")


def _of_threads(found, devices):
    """What was measured for as many threads as each of so many devices has, or nearly."""
    each = max(1, _C.get_num_threads() // devices)
    best = min(found["by_threads"], key=lambda t: abs(int(t) - each))
    return {**found["by_threads"][best], "links": found["links"]}


def load_hardware(hardware, devices=1):
    """A hardware description as a dict.

    Args:
        hardware: a dict (returned as it is); the path of a .json file; or the name of a file that comes with the package: "h100-8x", "a100-8x", "cpu". "cpu" is
            this machine if ``python -m dtorch calibrate`` was run on it, else the stand-in "cpu-plain".
        devices: how many devices share this machine's cores; for "cpu".
    """
    if isinstance(hardware, dict):
        return hardware
    if not isinstance(hardware, (str, os.PathLike)):
        raise TypeError(f"hardware must be a name, a path or a dict, not {type(hardware).__name__}")
    name = os.fspath(hardware)
    path = name
    if not name.endswith(".json"):
        path = os.path.join(_FOLDER, name + ".json")
        if name == "cpu":
            path = cache_file() if os.path.exists(cache_file()) else os.path.join(_FOLDER, "cpu-plain.json")
        if not os.path.exists(path):
            known = ["cpu", *sorted(f[:-5] for f in os.listdir(_FOLDER) if f.endswith(".json"))]
            raise ValueError(f"hardware: {name!r} is not known; there are {', '.join(known)}, and any path that ends with .json")
    with open(path, encoding="utf-8") as f:
        try:
            found = json.load(f)
        except ValueError as e:
            raise ValueError(f"hardware: {path} is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise ValueError(f"hardware: {path} holds a {type(found).__name__}, not a table")
    if "by_threads" in found and (odd := sorted(found.keys() - {"cores", "links", "by_threads"})):
        raise ValueError(f"hardware: {path}: unknown field {odd[0]}; beside by_threads there are cores and links")
    return _of_threads(found, devices) if "by_threads" in found else found


@dataclass
class _Snapshot:
    now: float
    rows: list
    controller: float
    client: float
    simulating: float
    plans: int
    nodes: int
    unread: int


@dataclass
class SimulatedStep:
    """One step: virtual seconds, shares of all devices' time, bytes received by link level, real seconds of processor time.

    ``device_busy``: (devices,) virtual seconds in which each ran kernels; ``device_exposed``: in which its kernels waited for its transfers.
    """

    seconds: float
    mfu: float
    busy: float
    exposed: float
    hidden: float
    bubble: float
    flops: float
    link_bytes: list
    controller: float
    client: float
    plans_built: int
    calls: int
    device_busy: list
    device_exposed: list


@dataclass
class SimulationReport:
    """What a simulation found. Print it, or read its fields.

    ``steps``: a SimulatedStep each. ``peak``: (devices,) bytes allocated at most. ``seconds``: virtual time in all.
    """

    hardware: str
    devices: int
    memory: int
    link_names: list
    steps: list = field(default_factory=list)
    peak: list = field(default_factory=list)
    out_of_memory: list = field(default_factory=list)
    seconds: float = 0.0
    simulating: float = 0.0

    @property
    def peak_bytes(self):
        """Of the device that held most."""
        return max(self.peak, default=0)

    def step(self, i=-1):
        """The i-th step; the last one by default."""
        return self.steps[i]

    def __str__(self):
        lines = [f"{self.devices} x {self.hardware}: {_time(self.seconds)} of virtual time in {len(self.steps)} steps"]
        head = [
            "step",
            "time",
            "MFU",
            "busy",
            "bubble",
            "comm exposed",
            "hidden",
            *[f"received {n}" for n in self.link_names],
            "controller",
            "client",
        ]
        table = [head]
        for i, s in enumerate(self.steps):
            table.append(
                [str(i), _time(s.seconds), _share(s.mfu), _share(s.busy), _share(s.bubble), _share(s.exposed), _share(s.hidden)]
                + [_bytes(b) for b in s.link_bytes]
                + [_time(s.controller), _time(s.client)]
            )
        if len(table) > 13:
            table[7:-5] = [["..."] + [""] * (len(head) - 1)]
        wide = [max(len(r[k]) for r in table) for k in range(len(head))]
        lines += ["  ".join(c.rjust(w) for c, w in zip(r, wide)).rstrip() for r in table]
        top = sorted(range(len(self.peak)), key=lambda i: -self.peak[i])[:3]
        if top and self.peak[top[0]]:
            most = ", ".join(f"device {i} {_bytes(self.peak[i])}" for i in top)
            used = [p for p in self.peak if p]
            of = f" of {_bytes(self.memory)}" if self.memory else ""
            lines.append(f"peak memory{of}: {most}; median of {len(used)} used devices {_bytes(sorted(used)[len(used) // 2])}")
        for i in self.out_of_memory[:3]:
            lines.append(f"device {i} ran out of memory")
        return "\n".join(lines)


def _time(s):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if s >= scale:
            return f"{s / scale:.4g} {unit}"
    return f"{s / 1e-9:.3g} ns"


def _bytes(n):
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.4g} {unit}"
    return f"{n:.0f} B"


def _share(x):
    return f"{100 * x:.1f} %"


class simulate:
    """Run what is inside on simulated devices.

    Args:
        hardware: see :func:`load_hardware`.
        devices: how many there are, 1 to 4096. Neighbours fill a machine before the next one begins.

    Inside, ``"cpu"``, ``"cuda"`` and ``"cpu:3"`` name simulated devices, new tensors lie on the first one, and reading a value gives zeros: nothing is
    computed, and a tensor that was made outside cannot be used. A step ends where an optimiser's ``step()`` returns, unless the program calls
    :meth:`step` itself.

    Raises:
        RuntimeError: simulations do not nest.
        dtorch.OutOfMemoryError: at reads, as on real devices: the limit is the hardware's memory.
    """

    def __init__(self, hardware="h100-8x", devices=1):
        if not isinstance(devices, int) or not 1 <= devices <= 4096:
            raise ValueError(f"simulate(): devices is {devices!r}; 1 to 4096 are possible")
        self._hardware = load_hardware(hardware, devices)
        self.devices = devices
        self._marks = []
        self._explicit = False
        self._hook = None
        self._done = None

    def __enter__(self):
        global _active
        if _active is not None:
            raise RuntimeError("simulate(): a simulation is running already")
        from dtorch.optim.optimizer import register_optimizer_step_post_hook

        _C.synchronize()
        _C._sim_start(self._hardware, self.devices)
        _active = self
        self._hook = register_optimizer_step_post_hook(self._after_optimizer)
        self._marks = [self._snapshot()]
        return self

    def __exit__(self, *exc):
        global _active
        try:
            self._done = self._snapshot()
        finally:
            self._hook.remove()
            _C._sim_stop()
            _active = None

    def _snapshot(self, memory=True):
        _C.synchronize()
        now, simulating, _, controller, rows = _C._sim_read(memory)
        s = _C._engine_stats()
        return _Snapshot(now, rows, controller - simulating, time.thread_time(), simulating, s["plans_built"], s["nodes"], s["nodes_dead"])

    def _after_optimizer(self, *_):
        if not self._explicit and _active is self:
            self._marks.append(self._snapshot(memory=False))

    def step(self):
        """A step ends here. After the first call steps are no longer taken from optimisers."""
        if _active is not self:
            raise RuntimeError("step(): this simulation is not running")
        if not self._explicit:
            self._explicit = True
            del self._marks[1:]
        self._marks.append(self._snapshot(memory=False))

    def report(self):
        """A :class:`SimulationReport` of what was run so far."""
        last = self._done or (self._snapshot() if _active is self else None)
        if last is None:
            raise RuntimeError("report(): nothing was simulated yet")
        marks = self._marks if len(self._marks) > 1 else [*self._marks, last]
        names = _link_names(self._hardware)
        r = SimulationReport(str(self._hardware.get("name", "?")), self.devices, int(self._hardware.get("memory") or 0), names)
        r.seconds = last.now
        r.simulating = last.simulating
        r.peak = [row[10] for row in last.rows]
        r.out_of_memory = [i for i, row in enumerate(last.rows) if row[12]]
        r.steps = [_between(a, b, len(names)) for a, b in zip(marks, marks[1:])]
        return r


def _link_names(hardware):
    """What to call the levels of links: "in 8", "in 64", "beyond"."""
    links = hardware["links"]
    return [f"in {int(x['devices'])}" if x.get("devices") else ("beyond" if len(links) > 1 else "over links") for x in links]


def _between(a, b, levels):
    n = sum(y[7] + y[8] > x[7] + x[8] for x, y in zip(a.rows, b.rows))  # devices that had something to do
    total = [sum(y[k] - x[k] for x, y in zip(a.rows, b.rows)) for k in range(6)]
    seconds = b.now - a.now
    share = 1 / (n * seconds) if n and seconds > 0 else 0.0
    busy, comm, exposed, flops, ideal = (total[k] for k in (1, 2, 3, 4, 5))
    link = [sum(y[6][k] - x[6][k] for x, y in zip(a.rows, b.rows)) for k in range(levels)]
    idle = max(0.0, 1 - (busy + exposed) * share) if share else 0.0
    return SimulatedStep(
        seconds=seconds,
        mfu=ideal * share,
        busy=busy * share,
        exposed=exposed * share,
        hidden=max(0.0, comm - exposed) * share,
        bubble=idle,
        flops=flops,
        link_bytes=link,
        controller=b.controller - a.controller,
        client=b.client - a.client,
        plans_built=b.plans - a.plans,
        calls=b.nodes - a.nodes,
        device_busy=[y[1] - x[1] for x, y in zip(a.rows, b.rows)],
        device_exposed=[y[3] - x[3] for x, y in zip(a.rows, b.rows)],
    )


@dataclass
class Estimate:
    """What running a function once would take: virtual ``seconds``, ``peak_bytes`` of memory on the device, ``flops`` of matrix work.

    ``unread``: calls whose results nobody could name any more when they were due. They are not computed, on real devices neither, and not counted.
    """

    seconds: float
    peak_bytes: int
    flops: float
    unread: int

    def __str__(self):
        left_out = f"; {self.unread} calls whose results nobody reads are left out" if self.unread else ""
        return f"{_time(self.seconds)}, {_bytes(self.peak_bytes)} at most, {self.flops / 1e9:.4g} GFLOP{left_out}"


def estimate(fn, *args, hardware="cpu", devices=1, **kwargs):
    """How long `fn(*args, **kwargs)` would take and how much memory it would need, without running it.

    `fn` makes its model itself: tensors from outside hold data and cannot be used. Tensors among the arguments, also in lists and dicts, are replaced by
    simulated ones of the same shape and dtype. What nobody can name any more is not computed, so let `fn` return what shall be counted, or end in a read
    or an optimizer's ``step()``; :attr:`Estimate.unread` says how many calls were left out.

    Returns:
        an :class:`Estimate`. Its memory is the largest device's, in bytes, and includes the arguments.
    """
    import dtorch

    def stand_in(t):
        if isinstance(t, dtorch.Tensor):
            return dtorch.empty(tuple(t.shape), dtype=t.dtype, requires_grad=t.requires_grad)
        if isinstance(t, dict):
            return {k: stand_in(v) for k, v in t.items()}
        return type(t)(map(stand_in, t)) if type(t) in (list, tuple) else t

    with simulate(hardware, devices) as sim:
        args, kwargs = stand_in(args), stand_in(kwargs)
        unread = sim._snapshot().unread
        kept = fn(*args, **kwargs)
        last = sim._snapshot()
        del kept, args, kwargs
    before = [r[9] for r in sim._marks[0].rows]  # what lives of earlier simulations
    peak = max(r[10] - was for r, was in zip(last.rows, before))
    return Estimate(last.now, peak, math.fsum(r[4] for r in last.rows), last.unread - unread)
