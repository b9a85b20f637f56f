"""CUDA devices: none yet. The questions that programs ask first are answered; everything else raises and says so."""

__all__ = ["current_device", "device_count", "empty_cache", "is_available", "is_initialized", "manual_seed", "manual_seed_all"]


def is_available():
    """False."""
    return False


def is_initialized():
    """False."""
    return False


def is_bf16_supported():
    """False."""
    return False


def device_count():
    """0."""
    return 0


def manual_seed(seed):
    """Nothing to seed: the random stream belongs to no device."""


manual_seed_all = manual_seed


def empty_cache():
    """Nothing to empty."""


def current_device():
    """Raises: there is no CUDA device."""
    raise RuntimeError("no CUDA devices are available")


def __getattr__(name):
    if name == "amp":
        from importlib import import_module

        return import_module("dtorch.cuda.amp")
    raise AttributeError(f"module 'dtorch.cuda' has no attribute {name!r}: planned with the cuda backend")
