"""Scaled dot-product attention: its arguments, checked and shaped for the tiles of `blockwise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.dtypes import bool_, float32, float64
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating
from pullback.nn.attention.blockwise import PURPOSE, attended
from pullback.nn.attention.matrix_units import attended_by_units, has_units
from pullback.nn.fused import fused
from pullback.ops.families import broadcast_shapes, composite
from pullback.ops.movement import broadcast_to, reshape
from pullback.ops.parts import astype
from pullback.ops.philox import key_words, numpy_philox, sample_key

__all__ = ["checked_dropout", "checked_mask", "scaled_dot_product_attention", "weighted"]

NAME = "scaled_dot_product_attention"


# -- arguments -------------------------------------------------------------------------------------


def _lead(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[tuple[int, ...], int]:
    """The leading axes of keys, broadcast, and the number of queries' heads for each of theirs."""
    shapes = [query.shape, key.shape, value.shape]
    for n, x in zip(("query", "key", "value"), shapes, strict=True):
        if len(x) < 2:
            raise ShapeError(
                f"{NAME}: {n} must have at least 2 dimensions (..., length, width), got shape {x}."
            )
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"{NAME}: query and key must have one width, got {query.shape[-1]} and {key.shape[-1]}."
        )
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"{NAME}: key and value must have one length, got {key.shape[-2]} and"
            f" {value.shape[-2]}."
        )
    if not enable_gqa:
        return broadcast_shapes(NAME, *[s[:-2] for s in shapes]), 1
    if min(map(len, shapes)) < 3:
        raise ShapeError(f"{NAME}: enable_gqa needs an axis of heads, got shapes {shapes}.")
    queries, keys = query.shape[-3], key.shape[-3]
    if value.shape[-3] != keys or keys == 0 or queries % keys:
        raise ShapeError(
            f"{NAME}: with enable_gqa the heads of key and value must be equal and divide those of"
            f" query, got {queries}, {keys} and {value.shape[-3]}."
        )
    lead = broadcast_shapes(NAME, *[s[:-3] for s in shapes])
    return (*lead, keys), queries // keys


def _mask(mask: Any, full: tuple[int, ...], group: int) -> Any:
    """A mask with all axes of (*lead, group, rows, columns), 1 long where it is broadcast."""
    shape = (1,) * (len(full) - mask.ndim) + mask.shape
    if broadcast_shapes(NAME, shape, full) != full:
        raise ShapeError(
            f"{NAME}: attn_mask must broadcast to the shape of the scores, {full}, got"
            f" {mask.shape}."
        )
    if len(full) == 2:
        return reshape(mask, (1, *shape))
    heads = shape[-3]
    split = (heads // group, group) if heads > 1 else (1, 1)
    return reshape(mask, (*shape[:-3], *split, *shape[-2:]))


def checked_dropout(name: str, p: float, key: Any) -> float:
    """The probability of dropout, if it is one; it needs a key."""
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"{name}: dropout_p must be a probability in [0, 1], got {p}.")
    if 0.0 < p < 1.0:
        if key is None:
            raise DTypeError(
                f"{name}: dropout_p > 0 needs a key, got None. Pass dropout_key=random.key(seed)."
            )
        key_words(name, key)
    return float(p)


