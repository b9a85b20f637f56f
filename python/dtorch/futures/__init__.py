"""Values that will be there: what ``x.item_async()``, ``x.numpy_async()``, ``x.tolist_async()`` and ``synchronize_async()`` return.

A future has ``get()``, ``wait(timeout=None) -> bool`` and ``done() -> bool``, and can be awaited in asyncio: the event loop watches one
descriptor that the engine writes to, so nothing polls and no thread waits.
"""

from __future__ import annotations

import asyncio
import weakref

from dtorch._C import Future, _Waker

__all__ = ["Future", "wait_all"]

_wakers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # event loop -> (waker, its pending futures)


def _wake(waker, pending):
    """In the loop: the values of some futures came."""
    waker.clear()
    still = [(future, there) for future, there in pending if not there.done() and not future.done()]
    ready = [there for future, there in pending if not there.done() and future.done()]
    pending[:] = still
    for there in ready:
        there.set_result(None)


def _await(future):
    """The iterator of ``await future``."""
    if not future.done():
        loop = asyncio.get_running_loop()
        if loop not in _wakers:
            waker, pending = _Waker(), []
            _wakers[loop] = waker, pending
            loop.add_reader(waker.fileno(), _wake, waker, pending)
        waker, pending = _wakers[loop]
        there = loop.create_future()
        pending.append((future, there))
        future._notify(waker)
        yield from there
    return future.get()


def wait_all(futures):
    """The values of all `futures`, as a list; waits for them."""
    return [f.get() for f in list(futures)]
