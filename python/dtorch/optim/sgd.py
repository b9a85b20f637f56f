"""Stochastic gradient descent: one fused operator for each parameter."""

from __future__ import annotations

import dtorch
from dtorch._C import _ops
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
        step = _ops.sgd_step
        with dtorch.no_grad():
            for group in self.param_groups:
                lr, momentum, dampening = number(group["lr"]), group["momentum"], group["dampening"]
                decay, nesterov, maximize = number(group["weight_decay"]), bool(group["nesterov"]), bool(group["maximize"])
                for p in group["params"]:
                    grad = p.grad
                    if grad is None:
                        continue
                    buffer, first = None, False
                    if momentum != 0:
                        state = self.state[p]
                        buffer = state.get("momentum_buffer")
                        if buffer is None:
                            first = True
                            buffer = state["momentum_buffer"] = dtorch.zeros_like(p)
                    step(p, grad, buffer, lr, momentum, dampening, decay, nesterov, maximize, first)
        return loss
