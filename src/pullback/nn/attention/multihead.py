"""Attention with several heads, between a projection of its inputs and one of its result."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating
from pullback.nn.attention.heads import multi_head
from pullback.nn.attention.scaled import checked_dropout, checked_mask
from pullback.ops.arrangement import moveaxis
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.ranges import arange

__all__ = ["multi_head_attention", "multi_head_attention_forward"]

NAME = "multi_head_attention"


# -- arguments -------------------------------------------------------------------------------------


def _checked_inputs(arrays: list[Any], batch_first: bool) -> None:
    query, key, value = arrays
    shapes = [query.shape, key.shape, value.shape]
    if len({len(s) for s in shapes}) != 1 or len(shapes[0]) not in (2, 3):
        raise ShapeError(
            f"{NAME}: query, key and value must all have 3 dimensions, or 2 without a batch, got"
            f" shapes {shapes}."
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(
            f"{NAME}: key and value must have one length and batch, got shapes {shapes[1]} and"
            f" {shapes[2]}."
        )
    axis = 0 if batch_first else 1
    if len(shapes[0]) == 3 and query.shape[axis] != key.shape[axis]:
        raise ShapeError(
            f"{NAME}: query and key must have one batch, got {query.shape[axis]} and"
            f" {key.shape[axis]} along axis {axis}."
        )


def _checked_weights(inputs: list[Any], weight: Any, rest: list[Any], num_heads: int) -> int:
    """The width of all heads together, if the weights fit each other and the inputs."""
    bias, out_weight, out_bias = rest[:3]
    given = list(weight) if isinstance(weight, tuple) else [weight]
    if any(w.ndim != 2 for w in given) or (len(given) == 1 and given[0].shape[0] % 3):
        raise ShapeError(
            f"{NAME}: in_proj_weight must be a matrix of three projections (3 * width, width), or"
            f" three matrices, got shapes {[w.shape for w in given]}."
        )
    width = given[0].shape[0] // (3 if len(given) == 1 else 1)
    widths = [w.shape[1] for w in (given * 3)[:3]]
    rows = [w.shape[0] for w in given]
    if [x.shape[-1] for x in inputs] != widths or rows not in ([3 * width], [width] * 3):
        raise ShapeError(
            f"{NAME}: the weights project vectors of lengths {widths} to {rows}, got inputs of"
            f" lengths {[x.shape[-1] for x in inputs]}."
        )
    if num_heads < 1 or width % num_heads:
        raise ShapeError(f"{NAME}: num_heads must divide the width {width}, got {num_heads}.")
    if bias is not None and bias.shape != (3 * width,):
        raise ShapeError(f"{NAME}: in_proj_bias must have {3 * width} elements, got {bias.shape}.")
    if out_weight is not None and (out_weight.ndim != 2 or out_weight.shape[1] != width):
        raise ShapeError(
            f"{NAME}: out_proj_weight must be a matrix (any, {width}), got {out_weight.shape}."
        )
    if out_bias is not None and (out_weight is None or out_bias.shape != out_weight.shape[:1]):
        raise ShapeError(
            f"{NAME}: out_proj_bias must have one element per row of out_proj_weight, got"
            f" {out_bias.shape}."
        )
    return width


def _checked_masks(
    attn_mask: Any, padding: Any, batch: int, num_heads: int, rows: int, columns: int
) -> None:
    allowed = ((rows, columns), (batch * num_heads, rows, columns))
    if attn_mask is not None and attn_mask.shape not in allowed:
        raise ShapeError(
            f"{NAME}: attn_mask must have the shape {allowed[0]} or {allowed[1]}, got"
            f" {attn_mask.shape}."
        )
    if padding is not None and padding.shape not in ((batch, columns), (columns,)[: batch == 1]):
        raise ShapeError(
            f"{NAME}: key_padding_mask must have the shape {(batch, columns)}, got {padding.shape}."
        )


def _checked_extras(
    biases: list[Any], statics: list[Any], batch: int, num_heads: int, width: int
) -> None:
    if any(b is None for b in biases) != all(b is None for b in biases) or not all(
        b is None or b.size == width for b in biases
    ):
        raise ShapeError(
            f"{NAME}: bias_k and bias_v come together, with {width} elements each, got"
            f" {[None if b is None else b.shape for b in biases]}."
        )
    heads, size = batch * num_heads, width // num_heads
    for name, x in zip(("static_k", "static_v"), statics, strict=True):
        if x is not None and (x.ndim != 3 or x.shape[0] != heads or x.shape[2] != size):
            raise ShapeError(
                f"{NAME}: {name} must have the shape ({heads}, length, {size}), got {x.shape}."
            )


# -- records ---------------------------------------------------------------------------------------


def _oracle(
    query: Any,
    key: Any,
    value: Any,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any = None,
    out_proj_weight: Any = None,
    out_proj_bias: Any = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Head by head, example by example."""
    names = ("attn_mask", "key_padding_mask", "bias_k", "bias_v", "static_k", "static_v")
    arrays: list[Any] = [options.get(n) for n in names]
    attn_mask, key_padding_mask, bias_k, bias_v, static_k, static_v = arrays
    batch_first, unbatched = options.get("batch_first", False), query.ndim == 2
    if unbatched:
        query, key, value = query[None], key[None], value[None]
    elif not batch_first:
        query, key, value = (np.swapaxes(x, 0, 1) for x in (query, key, value))
    packed = not isinstance(in_proj_weight, tuple)
    ws = np.split(in_proj_weight, 3) if packed else in_proj_weight
    width = ws[0].shape[0]
    bs = np.split(np.zeros(3 * width) if in_proj_bias is None else in_proj_bias, 3)
    batch, rows, size = query.shape[0], query.shape[1], width // num_heads
    outs = np.zeros((batch, rows, width), query.dtype)
    all_weights = []
    for n in range(batch):
        q, k, v = (x[n] @ w.T + b for x, w, b in zip((query, key, value), ws, bs, strict=True))
        for h in range(num_heads):
            at = slice(h * size, (h + 1) * size)
            kh = k[:, at] if static_k is None else static_k[n * num_heads + h]
            vh = v[:, at] if static_v is None else static_v[n * num_heads + h]
            known = len(kh)
            for m_k, m_v in ((bias_k, bias_v), (np.zeros(width), np.zeros(width))):
                if m_k is not None and (m_k is bias_k or options.get("add_zero_attn")):
                    kh = np.vstack([kh, m_k.reshape(-1)[at]])
                    vh = np.vstack([vh, m_v.reshape(-1)[at]])
            s = q[:, at] @ kh.T / np.sqrt(size)
            for m in (attn_mask, key_padding_mask):
                if m is None:
                    continue
                if m is key_padding_mask:
                    m = np.broadcast_to(np.atleast_2d(m)[n], (rows, known))
                m = m if m.ndim == 2 else m[n * num_heads + h]
                s[:, :known] += np.where(m, -np.inf, 0) if m.dtype == bool else m
            if options.get("is_causal") and attn_mask is None:
                s[:, :known][~np.tri(rows, known, dtype=bool)] = -np.inf
            top = np.max(s, axis=-1, keepdims=True)
            e = np.exp(s - np.where(np.isinf(top), 0, top))
            total = e.sum(axis=-1, keepdims=True)
            p = e / np.where(total == 0, 1, total)
            all_weights.append(p)
            outs[n, :, at] = p @ vh
    if out_proj_weight is not None:
        outs = outs @ out_proj_weight.T + (0 if out_proj_bias is None else out_proj_bias)
    weights = np.array(all_weights).reshape(batch, num_heads, *all_weights[0].shape)
    weights = weights.mean(axis=1) if options.get("average_attn_weights", True) else weights
    if unbatched:
        outs, weights = outs[0], weights[0]
    elif not batch_first:
        outs = np.swapaxes(outs, 0, 1)
    outs, weights = outs.astype(query.dtype), weights.astype(query.dtype)
    return (outs, weights) if options.get("need_weights", True) else (outs,)


