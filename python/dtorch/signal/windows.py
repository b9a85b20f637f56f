"""Window functions of `M` points (M >= 0), 1-D tensors whose largest value is 1.

`sym=True` gives a symmetric window, for filter design; `sym=False` a periodic one, for spectra: the first M points of the symmetric window of
M + 1. `dtype` is a float dtype, the default one if not given. Errors: ValueError when M is negative or a parameter is out of its range.
"""

from __future__ import annotations

import dtorch

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]

_PI = 3.141592653589793


def _points(name, M, sym, dtype, options):
    """(k, n): the points 0 ... M - 1 in float64 and the number of intervals of the symmetric window."""
    if M < 0:
        raise ValueError(f"{name}: M must be a non-negative number of points, got {M}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"{name}: dtype must be a float dtype, got {dtype}")
    k = dtorch.arange(M, dtype=dtorch.float64, **{o: v for o, v in options.items() if v is not None})
    return k, max(M - 1 if sym else M, 1)


def _finish(w, dtype, requires_grad):
    return w.to(dtype or dtorch.get_default_dtype()).requires_grad_(requires_grad)


def _options(layout, device):
    return {"layout": layout, "device": device}


def general_cosine(M, *, a, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """The sum over i of (-1)^i a[i] cos(2 pi i k / n)."""
    if not isinstance(a, list | tuple) or not a:
        raise TypeError("general_cosine: a must be a non-empty list of coefficients")
    k, n = _points("general_cosine", M, sym, dtype, _options(layout, device))
    w = dtorch.full_like(k, a[0])
    for i, c in enumerate(a[1:], 1):
        w = w + (-c if i % 2 else c) * dtorch.cos(k * (2 * _PI * i / n))
    return _finish(dtorch.ones_like(k) if M == 1 else w, dtype, requires_grad)


def general_hamming(M, *, alpha=0.54, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """alpha - (1 - alpha) cos(2 pi k / n)."""
    return general_cosine(M, a=[alpha, 1.0 - alpha], sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def hamming(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Hamming's window: 0.54 - 0.46 cos(2 pi k / n)."""
    return general_hamming(M, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def hann(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Hann's window: (1 - cos(2 pi k / n)) / 2."""
    return general_hamming(M, alpha=0.5, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def blackman(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Blackman's window, of three cosines."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def nuttall(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Nuttall's minimum four-term window."""
    a = [0.3635819, 0.4891775, 0.1365995, 0.0106411]
    return general_cosine(M, a=a, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def bartlett(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Bartlett's triangle: 1 - |2 k / n - 1|."""
    k, n = _points("bartlett", M, sym, dtype, _options(layout, device))
    return _finish(dtorch.ones_like(k) if M == 1 else 1 - (k * (2 / n) - 1).abs(), dtype, requires_grad)


def cosine(M, *, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Half a period of a sine: sin(pi (k + 1/2) / (n + 1))."""
    k, n = _points("cosine", M, sym, dtype, _options(layout, device))
    return _finish(dtorch.ones_like(k) if M == 1 else dtorch.sin((k + 0.5) * (_PI / (n + 1))), dtype, requires_grad)


def exponential(M, *, center=None, tau=1.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """e^(-|k - center| / tau). `center` may be given for periodic windows only; it is the middle otherwise."""
    if tau <= 0:
        raise ValueError(f"exponential: tau must be positive, got {tau}")
    if sym and center is not None:
        raise ValueError("exponential: center must be None for symmetric windows")
    k, n = _points("exponential", M, sym, dtype, _options(layout, device))
    middle = n / 2 if center is None else center
    return _finish(dtorch.ones_like(k) if M == 1 else dtorch.exp(-(k - middle).abs() / tau), dtype, requires_grad)


def gaussian(M, *, std=1.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """e^(-((k - middle) / std)^2 / 2)."""
    if std <= 0:
        raise ValueError(f"gaussian: std must be positive, got {std}")
    k, n = _points("gaussian", M, sym, dtype, _options(layout, device))
    return _finish(dtorch.ones_like(k) if M == 1 else dtorch.exp(-0.5 * ((k - n / 2) / std) ** 2), dtype, requires_grad)


def kaiser(M, *, beta=12.0, sym=True, dtype=None, layout=None, device=None, requires_grad=False):
    """Kaiser's window: I0(beta sqrt(1 - (2 k / n - 1)^2)) / I0(beta)."""
    if beta < 0:
        raise ValueError(f"kaiser: beta must be non-negative, got {beta}")
    k, n = _points("kaiser", M, sym, dtype, _options(layout, device))
    w = dtorch.i0(beta * (1 - (k * (2 / n) - 1) ** 2).clamp(min=0).sqrt()) / dtorch.i0(dtorch.full_like(k, beta))
    return _finish(dtorch.ones_like(k) if M == 1 else w, dtype, requires_grad)
