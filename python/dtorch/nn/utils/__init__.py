"""Helpers for parameters: clipping gradients, joining to a vector, padding sequences, parametrisations. Loaded when they are used."""

from importlib import import_module as _import_module

_MODULES = ("clip_grad", "convert_parameters", "parametrizations", "parametrize", "rnn", "stateless")
_FROM = {
    "clip_grad_norm": "clip_grad",
    "clip_grad_norm_": "clip_grad",
    "clip_grad_value_": "clip_grad",
    "clip_grads_with_norm_": "clip_grad",
    "get_total_norm": "clip_grad",
    "parameters_to_vector": "convert_parameters",
    "remove_spectral_norm": "parametrizations",
    "remove_weight_norm": "parametrizations",
    "spectral_norm": "parametrizations",
    "vector_to_parameters": "convert_parameters",
    "weight_norm": "old_weight_norm",
}
__all__ = sorted([*_MODULES, *_FROM])


def __getattr__(name):
    if name in _MODULES:
        return _import_module("." + name, __name__)
    if name in _FROM:
        value = getattr(_import_module("." + _FROM[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
