"""Averages of a model over its training: equal weights (SWA) or exponential (EMA)."""

from __future__ import annotations

import copy
import itertools
import math

import dtorch
from dtorch.nn.modules.module import Module
from dtorch.optim.lr_scheduler import LRScheduler, _per_group

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn"]


def _check_decay(decay):
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def get_ema_avg_fn(decay=0.999):
    """``decay * average + (1 - decay) * parameter``"""
    _check_decay(decay)

    def ema_update(ema_param, current_param, num_averaged):
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_swa_avg_fn():
    """``average + (parameter - average) / (number + 1)``"""

    def swa_update(averaged_param, current_param, num_averaged):
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def get_ema_multi_avg_fn(decay=0.999):
    """:func:`get_ema_avg_fn` for lists of parameters, in place."""
    _check_decay(decay)

    def ema_update(ema_params, current_params, num_averaged):
        for average, p in zip(ema_params, current_params, strict=True):
            average.lerp_(p, 1 - decay) if average.is_floating_point() or average.is_complex() else average.copy_(p)

    return ema_update


def get_swa_multi_avg_fn():
    """:func:`get_swa_avg_fn` for lists of parameters, in place."""

    def swa_update(averaged_params, current_params, num_averaged):
        for average, p in zip(averaged_params, current_params, strict=True):
            average.add_((p - average) / (num_averaged + 1))

    return swa_update


class AveragedModel(Module):
    """A copy of `model` that holds averages of its parameters (and of its buffers, with `use_buffers`).

    ``n_averaged`` counts the updates. The functions get that count as a Python number, so that no update waits.
    """

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", dtorch.tensor(0, dtype=dtorch.int64))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers
        self._count = 0  # n_averaged; None when only the buffer knows

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._count = None

    def _tensors(self, model):
        return list(itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters())

    def update_parameters(self, model):
        """Take the parameters of `model` into the averages."""
        if self._count is None:
            self._count = int(self.n_averaged)
        own, new = self._tensors(self.module), self._tensors(model)
        with dtorch.no_grad():
            if self._count == 0:
                for average, p in zip(own, new, strict=True):
                    average.copy_(p)
            elif self.multi_avg_fn is not None or self.avg_fn is None:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(own, new, self._count)
            else:
                for average, p in zip(own, new, strict=True):
                    average.copy_(self.avg_fn(average, p, self._count))
            if not self.use_buffers:  # the buffers of the copy follow the model's
                for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                    mine.copy_(theirs)
            self.n_averaged.add_(1)
        self._count += 1


def update_bn(loader, model, device=None):
    """Compute the running statistics of all batch normalisations of `model` anew, from the inputs of `loader`."""
    from dtorch.nn.modules.batchnorm import _BatchNorm

    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None
    model.train()
    with dtorch.no_grad():
        for item in loader:
            x = item[0] if isinstance(item, (list, tuple)) else item
            model(x if device is None else x.to(device))
    for module, momentum in momenta.items():
        module.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """The rate goes to `swa_lr` in `anneal_epochs` epochs and stays there."""

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        for group, lr in zip(optimizer.param_groups, _per_group(swa_lr, optimizer, "swa_lr"), strict=True):
            group["swa_lr"] = lr
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _part(self, step):
        """How much of the way to `swa_lr` is done at `step`."""
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    def get_lr(self):
        self._warn_if_outside_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._part(step - 1), self._part(step)
        out = []
        for group in self.optimizer.param_groups:
            lr, target = group["lr"], group["swa_lr"]
            start = target if before == 1 else (lr - before * target) / (1 - before)
            out.append(target * now + start * (1 - now))
        return out
