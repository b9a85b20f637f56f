"""Autocast and GradScaler for CUDA, as older scripts write them; without CUDA devices both are off."""

from dtorch import amp as _amp
from dtorch import float16

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_amp.autocast):  # noqa: N801
    """``dtorch.autocast("cuda", …)``."""

    def __init__(self, enabled=True, dtype=float16, cache_enabled=True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_amp.GradScaler):
    """``dtorch.amp.GradScaler("cuda", …)``: not enabled where there are no CUDA devices."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        if enabled:
            import warnings

            warnings.warn("dtorch.cuda.amp.GradScaler is enabled, but CUDA is not available. Disabling.", stacklevel=2)
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, False)


def custom_fwd(fwd=None, *, cast_inputs=None):
    """``dtorch.amp.custom_fwd`` for CUDA."""
    return _amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd=None):
    """``dtorch.amp.custom_bwd`` for CUDA."""
    return _amp.custom_bwd(bwd, device_type="cuda")