def _samples(d: Draw) -> list[Sample]:
    def real(*shape: int) -> np.ndarray:  # small enough for probabilities far from 0 and 1
        return d.real(*shape, low=-0.8, high=0.8)

    x, y = real(2, 2, 4), real(3, 2, 4)
    packed = (2, real(12, 4), real(12), real(4, 4), real(4))
    apart = (real(2, 3), real(2, 2), real(2, 4))
    single = (1, real(6, 2))
    hidden = np.array([[False, True, False], [True, False, False]])
    return [
        Sample((x, y, y, *packed)),
        Sample((x, y, y, *packed[:3]), {"need_weights": False, "key_padding_mask": hidden}),
        Sample(
            (real(2, 3), real(3, 2), real(3, 4), 1, apart),
            {"attn_mask": d.mask(2, 3), "average_attn_weights": False},
        ),
        Sample(
            (real(1, 2, 2),) * 3 + single,
            {"batch_first": True, "is_causal": True, "need_weights": False},
        ),
        Sample(
            (real(1, 2, 2), real(1, 3, 2), real(1, 3, 2), *single),
            {
                "batch_first": True,
                "bias_k": real(1, 1, 2),
                "bias_v": real(1, 1, 2),
                "add_zero_attn": True,
                "attn_mask": real(2, 3),
                "key_padding_mask": d.mask(1, 3),
            },
        ),
        Sample(
            (real(2, 2), real(3, 2), real(3, 2), *single),
            {"static_k": real(1, 3, 2), "static_v": real(1, 3, 2), "need_weights": False},
        ),
    ]