def checked_mask(name: str, what: str, mask: Any) -> Any:
    """A mask as an array of bools or floats."""
    if mask is None:
        return None
    mask = as_array(mask, name)
    if mask.dtype is not bool_ and mask.dtype.kind != "f":
        raise DTypeError(f"{name}: {what} must be bool or floating, got {mask.dtype.name}.")
    return mask


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` broadcast where it has to be: its cotangent is then a sum, if only of one term."""
    return x if x.shape == shape else broadcast_to(x, shape)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_key: Any,
    dropout_p: float,
    is_causal: bool,
    scale: Any,
    enable_gqa: bool,
) -> Any:
    """The checked call on arrays; half precision is computed in float32."""
    lead, group = _lead(query, key, value, enable_gqa)
    rows, columns, width = query.shape[-2], key.shape[-2], query.shape[-1]
    heads = (*lead[:-1], lead[-1] * group) if lead else ()
    bias = mask = None
    if attn_mask is not None:
        whole = _mask(attn_mask, (*heads, rows, columns), group)
        bias, mask = (None, whole) if attn_mask.dtype is bool_ else (whole, None)
    query = reshape(_spread(query, (*heads, rows, width)), (*lead, group, rows, width))
    key = _spread(key, (*lead, columns, width))
    value = _spread(value, (*lead, *value.shape[-2:]))
    # Vectors without elements have products of 0, by any factor.
    factor = max(width, 1) ** -0.5 if scale is None else scale
    out = weighted(query, key, value, bias, mask, dropout_key, is_causal, dropout_p, factor)
    return reshape(out, (*heads, rows, value.shape[-1]))


def weighted(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    words: Any,
    causal: bool,
    dropout: float,
    factor: Any,
) -> Any:
    """`attended` of queries times `factor`, in at least float32, or on matrix units where a device
    has them; a dropout of 1 leaves nothing.
    """
    dtype = query.dtype
    if bias is None and dropout != 1.0 and has_units(query, key, value, factor):
        return attended_by_units(query, key, value, mask, words, factor, causal, dropout)
    wide = float64 if dtype is float64 else float32
    query, key, value, bias = (
        x if x is None or x.dtype is wide else astype(x, wide) for x in (query, key, value, bias)
    )
    p = dropout % 1.0
    out = attended(query * factor, key, value, bias, mask, words if p else None, causal, p)
    return astype(out * 0.0 if dropout == 1.0 else out, dtype, copy=False)


_compiled = fused(_attention)


# -- records ---------------------------------------------------------------------------------------


def _kept(key: np.ndarray, shape: tuple[int, ...], p: float) -> np.ndarray:
    """Which probabilities dropout keeps: the counter is (column, row, head, purpose)."""
    *lead, rows, columns = shape
    head = np.arange(int(np.prod(lead))).reshape(*lead, 1, 1)
    row, column = np.arange(rows)[:, None], np.arange(columns)
    return numpy_philox((column, row, head, PURPOSE), (key[0], key[1]))[0] >= round(p * 2**32)


def _oracle(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    attn_mask: np.ndarray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout_key: np.ndarray | None = None,
) -> np.ndarray:
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = np.repeat(key, times, axis=-3), np.repeat(value, times, axis=-3)
    s = (
        query
        @ np.swapaxes(key, -1, -2)
        * (1 / np.sqrt(query.shape[-1]) if scale is None else scale)
    )
    if attn_mask is not None and attn_mask.dtype == bool:
        s = np.where(attn_mask, s, -np.inf)
    elif attn_mask is not None:
        s = s + attn_mask
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    if dropout_p == 1:
        p = 0 * p
    elif dropout_p:
        assert dropout_key is not None
        p = np.where(_kept(dropout_key, p.shape, dropout_p), p / (1 - dropout_p), 0)
    return np.asarray(p @ value).astype(query.dtype)


def _samples(d: Draw) -> list[Sample]:
    def qkv(*shapes: tuple[int, ...]) -> tuple:
        return tuple(d.real(*s) for s in shapes)

    batch = qkv((2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 3))
    flat = qkv((3, 2), (4, 2), (4, 1))
    nothing = d.mask(3, 4) & (np.arange(3) != 1)[:, None]
    return [
        Sample(batch),
        Sample((*flat, nothing)),
        Sample((*batch, d.real(2, 1, 3, 4))),
        Sample((*batch, d.real(4)), {"scale": 0.7}),
        Sample(flat, {"is_causal": True}),
        Sample(batch, {"dropout_p": 0.4, "dropout_key": sample_key(d)}),
        Sample(flat, {"dropout_p": 1.0}),
        Sample(
            (*qkv((4, 2, 2), (2, 3, 2), (2, 3, 2)), d.mask(4, 1, 3)),
            {"enable_gqa": True},
        ),
        Sample(qkv((2, 1, 2, 2), (3, 2, 2), (1, 3, 2, 1))),
        Sample(qkv((0, 3, 2), (0, 4, 2), (0, 4, 2))),
        Sample(qkv((3, 2), (0, 2), (0, 2))),
    ]


def _errors(d: Draw) -> list[Bad]:
    q, k, v = d.real(2, 3, 4), d.real(2, 5, 4), d.real(2, 5, 4)
    c = np.ones((2, 2), np.complex128)
    return [
        Bad((d.real(4), k, v), {}, ShapeError, "query must have at least 2 dimensions"),
        Bad((q, d.real(2, 5, 3), v), {}, ShapeError, "one width, got 4 and 3"),
        Bad((q, k, d.real(2, 6, 4)), {}, ShapeError, "one length, got 5 and 6"),
        Bad((d.real(3, 3, 4), k, v), {}, ShapeError, "do not broadcast"),
        Bad((d.real(3, 3, 4), k, v), {"enable_gqa": True}, ShapeError, "divide those of query"),
        Bad((q[0], k[0], v[0]), {"enable_gqa": True}, ShapeError, "needs an axis of heads"),
        Bad((q, k, v, d.real(3, 4)), {}, ShapeError, "do not broadcast"),
        Bad((q, k, v, d.real(7, 2, 3, 5)), {}, ShapeError, "attn_mask must broadcast"),
        Bad((q, k, v, d.integers(3, 5)), {}, DTypeError, "attn_mask must be bool or floating"),
        Bad((q, k, v, d.mask(3, 5)), {"is_causal": True}, DTypeError, "got attn_mask too"),
        Bad((q, k, v), {"dropout_p": 1.5}, ShapeError, "probability in [0, 1], got 1.5"),
        Bad((q, k, v), {"dropout_p": 0.5}, DTypeError, "needs a key"),
        Bad(
            (q, k, v),
            {"dropout_p": 0.5, "dropout_key": np.zeros(3, np.uint32)},
            DTypeError,
            "a key is",
        ),
        Bad((c, c, c), {}, DTypeError, "got complex128"),
    ]


@composite(oracle=_oracle, samples=_samples, errors=_errors, namespace="nn", tolerance=4)
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
    *,
    dropout_key: Any = None,
) -> Any:
    """softmax(query @ key.T * scale + attn_mask) @ value, in memory linear in the lengths.

    Shapes are (..., heads, length, width). A boolean mask is true where a key may be seen; a query
    that sees none gives 0. `scale` is 1/sqrt(width) if None. With `enable_gqa`, several heads of
    query share one of key and value. Dropout of probabilities needs `dropout_key`, a random key.

    >>> q = pb.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> pb.nn.scaled_dot_product_attention(q, q, pb.tensor([[1.0], [2.0]]), is_causal=True)
    tensor([[1.       ],
            [1.6697615]], float32, cpu)
    """
    query, key, value = floating(NAME, query, key, value)
    attn_mask = checked_mask(NAME, "attn_mask", attn_mask)
    if attn_mask is not None and is_causal:
        raise DTypeError(f"{NAME}: is_causal is a mask of its own, got attn_mask too. Join them.")
    p = checked_dropout(NAME, dropout_p, dropout_key)
    return _compiled(
        query,
        key,
        value,
        attn_mask,
        dropout_key if p % 1.0 else None,
        p,
        bool(is_causal),
        scale,
        bool(enable_gqa),
    )
