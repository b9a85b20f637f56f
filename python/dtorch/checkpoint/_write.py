"""Writing a checkpoint: who writes which slice, the files, and saving beside the training.

Every device that holds slices nobody else was given writes one safetensors file; of replicas one is written, by the holder with the least to
write. A slice is what one device holds; where a strided shard is, its rows lie one after the other (the index says how, see `Slice`). Files are
laid out beforehand, so that slices can be written in any order by several threads.

An asynchronous save records the reading of all slices at the call, in the order of the program: what later steps write does not reach them. The
host holds a copy of the state until it is written. A plain save reads and writes a window of slices at a time.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import threading
import warnings

from dtorch.checkpoint import _files, _state
from dtorch.io import SafetensorError, _row_of

__all__ = ["SaveFuture", "save", "wait"]

_WINDOW = 1 << 28  # bytes of slices that a plain save holds on the host
_THREADS = 4


class SaveFuture(concurrent.futures.Future):
    """An asynchronous save: ``get()`` (or ``result(timeout)``) waits and gives the path, or raises what went wrong; it can be awaited in asyncio.

    ``bytes_done`` of ``bytes_total`` are written. ``done()`` never waits; ``wait(timeout=None)`` says whether it is done.
    """

    def __init__(self):
        super().__init__()
        self.bytes_done = self.bytes_total = 0

    def get(self):
        """The path of the complete checkpoint; waits for it."""
        return self.result()

    def wait(self, timeout=None):
        """Wait at most `timeout` seconds; is it done (or failed)?"""
        return bool(concurrent.futures.wait([self], timeout).done)

    def __await__(self):
        import asyncio

        return asyncio.wrap_future(self).__await__()


# ---- what is written where


class Slice:
    """What one device holds of a tensor.

    box: per dimension (lo, len, rows, step): `rows` runs of ``len / rows`` indices, `step` apart, the first at lo (src/tensor/layout.h).
    """

    __slots__ = ("box", "bytes", "device", "file", "index", "key", "offset", "row", "tensor")

    def __init__(self, tensor, index, box, row):
        self.tensor, self.index, self.box, self.row = tensor, index, box, row
        self.bytes = row[3]
        for _, n, _, _ in box:
            self.bytes *= n

    @property
    def shape(self):
        return [n for _, n, _, _ in self.box]

    def fetch(self):
        """A future of its bytes."""
        local = self.tensor if self.tensor.device_mesh.ndim == 0 else self.tensor.to_local(self.index)
        return local._bytes_async()


def _suffix(box):
    return "[" + ",".join(f"{lo}:{lo + n}" if rows == 1 else f"{lo}+{rows}x{n // rows}/{step}" for lo, n, rows, step in box) + "]"


def _resolved(tensor):
    """`tensor` without Partial placements."""
    from dtorch import Replicate, no_grad

    tensor = tensor.detach()
    if tensor.device_mesh.ndim and any(p.is_partial() for p in tensor.placements):
        with no_grad():
            return tensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in tensor.placements])
    return tensor


def _device_name(device):
    name = str(device)
    return name if ":" in name else name + ":0"


def _slices(name, tensor, load):
    """The distinct slices of a tensor; `load`: bytes given to each device so far, which is brought up to date."""
    row = _row_of(tensor.dtype)
    if row is None:
        raise SafetensorError(f"checkpoint.save(): {name!r} has dtype {tensor.dtype}, which the format does not have")
    tensor = _resolved(tensor)
    mesh = tensor.device_mesh
    devices = [_device_name(d) for d in mesh.devices] if mesh.ndim else [_device_name(tensor.device)]
    holders = {}
    for i, box in enumerate(tensor._boxes()):
        holders.setdefault(tuple(box), []).append(i)
    out = []
    for box, at in holders.items():
        index = min(at, key=lambda i: (load.get(devices[i], 0), i))
        s = Slice(tensor, index, box, row)
        if s.bytes == 0:
            continue
        s.device = devices[index]
        load[s.device] = load.get(s.device, 0) + s.bytes
        out.append(s)
    whole = len(out) == 1 and out[0].shape == [int(n) for n in tensor.shape]
    for s in out:
        s.key = name if whole else name + _suffix(s.box)
    return out


def _layout(tensor):
    """How it lay: for state that its owner has no better idea for (an optimizer's flat vectors), so that it goes on bit for bit."""
    if not tensor.device_mesh.ndim:
        return {}
    names = [("S" + str(p.dim) + (f"/{p.split_factor}" if p.split_factor > 1 else "")) if p.is_shard() else "R" for p in tensor.placements]
    return {"mesh": list(tensor.device_mesh.shape), "placements": names}


class _Plan:
    """All slices with their files and offsets, and the index without checksums."""

    def __init__(self, state):
        tensors, self.tree = _state.encode(state)
        self.entries = {}  # name -> (row, shape, slices, layout)
        load = {}
        for name, tensor in tensors.items():
            row = _row_of(tensor.dtype)
            slices = _slices(name, tensor, load)
            self.entries[name] = row, [int(n) for n in tensor.shape], slices, _layout(tensor)
        self.devices = sorted(load, key=lambda d: (d.partition(":")[0], int(d.partition(":")[2])))
        self.files = {}  # name of the file -> (head, size, slices); see lay_out
        self.bytes = sum(load.values())

    def slices(self):
        """All slices, tensor by tensor."""
        return (s for _, _, slices, _ in self.entries.values() for s in slices)

    def lay_out(self):
        """Give every slice its file and its place in it."""
        for number, device in enumerate(self.devices):
            self._lay_out(f"part-{number:05d}.safetensors", [s for s in self.slices() if s.device == device])

    def _lay_out(self, file, slices):
        slices.sort(key=lambda s: (-s.row[3], s.key))  # wide elements first: everything stays aligned
        header, at = {"__metadata__": {"format": _files.FORMAT}}, 0
        for s in slices:
            header[s.key] = {"dtype": s.row[0], "shape": s.shape, "data_offsets": [at, at + s.bytes]}
            s.file, s.offset = file, at
            at += s.bytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        for s in slices:
            s.offset += len(head)
        self.files[file] = head, len(head) + at, slices

    def in_order(self):
        """The slices in the order in which they are read: files in turn, so that all of them grow."""
        lists = [list(slices) for _, _, slices in self.files.values()]
        for i in range(max(map(len, lists), default=0)):
            for slices in lists:
                if i < len(slices):
                    yield slices[i]

    def index(self, sums, time_ns):
        tensors = {}
        for name, (row, shape, slices, layout) in self.entries.items():
            tensors[name] = {"dtype": row[0], "shape": shape, "slices": [self._slice(s, sums) for s in slices], **layout}
        files = {file: {"size": size, "header": _files.checksum(head)} for file, (head, size, _) in self.files.items()}
        return {
            "format": _files.FORMAT,
            "version": _files.VERSION,
            "time_ns": time_ns,
            "state": self.tree,
            "tensors": tensors,
            "files": files,
        }

    @staticmethod
    def _slice(s, sums):
        out = {"file": s.file, "key": s.key, "at": [b[0] for b in s.box], "shape": s.shape, "crc32": sums[s]}
        if any(b[2] > 1 for b in s.box):
            out["rows"], out["step"] = [b[2] for b in s.box], [b[3] for b in s.box]
        return out


# ---- progress


class _Progress:
    """Tells somebody how far a save is: a function of (bytes done, bytes in all), a bar of rich, or lines on stderr where rich is not installed."""

    def __init__(self, want, future, what):
        self.future, self.tell, self.bar = future, want if callable(want) else None, None
        self.lock = threading.Lock()
        if want and not callable(want):
            self._open_bar(what)

    def _open_bar(self, what):
        try:
            from rich import progress
        except ImportError:
            self.tell, self.tenth, self.what = self._line, -1, what
            return
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn()
        )
        self.task = self.bar.add_task(what, total=self.future.bytes_total)
        self.bar.start()

    def _line(self, done, total):
        import sys

        tenth = 10 if not total else 10 * done // total
        if tenth != self.tenth:
            self.tenth = tenth
            print(f"{self.what}: {10 * tenth} %", file=sys.stderr)

    def add(self, n):
        with self.lock:
            self.future.bytes_done += n
            if self.tell is not None:
                self.tell(self.future.bytes_done, self.future.bytes_total)
            if self.bar is not None:
                self.bar.update(self.task, completed=self.future.bytes_done)

    def close(self):
        if self.bar is not None:
            self.bar.stop()


