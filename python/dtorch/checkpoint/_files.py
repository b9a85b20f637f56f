"""Directories of checkpoints: how one comes to be, how an incomplete one is known, which is the last.

    run/step-100/                       complete: it got this name by a rename, after all its files were on the disk
        index.json                      {"crc32": "…", "index": {…}}; the checksum is that of the index as compact JSON
        part-00000.safetensors …        one for each device that wrote
    run/.step-200.tmp-<pid>-<n>/        being written, its `lock` held by the writer; without a living writer it is rubbish
    run/.step-100.old-<pid>-<n>/        what a new checkpoint of the same name replaced (or will replace), about to be deleted

Replacing is an exchange of two names where the system has that (Linux); elsewhere two renames, and who finds the old one without a new one
puts it back. The lock is `flock`: the kernel lets go of it when its holder dies, however it dies.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import time
import zlib

__all__ = ["CheckpointError", "all_complete", "latest"]

INDEX = "index.json"
LOCK = "lock"
FORMAT = "dtorch.checkpoint"
VERSION = 1
_HIDDEN = re.compile(r"^\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<pid>\d+)-(?P<n>\d+)$")
_counter = itertools.count()
_GRACE = 60.0  # seconds for which a directory without a lock may still be getting one


class CheckpointError(ValueError):
    """A checkpoint that is corrupt, incomplete or does not fit; the message names the file and the tensor."""


# ---- the index


def _compact(index):
    return json.dumps(index, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def checksum(data):
    """The CRC-32 of a buffer, as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def index_bytes(index):
    """The contents of an index file."""
    text = _compact(index)
    return f'{{"crc32":"{checksum(text.encode())}","index":{text}}}\n'.encode()


def _no_constant(name):
    raise ValueError(f"{name} is not legal")


def read_index(folder):
    """The index of a complete checkpoint.

    Raises:
        FileNotFoundError: there is none: not a checkpoint, or not a complete one.
        CheckpointError: it is corrupt.
    """
    path = os.path.join(folder, INDEX)
    with open(path, "rb") as file:
        data = file.read()
    try:
        whole = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: not JSON: {e}") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("index"), dict) or not isinstance(whole.get("crc32"), str):
        raise CheckpointError(f"{path}: expected an object with crc32 and index")
    index = whole["index"]
    if checksum(_compact(index).encode()) != whole["crc32"]:
        raise CheckpointError(f"{path}: the checksum is wrong: the file was changed or damaged")
    if index.get("format") != FORMAT or not isinstance(index.get("version"), int):
        raise CheckpointError(f"{path}: expected format {FORMAT!r}, got {str(index.get('format'))[:50]!r}")
    if index["version"] > VERSION:
        raise CheckpointError(f"{path}: version {index['version']} of the format; this dtorch reads up to {VERSION}")
    return index


def is_complete(folder):
    """Is it a checkpoint with a readable index?"""
    try:
        read_index(folder)
    except (OSError, CheckpointError):
        return False
    return True


# ---- locks


