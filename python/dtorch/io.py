"""Files of tensors, without pickle: the safetensors format, and on top of it :func:`save` and :func:`load` of whole state dicts.

    8 bytes   length n of the header, little-endian
    n bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "text"}}
    the rest  the tensors, row by row, little-endian, without gaps; offsets count from here

:func:`save` puts the tensors of any nesting of dicts, lists and plain values into such a file and the nesting, as JSON, into its metadata under
"dtorch.tree". Reading checks every number against the file before it is used: a corrupt file raises :class:`SafetensorError`.
"""

from __future__ import annotations

import json
import os
import warnings

import dtorch
from dtorch import _C, Tensor

__all__ = ["SafetensorError", "load", "load_bytes", "load_file", "safe_open", "save", "save_bytes", "save_file"]

_HEADER_MAX = 100_000_000  # bytes; as other readers of the format
_TREE = "dtorch.tree"
_MAX_DIM = 12  # of a tensor
_CHUNK = 8 << 20  # bytes of a tensor that are written at once

# The format's name, dtorch's name, NumPy's dtype of the raw elements, bytes of an element.
_DTYPES = (
    ("F64", "float64", "<f8", 8),
    ("F32", "float32", "<f4", 4),
    ("F16", "float16", "<f2", 2),
    ("BF16", "bfloat16", "<u2", 2),
    ("I64", "int64", "<i8", 8),
    ("I32", "int32", "<i4", 4),
    ("I16", "int16", "<i2", 2),
    ("I8", "int8", "i1", 1),
    ("U64", "uint64", "<u8", 8),
    ("U32", "uint32", "<u4", 4),
    ("U16", "uint16", "<u2", 2),
    ("U8", "uint8", "u1", 1),
    ("BOOL", "bool", "?", 1),
    ("C64", "complex64", "<c8", 8),
)
_BY_NAME = {row[0]: row for row in _DTYPES}


class SafetensorError(ValueError):
    """A file that is not what the format says, or a tensor that it cannot hold."""


def _row_of(dtype):
    """The row of `_DTYPES` for a dtype, or None."""
    for row in _DTYPES:
        if getattr(dtorch, row[1], None) == dtype:
            return row
    return None


# ---- tensors and bytes


