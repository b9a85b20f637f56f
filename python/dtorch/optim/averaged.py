"""Resilient propagation and averaged gradient descent."""

from __future__ import annotations

import dtorch
from dtorch.optim.adaptive import ElementwiseOptimizer, _complete
from dtorch.optim.optimizer import check_lr, check_not_negative, check_option, number

__all__ = ["ASGD", "Rprop"]


class Rprop(ElementwiseOptimizer):
    """Each element has a step of its own, longer while its gradient keeps its sign, shorter when it changes. Riedmiller & Braun, 1993."""

    def __init__(
        self,
        params,
        lr=1e-2,
        etas=(0.5, 1.2),
        step_sizes=(1e-6, 50),
        *,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
    ):
        check_lr(lr)
        check_option(0.0 < etas[0] < 1.0 < etas[1], f"Invalid eta values: {etas[0]}, {etas[1]}")
        options = {"lr": lr, "etas": etas, "step_sizes": step_sizes}
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return {"prev": dtorch.zeros_like(p), "step_size": dtorch.full_like(p, number(group["lr"]))}

    def _update(self, p, grad, state, group, lr):
        shorter, longer = group["etas"]
        low, high = group["step_sizes"]
        agreement = (grad * state["prev"]).sign()
        factor = dtorch.ones_like(p).masked_fill_(agreement > 0, longer).masked_fill_(agreement < 0, shorter)
        state["step_size"].mul_(factor).clamp_(min=low, max=high)
        grad = grad.masked_fill(agreement < 0, 0.0)
        p.addcmul_(grad.sign(), state["step_size"], value=-1.0)
        state["prev"].copy_(grad)


class ASGD(ElementwiseOptimizer):
    """Gradient descent whose result is the average of its path (``ax`` in the state). Polyak & Juditsky, 1992."""

    _numbers = ("step", "eta", "mu")

    def __init__(
        self,
        params,
        lr=1e-2,
        lambd=1e-4,
        alpha=0.75,
        t0=1e6,
        weight_decay=0,
        foreach=None,
        maximize=False,
        differentiable=False,
        capturable=False,
    ):
        check_lr(lr)
        check_not_negative(weight_decay=weight_decay)
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return {"eta": number(group["lr"]), "mu": 1.0, "ax": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        t, eta, mu, mean = state["step"], state["eta"], state["mu"], state["ax"]
        p.mul_(1 - group["lambd"] * eta)
        p.add_(grad, alpha=-eta)
        if mu != 1:
            mean.add_((p - mean).mul_(mu))
        else:
            mean.copy_(p)
        state["eta"] = lr / (1 + group["lambd"] * lr * t) ** group["alpha"]
        state["mu"] = 1.0 / max(1.0, t - group["t0"])
