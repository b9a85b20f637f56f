"""What the configurations of the models have in common: named presets, and reading a ``config.json`` of the Hugging Face layout."""

from __future__ import annotations

import dataclasses
import json
import pathlib

__all__ = ["Config"]


class Config:
    """Base of the configurations, which are frozen dataclasses. `PRESETS`: a dict from names to keyword arguments."""

    PRESETS: dict = {}

    @classmethod
    def preset(cls, name, **changes):
        """The configuration called `name` in PRESETS, with some fields changed: ``LlamaConfig.preset("tiny", vocab_size=256)``."""
        if name not in cls.PRESETS:
            raise ValueError(f"{cls.__name__}.preset(): no preset is called {name!r}; there are {', '.join(map(repr, cls.PRESETS))}")
        return cls(**{**cls.PRESETS[name], **changes})

    @classmethod
    def from_hf(cls, source, **changes):
        """From a dict, or the path of a ``config.json``, in the Hugging Face layout. Keys that have no field here are left out."""
        found = source if isinstance(source, dict) else json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
        fields = {f.name for f in dataclasses.fields(cls)}
        return cls(**{**{k: v for k, v in found.items() if k in fields and v is not None}, **changes})

    def check_divides(self, a, b):
        """Raise unless the field called `b` divides the field called `a`."""
        if getattr(self, b) <= 0 or getattr(self, a) % getattr(self, b):
            raise ValueError(f"{type(self).__name__}: {b}={getattr(self, b)} must divide {a}={getattr(self, a)}")
