"""Stochastic gradient descent: one fused operator for each parameter."""

from __future__ import annotations

import dtorch
from dtorch import _C
from dtorch.optim.optimizer import Optimizer, check_lr, check_option, number

__all__ = ["SGD"]


class SGD(Optimizer):
    """``g += weight_decay * p; b = momentum * b + (1 - dampening) g; p -= lr * b`` (nesterov: ``p -= lr * (g + momentum * b)``).

    `foreach`, `differentiable` and `fused` are accepted and have no effect: a step is always fused.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        *,
        maximize=False,
        foreach=None,
        differentiable=False,
        fused=None,
    ):
        check_lr(lr)
        check_option(momentum >= 0.0, f"Invalid momentum value: {momentum}")
        check_option(number(weight_decay) >= 0.0, f"Invalid weight_decay value: {weight_decay}")
        check_option(not nesterov or (momentum > 0 and dampening == 0), "Nesterov momentum requires a momentum and zero dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def step(self, closure=None):
        """One step; returns what `closure` returns."""
        loss = self._loss(closure)
        with dtorch.no_grad():
            for group in self.param_groups:
                params = group["params"]
                options = number(group["lr"]), group["momentum"], group["dampening"], number(group["weight_decay"])
                flags = bool(group["nesterov"]), bool(group["maximize"])
                at, first = 0, False
                while (at := _C._sgd_steps(params, self.state, at, *options, *flags, first)) < len(params):
                    self.state[params[at]]["momentum_buffer"] = dtorch.zeros_like(params[at])
                    first = True
        return loss