def _errors(d: Draw) -> list[Bad]:
    x = d.real(3, 2, 4)
    w = d.real(12, 4)
    return [
        Bad((d.real(4), x, x, 2, w), {}, ShapeError, "must all have 3 dimensions"),
        Bad((x, x, d.real(5, 2, 4), 2, w), {}, ShapeError, "key and value must have one length"),
        Bad((x, d.real(3, 1, 4), d.real(3, 1, 4), 2, w), {}, ShapeError, "must have one batch"),
        Bad((x, x, x, 2, d.real(11, 4)), {}, ShapeError, "three projections"),
        Bad((x, x, x, 2, d.real(12, 5)), {}, ShapeError, "project vectors of lengths [5, 5, 5]"),
        Bad((x, x, x, 3, w), {}, ShapeError, "num_heads must divide the width 4, got 3"),
        Bad((x, x, x, 2, w, d.real(11)), {}, ShapeError, "in_proj_bias must have 12 elements"),
        Bad((x, x, x, 2, w, None, d.real(4, 3)), {}, ShapeError, "out_proj_weight must be"),
        Bad((x, x, x, 2, w, None, None, d.real(4)), {}, ShapeError, "out_proj_bias must have"),
        Bad((x, x, x, 2, w), {"attn_mask": d.mask(3, 2)}, ShapeError, "attn_mask must have"),
        Bad((x, x, x, 2, w), {"key_padding_mask": d.mask(3, 3)}, ShapeError, "key_padding_mask"),
        Bad((x, x, x, 2, w), {"bias_k": d.real(4)}, ShapeError, "bias_k and bias_v"),
        Bad((x, x, x, 2, w), {"dropout_p": 0.5}, DTypeError, "needs a key"),
        Bad((x + 0j, x + 0j, x + 0j, 2, w), {}, DTypeError, "got complex128"),
    ]


@composite(oracle=_oracle, samples=_samples, errors=_errors, namespace="nn", tolerance=8)
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any = None,
    out_proj_weight: Any = None,
    out_proj_bias: Any = None,
    *,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    bias_k: Any = None,
    bias_v: Any = None,
    add_zero_attn: bool = False,
    static_k: Any = None,
    static_v: Any = None,
    dropout_p: float = 0.0,
    dropout_key: Any = None,
    batch_first: bool = False,
) -> Any:
    """Attention of `num_heads` heads over projections of its inputs: (result, weights or None).

    Inputs are (length, batch, width), with `batch_first` (batch, length, width), or (length,
    width). `in_proj_weight` stacks the projections of query, key and value, or is a tuple of them;
    without `out_proj_weight` the heads are returned as they are. Masks are those of torch's module:
    true where a key is hidden, or added to scores. Weights take memory for each pair of positions;
    without them it is linear in the lengths.

    >>> x = pb.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> w = pb.concat([pb.eye(2)] * 3)
    >>> pb.nn.multi_head_attention(x, x, x, 1, w, is_causal=True, need_weights=False)[0]
    tensor([[1.        , 0.        ],
            [0.33023846, 0.66976154]], float32, cpu)
    """
    own = [key is query, value is key]
    separate = isinstance(in_proj_weight, (tuple, list))
    given = [in_proj_bias, out_proj_weight, out_proj_bias, bias_k, bias_v, static_k, static_v]
    weights = list(in_proj_weight) if separate else [in_proj_weight]
    inputs = floating(NAME, query, key, value, *given, *weights)
    arrays, extras, weights = inputs[:3], inputs[3:10], inputs[10:]
    weight = tuple(weights) if separate else weights[0]
    _checked_inputs(arrays, batch_first)
    width = _checked_weights(arrays, weight, extras, num_heads)
    flat = arrays[0].ndim == 2
    arrays = [_batch_first(x, batch_first) for x in arrays]
    batch, rows, _ = arrays[0].shape
    _checked_extras(extras[3:5], extras[5:], batch, num_heads, width)
    columns = arrays[1].shape[1] if static_k is None else static_k.shape[-2]
    attn_mask = checked_mask(NAME, "attn_mask", attn_mask)
    padding = checked_mask(NAME, "key_padding_mask", key_padding_mask)
    _checked_masks(attn_mask, padding, batch, num_heads, rows, columns)
    if is_causal and attn_mask is None and (bias_k is not None or add_zero_attn):
        attn_mask = arange(rows)[:, None] < arange(columns)
    p = checked_dropout(NAME, dropout_p, dropout_key)
    found = multi_head(
        arrays[0],
        None if own[0] else arrays[1],
        None if own[1] else arrays[2],
        weight,
        *extras,
        attn_mask,
        padding,
        dropout_key if p % 1.0 else None,
        int(num_heads),
        bool(add_zero_attn),
        p,
        bool(is_causal) and attn_mask is None,
        "none" if not need_weights else "mean" if average_attn_weights else "each",
    )
    out, probable = found if need_weights else (found, None)
    if flat:
        return out[0], None if probable is None else probable[0]
    return out if batch_first else moveaxis(out, 0, 1), probable


