"""Autocast and GradScaler without naming the device, as older scripts write them."""

from dtorch import amp as _amp
from dtorch import bfloat16

__all__ = ["GradScaler", "autocast"]


class autocast(_amp.autocast):  # noqa: N801
    """``dtorch.autocast("cpu", …)``."""

    def __init__(self, enabled=True, dtype=bfloat16, cache_enabled=True):
        super().__init__("cpu", dtype, enabled, cache_enabled)


class GradScaler(_amp.GradScaler):
    """``dtorch.amp.GradScaler("cpu", …)``."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
