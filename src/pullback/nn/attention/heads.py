"""The computation of attention with several heads, as one compiled unit."""

from __future__ import annotations

from math import inf
from typing import Any

from pullback.core.dtypes import bool_, float32, float64
from pullback.nn.attention.blockwise import probabilities
from pullback.nn.attention.scaled import weighted
from pullback.nn.fused import fused
from pullback.ops.arrangement import moveaxis
from pullback.ops.creation import zeros
from pullback.ops.logic import logical_not
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.parts import astype
from pullback.ops.products import matmul, matrix_transpose
from pullback.ops.selection import where
from pullback.ops.statistics import mean

__all__ = ["multi_head"]


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    out = matmul(x, matrix_transpose(weight))
    return out if bias is None else out + bias


def _projected(query: Any, key: Any, value: Any, weight: Any, bias: Any) -> list[Any]:
    """Queries, keys and values; equal inputs (None: the one before) share a product."""
    key_or_query = query if key is None else key
    value_or_key = key_or_query if value is None else value
    width = (weight.shape[0] if not isinstance(weight, tuple) else 3 * weight[0].shape[0]) // 3
    biases = [None if bias is None else bias[i * width : (i + 1) * width] for i in range(3)]
    inputs = [query, key_or_query, value_or_key]
    if isinstance(weight, tuple):
        return [_linear(*given) for given in zip(inputs, weight, biases, strict=True)]
    if key is None and value is None:
        return _parts(_linear(query, weight, bias), 3)
    first = _linear(query, weight[:width], biases[0])
    if value is None:
        rest = _linear(key, weight[width:], None if bias is None else bias[width:])
        return [first, *_parts(rest, 2)]
    rest = (weight[width : 2 * width], weight[2 * width :])
    others = zip(inputs[1:], rest, biases[1:], strict=True)
    return [first, *[_linear(*given) for given in others]]


def _parts(x: Any, count: int) -> list[Any]:
    width = x.shape[-1] // count
    return [x[..., i * width : (i + 1) * width] for i in range(count)]


def _heads(x: Any, count: int) -> Any:
    """(batch, length, width) as (batch, heads, length, width / heads)."""
    batch, length, width = x.shape
    return moveaxis(reshape(x, (batch, length, count, width // count)), 2, 1)


def _longer(x: Any, more: Any) -> Any:
    """Keys or values (batch, heads, length, width) with one more position: a bias, or zeros."""
    batch, heads, _, width = x.shape
    if more is None:
        last = zeros((batch, heads, 1, width), dtype=x.dtype)
    else:
        last = broadcast_to(reshape(more, (1, heads, 1, width)), (batch, heads, 1, width))
    return concat([x, last], axis=2)


def _visible(mask: Any, more: int) -> Any:
    """A mask of (batch, heads, group, rows, columns) for `more` columns after those it knows."""
    if not more or mask is None:
        return mask
    shape = (*mask.shape[:-1], more)
    return concat([mask, zeros(shape, dtype=mask.dtype)], axis=-1)


def _masks(
    attn_mask: Any, padding: Any, batch: int, heads: int, more: int, dtype: Any
) -> tuple[Any, Any]:
    """An additive mask and a boolean one (true: to be seen), from two that say what is hidden."""
    if attn_mask is not None:
        lead = (1, 1) if attn_mask.ndim == 2 else (batch, heads)
        attn_mask = reshape(attn_mask, (*lead, 1, *attn_mask.shape[-2:]))
    if padding is not None:
        padding = reshape(padding, (batch, 1, 1, 1, padding.shape[-1]))
    found = [_visible(m, more) for m in (attn_mask, padding) if m is not None]
    hidden = [m for m in found if m.dtype is bool_]
    added = [astype(m, dtype, copy=False) for m in found if m.dtype is not bool_]
    if len(hidden) == 2:  # one of them as numbers: they are not joined, which would take memory
        added.append(where(hidden.pop(), astype(zeros(()) - inf, dtype), 0.0))
    bias = None if not added else added[0] if len(added) == 1 else added[0] + added[1]
    return bias, logical_not(hidden[0]) if hidden else None


def _multi_head(
    query: Any,
    key: Any,
    value: Any,
    weight: Any,
    bias: Any,
    out_weight: Any,
    out_bias: Any,
    bias_k: Any,
    bias_v: Any,
    static_k: Any,
    static_v: Any,
    attn_mask: Any,
    padding: Any,
    words: Any,
    num_heads: int,
    add_zero_attn: bool,
    dropout: float,
    causal: bool,
    weights: str,
) -> Any:
    """The result (batch, length, width), and if asked for `weights` (mean, each) these too."""
    q, k, v = _projected(query, key, value, weight, bias)
    batch, rows, width = q.shape
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    if static_k is not None:
        k = reshape(static_k, (batch, num_heads, *static_k.shape[-2:]))
    if static_v is not None:
        v = reshape(static_v, (batch, num_heads, *static_v.shape[-2:]))
    if bias_k is not None:
        k, v = _longer(k, bias_k), _longer(v, bias_v)
    if add_zero_attn:
        k, v = _longer(k, None), _longer(v, None)
    more = (bias_k is not None) + add_zero_attn
    wide = float64 if q.dtype is float64 else float32
    added, seen = _masks(attn_mask, padding, batch, num_heads, more, wide)
    q = reshape(q, (batch, num_heads, 1, rows, width // num_heads))
    factor = max(q.shape[-1], 1) ** -0.5
    probable = None
    if weights == "none":
        out = weighted(q, k, v, added, seen, words, causal, dropout, factor)
    else:
        p = dropout % 1.0
        near, far = (x if x.dtype is wide else astype(x, wide) for x in (q * factor, k))
        probable = probabilities(near, far, added, seen, words if p else None, causal, p)
        probable = astype(probable * 0.0 if dropout == 1.0 else probable, q.dtype, copy=False)
        out = matmul(reshape(probable, (batch, num_heads, rows, k.shape[-2])), v)
        probable = probable[:, :, 0]
        probable = mean(probable, axis=1) if weights == "mean" else probable
    out = reshape(out, (batch, num_heads, rows, width // num_heads))
    out = reshape(moveaxis(out, 1, 2), (batch, rows, width))
    out = out if out_weight is None else _linear(out, out_weight, out_bias)
    return out if probable is None else (out, probable)


multi_head = fused(_multi_head)
