"""Pipeline parallelism: the layers of a model on several groups of devices, one after the other.

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("pp",))
    pipeline(model, mesh["pp"])                                   # stage i's parameters now lie on mesh["pp"][i]
    optimizer = torch.optim.AdamW(model.parameters())             # after it: the parameters are new objects
    for x, y in micro_batches:
        loss = f(model(x), y) / len(micro_batches)
        loss.backward()
    optimizer.step()

The loop says nothing of a schedule. What runs when follows from what depends on what: the engine collects the loop and gives every device its order, so
that stages work on different micro-batches at the same time (docs/pipeline.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import dtorch
from dtorch import _C
from dtorch._C import DeviceMesh, Tensor

__all__ = ["assign_layers_to_stages", "least_bubble", "pipeline", "schedule", "stages"]


# ---- dividing layers ------------------------------------------------------------------------------------------------------------------------------
def assign_layers_to_stages(costs, n):
    """The division of a row of layers into n stages whose dearest stage is cheapest.

    Args:
        costs: what each layer costs, in any unit, not negative.
        n: how many stages, at least 1.

    Returns:
        A list of n ranges of layer numbers, in order, all layers together. With at least n layers no stage is empty. Of several best divisions, the one
        whose stages are most even (the least sum of squares).
    """
    costs = [float(c) for c in costs]
    if n < 1:
        raise ValueError(f"assign_layers_to_stages(): n must be at least 1, got {n}")
    if any(not c >= 0 or c == float("inf") for c in costs):
        raise ValueError(f"assign_layers_to_stages(): costs must be finite and not negative, got {costs}")
    return _divide(costs, n, [None] * len(costs))


def _divide(costs, n, fixed):
    """As assign_layers_to_stages; layer i must be in stage fixed[i] where that is not None (in rising order)."""
    count = len(costs)
    sums = [0.0]
    for c in costs:
        sums.append(sums[-1] + c)
    full = count >= n and all(f is None for f in fixed)  # then no stage may be empty
    # best[i]: the first i layers in the stages so far -> (dearest stage, sum of squares); cut[s][i]: where stage s begins then
    best = {0: (0.0, 0.0)}
    cut = []
    for s in range(n):
        after, where = {}, {}
        for i, (worst, squares) in best.items():
            for j in range(i + full, count + 1 - (n - 1 - s) * full):
                if j > i and fixed[j - 1] not in (None, s):
                    break
                cost = sums[j] - sums[i]
                value = (max(worst, cost), squares + cost * cost)
                if j not in after or value < after[j]:
                    after[j], where[j] = value, i
        best = after
        cut.append(where)
    if count not in best:
        raise ValueError("the modules that lie on stages already are not in the order of the stages")
    out, end = [], count
    for s in reversed(range(n)):
        begin = cut[s][end]
        out.append(range(begin, end))
        end = begin
    return out[::-1]


class _Unit:
    """What goes to a stage as a whole: a module, or (with own=True) only the parameters and buffers a divided module holds itself."""

    def __init__(self, name, module, own=False):
        self.name, self.module, self.own = name, module, own

    def modules(self):
        return [self.module] if self.own else list(self.module.modules())


def _trunk(module):
    """The list of layers: the container with the most parameters among those with the most children that own parameters; None if there is none."""
    best, size = None, (1, 0)
    for m in module.modules():
        if isinstance(m, (dtorch.nn.ModuleList, dtorch.nn.Sequential, dtorch.nn.ModuleDict)):
            owners = [sum(p.numel() for p in c.parameters()) for c in m.children()]
            here = (sum(o > 0 for o in owners), sum(owners))
            if here > size:
                best, size = m, here
    return best


def _units(module):
    """The row of units in the order of registration, which is taken for the order of use. Divided are the model, what holds its list of layers, and
    lists on that way."""
    trunk = _trunk(module)
    lists = (dtorch.nn.ModuleList, dtorch.nn.Sequential, dtorch.nn.ModuleDict)
    units, seen = [], set()

    def walk(name, m):
        if id(m) in seen:
            return
        seen.add(id(m))
        divided = m is module or isinstance(m, lists) or (trunk is not None and any(c is trunk for c in m.modules()))
        if not divided:
            units.append(_Unit(name, m))
            return
        if any(v is not None for table in (m._parameters, m._buffers) for v in table.values()):
            units.append(_Unit(name, m, own=True))
        for child, c in m.named_children():
            walk(f"{name}.{child}" if name else child, c)

    walk("", module)
    return units


def _cost(unit, seen):
    """Multiply-adds a token, about: every weight of two dimensions or more is used once, a table of embeddings is only looked up. What is left counts
    for the memory it takes and the optimizer's step. A tied weight costs its use in every place, its memory in the first."""
    cost = 0.0
    for m in unit.modules():
        for p in m._parameters.values():
            if p is None:
                continue
            used = p.ndim > 1 and not isinstance(m, (dtorch.nn.Embedding, dtorch.nn.EmbeddingBag))
            cost += p.numel() * (used + (0.05 if id(p) not in seen else 0.0))
            seen.add(id(p))
    return cost


