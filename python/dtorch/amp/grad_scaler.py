"""Scaling the loss, so that small gradients do not vanish in 16 bits: :class:`GradScaler`.

Whether a step is skipped, because a gradient is inf or nan, is decided where the gradients are: the step is computed, and every parameter and
every tensor of the optimizer's state is selected between its old and its new value. The scale is a tensor that grows and shrinks by selection,
too. So no step waits. Numbers of the state that live in the program, such as Adam's count of steps, are set right at the next step, which needs
them; by then the last one has long been decided.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import dtorch
from dtorch import _C, Tensor
from dtorch.nn.utils.clip_grad import _home, _joined, _on

__all__ = ["GradScaler"]


def _tensors(value):
    """All tensors of an optimizer's state: in dicts and lists, too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


class _Before:
    """An optimizer's state before a step, and whether that step was skipped. Tensors are selected on their devices; numbers, and which entries
    there are, are put back here."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.before = {key: dict(state) for key, state in optimizer.state.items()}
        self.skipped = None

    def settle(self):
        """Read the decision; put the state back if the step was skipped."""
        if not self.skipped.get():
            return
        now = self.optimizer.state
        for key in [k for k in now if k not in self.before]:
            del now[key]  # the next step starts it anew
        for key, before in self.before.items():
            state = now[key]
            state.clear()
            state.update(before)


class GradScaler:
    """Multiplies losses by a scale that is as large as gradients allow: halved when one is not finite (that step is skipped), doubled after
    `growth_interval` steps without.

        loss = scaler.scale(loss_fn(model(x), y)); loss.backward(); scaler.step(optimizer); scaler.update()

    Args:
        device: accepted; the scale goes where the losses and gradients are.
        init_scale, growth_factor, backoff_factor, growth_interval: the scale at first, and how it changes.
        enabled: False: all methods do as if there were no scaler.

    Parameters may lie on any meshes. No method waits but ``get_scale`` and ``state_dict``. Memory: a step holds the old values of parameters and
    state until the new ones are selected.
    """

    def __init__(self, device="cpu", init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        if not isinstance(device, (str, dtorch.device)):
            raise TypeError(f"GradScaler(): device must be a str, got {type(device).__name__}")
        if enabled:
            if not growth_factor > 1.0:
                raise AssertionError(f"The growth factor must be > 1.0, got {growth_factor}")
            if not 0 < backoff_factor < 1.0:
                raise AssertionError(f"The backoff factor must be < 1.0, got {backoff_factor}")
        self._device, self._enabled = str(device), bool(enabled)
        self._growth_factor, self._backoff_factor, self._growth_interval = growth_factor, backoff_factor, growth_interval
        self._init_scale, self._init_growth_tracker = float(init_scale), 0
        self._scale = self._tracker = None
        self._per_optimizer = defaultdict(dict)  # id of an optimizer -> found (bool tensor), stage
        self._pending = {}  # id of an optimizer -> _Before
        self._hooked = weakref.WeakSet()

    def _start(self, like):
        if self._scale is not None:
            return
        self._scale = _on(dtorch.tensor(self._init_scale, dtype=dtorch.float32), *_home(like))
        self._tracker = _on(dtorch.tensor(self._init_growth_tracker, dtype=dtorch.int32), *_home(like))

    # ---- forward and backward

    def scale(self, outputs):
        """`outputs`, a tensor or a nesting of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self._start(outputs)
            return outputs * _on(self._scale, *_home(outputs)).to(outputs.dtype if outputs.dtype == dtorch.float64 else dtorch.float32)
        if isinstance(outputs, (list, tuple)):
            scaled = [self.scale(v) for v in outputs]
            return type(outputs)(*scaled) if hasattr(outputs, "_fields") else type(outputs)(scaled)
        if hasattr(outputs, "__iter__"):
            return map(self.scale, outputs)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer):
        """Divide the gradients of the optimizer's parameters by the scale, in place, as before clipping them."""
        if not self._enabled:
            return
        own = self._per_optimizer[id(optimizer)]
        if own.get("stage") == "unscaled":
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if own.get("stage") == "stepped":
            raise RuntimeError("unscale_() is being called after step().")
        self._need_scale("unscale_")
        inverses, checks = {}, {}
        with dtorch.no_grad():
            inverse = self._scale.double().reciprocal().float()
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    if p.grad.dtype == dtorch.float16:
                        raise ValueError("Attempting to unscale FP16 gradients.")
                    home = _home(p.grad)
                    if home not in inverses:
                        inverses[home] = _on(inverse, *home)
                    p.grad.mul_(inverses[home])
                    g = p.grad.to(dtorch.float32)
                    checks.setdefault(home, []).append((g - g).sum())  # 0, or nan where one is inf or nan
            found = None
            for parts in checks.values():
                part = _on(_joined(parts, 1.0), *_home(self._scale)) != 0
                found = part if found is None else found | part
        own["found"] = dtorch.zeros_like(self._scale).bool() if found is None else found
        own["stage"] = "unscaled"

    def _need_scale(self, what):
        if self._scale is None:
            raise AssertionError(
                f"Attempted {what} but _scale is None. This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
            )

    # ---- steps

    def step(self, optimizer, *args, **kwargs):
        """``optimizer.step()``, undone if a gradient is not finite; unscales the gradients first unless :meth:`unscale_` did."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._need_scale("step")
        own = self._per_optimizer[id(optimizer)]
        if own.get("stage") == "stepped":
            raise RuntimeError("step() has already been called since the last update().")
        if own.get("stage") != "unscaled":
            self.unscale_(optimizer)
        if not any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            raise AssertionError("No inf checks were recorded for this optimizer.")
        self._settle(optimizer)
        self._hook(optimizer)
        out = self._selected(optimizer, own["found"], kwargs)
        own["stage"] = "stepped"
        return out

    def _selected(self, optimizer, found, kwargs):
        state = _Before(optimizer)
        with dtorch.no_grad():
            tensors = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            tensors += [t for s in optimizer.state.values() for t in _tensors(s)]
            old = [(t, _C._snapshot(t)) for t in tensors]
            out = optimizer.step(**kwargs)
            flags = {}
            for t, before in old:
                home = _home(t)
                if home not in flags:
                    flags[home] = _on(found, *home)
                t.copy_(dtorch.where(flags[home], before, t))
            state.skipped = found.item_async()
        self._pending[id(optimizer)] = state
        return out

    def _hook(self, optimizer):
        """Whoever steps or saves the optimizer otherwise finds its numbers right."""
        if optimizer not in self._hooked:
            self._hooked.add(optimizer)
            optimizer.register_step_pre_hook(lambda opt, args, kwargs: self._settle(opt))
            optimizer.register_state_dict_pre_hook(self._settle)

    def _settle(self, optimizer):
        state = self._pending.pop(id(optimizer), None)
        if state is not None:
            state.settle()

    def update(self, new_scale=None):
        """Change the scale after the steps of an iteration; or set it to `new_scale`, a number or a tensor of one element."""
        if not self._enabled:
            return
        self._need_scale("update")
        with dtorch.no_grad():
            if new_scale is not None:
                new = new_scale.detach().reshape(()).float() if isinstance(new_scale, Tensor) else dtorch.tensor(float(new_scale))
                self._scale = _on(new, *_home(self._scale))
            else:
                founds = [own["found"] for own in self._per_optimizer.values() if "found" in own]
                if not founds:
                    raise AssertionError("No inf checks were recorded prior to update.")
                found = founds[0]
                for f in founds[1:]:
                    found = found | f
                tracker = self._tracker + 1
                grow = tracker == self._growth_interval
                grown = self._scale * self._growth_factor
                kept = dtorch.where(grow & dtorch.isfinite(grown), grown, self._scale)
                self._scale = dtorch.where(found, self._scale * self._backoff_factor, kept)
                self._tracker = dtorch.where(found | grow, dtorch.zeros_like(tracker), tracker)
        self._per_optimizer = defaultdict(dict)

    # ---- options and state

    def get_scale(self):
        """The scale as a number; waits for it."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale.item()

    def get_growth_factor(self):
        """What the scale is multiplied by when it grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor):
        """Change it."""
        self._growth_factor = new_factor

    def get_backoff_factor(self):
        """What the scale is multiplied by after a skipped step."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor):
        """Change it."""
        self._backoff_factor = new_factor

    def get_growth_interval(self):
        """How many steps without inf or nan make the scale grow."""
        return self._growth_interval

    def set_growth_interval(self, new_interval):
        """Change it."""
        self._growth_interval = new_interval

    def is_enabled(self):
        """Does it scale?"""
        return self._enabled

    def state_dict(self):
        """The scale, how it changes, and the steps since it did; empty when not enabled. Waits."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._init_growth_tracker if self._tracker is None else int(self._tracker.item()),
        }

    def load_state_dict(self, state_dict):
        """Take such a state."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.")
        self._init_scale, self._init_growth_tracker = float(state_dict["scale"]), int(state_dict["_growth_tracker"])
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._scale = self._tracker = None
