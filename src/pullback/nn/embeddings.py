"""Rows of a table by index, one by one or in bags; and indices as one-hot vectors.

Indices below zero count from the end, as everywhere in pullback, except in `one_hot`.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, to_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import class_numbers, detached, floating, inexact, option, reported_by
from pullback.nn.distances import norm
from pullback.ops.arrangement import expand_dims
from pullback.ops.creation import constant
from pullback.ops.cumulative import cumulative_sum
from pullback.ops.extrema import max
from pullback.ops.families import composite
from pullback.ops.indexing import as_indices, take
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.reductions import sum
from pullback.ops.requirements import require
from pullback.ops.scattering import put_along_axis, scatter
from pullback.ops.segments import segment_sum
from pullback.ops.selection import clip, where

__all__ = ["embedding", "embedding_bag", "one_hot"]


# -- one-hot vectors -------------------------------------------------------------------------------


def _one_hot_oracle(tensor: Any, num_classes: int = -1) -> np.ndarray:
    classes = num_classes if num_classes >= 0 else int(tensor.max()) + 1
    return (tensor[..., None] == np.arange(classes)).astype(np.int64)


@composite(
    oracle=_one_hot_oracle,
    samples=lambda d: [
        Sample((d.integers(2, 3, high=4), 5)),
        Sample((d.integers(4, high=3),)),
        Sample((d.integers(high=3),), {"num_classes": 3}),
        Sample((np.zeros((0, 2), np.int64), 3)),
    ],
    errors=lambda d: [
        Bad((np.array([0, 3]), 3), {}, IndexOutOfRange, "out of range"),
        Bad((np.array([0, -1]), 3), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2), 3), {}, DTypeError, "class indices are integers"),
        Bad((np.array([0, 1]), 0), {}, ShapeError, "num_classes must be positive"),
        Bad((np.zeros(0, np.int64),), {}, ShapeError, "num_classes must be given"),
    ],
    namespace="nn",
    differentiable=False,
)
def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """The int64 array (..., C) with a 1 at each class index; -1 counts classes up to the largest.

    >>> pb.nn.one_hot(pb.tensor([0, 2]))
    tensor([[1, 0, 0],
            [0, 0, 1]], int64, cpu)
    """
    x = as_array(tensor, "one_hot")
    if num_classes == -1:
        num_classes = _largest(x) + 1
    if num_classes <= 0:
        raise ShapeError(f"one_hot: num_classes must be positive or -1, got {num_classes}.")
    index, _ = class_numbers("one_hot", x, num_classes)
    zeros = constant(0, (*x._aval.shape, num_classes), dt.int64, x._aval.device)
    return reported_by("one_hot", put_along_axis, zeros, expand_dims(index, -1), 1)


def _largest(x: Any) -> int:
    if x._aval.is_symbolic:
        raise DTypeError(
            "one_hot: the number of classes depends on values, which a traced array does not have"
            " yet. Pass num_classes."
        )
    if x._aval.size == 0:
        raise ShapeError("one_hot: num_classes must be given for an empty array.")
    return int(to_numpy(x).max())


# -- rows ------------------------------------------------------------------------------------------


def _table(name: str, weight: Any) -> Any:
    (table,) = inexact(name, weight)
    if table._aval.ndim != 2:
        raise ShapeError(f"{name}: the weight is a matrix of rows, got shape {table._aval.shape}.")
    return table


def _padding(name: str, padding_idx: int | None, rows: int) -> int | None:
    """The number of the padding row, from the front."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"{name}: padding_idx must name one of {rows} rows, got {padding_idx}.")
    return padding_idx % rows


def _is_row(index: Any, row: int, rows: int) -> Any:
    return (index == row) | (index == row - rows)


