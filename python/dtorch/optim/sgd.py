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
                params, lr, decay = group["params"], number(group["lr"]), number(group["weight_decay"])
                maximize = bool(group["maximize"])
                if group["momentum"] == 0:
                    plain = (lr, decay), ()
                    _C._update_each(params, self.state, 0, len(params), "sgd_update", (), (), lambda plain=plain: plain, (maximize,))
                else:
                    numbers = (lr, group["momentum"], group["dampening"], decay), ()
                    self._with_momentum(params, lambda numbers=numbers: numbers, bool(group["nesterov"]), maximize)
        return loss

    def _with_momentum(self, params, rates, nesterov, maximize):
        def update(at, end, first):
            flags = nesterov, maximize, first
            return _C._update_each(params, self.state, at, end, "sgd_update_momentum", ("momentum_buffer",), (), rates, flags)

        at = 0
        while (at := update(at, len(params), False)) < len(params):
            self.state[params[at]]["momentum_buffer"] = dtorch.zeros_like(params[at])
            at = update(at, at + 1, True)