def _stage_now(unit, meshes):
    """The stage that a unit's parameters lie on already, or None."""
    for m in unit.modules():
        for p in m._parameters.values():
            if p is not None and p.device_mesh in meshes:
                return meshes.index(p.device_mesh)
    return None


def _split_by_hand(units, split, n):
    """A stage a unit, from names of modules that begin a stage, lists of names a stage, or counts of units."""
    if len(split) == n and all(isinstance(s, int) and not isinstance(s, bool) for s in split):
        if sum(split) != len(units) or min(split) < 0:
            names = ", ".join(u.name for u in units)
            raise ValueError(f"pipeline(): split={list(split)} must add up to the {len(units)} parts of the module: {names}")
        return [s for s, count in enumerate(split) for _ in range(count)]
    if all(isinstance(s, str) for s in split) and len(split) == n - 1:
        return _by_first_names(units, split)
    if len(split) == n and all(isinstance(s, (list, tuple)) for s in split):
        return _by_lists(units, split)
    raise ValueError(
        f"pipeline(): split must be 'cost', 'layers', a function, {n} counts, {n - 1} names of modules that begin a new stage, or {n} lists of "
        f"names, got {split!r}"
    )


def _within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def _by_first_names(units, split):
    out, stage = [], 0
    for u in units:
        if stage < len(split) and _within(u.name, split[stage]):
            stage += 1
        out.append(stage)
    if stage < len(split):
        raise ValueError(
            f"pipeline(): split names {split[stage]!r}, which does not follow in the order of the parts: {', '.join(u.name for u in units)}"
        )
    return out


def _by_lists(units, split):
    out, known = [], set()
    for u in units:
        found = [s for s, names in enumerate(split) for name in names if u.name and _within(u.name, name)]
        known.update(name for names in split for name in names if u.name and _within(u.name, name))
        out.append(found[0] if found else (out[-1] if out else 0))
    for names in split:
        for name in names:
            if name not in known:
                raise ValueError(f"pipeline(): split names {name!r}; the parts are {', '.join(u.name for u in units if u.name)}")
    return out


def _assign(units, meshes, split):
    n = len(meshes)
    now = [_stage_now(u, meshes) for u in units]
    if isinstance(split, (list, tuple)):
        chosen = _split_by_hand(units, split, n)
        return [c if f is None else f for c, f in zip(chosen, now, strict=True)]
    if callable(split):
        costs = [float(split(u.name, u.module)) for u in units]
    elif split == "layers":
        costs = [float(any(True for _ in u.module.parameters())) for u in units]
    elif split == "cost":
        seen = set()
        costs = [_cost(u, seen) for u in units]
    else:
        raise ValueError(f"pipeline(): split must be 'cost', 'layers', a function or a list, got {split!r}")
    given = [f for f in now if f is not None]
    if given and given != sorted(given):  # laid out by hand in an order of its own: the others follow the part before them
        out = []
        for f in now:
            out.append(f if f is not None else out[-1] if out else given[0])
        return out
    return [s for s, layers in enumerate(_divide(costs, n, now)) for _ in layers]


def _stage_each(units, meshes, split):
    """The stage of every unit; what a divided module holds itself goes with the part that follows it."""
    parts = [u for u in units if not u.own]
    if not parts:
        raise ValueError("pipeline(): the module has no children to divide")
    by_part = {id(u): s for u, s in zip(parts, _assign(parts, meshes, split), strict=True)}
    out, following = [], by_part[id(parts[-1])]
    for u in reversed(units):
        following = by_part.get(id(u), following)
        out.append(following)
    return out[::-1]


# ---- moving -------------------------------------------------------------------------------------------------------------------------------------------
def _move(t, mesh):
    """t on `mesh`, cut along dimensions of the same name as it was, replicated along the others."""
    return t if t.device_mesh == mesh else t.redistribute(mesh, {})


