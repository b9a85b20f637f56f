"""GGUF files: a Llama's weights, quantised or not, its sizes and its tokenizer in one file.

    "GGUF", version u32, tensors u64, entries u64        little-endian throughout
    entries: key, type u32, value                        strings are u64 length and bytes; an array is type u32, length u64, items
    tensors: name, dims u32, sizes u64 …, type u32, offset u64        the fastest dimension first
    padding to `general.alignment`, then the data, to which offsets count

Source of the layout and of the block formats: the GGUF specification, as published with ggml. Everything read is checked against the file's size.
"""

from __future__ import annotations

import functools
import pathlib
import re
import struct

import numpy as np

import dtorch as torch
from dtorch.models.hf import load_hf
from dtorch.models.llama import Llama, LlamaConfig

__all__ = ["Tokenizer", "load_gguf", "read_gguf"]

_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), ("B", "b", "H", "h", "I", "i", "f", "?", "Q", "q", "d"), strict=True))
_STRING, _ARRAY = 8, 9


# ---- blocks of numbers: raw bytes (blocks, bytes of a block) to float32 (blocks, numbers of a block)


def _half(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw):
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def _q4_0(raw):
    return (_nibbles(raw[:, 2:]) - 8) * _half(raw[:, :2])


def _q4_1(raw):
    return _nibbles(raw[:, 4:]) * _half(raw[:, :2]) + _half(raw[:, 2:4])


def _q8_0(raw):
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8) * _half(raw[:, :2])


def _q6_k(raw):
    """256 numbers of 6 bits: 4 in `low`, 2 in `high`; a scale of 8 bits for each 16 of them, one of 16 bits for all."""
    low, high = raw[:, :128].reshape(-1, 2, 64), raw[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).repeat(16, axis=1)
    four = np.concatenate([low & 15, low >> 4], axis=2)
    two = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    return ((four | two << 4).astype(np.float32) - 32).reshape(-1, 256) * scales * _half(raw[:, 208:])


# type: (name, numbers of a block, bytes of a block, its formula)
_TYPES = {
    0: ("F32", 1, 4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
    1: ("F16", 1, 2, _half),
    2: ("Q4_0", 32, 18, _q4_0),
    3: ("Q4_1", 32, 20, _q4_1),
    8: ("Q8_0", 32, 34, _q8_0),
    14: ("Q6_K", 256, 210, _q6_k),
    30: ("BF16", 1, 2, lambda raw: (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)),
}


class _Reader:
    """A cursor over the file's bytes that never leaves them."""

    def __init__(self, data, name):
        self.data, self.name, self.at = data, name, 0

    def take(self, n):
        if n > len(self.data) - self.at:
            raise ValueError(f"{self.name}: the file ends at byte {len(self.data)}, {n} more were expected at {self.at}")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self):
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind):
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, n = self.number("I"), self.number("Q")
            if kind in _NUMBERS:
                code = _NUMBERS[kind]
                return list(struct.unpack(f"<{n}{code}", self.take(n * struct.calcsize(code))))
            if n > len(self.data) - self.at:
                raise ValueError(f"{self.name}: an array of {n} items at byte {self.at} is longer than the file")
            return [self.value(kind) for _ in range(n)]
        if kind not in _NUMBERS:
            raise ValueError(f"{self.name}: unknown type {kind} of a value at byte {self.at}")
        return self.number(_NUMBERS[kind])


