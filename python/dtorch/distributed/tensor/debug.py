"""Looking at distributed tensors, under PyTorch's names."""

from __future__ import annotations

from dtorch._comm import comm_scope
from dtorch.distributed._show import visualize_sharding

__all__ = ["CommDebugMode", "visualize_sharding"]


class CommDebugMode(comm_scope):
    """Counts the collectives of a block: ``with CommDebugMode() as comm:``, then comm.get_comm_counts(), comm.get_total_counts().

    Kinds are strings such as "all_reduce". dtorch.comm_scope gives the same with bytes, mesh dimensions and lines.
    """

    def __enter__(self):
        super().__enter__()
        return self

    def get_comm_counts(self):
        """{kind: how many}."""
        return {row["kind"]: row["count"] for row in self.report.by("kind")}

    def get_total_counts(self):
        """How many in all."""
        return self.report.count

    def generate_comm_debug_tracing_table(self, noise_level=3):
        """The report as a table, by line."""
        return str(self.report)
