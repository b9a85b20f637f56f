"""Continuing a text: the memory of keys and values, and the loop that draws tokens.

The memory has one fixed length, so every step after the first has the same shapes and is the same plan; where a step writes is a tensor, not a
Python number. Nothing waits for a value: the loop issues all steps, and the caller waits when it reads the tokens.
"""

from __future__ import annotations

import dtorch as torch
from dtorch import nn

F = nn.functional

__all__ = ["Decoder", "Memory"]


class Layer:
    """Keys and values of one layer, (b, g, length, d) each, laid out as the first keys that came: sharded by heads if those are."""

    def __init__(self, memory):
        self.memory, self.k, self.v = memory, None, None

    def extend(self, k, v):
        """Write k, v: (b, g, t, d) at the memory's positions; returns all keys, all values, and which of them each query sees (t, length)."""
        m = self.memory
        if self.k is None:
            self.k, self.v = (F.pad(x, (0, 0, 0, m.length - x.shape[2])) for x in (k, v))
        else:
            self.k.index_copy_(2, m.positions, k)
            self.v.index_copy_(2, m.positions, v)
        return self.k, self.v, m.seen


class Memory:
    """What a decoder remembers of `length` positions at most: one Layer a block. `advance(tokens)` makes room for the next ones."""

    def __init__(self, layers, length):
        self.layers, self.length, self.end = [Layer(self) for _ in range(layers)], length, 0
        self.all = self.positions = self.seen = None

    def __getitem__(self, i):
        return self.layers[i]

    def advance(self, tokens):
        """Make the positions of tokens (b, t), which follow on those before, the current ones."""
        t = tokens.shape[1]
        if self.end + t > self.length:
            raise ValueError(f"the memory holds {self.length} positions, {self.end} are taken: no room for {t} more")
        if self.end == 0:  # tensors from here on, that lie where the tokens do
            self.all = tokens.new_zeros((), dtype=torch.int64) + torch.arange(self.length)
            self.positions = self.all[:t]
        else:
            self.positions = self.positions[-1] + 1 + self.all[:t]
        self.seen = self.all <= self.positions[:, None]
        self.end += t


class Decoder(nn.Module):
    """Base of models that go from tokens to logits of the next token, with an optional memory as second argument."""

    def check_length(self, tokens, memory, limit):
        """Raise unless tokens is (b, t) with t at most `limit` (with a memory: its length)."""
        if tokens.dim() != 2:
            raise ValueError(f"{type(self).__name__}: tokens must be (batch, positions), got shape {tuple(tokens.shape)}")
        if (tokens.shape[1] if memory is None else memory.length) > limit:
            raise ValueError(
                f"{type(self).__name__}: at most {limit} positions, got {tokens.shape[1] if memory is None else memory.length}"
            )

    def generate(self, tokens, max_new_tokens, *, temperature=0.0, top_k=None, stream=None):
        """Continue each row of tokens.

        Args:
            tokens: (b, t) integers, the prompt.
            max_new_tokens: how many tokens to add.
            temperature: 0 takes the likeliest token; otherwise a token is drawn from softmax(logits / temperature).
            top_k: draw among the k likeliest only.
            stream: ``stream(token)`` is called with each new (b,) tensor; reading it waits for that token. Returning True ends the text.

        Returns (b, t + max_new_tokens), less if `stream` ended it.
        """
        if max_new_tokens < 0 or temperature < 0:
            raise ValueError(f"generate(): max_new_tokens and temperature must not be negative, got {max_new_tokens}, {temperature}")
        out, memory = [tokens], Memory(self.config.n_layers, tokens.shape[1] + max_new_tokens)
        with torch.no_grad():
            for _ in range(max_new_tokens):
                memory.advance(out[-1])
                out.append(draw(self(out[-1], memory)[:, -1], temperature, top_k)[:, None])
                if stream is not None and stream(out[-1][:, 0]):
                    break
        return torch.cat(out, dim=1)


def draw(logits, temperature, top_k=None):
    """One token (b,) from logits (b, vocabulary)."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial(F.softmax(logits / temperature, dim=-1), 1)[:, 0]
