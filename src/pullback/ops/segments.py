"""Rows by segment: sums, means, products and extrema of the rows that share a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType, promote
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.creation import constant
from pullback.ops.families import composite
from pullback.ops.index_plans import as_indices, scatter_plan
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.scattering import scatter_along
from pullback.ops.selection import maximum

__all__ = ["segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum"]


def _oracle(fold: Callable[..., Any], start: Callable[[np.dtype], Any]) -> Callable[..., Any]:
    def oracle(x: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
        out = np.full((count, *x.shape[1:]), start(x.dtype), x.dtype)
        for row, i in zip(x, ids, strict=True):
            out[i] = fold(out[i], row)
        return out

    return oracle


def _mean_oracle(x: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    rows = [x[ids % count == i] for i in range(count)]
    means = [r.mean(axis=0) if len(r) else np.zeros(x.shape[1:], x.dtype) for r in rows]
    return np.stack(means).astype(x.dtype)


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(5), np.array([1, 1, 0, 3, 1]), 4)),
        Sample((d.distinct(4, 2), np.array([1, -1, 0, 3], np.int16), 5)),
        Sample((d.distinct(4, 2), np.array([0, 0, 0, 0], np.uint8), 1)),
    ]


def _errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2), np.array([0, 3]), 3), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2), np.array([0]), 3), {}, ShapeError, "one segment"),
        Bad((d.real(2), np.array([0, 1])), {}, DTypeError, "num_segments"),
        Bad((d.real(2), d.real(2), 3), {}, DTypeError, "integers"),
        Bad((d.real(2), np.array([0, 1]), -1), {}, ShapeError, "must not be negative"),
        Bad((d.real(2), np.array([0, 1]), 2.5), {}, DTypeError, "must be an integer"),
    ]


def _ordered_errors(d: Draw) -> list[Bad]:
    return [
        *_errors(d),
        Bad((np.ones(1, complex), np.array([0]), 1), {}, DTypeError, "no order"),
    ]


def _segments(
    name: str, x: Any, ids: Any, num_segments: int | None, mode: str, start: Any
) -> tuple[Any, Any]:
    """The folded rows, and the segments as an array."""
    x = as_array(x, name)
    if num_segments is None:
        if not isinstance(ids, scatter_plan):
            raise DTypeError(f"{name}: num_segments is missing. Only a plan knows it by itself.")
        num_segments = ids.size
    if isinstance(num_segments, bool) or not isinstance(num_segments, (int, np.integer)):
        raise DTypeError(f"{name}: num_segments must be an integer, got {num_segments!r}.")
    if num_segments < 0:
        raise ShapeError(f"{name}: num_segments must not be negative, got {num_segments}.")
    array = as_indices(name, ids, x._aval.device, int(num_segments))
    if x._aval.ndim == 0 or array._aval.shape != x._aval.shape[:1]:
        raise ShapeError(
            f"{name}: every row needs one segment, got {array._aval.shape} for an array of shape"
            f" {x._aval.shape}."
        )
    shape = (int(num_segments), *x._aval.shape[1:])
    value = start(x._aval.dtype) if callable(start) else start
    base = constant(value, shape, x._aval.dtype, x._aval.device)
    return scatter_along(name, base, array, x, 0, mode), array


@composite(oracle=_oracle(np.add, lambda _: 0), samples=_samples, errors=_errors)
def segment_sum(x: Any, segment_ids: Any, /, num_segments: int | None = None) -> Any:
    """The sums of the rows of `x` by segment: `out[s]` adds the rows with `segment_ids == s`.

    >>> pb.segment_sum(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([4., 3., 0.], float32, cpu)
    """
    return _segments("segment_sum", x, segment_ids, num_segments, "add", 0)[0]


@composite(
    oracle=_mean_oracle,
    samples=lambda d: _samples(d) if d.dtype.kind in "fc" else [],
    errors=lambda d: [
        *_errors(d),
        Bad((np.arange(2), np.array([0, 1]), 3), {}, DTypeError, "floating"),
    ],
)
def segment_mean(x: Any, segment_ids: Any, /, num_segments: int | None = None) -> Any:
    """The means of the rows of `x` by segment; a segment without rows is 0.

    >>> pb.segment_mean(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([4. , 1.5, 0. ], float32, cpu)
    """
    name = "segment_mean"
    x = as_array(x, name)
    dtype = x._aval.dtype
    if not dtype.is_inexact:
        raise DTypeError(f"{name}: a mean needs a floating dtype, got {dtype.name}.")
    total, ids = _segments(name, x, segment_ids, num_segments, "add", 0)
    counting = promote(dtype.real, dt.float32)  # a half can't count beyond 2048
    rows, size = x._aval.shape[0], total._aval.shape[0]
    once = constant(1, (rows,), counting, x._aval.device)
    count = scatter_along(name, constant(0, (size,), counting, x._aval.device), ids, once, 0, "add")
    count = reshape(maximum(count, 1.0), (size,) + (1,) * (x._aval.ndim - 1))
    return total / astype(count, dtype)


@composite(oracle=_oracle(np.multiply, lambda _: 1), samples=_samples, errors=_errors)
def segment_prod(x: Any, segment_ids: Any, /, num_segments: int | None = None) -> Any:
    """The products of the rows of `x` by segment; a segment without rows is 1.

    >>> pb.segment_prod(pb.tensor([3.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([4., 6., 1.], float32, cpu)
    """
    return _segments("segment_prod", x, segment_ids, num_segments, "mul", 1)[0]


def _least(dtype: DType) -> Any:
    if dtype.is_integer:
        return int(np.iinfo(dtype.numpy).min)
    return -np.inf if dtype.is_inexact else False


def _greatest(dtype: DType) -> Any:
    if dtype.is_integer:
        return int(np.iinfo(dtype.numpy).max)
    return np.inf if dtype.is_inexact else True


def _numpy_bound(bound: Callable[[DType], Any]) -> Callable[[np.dtype], Any]:
    return lambda dtype: bound(dt.as_dtype(dtype))


def _real_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind == "c":
        return []
    return [
        Sample((d.distinct(5), np.array([1, 1, 0, 2, 1]), 3)),
        Sample((d.distinct(4, 2), np.array([0, -1, 0, 2], np.int16), 3), order=0),
        Sample((d.distinct(4, 2), np.array([0, 0, 0, 0], np.uint8), 1)),
    ]


@composite(
    oracle=_oracle(np.maximum, _numpy_bound(_least)),
    samples=_real_samples,
    errors=_ordered_errors,
)
def segment_max(x: Any, segment_ids: Any, /, num_segments: int | None = None) -> Any:
    """The largest rows of `x` by segment; without rows, the least value of the dtype.

    >>> pb.segment_max(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([  4.,   2., -inf], float32, cpu)
    """
    return _segments("segment_max", x, segment_ids, num_segments, "max", _least)[0]


@composite(
    oracle=_oracle(np.minimum, _numpy_bound(_greatest)),
    samples=_real_samples,
    errors=_ordered_errors,
)
def segment_min(x: Any, segment_ids: Any, /, num_segments: int | None = None) -> Any:
    """The smallest rows of `x` by segment; without rows, the greatest value of the dtype.

    >>> pb.segment_min(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([ 4.,  1., inf], float32, cpu)
    """
    return _segments("segment_min", x, segment_ids, num_segments, "min", _greatest)[0]
