"""DTorch: deep learning shaped like PyTorch, in which one program drives any number of devices.

``import dtorch as torch`` and go on as usual. Tensors are symbols: calls return at once, and only reading a value waits.
"""

import os as _os
import sys as _sys

if "DTORCH_OPENBLAS" not in _os.environ:  # the matrix products' library, found without importing its package

    def _find_openblas():
        import sys

        for path in sys.path:
            folder = _os.path.join(path or ".", "scipy_openblas32", "lib")
            if _os.path.isdir(folder):
                for name in sorted(_os.listdir(folder)):
                    if name.startswith("libscipy_openblas") and ".so" in name:
                        return _os.path.join(folder, name)
        return None

    _path = _find_openblas()
    if _path:
        _os.environ["DTORCH_OPENBLAS"] = _path
    del _find_openblas, _path

from dtorch import _C, _compose_reduce, _functional, _modes, _planned, _tensor, _types

_os.environ.setdefault("DTORCH_PREFIX", _sys.prefix)
_C._node_serve()  # under mpiexec or srun, ranks other than 0 serve the program here and never run it
_os.environ["DTORCH_NODES"] = "1"  # processes that this one starts are not nodes of the run

from dtorch._C import (  # noqa: E402
    DeviceMesh,
    Future,
    Generator,
    LinAlgError,
    NodeLostError,
    OutOfMemoryError,
    Partial,
    Placement,
    PlacementError,
    Replicate,
    Shard,
    Size,
    Tensor,
    default_generator,
    device,
    dtype,
    from_dlpack,
    from_numpy,
    frombuffer,
    get_default_device,
    get_default_dtype,
    get_num_threads,
    get_rng_state,
    init_device_mesh,
    initial_seed,
    is_grad_enabled,
    is_inference_mode_enabled,
    manual_seed,
    memory_stats,
    op_table,
    promote_types,
    reset_peak_memory_stats,
    result_type,
    seed,
    set_default_device,
    set_default_dtype,
    set_memory_budget,
    set_memory_limit,
    set_num_threads,
    set_rng_state,
    synchronize,
    synchronize_async,
    tensor,
)  # fmt: skip
from dtorch._C import can_cast as _can_cast
from dtorch._cache import cache_stats, set_cache_limit
from dtorch._comm import CommBoundError, comm_bound, comm_report, comm_scope, memory_summary
from dtorch._modes import default_dtype, enable_grad, inference_mode, no_grad, redistribute_policy, set_grad_enabled
from dtorch._nodes import devices
from dtorch._repr import set_printoptions
from dtorch._simulate import estimate, simulate
from dtorch._types import finfo, iinfo

__version__ = "0.1.0"
DTensor = Tensor  # there is one kind of tensor


def _absent(name):
    """An nn operator that the table does not have yet: modules that use it can be defined, a call says what is missing."""
    if name.startswith("_"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"nn.functional.{name} is not available yet")

    return absent


_C._nn.__getattr__ = _absent
_C._set_package(_os.path.dirname(_os.path.abspath(__file__)) + _os.sep)
_tensor.install()
globals().update({name: fn for name, fn in _C._functions.items() if not name.startswith("_")})
globals().update(_compose_reduce.FUNCTIONS)
for _name, _fn in _compose_reduce.METHODS.items():
    setattr(Tensor, _name, _fn)
_functional.install(globals())


