"""Sizes given as one number or as one for each dimension."""

from __future__ import annotations


def ntuple(n):
    """A function that makes a tuple of n out of one number, and a tuple out of a sequence."""

    def parse(value):
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            return (value,) * n
        return tuple(value)

    return parse


single, pair, triple = ntuple(1), ntuple(2), ntuple(3)