def _looked_up(
    name: str, table: Any, index: Any, max_norm: float | None, norm_type: float, by_frequency: bool
) -> Any:
    """The rows at indices, shortened to `max_norm`, with derivatives divided by how often each
    occurs.
    """
    rows = reported_by(name, take, table, index, axis=0)
    if by_frequency:
        scaled = rows / _occurrences(table, index, rows)
        rows = detached(rows) + (scaled - detached(scaled))
    if max_norm is not None:
        size = norm(name, rows, norm_type, -1, keepdims=True)
        long = size > max_norm
        rows = rows * where(long, max_norm / (where(long, size, 1.0) + 1e-7), 1.0)
    return rows


def _occurrences(table: Any, index: Any, rows: Any) -> Any:
    """How often the row of each index is looked up."""
    count, flat = table._aval.shape[0], reshape(index, (-1,))
    flat = where(flat < 0, flat + count, flat)
    ones = constant(1, flat._aval.shape, rows._aval.dtype.real, rows._aval.device)
    times = take(segment_sum(ones, flat, count), flat, axis=0)
    return reshape(times, (*index._aval.shape, 1))


def _numpy_rows(weight: Any, index: Any, max_norm: float | None, norm_type: float) -> np.ndarray:
    rows = weight[index]
    if max_norm is not None:
        for place in np.ndindex(index.shape):
            size = (np.abs(rows[place]) ** norm_type).sum() ** (1.0 / norm_type)
            if size > max_norm:
                rows[place] *= max_norm / (size + 1e-7)
    return rows


def _embedding_oracle(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> np.ndarray:  # fmt: skip
    return _numpy_rows(weight, input, max_norm, norm_type)


@composite(
    oracle=_embedding_oracle,
    samples=lambda d: [
        Sample((np.array([[1, 0], [1, 3]]), d.real(4, 2))),
        Sample((np.array([2, -1, 2]), d.real(4, 2)), {"max_norm": 1.0}),
        Sample((np.array([2, 1]), d.positive(3, 2)), {"max_norm": 1.5, "norm_type": 1.0}),
        Sample((np.array(2), d.real(3, 2))),
        Sample((np.array([2, 0, 0]), d.real(3, 2)), {"padding_idx": 0}, order=0),
        Sample((np.array([2, 0, 0]), d.real(3, 2)), {"scale_grad_by_freq": True}, order=0),
        Sample((np.zeros((0, 2), np.int64), d.real(3, 2))),
    ],
    errors=lambda d: [
        Bad((np.array([4]), d.real(4, 2)), {}, IndexOutOfRange, "out of range"),
        Bad((np.array([-5]), d.real(4, 2)), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2), d.real(4, 2)), {}, DTypeError, "integers"),
        Bad((np.array([0]), d.real(4)), {}, ShapeError, "a matrix of rows"),
        Bad((np.array([0]), d.real(4, 2)), {"padding_idx": 4}, ShapeError, "padding_idx"),
    ],
    namespace="nn",
)
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Any:
    """The rows of `weight` at the indices `input`.

    The row `padding_idx` gets no derivative. Rows longer than `max_norm` come out shortened to it:
    the table itself stays as it is, and derivatives go through the shortening. With
    `scale_grad_by_freq` the derivative of a row is divided by how often it is looked up.

    >>> pb.nn.embedding(pb.tensor([1, 1, 0]), pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [3., 4.],
            [1., 2.]], float32, cpu)
    """
    table = _table("embedding", weight)
    index = as_indices("embedding", input, table._aval.device, table._aval.shape[0])
    count = table._aval.shape[0]
    padding = _padding("embedding", padding_idx, count)
    rows = _looked_up("embedding", table, index, max_norm, norm_type, scale_grad_by_freq)
    if padding is None:
        return rows
    return where(expand_dims(_is_row(index, padding, count), -1), detached(rows), rows)


# -- bags ------------------------------------------------------------------------------------------


