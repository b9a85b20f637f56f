"""What the engine tells about itself: communication and memory.

Bytes are always bytes sent, summed over devices: what one device reads of another's memory counts once. A ring or two-phase all-reduce of b bytes over n
devices therefore counts 2(n-1)b, an all-gather into b bytes or a reduce-scatter of b bytes (n-1)b, whichever way they are carried out.
"""

from __future__ import annotations

import os

from dtorch import _C

__all__ = ["CommBoundError", "CommReport", "comm_bound", "comm_report", "comm_scope", "memory_summary"]

_KEY = ("kind", "mesh_dim", "file", "line", "function")


def _bytes(n):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def _dims(row):
    return row["mesh_dim"].split(",") if row["mesh_dim"] else []


class CommReport(list):
    """Rows of collectives, most bytes first; prints as a table.

    A row is a dict: kind ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce", "gather"; "reshard" for several of them at once;
    between meshes "broadcast", "scatter", "gather", "reduce", "send"), mesh_dim ("tp"; "dp,tp" where it goes along several; numbers where dimensions
    have no names; "" between meshes of several devices), count, bytes (sent, summed over devices), file, line, function of the call.
    """

    def __init__(self, rows=(), per_device=None):
        super().__init__(sorted(rows, key=lambda r: -r["bytes"]))
        self.per_device = dict(per_device or {})  #: device → bytes that it sent

    @property
    def bytes(self):
        """Bytes sent, over all rows and devices."""
        return sum(row["bytes"] for row in self)

    @property
    def count(self):
        """Collectives, over all rows."""
        return sum(row["count"] for row in self)

    def by(self, *fields):
        """Rows added up by some of "kind", "mesh_dim", "file", "line", "function"; the other fields are empty.

        ``report.by("kind", "mesh_dim")`` has one row for each collective and mesh dimension.
        """
        for f in fields:
            if f not in _KEY:
                raise ValueError(f"CommReport.by(): {f!r} is not a field, {', '.join(map(repr, _KEY))} are")
        sums = {}
        for row in self:
            part = {f: row[f] if f in fields else (0 if f == "line" else "") for f in _KEY}
            to = sums.setdefault(tuple(part.values()), {**part, "count": 0, "bytes": 0})
            to["count"] += row["count"]
            to["bytes"] += row["bytes"]
        return CommReport(sums.values(), self.per_device)

    def only(self, kinds=None, mesh_dim=None):
        """The rows of some kinds (a str or several) and those that go along a mesh dimension, also together with others."""
        kinds = {kinds} if isinstance(kinds, str) else kinds
        return CommReport(r for r in self if (kinds is None or r["kind"] in kinds) and (mesh_dim is None or mesh_dim in _dims(r)))

    def _lines(self):
        rows = [("collective", "mesh dim", "count", "bytes", "line")]
        for r in self:
            where = f"{os.path.basename(r['file'])}:{r['line']}" if r["file"] else ""
            rows.append((r["kind"] or "all", r["mesh_dim"] or "-", str(r["count"]), _bytes(r["bytes"]), f"{where} {r['function']}".strip()))
        rows.append(("total", "", str(self.count), _bytes(self.bytes), ""))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return [
            "  ".join(c.rjust(w) if i in (2, 3) else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in rows
        ]

    def __repr__(self):
        if not self:
            return "no communication"
        lines = self._lines()
        if self.per_device:
            least, most = min(self.per_device.values()), max(self.per_device.values())
            each = _bytes(most) if least == most else f"{_bytes(least)} to {_bytes(most)}"
            lines.append(f"bytes sent, summed over devices; each of {len(self.per_device)} that send sent {each}")
        return "\n".join(lines)

    __str__ = __repr__


def _now():
    """Counts since the process began, by row; by device."""
    _C.synchronize()
    return {tuple(r[f] for f in _KEY): (r["count"], r["bytes"]) for r in _C._comm_entries()}, _C._comm_devices()


_zero = ({}, {})  # counts of comm_report start here


def _since(before):
    now, rows = _now(), []
    for key, (count, sent) in now[0].items():
        c, b = before[0].get(key, (0, 0))
        if count > c:
            rows.append({**dict(zip(_KEY, key, strict=True)), "count": count - c, "bytes": sent - b})
    per_device = {d: n - before[1].get(d, 0) for d, n in sorted(now[1].items(), key=lambda x: str(x[0])) if n > before[1].get(d, 0)}
    return CommReport(rows, per_device), now


def comm_report(reset=False):
    """Every collective since the last reset, by kind, mesh dimension and the line that caused it: a CommReport. Waits for all work.

    Args:
        reset: start counting anew afterwards. Blocks of comm_scope and comm_bound count for themselves.
    """
    global _zero
    report, now = _since(_zero)
    if reset:
        _zero = now
    return report


class comm_scope:
    """Counts the collectives of a block, and nothing before or after it: ``with comm_scope() as report:``.

    `report` is a CommReport that is filled when the block ends. Waits for all work at both ends. Blocks may be nested; work of other threads counts too.
    """

    def __enter__(self):
        self._before = _now()[:2]
        self.report = CommReport()
        return self.report

    def __exit__(self, *exc):
        report, _ = _since(self._before)
        self.report[:] = report
        self.report.per_device.update(report.per_device)
        return False


class CommBoundError(AssertionError):
    """A block sent more than its comm_bound allows. `.report` has the rows that were counted."""

    report = None


class comm_bound(comm_scope):
    """Asserts how much a block communicates; CommBoundError when it is more. ``with comm_bound(bytes=1 << 20, count=4, kinds="all_reduce") as report:``

    Args:
        bytes: the most bytes sent, summed over devices.
        count: the most collectives.
        kinds: the kinds that may occur: a str or several; or a dict from kind to how many of them may occur at most.
        mesh_dim: look only at what goes along this mesh dimension (a name), also together with others.

    The error's text names each bound that does not hold and lists the lines that sent most. A block that raises is not checked. Waits at both ends.
    """

    def __init__(self, *, bytes=None, count=None, kinds=None, mesh_dim=None):
        for name, value in (("bytes", bytes), ("count", count)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
                raise ValueError(f"comm_bound(): {name} must be None or a number of at least 0, got {value!r}")
        self.bytes, self.count, self.mesh_dim = bytes, count, mesh_dim
        if kinds is None or isinstance(kinds, dict):
            self.kinds = kinds
        else:
            self.kinds = dict.fromkeys([kinds] if isinstance(kinds, str) else kinds, float("inf"))

    def _broken(self, report):
        along = f" along mesh dimension {self.mesh_dim!r}" if self.mesh_dim is not None else ""
        if self.bytes is not None and report.bytes > self.bytes:
            yield f"{report.bytes} bytes were sent{along}, at most {self.bytes} are allowed"
        if self.count is not None and report.count > self.count:
            yield f"{report.count} collectives ran{along}, at most {self.count} are allowed"
        for row in report.by("kind") if self.kinds is not None else ():
            most = self.kinds.get(row["kind"], 0)
            if row["count"] > most:
                allowed = f"at most {most}" if most else f"only {', '.join(sorted(self.kinds))}" if self.kinds else "nothing"
                yield f"{row['count']} × {row['kind']} ran{along}, {allowed} allowed"

    def __exit__(self, kind, value, trace):
        super().__exit__(kind, value, trace)
        if kind is not None:
            return False
        report = self.report.only(mesh_dim=self.mesh_dim)
        broken = list(self._broken(report))
        if broken:
            table = CommReport(report[:10])._lines()[:-1] + [f"and {len(report) - 10} lines more"] * (len(report) > 10)
            error = CommBoundError("\n".join(["comm_bound: " + "; ".join(broken), *("  " + line for line in table)]))
            error.report = report
            raise error
        return False


def memory_summary(device=None):
    """memory_stats(device) as a readable table."""
    s = _C.memory_stats(device)
    rows = [("", "now", "peak"), ("allocated", _bytes(s["allocated"]), _bytes(s["allocated_peak"])),
            ("reserved", _bytes(s["reserved"]), _bytes(s["reserved_peak"]))]  # fmt: skip
    text = "\n".join(f"{a:<10} {b:>12} {c:>12}" for a, b, c in rows)
    limit, budget = (_bytes(s[k]) if s[k] else "none" for k in ("limit", "budget"))
    gone = f"{s['evicted']} buffers given up, {_bytes(s['evicted_bytes'])}"
    return f"{text}\nlimit: {limit}; budget: {budget}; {gone}\nallocations: {s['n_alloc']}, refused: {s['n_oom']}"