def _flock(fd, wait=False):
    """Take the lock of an open file; False if another holds it. Where the system has no such locks: True."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _abandoned(folder):
    """Has the writer of this temporary directory died?"""
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDWR)
    except FileNotFoundError:
        try:
            return time.time() - os.stat(folder).st_mtime > _GRACE
        except OSError:
            return False
    except OSError:
        return False
    try:
        return _flock(fd)
    finally:
        os.close(fd)


def sync_folder(folder):
    """Make the names in a directory durable."""
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    except OSError:  # some file systems do not know it
        pass
    finally:
        os.close(fd)


# ---- making, replacing, deleting


def _hidden(path, kind):
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.{kind}-{os.getpid()}-{next(_counter)}")


class Writer:
    """A temporary directory beside `path`, locked; :meth:`publish` gives it its name."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.parent = os.path.dirname(self.path)
        if os.path.lexists(self.path) and not _replaceable(self.path):
            raise FileExistsError(f"checkpoint.save(): {self.path} exists and is no checkpoint; it is not overwritten")
        os.makedirs(self.parent, exist_ok=True)
        clean(self.parent)
        self.folder = _hidden(self.path, "tmp")
        os.mkdir(self.folder)
        self._lock = os.open(os.path.join(self.folder, LOCK + ".new"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        _flock(self._lock)
        os.rename(os.path.join(self.folder, LOCK + ".new"), os.path.join(self.folder, LOCK))

    def publish(self):
        """Everything is written and on the disk: let it appear."""
        sync_folder(self.folder)
        if not os.path.lexists(self.path):
            os.rename(self.folder, self.path)
        else:
            _swap(self.folder, self.path)
        os.unlink(os.path.join(self.path, LOCK))
        sync_folder(self.parent)
        self._release()

    def discard(self):
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def _release(self):
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _replaceable(path):
    return os.path.isdir(path) and (os.path.exists(os.path.join(path, INDEX)) or not os.listdir(path))


def _exchange(a, b):
    """Let two names change places at once; False where the system cannot."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) == 0  # AT_FDCWD, RENAME_EXCHANGE
    except (OSError, AttributeError):
        return False


def _swap(new, path):
    """`new` under the name `path`, whose former bearer is deleted."""
    old = _hidden(path, "old")
    if _exchange(new, path):
        os.rename(new, old)
    else:
        os.rename(path, old)  # dying here: restore() brings it back
        os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)


def remove(path):
    """Delete a checkpoint so that no part of it is ever taken for a whole one."""
    old = _hidden(path, "old")
    os.rename(path, old)
    os.unlink(os.path.join(old, INDEX))  # so that it is not brought back
    shutil.rmtree(old, ignore_errors=True)


def _hidden_ones(parent):
    for name in sorted(os.listdir(parent)):
        found = _HIDDEN.match(name)
        if found:
            yield os.path.join(parent, name), os.path.join(parent, found["name"]), found["kind"]


def restore(parent):
    """Bring back checkpoints whose replacement was interrupted between its two renames."""
    try:
        hidden = list(_hidden_ones(parent))
    except OSError:
        return
    for folder, path, kind in hidden:
        if kind == "old" and not os.path.lexists(path) and is_complete(folder):
            try:
                os.rename(folder, path)
            except OSError:
                continue


def clean(parent):
    """Delete what dead writers left."""
    restore(parent)
    for folder, path, kind in _hidden_ones(parent):
        if (kind == "tmp" and _abandoned(folder)) or (kind == "old" and (os.path.lexists(path) or not is_complete(folder))):
            shutil.rmtree(folder, ignore_errors=True)


# ---- finding


_HEAD = re.compile(rb'^\{"crc32":"[0-9a-f]{8}","index":\{"format":"dtorch.checkpoint","version":\d+,"time_ns":(\d+),')


def _time_of(folder):
    """When a checkpoint was made, from the beginning of its index; None if it is no checkpoint."""
    try:
        with open(os.path.join(folder, INDEX), "rb") as file:
            found = _HEAD.match(file.read(200))
    except OSError:
        return None
    return int(found[1]) if found else None


def _by_time(directory):
    """What looks like checkpoints in a directory, oldest first: [(time, last number in the name, path)]."""
    directory = os.fspath(directory)
    restore(directory)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        folder = os.path.join(directory, name)
        time_ns = None if name.startswith(".") else _time_of(folder)
        if time_ns is not None:
            digits = re.findall(r"\d+", name)
            found.append((time_ns, int(digits[-1]) if digits else -1, folder))
    return sorted(found)


def all_complete(directory):
    """The complete checkpoints in a directory, oldest first: a list of paths. Incomplete and unreadable ones are passed over."""
    return [folder for _, _, folder in _by_time(directory) if is_complete(folder)]


def latest(directory):
    """The checkpoint in a directory that was completed last: its path, or None when there is none."""
    return next((folder for _, _, folder in reversed(_by_time(directory)) if is_complete(folder)), None)


def prune(path, keep):
    """Of the complete checkpoints beside `path` that differ from it by digits only, delete all but the last `keep`."""
    parent, name = os.path.split(os.path.abspath(path))
    like = re.sub(r"\d+", "0", name)
    same = [p for _, _, p in _by_time(parent) if re.sub(r"\d+", "0", os.path.basename(p)) == like]
    for old in same[:-keep]:
        try:
            remove(old)
        except OSError:
            continue


def next_time(parent):
    """Nanoseconds since 1970, but later than every checkpoint in `parent`: clocks are set back at times."""
    found = _by_time(parent)
    return max(time.time_ns(), found[-1][0] + 1) if found else time.time_ns()
