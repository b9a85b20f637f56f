"""Samplers: the order in which samples are taken."""

from __future__ import annotations

from itertools import islice
from types import GenericAlias

import dtorch
from dtorch import Tensor

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


def _generator(generator):
    return {} if generator is None else {"generator": generator}


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Sampler:
    """An iterable of indices; subclasses write ``__iter__`` and usually ``__len__``."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, data_source=None):
        pass

    def __iter__(self):
        raise NotImplementedError


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


def _own(generator):
    """The generator that a pass draws from: the given one, or one seeded by a single draw from the default, so that a pass depends on that
    draw alone, whatever else draws meanwhile."""
    if generator is not None:
        return {"generator": generator}
    own = dtorch.Generator()
    own.manual_seed(int(dtorch.randint(0, 2**62, (1,), dtype=dtorch.int64).item()))
    return {"generator": own}


class RandomSampler(Sampler):
    """A new random order each time; `num_samples` of them (more than there are: several orders), or drawn with `replacement`."""

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not _is_count(self.num_samples):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={self.num_samples}")

    @property
    def num_samples(self):
        """How many indices one pass gives."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        n, left, options = len(self.data_source), self.num_samples, _own(self.generator)
        while left > 0:
            if self.replacement:
                block = dtorch.randint(0, n, (min(left, 1024),), dtype=dtorch.int64, **options).tolist()
            else:
                block = dtorch.randperm(n, **options).tolist()[:left]
            yield from block
            left -= len(block)

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in a new random order each time."""

    def __init__(self, indices, generator=None):
        self.indices = indices
        self.generator = generator

    def __iter__(self):
        for i in dtorch.randperm(len(self.indices), **_generator(self.generator)).tolist():
            yield self.indices[i]

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` indices drawn with the given probabilities (not necessarily adding up to 1)."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        if not _is_count(num_samples):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        weights = weights if isinstance(weights, Tensor) else dtorch.tensor(list(weights), dtype=dtorch.float64)
        if weights.dim() != 1:
            raise ValueError(f"weights should be a 1d sequence but given weights have shape {tuple(weights.shape)}")
        self.weights = weights
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self):
        return iter(dtorch.multinomial(self.weights, self.num_samples, self.replacement, **_generator(self.generator)).tolist())

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler; the last, shorter one is left out when `drop_last`."""

    def __init__(self, sampler, batch_size, drop_last):
        if not _is_count(batch_size):
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self):
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else (n + self.batch_size - 1) // self.batch_size
