"""The base class of optimisers: parameter groups, state, saving and loading, hooks.

Counts and other numbers that PyTorch keeps as tensors (``step``) are Python numbers here, so that no step waits for a value; a class names
them in `_numbers`, and ``state_dict`` shows them as tensors.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict

import dtorch
from dtorch import _C, Tensor
from dtorch.nn.parameter import clear_grad
from dtorch.utils.hooks import RemovableHandle

__all__ = ["Optimizer", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"]

_global_pre_hooks = OrderedDict()
_global_post_hooks = OrderedDict()


class _Required:
    """The default of an option that every group must give."""

    def __repr__(self):
        return "<required parameter>"


required = _Required()


def _add(table, hook):
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


def register_optimizer_step_pre_hook(hook):
    """Call ``hook(optimizer, args, kwargs)`` before the step of every optimiser."""
    return _add(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook):
    """Call ``hook(optimizer, args, kwargs)`` after the step of every optimiser."""
    return _add(_global_post_hooks, hook)


def number(value):
    """An option as a Python number; a tensor is read, which waits for it."""
    return float(value) if isinstance(value, Tensor) else value


def check_option(ok, message):
    """ValueError unless `ok`."""
    if not ok:
        raise ValueError(message)


def check_lr(lr):
    """A learning rate is a number >= 0, or a tensor of one element."""
    if isinstance(lr, Tensor):
        check_option(lr.numel() == 1, "Tensor lr must be 1-element")
    else:
        check_option(lr >= 0.0, f"Invalid learning rate: {lr}")


def check_betas(betas):
    """Both betas are in [0, 1)."""
    for i, beta in enumerate(betas):
        if not isinstance(beta, Tensor):
            check_option(0.0 <= beta < 1.0, f"Invalid beta parameter at index {i}: {beta}")


def check_not_negative(**options):
    """Each option is at least 0."""
    for name, value in options.items():
        if not isinstance(value, Tensor):
            check_option(value >= 0.0, f"Invalid {name} value: {value}")


def placements_for(param, shape):
    """How a state of another shape than its parameter's lies on the parameter's mesh: cut as the parameter along dimensions of the same size,
    replicated along others. Of the parameter's shape: as the parameter."""
    alike = len(shape) == param.dim()
    return [p if p.is_shard() and alike and shape[p.dim] == param.shape[p.dim] else dtorch.Replicate() for p in param.placements]


