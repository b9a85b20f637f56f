"""Calling a module with other parameters than its own."""

from __future__ import annotations

from contextlib import contextmanager

__all__ = ["functional_call"]


def _owner(module, path):
    path, _, name = path.rpartition(".")
    return module.get_submodule(path), name


@contextmanager
def _swapped(module, tensors):
    undo = []
    try:
        for path, tensor in tensors.items():
            owner, name = _owner(module, path)
            registry = owner._parameters if name in owner._parameters else owner._buffers
            if name not in registry:
                raise KeyError(f"{type(module).__name__} has no parameter or buffer named {path!r}")
            undo.append((registry, name, registry[name]))
            registry[name] = tensor
        yield
    finally:
        for registry, name, tensor in reversed(undo):
            registry[name] = tensor


def _with_ties(module, tensors):
    """`tensors` and, under all other names of a tied parameter, the same replacement."""
    names = {}
    for name, p in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]:
        names.setdefault(id(p), []).append(name)
    out = dict(tensors)
    for group in names.values():
        given = [n for n in group if n in tensors]
        if given:
            for name in group:
                out.setdefault(name, tensors[given[0]])
    return out


def functional_call(module, parameters_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """``module(*args, **kwargs)`` with the given tensors, by full name, in place of its parameters and buffers.

    Args:
        parameters_and_buffer_dicts: a dictionary, or several of them.
        args: a tuple of arguments, or the one argument.
        tie_weights: whether a replacement also counts for other names of the same parameter.
        strict: whether every parameter and buffer must be given, and nothing else.
    """
    given = parameters_and_buffer_dicts
    tensors = {}
    for part in [given] if isinstance(given, dict) else given:
        for name, tensor in part.items():
            if name in tensors:
                raise ValueError(f"{name} appears in several of the dictionaries")
            tensors[name] = tensor
    if strict:
        known = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
        missing, extra = sorted(known - set(tensors)), sorted(set(tensors) - known)
        if missing or extra:
            raise RuntimeError(f"functional_call: missing {missing}, unexpected {extra}")
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _swapped(module, _with_ties(module, tensors) if tie_weights else tensors):
        return module(*args, **(kwargs or {}))
