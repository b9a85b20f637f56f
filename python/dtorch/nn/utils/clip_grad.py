"""Limiting gradients. Nothing here reads a value: the program does not wait."""

from __future__ import annotations

import warnings

import dtorch
from dtorch import Tensor

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _as_list(tensors):
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _grads(parameters):
    return [p.grad for p in _as_list(parameters) if p.grad is not None]


def _power_sum(total, x, p):
    """`total` plus the sum of ``|x|^p``, 0-dimensional."""
    part = (x * x).sum() if p == 2 else x.abs().sum() if p == 1 else x.abs().pow(p).sum()
    return part if total is None else total + part


def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The p-norm of all `tensors` together, 0-dimensional; p may be inf. `error_if_nonfinite` reads the value, and so waits."""
    tensors = _as_list(tensors)
    p = float(norm_type)
    if not tensors:
        return dtorch.tensor(0.0)
    total = None
    with dtorch.no_grad():
        for x in tensors:
            if p == float("inf"):
                top = x.abs().max()
                total = top if total is None else dtorch.maximum(total, top)
            elif p == 0:  # as PyTorch: the number of tensors that are not zero
                any_nonzero = (x != 0).any().to(x.dtype)
                total = any_nonzero if total is None else total + any_nonzero
            else:
                total = _power_sum(total, x if x.dtype != dtorch.float16 else x.float(), p)
        if p == 2:
            total = total.sqrt()
        elif p not in (0, 1, float("inf")):
            total = total.pow(1.0 / p)
    if error_if_nonfinite and not bool(dtorch.isfinite(total)):
        raise RuntimeError(
            f"The total norm of order {p} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scale all gradients by ``min(1, max_norm / (total_norm + 1e-6))``, in place."""
    with dtorch.no_grad():
        scale = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        for grad in _grads(parameters):
            grad.mul_(scale.to(grad.dtype))


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scale the gradients of `parameters` so that their norm, taken together, is at most `max_norm`.

    Returns:
        the norm before scaling, 0-dimensional.
    """
    parameters = _as_list(parameters)
    total = get_total_norm(_grads(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The old name of :func:`clip_grad_norm_`."""
    warnings.warn(
        "`torch.nn.utils.clip_grad_norm` is now deprecated in favor of `torch.nn.utils.clip_grad_norm_`.", FutureWarning, stacklevel=2
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Limit every element of the gradients to [-clip_value, clip_value], in place."""
    value = float(clip_value)
    with dtorch.no_grad():
        for grad in _grads(parameters):
            grad.clamp_(min=-value, max=value)
