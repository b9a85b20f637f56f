"""Workers of a :class:`DataLoader`: threads (the default) or processes that are started afresh ("spawn").

Each worker has a queue of tasks; all put their results into one. Messages to a worker are ``("epoch", number, seed)``, ``("task", number,
indices)`` and None, which ends it; results are ``(epoch, number, worker, kind, payload)`` with kind "data", "error" or "end" (its stream is
exhausted). Between processes, tensors travel as NumPy arrays.
"""

from __future__ import annotations

import copy
import pickle
import queue
import threading
import time
import traceback

from dtorch.utils.data.collate import default_collate
from dtorch.utils.data.dataset import Dataset

__all__ = ["WorkerError", "WorkerInfo", "WorkerPool", "get_worker_info"]

_current = threading.local()


class WorkerInfo:
    """What a worker knows of itself: ``id``, ``num_workers``, ``seed`` and ``dataset``, its copy of the data set."""

    def __init__(self, id, num_workers, seed, dataset):
        self.id, self.num_workers, self.seed, self.dataset = id, num_workers, seed, dataset

    def __repr__(self):
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed}, dataset={self.dataset!r})"


def get_worker_info():
    """The :class:`WorkerInfo` in a worker of a loader, None elsewhere."""
    return getattr(_current, "info", None)


class Fetcher:
    """Makes batches of a data set: by indices, or the next so many of its stream."""

    def __init__(self, dataset, iterable, auto_collation, collate_fn, drop_last):
        self.dataset, self.auto_collation, self.collate_fn, self.drop_last = dataset, auto_collation, collate_fn, drop_last
        self.stream = iter(dataset) if iterable else None
        # Rows of tensors are gathered, not taken one by one and stacked.
        self.batch = getattr(dataset, "_batch", None) if collate_fn is default_collate else None

    def fetch(self, indices):
        """The batch of these indices; StopIteration when the stream has ended."""
        if not self.auto_collation:
            return self.collate_fn(next(self.stream) if self.stream is not None else self.dataset[indices])
        if self.stream is not None:
            samples = []
            for _ in indices:
                try:
                    samples.append(next(self.stream))
                except StopIteration:
                    break
            if not samples or (self.drop_last and len(samples) < len(indices)):
                raise StopIteration
        else:
            if self.batch is not None and (batch := self.batch(indices)) is not None:
                return batch
            many = getattr(self.dataset, "__getitems__", None)
            samples = many(indices) if callable(many) else [self.dataset[i] for i in indices]
        return self.collate_fn(samples)


class WorkerError:
    """An error of a worker on its way to the caller."""

    def __init__(self, error, where):
        self.kind = type(error)
        self.message = f"Caught {self.kind.__name__} in {where}.\nOriginal {''.join(traceback.format_exception(type(error), error, error.__traceback__))}"

    def reraise(self):
        """Raise it again: the same class, with the worker's traceback in the message."""
        if self.kind is KeyError:  # whose text is a repr: keep the lines
            error = KeyError(_Text(self.message))
        else:
            try:
                error = self.kind(self.message)
            except Exception:  # a class that wants other arguments
                error = RuntimeError(self.message)
        raise error


class _Text(str):
    __slots__ = ()

    def __repr__(self):
        return str(self)


class WorkerSetup:
    """Everything a worker is told at its start."""

    def __init__(self, worker, count, dataset, iterable, auto_collation, collate_fn, drop_last, init_fn, where):
        self.worker, self.count, self.dataset, self.iterable = worker, count, dataset, iterable
        self.auto_collation, self.collate_fn, self.drop_last, self.init_fn = auto_collation, collate_fn, drop_last, init_fn
        self.where = where


def run_worker(setup, seed, tasks, results):
    """The life of a worker: take tasks, put results, until None."""
    w = setup.worker
    where = f"DataLoader worker {setup.where} {w}"
    _current.info = WorkerInfo(w, setup.count, seed + w, setup.dataset)
    epoch, fetcher, failure, ended = 0, None, None, False
    try:
        if setup.init_fn is not None:
            setup.init_fn(w)
    except Exception as e:
        failure = WorkerError(e, where)
    while (message := tasks.get()) is not None:
        if message[0] == "epoch":
            _, epoch, seed = message
            _current.info.seed = seed + w
            fetcher, ended = None, False
            continue
        _, number, indices = message
        if ended:
            continue
        try:
            if failure is None:
                if fetcher is None:
                    fetcher = Fetcher(setup.dataset, setup.iterable, setup.auto_collation, setup.collate_fn, setup.drop_last)
                result = (epoch, number, w, "data", fetcher.fetch(indices))
            else:
                result, failure = (epoch, number, w, "error", failure), None
        except StopIteration as e:
            if setup.iterable:
                ended = True
                result = (epoch, number, w, "end", None)
            else:
                result = (epoch, number, w, "error", WorkerError(e, where))
        except Exception as e:
            result = (epoch, number, w, "error", WorkerError(e, where))
        results.put(result)


def _rebuild_tensor(data, shape, dtype):
    import dtorch
    from dtorch.io import _BY_NAME

    dtype = getattr(dtorch, _BY_NAME[dtype][1])
    return (dtorch.frombuffer(data, dtype=dtype) if len(data) else dtorch.empty(0, dtype=dtype)).reshape(shape)


