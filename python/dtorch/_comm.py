"""What the engine tells about itself: communication and memory."""

from __future__ import annotations

import os

from dtorch import _C

__all__ = ["CommReport", "comm_report", "memory_summary"]


def _bytes(n):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


class CommReport(list):
    """Rows of collectives: dicts with kind, mesh_dim, count, bytes, file, line, function. Prints as a table, largest first."""

    @property
    def bytes(self):
        """Bytes sent, over all rows and devices."""
        return sum(row["bytes"] for row in self)

    def __repr__(self):
        if not self:
            return "no communication"
        rows = [("collective", "mesh dim", "count", "bytes", "line")]
        for r in sorted(self, key=lambda r: -r["bytes"]):
            where = f"{os.path.basename(r['file'])}:{r['line']}" if r["file"] else "?"
            rows.append((r["kind"], r["mesh_dim"] or "-", str(r["count"]), _bytes(r["bytes"]), where))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(c.rjust(w) if i in (2, 3) else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False))).rstrip()
            for row in rows
        ]
        return "\n".join(lines)

    __str__ = __repr__


def comm_report(reset=False):
    """Every collective run so far, by kind, mesh dimension and the line that caused it. Waits for all work.

    Args:
        reset: start counting anew afterwards.
    """
    _C.synchronize()
    report = CommReport(_C._comm_entries())
    if reset:
        _C._comm_reset()
    return report


def memory_summary(device=None):
    """memory_stats(device) as a readable table."""
    s = _C.memory_stats(device)
    rows = [("", "now", "peak"), ("allocated", _bytes(s["allocated"]), _bytes(s["allocated_peak"])),
            ("reserved", _bytes(s["reserved"]), _bytes(s["reserved_peak"]))]  # fmt: skip
    text = "\n".join(f"{a:<10} {b:>12} {c:>12}" for a, b, c in rows)
    limit = _bytes(s["limit"]) if s["limit"] else "none"
    return f"{text}\nlimit: {limit}; allocations: {s['n_alloc']}, refused: {s['n_oom']}"
