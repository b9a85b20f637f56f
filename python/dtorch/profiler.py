"""Where the time goes: what the client, the controller and the workers did, and when.

    with dtorch.profiler.profile() as p:
        for batch in batches:
            train_step(batch)
            p.step()
    print(p.summary())                       # by operator
    print(p.summary(group_by="line"))        # by line of your program
    p.export_chrome_trace("trace.json")      # for Perfetto, chrome://tracing, or `python -m dtorch.report trace.json`

Times are of this process's monotonic clock. A fused group appears as one operator, ``fused(add, mul)``, at the line of its last member. Work is
asynchronous: the client's row shows when calls were recorded, the devices' rows when they ran. Leaving the block waits for all work.
"""

from __future__ import annotations

import functools
import json
import os
from enum import Enum

from dtorch import _C

__all__ = ["EventTable", "ProfilerAction", "ProfilerActivity", "Row", "profile", "record_function", "schedule", "trace_handler"]

CALL, KERNEL, COMM, PLAN, RUN, MEMORY, FETCH, MESSAGE = range(8)
_CATEGORY = {CALL: "call", KERNEL: "kernel", COMM: "communication", PLAN: "plan", RUN: "dispatch", FETCH: "fetch", MESSAGE: "message"}
_active = None  # the profile that is collecting


class ProfilerActivity(Enum):
    """What to show: the client and controller (CPU), the devices (DEVICE). Everything is collected either way."""

    CPU = 0
    CUDA = 1
    DEVICE = 2


class ProfilerAction(Enum):
    """What a schedule wants done at a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def schedule(*, wait, warmup, active, repeat=0, skip_first=0):
    """A function from step number to ProfilerAction: skip, wait, warm up, record, and again.

    Args:
        wait, warmup, active: steps of each phase of a cycle; active is at least 1.
        repeat: number of cycles; 0: for ever.
        skip_first: steps before the first cycle.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ValueError(
            f"schedule(): wait {wait}, warmup {warmup}, repeat {repeat}, skip_first {skip_first} must be at least 0 and active {active} at least 1"
        )

    def action(step):
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        cycle = wait + warmup + active
        if repeat and step // cycle >= repeat:
            return ProfilerAction.NONE
        at = step % cycle
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if at == cycle - 1 else ProfilerAction.RECORD

    return action


def trace_handler(directory):
    """An on_trace_ready that writes each trace as a file of its own into `directory`."""
    os.makedirs(directory, exist_ok=True)

    def handler(p):
        p.export_chrome_trace(os.path.join(directory, f"trace-{os.getpid()}-step{p.step_num}.json"))

    return handler


