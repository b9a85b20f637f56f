"""Tensor parallelism as a plan: which module is cut how, by its name.

    plan = {"attn.qkv": ColwiseParallel(), "attn.out": RowwiseParallel(), "norm": SequenceParallel()}
    parallelize_module(model, mesh["tp"], plan)

A style distributes the module's parameters and says what its inputs are expected to be and what its outputs become; everything between
follows from the placements. Styles work along one mesh dimension; the others of the mesh keep what the tensors have there. Which mesh that is goes by
name: a module that `pipeline` put on a slice of the mesh is cut along the slice's dimension of that name.
"""

from __future__ import annotations

from fnmatch import fnmatch

from dtorch import nn
from dtorch._C import DeviceMesh, Replicate, Shard, Tensor
from dtorch.distributed._meshes import home
from dtorch.distributed.tensor import distribute_parameter, replicate_rest

__all__ = [
    "ColwiseParallel", "ExpertParallel", "ExpertTensorParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput",
    "PrepareModuleOutput", "RowwiseParallel", "SequenceParallel", "loss_parallel", "parallelize_module",
]  # fmt: skip


class ParallelStyle:
    """A way to distribute one module; subclasses implement `_apply(module, device_mesh)`."""

    def __repr__(self):
        shown = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if v is not None and not k.startswith("_"))
        return f"{type(self).__name__}({shown})"

    def _apply(self, module, device_mesh):
        raise NotImplementedError


def _names(device_mesh):
    names = device_mesh.mesh_dim_names
    if device_mesh.ndim != 1:
        raise ValueError(f"a parallel style works along one mesh dimension, got {device_mesh}: take one by name, mesh['tp']")
    return names


def _lay(t, device_mesh, placement):
    """t with `placement` along device_mesh's one dimension; its other mesh dimensions keep what they have."""
    if not isinstance(t, Tensor) or placement is None:
        return t
    device_mesh = home(t, device_mesh)
    names = _names(device_mesh)
    if names and t.device_mesh == device_mesh.root:
        return t._redistribute_shared(placements={names[0]: placement})
    return t._redistribute_shared(device_mesh, [placement])


def _parameter(module, name, device_mesh, placement):
    value = getattr(module, name, None)
    if value is None:
        return
    device_mesh = home(value, device_mesh)
    names = _names(device_mesh)
    if names and value.device_mesh == device_mesh.root:  # cut along another mesh dimension already
        distribute_parameter(module, name, value.device_mesh, {**_by_name(value), names[0]: placement})
    else:
        distribute_parameter(module, name, device_mesh, [placement])


def _by_name(t):
    return dict(zip(t.device_mesh.mesh_dim_names, t.placements, strict=False))


class _Layouts(ParallelStyle):
    """What a module's first input and its output are laid out as."""

    input_layouts = None
    output_layouts = None

    def _hooks(self, module, device_mesh, desired=None):
        before = self.input_layouts

        def pre(m, inputs):
            if not inputs:
                return None
            x = inputs[0]
            if isinstance(x, Tensor) and x.device_mesh.ndim == 0:
                x = _lay(x, device_mesh, before)
            return (_lay(x, device_mesh, desired), *inputs[1:])

        module.register_forward_pre_hook(pre)
        module.register_forward_hook(lambda m, inputs, out: _each(out, lambda y: _lay(y, device_mesh, self.output_layouts)))


def _each(value, fn):
    if isinstance(value, tuple):
        return tuple(fn(v) for v in value)
    return fn(value)


