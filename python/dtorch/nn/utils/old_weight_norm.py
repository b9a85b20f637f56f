"""The older form of weight norm: parameters ``<name>_g`` and ``<name>_v``, and a hook that computes ``<name>`` before each call."""

from __future__ import annotations

from dtorch.nn.parameter import Parameter
from dtorch.nn.utils.parametrizations import _norm_except, _weight

__all__ = ["remove", "weight_norm"]


class WeightNorm:
    """The hook."""

    def __init__(self, name, dim):
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute(self, module):
        """The weight, of the module's length and direction."""
        return _weight(getattr(module, self.name + "_g"), getattr(module, self.name + "_v"), self.dim)

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute(module))


def _find(module, name):
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            return key, hook
    return None, None


def weight_norm(module, name="weight", dim=0):
    """Split a weight into length ``<name>_g`` and direction ``<name>_v``; returns `module`."""
    if _find(module, name)[1] is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    hook = WeightNorm(name, dim)
    weight = getattr(module, name)
    del module._parameters[name]
    module.register_parameter(name + "_g", Parameter(_norm_except(weight.detach(), hook.dim)))
    module.register_parameter(name + "_v", Parameter(weight.detach().clone()))
    setattr(module, name, hook.compute(module))
    module.register_forward_pre_hook(hook)
    return module


def remove(module, name="weight"):
    """Take it away again; the weight keeps its value. Returns `module`."""
    key, hook = _find(module, name)
    if hook is None:
        raise ValueError(f"weight_norm of '{name}' not found in {module}")
    weight = hook.compute(module).detach()
    module.__dict__.pop(name, None)
    del module._parameters[name + "_g"], module._parameters[name + "_v"], module._forward_pre_hooks[key]
    module.register_parameter(name, Parameter(weight))
    return module
