"""Losses of yes and no: binary cross entropies, focal and dice losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import (
    broadcast_check,
    floating,
    numpy_reduced,
    reduced,
    when_large,
    wide,
)
from pullback.ops.exponential import log, log1p
from pullback.ops.families import composite
from pullback.ops.parts import astype
from pullback.ops.reductions import sum
from pullback.ops.selection import where
from pullback.ops.special import logaddexp, sigmoid

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "dice_loss", "sigmoid_focal_loss",
]  # fmt: skip


def _binary_errors(*more: Bad) -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(2), d.real(3)), {}, ShapeError, "must have the shape"),
        Bad((d.real(2), d.real(2)), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((d.real(2), np.ones(2, complex)), {}, DTypeError, "got complex128"),
        *more,
    ]


def _same_shapes(name: str, x: Any, y: Any) -> None:
    if x._aval.shape != y._aval.shape:
        raise ShapeError(
            f"{name}: the target must have the shape of the input, {x._aval.shape},"
            f" got {y._aval.shape}."
        )


def _shares(d: Draw, *shape: int) -> np.ndarray:
    return d.positive(*shape, low=0.1, high=0.9)


def _bce_oracle(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(input), -100.0), np.maximum(np.log1p(-input), -100.0)
    loss = -(target * logs[0] + (1.0 - target) * logs[1])
    return numpy_reduced(loss if weight is None else loss * weight, reduction)


LEAST_LOG = -100.0  # what PyTorch takes for smaller logarithms
LEAST = 3.8e-44  # about exp(-100)


def _cut_log(x: Any, of: Callable[[Any], Any], zero: Any) -> Any:
    """A logarithm that is not below -100, nor has a derivative there."""
    low = zero <= LEAST
    return where(low, LEAST_LOG, of(where(low, 0.5, x)))


@composite(
    oracle=_bce_oracle,
    samples=lambda d: [
        Sample((_shares(d, 2, 3), _shares(d, 2, 3))),
        Sample((_shares(d, 2, 3), _shares(d, 2, 3), d.positive(3)), {"reduction": "sum"}),
        Sample((_shares(d, 4), np.array([0, 1, 1, 0])), {"reduction": "none"}),
        Sample((np.array([0, 1, 0, 1], d.dtype), np.array([0, 1, 1, 0], d.dtype)), order=0),
        Sample((_shares(d, 0, 3), _shares(d, 0, 3)), {"reduction": "sum"}),
    ],
    errors=_binary_errors(
        Bad((np.ones(2), np.ones(2), np.ones(3)), {}, ShapeError, "do not broadcast")
    ),
    namespace="nn",
)
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """`-(target * log(input) + (1 - target) * log(1 - input))` of probabilities.

    The logarithms are at least -100, and constant where they would be less.

    >>> pb.nn.binary_cross_entropy(pb.tensor([0.5]), pb.tensor([1.0]))
    tensor(0.6931472, float32, cpu)
    """
    x, y, w = floating("binary_cross_entropy", input, target, weight)
    _same_shapes("binary_cross_entropy", x, y)
    broadcast_check("binary_cross_entropy", x, w)
    yes, no = _cut_log(x, log, x), _cut_log(x, lambda p: log1p(-p), 1.0 - x)
    loss = (y - 1.0) * no - y * yes
    return reduced("binary_cross_entropy", loss if w is None else loss * w, reduction)


def _logits_oracle(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> np.ndarray:
    yes, no = -np.logaddexp(0.0, -input), -np.logaddexp(0.0, input)
    loss = -((1.0 if pos_weight is None else pos_weight) * target * yes + (1.0 - target) * no)
    return numpy_reduced(loss if weight is None else loss * weight, reduction)


@composite(
    oracle=_logits_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), _shares(d, 2, 3))),
        Sample((d.real(2, 3), _shares(d, 2, 3), d.positive(2, 1)), {"reduction": "sum"}),
        Sample(
            (d.real(2, 3), _shares(d, 2, 3)), {"reduction": "none", "pos_weight": d.positive(3)}
        ),
        Sample((np.array([800.0, -800.0]), np.array([0.0, 1.0])), order=1),
        Sample((d.real(0, 3), _shares(d, 0, 3)), {"reduction": "sum"}),
    ],
    errors=_binary_errors(
        Bad((np.ones(2), np.ones(2)), {"pos_weight": np.ones(3)}, ShapeError, "do not broadcast")
    ),
    namespace="nn",
)
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """The binary cross entropy of `sigmoid(input)`; `pos_weight` scales the positive part.

    >>> pb.nn.binary_cross_entropy_with_logits(pb.tensor([0.0]), pb.tensor([1.0]))
    tensor(0.6931472, float32, cpu)
    """
    name = "binary_cross_entropy_with_logits"
    x, y, w, positive = floating(name, input, target, weight, pos_weight)
    _same_shapes(name, x, y)
    broadcast_check(name, x, w, positive)
    loss = _logits_loss(x, y, positive)
    return reduced(name, loss if w is None else loss * w, reduction)


@when_large
def _logits_loss(x: Any, y: Any, positive: Any = None) -> Any:
    surprise = logaddexp(-x, 0.0)
    if positive is not None:
        surprise = surprise * ((positive - 1.0) * y + 1.0)
    return (1.0 - y) * x + surprise


def _sigmoid_focal_oracle(
    inputs: Any, targets: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> np.ndarray:
    out = np.zeros(inputs.shape, inputs.dtype)
    for place in np.ndindex(inputs.shape):
        p, t = 1.0 / (1.0 + np.exp(-inputs[place])), targets[place]
        entropy = -(t * np.log(p) + (1 - t) * np.log(1 - p))
        out[place] = entropy * (p * (1 - t) + (1 - p) * t) ** gamma
        if alpha >= 0:
            out[place] *= alpha * t + (1 - alpha) * (1 - t)
    return numpy_reduced(out, reduction)


@composite(
    oracle=_sigmoid_focal_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), _shares(d, 2, 3))),
        Sample((d.real(4), np.array([0, 1, 1, 0])), {"gamma": 1.5, "reduction": "mean"}),
        Sample((d.real(4), _shares(d, 4)), {"alpha": -1.0, "gamma": 0.0, "reduction": "sum"}),
        Sample((d.real(0, 3), _shares(d, 0, 3))),
    ],
    errors=_binary_errors(),
    namespace="nn",
)
def sigmoid_focal_loss(
    inputs: Any, targets: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Any:
    """The binary cross entropy of `sigmoid(inputs)` times `(1 - p)**gamma`, p being what is right.

    `alpha` weighs targets 1, and `1 - alpha` targets 0; a negative one weighs nothing.

    >>> pb.nn.sigmoid_focal_loss(pb.tensor([0.0]), pb.tensor([1.0]))
    tensor([0.0433217], float32, cpu)
    """
    x, y = floating("sigmoid_focal_loss", inputs, targets)
    _same_shapes("sigmoid_focal_loss", x, y)
    wrong = sigmoid(x) * (1.0 - y) + sigmoid(-x) * y
    loss = _logits_loss(x, y) * wrong**gamma
    if alpha >= 0:
        loss = loss * (y * alpha + (1.0 - y) * (1.0 - alpha))
    return reduced("sigmoid_focal_loss", loss, reduction)


def _dice_oracle(
    input: Any, target: Any, smooth: float = 1.0, reduction: str = "mean"
) -> np.ndarray:
    losses = []
    for x, y in zip(input, target, strict=True):
        losses.append(1 - (2 * (x * y).sum() + smooth) / (x.sum() + y.sum() + smooth))
    return numpy_reduced(np.asarray(losses, input.dtype), reduction)


@composite(
    oracle=_dice_oracle,
    samples=lambda d: [
        Sample((_shares(d, 2, 3), _shares(d, 2, 3))),
        Sample((_shares(d, 2, 2, 2), _shares(d, 2, 2, 2), 0.1), {"reduction": "sum"}),
        Sample((_shares(d, 3), np.array([0, 1, 1])), {"reduction": "none"}),
        Sample((_shares(d, 0, 3), _shares(d, 0, 3)), {"reduction": "sum"}),
    ],
    errors=_binary_errors(
        Bad((np.float64(1), np.float64(1)), {}, ShapeError, "at least one dimension")
    ),
    namespace="nn",
)
def dice_loss(input: Any, target: Any, smooth: float = 1.0, reduction: str = "mean") -> Any:
    """`1 - (2 * sum(x * y) + smooth) / (sum(x) + sum(y) + smooth)` for each element of the batch.

    >>> pb.nn.dice_loss(pb.tensor([[1.0, 0.0]]), pb.tensor([[1.0, 0.0]]))
    tensor(0., float32, cpu)
    """
    x, y = floating("dice_loss", input, target)
    _same_shapes("dice_loss", x, y)
    if x._aval.ndim == 0:
        raise ShapeError("dice_loss: arrays need at least one dimension, the batch, got 0-d.")
    axes = tuple(range(1, x._aval.ndim))
    shared, both = sum(wide(x * y), axis=axes), sum(wide(x + y), axis=axes)
    loss = 1.0 - (shared * 2.0 + smooth) / (both + smooth)
    return reduced("dice_loss", astype(loss, x._aval.dtype), reduction)