def _move_all(value, mesh):
    """The same nest with its tensors on `mesh`; plain tensors of no dimensions stay, they mix with everything."""
    if isinstance(value, Tensor):
        return value if value.ndim == 0 and value.device_mesh.ndim == 0 else _move(value, mesh)
    if isinstance(value, tuple):
        moved = [_move_all(v, mesh) for v in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if isinstance(value, list):
        return type(value)(_move_all(v, mesh) for v in value)
    if isinstance(value, Mapping):
        moved = {k: _move_all(v, mesh) for k, v in value.items()}
        return moved if type(value) is dict else type(value)(moved)
    return value


def _home_of_buffer(b, unit, mesh, root):
    """Buffers of a divided module (tables of positions, masks) are read by any stage: they lie on the whole mesh, where a stage finds its copy."""
    return root if unit.own and root is not None and b.device_mesh.ndim == 0 else mesh


def _place(unit, mesh, root, moved):
    for m in unit.modules():
        for name, p in list(m._parameters.items()):
            if p is None:
                continue
            if id(p) not in moved:
                new = p if p.device_mesh == mesh else type(p)(_move(p.detach(), mesh), p.requires_grad)
                moved[id(p)] = (p, new)  # p too: its id stays taken
                moved[id(new)] = (new, new)
            if moved[id(p)][1] is not p:
                m.register_parameter(name, moved[id(p)][1])
        for name, b in list(m._buffers.items()):
            if b is None:
                continue
            if id(b) not in moved:
                new = _move(b.detach(), _home_of_buffer(b, unit, mesh, root))
                moved[id(b)] = (b, new)
                moved[id(new)] = (new, new)
            m._buffers[name] = moved[id(b)][1]


def _hook(mesh):
    def bring(module, args, kwargs):
        return _move_all(args, mesh), _move_all(kwargs, mesh)

    return bring


def _meshes(mesh):
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(f"pipeline(): stages lie along one dimension, got {mesh}: take one by name, mesh['pp']")
        if mesh.root.ndim > 1 and not mesh.mesh_dim_names:
            raise ValueError(f"pipeline(): the dimensions of {mesh.root} need names")
        return [mesh[i] for i in range(mesh.size())], mesh.root
    if isinstance(mesh, Sequence) and mesh and all(isinstance(m, DeviceMesh) for m in mesh):
        return [m.root for m in mesh], None
    raise TypeError(
        f"pipeline(): mesh must be a DeviceMesh of one dimension, mesh['pp'], or a list of meshes, one a stage, got {type(mesh).__name__}"
    )


def pipeline(module, mesh, split: str | Sequence | Callable = "cost"):
    """Divide a model into stages along a mesh dimension.

    The parameters and buffers of stage i go to ``mesh[i]``, the mesh of the remaining dimensions; activations follow when a module of another stage is
    called, and gradients go back the same way. The module is otherwise as before: it is called, trained and saved alike, and
    ``parallelize_module(model, model_mesh["tp"], plan)`` and ``fully_shard(model, mesh=model_mesh["dp"])`` can be applied afterwards, by names of
    dimensions.

    Args:
        module: changed in place and returned. Its children are taken in the order of registration; lists of layers are divided, other modules stay whole.
        mesh: ``mesh["pp"]``, or a list of meshes of any shapes, one a stage.
        split: "cost" balances the stages by an estimate of work and memory a token; "layers" by the number of modules that own parameters; a function
            ``split(name, module)`` → cost does so by your measure. By hand: how many parts each stage gets, the names of the modules that begin the second
            and later stages, or a list of names a stage. Modules whose parameters lie on a stage's mesh already stay.

    Inputs may be plain (each stage's devices get all) or lie on the whole mesh, ``distribute_tensor(x, mesh["dp"], [Shard(0)])``: they stay cut as they are,
    by the names of dimensions. The output lies on the last stage's mesh; plain targets, and targets on the whole mesh, mix with it. A tensor of an earlier
    stage that meets one of a later stage moves to it, so a weight used on two stages (tied embeddings) lies on the first and visits the other; its
    gradient is summed where it lies.

    Raises:
        ValueError: split does not fit the module; fewer stages than one.
    """
    meshes, root = _meshes(mesh)
    if not isinstance(module, dtorch.nn.Module):
        raise TypeError(f"pipeline(): module must be a Module, not {type(module).__name__}")
    units = _units(module)
    stage = _stage_each(units, meshes, split)
    moved = {}
    for u, s in zip(units, stage, strict=True):
        _place(u, meshes[s], root, moved)
    for u, s in zip(units, stage, strict=True):
        if not u.own:
            u.module.register_forward_pre_hook(_hook(meshes[s]), with_kwargs=True)
    _C._mesh_stages(meshes)
    module.__dict__["_pipeline_stages"] = [
        [u.name for u, s in zip(units, stage, strict=True) if s == k and not u.own] for k in range(len(meshes))
    ]
    return module


def stages(module):
    """Names of the modules of each stage, as `pipeline` divided them: a list of lists."""
    found = module.__dict__.get("_pipeline_stages")
    if found is None:
        raise ValueError("stages(): the module was not divided by pipeline()")
    return [list(names) for names in found]


def least_bubble(work, micro_batches):
    """The share of their time that p stages idle in the best order of m equal micro-batches: (p - 1) / (m + p - 1) where the stages are equal.

    Stage i can begin when the first micro-batch went forwards through the stages before it; when it has done all its work, the last micro-batch goes backwards
    through them. So a step takes at least max over i of work[i] + (work[0] + ... + work[i - 1]) / m.

    Args:
        work: (p,) seconds that each stage works in a step, all micro-batches forwards and backwards; any unit.
        micro_batches: m.
    """
    if micro_batches < 1 or not len(work) or min(work) < 0 or not sum(work):
        raise ValueError(f"least_bubble(): work {work!r}, {micro_batches!r} micro-batches: times must be positive and there must be some of both")
    least = max(w + sum(work[:i]) / micro_batches for i, w in enumerate(work))
    return 1 - sum(work) / (len(work) * least)


class Schedule(list):
    """What the engine dispatched of a stream over several meshes, in order: dicts of

    device (the first of the mesh), devices (how many), begin and end (seconds of the virtual clock), calls, opener (a forward whose saved values a backward
    will read), closing (that backward's first piece), open (openers of the mesh whose values were alive when it began), run (equal for the pieces of one
    stay on a mesh), plain (calls beside the stages), forced (dispatched because of a read, a full window or a pause).

    Printed as a chart, a row a mesh: F forwards, b backwards, - other work, the share of time that it works, and the most openers at once.
    """

    def rows(self):
        """The segments that take time, by device: a dict from the device's number to a list."""
        out = {}
        for r in self:
            if not r["plain"] and r["end"] > r["begin"]:
                out.setdefault(r["device"], []).append(r)
        return dict(sorted(out.items()))

    def bubble(self):
        """The share of the virtual time in which a mesh does nothing, by device."""
        rows = self.rows()
        if not rows:
            return {}
        begin = min(r["begin"] for rs in rows.values() for r in rs)
        end = max(r["end"] for rs in rows.values() for r in rs)
        return {d: 1 - sum(r["end"] - r["begin"] for r in rs) / (end - begin) for d, rs in rows.items()}

    def least_bubble(self):
        """What the mean of `bubble()` is at best: see the function of that name. Micro-batches are counted by the openers of the first stage."""
        rows = self.rows()
        runs = [len({r["run"] for r in rs if r["opener"]}) for rs in rows.values()]
        return least_bubble([sum(r["end"] - r["begin"] for r in rs) for rs in rows.values()], max(runs, default=0))

    def in_flight(self):
        """The most openers that were open at once, by device: micro-batches whose activations a stage holds."""
        return {d: max(r["open"] + (r["opener"] and r["run"] == r["id"]) for r in rs) for d, rs in self.rows().items()}

    def __repr__(self, width=100):
        rows = self.rows()
        if not rows:
            return "nothing was dispatched on several meshes"
        begin = min(r["begin"] for rs in rows.values() for r in rs)
        scale = width / (max(r["end"] for rs in rows.values() for r in rs) - begin)
        bubble, held, lines = self.bubble(), self.in_flight(), []
        for d, rs in rows.items():
            line, stay = ["."] * width, {}
            for r in rs:
                stay[r["run"]] = stay.get(r["run"]) or ("F" if r["opener"] else "b" if r["closing"] else None)
                a = int((r["begin"] - begin) * scale)
                line[a : max(a + 1, int((r["end"] - begin) * scale))] = (stay[r["run"]] or "-") * max(
                    1, int((r["end"] - begin) * scale) - a
                )
            lines.append(f"{d:4} {''.join(line)[:width]} {1 - bubble[d]:4.0%} {held[d]}")
        return "\n".join(lines)


def schedule():
    """What was dispatched since the last call of this function, at most the last 4096 segments. Waits for all work. Meaningful for programs on several meshes.

    Example:
        >>> schedule()  # forget what was before
        >>> train_step()
        >>> print(schedule())
    """
    dtorch.synchronize()
    return Schedule(_C._order_log())


def __getattr__(name):
    from dtorch import _planned

    raise _planned.explain(__name__, name)
