"""Signal processing: window functions."""

from dtorch.signal import windows

__all__ = ["windows"]
