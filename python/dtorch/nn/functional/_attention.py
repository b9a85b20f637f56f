"""Composite: multi-head attention with projections."""

from __future__ import annotations

import math

import dtorch
import dtorch.nn.functional as F

__all__ = ["multi_head_attention_forward"]


def _require(ok, message):
    if not ok:
        raise AssertionError(message)


def _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads):
    """Whether the call is batched; AssertionError for shapes that do not go together."""
    batched = query.dim() == 3
    if query.dim() not in (2, 3):
        raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor")
    kind = "batched (3-D)" if batched else "unbatched (2-D)"
    dims = query.dim()
    _require(
        key.dim() == dims and value.dim() == dims,
        f"For {kind} `query`, expected `key` and `value` to be {dims}-D but found {key.dim()}-D and {value.dim()}-D tensors respectively",
    )
    if key_padding_mask is not None:
        _require(
            key_padding_mask.dim() == dims - 1,
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {dims - 1}-D "
            f"but found {key_padding_mask.dim()}-D tensor instead",
        )
    if attn_mask is not None:
        _require(
            attn_mask.dim() in (2, 3),
            f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D tensor instead",
        )
        if not batched and attn_mask.dim() == 3:
            expected = (num_heads, query.shape[0], key.shape[0])
            _require(tuple(attn_mask.shape) == expected, f"Expected `attn_mask` shape to be {expected} but got {attn_mask.shape}")
    return batched


def _float_mask(mask, name, dtype):
    """A mask to be added to the scores; True in a bool mask means: not attended to."""
    if mask is None:
        return None
    _require(mask.dtype == dtorch.bool or mask.is_floating_point(), f"only bool and floating types of {name} are supported")
    if mask.dtype == dtorch.bool:
        return dtorch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
    return mask


def _projections(query, key, value, packed, separate, bias):
    """Query, key and value after their input projections; `packed` (3E, E) or `separate` weights."""
    width = query.shape[-1]
    if separate is None:
        if query is key and key is value:
            return F.linear(query, packed, bias).chunk(3, -1)
        weights = packed.split(width, 0)
    else:
        weights = separate
    biases = (None, None, None) if bias is None else bias.chunk(3, 0)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


def _grow_mask(mask, by):
    return None if mask is None else F.pad(mask, (0, by))


def _combined_mask(attn_mask, key_padding_mask, batch, heads):
    """(B or 1, H or 1, T or 1, S) out of (T, S) or (B*H, T, S), and (B, S)."""
    mask = None
    if attn_mask is not None:
        t, s = attn_mask.shape[-2:]
        mask = attn_mask.reshape(1, 1, t, s) if attn_mask.dim() == 2 or attn_mask.shape[0] == 1 else attn_mask.reshape(batch, heads, t, s)
    if key_padding_mask is not None:
        padding = key_padding_mask.reshape(batch, 1, 1, key_padding_mask.shape[-1])
        mask = padding if mask is None else mask + padding
    return mask


def multi_head_attention_forward(
    query,
    key,
    value,
    embed_dim_to_check,
    num_heads,
    in_proj_weight,
    in_proj_bias,
    bias_k,
    bias_v,
    add_zero_attn,
    dropout_p,
    out_proj_weight,
    out_proj_bias,
    training=True,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    use_separate_proj_weight=False,
    q_proj_weight=None,
    k_proj_weight=None,
    v_proj_weight=None,
    static_k=None,
    static_v=None,
    average_attn_weights=True,
    is_causal=False,
):
    """Multi-head attention: query (T, B, E), key (S, B, Ek), value (S, B, Ev), all without B when unbatched.

    Masks are bool (True: not attended to) or float (added to the scores): `key_padding_mask` (B, S), `attn_mask` (T, S) or (B*H, T, S).
    Returns the output (T, B, E) and, with `need_weights`, the weights (B, T, S), averaged over heads, or (B, H, T, S).
    """
    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    if not batched:
        same = query is key and key is value
        query = query.unsqueeze(1)
        key, value = (query, query) if same else (key.unsqueeze(1), value.unsqueeze(1))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    t, batch, width = query.shape
    s = key.shape[0]
    _require(width == embed_dim_to_check, f"was expecting embedding dimension of {embed_dim_to_check}, but got {width}")
    head = width // num_heads
    _require(head * num_heads == width, f"embed_dim {width} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        _require(
            tuple(key.shape[:2]) == tuple(value.shape[:2]),
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}",
        )
        separate = (q_proj_weight, k_proj_weight, v_proj_weight)
        _require(all(w is not None for w in separate), "use_separate_proj_weight is True but a projection weight is None")
    else:
        _require(tuple(key.shape) == tuple(value.shape), f"key shape {key.shape} does not match value shape {value.shape}")
        separate = None
    if attn_mask is not None:
        expected = (t, s) if attn_mask.dim() == 2 else (batch * num_heads, t, s)
        if tuple(attn_mask.shape) != expected:
            raise RuntimeError(f"The shape of the {attn_mask.dim()}D attn_mask is {attn_mask.shape}, but should be {expected}.")
    if key_padding_mask is not None:
        for d, size in enumerate((batch, s)):
            given = key_padding_mask.shape[d]
            _require(given == size, f"Expected key_padded_mask.shape[{d}] to be {size}, but got {given}")
    causal = is_causal and key_padding_mask is None and not need_weights and bias_k is None and not add_zero_attn
    attn_mask = None if causal else _float_mask(attn_mask, "attn_mask", query.dtype)
    key_padding_mask = _float_mask(key_padding_mask, "key_padding_mask", query.dtype)

    q, k, v = _projections(query, key, value, in_proj_weight, separate, in_proj_bias)
    if bias_k is not None and bias_v is not None:
        k = dtorch.cat([k, bias_k.expand(1, batch, width)])
        v = dtorch.cat([v, bias_v.expand(1, batch, width)])
        attn_mask, key_padding_mask = _grow_mask(attn_mask, 1), _grow_mask(key_padding_mask, 1)

    def split_heads(x):  # (L, B, E) -> (B, H, L, E/H)
        return x.reshape(x.shape[0], batch, num_heads, head).permute(1, 2, 0, 3)

    q = split_heads(q)
    k = split_heads(k) if static_k is None else static_k.reshape(batch, num_heads, -1, head)
    v = split_heads(v) if static_v is None else static_v.reshape(batch, num_heads, -1, head)
    if add_zero_attn:
        zero = dtorch.zeros_like(k.narrow(2, 0, 1))
        k, v = dtorch.cat([k, zero], 2), dtorch.cat([v, zero], 2)
        attn_mask, key_padding_mask = _grow_mask(attn_mask, 1), _grow_mask(key_padding_mask, 1)
    mask = _combined_mask(attn_mask, key_padding_mask, batch, num_heads)
    dropout_p = dropout_p if training else 0.0

    weights = None
    if need_weights:
        scores = (q * (1.0 / math.sqrt(head))) @ k.transpose(-2, -1)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        if dropout_p > 0.0:
            weights = F.dropout(weights, dropout_p, True)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            weights = weights.squeeze(0)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=causal)
    out = F.linear(out.permute(2, 0, 1, 3).reshape(t, batch, width), out_proj_weight, out_proj_bias)
    return (out if batched else out.squeeze(1)), weights
