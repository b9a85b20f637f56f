"""Limiting gradients, of any dtypes, placements and meshes together. Nothing here reads a value, so the program does not wait, unless a
non-finite norm shall be an error.

The norm of many tensors is the norm of their norms. Tensors of one dtype that lie alike give a number per device together, by one operator; a
Partial one where they are sharded: so what is sharded counts once and what is replicated counts once. All numbers of a mesh are made Partial
alike (which costs nothing), stacked and reduced: one collective of one number for each mesh, whatever the placements on it; then the meshes'
numbers meet on the first one.
"""

from __future__ import annotations

import warnings

import dtorch
from dtorch import _C, Partial, Replicate, Tensor

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]

_INF = float("inf")


def _as_list(tensors):
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _grads(parameters):
    return [p.grad for p in _as_list(parameters) if p.grad is not None]


def _measure(x, p):
    """What a tensor adds to the norm before the root, 0-dimensional and of at least 32 bits: the sum of ``|x|^p``; the largest ``|x|``."""
    x = x.detach()
    if x.dtype in (dtorch.float16, dtorch.bfloat16):
        x = x.to(dtorch.float32)
    if p in (_INF, -_INF):
        return x.abs().max() if p > 0 else x.abs().min()
    if p == 0:  # as PyTorch, whose norms of norms come to this: the number of tensors that are not zero
        return (x != 0).any().to(x.dtype)
    return (x * x).sum() if p == 2 else x.abs().sum() if p == 1 else x.abs().pow(p).sum()


def _measures(tensors, p):
    """The same of tensors that lie alike, in as few numbers as possible."""
    x = tensors[0]
    if p != 0 and x.is_floating_point() and not any(q.is_partial() for q in x.placements):
        return [_C._ops._total_power(tensors, p)]
    return [_measure(x, p) for x in tensors]


def _joined(parts, p):
    """One number for all measures of one mesh, replicated there."""
    how = "sum" if abs(p) != _INF else "max" if p > 0 else "min"
    if parts[0].device_mesh.ndim:
        # A value that is whole on every device is Partial too: the sum with zeros, the maximum of equal ones.
        alike = [Partial(how)] * parts[0].device_mesh.ndim
        if p != 0 and any(q.is_partial() for x in parts for q in x.placements):
            parts = [x.redistribute(placements=alike) for x in parts]
    stacked = dtorch.stack(parts) if len(parts) > 1 else parts[0].reshape(1)
    total = stacked.sum() if how == "sum" else stacked.max() if how == "max" else stacked.min()
    return total.redistribute(placements=[Replicate()] * total.device_mesh.ndim) if total.device_mesh.ndim else total


def _on(number, mesh, device):
    """A 0-dimensional tensor, replicated on a mesh or on a device."""
    if mesh.ndim:
        return number if number.device_mesh == mesh else number.redistribute(mesh, [Replicate()] * mesh.ndim)
    number = number.full_tensor() if number.device_mesh.ndim else number
    return number if number.device == device else number.to(device)


def _home(tensor):
    return tensor.device_mesh, None if tensor.device_mesh.ndim else tensor.device


def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The p-norm of all `tensors` together, 0-dimensional; p may be inf.

    Args:
        tensors: tensors of any floating dtypes, on any meshes with any placements; a shard counts once, and so does a replica.
        norm_type: p.
        error_if_nonfinite: RuntimeError for a norm that is nan or inf; this reads the value, and so waits.
        foreach: accepted; has no effect.

    Returns:
        the norm, replicated on the mesh of the first distributed tensor; plain when there is none. Norms of 16-bit tensors are computed and
        returned in float32.
    """
    tensors = _as_list(tensors)
    p = float(norm_type)
    if not tensors:
        return dtorch.tensor(0.0)
    with dtorch.no_grad():
        groups = {}
        for alike in _C._alike(tensors):
            groups.setdefault(_home(alike[0]), []).extend(_measures(alike, p))
        totals = [_joined(parts, p) for parts in groups.values()]
        home = next((t for t in totals if t.device_mesh.ndim), totals[0])
        totals = [_on(t, *_home(home)) for t in totals]
        total = totals[0]
        for t in totals[1:]:
            total = total + t if abs(p) != _INF else dtorch.maximum(total, t) if p > 0 else dtorch.minimum(total, t)
        if p == 2:
            total = total.sqrt()
        elif p not in (0, 1, _INF, -_INF):
            total = total.pow(1.0 / p)
    if error_if_nonfinite and not bool(dtorch.isfinite(total)):
        raise RuntimeError(
            f"The total norm of order {p} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scale all gradients by ``min(1, max_norm / (total_norm + 1e-6))``, in place; they may lie on other meshes than `total_norm`."""
    grads = _grads(parameters)
    with dtorch.no_grad():
        scale = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        for alike in _C._alike(grads):
            _C._scale_each(alike, _on(scale, *_home(alike[0])).to(alike[0].dtype))


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scale the gradients of `parameters` so that their norm, taken together, is at most `max_norm`.

    Parameters may be replicated, sharded, expert-sharded, and on the meshes of several pipeline stages: each counts once. See
    :func:`get_total_norm`.

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
