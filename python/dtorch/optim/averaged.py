"""Resilient propagation and averaged gradient descent."""

from __future__ import annotations

import dtorch
from dtorch.optim.adaptive import _complete
from dtorch.optim.optimizer import OneOperator, check_lr, check_not_negative, check_option, number

__all__ = ["ASGD", "Rprop"]


class Rprop(OneOperator):
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

    def _operator(self, group):
        return "rprop_update", ("prev", "step_size"), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        numbers = *group["etas"], *group["step_sizes"]
        return lambda step: (numbers, (step + 1,))


class ASGD(OneOperator):
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

    def _operator(self, group):
        return "asgd_update", ("ax",), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        decay, lambd, alpha, t0 = group["weight_decay"], group["lambd"], group["alpha"], group["t0"]

        def rates(step, eta, mu):
            t = step + 1
            after = t, lr / (1 + lambd * lr * t) ** alpha, 1.0 / max(1.0, t - t0)
            return (decay, 1 - lambd * eta, eta, mu), after

        return rates
