"""Handles of registered hooks."""

from __future__ import annotations


class RemovableHandle:
    """What a ``register_*_hook`` returns: :meth:`remove` takes the hook away again; also a context manager.

    Args:
        hooks: the dictionary, id to hook, that the handle takes its id from and later removes it from.
        extra: further dictionaries that may hold the same id.
    """

    next_id = 0
    __slots__ = ("id", "_hooks", "_extra")

    def __init__(self, hooks, *, extra=()):
        self.id = RemovableHandle.next_id
        RemovableHandle.next_id += 1
        self._hooks = hooks
        self._extra = extra

    def remove(self):
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self.id, None)
        for table in self._extra:
            table.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.remove()
