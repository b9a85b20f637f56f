"""Adam and AdamW: one fused operator for each parameter. Kingma & Ba, 2015; Loshchilov & Hutter, 2019."""

from __future__ import annotations

import dtorch
from dtorch.optim.optimizer import OneOperator, check_betas, check_lr, check_not_negative, number

__all__ = ["Adam", "AdamW"]


class Adam(OneOperator):
    """``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr m' / (sqrt(v') + eps)`` with m', v' corrected for their start at 0.

    `weight_decay` adds to the gradient (L2), or shrinks the parameter directly with `decoupled_weight_decay`. `amsgrad` divides by the
    largest v so far. `foreach`, `capturable`, `differentiable` and `fused` are accepted and have no effect: a step is always fused.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
        fused=None,
        decoupled_weight_decay=False,
    ):
        check_lr(lr)
        check_not_negative(epsilon=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def _start(self, p, group):
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
        return {name: dtorch.zeros_like(p) for name in names}

    def _operator(self, group):
        flags = bool(group.get("decoupled_weight_decay", False)), bool(group["maximize"])
        if group["amsgrad"]:
            return "adam_update_amsgrad", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), flags
        return "adam_update", ("exp_avg", "exp_avg_sq"), flags

    def _rates(self, group, lr):
        (beta1, beta2), eps, decay = (number(b) for b in group["betas"]), group["eps"], number(group["weight_decay"])

        def rates(step):
            t = step + 1
            return (lr, beta1, beta2, eps, decay, 1.0 - beta1**t, 1.0 - beta2**t), (t,)

        return rates


class AdamW(Adam):
    """:class:`Adam` whose weight decay shrinks the parameter directly: ``p -= lr * weight_decay * p``."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,
        *,
        maximize=False,
        foreach=None,
        capturable=False,
        differentiable=False,
        fused=None,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True

    def load_state_dict(self, state_dict):
        """As :meth:`Optimizer.load_state_dict`; the decay stays decoupled whatever the file says."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
