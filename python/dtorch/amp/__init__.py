"""Automatic mixed precision: :class:`autocast` chooses the dtype of each call, :class:`GradScaler` keeps small gradients from vanishing.

with dtorch.autocast("cpu", dtype=dtorch.bfloat16):
    loss = loss_fn(model(x), y)
loss.backward()
"""

from dtorch.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from dtorch.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