def can_cast(from_, to):
    """Does in-place arithmetic allow the conversion?"""
    return _can_cast(from_, to)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, grad_placements=None):
    """`tensor` on a mesh, as the placements say (Replicate everywhere if left out). Differentiable.

    Args:
        tensor: any tensor, plain or distributed.
        device_mesh: a DeviceMesh; the one of the enclosing ``with mesh:`` if left out. A sub-mesh by name stands for Replicate on the
            dimensions that it leaves out.
        placements: one per mesh dimension, or a dict by dimension name.
        grad_placements: how the gradient goes back to `tensor`; as it lies by default. See :meth:`Tensor.redistribute`.
    """
    if device_mesh is None:
        device_mesh = _C._default_mesh()
        if device_mesh is None:
            raise ValueError("distribute_tensor(): device_mesh is needed outside of a 'with mesh:' block")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"distribute_tensor(): argument 'tensor' must be Tensor, not {type(tensor).__name__}")
    if grad_placements is not None:
        return tensor.redistribute(device_mesh, placements, grad_placements=grad_placements)
    return tensor.redistribute(device_mesh, placements)


class memory_format:
    """A memory format: accepted wherever PyTorch takes one, and without effect (tensors are row-major wherever a user can tell)."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return "dtorch." + self._name

    def __reduce__(self):
        return self._name


class layout(memory_format):
    """A layout; dense (strided) ones are all there are."""


contiguous_format, channels_last = memory_format("contiguous_format"), memory_format("channels_last")
channels_last_3d, preserve_format = memory_format("channels_last_3d"), memory_format("preserve_format")
strided = layout("strided")
Tensor.layout = strided

pi, e, inf, nan, newaxis = 3.141592653589793, 2.718281828459045, float("inf"), float("nan"), None

_LAZY = {
    "amp": None, "autograd": None, "backends": None, "checkpoint": None, "cpu": None, "cuda": None, "distributed": None, "futures": None, "io": None,
    "linalg": None, "models": None, "nn": None, "optim": None, "profiler": None, "random": None, "return_types": None, "safetensors": None, "signal": None,
    "special": None, "utils": None, "version": None,
}  # fmt: skip
_FROM = {
    "autocast": "amp", "get_autocast_dtype": "amp.autocast_mode", "set_autocast_dtype": "amp.autocast_mode",
    "is_autocast_enabled": "amp.autocast_mode", "set_autocast_enabled": "amp.autocast_mode", "is_autocast_available": "amp",
    "is_autocast_cache_enabled": "amp.autocast_mode", "set_autocast_cache_enabled": "amp.autocast_mode",
    "load": "io", "save": "io", "host_call": "_host", "set_float32_matmul_precision": "backends", "get_float32_matmul_precision": "backends",
    "use_deterministic_algorithms": "backends", "are_deterministic_algorithms_enabled": "backends",
}  # fmt: skip


def _legacy(name, kind):
    def make(*args):
        if len(args) == 1 and not isinstance(args[0], type(0)):  # noqa: UP003 - `int` is a dtype here
            return tensor(args[0], dtype=kind)
        return _C._functions["empty"](args or (0,), dtype=kind)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{name}(data) or {name}(*sizes): a {kind} tensor."
    return make


def __getattr__(name):
    from importlib import import_module

    if name in _LAZY:
        try:
            return import_module("dtorch." + name)
        except ModuleNotFoundError as e:
            if e.name != "dtorch." + name:
                raise
    if name in _FROM:
        value = getattr(import_module("dtorch." + _FROM[name]), name)
    elif name in _tensor._NAMES:
        value = _legacy(name, getattr(_C, _tensor._NAMES[name]))
    else:
        raise _planned.explain("dtorch", name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({n for n in globals() if not n.startswith("_")} | set(_LAZY) | set(_FROM))


__all__ = sorted(
    {n for n in globals() if not n.startswith("_")}
    | {"bfloat16", "bool", "double", "float", "float16", "float32", "float64", "half", "int", "int16", "int32", "int64", "int8", "long", "short", "uint8"}
)  # fmt: skip

# Last, because some of these names hide builtins.
globals().update(
    {n: getattr(_C, n) for n in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")}
)
globals().update({n: getattr(_C, of) for n, of in (("half", "float16"), ("float", "float32"), ("double", "float64"), ("short", "int16"),
                                                   ("int", "int32"), ("long", "int64"))})  # fmt: skip