def _reduce_tensor(tensor):
    from dtorch.io import _row_of

    row = _row_of(tensor.dtype)
    if row is None:
        raise TypeError(f"a tensor of dtype {tensor.dtype} cannot be sent to another process")
    data = bytes(tensor.detach()._bytes_async().get()) if tensor.numel() else b""
    return _rebuild_tensor, (data, tuple(tensor.shape), row[0])


def _tensors_as_bytes():
    """From now on, tensors sent to another process travel as bytes."""
    from multiprocessing.reduction import ForkingPickler

    import dtorch
    from dtorch.nn.parameter import Buffer, Parameter

    for cls in (dtorch.Tensor, Parameter, Buffer):
        ForkingPickler.register(cls, _reduce_tensor)


class _Pickled:
    """The results of a process: pickled by the worker itself, so that a batch that cannot be sent is an error like any other."""

    def __init__(self, queue, where):
        self.queue, self.where = queue, where

    def put(self, result):
        from multiprocessing.reduction import ForkingPickler

        try:
            data = bytes(ForkingPickler.dumps(result))
        except Exception as e:
            data = bytes(ForkingPickler.dumps((*result[:3], "error", WorkerError(e, self.where))))
        self.queue.put(data)


def _process_main(setup, seed, tasks, results):
    _tensors_as_bytes()
    run_worker(setup, seed, tasks, _Pickled(results, f"DataLoader worker process {setup.worker}"))


def _process_context(context):
    """The multiprocessing context of a name or a context; not "fork", which copies the engine without its threads."""
    import multiprocessing

    if isinstance(context, str):
        if context not in multiprocessing.get_all_start_methods():
            methods = multiprocessing.get_all_start_methods()
            raise ValueError(f"multiprocessing_context option should specify a valid start method in {methods}, but got {context!r}")
        context = multiprocessing.get_context(context)
    if context.get_start_method() == "fork":
        raise ValueError("multiprocessing_context='fork' would copy the engine without its threads: use 'spawn' or 'forkserver'")
    return context


class WorkerPool:
    """`count` workers and their queues."""

    def __init__(self, loader, iterable, auto_collation, seed):
        self.count = loader.num_workers
        self.epoch = 0
        self.closed = False
        processes = loader.multiprocessing_context is not None
        context = _process_context(loader.multiprocessing_context) if processes else None
        if processes:
            _tensors_as_bytes()
        self.results = context.Queue() if processes else queue.SimpleQueue()
        self.tasks, self.workers = [], []
        for w in range(self.count):
            dataset = loader.dataset
            if not processes and isinstance(dataset, Dataset):
                dataset = copy.copy(dataset)  # a worker may change its data set's fields, as it may in a process
            setup = WorkerSetup(
                w,
                self.count,
                dataset,
                iterable,
                auto_collation,
                loader.collate_fn,
                loader.drop_last,
                loader.worker_init_fn,
                "process" if processes else "thread",
            )
            tasks = context.Queue() if processes else queue.SimpleQueue()
            args = (setup, seed, tasks, self.results)
            if processes:
                worker = context.Process(target=_process_main, args=args, daemon=True, name=f"dtorch-data-{w}")
            else:
                worker = threading.Thread(target=run_worker, args=args, daemon=True, name=f"dtorch-data-{w}")
            worker.start()
            self.tasks.append(tasks)
            self.workers.append(worker)

    def begin(self, seed):
        """Begin a new pass over the data; results of an unfinished one are ignored from now on."""
        self.epoch += 1
        for tasks in self.tasks:
            tasks.put(("epoch", self.epoch, seed))

    def send(self, worker, number, indices):
        """Give a worker a task."""
        self.tasks[worker].put(("task", number, indices))

    def receive(self, timeout):
        """The next result of this pass: (number, worker, kind, payload). RuntimeError after `timeout` seconds (0: never)."""
        deadline = time.monotonic() + timeout if timeout else None
        while True:
            wait = 1.0 if deadline is None else min(1.0, max(deadline - time.monotonic(), 0.0))
            try:
                result = self.results.get(timeout=wait)
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from None
                dead = [w for w in self.workers if not w.is_alive()]
                if dead:
                    which = ", ".join(f"{w.name} (pid {w.pid}, exit code {w.exitcode})" for w in dead if hasattr(w, "pid"))
                    raise RuntimeError(f"DataLoader worker exited unexpectedly: {which or dead[0].name}") from None
                continue
            epoch, *result = pickle.loads(result) if isinstance(result, bytes) else result
            if epoch == self.epoch:
                return result

    def close(self):
        """Let the workers end."""
        if self.closed:
            return
        self.closed = True
        for tasks in self.tasks:
            tasks.put(None)
        for worker in self.workers:
            if hasattr(worker, "terminate"):
                worker.join(timeout=5.0)
                if worker.is_alive():
                    worker.terminate()

    def __del__(self):
        if not getattr(self, "closed", True):
            try:
                self.close()
            except Exception:  # at the interpreter's end
                pass
