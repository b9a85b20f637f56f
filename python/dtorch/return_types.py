"""The named tuples that operators with several results return."""

from dtorch import _C

globals().update({k: v for k, v in vars(_C.return_types).items() if not k.startswith("_")})
__all__ = sorted(k for k in vars(_C.return_types) if not k.startswith("_"))
