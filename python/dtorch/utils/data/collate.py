"""Making a batch of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import dtorch
from dtorch import Tensor

__all__ = ["default_collate", "default_convert"]


def _is_text(dtype):
    return dtype.kind in "USO"


def _from_array(array):
    if _is_text(array.dtype):
        raise TypeError(f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {array.dtype}")
    return (
        dtorch.from_numpy(np.ascontiguousarray(array)) if array.ndim else dtorch.tensor(array.item(), dtype=_from_array(array[None]).dtype)
    )


def default_convert(data):
    """NumPy arrays and scalars in a structure of lists, tuples and dicts as tensors; anything else unchanged."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        return data if _is_text(np.asarray(data).dtype) else _from_array(np.asarray(data))
    if isinstance(data, Mapping):
        return _same_kind(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(v) for v in data))
    if isinstance(data, tuple):
        return [default_convert(v) for v in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _same_kind(data, [default_convert(v) for v in data])
    return data


def _same_kind(like, items):
    """`items` in the class of `like`, if it can be made of them."""
    try:
        return type(like)(items)
    except TypeError:
        return items


def default_collate(batch):
    """Stack a list of samples: tensors, arrays and numbers get a new first dimension, inside dicts, tuples and lists.

    ``[(x0, 1), (x1, 2)]`` becomes ``[stack(x0, x1), tensor([1, 2])]``; floats become float64, ints int64; strings stay a list.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return dtorch.stack(list(batch), 0)
    if isinstance(first, np.ndarray):
        if _is_text(first.dtype):
            raise TypeError(f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {first.dtype}")
        return _from_array(np.stack([np.asarray(a) for a in batch]))
    if isinstance(first, np.generic):
        return _from_array(np.asarray(batch))
    if isinstance(first, bool):
        return dtorch.tensor(list(batch))
    if isinstance(first, float):
        return dtorch.tensor(list(batch), dtype=dtorch.float64)
    if isinstance(first, int):
        return dtorch.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _same_kind(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(column) for column in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        return columns if isinstance(first, tuple) else _same_kind(first, columns)
    raise TypeError(f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {type(first)}")