class ColwiseParallel(_Layouts):
    """Cut a Linear by its output features, an Embedding by its features.

    Args:
        input_layouts: how a plain input is laid out first; Replicate() by default.
        output_layouts: how the output is laid out; Shard(-1) by default.
        use_local_output: accepted; outputs are tensors on the mesh either way.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or Shard(-1)

    def _apply(self, module, device_mesh):
        if isinstance(module, nn.Embedding):
            _parameter(module, "weight", device_mesh, Shard(1))
        elif isinstance(module, nn.Linear):
            _parameter(module, "weight", device_mesh, Shard(0))
            _parameter(module, "bias", device_mesh, Shard(0))
        else:
            raise NotImplementedError(f"ColwiseParallel: only Linear and Embedding are supported, not {type(module).__name__}")
        self._hooks(module, device_mesh, Replicate())


class RowwiseParallel(_Layouts):
    """Cut a Linear by its input features, an Embedding by its vocabulary.

    Args:
        input_layouts: how a plain input is laid out first; Shard(-1) by default (Replicate() for an Embedding).
        output_layouts: how the output is laid out; Replicate() by default. Shard(1) gives sequence parallelism.
        use_local_output: accepted; outputs are tensors on the mesh either way.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        self.input_layouts = input_layouts
        self.output_layouts = output_layouts or Replicate()

    def _apply(self, module, device_mesh):
        if isinstance(module, nn.Embedding):
            _parameter(module, "weight", device_mesh, Shard(0))
            self.input_layouts = self.input_layouts or Replicate()
            self._hooks(module, device_mesh, Replicate())
        elif isinstance(module, nn.Linear):
            _parameter(module, "weight", device_mesh, Shard(1))
            _parameter(module, "bias", device_mesh, Replicate())
            self.input_layouts = self.input_layouts or Shard(-1)
            self._hooks(module, device_mesh, Shard(-1))
        else:
            raise NotImplementedError(f"RowwiseParallel: only Linear and Embedding are supported, not {type(module).__name__}")


class SequenceParallel(_Layouts):
    """Replicate the parameters (of a LayerNorm, RMSNorm, Dropout), keep activations cut along the sequence.

    Args:
        sequence_dim: the dimension that is the sequence; 1 by default.
        use_local_output: accepted; outputs are tensors on the mesh either way.
    """

    def __init__(self, *, sequence_dim=1, use_local_output=False):
        self.input_layouts = self.output_layouts = Shard(sequence_dim)

    def _apply(self, module, device_mesh):
        replicate_rest(module, device_mesh)
        self._hooks(module, device_mesh, self.input_layouts)


def _sequence(layouts):
    return layouts if layouts is None or isinstance(layouts, (tuple, list)) else (layouts,)


def _arrange(values, first, then, device_mesh):
    out = []
    for i, v in enumerate(values):
        a = first[i] if first and i < len(first) else None
        b = then[i] if then and i < len(then) else None
        if isinstance(v, Tensor) and v.device_mesh.ndim == 0:
            v = _lay(v, device_mesh, a)
        out.append(_lay(v, device_mesh, b))
    return tuple(out)


class PrepareModuleInput(ParallelStyle):
    """Lay out a module's inputs before forward.

    Args:
        input_layouts: how plain inputs are laid out first, one placement (or None) per positional input.
        desired_input_layouts: how forward gets them.
        input_kwarg_layouts, desired_input_kwarg_layouts: the same by keyword.
        use_local_output: accepted; inputs are tensors on the mesh either way.
    """

    def __init__(
        self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None, use_local_output=False
    ):  # fmt: skip
        self.first, self.then = _sequence(input_layouts), _sequence(desired_input_layouts)
        self.kw_first, self.kw_then = input_kwarg_layouts or {}, desired_input_kwarg_layouts or {}
        if self.first and self.then and len(self.first) != len(self.then):
            raise ValueError("PrepareModuleInput: input_layouts and desired_input_layouts must have the same length")

    def _apply(self, module, device_mesh):
        def pre(m, inputs, kwargs):
            inputs = _arrange(inputs, self.first, self.then, device_mesh)
            for k in set(self.kw_first) | set(self.kw_then):
                if k in kwargs:
                    kwargs[k] = _arrange((kwargs[k],), (self.kw_first.get(k),), (self.kw_then.get(k),), device_mesh)[0]
            return inputs, kwargs

        module.register_forward_pre_hook(pre, with_kwargs=True)


