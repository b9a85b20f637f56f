"""The loader: batches of a data set, made by the caller or ahead of time by workers, always in the sampler's order."""

from __future__ import annotations

import itertools
import warnings
from types import GenericAlias

import dtorch
from dtorch.utils.data.collate import default_collate, default_convert
from dtorch.utils.data.dataset import IterableDataset
from dtorch.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from dtorch.utils.data.worker import Fetcher, WorkerPool

__all__ = ["DataLoader"]


class _Endless(Sampler):
    """None for ever: the indices of a stream."""

    def __iter__(self):
        return itertools.repeat(None)


class _Place:
    """Where a pass is: the random state that it began with, and how many batches it gave. Entered around each batch."""

    def __init__(self, start, given):
        self.start, self.given, self.ended = start, given, False

    def __enter__(self):
        pass

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.given += 1
        else:
            self.ended = self.ended or kind is StopIteration


class _SingleIter:
    """Batches made when they are asked for."""

    def __init__(self, loader, indices, place):
        self._loader_len = loader.__len__
        self._indices, self._place = indices, place
        self._fetcher = Fetcher(loader.dataset, loader._iterable, loader._auto_collation, loader.collate_fn, loader.drop_last)

    def __iter__(self):
        return self

    def __len__(self):
        return self._loader_len()

    def __next__(self):
        with self._place:
            return self._fetcher.fetch(next(self._indices))


class _WorkerIter:
    """Batches made ahead by workers: each has `prefetch_factor` tasks, given out in turn; results wait until it is their turn."""

    def __init__(self, loader, pool, seed, indices, place):
        self._loader_len = loader.__len__
        self._pool, self._keep = pool, loader.persistent_workers
        self._timeout = loader.timeout
        self._indices, self._place = indices, place
        self._active = [True] * pool.count
        self._turn = itertools.cycle(range(pool.count))
        self._owner = {}  # task -> its worker, while it is not delivered
        self._ready = {}  # task -> result that came early
        self._sent = self._next = 0
        pool.begin(seed)
        for _ in range(loader.prefetch_factor * pool.count):
            self._send()

    def __iter__(self):
        return self

    def __len__(self):
        return self._loader_len()

    def _send(self):
        """Give the next task to the next worker that still has data."""
        if not any(self._active):
            return
        try:
            indices = next(self._indices)
        except StopIteration:
            return
        worker = next(w for w in self._turn if self._active[w])
        self._owner[self._sent] = worker
        self._pool.send(worker, self._sent, indices)
        self._sent += 1

    def _deliver(self, number, kind, payload):
        del self._owner[number]
        self._next += 1
        self._send()
        if kind == "error":
            payload.reraise()
        return payload

    def __next__(self):
        with self._place:
            return self._take()

    def _take(self):
        while True:
            while self._next < self._sent and self._next not in self._ready and not self._active[self._owner[self._next]]:
                del self._owner[self._next]  # its worker's stream ended before
                self._next += 1
            if self._next >= self._sent:
                if not self._keep:
                    self._pool.close()
                raise StopIteration
            if self._next in self._ready:
                return self._deliver(self._next, *self._ready.pop(self._next))
            number, worker, kind, payload = self._pool.receive(self._timeout)
            if kind == "end":
                self._active[worker] = False
                self._send()
            elif number == self._next:
                return self._deliver(number, kind, payload)
            else:
                self._ready[number] = (kind, payload)


