"""Names of PyTorch that dtorch does not have: is one planned? The answer is part of the AttributeError."""

from __future__ import annotations

# first part of a name -> what to say
_AREAS = {
    "fft": "Fourier transforms", "stft": "Fourier transforms", "istft": "Fourier transforms", "sparse": "sparse tensors",
    "sparse_coo_tensor": "sparse tensors", "sparse_csr_tensor": "sparse tensors", "spmm": "sparse tensors", "hspmm": "sparse tensors",
    "complex": "complex dtypes", "complex64": "complex dtypes", "complex128": "complex dtypes", "cfloat": "complex dtypes",
    "cdouble": "complex dtypes", "view_as_real": "complex dtypes", "view_as_complex": "complex dtypes", "polar": "complex dtypes",
    "chalf": "complex dtypes", "complex32": "complex dtypes", "imag": "complex dtypes",
    "linalg": "the rest of linear algebra", "svd": "the rest of linear algebra", "qr": "the rest of linear algebra",
    "cholesky": "the rest of linear algebra", "lu": "the rest of linear algebra", "pinverse": "the rest of linear algebra",
    "distributions": "probability distributions", "func": "function transforms", "vmap": "function transforms",
    "nested": "nested tensors", "nested_tensor": "nested tensors", "jagged": "nested tensors",
    "uint16": "wider unsigned dtypes", "uint32": "wider unsigned dtypes", "uint64": "wider unsigned dtypes",
    "float8_e4m3fn": "8-bit floats", "float8_e5m2": "8-bit floats",
}  # fmt: skip

_NEVER = {
    "jit": "there is nothing to compile: call the function as it is", "fx": "the controller rewrites graphs itself",
    "onnx": "models are saved as safetensors", "hub": "dtorch downloads nothing", "package": "models are saved as safetensors",
    "quantization": "quantised integer tensors are not part of dtorch", "quantize_per_tensor": "quantised integer tensors are not part of dtorch",
    "ao": "quantised integer tensors are not part of dtorch", "UntypedStorage": "a tensor has no storage that a user could touch",
    "from_file": "use numpy.memmap and from_numpy", "multiprocessing": "one program drives all devices", "mps": "there is no such backend",
    "xpu": "there is no such backend", "qint8": "quantised integer tensors are not part of dtorch", "set_flush_denormal": "denormals are kept",
    "_dynamo": "there is nothing to compile", "_inductor": "there is nothing to compile", "export": "there is nothing to export to",
}  # fmt: skip

# parts of dtorch.nn -> what to write instead
_NN = {
    "parallel": "shard the batch with distribute_tensor(x, mesh, [Shard(0)]), and lay out the parameters with distribute_module(model, mesh) or fully_shard",
    "DataParallel": "shard the batch with distribute_tensor(x, mesh, [Shard(0)]), and lay out the parameters with distribute_module(model, mesh)",
    "quantized": "quantised integer tensors are not part of dtorch", "qat": "quantised integer tensors are not part of dtorch",
}  # fmt: skip

# parts of dtorch.distributed, dtorch.utils.data and dtorch.profiler -> what to write instead
_PIPELINE = 'call dtorch.distributed.pipelining.pipeline(model, mesh["pp"]) and write a plain loop over micro-batches'
_INSTEAD = {
    "FullyShardedDataParallel": "call dtorch.distributed.fsdp.fully_shard(module, mesh=mesh)",
    "ZeroRedundancyOptimizer": "call dtorch.distributed.fsdp.shard_optimizer_state(optimizer, mesh)",
    "DistributedSampler": "a loader gives the whole batch; distribute_tensor(x, mesh, [Shard(0)]) gives each device its part",
    "PipelineStage": _PIPELINE, "SplitPoint": _PIPELINE, "pipe_split": _PIPELINE, "build_stage": _PIPELINE, "Schedule1F1B": _PIPELINE,
    "ScheduleGPipe": _PIPELINE, "ScheduleInterleaved1F1B": _PIPELINE, "ScheduleLoopedBFS": _PIPELINE, "ScheduleInterleavedZeroBubble": _PIPELINE,
    "ScheduleZBVZeroBubble": _PIPELINE,
    "optim": "call dtorch.distributed.fsdp.shard_optimizer_state(optimizer, mesh)",
    "rpc": "one program drives all devices", "elastic": "start the program with python, or with mpiexec on several machines",
    "run": "start the program with python, or with mpiexec on several machines", "launch": "start the program with python, or with mpiexec",
    "ReduceOp": "a sum over devices is what Partial() placements are for", "ProcessGroup": "make a mesh with init_device_mesh(...)",
    "group": "make a mesh with init_device_mesh(...)", "algorithms": "gradients are reduced once, when they are read",
    "tensorboard_trace_handler": "use dtorch.profiler.trace_handler(directory)",
}  # fmt: skip


def explain(module: str, name: str) -> AttributeError:
    """The error for ``module.name``."""
    if module == "dtorch.nn" and name in _NN:
        return AttributeError(f"module {module!r} has no attribute {name!r}: not planned, {_NN[name]}")
    if name in _INSTEAD and module.startswith(("dtorch.distributed", "dtorch.utils.data", "dtorch.profiler")):
        return AttributeError(f"module {module!r} has no attribute {name!r}: not planned, {_INSTEAD[name]}")
    key = name if module == "dtorch" else module.rpartition(".")[2]
    text = f"module {module!r} has no attribute {name!r}"
    if key in _NEVER:
        return AttributeError(f"{text}: not planned, {_NEVER[key]}")
    if key in _AREAS:
        return AttributeError(f"{text}: planned with {_AREAS[key]}")
    return AttributeError(text + (": dtorch does not have it, and no plan names it" if not name.startswith("_") else ""))
