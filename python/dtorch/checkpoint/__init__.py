"""Checkpoints: the state of a run in a directory that is whole or not there, written from any mesh and read onto any other.

    dtorch.checkpoint.save("run/step-100", {"model": model, "optimizer": optimizer, "loader": loader, "rng": dtorch.default_generator, "step": 100})
    dtorch.checkpoint.load(dtorch.checkpoint.latest("run"), state)       # in place, onto whatever mesh and plan the state's tensors have

A checkpoint is a directory of safetensors files, one for each device that wrote, and ``index.json``, which says for every tensor its shape, its
dtype and which slice of it lies where, with a checksum. It appears under its name by one rename, after everything has reached the disk: a
process that dies at any moment leaves the last complete one. ``docs/checkpoints.md`` has more.
"""

from __future__ import annotations

from dtorch.checkpoint._files import CheckpointError, all_complete, latest
from dtorch.checkpoint._read import describe, load
from dtorch.checkpoint._state import RNG
from dtorch.checkpoint._write import SaveFuture, save, wait

__all__ = ["RNG", "CheckpointError", "SaveFuture", "all_complete", "describe", "latest", "load", "save", "wait"]
