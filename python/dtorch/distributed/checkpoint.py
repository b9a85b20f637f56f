"""Checkpoints under PyTorch's names: :func:`save`, :func:`async_save` and :func:`load` of a state dict. :mod:`dtorch.checkpoint` does the work.

There are no ranks, hence no planners and no process groups: the arguments for them are accepted where they are None.
"""

from __future__ import annotations

import os

from dtorch import checkpoint as _checkpoint
from dtorch.checkpoint import CheckpointError as CheckpointException

__all__ = ["CheckpointException", "FileSystemReader", "FileSystemWriter", "async_save", "load", "save"]


class _FileSystem:
    """Where a checkpoint is: a directory."""

    def __init__(self, path, *args, **kwargs):
        self.path = os.fspath(path)


class FileSystemReader(_FileSystem):
    """A checkpoint to read: ``FileSystemReader(path)``."""


class FileSystemWriter(_FileSystem):
    """A checkpoint to write: ``FileSystemWriter(path)``; further options are accepted and have no effect."""


def _path(checkpoint_id, storage, who, kind, **planner):
    for name, value in planner.items():
        if value is not None:
            raise NotImplementedError(f"{who}(): {name} is not supported, got {type(value).__name__}")
    if storage is not None and not isinstance(storage, kind):
        raise TypeError(f"{who}(): expected a {kind.__name__}, got {type(storage).__name__}")
    path = checkpoint_id if checkpoint_id is not None else None if storage is None else storage.path
    if path is None:
        raise ValueError(f"{who}(): checkpoint_id is needed, the directory")
    return path


def save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False, **options):
    """Write `state_dict` to the directory `checkpoint_id`; returns its path."""
    return _checkpoint.save(
        _path(checkpoint_id, storage_writer, "save", FileSystemWriter, planner=planner, process_group=process_group), state_dict
    )


def async_save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, **options):
    """The same beside the training; returns a future."""
    path = _path(checkpoint_id, storage_writer, "async_save", FileSystemWriter, planner=planner, process_group=process_group)
    return _checkpoint.save(path, state_dict, asynchronous=True)


def load(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None, no_dist=False):
    """Read into `state_dict`, in place: its tensors keep their meshes and placements; objects with ``load_state_dict`` load."""
    path = _path(checkpoint_id, storage_reader, "load", FileSystemReader, planner=planner, process_group=process_group)
    _checkpoint.load(path, state_dict)