def _bag_oracle(
    input: Any, weight: Any, offsets: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", *, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: Any = None,
) -> np.ndarray:  # fmt: skip
    flat = input.reshape(-1)
    rows = _numpy_rows(weight, flat, max_norm, norm_type)
    if offsets is None:
        bounds = [i * input.shape[1] for i in range(input.shape[0] + 1)]
    else:
        bounds = [*offsets.tolist(), *([] if include_last_offset else [len(flat)])]
    out = np.zeros((len(bounds) - 1, weight.shape[1]), weight.dtype)
    for bag, (start, stop) in enumerate(pairwise(bounds)):
        own = [
            rows[i] * (1.0 if per_sample_weights is None else per_sample_weights.reshape(-1)[i])
            for i in range(start, stop)
            if padding_idx is None or flat[i] != padding_idx % len(weight)
        ]
        if own:
            out[bag] = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode](own, axis=0)
    return out


def _bag_samples(d: Draw) -> list[Sample]:
    i, starts = np.array([1, 0, 3, 3, 2, 1]), np.array([0, 2, 2, 5])
    table = d.distinct(4, 2)
    plain = [
        Sample((i, table, starts), {"mode": m})
        for m in ("mean", "sum", "max")
        if m != "max" or d.dtype.kind != "c"
    ]
    return [
        *plain,
        Sample((i.reshape(2, 3), table), {"mode": "sum", "per_sample_weights": d.real(2, 3)}),
        Sample((i, table, starts), {"mode": "sum", "per_sample_weights": d.real(6)}),
        Sample((i.reshape(3, 2), table), {"padding_idx": -1}),
        Sample((i, table, np.array([0, 1, 6])), {"include_last_offset": True, "padding_idx": 0}),
        Sample((i[:4].reshape(2, 2), table), {"max_norm": 0.3, "norm_type": 1.0}),
        Sample((i, table, starts), {"mode": "sum", "scale_grad_by_freq": True}, order=0),
        Sample((np.zeros((0, 2), np.int64), table), {"mode": "sum"}),
        Sample((np.zeros((2, 0), np.int64), table)),
    ]


def _bag_errors(d: Draw) -> list[Bad]:
    i, table, starts = np.array([1, 0, 3]), d.real(4, 2), np.array([0, 2])
    sum_mode = {"mode": "sum"}
    return [
        Bad((np.array([4]), table, starts[:1]), {}, IndexOutOfRange, "out of range"),
        Bad((i, table), {}, ShapeError, "offsets"),
        Bad((i.reshape(1, 3), table, starts), {}, ShapeError, "offsets"),
        Bad((i, table, np.array([1, 2])), {}, ShapeError, "start with 0"),
        Bad((i, table, d.real(2)), {}, DTypeError, "integers"),
        Bad((d.real(2), table, starts), {}, DTypeError, "integers"),
        Bad((i, d.real(4), starts), {}, ShapeError, "a matrix of rows"),
        Bad((i, table, starts), {"mode": "median"}, DTypeError, "mode is one of"),
        Bad((i, table, starts), {"padding_idx": 9}, ShapeError, "padding_idx"),
        Bad((i, table, starts), {"per_sample_weights": d.real(3)}, ShapeError, 'mode="sum"'),
        Bad((i, table, starts), {**sum_mode, "per_sample_weights": d.real(2)}, ShapeError, "shape"),
    ]


