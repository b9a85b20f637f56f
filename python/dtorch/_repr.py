"""How tensors print: as PyTorch prints them, to the character. Only the elements that are shown are read."""

from __future__ import annotations

import math

from dtorch import _C

__all__ = ["set_printoptions", "tensor_repr"]

_PROFILES = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, math.inf, 3, 80)}


class _Options:
    precision, threshold, edgeitems, linewidth = _PROFILES["default"]
    sci_mode = None


options = _Options()


def set_printoptions(precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None):
    """How tensors print.

    Args:
        precision: digits after the point (default 4).
        threshold: with more elements than this, only the edges are shown (default 1000).
        edgeitems: how many at each edge (default 3).
        linewidth: characters a line (default 80).
        profile: "default", "short" or "full": sets all of the above first.
        sci_mode: True or False: scientific notation always or never; left out: where it is needed.
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions(): profile {profile!r} is not legal: {', '.join(map(repr, _PROFILES))} are")
        options.precision, options.threshold, options.edgeitems, options.linewidth = _PROFILES[profile]
    for name, value in (("precision", precision), ("threshold", threshold), ("edgeitems", edgeitems), ("linewidth", linewidth)):
        if value is not None:
            setattr(options, name, value)
    options.sci_mode = sci_mode


def _leaves(data, depth):
    if depth == 0:
        yield data
    else:
        for part in data:
            yield from _leaves(part, depth - 1)


class _Style:
    """How the numbers of one tensor are written: integers with a point, fixed or scientific; all as wide as the widest that counts."""

    def __init__(self, values, floating):
        self.floating, self.whole, self.scientific, self.width = floating, True, False, 1
        p = options.precision
        if not floating:
            self.width = max((len(str(v)) for v in values), default=1)
            return
        shown = [v for v in values if v and math.isfinite(v)]
        if shown:
            big, small = max(map(abs, shown)), min(map(abs, shown))
            self.whole = all(v == math.ceil(v) for v in shown)
            wide = big / small > 1000.0 or big > 1.0e8
            self.scientific = (wide or (not self.whole and small < 1.0e-4)) if options.sci_mode is None else options.sci_mode
            if self.scientific:
                self.width = max(len(f"{v:.{p}e}") for v in shown)
            elif self.whole:
                self.width = max(len(f"{v:.0f}") for v in shown) + 1
            else:
                self.width = max(len(f"{v:.{p}f}") for v in shown)

    def __call__(self, v):
        if not self.floating:
            text = str(v)
        elif self.scientific:
            text = f"{v:.{options.precision}e}"
        elif self.whole:
            text = f"{v:.0f}" + ("." if math.isfinite(v) else "")
        else:
            text = f"{v:.{options.precision}f}"
        return text.rjust(self.width)


def _row(items, indent, style, cut):
    """One line of numbers, or several."""
    texts = [style(v) for v in items]
    if cut:
        e = options.edgeitems
        texts = texts[:e] + [" ..."] + texts[e:] if e else ["..."]
    per_line = max(1, math.floor((options.linewidth - indent) / (style.width + 2)))
    lines = [", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _block(data, sizes, indent, style, cuts):
    if not sizes:
        return style(data)
    if len(sizes) == 1:
        return _row(data, indent, style, cuts[0])
    parts = [_block(part, sizes[1:], indent + 1, style, cuts[1:]) for part in data]
    if cuts[0]:
        e = options.edgeitems
        parts = parts[:e] + ["..."] + parts[e:]
    return "[" + ("," + "\n" * (len(sizes) - 1) + " " * (indent + 1)).join(parts) + "]"


def _edges(t, cuts):
    """The elements that are shown, and nothing else."""
    cat, narrow = _C._functions["cat"], _C._functions["narrow"]
    for d, cut in enumerate(cuts):
        if cut:
            e = options.edgeitems
            t = cat([narrow(t, d, 0, e), narrow(t, d, t.shape[d] - e, e)], d)
    return t


def _numbers(t, indent):
    sizes = tuple(t.shape)
    summarise = t.numel() > options.threshold
    cuts = [summarise and n > 2 * options.edgeitems for n in sizes]
    if any(cuts):
        before = _C._grad_set(False)
        try:
            t = _edges(t, cuts)
        finally:
            _C._grad_set(before)
    data = t.tolist()
    style = _Style(list(_leaves(data, len(sizes))), t.dtype.is_floating_point)
    return _block(data, sizes, indent, style, cuts)


def _suffixes(t):
    out = []
    default = t.dtype in (_C.get_default_dtype(), _C.int64, _C.bool)
    if t.device.index is not None:
        out.append(f"device='{t.device}'")
    if t.numel() == 0:
        if t.ndim != 1:
            out.append(f"size={tuple(t.shape)}")
        default = t.dtype == _C.get_default_dtype()
    if not default:
        out.append(f"dtype={t.dtype}")
    if t.grad_fn is not None:
        out.append(f"grad_fn=<{t.grad_fn.name()}>")
    elif t.requires_grad:
        out.append("requires_grad=True")
    if t.device_mesh.ndim:
        out += [f"device_mesh={t.device_mesh}", f"placements={t.placements}"]
    return out


def tensor_repr(t):
    """The text of a tensor; waits for the elements that are shown."""
    prefix = "tensor(" if type(t) is _C.Tensor or type(t).__module__ == "dtorch.nn.parameter" else type(t).__name__ + "("
    indent = len(prefix)
    text = prefix + ("[]" if t.numel() == 0 else _numbers(t.detach(), indent))
    last = len(text) - text.rfind("\n") + 1
    for suffix in _suffixes(t):
        if last + len(suffix) + 2 > options.linewidth:
            text += ",\n" + " " * indent + suffix
            last = indent + len(suffix)
        else:
            text += ", " + suffix
            last += len(suffix) + 2
    return text + ")"
