"""Seeing where things lie: shards of a tensor as text or SVG, meshes and modules as tables."""

from __future__ import annotations

import os
import sys
from itertools import product

from dtorch._C import Tensor
from dtorch._comm import _bytes

__all__ = ["Description", "describe", "mesh_text", "sharding_text", "visualize_sharding"]

_ANSI = (39, 208, 77, 170, 220, 45, 203, 112, 141, 180, 80, 214, 99, 155, 209, 67)
_RGB = ("#8ecae6", "#ffb703", "#95d5b2", "#e0aaff", "#ffd6a5", "#a0c4ff", "#ffadad", "#caffbf", "#bdb2ff", "#d4a373", "#90e0ef", "#f4a261",
        "#cdb4db", "#b5e48c", "#f08080", "#a9def9")  # fmt: skip
_MOST = 24  # intervals drawn along one dimension of text


# ---- which part each device holds ----------------------------------------------------------------------------------------------------------
def _chunk(n, parts, i):
    size = -(-n // parts)
    lo = min(i * size, n)
    return lo, min(lo + size, n)


def _runs(n, cuts):
    """The intervals of a dimension of size n that a device holds; cuts: (split factor, devices, coordinate) of the shards, outermost first."""
    rows = max((s for s, _, _ in cuts), default=1)
    outer, inner = (0, rows), (0, n // rows)
    for split, parts, i in cuts:
        lo, hi = inner if rows == 1 or split > 1 else outer
        a, b = _chunk(hi - lo, parts, i)
        if rows == 1 or split > 1:
            inner = lo + a, lo + b
        else:
            outer = lo + a, lo + b
    return [(r * (n // rows) + inner[0], r * (n // rows) + inner[1]) for r in range(*outer) if inner[1] > inner[0]]


def _held(t):
    """For each device of t's mesh, in order: (device, coordinates, intervals for each dimension of t)."""
    mesh = t.device_mesh
    out = []
    for device, at in zip(mesh.devices, product(*map(range, mesh.shape)), strict=True):
        runs = []
        for d, n in enumerate(t.shape):
            shards = ((p, k) for k, p in enumerate(t.placements) if p.is_shard(d))
            runs.append(_runs(n, [(p.split_factor, mesh.shape[k], at[k]) for p, k in shards]))
        out.append((device, at, runs))
    return out


def _numbers(devices):
    """[0, 1, 2, 5] as "0-2,5"."""
    parts, numbers = [], sorted(devices)
    while numbers:
        n = 1
        while n < len(numbers) and numbers[n] == numbers[0] + n:
            n += 1
        parts.append(str(numbers[0]) if n == 1 else f"{numbers[0]},{numbers[1]}" if n == 2 else f"{numbers[0]}-{numbers[n - 1]}")
        numbers = numbers[n:]
    return ",".join(parts)


def _label(t, holders):
    """ "cpu:0,1" for copies; "cpu:0+1" for the parts of a sum; both: "cpu:0+1,2+3"."""
    partial = [k for k, p in enumerate(t.placements) if p.is_partial() and t.device_mesh.shape[k] > 1]
    kind = t.device_mesh.device_type
    if not holders:
        return "empty"  # a dimension of size 0: nothing to hold
    if not partial:
        return f"{kind}:{_numbers(d.index for d, _ in holders)}"
    groups = {}
    for device, at in holders:
        groups.setdefault(tuple(c for k, c in enumerate(at) if k not in partial), []).append(device.index)
    op = t.placements[partial[0]].reduce_op
    if op == "sum":
        return f"{kind}:" + ",".join("+".join(map(str, g)) for g in groups.values())
    return f"{kind}:" + ",".join(f"{op}({_numbers(g)})" for g in groups.values())


class _Grid:
    """Cells of equal holders along two dimensions (None: there is no such dimension)."""

    def __init__(self, t, dims, at):
        self.t, self.mesh = t, t.device_mesh
        self.rows, self.cols = self._dims(dims)
        at = {d % t.ndim: i for d, i in (at or {}).items()}
        self.at = {d: at.get(d, 0) for d in range(t.ndim) if d not in (self.rows, self.cols)}
        held = [(device, c, runs) for device, c, runs in _held(t)
                if all(t.shape[d] == 0 or any(lo <= i < hi for lo, hi in runs[d]) for d, i in self.at.items())]  # fmt: skip
        self.row_cuts, self.col_cuts = self._cuts(self.rows, held), self._cuts(self.cols, held)
        self.cells = [[self._holders(held, r, c) for c in self.col_cuts] for r in self.row_cuts]
        full = [device.index for device, _, runs in _held(t) if all(runs)]
        self.empty = [device.index for device in self.mesh.devices if device.index not in full] if t.numel() else []

    def _dims(self, dims):
        t = self.t
        if dims is None:
            cut = [d for d in range(t.ndim) if any(p.is_shard(d) for p in t.placements)][:2]
            for d in reversed(range(t.ndim)):
                if len(cut) < 2 and d not in cut:
                    cut.append(d)
            dims = sorted(cut)
        dims = [d % t.ndim if -t.ndim <= d < t.ndim else d for d in dims]
        if any(d < 0 or d >= t.ndim for d in dims) or len(set(dims)) != len(dims) or len(dims) > 2:
            raise ValueError(f"visualize_sharding(): dims must be at most two different dimensions of {t.ndim}, got {tuple(dims)}")
        return [None, None, *dims][-2:]

    def _cuts(self, d, held):
        if d is None:
            return [None]
        points = sorted({0, self.t.shape[d]} | {x for _, _, runs in held for run in runs[d] for x in run})
        return list(zip(points, points[1:], strict=False)) or [(0, 0)]

    def _holders(self, held, r, c):
        def inside(runs, cut):
            return cut is None or any(lo <= cut[0] and cut[1] <= hi for lo, hi in runs)

        return [(device, at) for device, at, runs in held
                if inside(runs[self.rows] if self.rows is not None else (), r) and inside(runs[self.cols] if self.cols is not None else (), c)]  # fmt: skip

    def title(self):
        t = self.t
        text = f"{str(t.dtype).removeprefix('dtorch.')} {tuple(t.shape)} on {self.mesh!r} [{', '.join(map(_placement, t.placements))}]"
        if self.at:
            text += "; " + ", ".join(f"dimension {d} at {i}" for d, i in self.at.items())
        return text

    def note(self):
        return f"nothing on {self.mesh.device_type}:{_numbers(self.empty)}" if self.empty else ""


def _placement(p):
    if p.is_shard():
        return f"Shard({p.dim})" if p.split_factor == 1 else f"Shard({p.dim}, split_factor={p.split_factor})"
    return f'Partial("{p.reduce_op}")' if p.is_partial() else "Replicate()"


# ---- text ------------------------------------------------------------------------------------------------------------------------------------
def _shorten(cuts, cells_of):
    """At most _MOST intervals; None marks those left out."""
    return [(c, cells_of(i)) for i, c in enumerate(cuts)] if len(cuts) <= _MOST else [
        *((c, cells_of(i)) for i, c in enumerate(cuts[: _MOST - 1])), (None, None)]  # fmt: skip


def sharding_text(t, *, dims=None, at=None, color=False):
    """What visualize_sharding prints, as a str."""
    _check(t)
    g = _Grid(t, dims, at)
    if t.ndim == 0:
        return f"{g.title()}\n{_label(t, [(d, c) for d, c, _ in _held(t)])}"
    columns = _shorten(g.col_cuts, lambda i: i)
    labels = [[_label(t, g.cells[r][i]) if i is not None else "…" for _, i in columns] for r in range(len(g.row_cuts))]
    heads = [f"{c[0]}:{c[1]}" if c else "…" for c, _ in columns]
    widths = [max(len(h), *(len(row[k]) for row in labels)) + 2 for k, h in enumerate(heads)]
    sides = [f"{r[0]}:{r[1]} " if r else "" for r in g.row_cuts]
    side = max(map(len, sides))

    def rule(a, b, c):
        return " " * side + a + b.join("─" * w for w in widths) + c

    def paint(text, r, k):
        i = columns[k][1]
        if not color or i is None or not g.cells[r][i]:
            return text
        shade = _ANSI[t.device_mesh.devices.index(g.cells[r][i][0][0]) % len(_ANSI)]
        return f"\x1b[48;5;{shade}m\x1b[30m{text}\x1b[0m"

    lines = [g.title(), " " * (side + 1) + " ".join(h.center(w) for h, w in zip(heads, widths, strict=True)).rstrip(), rule("┌", "┬", "┐")]
    for r, row in enumerate(labels):
        if r == _MOST - 1 and len(labels) > _MOST:
            lines.append(f"{'':{side}}… {len(labels) - r} rows more")
            break
        if r:
            lines.append(rule("├", "┼", "┤"))
        lines.append(sides[r].rjust(side) + "│" + "│".join(paint(s.center(widths[k]), r, k) for k, s in enumerate(row)) + "│")
    lines += [rule("└", "┴", "┘"), g.note()]
    return "\n".join(line for line in lines if line)


# ---- SVG --------------------------------------------------------------------------------------------------------------------------------------
def _svg(g):
    t, width, height, left, top = g.t, 520, 320, 60, 54

    def total(d):
        return max(t.shape[d], 1) if d is not None else 1

    scale_x, scale_y = width / total(g.cols), (height if g.rows is not None else 60) / total(g.rows)

    def escape(s):
        return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    body = []
    for r, row in zip(g.row_cuts, g.cells, strict=True):
        for c, holders in zip(g.col_cuts, row, strict=True):
            x, w = left + scale_x * (c[0] if c else 0), scale_x * (c[1] - c[0] if c else 1)
            y, h = top + scale_y * (r[0] if r else 0), scale_y * (r[1] - r[0] if r else 1)
            fill = _RGB[t.device_mesh.devices.index(holders[0][0]) % len(_RGB)] if holders else "#eeeeee"
            label = escape(_label(t, holders)) if holders else ""
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}" stroke="#333"><title>{label}</title></rect>'
            )
            if w > 7 * len(label) and h > 14:
                body.append(f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 4:.1f}" text-anchor="middle">{label}</text>')
    bottom = top + scale_y * total(g.rows)
    for c in g.col_cuts if g.cols is not None else ():
        body.append(f'<text x="{left + scale_x * c[0]:.1f}" y="{top - 6}" fill="#555">{c[0]}</text>')
    for r in g.row_cuts if g.rows is not None else ():
        body.append(f'<text x="{left - 6}" y="{top + scale_y * r[0] + 11:.1f}" text-anchor="end" fill="#555">{r[0]}</text>')
    if g.note():
        body.append(f'<text x="{left}" y="{bottom + 20:.1f}" fill="#555">{escape(g.note())}</text>')
    size = f"{left + width + 20} {bottom + 34:.0f}"
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="monospace" font-size="12">',
        f'<text x="{left}" y="20">{escape(g.title())}</text>', *body, "</svg>\n",
    ))  # fmt: skip


def _check(t):
    if not isinstance(t, Tensor):
        raise TypeError(f"visualize_sharding(): argument 't' must be Tensor, not {type(t).__name__}")


def visualize_sharding(t, header="", *, file=None, dims=None, at=None, color=None):
    """Show which device holds which part of a tensor: printed, or as SVG. Reads no values and waits for nothing.

    Cells name the devices that hold them: "cpu:0,1" are copies, "cpu:0+1" are the parts of a Partial sum, "cpu:max(0,1)" those of a maximum.

    Args:
        t: any tensor.
        header: a line printed first.
        file: a path: SVG if it ends in .svg, else text; or something with write(). Standard output if left out.
        dims: the one or two dimensions to show, rows first; those that are sharded if left out.
        at: {dimension: index} for the dimensions not shown; 0 if left out.
        color: colours in the terminal; if left out, where the output is a terminal and NO_COLOR is not set.
    """
    _check(t)
    if isinstance(file, (str, os.PathLike)):
        path = os.fspath(file)
        text = _svg(_Grid(t, dims, at)) if path.endswith(".svg") else sharding_text(t, dims=dims, at=at, color=bool(color)) + "\n"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return
    out = sys.stdout if file is None else file
    if color is None:
        color = bool(getattr(out, "isatty", bool)()) and not os.environ.get("NO_COLOR")
    out.write((f"{header}\n" if header else "") + sharding_text(t, dims=dims, at=at, color=color) + "\n")


# ---- tables -------------------------------------------------------------------------------------------------------------------------------------
def _table(rows, right=()):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


def mesh_text(mesh):
    """A mesh as str() shows it: the last dimension across, the one before down, a block for each position of the others.

    A part of a mesh shows the whole, with the part's dimensions last: a row or a block is one group of devices that communicate.
    """
    root, part = mesh.root, mesh
    names = root.mesh_dim_names or tuple(str(i) for i in range(root.ndim))
    chosen = [names.index(n) for n in part.mesh_dim_names] if part != root and part.mesh_dim_names else list(range(root.ndim))
    order = [i for i in range(root.ndim) if i not in chosen] + chosen
    if root.ndim == 0:
        return f"{mesh!r}: {root.devices[0]}"
    devices = dict(zip(product(*map(range, root.shape)), root.devices, strict=True))
    *blocks, down, across = [None, None, *order][-max(root.ndim, 2) :]

    def span(i):
        return range(root.shape[i]) if i is not None else (0,)

    title = repr(mesh) if part == root else f"{mesh!r}, a part of {root!r}"
    lines = [title]
    for at in product(*map(span, blocks)):
        fixed = dict(zip(blocks, at, strict=True))
        if blocks:
            lines.append(", ".join(f"{names[i]}={c}" for i, c in fixed.items()))
        rows = [["", *(f"{names[across]}={c}" for c in span(across))]]
        for r in span(down):
            where = {**fixed, down: r}
            cells = [str(devices[tuple({**where, across: c}[i] for i in range(root.ndim))]) for c in span(across)]
            rows.append([f"{names[down]}={r}" if down is not None else "", *cells])
        lines += ["  " + line for line in _table(rows).splitlines()]
    return "\n".join(lines)


class Description(list):
    """What describe() returns: rows with name, kind, shape, dtype, mesh, placements, bytes (of the largest part that a device holds); prints as a table."""

    @property
    def bytes(self):
        """What the device with most holds, if shards were even: the sum of the rows' bytes for each mesh, and of those the largest."""
        sums = {}
        for row in self:
            for d in row["mesh"].devices:
                sums[d] = sums.get(d, 0) + row["bytes"]
        return max(sums.values(), default=0)

    def __repr__(self):
        meshes = []
        rows = [("name", "shape", "dtype", "mesh", "placements", "a device")]
        for r in self:
            if r["mesh"] not in meshes:
                meshes.append(r["mesh"])
            place = ", ".join(_placement(p) for p in r["placements"]) or "-"
            name = r["name"] if r["kind"] == "parameter" else f"{r['name']} ({r['kind']})"
            mesh = f"{chr(ord('A') + meshes.index(r['mesh']))}" if len(meshes) < 27 else str(meshes.index(r["mesh"]))
            rows.append((name, str(r["shape"]), str(r["dtype"]).removeprefix("dtorch."), mesh, place, _bytes(r["bytes"])))
        lines = [_table(rows, right=(5,))]
        for i, m in enumerate(meshes):
            lines.append(f"{chr(ord('A') + i) if i < 26 else i}: {repr(m) if m.ndim else m.devices[0]}")
        return "\n".join([*lines, f"at most {_bytes(self.bytes)} on a device"])

    __str__ = __repr__


def _largest(t):
    """Bytes of the largest part that a device holds."""
    most = 0
    for _, _, runs in _held(t):
        n = 1
        for r in runs:
            n *= sum(hi - lo for lo, hi in r)
        most = max(most, n)
    return most * t.element_size()


def describe(module):
    """How a module's parameters and buffers lie, as a table: name, shape, dtype, mesh, placements, bytes on a device.

    Args:
        module: an nn.Module, or a dict or list of tensors such as a state_dict.
    """
    if hasattr(module, "named_parameters"):
        named = [(n, p, "parameter" if p.requires_grad else "frozen") for n, p in module.named_parameters()]
        named += [(n, b, "buffer") for n, b in module.named_buffers()]
    else:
        items = module.items() if isinstance(module, dict) else enumerate(module)
        named = [(str(n), t, "parameter") for n, t in items if isinstance(t, Tensor)]
    return Description(
        {
            "name": n,
            "kind": kind,
            "shape": tuple(t.shape),
            "dtype": t.dtype,
            "mesh": t.device_mesh,
            "placements": t.placements,
            "bytes": _largest(t),
        }
        for n, t, kind in named
    )
