"""The version."""

from dtorch import __version__

cuda = None
__all__ = ["__version__", "cuda"]
