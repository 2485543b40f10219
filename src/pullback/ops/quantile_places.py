"""Where a fraction of some sorted elements lies: between which two of them, and how far.

The place is computed in float64 inside of one kernel, whatever a device has arrays of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr
from pullback.ops.families import primitive

__all__ = ["place_below", "place_beyond"]

_COUNTS = "it counts elements"


def _place(count: Expr, q: float) -> tuple[Expr, Expr]:
    """The place, and the whole number below it."""
    place = scalar.cast(count - 1, dt.float64) * q
    low = scalar.cast(place, dt.int64)
    return place, scalar.select(low < 0, 0, low)


def _below(count: Expr, q: float) -> Expr:
    return _place(count, q)[1]


def _beyond(count: Expr, q: float, dtype: DType) -> Expr:
    place, low = _place(count, q)
    return scalar.cast(place - scalar.cast(low, dt.float64), dtype)


def _places_by_numpy(count: np.ndarray, q: float) -> tuple[np.ndarray, np.ndarray]:
    place = (count - 1).astype(np.float64) * q
    return place, np.maximum(np.trunc(place), 0)


def _samples(*dtype: DType) -> Any:
    def samples(d: Draw) -> list[Sample]:
        return [
            Sample((np.arange(8), 0.3, *dtype)),
            Sample((np.array([[0], [5]]), 1.0, *dtype)),
        ]

    return samples


def _errors(*dtype: DType) -> Any:
    def errors(d: Draw) -> list[Bad]:
        return [Bad((d.real(3), 0.5, *dtype), {}, DTypeError, "takes int64")]

    return errors


def _counts(name: str, count: Any) -> Any:
    count = as_array(count, name)
    if count._aval.dtype is not dt.int64:
        raise DTypeError(f"{name}: takes int64, got {count._aval.dtype.name}.")
    return count


@primitive(
    "count",
    infer=lambda count, q: (count.shape, dt.int64),
    lowering=Elementwise(_below),
    batch="elementwise",
    no_gradient=_COUNTS,
    oracle=lambda count, q: _places_by_numpy(count, q)[1].astype(np.int64),
    samples=_samples(),
    errors=_errors(),
    namespace="primitive",
)
def place_below(count: Any, q: float, /) -> Any:
    """The number of the element below the fraction `q` of sorted elements, by how many there are.

    >>> pb.primitive.place_below(pb.tensor([3, 6]), 0.5)
    tensor([1, 2], int64, cpu)
    """
    return bind(place_below.op, _counts("place_below", count), q=float(q))


@primitive(
    "count",
    infer=lambda count, q, dtype: (count.shape, dtype),
    lowering=Elementwise(_beyond),
    batch="elementwise",
    no_gradient=_COUNTS,
    oracle=lambda count, q, dtype: np.subtract(*_places_by_numpy(count, q)).astype(dtype.numpy),
    samples=_samples(dt.float32),
    errors=_errors(dt.float32),
    namespace="primitive",
)
def place_beyond(count: Any, q: float, dtype: DType, /) -> Any:
    """How far beyond that element the fraction lies, as a part of the way to the next one.

    >>> pb.primitive.place_beyond(pb.tensor([3, 6]), 0.5, pb.float32)
    tensor([0. , 0.5], float32, cpu)
    """
    return bind(place_beyond.op, _counts("place_beyond", count), q=float(q), dtype=dtype)
