"""Reading a checkpoint onto any mesh: each device gets the box that the layout gives it, put together from the slices that were written.

    wanted box      runs of indices per dimension ┐
    written slices  runs of indices per dimension ┴─> their intersection, run by run: which block of which file goes where

Files are mapped, so only the needed bytes are read; but a slice of which anything is needed is read once to verify its checksum.
"""

from __future__ import annotations

import itertools
import os

import dtorch
from dtorch.checkpoint import _files, _state
from dtorch.checkpoint._files import CheckpointError
from dtorch.io import _BY_NAME, _MAX_DIM, SafetensorError, _map, _parse

__all__ = ["describe", "load"]


def _runs(lo, n, rows, step):
    """The runs of a box's dimension: [(first index, length, place in the box)]."""
    if n == 0:
        return []
    run = n // rows
    return [(lo + r * step, run, r * run) for r in range(rows)]


def _common(a, b):
    """Where runs a and b meet: [(place in a's box, place in b's box, length)]."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        lo, hi = max(a[i][0], b[j][0]), min(a[i][0] + a[i][1], b[j][0] + b[j][1])
        if lo < hi:
            out.append((a[i][2] + lo - a[i][0], b[j][2] + lo - b[j][0], hi - lo))
        if a[i][0] + a[i][1] <= b[j][0] + b[j][1]:
            i += 1
        else:
            j += 1
    return out


def _meeting(wanted, written):
    """Where two boxes meet, per dimension as :func:`_common` says; None if they do not."""
    out = []
    for w, s in zip(wanted, written, strict=True):
        if w[2] == 1 and s[2] == 1:
            lo, hi = max(w[0], s[0]), min(w[0] + w[1], s[0] + s[1])
            meet = [(lo - w[0], lo - s[0], hi - lo)] if lo < hi else None
        else:
            meet = _common(_runs(*w), _runs(*s))
        if not meet:
            return None
        out.append(meet)
    return out


def _plain(box):
    """The box without the step of dimensions of one run, which means nothing."""
    return [b if b[2] > 1 else (b[0], b[1], 1, 0) for b in box]


def _is_size(v):
    return isinstance(v, int) and not isinstance(v, bool) and v >= 0


class _Part:
    """One file, mapped and parsed at first use."""

    def __init__(self, folder, file, entry):
        self.path = os.path.join(folder, file)
        if not isinstance(file, str) or os.path.basename(file) != file or not isinstance(entry, dict):
            raise CheckpointError(f"{os.path.join(folder, _files.INDEX)}: bad name of a file: {file!r}")
        self.entry, self.buffer, self.verified = entry, None, set()

    def open(self):
        if self.buffer is not None:
            return
        try:
            buffer = _map(self.path)
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: the file is missing") from None
        if len(buffer) != self.entry.get("size"):
            raise CheckpointError(
                f"{self.path}: the file has {len(buffer)} bytes, the index says {self.entry.get('size')}: truncated or replaced"
            )
        try:
            self.tensors, _, self.start = _parse(buffer, self.path)
        except SafetensorError as e:
            raise CheckpointError(str(e)) from None
        if _files.checksum(buffer[: self.start]) != self.entry.get("header"):
            raise CheckpointError(f"{self.path}: the checksum of the header is wrong: the file was changed or damaged")
        self.buffer = buffer

    def raw(self, name, key, shape, row, crc, verify):
        """(buffer, offset) of a slice, after checking it."""
        self.open()
        found = self.tensors.get(key)
        if found is None:
            raise CheckpointError(f"{self.path}: tensor {name!r}: the file does not contain {key!r}")
        if found[0] is not row or list(found[1]) != shape:
            raise CheckpointError(
                f"{self.path}: tensor {name!r}: {key!r} is {found[0][0]} {list(found[1])}, the index says {row[0]} {shape}"
            )
        at = self.start + found[2]
        if verify and key not in self.verified:
            with memoryview(self.buffer) as view, view[at : self.start + found[3]] as part:
                if _files.checksum(part) != crc:
                    raise CheckpointError(
                        f"{self.path}: tensor {name!r}: the checksum of {key!r} is wrong: the file was changed or damaged"
                    )
            self.verified.add(key)
        return self.buffer, at


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
        self.known = {}

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
                slices.append((self.parts[s["file"]], s["key"], _plain(box), s["crc32"]))
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise CheckpointError(f"{self.what}: tensor {name!r}: the index is not as the format says: {err!r}") from None
        self.known[name] = row, shape, slices
        return self.known[name]

    def box(self, name, box, device):
        """What a device holds of a tensor: a plain tensor on `device` of the box's shape."""
        row, _, slices = self.entry(name)
        dtype = getattr(dtorch, row[1], None)
        if dtype is None:
            raise CheckpointError(f"{self.what}: tensor {name!r} has dtype {row[1]}, which this version does not have")
        box, shape = _plain(box), [n for _, n, _, _ in box]
        count = 1
        for n in shape:
            count *= n
        options = {} if device is None else {"device": device}
        for part, key, written, crc in slices if count else ():
            if written == box:  # the very slice that was written
                buffer, at = part.raw(name, key, shape, row, crc, self.verify)
                return dtorch.frombuffer(buffer, dtype=dtype, count=count, offset=at, **options).reshape(shape)
        pieces, covered = [], 0
        for s in slices if count else ():
            meet = _meeting(box, s[2])
            if meet is not None:
                n = 1
                for m in meet:
                    n *= sum(k for _, _, k in m)
                covered += n
                pieces.append((s, meet))
        if covered != count:
            raise CheckpointError(f"{self.what}: tensor {name!r}: the slices hold {covered} of the {count} elements that are wanted")
        return self._gather(name, row, dtype, shape, count, pieces, options)

    def _gather(self, name, row, dtype, shape, count, pieces, options):
        import numpy as np

        out = np.empty(shape, row[2])
        for (part, key, box, crc), meet in pieces:
            local = [b[1] for b in box]
            buffer, at = part.raw(name, key, local, row, crc, self.verify)
            size = row[3]
            for n in local:
                size *= n
            raw = np.frombuffer(buffer, "u1", size, at)
            source = (raw.copy() if at % row[3] else raw).view(row[2]).reshape(local)
            for block in itertools.product(*meet):
                out[tuple(slice(a, a + n) for a, _, n in block)] = source[tuple(slice(b, b + n) for _, b, n in block)]
        return dtorch.frombuffer(out.reshape(-1).view("u1"), dtype=dtype, count=count, **options).reshape(shape)

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
            if like is None or like.device_mesh.ndim == 0:
                return self.box(name, [(0, n, 1, n) for n in shape], None if like is None else str(like.device))
            mesh = like.device_mesh
            placements = [dtorch.Replicate() if p.is_partial() else p for p in like.placements]
            made, locals_ = {}, []
            for box, device in zip(like._boxes(), mesh.devices, strict=True):
                if box not in made:
                    made[box] = self.box(name, box, str(device))
                locals_.append(made[box])
            return dtorch.Tensor.from_local(locals_, mesh, placements)


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

        return _tree.decode(reader.tree, reader.read, reader.what)
    return _state.fill(state, reader.tree, reader.read, reader.what, strict)


def describe(path):
    """What is in a checkpoint: {name: (shape, name of the dtype, number of slices)}. Reads the index only."""
    reader = _Reader(path, False)
    return {name: (tuple(e[1]), e[0][1], len(e[2])) for name in reader.tensors for e in [reader.entry(name)]}