# ---- the work


class _Job:
    """One save: threads write slices as their bytes come, then the index, then the name."""

    def __init__(self, plan, path, keep, progress):
        self.plan, self.keep = plan, keep
        self.future = SaveFuture()
        self.future.bytes_total = plan.bytes
        self.writer = _files.Writer(path)
        self.time = _files.next_time(self.writer.parent)
        self.progress = _Progress(progress, self.future, f"saving {os.path.basename(self.writer.path)}")
        self.sums = {}
        self.queue = queue.SimpleQueue()
        self.failure = None
        self.held = 0
        self.changed = threading.Condition()
        self.fds = {}

    def open(self):
        self.plan.lay_out()
        for file, (head, _, _) in self.plan.files.items():
            fd = os.open(os.path.join(self.writer.folder, file), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            self.fds[file] = fd
            _write_all(fd, head, 0)

    def put(self, s, fetched):
        """A slice that is being read; waits while too much is held (plain saves)."""
        self.queue.put((s, fetched))

    def reserve(self, n):
        with self.changed:
            while self.held and self.held + n > _WINDOW and self.failure is None:
                self.changed.wait()
            self.held += n

    def work(self):
        """A thread: writes what is in the queue until None."""
        while (item := self.queue.get()) is not None:
            s, fetched = item
            if self.failure is None:
                try:
                    self._one(s, memoryview(fetched.get()).cast("B"))
                except BaseException as e:  # reported by the future
                    self.failure = self.failure or e
            del item, fetched
            with self.changed:
                self.held -= s.bytes
                self.changed.notify()

    def _one(self, s, data):
        if len(data) != s.bytes:
            raise RuntimeError(f"checkpoint.save(): {s.key!r} has {len(data)} bytes, expected {s.bytes}")
        self.sums[s] = _files.checksum(data)
        _write_all(self.fds[s.file], data, s.offset)
        self.progress.add(s.bytes)

    def finish(self):
        """All slices are in the queue: write them, and the rest."""
        self.open()
        threads = [threading.Thread(target=self.work, name="dtorch-checkpoint") for _ in range(min(_THREADS, max(1, len(self.fds))) - 1)]
        for t in threads:
            t.start()
        for _ in range(len(threads) + 1):
            self.queue.put(None)
        self.work()
        for t in threads:
            t.join()
        self.publish()

    def publish(self):
        if self.failure is not None:
            raise self.failure
        for fd in self.fds.values():
            os.fsync(fd)
        fd = os.open(os.path.join(self.writer.folder, _files.INDEX), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.fds[_files.INDEX] = fd
        _write_all(fd, _files.index_bytes(self.plan.index(self.sums, self.time)), 0)
        os.fsync(fd)
        self.close()
        self.writer.publish()
        if self.keep is not None:
            _files.prune(self.writer.path, self.keep)

    def close(self):
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def run(self, body):
        """`body`, and the future's result from it."""
        try:
            body()
        except BaseException as e:
            self.close()
            self.writer.discard()
            self.future.set_exception(e)
        else:
            self.future.set_result(self.writer.path)
        finally:
            self.progress.close()
            self.plan = None  # let go of the tensors


def _write_all(fd, data, at):
    view = memoryview(data)
    while len(view):
        n = os.pwrite(fd, view[: 1 << 30], at)
        view, at = view[n:], at + n


def _save_now(job):
    """Reading on this thread, writing on others, a window at a time."""
    job.open()
    n = min(_THREADS, max(1, len(job.fds)))
    threads = [threading.Thread(target=job.work, name="dtorch-checkpoint") for _ in range(n)]
    for t in threads:
        t.start()
    try:
        for s in job.plan.in_order():
            job.reserve(s.bytes)
            if job.failure is not None:
                break
            job.put(s, s.fetch())
    finally:
        for _ in threads:
            job.queue.put(None)
        for t in threads:
            t.join()
    job.publish()


_last = None  # the last asynchronous save
_last_lock = threading.Lock()


def wait():
    """Wait until the last asynchronous save is done; raises what went wrong with it, once."""
    global _last
    with _last_lock:
        last = _last
    if last is None:
        return
    try:
        last.result()
    finally:
        with _last_lock:
            if _last is last and last.done():
                _last = None


def _report(future):
    """An asynchronous save that failed, and nobody may ever ask."""
    error = future.exception()
    if error is not None:
        warnings.warn(f"an asynchronous checkpoint.save() failed: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)


def save(path, state, *, asynchronous=False, keep=None, progress=None):
    """Write a checkpoint: a directory `path` that appears, whole, when everything is on the disk.

    Args:
        path: the directory. A checkpoint of that name is replaced, at the same moment.
        state: nested dicts, lists and tuples of tensors (on any meshes), numbers, text, bytes, arrays and None, and objects with
            ``state_dict()`` and ``load_state_dict()``: modules, optimizers, schedulers, data loaders, scalers; a ``dtorch.Generator`` too.
        asynchronous: return at once; the values are those of now, whatever later calls write. One save is under way at a time: the next one
            waits for it. The host holds a copy of the state until it is written.
        keep: delete older checkpoints in the same directory whose names differ by digits only ("step-100", "step-200"), but for the last `keep`.
        progress: True: a progress bar (with `rich`, else lines on stderr); or a function that gets (bytes written, bytes in all).

    Returns:
        the path; asynchronous: a :class:`SaveFuture` of it.

    Raises:
        TypeError: something that cannot be saved is in the state; the message says where.
        FileExistsError: `path` exists and is no checkpoint.
        OSError: the disk is full, and the like; nothing of the checkpoint remains, an older one of the name stays as it was.
    """
    global _last
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise ValueError(f"checkpoint.save(): keep must be None or a number of checkpoints, at least 1, got {keep!r}")
    path = os.path.abspath(os.fspath(path))
    with _last_lock:
        last = _last
    if last is not None:
        concurrent.futures.wait([last])
    job = _Job(_Plan(state), path, keep, progress)
    if not asynchronous:
        job.run(lambda: _save_now(job))
        return job.future.result()
    try:
        for s in job.plan.slices():
            job.held += s.bytes
            job.put(s, s.fetch())
            s.tensor = None
    except BaseException:
        job.run(_raise)
        raise
    with _last_lock:
        _last = job.future
    job.future.add_done_callback(_report)
    threading.Thread(
        target=job.run, args=(job.finish,), name="dtorch-checkpoint"
    ).start()  # not a daemon: a program that ends finishes it first
    return job.future


def _raise():
    raise
