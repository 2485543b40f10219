"""Losses with a margin: of scores, rankings and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import (
    LARGE,
    away_from_kinks,
    broadcast_check,
    class_numbers,
    floating,
    numpy_reduced,
    reduced,
    reported_by,
)
from pullback.nn.fused import fused
from pullback.ops.arrangement import expand_dims
from pullback.ops.cumulative import cumsum
from pullback.ops.families import composite
from pullback.ops.indexing import take, take_along_axis
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.ranges import positions
from pullback.ops.reductions import any as any_
from pullback.ops.reductions import sum
from pullback.ops.selection import clip, where
from pullback.ops.special import logaddexp

__all__ = [
    "hinge_embedding_loss", "hinge_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "soft_margin_loss",
]  # fmt: skip

# -- scores ----------------------------------------------------------------------------------------


def above_zero(x: Any) -> Any:
    """`max(x, 0)`, whose derivative at 0 is 0."""
    return where(x <= 0.0, 0.0, x)


def _signs(d: Draw, *shape: int) -> np.ndarray:
    return d.rng.choice((-1, 1), shape)


def _signed_samples(*options: dict[str, Any]) -> Callable[[Draw], list[Sample]]:
    """Scores away from kinks at multiples of 0.5, beside signs that are not moved."""

    def samples(d: Draw) -> list[Sample]:
        def pair(*shape: int) -> tuple[np.ndarray, np.ndarray]:
            return away_from_kinks(d, *shape, scale=2.0), _signs(d, *shape)

        return [
            Sample(pair(3, 4)),
            Sample(pair(5), {"reduction": "sum"}),
            Sample(pair(2, 3), {"reduction": "none"}),
            Sample((away_from_kinks(d, 3, 1, scale=2.0), _signs(d, 2))),
            Sample(pair(0, 2), {"reduction": "sum"}),
            *[Sample(pair(4), o) for o in options],
        ]

    return samples


def _errors(*more: Bad, count: int = 2) -> Callable[[Draw], list[Bad]]:
    def errors(d: Draw) -> list[Bad]:
        xs = [d.real(2) for _ in range(count - 1)]
        return [
            Bad((*xs, d.real(3)), {}, ShapeError, "do not broadcast"),
            Bad((*xs, d.real(2)), {"reduction": "max"}, DTypeError, "reduction is one of"),
            Bad((*xs, np.ones(2, complex)), {}, DTypeError, "got complex128"),
            *more,
        ]

    return errors


@composite(
    oracle=lambda input, target, margin=1.0, reduction="mean": numpy_reduced(
        np.maximum(margin - input * target, 0.0), reduction
    ),
    samples=_signed_samples({"margin": 0.5}),
    errors=_errors(),
    namespace="nn",
)
def hinge_loss(input: Any, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    """`max(margin - input * target, 0)` of scores and signs.

    >>> pb.nn.hinge_loss(pb.tensor([0.5, -2.0]), pb.tensor([1, -1]), reduction="none")
    tensor([0.5, 0. ], float32, cpu)
    """
    x, y = floating("hinge_loss", input, target)
    broadcast_check("hinge_loss", x, y)
    return reduced("hinge_loss", above_zero(margin - x * y), reduction)


def _hinge_embedding_oracle(
    input: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean"
) -> np.ndarray:
    x, y = np.broadcast_arrays(input, target)
    return numpy_reduced(np.where(y == 1, x, np.maximum(margin - x, 0.0)), reduction)


@composite(
    oracle=_hinge_embedding_oracle,
    samples=_signed_samples({"margin": 0.5}),
    errors=_errors(),
    namespace="nn",
)
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean"
) -> Any:
    """`input` where the target is 1, `max(margin - input, 0)` where it is -1.

    >>> pb.nn.hinge_embedding_loss(pb.tensor([0.5, 0.2]), pb.tensor([1, -1]), reduction="none")
    tensor([0.5, 0.8], float32, cpu)
    """
    name = "hinge_embedding_loss"
    x, y = floating(name, input, target)
    broadcast_check(name, x, y)
    loss = where(y != 1.0, clip(margin - x, 0.0), 0.0) + where(y != -1.0, x, 0.0)
    return reduced(name, loss, reduction)


@composite(
    oracle=lambda input, target, *, reduction="mean": numpy_reduced(
        np.log1p(np.exp(-input * target)), reduction
    ),
    samples=_signed_samples(),
    errors=_errors(),
    namespace="nn",
)
def soft_margin_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """`log(1 + exp(-input * target))` of scores and signs.

    >>> pb.nn.soft_margin_loss(pb.tensor([0.0]), pb.tensor([1]))
    tensor(0.6931472, float32, cpu)
    """
    x, y = floating("soft_margin_loss", input, target)
    broadcast_check("soft_margin_loss", x, y)
    return reduced("soft_margin_loss", logaddexp(-x * y, 0.0), reduction)


def _ranked(d: Draw, *shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps = d.rng.integers(-2, 3, shape).astype(d.dtype)
    return away_from_kinks(d, *shape, scale=2.0), steps, _signs(d, *shape)


@composite(
    oracle=lambda input1, input2, target, margin=0.0, *, reduction="mean": numpy_reduced(
        np.maximum(-target * (input1 - input2) + margin, 0.0), reduction
    ),
    samples=lambda d: [
        Sample(_ranked(d, 3, 4)),
        Sample((*_ranked(d, 5), 0.5), {"reduction": "sum"}),
        Sample((*_ranked(d, 2, 3), 1.0), {"reduction": "none"}),
        Sample(_ranked(d, 0, 3), {"reduction": "sum"}),
    ],
    errors=_errors(count=3),
    namespace="nn",
)
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> Any:
    """`max(-target * (input1 - input2) + margin, 0)`: a target of 1 wants the first one larger.

    >>> pb.nn.margin_ranking_loss(pb.tensor([1.0]), pb.tensor([3.0]), pb.tensor([1]))
    tensor(2., float32, cpu)
    """
    name = "margin_ranking_loss"
    x1, x2, y = floating(name, input1, input2, target)
    broadcast_check(name, x1, x2, y)
    return reduced(name, clip(-y * (x1 - x2) + margin, 0.0), reduction)


# -- classes ---------------------------------------------------------------------------------------


def _batched(name: str, x: Any) -> Any:
    """Scores of shape (N, C), from these or from (C,)."""
    if x._aval.ndim not in (1, 2) or x._aval.shape[-1] == 0:
        raise ShapeError(f"{name}: expected scores (N, C) or (C,), got shape {x._aval.shape}.")
    return reshape(x, (-1, x._aval.shape[-1])) if x._aval.ndim == 1 else x


def _multi_margin_oracle(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, *,
    reduction: str = "mean",
) -> np.ndarray:  # fmt: skip
    rows, marks = np.atleast_2d(input), np.atleast_1d(target)
    out = np.zeros(len(rows), input.dtype)
    for n, (row, t) in enumerate(zip(rows, marks, strict=True)):
        for i, score in enumerate(row):
            if i != t:
                scale = 1.0 if weight is None else weight[t]
                out[n] += scale * max(0.0, margin - row[t] + score) ** p / len(row)
    return numpy_reduced(out if input.ndim == 2 else out[0], reduction)


def _multi_margin_errors(d: Draw) -> list[Bad]:
    x, t = d.real(2, 3), np.array([0, 1])
    return [
        Bad((d.real(2, 3, 1), t), {}, ShapeError, "expected scores"),
        Bad((x, np.array([0])), {}, ShapeError, "one class index for each row"),
        Bad((x, np.array([0, 3])), {}, IndexOutOfRange, "out of range"),
        Bad((x, np.array([0, -1])), {}, IndexOutOfRange, "out of range"),
        Bad((x, d.real(2)), {}, DTypeError, "class indices are integers"),
        Bad((x, t, 3), {}, ShapeError, "p is 1 or 2"),
        Bad((x, t, 1, 1.0, d.positive(2)), {}, ShapeError, "one weight for each"),
        Bad((x, t), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((np.ones((2, 3), complex), t), {}, DTypeError, "got complex128"),
    ]


@composite(
    oracle=_multi_margin_oracle,
    samples=lambda d: [
        Sample((d.distinct(3, 4), np.array([2, 0, 3]))),
        Sample((d.distinct(2, 3), np.array([2, 0]), 2, 0.5), {"reduction": "sum"}),
        Sample(
            (d.distinct(2, 3), np.array([2, 0])), {"weight": d.positive(3), "reduction": "none"}
        ),
        Sample((d.distinct(4), np.array(1)), {"reduction": "none"}),
        Sample((d.real(0, 3), np.zeros(0, np.int64)), {"reduction": "sum"}),
    ],
    errors=_multi_margin_errors,
    namespace="nn",
)
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    *,
    reduction: str = "mean",
) -> Any:
    """The sum over the other classes i of `max(margin - x[target] + x[i], 0)**p / C`.

    >>> pb.nn.multi_margin_loss(pb.tensor([[0.0, 0.5, 3.0]]), pb.tensor([2]))
    tensor(0., float32, cpu)
    """
    name = "multi_margin_loss"
    x, w = floating(name, input, weight)
    rows, target = _batched(name, x), as_array(target, name)
    if target._aval.shape != x._aval.shape[:-1]:
        raise ShapeError(
            f"{name}: expected one class index for each row, of shape {x._aval.shape[:-1]},"
            f" got {target._aval.shape}."
        )
    if p not in (1, 2):
        raise ShapeError(f"{name}: p is 1 or 2, got {p}.")
    classes = x._aval.shape[-1]
    if w is not None and w._aval.shape != (classes,):
        raise ShapeError(
            f"{name}: expected one weight for each of {classes} classes, got {w._aval.shape}."
        )
    index, _ = class_numbers(name, reshape(target, (-1,)), classes)
    own = reported_by(name, take_along_axis, rows, expand_dims(index, 1), axis=1)
    excess = above_zero(margin - own + rows)
    excess = excess if p == 1 else excess * excess
    others = positions(classes, x._aval.device) != expand_dims(index, 1)
    loss = sum(where(others, excess, 0.0), axis=1) / classes
    if w is not None:
        loss = loss * take(w, index, axis=0)
    return reduced(name, reshape(loss, target._aval.shape), reduction)


def _multilabel_margin_oracle(input: Any, target: Any, *, reduction: str = "mean") -> np.ndarray:
    rows, marks = np.atleast_2d(input), np.atleast_2d(target)
    out = np.zeros(len(rows), input.dtype)
    for n, (row, labels) in enumerate(zip(rows, marks, strict=True)):
        named = []
        for label in labels:
            if label < 0:
                break
            named.append(label)
        for j in named:
            for i in range(len(row)):
                if i not in named:
                    out[n] += max(0.0, 1.0 - (row[j] - row[i])) / len(row)
    return numpy_reduced(out if input.ndim == 2 else out[0], reduction)


@composite(
    oracle=_multilabel_margin_oracle,
    samples=lambda d: [
        Sample((d.distinct(3, 4), np.array([[3, 0, -1, 1], [0, 1, 2, 3], [-1, 1, 2, 3]]))),
        Sample((d.distinct(2, 3), np.array([[2, -1, -1], [0, 1, -1]])), {"reduction": "sum"}),
        Sample((d.distinct(2, 3), np.array([[2, -1, 0], [0, 1, -1]])), {"reduction": "none"}),
        Sample((d.distinct(4), np.array([1, 2, -1, -1])), {"reduction": "none"}),
        Sample((d.real(0, 3), np.zeros((0, 3), np.int64)), {"reduction": "sum"}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), np.zeros((2, 2), int)), {}, ShapeError, "shape of the input"),
        Bad((d.real(2, 3, 1), np.zeros((2, 3, 1), int)), {}, ShapeError, "expected scores"),
        Bad((d.real(3), np.array([3, 0, -1])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), d.real(3)), {}, DTypeError, "class indices are integers"),
        Bad((d.real(3), np.array([0, -1, -1])), {"reduction": "max"}, DTypeError, "reduction"),
        Bad((np.ones(3, complex), np.array([0, -1, -1])), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def multilabel_margin_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """The sum of `max(1 - x[j] + x[i], 0) / C` over labels j and the classes i that are none.

    A row of targets lists its labels, up to the first -1.

    >>> pb.nn.multilabel_margin_loss(pb.tensor([[0.5, 1.0, 2.0]]), pb.tensor([[2, -1, 0]]))
    tensor(0., float32, cpu)
    """
    name = "multilabel_margin_loss"
    (x,) = floating(name, input)
    rows, target = _batched(name, x), as_array(target, name)
    if target._aval.shape != x._aval.shape:
        raise ShapeError(
            f"{name}: the target must have the shape of the input, {x._aval.shape},"
            f" got {target._aval.shape}."
        )
    marks = reshape(target, rows._aval.shape)
    index, _ = class_numbers(name, marks, x._aval.shape[-1])
    listed = cumsum(astype(marks < 0, index._aval.dtype), axis=1) == 0
    index = where(listed, index, 0)
    own = reported_by(name, take_along_axis, rows, index, axis=1)
    run = _fused_excesses if rows._aval.size * x._aval.shape[-1] >= LARGE else _excesses
    loss = run(rows, own, index, listed) / x._aval.shape[-1]
    return reduced(name, reshape(loss, x._aval.shape[:-1]), reduction)


def _excesses(rows: Any, own: Any, index: Any, listed: Any) -> Any:
    """The sums over labels and other classes, of (N, C, C) terms, for each row."""
    classes = positions(rows._aval.shape[1], rows._aval.device)
    labels = expand_dims(listed, 2)
    others = ~any_((expand_dims(index, 2) == classes) & labels, axis=1, keepdims=True)
    excess = above_zero(1.0 - expand_dims(own, 2) + expand_dims(rows, 1))
    return sum(where(labels & others, excess, 0.0), axis=(1, 2))


_fused_excesses = fused(_excesses)


def _multilabel_soft_oracle(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> np.ndarray:
    p = 1.0 / (1.0 + np.exp(-input))
    loss = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    return numpy_reduced((loss if weight is None else loss * weight).mean(-1), reduction)


@composite(
    oracle=_multilabel_soft_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.positive(2, 3, low=0.1, high=0.9))),
        Sample((d.real(2, 3), np.array([[1, 0, 1], [0, 0, 1]]), d.positive(3))),
        Sample((d.real(3), np.array([1, 0, 1])), {"reduction": "sum"}),
        Sample((d.real(2, 3), np.array([[1, 0, 1], [0, 0, 1]])), {"reduction": "none"}),
        Sample((d.real(0, 3), d.positive(0, 3)), {"reduction": "sum"}),
    ],
    errors=_errors(Bad((np.float64(1), np.float64(1)), {}, ShapeError, "axis of classes")),
    namespace="nn",
)
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """The mean over the last axis, the classes, of the binary cross entropy of `sigmoid(input)`.

    >>> pb.nn.multilabel_soft_margin_loss(pb.tensor([[0.0, 0.0]]), pb.tensor([[1, 0]]))
    tensor(0.6931472, float32, cpu)
    """
    name = "multilabel_soft_margin_loss"
    x, y, w = floating(name, input, target, weight)
    if not broadcast_check(name, x, y, w):
        raise ShapeError(f"{name}: the input has no axis of classes, got a 0-d array.")
    loss = (1.0 - y) * x + logaddexp(-x, 0.0)
    loss = loss if w is None else loss * w
    return reduced(name, sum(loss, axis=-1) / loss._aval.shape[-1], reduction)
