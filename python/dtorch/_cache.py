"""The plan cache: what was found again, what was not, and why."""

from dtorch import _C

__all__ = ["CacheStats", "cache_stats", "set_cache_limit"]


class CacheStats(dict):
    """What cache_stats() returns: a dict that prints as a table."""

    def __str__(self):
        """Counters, one a line, then the reasons, most frequent first, then the last lines of the program that caused one."""
        lines = [f"{name:<16} {value:>12,}" for name, value in self.items() if isinstance(value, int)]
        for title, name in (("plans were built because of", "misses"), ("repeats ended at", "mismatch_reasons")):
            if self[name]:
                lines += ["", title + ":"]
                lines += [f"{count:>12,} × {text}" for text, count in sorted(self[name].items(), key=lambda r: -r[1])]
        if self["recent"]:
            lines += ["", "lately:"]
            lines += [f"  {r['file']}:{r['line']}: {'repeat ended: ' if r['replay'] else ''}{r['text']}" for r in self["recent"][-10:]]
        return "\n".join(lines)


def cache_stats():
    """Counters of the plan cache since the process began, and why plans were not found.

    The engine cuts the stream of calls into chunks, makes a plan of each and keeps it. A chunk that comes again finds its plan; when it was found
    before, its calls are only compared with the earlier ones ("replayed"). The counters are exact after dtorch.synchronize().

    Returns a dict (print it for a table) with
      calls: calls that reached the engine;  calls_replayed: those that were only compared
      plans_built, plans_found: chunks by what became of them (found includes replayed);  chunks_replayed
      plans_kept, plans_limit, plans_evicted: the cache's size, its limit (set_cache_limit), and how many plans left it for that
      mismatches: chunks that began like an earlier one and then differed: their calls went the usual way, at no loss but the comparison
      misses: {reason: count} for plans that had to be built: the first thing that the likest plan had different
      mismatch_reasons: {reason: count} for mismatches
      recent: the last 64 of both, oldest first: dicts of text, replay (True: a mismatch), file, line

    A reason reads "other shape of input 0 of add", "other operator: mul in place of add", "a result of mm is still named", "memory that may not be
    overwritten as input 0 of add_"; counts by reason are bounded: from the 255th different reason on they are "others".
    """
    counters, reasons, recent = _C._cache_stats()
    return CacheStats(
        counters,
        misses={text: n for replay, text, n in reasons if not replay},
        mismatch_reasons={text: n for replay, text, n in reasons if replay},
        recent=[{"replay": replay, "text": text, "file": file, "line": line} for replay, text, file, line in recent],
    )


def set_cache_limit(plans):
    """Keep at most this many plans (256 unless DTORCH_PLANS says otherwise); the least recently used leave first. At least 1.

    A step needs one plan for every hundred calls or so; a program whose shapes vary needs that for every shape it comes back to.
    """
    _C._cache_limit(plans)
