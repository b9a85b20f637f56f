"""Switches of PyTorch's libraries: they can be set and read, and change nothing here."""

from types import SimpleNamespace

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps"]

cudnn = SimpleNamespace(
    benchmark=False, deterministic=True, enabled=False, allow_tf32=False, is_available=lambda: False, version=lambda: None
)
cuda = SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False), is_built=lambda: False, enable_flash_sdp=lambda on: None,
                       enable_mem_efficient_sdp=lambda on: None, enable_math_sdp=lambda on: None)  # fmt: skip
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
mkl = SimpleNamespace(is_available=lambda: False)
mkldnn = SimpleNamespace(is_available=lambda: False, enabled=False)
cpu = SimpleNamespace(get_cpu_capability=lambda: "DEFAULT")
