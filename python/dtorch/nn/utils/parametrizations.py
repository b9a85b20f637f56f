"""Weight norm and spectral norm: as parametrisations (in this module) and in their older form, with hooks (``nn.utils``)."""

from __future__ import annotations

import dtorch
from dtorch.nn.functional import normalize
from dtorch.nn.modules.module import Module
from dtorch.nn.parameter import Parameter
from dtorch.nn.utils import parametrize

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


def _norm_except(v, dim):
    """The norm over all dimensions but `dim`, which keep size 1; over all of them when `dim` is None or -1."""
    if dim is None or dim == -1:
        return v.norm()
    dim = dim % v.dim()
    return (v * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True).sqrt() if v.dim() > 1 else v.abs()


def _weight(g, v, dim):
    return v * (g / _norm_except(v, dim))


class _WeightNorm(Module):
    def __init__(self, dim=0):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g, weight_v):
        return _weight(weight_g, weight_v, self.dim)

    def right_inverse(self, weight):
        return _norm_except(weight, self.dim), weight


class _SpectralNorm(Module):
    """Divides a matrix (out, rest) by its largest singular value, estimated by power iteration with kept vectors."""

    def __init__(self, weight, n_power_iterations=1, dim=0, eps=1e-12):
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(f"Dimension out of range (expected to be in range of [-{weight.dim()}, {weight.dim() - 1}] but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.dim = dim % weight.dim()
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.dim() > 1:
            matrix = self._matrix(weight.detach())
            rows, cols = matrix.shape
            where = {"dtype": weight.dtype, "device": weight.device}
            self.register_buffer("_u", normalize(dtorch.randn(rows, **where), dim=0, eps=eps))
            self.register_buffer("_v", normalize(dtorch.randn(cols, **where), dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight):
        if self.dim:
            weight = weight.transpose(0, self.dim) if weight.dim() == 2 else weight.movedim(self.dim, 0)
        return weight.flatten(1)

    def _iterate(self, matrix, times):
        with dtorch.no_grad():
            for _ in range(times):
                self._u.copy_(normalize(matrix @ self._v, dim=0, eps=self.eps))
                self._v.copy_(normalize(matrix.t() @ self._u, dim=0, eps=self.eps))

    def forward(self, weight):
        if weight.dim() == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u * (matrix @ v)).sum()

    def right_inverse(self, value):
        return value


def _spectral_dim(module, dim):
    if dim is not None:
        return dim
    return 1 if type(module).__name__.removeprefix("Parametrized") in ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d") else 0


def weight_norm(module, name="weight", dim=0):
    """Split a weight into length and direction: ``w = g v / |v|``, norms over all dimensions but `dim`. Returns `module`.

    The length is ``module.parametrizations.<name>.original0``, the direction ``original1``.
    """
    return parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Divide a weight by its largest singular value (Miyato et al., 2018); returns `module`."""
    weight = getattr(module, name, None)
    if weight is None:
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return parametrize.register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, _spectral_dim(module, dim), eps))


def _remove(module, name, kind, what):
    entry = module._modules.get("parametrizations")
    if entry is None or name not in entry or not isinstance(entry[name][0], kind):
        raise ValueError(f"{what} of '{name}' not found in {module}")
    return parametrize.remove_parametrizations(module, name)


def remove_weight_norm(module, name="weight"):
    """Take :func:`weight_norm` away; the weight keeps its value. Returns `module`."""
    if isinstance(module._parameters.get(name + "_v"), Parameter):
        from dtorch.nn.utils.old_weight_norm import remove

        return remove(module, name)
    return _remove(module, name, _WeightNorm, "weight_norm")


def remove_spectral_norm(module, name="weight"):
    """Take :func:`spectral_norm` away; the weight keeps its value. Returns `module`."""
    return _remove(module, name, _SpectralNorm, "spectral_norm")
