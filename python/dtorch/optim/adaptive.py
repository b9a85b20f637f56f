"""Optimisers that scale each element by a history of its gradients, written with ordinary in-place operators."""

from __future__ import annotations

import dtorch
from dtorch.optim.optimizer import Optimizer, check_betas, check_lr, check_not_negative, check_option, number

__all__ = ["Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop"]


class ElementwiseOptimizer(Optimizer):
    """An optimiser that updates each parameter by itself: subclasses say how a state begins and what a step does."""

    def _start(self, p, group):
        raise NotImplementedError

    def _update(self, p, grad, state, group, lr):
        raise NotImplementedError

    def _decayed(self, p, grad, group):
        """The gradient to be minimised, with L2 decay."""
        if group["maximize"]:
            grad = -grad
        decay = group.get("weight_decay", 0)
        return grad.add(p, alpha=decay) if decay != 0 else grad

    def step(self, closure=None):
        """One step; returns what `closure` returns."""
        loss = self._loss(closure)
        with dtorch.no_grad():
            for group in self.param_groups:
                lr = number(group["lr"])
                for p in group["params"]:
                    grad = p.grad
                    if grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["step"] = 0
                        state.update(self._start(p, group))
                    state["step"] += 1
                    self._update(p, self._decayed(p, grad, group), state, group, lr)
        return loss


def _complete(defaults, foreach, maximize, differentiable, **more):
    return {**defaults, "maximize": maximize, "foreach": foreach, "differentiable": differentiable, **more}


class Adagrad(ElementwiseOptimizer):
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
                self.state[p] = {"step": 0, **self._start(p, group)}

    def _start(self, p, group):
        return {"sum": dtorch.full_like(p, group["initial_accumulator_value"])}

    def _update(self, p, grad, state, group, lr):
        state["sum"].addcmul_(grad, grad, value=1.0)
        rate = lr / (1 + (state["step"] - 1) * group["lr_decay"])
        p.addcdiv_(grad, state["sum"].sqrt().add_(group["eps"]), value=-rate)


class Adadelta(ElementwiseOptimizer):
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
        return {"square_avg": dtorch.zeros_like(p), "acc_delta": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        rho, eps = group["rho"], group["eps"]
        square, moved = state["square_avg"], state["acc_delta"]
        square.mul_(rho).addcmul_(grad, grad, value=1 - rho)
        delta = (moved + eps).sqrt_().div_((square + eps).sqrt_()).mul_(grad)
        moved.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        p.add_(delta, alpha=-lr)


class Adamax(ElementwiseOptimizer):
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
        return {"exp_avg": dtorch.zeros_like(p), "exp_inf": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        beta1, beta2 = group["betas"]
        mean, top = state["exp_avg"], state["exp_inf"]
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        top.copy_(dtorch.maximum(top * beta2, grad.abs().add_(group["eps"])))
        p.addcdiv_(mean, top, value=-lr / (1 - beta1 ** state["step"]))


class _DecoupledOrNot(ElementwiseOptimizer):
    """Weight decay by L2, or directly on the parameter when ``decoupled_weight_decay``."""

    def _decayed(self, p, grad, group):
        if group["maximize"]:
            grad = -grad
        decay = group["weight_decay"]
        if decay == 0:
            return grad
        if group["decoupled_weight_decay"]:
            p.mul_(1 - number(group["lr"]) * decay)
            return grad
        return grad.add(p, alpha=decay)


class NAdam(_DecoupledOrNot):
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
        return {"mu_product": 1.0, "exp_avg": dtorch.zeros_like(p), "exp_avg_sq": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        beta1, beta2 = group["betas"]
        t, decay = state["step"], group["momentum_decay"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mu = beta1 * (1.0 - 0.5 * 0.96 ** (t * decay))
        mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((t + 1) * decay))
        state["mu_product"] *= mu
        product = state["mu_product"]
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square / (1 - beta2**t)).sqrt_().add_(group["eps"])
        p.addcdiv_(grad, denominator, value=-lr * (1.0 - mu) / (1.0 - product))
        p.addcdiv_(mean, denominator, value=-lr * mu_next / (1.0 - product * mu_next))


class RAdam(_DecoupledOrNot):
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
        return {"exp_avg": dtorch.zeros_like(p), "exp_avg_sq": dtorch.zeros_like(p)}

    def _update(self, p, grad, state, group, lr):
        beta1, beta2 = group["betas"]
        t = state["step"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1, correction2 = 1 - beta1**t, 1 - beta2**t
        limit = 2 / (1 - beta2) - 1
        length = limit - 2 * t * beta2**t / correction2  # of the average's memory
        if length <= 5.0:
            p.add_(mean, alpha=-lr / correction1)
            return
        rectified = ((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)) ** 0.5
        p.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-lr / correction1 * rectified * correction2**0.5)


class RMSprop(ElementwiseOptimizer):
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

    def _start(self, p, group):
        state = {"square_avg": dtorch.zeros_like(p)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = dtorch.zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = dtorch.zeros_like(p)
        return state

    def _update(self, p, grad, state, group, lr):
        alpha, square = group["alpha"], state["square_avg"]
        square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"]
            mean.mul_(alpha).add_(grad, alpha=1 - alpha)
            scale = square.addcmul(mean, mean, value=-1.0).sqrt_().add_(group["eps"])
        else:
            scale = square.sqrt().add_(group["eps"])
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"]
            buffer.mul_(group["momentum"]).addcdiv_(grad, scale, value=1.0)
            p.add_(buffer, alpha=-lr)
        else:
            p.addcdiv_(grad, scale, value=-lr)
