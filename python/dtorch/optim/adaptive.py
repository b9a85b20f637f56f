"""Optimisers that scale each element by a history of its gradients: one operator for each parameter."""

from __future__ import annotations

import dtorch
from dtorch.optim.optimizer import OneOperator, check_betas, check_lr, check_not_negative, check_option, number

__all__ = ["Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop"]


def _zeros(p, *names):
    return {name: dtorch.zeros_like(p) for name in names}


def _complete(defaults, foreach, maximize, differentiable, **more):
    return {**defaults, "maximize": maximize, "foreach": foreach, "differentiable": differentiable, **more}


class Adagrad(OneOperator):
    """``s += g^2; p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)``. Duchi et al., 2011."""

    def __init__(
        self,
        params,
        lr=1e-2,
        lr_decay=0,
        weight_decay=0,
        initial_accumulator_value=0,
        eps=1e-10,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        fused=None,
    ):
        check_lr(lr)
        check_not_negative(lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value, epsilon=eps)
        options = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        options["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(params, _complete(options, foreach, maximize, differentiable, fused=fused))
        for group in self.param_groups:  # the sums exist from the beginning, as in PyTorch
            for p in group["params"]:
                self._begin(p, group)

    def _start(self, p, group):
        return {"sum": dtorch.full_like(p, group["initial_accumulator_value"])}

    def _operator(self, group):
        return "adagrad_update", ("sum",), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        decay, slower, eps = group["weight_decay"], group["lr_decay"], group["eps"]
        return lambda step: ((decay, lr / (1 + step * slower), eps), (step + 1,))


class Adadelta(OneOperator):
    """``v = rho v + (1 - rho) g^2; d = g sqrt(u + eps) / sqrt(v + eps); u = rho u + (1 - rho) d^2; p -= lr d``. Zeiler, 2012."""

    def __init__(
        self,
        params,
        lr=1.0,
        rho=0.9,
        eps=1e-6,
        weight_decay=0,
        foreach=None,
        *,
        capturable=False,
        maximize=False,
        differentiable=False,
    ):
        check_lr(lr)
        check_option(0.0 <= rho <= 1.0, f"Invalid rho value: {rho}")
        check_not_negative(epsilon=eps, weight_decay=weight_decay)
        options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return _zeros(p, "square_avg", "acc_delta")

    def _operator(self, group):
        return "adadelta_update", ("square_avg", "acc_delta"), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        numbers = group["weight_decay"], lr, group["rho"], group["eps"]
        return lambda step: (numbers, (step + 1,))


class Adamax(OneOperator):
    """``m = b1 m + (1 - b1) g; u = max(b2 u, |g| + eps); p -= lr / (1 - b1^t) m / u``. Kingma & Ba, 2015."""

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        foreach=None,
        *,
        maximize=False,
        differentiable=False,
        capturable=False,
    ):
        check_lr(lr)
        check_not_negative(epsilon=eps, weight_decay=weight_decay)
        check_betas(betas)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return _zeros(p, "exp_avg", "exp_inf")

    def _operator(self, group):
        return "adamax_update", ("exp_avg", "exp_inf"), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        (beta1, beta2), decay, eps = (number(b) for b in group["betas"]), group["weight_decay"], group["eps"]
        return lambda step: ((decay, lr / (1 - beta1 ** (step + 1)), beta1, beta2, eps), (step + 1,))


def _decay(group, lr):
    """What weight decay adds to the gradient, as a multiple of the parameter, and by what it multiplies the parameter instead."""
    decay = group["weight_decay"]
    return (0.0, 1 - lr * decay) if group["decoupled_weight_decay"] else (decay, 1.0)


class NAdam(OneOperator):
    """Adam with Nesterov momentum. Dozat, 2016."""

    _numbers = ("step", "mu_product")

    def __init__(
        self,
        params,
        lr=2e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        momentum_decay=4e-3,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
    ):
        check_lr(lr)
        check_not_negative(epsilon=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(betas)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        options["decoupled_weight_decay"] = decoupled_weight_decay
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return {"mu_product": 1.0, **_zeros(p, "exp_avg", "exp_avg_sq")}

    def _operator(self, group):
        return "nadam_update", ("exp_avg", "exp_avg_sq"), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        (beta1, beta2), eps, slower = (number(b) for b in group["betas"]), group["eps"], group["momentum_decay"]
        decay = _decay(group, lr)

        def rates(step, product):
            t = step + 1
            mu = beta1 * (1.0 - 0.5 * 0.96 ** (t * slower))
            mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((t + 1) * slower))
            product = product * mu
            of_grad, of_avg = lr * (1.0 - mu) / (1.0 - product), lr * mu_next / (1.0 - product * mu_next)
            return (*decay, beta1, beta2, eps, 1 - beta2**t, of_grad, of_avg), (t, product)

        return rates


class RAdam(OneOperator):
    """Adam whose adaptive rate is rectified while the second moment is uncertain. Liu et al., 2020."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        decoupled_weight_decay=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
    ):
        check_lr(lr)
        check_not_negative(epsilon=eps, weight_decay=weight_decay)
        check_betas(betas)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options["decoupled_weight_decay"] = decoupled_weight_decay
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    def _start(self, p, group):
        return _zeros(p, "exp_avg", "exp_avg_sq")

    def _operator(self, group):
        return "radam_update", ("exp_avg", "exp_avg_sq"), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        (beta1, beta2), eps, decay = (number(b) for b in group["betas"]), group["eps"], _decay(group, lr)
        limit = 2 / (1 - beta2) - 1

        def rates(step):
            t = step + 1
            correction1, correction2 = 1 - beta1**t, 1 - beta2**t
            length = limit - 2 * t * beta2**t / correction2  # of the average's memory
            rate, rectified = lr / correction1, length > 5.0
            if rectified:
                rate *= ((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)) ** 0.5 * correction2**0.5
            return (*decay, beta1, beta2, eps, rate, rectified), (t,)

        return rates


class RMSprop(OneOperator):
    """``v = alpha v + (1 - alpha) g^2; p -= lr g / (sqrt(v) + eps)``, with momentum, and with variance for v when `centered`."""

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0,
        momentum=0,
        centered=False,
        capturable=False,
        foreach=None,
        maximize=False,
        differentiable=False,
    ):
        check_lr(lr)
        check_not_negative(epsilon=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        options = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay}
        super().__init__(params, _complete(options, foreach, maximize, differentiable, capturable=capturable))

    @staticmethod
    def _tensors(group):
        return "square_avg", *["grad_avg"] * bool(group["centered"]), *["momentum_buffer"] * (group["momentum"] > 0)

    def _start(self, p, group):
        return _zeros(p, *self._tensors(group))

    def _operator(self, group):
        name = "rmsprop_update" + "_centered" * bool(group["centered"]) + "_momentum" * (group["momentum"] > 0)
        return name, self._tensors(group), (bool(group["maximize"]),)

    def _rates(self, group, lr):
        numbers = group["weight_decay"], lr, group["alpha"], group["eps"], *[group["momentum"]] * (group["momentum"] > 0)
        return lambda step: (numbers, (step + 1,))
