"""Data sets: by index (``__getitem__`` and ``__len__``) or as a stream (``__iter__``)."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from itertools import accumulate
from types import GenericAlias

import dtorch
from dtorch import Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]


class Dataset:
    """Samples by index: subclasses write ``__getitem__(index)`` and usually ``__len__``.

    A ``__getitems__(indices)`` that returns a list of samples is used for whole batches.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __getitem__(self, index):
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A stream of samples: subclasses write ``__iter__``. With workers, each has its own stream: see :func:`get_worker_info`."""

    def __iter__(self):
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Rows of tensors with the same first size: a sample is the tuple of the rows at an index."""

    def __init__(self, *tensors):
        if any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise AssertionError(f"Size mismatch between tensors: first sizes are {[t.shape[0] for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(t[index] for t in self.tensors)

    def __len__(self):
        return self.tensors[0].shape[0]

    def _batch(self, indices):
        """What ``default_collate`` makes of these samples, with one operator a tensor; None when a subclass has its own samples."""
        if type(self).__getitem__ is not TensorDataset.__getitem__ or "__getitems__" in dir(type(self)):
            return None
        rows = dtorch.tensor(indices, dtype=dtorch.int64)
        return [t[rows.to(t.device)] for t in self.tensors]


class StackDataset(Dataset):
    """Samples put together from several data sets of the same length: tuples, or dictionaries when given by name."""

    def __init__(self, *args, **kwargs):
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset takes either data sets by position (tuples) or by name (dictionaries), and at least one")
        self.datasets = args or kwargs
        sizes = [len(d) for d in (args or kwargs.values())]
        if any(s != sizes[0] for s in sizes):
            raise ValueError(f"Size mismatch between datasets: {sizes}")
        self._length = sizes[0]

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self):
        return self._length


class ConcatDataset(Dataset):
    """Data sets one after the other."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        if index < 0:
            if -index > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            index += len(self)
        which = bisect_right(self.cumulative_sizes, index)
        if which == len(self.datasets):
            raise IndexError(f"index {index} is out of range for a data set of {len(self)}")
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """Streams one after the other."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __iter__(self):
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from d

    def __len__(self):
        return sum(len(d) for d in self.datasets)


class Subset(Dataset):
    """The samples of `dataset` at `indices`."""

    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def _batch(self, indices):
        batch = getattr(self.dataset, "_batch", None)
        if batch is None or type(self) is not Subset:
            return None
        return batch([int(self.indices[i]) for i in indices])

    def __getitems__(self, indices):
        where = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return many(where) if callable(many) else [self.dataset[i] for i in where]

    def __len__(self):
        return len(self.indices)


def _split_sizes(lengths, total):
    """Sizes of the parts; fractions that add up to 1 are rounded down, what is left goes to the first parts, one each."""
    if not (math.isclose(sum(lengths), 1) and sum(lengths) <= 1):
        return list(lengths)
    for i, fraction in enumerate(lengths):
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1")
    sizes = [math.floor(total * fraction) for fraction in lengths]
    for i in range(total - sum(sizes)):
        sizes[i % len(sizes)] += 1
    for i, size in enumerate(sizes):
        if size == 0:
            warnings.warn(f"Length of split at index {i} is 0. This might result in an empty dataset.", stacklevel=3)
    return sizes


def random_split(dataset, lengths, generator=None):
    """Split a data set at random into parts of the given sizes, or of fractions that add up to 1; returns a list of :class:`Subset`."""
    sizes = _split_sizes(lengths, len(dataset))
    if sum(sizes) != len(dataset):
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = dtorch.randperm(sum(sizes), **({} if generator is None else {"generator": generator}))
    order = order.tolist() if isinstance(order, Tensor) else list(order)
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
