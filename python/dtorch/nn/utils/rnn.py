"""Sequences of several lengths."""

from __future__ import annotations

import numpy as np

import dtorch
from dtorch import Tensor

__all__ = ["PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence", "unpad_sequence"]


def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Stack sequences (L_i, *) padded to the longest: (L, N, *), or (N, L, *) when `batch_first`."""
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"padding_side should be 'left' or 'right', got {padding_side!r}")
    longest = max(s.shape[0] for s in sequences)
    rest = tuple(sequences[0].shape[1:])
    rows = []
    for s in sequences:
        if tuple(s.shape[1:]) != rest:
            raise RuntimeError(f"pad_sequence: trailing sizes must agree, got {rest} and {tuple(s.shape[1:])}")
        missing = longest - s.shape[0]
        if missing:
            filler = dtorch.full((missing, *rest), padding_value, dtype=s.dtype, device=s.device)
            s = dtorch.cat([s, filler] if padding_side == "right" else [filler, s])
        rows.append(s)
    return dtorch.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """The sequences (L_i, *) of a padded batch (L, N, *), or (N, L, *) when `batch_first`."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [rows[i][:n] for i, n in enumerate(sizes)]


class PackedSequence(tuple):
    """Sequences of several lengths, step by step without padding: ``(data, batch_sizes, sorted_indices, unsorted_indices)``."""

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = sorted_indices.argsort()
        return tuple.__new__(cls, (data, batch_sizes, sorted_indices, unsorted_indices))

    def __getnewargs__(self):  # copies are made of the four, not of one tuple
        return tuple(self)

    @property
    def counts(self):
        """The batch sizes on the host; reading them waits once, unless the sequence was packed here."""
        if "_counts" not in self.__dict__:
            self._counts = self.batch_sizes.tolist()
        return self._counts

    def like(self, data):
        """Another packed sequence of the same lengths."""
        out = PackedSequence(data, *self[1:])
        if "_counts" in self.__dict__:
            out._counts = self._counts
        return out

    data = property(lambda self: self[0])
    batch_sizes = property(lambda self: self[1])
    sorted_indices = property(lambda self: self[2])
    unsorted_indices = property(lambda self: self[3])

    def __repr__(self):
        return (
            f"PackedSequence(data={self.data!r}, batch_sizes={self.batch_sizes!r}, sorted_indices={self.sorted_indices!r}, "
            f"unsorted_indices={self.unsorted_indices!r})"
        )

    def to(self, *args, **kwargs):
        """Move or cast the data."""
        return self.like(self.data.to(*args, **kwargs))


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Pack a padded batch (L, N, *), or (N, L, *) when `batch_first`; `lengths` of the sequences, falling when `enforce_sorted`."""
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else [int(n) for n in lengths]
    rows = input if batch_first else input.transpose(0, 1)
    if len(sizes) != rows.shape[0]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={rows.shape[0]})")
    if not sizes or min(sizes) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    order = None
    if enforce_sorted:
        if any(a < b for a, b in zip(sizes, sizes[1:], strict=False)):
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass `enforce_sorted=False` "
                "to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not need ONNX exportability."
            )
    else:
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        sizes = [sizes[i] for i in order]
    longest = rows.shape[1]
    if sizes[0] > longest:
        raise RuntimeError(f"Expected all lengths to be at most {longest}, the length of input, but got {sizes[0]}")
    counts = np.greater(sizes, np.arange(sizes[0])[:, None]).sum(1).tolist()
    base = np.arange(len(sizes)) if order is None else np.asarray(order)
    at = np.concatenate([base[:count] * longest + t for t, count in enumerate(counts)])
    data = rows.flatten(0, 1).index_select(0, dtorch.tensor(at, device=input.device))
    out = PackedSequence(data, dtorch.tensor(counts), None if order is None else dtorch.tensor(order, device=input.device))
    out._counts = counts
    return out


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """The padded batch of a packed sequence and the lengths (N,)."""
    counts, data = np.asarray(sequence.counts), sequence.data
    longest = len(counts)
    if total_length is not None and total_length < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total_length} and max sequence length being {longest}"
        )
    slots = np.arange(counts[0])
    live = slots < counts[:, None]
    at = np.where(live, (np.cumsum(counts) - counts)[:, None] + slots, data.shape[0])
    at = np.pad(at, ((0, (total_length or longest) - longest), (0, 0)), constant_values=data.shape[0])
    filler = dtorch.full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    rows = dtorch.cat([data, filler]).index_select(0, dtorch.tensor(at.reshape(-1), device=data.device))
    out, lengths = rows.unflatten(0, at.shape), dtorch.tensor(live.sum(0))
    if sequence.unsorted_indices is not None:
        out, lengths = out.index_select(1, sequence.unsorted_indices), lengths.index_select(0, sequence.unsorted_indices.to(lengths.device))
    return (out.transpose(0, 1) if batch_first else out), lengths


def pack_sequence(sequences, enforce_sorted=True):
    """Pack a list of sequences (L_i, *)."""
    sequences = list(sequences)
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)
