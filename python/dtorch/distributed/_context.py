"""Context parallelism: how attention over a sharded sequence runs."""

from __future__ import annotations

from dtorch import _C
from dtorch._modes import _Context

__all__ = ["context_parallel"]


class context_parallel(_Context):
    """How ``scaled_dot_product_attention`` runs where the sequence dimension of the queries is sharded; ``with`` block or decorator.

    Args:
        mode: ``"ulysses"``: an all-to-all each for q, k, v makes the heads the sharded dimension and another brings the result back;
            ``"ring"``: queries stay, blocks of keys and values pass from device to device; ``"gather"``: every device gets all keys and values;
            ``"auto"`` (as without this block): Ulysses where the heads divide evenly and fewer bytes move, else the ring.
        load_balance: the ring under ``is_causal=True`` only: devices exchange half of their queries, so that all work alike.
            Without it, the last device has nearly twice the mean work, and half as many bytes move.

    Forward decides for the backward pass too. Values are those of one device, to rounding; dropped weights are the same. Raises ValueError for
    another mode.
    """

    def __init__(self, mode="auto", *, load_balance=True):
        if not isinstance(mode, str) or mode not in ("auto", "ring", "ulysses", "gather"):
            raise ValueError(f"context_parallel(): mode {mode!r} is not legal: 'auto', 'ring', 'ulysses' and 'gather' are")
        self.mode, self.load_balance = mode, bool(load_balance)
        self._before = []

    def _again(self):
        return type(self)(self.mode, load_balance=self.load_balance)

    def __enter__(self):
        self._before.append(_C._context_set(self.mode, self.load_balance))
        return self

    def __exit__(self, *exc):
        _C._context_set(*self._before.pop())