def read_gguf(path):
    """(entries, tensors) of a GGUF file: a dict of values, and a dict of functions without arguments that give float32 arrays."""
    data = np.memmap(path, dtype=np.uint8, mode="r") if pathlib.Path(path).stat().st_size else np.zeros(0, np.uint8)
    r = _Reader(data, str(path))
    if bytes(r.take(4)) != b"GGUF" or r.number("I") not in (2, 3):
        raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
    tensors, entries = r.number("Q"), r.number("Q")
    meta = {}
    for _ in range(entries):
        key = r.string()
        meta[key] = r.value(r.number("I"))
    found = []
    for _ in range(tensors):
        name, dims = r.string(), r.number("I")
        shape = [r.number("Q") for _ in range(dims)][::-1]
        found.append((name, shape, r.number("I"), r.number("Q")))
    align = max(1, meta.get("general.alignment", 32))
    base = -(-r.at // align) * align
    return meta, {name: functools.partial(_dequantise, r, name, shape, kind, base + offset) for name, shape, kind, offset in found}


def _dequantise(reader, name, shape, kind, at):
    if kind not in _TYPES:
        raise NotImplementedError(f"{reader.name}: {name} is stored as type {kind}; known are {', '.join(t[0] for t in _TYPES.values())}")
    _, numbers, size, formula = _TYPES[kind]
    count = 1
    for n in shape:
        count *= n
    if count % numbers or at + count // numbers * size > len(reader.data):
        raise ValueError(f"{reader.name}: {name} of shape {shape} does not fit into the file")
    raw = np.asarray(reader.data[at : at + count // numbers * size]).reshape(-1, size)
    return formula(raw).reshape(shape)


# ---- tokens


class Tokenizer:
    """Byte pairs as GPT-2 made them: text is cut into words, their bytes are merged pair by pair in the order of a list."""

    _WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")  # digits one by one

    def __init__(self, tokens, merges, special=()):
        self.tokens, self.numbers = list(tokens), {t: i for i, t in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ", 1)): i for i, m in enumerate(merges)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves; others follow from 256 on
        hidden = [b for b in range(256) if b not in shown]
        self.letters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
        self.bytes = {c: b for b, c in self.letters.items()}
        self.special = {t for t in special if t in self.numbers}
        self._split = re.compile("(" + "|".join(map(re.escape, self.special)) + ")") if self.special else None

    def encode(self, text):
        """A list of token numbers. Special tokens such as <|im_start|> in the text are taken as one."""
        out = []
        for part in self._split.split(text) if self._split else [text]:
            if part in self.special:
                out.append(self.numbers[part])
            else:
                for word in self._WORDS.findall(part):
                    out += [self.numbers[t] for t in self._merge(word)]
        return out

    def _merge(self, word):
        parts = [self.letters[b] for b in word.encode()]
        while len(parts) > 1:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in zip(parts, parts[1:], strict=False)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] == len(self.ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return parts

    def decode(self, numbers):
        """The text of token numbers; bytes that are no UTF-8 become a replacement sign."""
        text = "".join(self.tokens[i] for i in numbers)
        return b"".join(bytes([self.bytes[c]]) if c in self.bytes else c.encode() for c in text).decode("utf-8", "replace")


# ---- a model

_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head",
}  # fmt: skip


def _apart(w, heads):
    """Rows of a head lie in pairs that turn together; here its two halves turn together."""
    if w.shape[0] % (2 * heads):
        raise ValueError(f"a matrix of {w.shape[0]} rows has no {heads} heads of pairs")
    return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load_gguf(path, max_position_embeddings=None):
    """(model, tokenizer) of a GGUF file of Llama's architecture. Weights become float32; `max_position_embeddings` shortens its context."""
    meta, tensors = read_gguf(path)
    kind = meta.get("general.architecture")
    if kind != "llama":
        raise NotImplementedError(f"{path}: only the architecture 'llama' is known, not {kind!r}")

    def get(key, default=None, kind=int):
        value = meta.get("llama." + key, default)
        if not isinstance(value, kind) or value <= 0:
            raise ValueError(f"{path}: llama.{key} is {value!r}, a positive {kind.__name__} was expected")
        return value

    tokens, merges, kinds = (meta.get("tokenizer.ggml." + key, []) for key in ("tokens", "merges", "token_type"))
    if not all(isinstance(v, list) for v in (tokens, merges, kinds)) or not all(isinstance(t, str) for t in [*tokens, *merges]):
        raise ValueError(f"{path}: tokens, merges and kinds of tokens must be lists")
    heads = get("attention.head_count")
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        max_position_embeddings=max_position_embeddings or get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon", kind=float),
        rope_theta=get("rope.freq_base", 10000.0, float),
        tie_word_embeddings="output.weight" not in tensors,
        initializer_range=0.0,
    )
    state = {}
    for name, read in tensors.items():
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(\w+)", name)
        if found is None or found[2] not in _NAMES:
            continue  # tables of frequencies that follow from the configuration
        block, part, what = found.groups()
        w = read()
        if part in ("attn_q", "attn_k"):
            w = _apart(w, heads if part == "attn_q" else config.num_key_value_heads)
        state[f"layers.{block}." * (block is not None) + f"{_NAMES[part]}.{what}"] = torch.from_numpy(np.ascontiguousarray(w))
    sizes = {
        "embed_tokens": (config.vocab_size, config.hidden_size),
        "layers.0.mlp.gate_proj": (config.intermediate_size, config.hidden_size),
    }
    for name, size in sizes.items():  # before a model of these sizes is made
        shape = tuple(state[name + ".weight"].shape) if name + ".weight" in state else None
        if shape != size or config.num_hidden_layers > len(tensors):
            raise ValueError(f"{path}: {name} is {shape}, {size} was expected, in {config.num_hidden_layers} blocks")
    special = [t for t, kind in zip(tokens, kinds, strict=False) if kind == 3]
    return load_hf(Llama(config), state), Tokenizer(tokens, merges, special)
