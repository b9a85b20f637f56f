"""Local tensors of distributed ones, and how gradients lie on the way back."""

from __future__ import annotations

import dtorch
from dtorch._C import DeviceMesh, Tensor
from dtorch.autograd import Function

_to_local, _from_local, _redistribute = Tensor.to_local, Tensor.from_local, Tensor.redistribute


class _Parts(Function):
    """All local tensors; their gradients are put together as `placements` say, whatever the tensor's own are."""

    @staticmethod
    def forward(ctx, tensor, placements):
        ctx.mesh, ctx.placements = tensor.device_mesh, placements
        parts = _to_local(tensor)
        ctx.like = [(tuple(p.shape), p.dtype, p.device) for p in parts]
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        filled = [
            dtorch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, (shape, dtype, device) in zip(grads, ctx.like, strict=True)
        ]
        return _from_local(filled, ctx.mesh, ctx.placements), None


class _Moved(Function):
    """redistribute, whose gradient goes back as `placements` say."""

    @staticmethod
    def forward(ctx, tensor, mesh, placements, back):
        result = _redistribute(tensor, mesh, placements)
        ctx.mesh = tensor.device_mesh if tensor.device_mesh.ndim else result.device_mesh
        ctx.placements = back
        return result

    @staticmethod
    def backward(ctx, grad):
        return _redistribute(grad, ctx.mesh, ctx.placements), None, None, None


def to_local(self, index=None, *, grad_placements=None):
    """What the mesh's index-th device holds, as a plain tensor on that device; without index a list, one per device.

    Args:
        index: the device's position in the mesh.
        grad_placements: what the gradients of the local tensors are together. By default what follows from the tensor's own placements: a
            part is a part, and copies of a replicated tensor each contribute (their gradients are summed). ``[Replicate()]`` says that all
            copies do the same work, so that their gradients are one gradient, ``[Partial()]`` that each has its share of it.
    """
    if grad_placements is None:
        return _to_local(self) if index is None else _to_local(self, index)
    parts = _Parts.apply(self, grad_placements)
    return list(parts) if index is None else parts[index]


def from_local(local_tensor, device_mesh, placements=None, *, run_check=False, grad_placements=None):
    """A distributed tensor from one local tensor per device, or one for all.

    Args:
        local_tensor: a list of tensors, one per device of the mesh, whose sizes are those that the placements give.
        device_mesh, placements: where and how they lie.
        grad_placements: how the gradient is laid out before the local tensors get theirs; as `placements` by default.
    """
    result = _from_local(local_tensor, device_mesh, placements, run_check=run_check)
    if grad_placements is not None and result.requires_grad:
        result.register_hook(lambda g: _redistribute(g, g.device_mesh, grad_placements))
    return result


def redistribute(self, device_mesh=None, placements=None, async_op=False, *, grad_placements=None):
    """The same values with other placements, or on another mesh. Differentiable, between any placements.

    Args:
        device_mesh: a mesh, or part of one by name; the tensor's own by default.
        placements: one per mesh dimension, or a dict by dimension name: dimensions left out keep theirs.
        async_op: accepted; every call is asynchronous.
        grad_placements: how the gradient goes back to this tensor: one per dimension of its mesh (of the target mesh, for a plain tensor); as
            the tensor lies by default, Replicate where it is Partial.
    """
    if grad_placements is None:
        return _redistribute(self, device_mesh, placements)
    if placements is None and device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        device_mesh, placements = None, device_mesh
    return _Moved.apply(self, device_mesh, placements, grad_placements)


def local_map(fn, out_placements, in_placements=None, in_grad_placements=None, device_mesh=None, *, redistribute_inputs=False):
    """A function of distributed tensors from one of local tensors: fn runs once for each device, on what that device holds.

    Args:
        fn: takes local tensors where distributed ones are given; returns a tensor, a tuple of them, or other values.
        out_placements: of the results: a list of placements for one, a tuple of such lists for several; None for what is no tensor. A
            replicated result must be the same on every device, a Partial one is the sum over them.
        in_placements: for each argument the placements it must have, None for any or for what is no tensor.
        in_grad_placements: for each argument what its local gradients are together; see :meth:`Tensor.to_local`.
        device_mesh: the mesh; that of the first distributed argument by default.
        redistribute_inputs: bring arguments to in_placements; otherwise others are a ValueError.
    """

    def wrapped(*args, **kwargs):
        mesh = device_mesh or next((a.device_mesh for a in args if isinstance(a, Tensor) and a.device_mesh.ndim), None)
        if mesh is None:
            raise ValueError("local_map(): no argument lies on a mesh, and no device_mesh is given")
        per_arg = [_locals(i, a, mesh) for i, a in enumerate(args)]
        n = len(per_arg[0]) if per_arg else mesh.size()
        results = [fn(*(p[i] for p in per_arg), **kwargs) for i in range(n)]
        if not isinstance(results[0], tuple):
            return _joined(results, mesh, out_placements)
        places = out_placements if isinstance(out_placements, tuple) else (out_placements,) * len(results[0])
        return tuple(_joined([r[k] for r in results], mesh, p) for k, p in enumerate(places))

    def _locals(i, a, mesh):
        want = in_placements[i] if in_placements is not None else None
        if not isinstance(a, Tensor):
            return [a] * mesh.size()
        if a.device_mesh.ndim == 0:
            a = dtorch.distribute_tensor(a, mesh)
        if want is not None and tuple(a.placements) != tuple(want):
            if not redistribute_inputs:
                raise ValueError(
                    f"local_map(): argument {i} has placements {a.placements}, in_placements say {tuple(want)}: "
                    "redistribute it, or pass redistribute_inputs=True"
                )
            a = _redistribute(a, a.device_mesh, want)
        return to_local(a, grad_placements=in_grad_placements[i] if in_grad_placements is not None else None)

    def _joined(parts, mesh, placements):
        if placements is None or not isinstance(parts[0], Tensor):
            return parts[0]
        return _from_local(list(parts), mesh, placements)

    wrapped.__name__ = getattr(fn, "__name__", "local_map")
    wrapped.__doc__ = fn.__doc__
    return wrapped
