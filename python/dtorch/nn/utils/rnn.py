"""Sequences of several lengths."""

from __future__ import annotations

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

    __slots__ = ()

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = sorted_indices.argsort()
        return tuple.__new__(cls, (data, batch_sizes, sorted_indices, unsorted_indices))

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
        return PackedSequence(self.data.to(*args, **kwargs), *self[1:])

    def unpack(self):
        """The sequences (L_i, *), longest first."""
        sizes = self.batch_sizes.tolist()
        lengths = [sum(size > i for size in sizes) for i in range(sizes[0])]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        at = [dtorch.tensor([starts[t] + i for t in range(n)], device=self.data.device) for i, n in enumerate(lengths)]
        return [self.data.index_select(0, index) for index in at]

    def repack(self, sequences):
        """Another packed sequence with the same lengths, of the sequences (L_i, *), longest first."""
        sizes = self.batch_sizes.tolist()
        data = dtorch.stack([sequences[i][t] for t, size in enumerate(sizes) for i in range(size)])
        return PackedSequence(data, *self[1:])


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
    order_tensor = None if order is None else dtorch.tensor(order, device=input.device)
    if order_tensor is not None:
        rows = rows.index_select(0, order_tensor)
    counts = [sum(n > t for n in sizes) for t in range(sizes[0])]
    data = dtorch.cat([rows[:count, t] for t, count in enumerate(counts)])
    return PackedSequence(data, dtorch.tensor(counts), order_tensor)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """The padded batch of a packed sequence and the lengths (N,)."""
    rows = sequence.unpack()
    lengths = [row.shape[0] for row in rows]
    if sequence.unsorted_indices is not None:
        order = sequence.unsorted_indices.tolist()
        rows, lengths = [rows[i] for i in order], [lengths[i] for i in order]
    out = pad_sequence(rows, batch_first, padding_value)
    time = 1 if batch_first else 0
    if total_length is not None:
        if total_length < out.shape[time]:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in input, "
                f"but got total_length={total_length} and max sequence length being {out.shape[time]}"
            )
        shape = list(out.shape)
        shape[time] = total_length - out.shape[time]
        out = dtorch.cat([out, dtorch.full(shape, padding_value, dtype=out.dtype, device=out.device)], time)
    return out, dtorch.tensor(lengths)


def pack_sequence(sequences, enforce_sorted=True):
    """Pack a list of sequences (L_i, *)."""
    sequences = list(sequences)
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)