@composite(oracle=_bag_oracle, samples=_bag_samples, errors=_bag_errors, namespace="nn")
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    *,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The sum, mean or maximum of the rows of `weight` in each bag of indices; 0 in an empty bag.

    A bag is a row of `input`, or of a flat `input` what stands from one offset to the next. The row
    `padding_idx` does not count. Equal maxima share the derivative. For the rest see `embedding`.

    >>> table = pb.tensor([[1.0], [2.0], [4.0]])
    >>> pb.nn.embedding_bag(pb.tensor([0, 1, 2]), table, pb.tensor([0, 1]), mode="sum")
    tensor([[1.],
            [6.]], float32, cpu)
    """
    name = "embedding_bag"
    table = _table(name, weight)
    index = as_indices(name, input, table._aval.device, table._aval.shape[0])
    option(name, "mode", mode, ("mean", "sum", "max"))
    padding = _padding(name, padding_idx, table._aval.shape[0])
    if mode == "max":
        floating(name, table)
    bags = None if offsets is None else as_indices(name, offsets, table._aval.device)
    bags = _checked_bags(index, bags)
    rows = _looked_up(name, table, index, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * _sample_weights(index, rows, per_sample_weights, mode)
    keep = None if padding is None else ~_is_row(index, padding, table._aval.shape[0])
    if bags is None:
        return _in_rows(rows, keep, mode)
    return _in_segments(rows, keep, bags, include_last_offset, mode)


def _checked_bags(index: Any, offsets: Any) -> Any:
    ndim = index._aval.ndim
    if (ndim, offsets is None) not in ((1, False), (2, True)):
        raise ShapeError(
            "embedding_bag: the input is flat and comes with offsets, or it has rows and comes"
            f" without, got shape {index._aval.shape} and {'no' if offsets is None else 'these'}"
            " offsets."
        )
    if offsets is not None and offsets._aval.ndim != 1:
        raise ShapeError(f"embedding_bag: offsets are flat, got shape {offsets._aval.shape}.")
    if offsets is None or not offsets._aval.size:
        return offsets
    starts = offsets[0] == 0
    fact = "must start with 0, got another number."
    return require(offsets, starts, "embedding_bag", fact, "the offsets", "ShapeError")


def _sample_weights(index: Any, rows: Any, weights: Any, mode: str) -> Any:
    _, weights = inexact("embedding_bag", rows, weights)
    if mode != "sum":
        raise ShapeError(f'embedding_bag: per_sample_weights need mode="sum", got {mode!r}.')
    if weights._aval.shape != index._aval.shape:
        raise ShapeError(
            f"embedding_bag: per_sample_weights must have the shape {index._aval.shape},"
            f" got {weights._aval.shape}."
        )
    return expand_dims(weights, -1)


def _finished(total: Any, count: Any, mode: str) -> Any:
    """Sums as means, or maxima of nothing as 0; `count` is how many rows went into each."""
    if mode == "mean":
        return total / clip(astype(count, total._aval.dtype.real), 1.0)
    return where(count == 0, 0.0, total) if mode == "max" else total


def _in_rows(rows: Any, keep: Any, mode: str) -> Any:
    """The reduction of rows (N, L, D) along the second axis."""
    n, size, width = rows._aval.shape
    dev = rows._aval.device
    if keep is None:
        count = constant(size, (n, 1), dt.int64, dev)
    else:
        count = expand_dims(sum(keep, axis=1), 1)
        rows = where(expand_dims(keep, -1), rows, -inf if mode == "max" else 0.0)
    if mode != "max":
        return _finished(sum(rows, axis=1), count, mode)
    if size == 0:
        return constant(0, (n, width), rows._aval.dtype, dev)
    return _finished(max(rows, axis=1), count, mode)


def _in_segments(rows: Any, keep: Any, offsets: Any, last: bool, mode: str) -> Any:
    """The reduction of rows (n, D) from each offset to the next."""
    name, dev = "embedding_bag", rows._aval.device
    n, width = rows._aval.shape
    bags = offsets._aval.shape[0] - int(last)
    if bags < 0:
        raise ShapeError(f"{name}: include_last_offset needs at least one offset, got none.")
    one = constant(1, offsets._aval.shape, dt.int64, dev)
    starts = reported_by(name, segment_sum, one, offsets, n + 1)  # bags that start at each row
    places = cumulative_sum(starts)[:n] - 1
    places = where(places < 0, bags, places)  # before the first offset: out of range
    if keep is not None:
        rows = where(expand_dims(keep, -1), rows, -inf if mode == "max" else 0.0)
    if mode == "max":
        lowest = constant(-inf, (bags, width), rows._aval.dtype, dev)
        total = reported_by(name, scatter, lowest, places, rows, mode="max")
    else:
        total = reported_by(name, segment_sum, rows, places, bags)
    if mode == "sum":
        return total
    counted = constant(1, (n,), dt.int64, dev) if keep is None else astype(keep, dt.int64)
    return _finished(total, expand_dims(segment_sum(counted, places, bags), 1), mode)