class record_function:
    """A named range on the client's row: ``with record_function("loss"): …``, or as a decorator. Costs nothing while no profile is active."""

    def __init__(self, name):
        self.name = str(name)

    def __enter__(self):
        self._begin = _C._trace_now() if _active is not None else 0
        return self

    def __exit__(self, *exc):
        if self._begin and _active is not None:
            _active._ranges.append((self.name, self._begin, _C._trace_now()))

    def __call__(self, fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            with record_function(self.name):
                return fn(*args, **kwargs)

        return wrapper


class Row:
    """One line of a summary: `key` (an operator, or file:line), `count`, times in seconds: `total` on devices, `mean`, `longest`; `client`:
    time of the client's calls; `bytes` read and written, or moved between devices."""

    __slots__ = ("bytes", "client", "count", "key", "longest", "total")

    def __init__(self, key):
        self.key, self.count, self.total, self.longest, self.client, self.bytes = key, 0, 0.0, 0.0, 0.0, 0

    @property
    def mean(self):
        """Seconds a run."""
        return self.total / self.count if self.count else 0.0


class EventTable(list):
    """Rows of a summary, most time first; prints as a table."""

    def table(self, sort_by="total", row_limit=40):
        """The text. sort_by: total, mean, longest, count, client, bytes; row_limit: at most so many rows, -1 for all."""
        legal = ("total", "mean", "longest", "count", "client", "bytes")
        if sort_by not in legal:
            raise ValueError(f"table(): sort_by {sort_by!r} is not legal: {', '.join(legal)} are")
        rows = sorted(self, key=lambda r: -getattr(r, sort_by))
        shown = rows if row_limit < 0 else rows[:row_limit]
        whole = sum(r.total for r in self) or 1.0
        head = ("", "count", "device", "share", "mean", "longest", "client", "bytes")
        text = [
            (
                r.key,
                str(r.count),
                _time(r.total),
                f"{100 * r.total / whole:.1f} %",
                _time(r.mean),
                _time(r.longest),
                _time(r.client),
                _size(r.bytes),
            )
            for r in shown
        ]
        wide = [min(60, max(len(t[i]) for t in [head, *text])) for i in range(len(head))]
        lines = [
            "  ".join(c[: wide[i]].ljust(wide[i]) if i == 0 else c.rjust(wide[i]) for i, c in enumerate(t)).rstrip() for t in [head, *text]
        ]
        if len(shown) < len(rows):
            lines.append(f"… and {len(rows) - len(shown)} more")
        return "\n".join(lines)

    __str__ = table


def _time(s):
    return f"{s * 1e3:.3f} ms" if s >= 1e-3 else f"{s * 1e6:.1f} µs"


def _size(n):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


class profile:
    """Collects events while the block runs.

    Args:
        activities: ProfilerActivity values; accepted for PyTorch's sake, everything is collected.
        schedule: a function from step number to ProfilerAction (see schedule()); by default everything is recorded.
        on_trace_ready: called with this profile whenever a recording ends.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: accepted; memory and lines are always collected.

    One profile is active at a time: starting a second raises RuntimeError.
    """

    def __init__(
        self, *, activities=None, schedule=None, on_trace_ready=None, record_shapes=False, profile_memory=True, with_stack=False, with_flops=False,
        with_modules=False,
    ):  # fmt: skip
        self._schedule, self._ready = schedule, on_trace_ready
        self.step_num = 0
        self._events, self._ranges, self._steps = [], [], []
        self._recording = False
        self.dropped = 0

    # -- when ---------------------------------------------------------------------------------------------------------
    def start(self):
        """Begin; what ``with`` does."""
        global _active
        if _active is not None:
            raise RuntimeError("profile(): another profile is active; one process has one clockwork, so stop that one first")
        _active = self
        try:
            self._act(ProfilerAction.RECORD if self._schedule is None else self._schedule(0))
        except BaseException:
            _active = None
            raise

    def stop(self):
        """End; waits for all work that was submitted."""
        global _active
        if _active is not self:
            return
        saved = self._recording
        self._halt()
        _active = None
        if saved and self._ready is not None:
            self._ready(self)

    def step(self):
        """A step of training ends: a mark in the trace, and the schedule moves on."""
        if _active is not self:
            raise RuntimeError("profile.step(): this profile is not active")
        if self._recording:
            self._steps.append((self.step_num, _C._trace_now()))
        last = self._schedule(self.step_num) if self._schedule is not None else None
        self.step_num += 1
        if last is ProfilerAction.RECORD_AND_SAVE:
            self._halt()
            if self._ready is not None:
                self._ready(self)
        if self._schedule is not None:
            self._act(self._schedule(self.step_num))

    def _act(self, action):
        want = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if want and not self._recording:
            _C.synchronize()
            self._events, self._ranges, self._steps = [], [], []
            self._begin = _C._trace_now()
            _C._trace_start()
            self._recording = True
        elif not want and self._recording:
            self._halt()

    def _halt(self):
        if not self._recording:
            return
        _C.synchronize()
        self._end = _C._trace_now()
        self._events = _C._trace_stop()
        self.dropped = _C._trace_dropped()
        self._recording = False

    __enter__ = lambda self: (self.start(), self)[1]  # noqa: E731

    def __exit__(self, *exc):
        self.stop()

    # -- what ---------------------------------------------------------------------------------------------------------
    def events(self):
        """Every event: dicts with lane, kind, name, file, line, function, begin and end (ns), bytes."""
        sites, out = {}, []
        for lane, kind, name, site, begin, end, a, _b, _device in self._events:
            if kind == MEMORY:
                continue
            if site not in sites:
                sites[site] = _C._site_of(site)
            file, line, function = sites[site]
            out.append({"lane": lane, "kind": _CATEGORY[kind], "name": name, "file": file, "line": line, "function": function,
                        "begin": begin, "end": end, "bytes": a if kind in (KERNEL, COMM, FETCH, MESSAGE) else 0})  # fmt: skip
        return out

    def key_averages(self, group_by="op"):
        """An EventTable. group_by: "op" (operators and collectives), "line" (lines of your program), "lane" (threads)."""
        if group_by not in ("op", "line", "lane"):
            raise ValueError(f"key_averages(): group_by {group_by!r} is not legal: 'op', 'line', 'lane' are")
        rows = {}
        for e in self.events():
            if e["kind"] in ("plan", "dispatch", "message") and group_by != "lane":
                continue
            key = e["name"] if group_by == "op" else e["lane"] if group_by == "lane" else f"{os.path.basename(e['file'])}:{e['line']}"
            r = rows.get(key) or rows.setdefault(key, Row(key))
            span = (e["end"] - e["begin"]) * 1e-9
            if e["kind"] == "call" and group_by != "lane":
                r.client += span
                continue
            r.count += 1
            r.total += span
            r.longest = max(r.longest, span)
            r.bytes += e["bytes"]
        return EventTable(sorted(rows.values(), key=lambda r: -r.total))

    def summary(self, group_by="op", sort_by="total", row_limit=40):
        """key_averages(group_by) as text, with the wall time."""
        wall = (self._end - self._begin) * 1e-9 if self._events else 0.0
        text = f"{_time(wall)} of wall time, {len(self._events)} events" + (
            f", {self.dropped} lost for want of memory" if self.dropped else ""
        )
        return text + "\n" + self.key_averages(group_by).table(sort_by, row_limit)

    def export_chrome_trace(self, path):
        """Write the trace as JSON that Perfetto and chrome://tracing read: a row a thread, memory as counters, steps and ranges as marks."""
        out, lanes = [], {}

        def tid(lane):
            if lane not in lanes:
                lanes[lane] = len(lanes) + 1
                out.append({"ph": "M", "pid": 1, "tid": lanes[lane], "name": "thread_name", "args": {"name": lane}})
                order = {"client": 0, "ranges": 1, "controller": 2}.get(lane, 3 + lanes[lane])
                out.append({"ph": "M", "pid": 1, "tid": lanes[lane], "name": "thread_sort_index", "args": {"sort_index": order}})
            return lanes[lane]

        def us(t):
            return round((t - self._begin) / 1e3, 3)

        out.append({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "dtorch"}})
        for e in self.events():
            args = {"line": f"{e['file']}:{e['line']}", "function": e["function"]} if e["line"] else {}
            if e["bytes"]:
                args["bytes"] = e["bytes"]
            out.append({"ph": "X", "pid": 1, "tid": tid(e["lane"]), "ts": us(e["begin"]), "dur": round((e["end"] - e["begin"]) / 1e3, 3),
                        "name": e["name"], "cat": e["kind"], "args": args})  # fmt: skip
        for _lane, kind, name, _site, begin, _end, a, b, device in self._events:
            if kind == MEMORY:
                out.append(
                    {"ph": "C", "pid": 1, "ts": us(begin), "name": f"memory {name}:{device}", "args": {"allocated": a, "reserved": b}}
                )
        for name, begin, end in self._ranges:
            out.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": tid("ranges"),
                    "ts": us(begin),
                    "dur": round((end - begin) / 1e3, 3),
                    "name": name,
                    "cat": "range",
                }
            )
        for n, at in self._steps:
            out.append({"ph": "i", "pid": 1, "tid": tid("client"), "ts": us(at), "name": f"step {n}", "s": "p"})
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"traceEvents": out, "displayTimeUnit": "ms"}, f)


def __getattr__(name):
    from dtorch import _planned

    raise _planned.explain(__name__, name)
