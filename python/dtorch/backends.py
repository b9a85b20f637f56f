"""Switches of PyTorch's libraries: they can be set and read, and change nothing here."""

from types import SimpleNamespace

__all__ = [
    "are_deterministic_algorithms_enabled", "cpu", "cuda", "cudnn", "get_float32_matmul_precision", "mkl", "mkldnn", "mps",
    "set_float32_matmul_precision", "use_deterministic_algorithms",
]  # fmt: skip

cudnn = SimpleNamespace(
    benchmark=False, deterministic=True, enabled=False, allow_tf32=False, is_available=lambda: False, version=lambda: None
)
cuda = SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False), is_built=lambda: False, enable_flash_sdp=lambda on: None,
                       enable_mem_efficient_sdp=lambda on: None, enable_math_sdp=lambda on: None)  # fmt: skip
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
mkl = SimpleNamespace(is_available=lambda: False)
mkldnn = SimpleNamespace(is_available=lambda: False, enabled=False)
cpu = SimpleNamespace(get_cpu_capability=lambda: "DEFAULT")

_state = {"precision": "highest", "deterministic": False}


def set_float32_matmul_precision(precision):
    """Accepted: "highest", "high" or "medium". float32 products are made in float32 always."""
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"set_float32_matmul_precision(): precision must be 'highest', 'high' or 'medium', got {precision!r}")
    _state["precision"] = precision


def get_float32_matmul_precision():
    """What set_float32_matmul_precision was given last."""
    return _state["precision"]


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Accepted: there are no others."""
    _state["deterministic"] = bool(mode)


def are_deterministic_algorithms_enabled():
    """What use_deterministic_algorithms was given last."""
    return _state["deterministic"]
