"""Losses of classes: negative log-likelihood, cross entropy, focal loss."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, to_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import (
    channel_axis,
    class_numbers,
    floating,
    numpy_reduced,
    option,
    ratio_of_sums,
    reduced,
    reported_by,
)
from pullback.nn.gates import log_probabilities
from pullback.nn.standardising import numpy_first
from pullback.ops.arrangement import expand_dims
from pullback.ops.exponential import expm1
from pullback.ops.families import composite
from pullback.ops.gather_scatter import gather
from pullback.ops.indexing import take
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.ranges import positions
from pullback.ops.reductions import sum
from pullback.ops.requirements import require
from pullback.ops.selection import where

__all__ = ["cross_entropy", "cross_entropy_by_numpy", "focal_loss", "nll_loss"]


# -- class indices ---------------------------------------------------------------------------------


def _axis_of_classes(name: str, x: Any, layout: str) -> int:
    """The axis of the classes: where channels are, or 0 where there is no batch."""
    if x._aval.ndim == 0:
        raise ShapeError(f"{name}: expected (C,), (N, C) or (N, C, ...), got a 0-d array.")
    return channel_axis(name, x, layout, min(1, x._aval.ndim - 1))


def _class_weights(name: str, weight: Any, classes: int) -> None:
    if weight is not None and weight._aval.shape != (classes,):
        raise ShapeError(
            f"{name}: expected one weight for each of {classes} classes,"
            f" got shape {weight._aval.shape}."
        )


def _checked_target(name: str, x: Any, target: Any, axis: int) -> None:
    shape = x._aval.shape
    expected = shape[:axis] + shape[axis + 1 :]
    if target._aval.shape != expected:
        raise ShapeError(
            f"{name}: class indices for an input of shape {shape} have the shape {expected},"
            f" got {target._aval.shape}."
        )


def _hint(classes: int) -> str:
    return f"there are {classes} classes. Targets that do not count equal ignore_index."


class Picked:
    """What the classes named by a target pick out of arrays over the classes."""

    def __init__(self, name: str, x: Any, target: Any, weight: Any, ignore_index: int, layout: str):
        self.name = name
        self.axis = _axis_of_classes(name, x, layout)
        _checked_target(name, x, target, self.axis)
        self.shape, self.dtype = x._aval.shape, x._aval.dtype
        if self.shape[self.axis] == 0 and target._aval.size:
            raise ShapeError(f"{name}: there are no classes, got an input of shape {self.shape}.")
        _class_weights(name, weight, self.shape[self.axis])
        classes = self.shape[self.axis]
        self.index, self.counts = class_numbers(name, target, classes, ignore_index)
        if x._aval.device.runtime.names_classes:
            fits, fact = self.index < classes, f"is out of range, {_hint(classes)}"
            self.index = require(self.index, fits, name, fact, "the class", "IndexOutOfRange")
        self.weight, self.target, self.ignored = weight, target, ignore_index

    def of(self, x: Any) -> Any:
        """The elements of `x` at the target's classes.

        If rows of classes lie together they are read row by row; else from the flat array, so that
        they and their derivatives keep the order of memory.
        """
        classes, dev = self.shape[self.axis], x._aval.device
        inner = prod(self.shape[self.axis + 1 :])
        outer = positions(prod(self.shape[: self.axis]), dev)
        try:
            if inner == 1:
                table = reshape(x, (outer._aval.size, classes))
                rows = gather(table, outer, reshape(self.index, outer._aval.shape))
                return reshape(rows, self.index._aval.shape)
            base = expand_dims(outer * (classes * inner), 1) + positions(inner, dev)
            places = reshape(base, self.index._aval.shape) + self.index * inner
            places = where(self.index < classes, places, prod(self.shape))
            return take(reshape(x, (prod(self.shape),)), places, axis=0)
        except IndexOutOfRange:
            target = to_numpy(self.target)
            bad = (target != self.ignored) & ((target < 0) | (target >= classes))
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise IndexOutOfRange(
                f"{self.name}: class {target[place]} at target{list(place)} is out of range,"
                f" {_hint(classes)}"
            ) from None

    def weights(self) -> Any:
        """The weight of each target, 0 where it is ignored."""
        if self.weight is None:
            return astype(self.counts, self.dtype)
        own = reported_by(self.name, take, self.weight, self.index, axis=0)
        return where(self.counts, own, 0.0)

    def reduced(self, loss: Any, reduction: str) -> Any:
        """The weighted losses, their sum, or their sum over the sum of the weights."""
        option(self.name, "reduction", reduction, ("none", "mean", "sum"))
        weights = self.weights()
        loss = where(self.counts, loss, 0.0) * weights
        if reduction == "none":
            return loss
        return ratio_of_sums(loss, weights) if reduction == "mean" else sum(loss)


def _numpy_nll(
    logs: np.ndarray, target: np.ndarray, weight: Any, ignore_index: int, smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    """The weighted losses and the weights, place by place."""
    rows = logs if logs.ndim == 1 else np.moveaxis(logs, 1, -1)
    classes = rows.shape[-1]
    weight = np.ones(classes) if weight is None else weight
    loss, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        t = target[place]
        if t != ignore_index:
            spread = -(rows[place] * weight).sum() / classes
            weights[place] = weight[t]
            loss[place] = -(1 - smoothing) * weight[t] * rows[place][t] + smoothing * spread
    return loss, weights


def _finished(loss: np.ndarray, weights: np.ndarray, reduction: str, dtype: Any) -> np.ndarray:
    if reduction == "mean":
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(loss.sum() / weights.sum()).astype(dtype)
    return numpy_reduced(loss, reduction).astype(dtype)


def _nll_oracle(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100,
    reduction: str = "mean", layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    input = numpy_first(input, layout)
    loss, weights = _numpy_nll(input, target, weight, ignore_index, 0.0)
    return _finished(loss, weights, reduction, input.dtype)


def _index_samples(d: Draw) -> list[Sample]:
    t = np.array([2, 0, 1, 2])
    return [
        Sample((d.real(4, 3), t)),
        Sample((d.real(4, 3), t, d.positive(3)), {"ignore_index": 0}),
        Sample((d.real(2, 3, 2), t.reshape(2, 2)), {"reduction": "sum"}),
        Sample((d.real(2, 3, 1, 2), np.array([[[2, -100]], [[0, 1]]])), {"reduction": "none"}),
        Sample((d.real(3), np.array(1)), {"reduction": "none"}),
        Sample((d.real(2, 2, 3), t.reshape(2, 2), d.positive(3)), {"layout": "channels_last"}),
        Sample((d.real(4, 3), t, d.positive(3)), {"reduction": "none"}),
        Sample((d.real(2, 3), np.array([-100, -100])), order=0),
        Sample((d.real(0, 3), np.zeros(0, np.int64)), {"reduction": "sum"}),
    ]


def _index_errors(d: Draw) -> list[Bad]:
    t = np.array([0, 1])
    return [
        Bad((d.real(2, 3), np.array([0, 3])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2, 3), np.array([0, -1])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2, 3), np.array([0, 1, 2])), {}, ShapeError, "have the shape (2,)"),
        Bad((d.real(), np.array(0)), {}, ShapeError, "got a 0-d array"),
        Bad((d.real(2, 0), np.array([-100, -100])), {}, ShapeError, "there are no classes"),
        Bad((d.real(2, 3), t, d.positive(2)), {}, ShapeError, "one weight for each of 3 classes"),
        Bad((d.real(2, 3), t), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((d.real(2, 3), t), {"layout": "NHWC"}, DTypeError, "layout is one of"),
        Bad((np.ones((2, 3), complex), t), {}, DTypeError, "got complex128"),
    ]


@composite(
    oracle=_nll_oracle,
    samples=_index_samples,
    errors=lambda d: [
        *_index_errors(d),
        Bad((d.real(2, 3), d.real(2)), {}, DTypeError, "class indices are integers"),
    ],
    namespace="nn",
)
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    layout: str = "channels_first",
) -> Any:
    """`-weight[t] * input[t]` of log-probabilities (N, C, ...) and class indices t (N, ...).

    The mean is over the sum of the weights. Targets equal to `ignore_index` do not count.

    >>> pb.nn.nll_loss(pb.log(pb.tensor([[0.5, 0.5]])), pb.tensor([1]))
    tensor(0.6931472, float32, cpu)
    """
    x, w = floating("nll_loss", input, weight)
    picked = Picked("nll_loss", x, as_array(target, "nll_loss"), w, ignore_index, layout)
    return picked.reduced(-picked.of(x), reduction)


# -- cross entropy ---------------------------------------------------------------------------------


def cross_entropy_by_numpy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    layout: str = "channels_first",
) -> np.ndarray:
    input, axis = numpy_first(input, layout), min(1, input.ndim - 1)
    top = input.max(axis, keepdims=True) if input.size else 0.0
    logs = input - top - np.log(np.exp(input - top).sum(axis, keepdims=True))
    if target.dtype.kind in "iu":
        loss, weights = _numpy_nll(logs, target, weight, ignore_index, label_smoothing)
        return _finished(loss, weights, reduction, input.dtype)
    target, classes = numpy_first(target, layout), input.shape[axis]
    shares = target * (1 - label_smoothing) + label_smoothing / classes
    shape = (classes,) + (1,) * (input.ndim - 1 - axis)
    scale = 1.0 if weight is None else weight.reshape(shape)
    return numpy_reduced(-(logs * shares * scale).sum(axis), reduction)


@composite(
    oracle=cross_entropy_by_numpy,
    samples=lambda d: [
        *_index_samples(d),
        Sample((d.real(4, 3), np.array([2, 0, -100, 2]), d.positive(3)), {"label_smoothing": 0.2}),
        Sample(
            (d.real(2, 3, 2), np.array([[2, 0], [1, 1]]), d.positive(3)),
            {"label_smoothing": 0.1, "reduction": "none"},
        ),
        Sample((d.real(4, 3), np.array([2, 0, 7, 2])), {"label_smoothing": 0.3, "ignore_index": 7}),
        Sample((d.real(2, 3), d.positive(2, 3))),
        Sample((d.real(2, 3, 2), d.positive(2, 3, 2), d.positive(3)), {"reduction": "sum"}),
        Sample((d.real(3), d.positive(3)), {"label_smoothing": 0.2, "reduction": "none"}),
        Sample(
            (d.real(2, 2, 3), d.positive(2, 2, 3), d.positive(3)),
            {"label_smoothing": 0.2, "layout": "channels_last"},
        ),
    ],
    errors=lambda d: [
        *_index_errors(d),
        Bad((d.real(2, 3), d.real(2)), {}, ShapeError, "probabilities"),
        Bad((d.real(2, 3), np.array([0, 1])), {"label_smoothing": 2.0}, ShapeError, "in [0, 1]"),
    ],
    namespace="nn",
)
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    layout: str = "channels_first",
) -> Any:
    """The negative log-likelihood of targets under `softmax(input)` along the classes.

    Targets are class indices (N, ...) or probabilities (N, C, ...) for an input (N, C, ...), whose
    classes come last with `layout="channels_last"`.
    `label_smoothing` mixes so much of the uniform distribution into the target.

    >>> pb.nn.cross_entropy(pb.tensor([[0.0, 0.0]]), pb.tensor([1]))
    tensor(0.6931472, float32, cpu)
    """
    name = "cross_entropy"
    target = as_array(target, name)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ShapeError(f"{name}: label_smoothing must be in [0, 1], got {label_smoothing}.")
    if not target._aval.dtype.is_integer:
        return _with_probabilities(input, target, weight, reduction, label_smoothing, layout)
    x, w = floating(name, input, weight)
    picked = Picked(name, x, target, w, ignore_index, layout)
    logs = log_probabilities(x, picked.axis)
    loss = picked.reduced(-picked.of(logs), reduction)
    if not label_smoothing:
        return loss
    uniform = _smooth_part(picked, logs, reduction) / x._aval.shape[picked.axis]
    return loss * (1.0 - label_smoothing) + uniform * label_smoothing


def _along_classes(weight: Any, x: Any, axis: int) -> Any:
    return reshape(weight, (-1,) + (1,) * (x._aval.ndim - 1 - axis))


def _smooth_part(picked: Picked, logs: Any, reduction: str) -> Any:
    """The losses of all classes together; their mean is over the weights of the targets."""
    w = picked.weight
    scaled = logs if w is None else logs * _along_classes(w, logs, picked.axis)
    loss = where(picked.counts, -sum(scaled, axis=picked.axis), 0.0)
    if reduction == "none":
        return loss
    return ratio_of_sums(loss, picked.weights()) if reduction == "mean" else sum(loss)


def _with_probabilities(
    input: Any, target: Any, weight: Any, reduction: str, smoothing: float, layout: str
) -> Any:
    name = "cross_entropy"
    x, y, w = floating(name, input, target, weight)
    axis = _axis_of_classes(name, x, layout)
    if y._aval.shape != x._aval.shape:
        raise ShapeError(
            f"{name}: probabilities must have the shape of the input, {x._aval.shape},"
            f" got {y._aval.shape}. Class indices are integers."
        )
    classes = x._aval.shape[axis]
    _class_weights(name, w, classes)
    if smoothing:
        y = y * (1.0 - smoothing) + smoothing / classes
    terms = log_probabilities(x, axis) * y
    terms = terms if w is None else terms * _along_classes(w, x, axis)
    return reduced(name, -sum(terms, axis=axis), reduction)


# -- focal loss ------------------------------------------------------------------------------------


def _focal_oracle(
    input: Any, target: Any, weight: Any = None, *, gamma: float = 2.0, ignore_index: int = -100,
    reduction: str = "mean", layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    input, axis = numpy_first(input, layout), min(1, input.ndim - 1)
    shares = np.exp(input) / np.exp(input).sum(axis, keepdims=True)
    scaled = (1.0 - shares) ** gamma * np.log(shares)
    loss, weights = _numpy_nll(scaled, target, weight, ignore_index, 0.0)
    return _finished(loss, weights, reduction, input.dtype)


@composite(
    oracle=_focal_oracle,
    samples=lambda d: [
        *_index_samples(d),
        Sample((d.real(4, 3), np.array([2, 0, 1, 2])), {"gamma": 1.5}),
        Sample((d.real(4, 3), np.array([2, 0, 1, 2])), {"gamma": 0.0}),
    ],
    errors=_index_errors,
    namespace="nn",
)
def focal_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    gamma: float = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    layout: str = "channels_first",
) -> Any:
    """The cross entropy of class indices, each times `(1 - p)**gamma` of its probability p.

    >>> pb.nn.focal_loss(pb.tensor([[0.0, 0.0]]), pb.tensor([1]))
    tensor(0.1732868, float32, cpu)
    """
    x, w = floating("focal_loss", input, weight)
    picked = Picked("focal_loss", x, as_array(target, "focal_loss"), w, ignore_index, layout)
    log_p = picked.of(log_probabilities(x, picked.axis))
    return picked.reduced(-log_p * (-expm1(log_p)) ** gamma, reduction)