def _batch_first(x: Any, already: bool) -> Any:
    if x.ndim == 2:
        return reshape(x, (1, *x.shape))
    return x if already else moveaxis(x, 1, 0)


def _forward_oracle(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    query, key, value, _, heads, w, b, bias_k, bias_v, zero, _, out_w, out_b, *_ = args
    separate = [kwargs.pop(f"{n}_proj_weight", None) for n in "qkv"]
    kwargs.pop("use_separate_proj_weight", None)
    kwargs.pop("training", None)
    weight = w if separate[0] is None else tuple(separate)
    return _oracle(
        query, key, value, heads, weight, b, out_w, out_b,
        bias_k=bias_k, bias_v=bias_v, add_zero_attn=zero, **kwargs,
    )  # fmt: skip


def _forward_samples(d: Draw) -> list[Sample]:
    x, y = d.real(2, 1, 2), d.real(3, 1, 2)
    none = (None, None, None)
    out = (d.real(2, 2), d.real(2))
    apart = {f"{n}_proj_weight": d.real(2, 2) for n in "qkv"}
    return [
        Sample((x, y, y, 2, 2, d.real(6, 2), d.real(6), None, None, False, 0.0, *out)),
        Sample(
            (x, y, y, 2, 1, *none, None, False, 0.5, *out),
            {"training": False, "use_separate_proj_weight": True, **apart},
        ),
    ]


def _forward_errors(d: Draw) -> list[Bad]:
    x, w, out = d.real(3, 2, 4), d.real(12, 4), d.real(4, 4)
    rest = (None, None, None, False, 0.0, out, None)
    return [
        Bad((x, x, x, 5, 2, w, *rest), {}, ShapeError, "embed_dim_to_check is 5"),
        Bad((x, x, x, 4, 2, None, *rest), {}, DTypeError, "in_proj_weight is missing"),
        Bad(
            (x, x, x, 4, 2, w, *rest),
            {"use_separate_proj_weight": True},
            DTypeError,
            "q_proj_weight, k_proj_weight and v_proj_weight",
        ),
    ]


@composite(
    oracle=_forward_oracle,
    samples=_forward_samples,
    errors=_forward_errors,
    namespace="nn",
    tolerance=8,
)
def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    dropout_key: Any = None,
) -> Any:
    """`multi_head_attention` with the arguments of torch.nn.functional.

    >>> x = pb.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> w, none = pb.concat([pb.eye(2)] * 3), (None, None, None)
    >>> pb.nn.multi_head_attention_forward(x, x, x, 2, 1, w, *none, False, 0.0, pb.eye(2), None)[1]
    tensor([[0.66976154, 0.33023846],
            [0.33023846, 0.66976154]], float32, cpu)
    """
    name = "multi_head_attention_forward"
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    if use_separate_proj_weight and any(w is None for w in separate):
        raise DTypeError(
            f"{name}: use_separate_proj_weight needs q_proj_weight, k_proj_weight and"
            " v_proj_weight, got None."
        )
    if not use_separate_proj_weight and in_proj_weight is None:
        raise DTypeError(f"{name}: in_proj_weight is missing, got None.")
    query = as_array(query, name)
    if query.shape[-1:] != (embed_dim_to_check,):
        raise ShapeError(
            f"{name}: embed_dim_to_check is {embed_dim_to_check}, got a query of shape"
            f" {query.shape}."
        )
    return multi_head_attention(
        query,
        key,
        value,
        num_heads,
        separate if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
        out_proj_weight,
        out_proj_bias,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
        bias_k=bias_k,
        bias_v=bias_v,
        add_zero_attn=add_zero_attn,
        static_k=static_k,
        static_v=static_v,
        dropout_p=dropout_p if training else 0.0,
        dropout_key=dropout_key,
    )
