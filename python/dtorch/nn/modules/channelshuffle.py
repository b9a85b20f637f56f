"""Interleaving groups of channels."""

from __future__ import annotations

from dtorch.nn import functional as F
from dtorch.nn.modules.module import Module

__all__ = ["ChannelShuffle"]


class ChannelShuffle(Module):
    """Interleaves `groups` groups of channels of (N, C, ...)."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"
