"""Helpers for parameters: clipping gradients, joining to a vector, padding sequences, parametrisations."""

from dtorch.nn.utils import parametrizations, parametrize, rnn, stateless
from dtorch.nn.utils.clip_grad import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from dtorch.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from dtorch.nn.utils.parametrizations import remove_spectral_norm, remove_weight_norm, spectral_norm
from dtorch.nn.utils.weight_norm import weight_norm

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]