class DataLoader:
    """Iterates over batches of a data set.

    Args:
        dataset: samples by index, or a stream (:class:`IterableDataset`).
        batch_size: samples of a batch; None gives samples alone.
        shuffle: a new random order for each pass.
        sampler: the order of the samples, instead of `shuffle`.
        batch_sampler: lists of indices, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: how many workers make batches ahead; 0: the caller makes them. Workers are threads; for Python code that does not release
            the interpreter, ``multiprocessing_context="spawn"`` makes them processes (tensors then travel as NumPy arrays).
        collate_fn: makes a batch of a list of samples.
        drop_last: leave out the last batch if it is shorter.
        timeout: seconds to wait for a worker; 0: for ever.
        worker_init_fn: called with the worker's number when it starts.
        generator: draws the random order and the workers' seeds.
        prefetch_factor: batches that each worker makes ahead (2).
        persistent_workers: keep the workers for the next pass.
        pin_memory, pin_memory_device, in_order: accepted; have no effect.
    """

    __class_getitem__ = classmethod(GenericAlias)
    _sealed = False

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
    ):
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing."
                "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if num_workers == 0 and multiprocessing_context is not None:
            raise ValueError(f"multiprocessing_context can only be used with num_workers > 0, but got num_workers={num_workers}")
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers > 0 else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.generator = generator
        self.persistent_workers = persistent_workers
        self._iterable = isinstance(dataset, IterableDataset)
        self._choose_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.collate_fn = collate_fn or (default_collate if self._auto_collation else default_convert)
        self._pool = None
        self._place = None  # of the last pass that was begun
        self._resumed = None  # (start, given): what the next pass goes on from
        self._sealed = True

    def _choose_samplers(self, batch_size, shuffle, sampler, batch_sampler, drop_last):
        if self._iterable:
            if shuffle:
                raise ValueError(f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}")
            for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
                if given is not None:
                    raise ValueError(f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={given}")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None:
            if self._iterable:
                sampler = _Endless()
            elif shuffle:
                sampler = RandomSampler(self.dataset, generator=self.generator)
            else:
                sampler = SequentialSampler(self.dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler

    def __setattr__(self, name, value):
        if self._sealed and name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        object.__setattr__(self, name, value)

    @property
    def _auto_collation(self):
        return self.batch_sampler is not None

    @property
    def _index_sampler(self):
        return self.batch_sampler if self._auto_collation else self.sampler

    def _seed(self):
        options = {} if self.generator is None else {"generator": self.generator}
        return int(dtorch.randint(0, 2**31 - 1, (1,), dtype=dtorch.int64, **options).item())

    def __iter__(self):
        generator = self._drawn_from()
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._place = _Place(generator.get_state(), 0)
            return self._begin(self._place)
        now = generator.get_state()
        generator.set_state(resumed[0])
        try:
            self._place = _Place(*resumed)
            return self._begin(self._place)
        finally:
            if generator is dtorch.default_generator:  # whose state is the program's, not this pass's
                generator.set_state(now)

    def _begin(self, place):
        indices = iter(self._index_sampler)
        for _ in itertools.islice(indices, 0 if self._iterable else place.given):
            pass
        indices = itertools.chain(list(itertools.islice(indices, 1)), indices)  # what it draws is drawn now
        if self.num_workers == 0:
            it = _SingleIter(self, indices, place)
        else:
            seed = self._seed()
            pool = self._pool
            if pool is None or pool.closed:
                pool = WorkerPool(self, self._iterable, self._auto_collation, seed)
                if self.persistent_workers:
                    self._pool = pool
            it = _WorkerIter(self, pool, seed, indices, place)
        if self._iterable and place.given:  # a stream is read again up to there
            given, place.given = place.given, 0
            for _ in itertools.islice(it, given):
                pass
        return it

    # ---- going on in the middle of a pass

    def _drawn_from(self):
        """The generator that passes draw from."""
        for holder in (self, self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if generator is not None:
                return generator
        return dtorch.default_generator

    def state_dict(self):
        """Where the loader is: in the pass that was begun last, after how many batches, and the random state that the pass began with.

        With :meth:`load_state_dict`, the next ``iter(loader)`` goes on with the batch after the last one given, in the same order. Random
        changes that the data set itself makes to samples are repeated only where they draw from the program's generators.
        """
        generator = self._drawn_from()
        state = {"start": None, "given": 0, "generator": None if generator is dtorch.default_generator else generator.get_state()}
        if self._resumed is not None:
            state["start"], state["given"] = self._resumed
        elif self._place is not None and not self._place.ended:
            state["start"], state["given"] = self._place.start, self._place.given
        return state

    def load_state_dict(self, state_dict):
        """Go on from such a state with the next ``iter(loader)``; the data set and the sampler must be the same."""
        start = state_dict["start"]
        self._place = None
        self._resumed = None if start is None else (start, int(state_dict["given"]))
        if state_dict["generator"] is not None:
            self._drawn_from().set_state(state_dict["generator"])

    def __len__(self):
        if not self._iterable:
            return len(self._index_sampler)
        length = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else (length + self.batch_size - 1) // self.batch_size

    def check_worker_number_rationality(self):
        """Warn when there are more workers than cores."""
        import os

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.num_workers > cores:
            warnings.warn(f"This DataLoader will create {self.num_workers} workers; this machine has {cores} cores.", stacklevel=2)