class PrepareModuleOutput(ParallelStyle):
    """Lay out a module's outputs after forward.

    Args:
        output_layouts: how plain outputs are laid out first, one placement (or None) per output.
        desired_output_layouts: how they are returned.
        use_local_output: accepted; outputs are tensors on the mesh either way.
    """

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True):
        self.first, self.then = _sequence(output_layouts), _sequence(desired_output_layouts)
        if len(self.first) != len(self.then):
            raise ValueError("PrepareModuleOutput: output_layouts and desired_output_layouts must have the same length")

    def _apply(self, module, device_mesh):
        def post(m, inputs, out):
            got = _arrange(out if isinstance(out, tuple) else (out,), self.first, self.then, device_mesh)
            return got if isinstance(out, tuple) else got[0]

        module.register_forward_hook(post)


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput and PrepareModuleOutput in one."""

    def __init__(
        self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None, use_local_input=False,
        output_layouts, desired_output_layouts, use_local_output=True,
    ):  # fmt: skip
        self.parts = (
            PrepareModuleInput(
                input_layouts=input_layouts, desired_input_layouts=desired_input_layouts, input_kwarg_layouts=input_kwarg_layouts,
                desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            ),
            PrepareModuleOutput(output_layouts=output_layouts, desired_output_layouts=desired_output_layouts),
        )  # fmt: skip

    def _apply(self, module, device_mesh):
        for part in self.parts:
            part._apply(module, device_mesh)


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Apply styles to a module and its children.

    Args:
        module: changed in place and returned.
        device_mesh: a mesh of one dimension, such as ``mesh["tp"]``; the mesh of the enclosing ``with mesh:`` if left out.
        parallelize_plan: a style for the module itself, or a dict from names of sub-modules ("layers.*.attn" matches all) to styles. A parameter that
            two modules share stays shared, and lies as its first name's style says.
        src_data_rank: accepted; there are no ranks.
    """
    if device_mesh is None:
        from dtorch import _C

        device_mesh = _C._default_mesh()
    if not isinstance(device_mesh, DeviceMesh):
        raise TypeError(f"parallelize_module(): argument 'device_mesh' must be a DeviceMesh, not {type(device_mesh).__name__}")
    if parallelize_plan is None:
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        _names(device_mesh)
        parallelize_plan._apply(module, device_mesh)
        return module
    if not isinstance(parallelize_plan, dict):
        raise TypeError(f"parallelize_module(): expected a ParallelStyle or a dict of them, got {type(parallelize_plan).__name__}")
    ties = _ties(module)
    for pattern, style in parallelize_plan.items():
        found = [m for name, m in module.named_modules() if _matches(name, pattern)]
        if not found:
            import warnings

            warnings.warn(f"parallelize_module(): no sub-module is called {pattern!r}", stacklevel=2)
        for m in found:
            parallelize_module(m, device_mesh, style)
    _tie(ties)
    return module


def _ties(module):
    """Parameters with several names: for each a list of (module, name)."""
    places = {}
    for sub in module.modules():
        for name, p in sub._parameters.items():
            if p is not None:
                places.setdefault(id(p), []).append((sub, name))
    return [where for where in places.values() if len(where) > 1]


def _tie(ties):
    """Styles lay parameters out one name at a time; this makes one of them again what was one before."""
    for (first, name), *others in ties:
        for sub, other in others:
            sub.register_parameter(other, first._parameters[name])


def _matches(name, pattern):
    a, b = name.split("."), pattern.split(".")
    return len(a) == len(b) and all(fnmatch(x, y) for x, y in zip(a, b, strict=False))


class loss_parallel:
    """A context in which cross_entropy works on logits cut by classes. Nothing to do: the operator's rules allow that anyway."""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


from dtorch.distributed.tensor.expert import ExpertParallel, ExpertTensorParallel  # noqa: E402  (they are made of what is above)
