"""The safetensors format under the names of the package that defines it; see :mod:`dtorch.io`."""

from dtorch.io import SafetensorError, load_file, safe_open, save_file
from dtorch.io import load_bytes as load
from dtorch.io import save_bytes as save

__all__ = ["SafetensorError", "load", "load_file", "safe_open", "save", "save_file"]
