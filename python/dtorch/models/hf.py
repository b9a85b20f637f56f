"""Weights from files in the Hugging Face layout: safetensors, whole or in several files with an index."""

from __future__ import annotations

import json
import pathlib

from dtorch.io import load_file

__all__ = ["load_hf"]


def load_hf(model, source):
    """Load weights of the Hugging Face layout into a model of this package, on whatever mesh its parameters lie.

    Args:
        model: a Llama, MoELlama, GPT2 (they have ``convert_hf``), or a model whose names are the file's.
        source: a dict of tensors, a .safetensors file, or a folder with ``model.safetensors`` or ``model.safetensors.index.json``.

    Returns the model. Raises KeyError for weights that are missing or that the model does not have, ValueError for shapes that differ.
    """
    state = source if isinstance(source, dict) else _read(pathlib.Path(source))
    if hasattr(model, "convert_hf"):
        state = model.convert_hf(state)
    own = model.state_dict()
    missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    if missing or extra:
        raise KeyError(f"load_hf(): the weights do not fit {type(model).__name__}: missing {missing[:4]}, not in the model {extra[:4]}")
    for name, w in state.items():
        if tuple(w.shape) != tuple(own[name].shape):
            raise ValueError(f"load_hf(): {name} is {tuple(w.shape)} in the file, {tuple(own[name].shape)} in the model")
    model.load_state_dict(state)
    return model


def _read(path):
    if path.is_file():
        return load_file(path)
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return load_file(path / "model.safetensors")
    state = {}
    for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
        state |= load_file(path / name)
    return state
