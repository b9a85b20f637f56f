"""Optimisers that know the shape of a parameter: Adafactor and Muon."""

from __future__ import annotations

import math

import dtorch
from dtorch.optim.optimizer import Optimizer, check_lr, check_not_negative, check_option, number

__all__ = ["Adafactor", "Muon"]


class _EachMatrix(Optimizer):
    """A step made of calls on whole parameters: a subclass says how a state begins (`_start`) and what one parameter's step is (`_update`)."""

    def step(self, closure=None):
        """One step; returns what `closure` returns."""
        loss = self._loss(closure)
        with dtorch.no_grad():
            for group in self.param_groups:
                lr = number(group["lr"])
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        if not state:
                            state.update(self._start(p, group))
                        self._update(p, p.grad, state, group, lr)
        return loss


class Adafactor(_EachMatrix):
    """Adam without momentum, whose second moments of a matrix are kept as row and column means. Shazeer & Stern, 2018."""

    def __init__(
        self,
        params,
        lr=1e-2,
        beta2_decay=-0.8,
        eps=(None, 1e-3),
        d=1.0,
        weight_decay=0.0,
        *,
        foreach=None,
        maximize=False,
    ):
        check_lr(lr)
        check_option(beta2_decay <= 0.0, f"beta2_decay should be <= 0 but is: {beta2_decay}")
        check_option(eps[0] is None or eps[0] >= 0.0, f"epsilon1 should be >= 0 but is: {eps[0]}")
        check_option(eps[1] >= 0.0, f"epsilon2 should be >= 0 but is: {eps[1]}")
        check_option(d >= 1.0, f"Clipping threshold d should be >= 1 but is: {d}")
        check_not_negative(weight_decay=weight_decay)
        options = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, {**options, "foreach": foreach, "maximize": maximize})

    def _start(self, p, group):
        if p.dim() < 2:
            return {"step": 0, "variance": dtorch.zeros_like(p)}
        rows, columns = (*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])
        return {"step": 0, "row_var": self._zeros(p, rows), "col_var": self._zeros(p, columns)}

    def _update(self, p, grad, state, group, lr):
        t = state["step"] + 1
        grad = -grad if group["maximize"] else grad
        eps1, eps2 = group["eps"]
        eps1 = dtorch.finfo(p.dtype).eps if eps1 is None else eps1
        fresh = t ** group["beta2_decay"]  # 1 - beta2
        # The parameter's root mean square scales the step; it stays on the device.
        rate = (p.norm(2) / p.numel() ** 0.5).clamp(min=eps2) * min(lr, 1 / t**0.5)
        if group["weight_decay"] != 0:
            p.mul_(1 - lr * group["weight_decay"])
        if grad.dim() > 1:
            row, col = state["row_var"], state["col_var"]
            row.lerp_((grad * grad).mean(-1, keepdim=True), fresh)
            col.lerp_((grad * grad).mean(-2, keepdim=True), fresh)
            variance = (row @ col) / row.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            variance = state["variance"].lerp_(grad * grad, fresh)
        update = grad * variance.clamp(min=eps1 * eps1).rsqrt()
        p.sub_(update * (rate / (update.norm(2) / (update.numel() ** 0.5 * group["d"])).clamp(min=1.0)))
        state["step"] = t  # a step that failed is not counted


def _orthogonalized(grad, coefficients, steps, eps):
    """An approximately orthogonal matrix near `grad` (n, m), by Newton-Schulz iteration in bfloat16."""
    a, b, c = coefficients
    x = grad.to(dtorch.bfloat16)
    if x.device_mesh.ndim:  # gathered once, 16 bits an element, rather than two products a step that every device has a part of
        x = x.redistribute(placements=[dtorch.Replicate()] * x.device_mesh.ndim)
    wide = x.shape[0] > x.shape[1]
    if wide:
        x = x.t()
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.t() if wide else x


class Muon(_EachMatrix):
    """Momentum whose update is made orthogonal; for matrices (n, m) only. Jordan et al., 2024."""

    def __init__(
        self,
        params,
        lr=1e-3,
        weight_decay=0.1,
        momentum=0.95,
        nesterov=True,
        ns_coefficients=(3.4445, -4.775, 2.0315),
        eps=1e-7,
        ns_steps=5,
        adjust_lr_fn=None,
    ):
        check_lr(lr)
        check_not_negative(momentum=momentum, weight_decay=weight_decay)
        known = (None, "original", "match_rms_adamw")
        check_option(adjust_lr_fn in known, f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_coefficients": ns_coefficients,
                "eps": eps,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
        )
        for group in self.param_groups:
            for p in group["params"]:
                check_option(p.dim() == 2, f"Muon only supports 2D parameters whereas we found a parameter with size: {p.shape}")

    def _start(self, p, group):
        return {"momentum_buffer": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - group["momentum"])
        update = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        update = _orthogonalized(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        n, m = p.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            rate = lr * 0.2 * math.sqrt(max(n, m))
        else:
            rate = lr * math.sqrt(max(1, n / m))
        p.mul_(1 - lr * group["weight_decay"])
        p.add_(update.to(p.dtype), alpha=-rate)