def _chunks(tensor, size):
    """The tensor's bytes, row by row, as buffers of at most _CHUNK bytes (or of a row), which are read one ahead. A distributed one is never whole anywhere."""
    tensor = tensor.detach()
    if tensor.ndim == 0:
        yield tensor._bytes_async().get()
        return
    if any(p.is_partial() for p in tensor.placements):
        tensor = tensor.redistribute(placements=[dtorch.Replicate() if p.is_partial() else p for p in tensor.placements])
    rows = tensor.shape[0]
    step = max(1, _CHUNK // max(1, tensor.numel() // max(1, rows) * size))
    ahead = None
    for lo in range(0, rows if tensor.numel() else 0, step):
        following = _C._rows_async(tensor, lo, min(rows, lo + step))
        if ahead is not None:
            yield ahead.get()
        ahead = following
    if ahead is not None:
        yield ahead.get()


def _dtype(row):
    """The dtype of a row of `_DTYPES`."""
    dtype = getattr(dtorch, row[1], None)
    if dtype is None:
        raise SafetensorError(f"a tensor has dtype {row[0]} ({row[1]}), which this version does not have")
    return dtype


def _to_device(tensor, device):
    return tensor if device is None or str(device) == "cpu" else tensor.to(device)


def _build(tensors, metadata):
    """The header as bytes (with its length in front) and the arrays in the order of the file."""
    entries = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"save: names of tensors must be str, got {type(name).__name__}: {name!r}")
        if name == "__metadata__":
            raise SafetensorError("save: a tensor cannot be named '__metadata__'")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"save: {name!r} must be a Tensor, got {type(tensor).__name__}")
        row = _row_of(tensor.dtype)
        if row is None:
            raise SafetensorError(f"save: {name!r} has dtype {tensor.dtype}, which the format does not have")
        entries.append((name, tensor, row))
    entries.sort(key=lambda e: (-e[2][3], e[0]))  # wide elements first: everything stays aligned
    header = {}
    if metadata:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"save: metadata must map str to str, got {key!r}: {value!r}")
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, tensor, row in entries:
        end = offset + tensor.numel() * row[3]
        header[name] = {"dtype": row[0], "shape": [int(s) for s in tensor.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_MAX:
        raise SafetensorError(f"save: the header would have {len(text)} bytes; the format allows {_HEADER_MAX}")
    return len(text).to_bytes(8, "little") + text, entries


def _write(file, tensors, metadata):
    head, entries = _build(tensors, metadata)
    file.write(head)
    for _, tensor, row in entries:
        for part in _chunks(tensor, row[3]):
            file.write(part)


def _write_path(path, tensors, metadata):
    """Write beside the file, then put it in its place: a reader sees the old file or the new one, whole."""
    path = os.fspath(path)
    temporary = f"{path}.{os.getpid()}.tmp" if isinstance(path, str) else path + b".%d.tmp" % os.getpid()
    try:
        with open(temporary, "wb") as file:
            _write(file, tensors, metadata)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def save_file(tensors, filename, metadata=None):
    """Write a dict of tensors to a safetensors file; `metadata` maps str to str. A distributed tensor is written whole.

    Raises:
        SafetensorError: a dtype that the format does not have.
        TypeError: something that is not a tensor, or a name that is not str.
    """
    _write_path(filename, dict(tensors), metadata)


def save_bytes(tensors, metadata=None):
    """The same as :func:`save_file`, into bytes."""
    import io

    buffer = io.BytesIO()
    _write(buffer, dict(tensors), metadata)
    return buffer.getvalue()


# ---- reading


def _no_duplicates(pairs):
    out = {}
    for key, value in pairs:
        if key in out:
            raise SafetensorError(f"the header has {key!r} twice")
        out[key] = value
    return out


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_entry(name, entry, size):
    """(row, shape, begin, end) of a tensor, after checking it against the `size` of the data."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorError(f"{name!r}: expected dtype, shape and data_offsets, got {str(entry)[:200]}")
    row = _BY_NAME.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if row is None:
        raise SafetensorError(f"{name!r}: unknown dtype {entry['dtype']!r}; known are {', '.join(_BY_NAME)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(_is_size(s) for s in shape):
        raise SafetensorError(f"{name!r}: shape must be a list of sizes, got {str(shape)[:200]}")
    if len(shape) > _MAX_DIM:
        raise SafetensorError(f"{name!r}: {len(shape)} dimensions are too many; at most {_MAX_DIM} are possible")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(o) for o in offsets):
        raise SafetensorError(f"{name!r}: data_offsets must be two numbers, got {str(offsets)[:200]}")
    begin, end = offsets
    if not begin <= end <= size:
        raise SafetensorError(f"{name!r}: data_offsets [{begin}, {end}] lie outside the data, which has {size} bytes")
    count = 1
    for s in shape:
        count *= s
    if count * row[3] != end - begin:
        raise SafetensorError(f"{name!r}: shape {shape} of {row[0]} needs {count * row[3]} bytes, data_offsets give {end - begin}")
    if any(s >= 1 << 62 for s in shape):  # with a 0 beside it, the number of bytes would not tell
        raise SafetensorError(f"{name!r}: shape {str(shape)[:200]} has a size that no tensor can have")
    return row, tuple(shape), begin, end


def _parse(read, total, what):
    """The header of a file of `total` bytes: tensors {name: (row, shape, begin, end)}, metadata, and where the data begins.

    read(at, n) gives n of its bytes.
    """
    if total < 8:
        raise SafetensorError(f"{what}: {total} bytes are too few for a safetensors file")
    length = int.from_bytes(read(0, 8), "little")
    if length > _HEADER_MAX:
        raise SafetensorError(f"{what}: header of {length} bytes: too long, or not a safetensors file")
    if 8 + length > total:
        raise SafetensorError(f"{what}: header of {length} bytes, but the file has only {total}")
    try:
        header = json.loads(bytes(read(8, length)).decode("utf-8"), object_pairs_hook=_no_duplicates)
    except SafetensorError as e:
        raise SafetensorError(f"{what}: {e}") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as e:
        raise SafetensorError(f"{what}: the header is not JSON: {e}") from None
    if not isinstance(header, dict):
        raise SafetensorError(f"{what}: the header must be a JSON object, got {type(header).__name__}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SafetensorError(f"{what}: __metadata__ must map text to text")
    size = total - 8 - length
    try:
        tensors = {name: _check_entry(name, entry, size) for name, entry in header.items()}
    except SafetensorError as e:
        raise SafetensorError(f"{what}: {e}") from None
    at = 0
    for name, (_, _, begin, end) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise SafetensorError(f"{what}: {name!r} begins at byte {begin}, but the tensor before it ends at {at}: gap or overlap")
        at = end
    if at != size:
        raise SafetensorError(f"{what}: the tensors end at byte {at} of the data, which has {size}")
    return tensors, metadata, 8 + length


class _Bytes:
    """A parsed file that is in memory."""

    def __init__(self, data, what):
        self.data, self.what = memoryview(data).cast("B"), what
        self.tensors, self.metadata, self.start = _parse(self._read, len(self.data), what)

    def _read(self, at, n):
        return self.data[at : at + n]

    def find(self, name):
        """(row, shape, the first byte, how many) of a tensor."""
        if name not in self.tensors:
            raise SafetensorError(f"{self.what} does not contain tensor {name!r}")
        row, shape, begin, end = self.tensors[name]
        return row, shape, self.start + begin, end - begin

    def array(self, name):
        """A new array of the raw elements."""
        import numpy as np

        row, shape, at, n = self.find(name)
        return np.frombuffer(bytearray(self._read(at, n)), row[2]).reshape(shape)

    def tensor(self, name, device):
        row, shape, at, n = self.find(name)
        flat = dtorch.frombuffer(self.data, dtype=_dtype(row), count=n // row[3], offset=at) if n else dtorch.empty(0, dtype=_dtype(row))
        return _to_device(flat.reshape(shape), device)


class _File(_Bytes):
    """A parsed file on the disk. Its tensors are read when they are wanted, by the devices that hold them then (src/plan/source.h)."""

    def __init__(self, path):
        self.what = os.fsdecode(path)
        fd = os.open(path, os.O_RDONLY)
        try:
            total = os.fstat(fd).st_size
            head = os.pread(fd, 9, 0)
            _refuse_pickle(head, self.what)
            self.tensors, self.metadata, self.start = _parse(lambda at, n: _pread(fd, at, n, self.what), total, self.what)
        except BaseException:
            os.close(fd)
            raise
        self.file = _open(fd, path, self.start)

    def _read(self, at, n):
        return _C._file_bytes(self.file, at, n)

    def tensor(self, name, device):
        row, shape, at, _ = self.find(name)
        return _to_device(_C._file_tensor(shape, _dtype(row), [(self.file, at, (0,) * len(shape), shape, None, None)]), device)


def _pread(fd, at, n, what):
    """n bytes of an open file."""
    out = bytearray()
    while len(out) < n:
        piece = os.pread(fd, n - len(out), at + len(out))
        if not piece:
            raise SafetensorError(f"{what}: the file ends at byte {at + len(out)}: it was cut off while it was read")
        out += piece
    return out


def _open(fd, path, head):
    """An open file for `_C._file_tensor`; takes the descriptor. Warns about nodes that cannot read it: they are sent their parts."""
    path = os.path.abspath(os.fsdecode(path))
    file, without = _C._file_open(fd, path, head)
    if without:
        nodes = ", ".join(f"node {rank} ({host})" for rank, host in without)
        warnings.warn(f"{path}: {nodes} cannot read this file there, or finds another one: what {'it' if len(without) == 1 else 'they'} "
                      "shall hold is sent from node 0, which is slower", stacklevel=_outside())
    return file


def _outside():
    """How many frames up the caller of this package is."""
    import sys

    here, level, frame = os.path.dirname(os.path.abspath(__file__)), 1, sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(here):
        frame, level = frame.f_back, level + 1
    return level


class _Slice:
    """A tensor of a file, of which only what is indexed is read."""

    def __init__(self, reader, name, device):
        self._tensor, self._row, self._device = reader.tensor(name, None), reader.tensors[name][0], device

    def get_shape(self):
        """The shape, a list."""
        return list(self._tensor.shape)

    def get_dtype(self):
        """The format's name of the dtype, as "F32"."""
        return self._row[0]

    def __getitem__(self, index):
        return _to_device(self._tensor[index], self._device)


class safe_open:  # noqa: N801
    """A safetensors file: tensors are read when they are computed with.

    Args:
        filename: the path.
        framework: accepted for compatibility ("pt", "numpy" or None); tensors are dtorch's, or NumPy arrays for "numpy" and "np".
        device: where tensors go.
    """

    def __init__(self, filename, framework="pt", device="cpu"):
        self._numpy = framework in ("np", "numpy")
        self._device = device
        self._reader = _File(filename)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._reader = None

    def _open(self):
        if self._reader is None:
            raise SafetensorError("the file is closed: use tensors inside the `with` block")
        return self._reader

    def keys(self):
        """The names of the tensors, sorted."""
        return sorted(self._open().tensors)

    def offset_keys(self):
        """The names of the tensors in the order of the file."""
        return [name for name, _ in sorted(self._open().tensors.items(), key=lambda item: item[1][2:])]

    def metadata(self):
        """The metadata, str to str; None when there is none."""
        return dict(self._open().metadata) or None

    def get_tensor(self, name):
        """The tensor `name`; SafetensorError when there is none."""
        reader = self._open()
        return reader.array(name) if self._numpy else reader.tensor(name, self._device)

    def get_slice(self, name):
        """The tensor `name`, to be indexed: only that part is read."""
        return _Slice(self._open(), name, self._device)


def load_file(filename, device="cpu"):
    """All tensors of a safetensors file: {name: tensor}.

    A tensor's elements are read when they are wanted, by the devices that hold it then: one that goes to a mesh (``redistribute``,
    ``distribute_tensor``, ``load_state_dict``) is read by the devices of the mesh, each its shard, on whatever machine they are. A file that is
    changed or cut off between gives a ValueError where a value is read, with the line of this call; replacing it by another one
    (``os.replace``) does not matter.

    Raises:
        SafetensorError: the file is corrupt; the message says where.
    """
    reader = _File(filename)
    return {name: reader.tensor(name, device) for name in reader.tensors}


def load_bytes(data, device="cpu"):
    """All tensors of a safetensors file given as bytes."""
    reader = _Bytes(data, "the bytes")
    return {name: reader.tensor(name, device) for name in reader.tensors}


# ---- whole state dicts


def save(obj, f, *args, **kwargs):
    """Write a state dict, or any nesting of dicts, lists and tuples of tensors, arrays and plain values.

    Args:
        obj: what to write. Modules and optimisers: give their ``state_dict()``.
        f: a path, or a file open for writing bytes.
        args, kwargs: PyTorch's further options are accepted and have no effect.

    Raises:
        TypeError: something else is inside; the message says where. Nothing is pickled.
    """
    from dtorch import _tree

    tensors, tree = _tree.encode(obj)
    metadata = None if tree is None else {_TREE: json.dumps(tree, separators=(",", ":"), ensure_ascii=False)}
    if hasattr(f, "write"):
        _write(f, tensors, metadata)
    else:
        _write_path(f, tensors, metadata)


def _refuse_pickle(head, what):
    # The first bytes of a pickle may be the length of a header, but a header goes on with "{".
    if head[8:9] != b"{" and (head[:4] == b"PK\x03\x04" or head[:1] == b"\x80"):
        raise ValueError(
            f"load: {what} is a pickle file, and unpickling runs whatever code the file contains. Convert it once, where it was made: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), new_path) for a dict of tensors; dtorch.load reads that, "
            "and everything that dtorch.save writes."
        )


def _moved(tensor, map_location):
    if map_location is None:
        return tensor
    if isinstance(map_location, dict):
        target = map_location.get(str(tensor.device))
        return tensor if target is None else tensor.to(target)
    if callable(map_location) and not isinstance(map_location, (str, dtorch.device)):
        target = map_location(tensor, str(tensor.device))
        return tensor if target is None else target
    return tensor.to(map_location)


def load(f, map_location=None, *args, **kwargs):
    """Read what :func:`save` wrote, or the tensors of any safetensors file.

    Args:
        f: a path, or a file open for reading bytes.
        map_location: where the tensors go: a device, a dict of devices, or a function of (tensor, device).
        args, kwargs: PyTorch's further options (``weights_only``, ``mmap``, ...) are accepted and have no effect.

    Raises:
        SafetensorError: the file is corrupt.
        ValueError: the file is a pickle file.
    """
    from dtorch import _tree

    if hasattr(f, "read"):
        data, what = f.read(), "the file"
        _refuse_pickle(bytes(data[:9]), what)
        reader = _Bytes(data, what)
    else:
        reader = _File(f)
        what = reader.what
    text = reader.metadata.get(_TREE)

    def tensor(name):
        return _moved(reader.tensor(name, None), map_location)

    if text is None:
        return {name: tensor(name) for name in reader.tensors}
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SafetensorError(f"{what}: its {_TREE} is not JSON: {e}") from None
    return _tree.decode(tree, tensor, what)