def _typename(value):
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _with_hooks(step):
    """The `step` of a class, with the hooks around it; nested calls (``super().step()``) run none of their own."""

    def wrapped(self, *args, **kwargs):
        if self.__dict__.get("_in_step"):
            return step(self, *args, **kwargs)
        self._in_step = True
        try:
            for hook in [*_global_pre_hooks.values(), *self._optimizer_step_pre_hooks.values()]:
                changed = hook(self, args, kwargs)
                if changed is not None:
                    if not (isinstance(changed, tuple) and len(changed) == 2):
                        raise RuntimeError(f"{step} must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
                    args, kwargs = changed
            out = step(self, *args, **kwargs)
            for hook in [*self._optimizer_step_post_hooks.values(), *_global_post_hooks.values()]:
                hook(self, args, kwargs)
            return out
        finally:
            self._in_step = False
            self._opt_called = True

    wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__ = step.__name__, step.__doc__, step
    return wrapped


class Optimizer:
    """The base class: takes parameters (or dicts of parameters and options, or pairs of name and parameter) and default options."""

    _numbers = ("step",)  # entries of the state that are numbers here and tensors in a state dict

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        step = cls.__dict__.get("step")
        if step is not None and not hasattr(step, "__wrapped__"):
            cls.step = _with_hooks(step)

    def __init__(self, params, defaults):
        self.defaults = defaults
        self._make_hook_tables()
        if isinstance(params, Tensor):
            raise TypeError(
                f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {_typename(params)}"
            )
        self.state = defaultdict(dict)
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def _make_hook_tables(self):
        for name in ("_step_pre", "_step_post", "_state_dict_pre", "_state_dict_post", "_load_state_dict_pre", "_load_state_dict_post"):
            setattr(self, f"_optimizer{name}_hooks", OrderedDict())

    def __getstate__(self):
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state):
        self.__dict__.update(state)
        if "_optimizer_step_pre_hooks" not in self.__dict__:
            self._make_hook_tables()

    def __repr__(self):
        text = type(self).__name__ + " ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            for key in sorted(group):
                if key != "params":
                    text += f"    {key}: {group[key]}\n"
        return text + ")"

    # ---- groups

    def add_param_group(self, param_group):
        """Add a dict of ``params`` and options; options left out are the optimiser's defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will change "
                "between runs. Please use a list instead."
            )
        params = list(params)
        named = [isinstance(p, tuple) for p in params]
        if any(named):
            if not all(named):
                raise ValueError("all optimizer params should be with/without names. Some param names are missing")
            param_group["param_names"] = [name for name, _ in params]
            params = [p for _, p in params]
        param_group["params"] = params
        self._check_params(params)
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        if self.param_groups and ("param_names" in param_group) != ("param_names" in self.param_groups[0]):
            raise ValueError("all optimizer param groups should be with/without names. Some param groups have names, others have not")
        self.param_groups.append(param_group)

    def _check_params(self, params):
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {_typename(p)}")
            if not (self.defaults.get("differentiable") or p.is_leaf):
                raise ValueError("can't optimize a non-leaf Tensor")
        ids = [id(p) for p in params]
        if len(ids) != len(set(ids)):
            import warnings

            warnings.warn("optimizer contains a parameter group with duplicate parameters", stacklevel=4)
        taken = {id(p) for group in self.param_groups for p in group["params"]}
        if not taken.isdisjoint(ids):
            raise ValueError("some parameters appear in more than one parameter group")

    # ---- steps

    def zero_grad(self, set_to_none=True):
        """Reset the gradients of all parameters: to None, or to zeros in place."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_grad(p, set_to_none)

    def step(self, closure=None):
        """One step; `closure` computes the loss again and returns it."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    @staticmethod
    def _loss(closure):
        """What the closure returns, computed with gradients."""
        if closure is None:
            return None
        with dtorch.enable_grad():
            return closure()

    def register_step_pre_hook(self, hook):
        """Call ``hook(optimizer, args, kwargs)`` before each step; it may return other arguments."""
        return _add(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook):
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return _add(self._optimizer_step_post_hooks, hook)

    # ---- saving and loading

    def register_state_dict_pre_hook(self, hook, prepend=False):
        """Call ``hook(optimizer)`` before ``state_dict``."""
        return self._add_ordered(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook, prepend=False):
        """Call ``hook(optimizer, state_dict)`` after ``state_dict``; it may return another one."""
        return self._add_ordered(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        """Call ``hook(optimizer, state_dict)`` before loading; it may return another one."""
        return self._add_ordered(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook, prepend=False):
        """Call ``hook(optimizer)`` after loading."""
        return self._add_ordered(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    @staticmethod
    def _add_ordered(table, hook, prepend):
        handle = _add(table, hook)
        if prepend:
            table.move_to_end(handle.id, last=False)
        return handle

    def _shown(self, key, value):
        if key in self._numbers and isinstance(value, (int, float)):
            return dtorch.tensor(float(value), dtype=dtorch.float32)
        return value

    def state_dict(self):
        """``{"state": {number of the parameter: its state}, "param_groups": [options and numbers of the parameters]}``."""
        for hook in list(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        numbers, groups = {}, []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": [numbers[id(p)] for p in group["params"]]})
        state = {}
        for p, entries in self.state.items():
            if isinstance(p, Tensor):
                state[numbers[id(p)]] = {k: self._shown(k, v) for k, v in entries.items()}
            else:
                state[p] = entries
        out = {"state": state, "param_groups": groups}
        for hook in list(self._optimizer_state_dict_post_hooks.values()):
            changed = hook(self, out)
            out = out if changed is None else changed
        return out

    def _placements(self, param, shape):
        """How a state of `shape` lies on its parameter's mesh."""
        return placements_for(param, shape)

    def _zeros(self, param, shape):
        """A state of zeros, where such a state lies."""
        if not param.device_mesh.ndim:
            return dtorch.zeros(shape, dtype=param.dtype, device=param.device)
        return dtorch.zeros(shape, dtype=param.dtype, device_mesh=param.device_mesh, placements=self._placements(param, shape))

    def _placed(self, param, value):
        """A loaded tensor in the parameter's dtype and on its devices. One of another shape stays as it lies if that is on the parameter's mesh."""
        value = value.to(param.dtype) if param.is_floating_point() else value
        if not param.device_mesh.ndim:
            return (value.full_tensor() if value.device_mesh.ndim else value).to(device=param.device)
        if value.device_mesh == param.device_mesh and tuple(value.shape) != tuple(param.shape):
            return value
        return value.redistribute(param.device_mesh, self._placements(param, value.shape))

    def _taken(self, param, key, value):
        """A loaded entry of the state of `param`: numbers as numbers, tensors with the parameter's dtype, device and placement."""
        if key in self._numbers and isinstance(value, (Tensor, int, float)):
            value = float(value)
            return int(value) if key == "step" else value
        if isinstance(value, Tensor):
            with dtorch.no_grad():
                return _C._snapshot(self._placed(param, value.detach()))  # the value of now: steps do not write what was loaded
        if isinstance(value, dict):
            return {k: self._taken(param, k, v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._taken(param, None, v) for v in value)
        return copy.deepcopy(value)

    def load_state_dict(self, state_dict):
        """Take the options and the state of `state_dict`; ValueError when groups do not match."""
        state_dict = dict(state_dict)
        for hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        by_number = {}
        for group, loaded in zip(self.param_groups, saved, strict=True):
            if len(group["params"]) != len(loaded["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
            by_number.update(zip(loaded["params"], group["params"], strict=True))
        self.state = defaultdict(dict)
        for number_, entries in state_dict["state"].items():
            if number_ in by_number:
                p = by_number[number_]
                self.state[p] = {k: self._taken(p, k, v) for k, v in entries.items()}
            else:
                self.state[number_] = entries
        groups = []
        for group, loaded in zip(self.param_groups, saved, strict=True):
            new = {k: copy.deepcopy(v) for k, v in loaded.items() if k != "params"}
            if "param_names" in group:
                new.setdefault("param_names", group["param_names"])
            for name, value in group.items():  # options that the file does not know
                new.setdefault(name, value)
            new["params"] = group["params"]
            groups.append(new)
        self.param_groups = groups
        for hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)


class OneOperator(Optimizer):
    """An optimiser whose step is one operator for each parameter (src/ops/optim.c), called in a loop in C.

    A subclass says how a state begins (`_start`), which operator takes the step and which tensors of the state it is given (`_operator`), and
    which numbers (`_rates`). The state of a parameter has its `_numbers` besides the tensors.
    """

    def _start(self, p, group):
        """The tensors of a new state, and its numbers other than "step", which begins at 0."""
        raise NotImplementedError

    def _operator(self, group):
        """The operator's name, the names of the state's tensors and the flags that it takes last."""
        raise NotImplementedError

    def _rates(self, group, lr):
        """A function of the state's numbers; it returns the numbers that the operator takes, and the state's numbers after the step."""
        raise NotImplementedError

    def _begin(self, p, group):
        """Make the state of a parameter that has a gradient for the first time."""
        self.state[p] = {"step": 0, **self._start(p, group)}

    def step(self, closure=None):
        """One step; returns what `closure` returns."""
        loss = self._loss(closure)
        with dtorch.no_grad():
            for group in self.param_groups:
                params, rates = group["params"], self._rates(group, number(group["lr"]))
                name, tensors, flags = self._operator(group)
                at, n = 0, len(params)
                while (at := _C._update_each(params, self.state, at, n, name, tensors, self._numbers, rates, flags)) < n:
                    self._begin(params[at], group)
        return loss
