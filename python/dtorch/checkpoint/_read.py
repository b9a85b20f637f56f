"""Reading a checkpoint onto any mesh: each device reads the box that the layout gives it, put together from the slices that were written.

    wanted box      runs of indices per dimension ┐
    written slices  runs of indices per dimension ┴─> their intersection, run by run: which block of which file goes where

The intersection and the reading are the engine's (src/plan/source.h): a device reads its part itself, on whatever machine it is, and only the bytes it
needs; but a slice of which anything is needed is read once on each machine to verify its checksum.
"""

from __future__ import annotations

import itertools
import math
import os

import dtorch
from dtorch import _C
from dtorch.checkpoint import _files, _state
from dtorch.checkpoint._files import CheckpointError
from dtorch.io import _BY_NAME, _MAX_DIM, SafetensorError, _File

__all__ = ["describe", "load"]


def _is_size(v):
    return isinstance(v, int) and not isinstance(v, bool) and v >= 0


class _Part:
    """One file, opened and parsed at first use."""

    def __init__(self, folder, file, entry):
        self.path = os.path.join(folder, file)
        if not isinstance(file, str) or os.path.basename(file) != file or not isinstance(entry, dict):
            raise CheckpointError(f"{os.path.join(folder, _files.INDEX)}: bad name of a file: {file!r}")
        self.entry, self.reader = entry, None

    def open(self):
        if self.reader is not None:
            return self.reader
        try:
            size = os.stat(self.path).st_size
            if size != self.entry.get("size"):
                raise CheckpointError(
                    f"{self.path}: the file has {size} bytes, the index says {self.entry.get('size')}: truncated or replaced"
                )
            reader = _File(self.path)
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: the file is missing") from None
        except SafetensorError as e:
            raise CheckpointError(str(e)) from None
        if _files.checksum(reader._read(0, reader.start)) != self.entry.get("header"):
            raise CheckpointError(f"{self.path}: the checksum of the header is wrong: the file was changed or damaged")
        self.reader = reader
        return reader

    def boxes(self, name, key, written, row, crc):
        """A slice as boxes for `_C._file_tensor`: one a run. crc: its checksum is compared; None: not."""
        reader, shape = self.open(), [n for _, n, _, _ in written]
        if key not in reader.tensors:
            raise CheckpointError(f"{self.path}: tensor {name!r}: the file does not contain {key!r}")
        found, size, at, count = reader.find(key)
        if found is not row or list(size) != shape:
            raise CheckpointError(
                f"{self.path}: tensor {name!r}: {key!r} is {found[0]} {list(size)}, the index says {row[0]} {shape}"
            )
        try:
            check = None if crc is None else (at, count, int(crc, 16))
        except (TypeError, ValueError):
            raise CheckpointError(f"{self.path}: tensor {name!r}: {crc!r} is no checksum") from None
        strides = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = strides[d + 1] * shape[d + 1]
        out = []
        for run in itertools.product(*(range(rows) for _, _, rows, _ in written)):
            lo = [b[0] + r * b[3] for b, r in zip(written, run, strict=True)]
            each = [b[1] // b[2] for b in written]
            first = sum(r * n * s for r, n, s in zip(run, each, strides, strict=True))
            out.append((reader.file, at + first * row[3], lo, each, strides, check))
        return out


class _Reader:
    """An open checkpoint."""

    def __init__(self, folder, verify):
        self.folder, self.verify = os.fspath(folder), verify
        _files.restore(os.path.dirname(os.path.abspath(self.folder)))
        try:
            self.index = _files.read_index(self.folder)
        except FileNotFoundError:
            raise FileNotFoundError(f"checkpoint.load(): {self.folder} is no complete checkpoint: it has no {_files.INDEX}") from None
        self.what = os.path.join(self.folder, _files.INDEX)
        try:
            self.tensors, self.tree = self.index["tensors"], self.index["state"]
            self.parts = {file: _Part(self.folder, file, entry) for file, entry in self.index["files"].items()}
        except (KeyError, AttributeError) as e:
            raise CheckpointError(f"{self.what}: the index is not as the format says: {e!r}") from None
        self.known, self.reading = {}, []

    def entry(self, name):
        """(row, shape, slices [(part, key, box, crc)]) of a tensor."""
        if name in self.known:
            return self.known[name]
        e = self.tensors.get(name)
        try:
            row, shape = _BY_NAME[e["dtype"]], e["shape"]
            if not all(map(_is_size, shape)):
                raise ValueError("shape")
            if len(shape) > _MAX_DIM:
                raise CheckpointError(f"{self.what}: tensor {name!r} has {len(shape)} dimensions; at most {_MAX_DIM} are possible")
            slices = []
            for s in e["slices"]:
                rows = s.get("rows", [1] * len(shape))
                box = list(zip(s["at"], s["shape"], rows, s.get("step", shape), strict=True))
                for (lo, n, r, step), size in zip(box, shape, strict=True):
                    if not (_is_size(lo) and _is_size(n) and _is_size(r) and _is_size(step) and r and n % r == 0):
                        raise ValueError("slice")
                    if n and lo + (r - 1) * step + n // r > size:
                        raise ValueError("slice outside of the tensor")
                slices.append((self.parts[s["file"]], s["key"], box, s["crc32"]))
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise CheckpointError(f"{self.what}: tensor {name!r}: the index is not as the format says: {err!r}") from None
        self.known[name] = row, shape, slices
        return self.known[name]

    def tensor(self, name, mesh, placements):
        """The tensor on a mesh, or plain; its devices read their parts."""
        row, shape, slices = self.entry(name)
        dtype = getattr(dtorch, row[1], None)
        if dtype is None:
            raise CheckpointError(f"{self.what}: tensor {name!r} has dtype {row[1]}, which this version does not have")
        boxes, count = [], math.prod(shape)
        for part, key, written, crc in slices if count else ():
            boxes += part.boxes(name, key, written, row, crc if self.verify else None)
        held = sum(math.prod(b[3]) for b in boxes)
        if held != count:
            raise CheckpointError(f"{self.what}: tensor {name!r}: the slices hold {held} of the {count} elements that are wanted")
        try:
            out = _C._file_tensor(shape, dtype, boxes, mesh, placements)
            future = _C._begin_reading(out)
        except ValueError as e:
            raise CheckpointError(f"{self.folder}: tensor {name!r}: {e}") from None
        if future is not None:
            self.reading.append((name, future))
        return out

    def wait(self):
        """Until all devices have read what they were told to."""
        for name, future in self.reading:
            try:
                future.get()
            except ValueError as e:
                raise CheckpointError(f"{self.folder}: tensor {name!r}: {e}") from None
        self.reading = []

    def _placements(self, name, mesh):
        """How the tensor lay when it was written, if that was on a mesh of this shape; else None."""
        e = self.tensors[name]
        if not mesh.ndim or e.get("mesh") != list(mesh.shape):
            return None
        try:
            out = []
            for p in e["placements"]:
                dim, _, rows = p[1:].partition("/")
                out.append(dtorch.Replicate() if p == "R" else dtorch.Shard(int(dim), split_factor=int(rows or 1)))
            return out
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise CheckpointError(f"{self.what}: tensor {name!r}: the index is not as the format says: {err!r}") from None

    def read(self, name, like=None, where=None):
        """A tensor of the checkpoint, plain; or lying as `like` does, if it has its shape (`where` given: it must have)."""
        row, shape, _ = self.entry(name)
        if like is not None and list(like.shape) != shape:
            if where is not None:
                raise CheckpointError(
                    f"{self.what}: {where}: tensor {name!r} has shape {tuple(shape)}, the state's has {tuple(like.shape)}"
                )
            placements = self._placements(name, like.device_mesh)
            with dtorch.no_grad():
                like = None if placements is None else dtorch.zeros(shape, device_mesh=like.device_mesh, placements=placements)
        with dtorch.no_grad():
            if like is None:
                return self.tensor(name, None, None)
            placements = [dtorch.Replicate() if p.is_partial() else p for p in like.placements]
            return self.tensor(name, like.device_mesh, placements)


def load(path, state=None, *, strict=True, verify=True):
    """Read a checkpoint into `state`, in place: tensors keep their mesh and placements, whatever those were when it was written.

    Args:
        path: the directory of a complete checkpoint, as :func:`latest` finds.
        state: as for :func:`dtorch.checkpoint.save`; a part of what was saved is enough (``{"model": model}``). Numbers, text and other plain
            values in its dicts and lists are replaced by the saved ones. None: everything, as plain tensors and values.
        strict: the state dict of a module must have the same keys as the saved one.
        verify: compare checksums.

    Returns:
        the state.

    Raises:
        FileNotFoundError: there is no complete checkpoint of that name.
        CheckpointError: it is damaged, or does not fit the state; the message names the file and the tensor.
    """
    reader = _Reader(path, verify)
    if state is None:
        from dtorch import _tree

        out = _tree.decode(reader.tree, reader.read, reader.what)
    else:
        out = _state.fill(state, reader.tree, reader.read, reader.what, strict)
    reader.wait()
    return out


def describe(path):
    """What is in a checkpoint: {name: (shape, name of the dtype, number of slices)}. Reads the index only."""
    reader = _Reader(path, False)
    return {name: (tuple(e[1]), e[0][1], len(e[2])) for name in reader.tensors for e in [reader.entry(name)]}
