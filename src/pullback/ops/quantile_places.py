"""Where a fraction of some sorted elements lies: between which two of them, and how far.

The place is computed in float64 inside of one kernel, whatever a device has arrays of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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

__all__ = [
    "CONTINUOUS",
    "STEPS",
    "Arithmetic",
    "known_method",
    "place_below",
    "place_beyond",
    "stepped",
]

# Between which elements a quantile lies: at `q (n + 1 - a - b) + a - 1`, counted from 0.
CONTINUOUS = {
    "linear": (1.0, 1.0),
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
STEPS = (
    "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "closest_observation",
)  # fmt: skip
_COUNTS = "it counts elements"


def known_method(name: str, method: str) -> None:
    """Raise unless there is such a way between two elements."""
    if method not in CONTINUOUS and method not in STEPS:
        known = ", ".join((*CONTINUOUS, *STEPS))
        raise DTypeError(f"{name}: method must be one of {known}, got {method!r}.")


class Arithmetic(NamedTuple):
    """What a place is computed with: expressions of the scalar language, or numbers."""

    floor: Callable[[Any], Any]
    ceil: Callable[[Any], Any]
    rint: Callable[[Any], Any]
    select: Callable[[Any, Any, Any], Any]


_EXPRESSIONS = Arithmetic(scalar.floor, scalar.ceil, scalar.rint, scalar.select)


def stepped(n: Any, q: float, method: str, by: Arithmetic) -> Any:
    """The place among n elements by one of STEPS; it may lie before the first one."""
    part, exact = n * q, (n - 1.0) * q
    below = by.floor(exact)
    if method == "inverted_cdf":
        return by.ceil(part) - 1.0
    if method == "averaged_inverted_cdf":
        return by.select(part == by.floor(part), part - 0.5, by.ceil(part) - 1.0)
    if method == "closest_observation":  # a half is brought to the even element, counted from 1
        half = part - 1.5
        low = by.floor(half)
        odd = low - by.floor(low * 0.5) * 2.0
        return by.select((half == low) & (odd == 1.0), low, low + 1.0)
    if method == "midpoint":
        return by.select(exact > below, below + 0.5, below)
    return {"lower": below, "higher": by.ceil(exact), "nearest": by.rint(exact)}[method]


def _wanted(n: Expr, q: float, method: str) -> Expr:
    """The place as the method has it, in float64; it may lie before the first element."""
    if method in STEPS:
        return stepped(n, q, method, _EXPRESSIONS)
    a, b = CONTINUOUS[method]
    if method == "linear":
        return (n - 1.0) * q
    return n * q + (a + q * (1.0 - a - b)) - 1.0  # in NumPy's order, which rounds least


def _place(count: Expr, q: float, method: str) -> tuple[Expr, Expr]:
    """The place, and the whole number below it."""
    n = scalar.cast(count, dt.float64)
    place = _wanted(n, q, method)
    place = scalar.select(place > n - 1.0, n - 1.0, place)
    place = scalar.select(place > 0.0, place, 0.0)
    return place, scalar.cast(place, dt.int64)


def _below(count: Expr, q: float, method: str) -> Expr:
    return _place(count, q, method)[1]


def _beyond(count: Expr, q: float, dtype: DType, method: str) -> Expr:
    place, low = _place(count, q, method)
    return scalar.cast(place - scalar.cast(low, dt.float64), dtype)


def _places_by_numpy(count: np.ndarray, q: float, method: Any) -> tuple[np.ndarray, np.ndarray]:
    """Among as many numbers as they are places, the quantile is the place."""

    def place(n: np.int64) -> float:
        return float(np.quantile(np.arange(float(n)), q, method=method)) if n > 0 else 0.0

    places = np.vectorize(place, otypes=[np.float64])(count)
    return places, np.trunc(places)


def _samples(*dtype: DType) -> Any:
    def samples(d: Draw) -> list[Sample]:
        return [
            Sample((np.arange(8), 0.3, *dtype)),
            Sample((np.array([[0], [5]]), 1.0, *dtype)),
            *[Sample((np.arange(9), q, *dtype), {"method": m}) for m in (*CONTINUOUS, *STEPS)
              for q in (0.125, 0.5)],
        ]  # fmt: skip

    return samples


def _errors(*dtype: DType) -> Any:
    def errors(d: Draw) -> list[Bad]:
        return [
            Bad((d.real(3), 0.5, *dtype), {}, DTypeError, "takes int64"),
            Bad((np.arange(3), 0.5, *dtype), {"method": "cubic"}, DTypeError, "method must be"),
        ]

    return errors


def _counts(name: str, count: Any) -> Any:
    count = as_array(count, name)
    if count._aval.dtype is not dt.int64:
        raise DTypeError(f"{name}: takes int64, got {count._aval.dtype.name}.")
    return count


@primitive(
    "count",
    infer=lambda count, q, method: (count.shape, dt.int64),
    lowering=Elementwise(_below),
    batch="elementwise",
    no_gradient=_COUNTS,
    oracle=lambda count, q, method="linear": _places_by_numpy(count, q, method)[1].astype(np.int64),
    samples=_samples(),
    errors=_errors(),
    namespace="primitive",
)
def place_below(count: Any, q: float, /, *, method: str = "linear") -> Any:
    """The number of the element below the fraction `q` of sorted elements, by how many there are.

    >>> pb.primitive.place_below(pb.tensor([3, 6]), 0.5)
    tensor([1, 2], int64, cpu)
    """
    known_method("place_below", method)
    return bind(place_below.op, _counts("place_below", count), q=float(q), method=method)


@primitive(
    "count",
    infer=lambda count, q, dtype, method: (count.shape, dtype),
    lowering=Elementwise(_beyond),
    batch="elementwise",
    no_gradient=_COUNTS,
    oracle=lambda count, q, dtype, method="linear": np.subtract(
        *_places_by_numpy(count, q, method)
    ).astype(dtype.numpy),
    samples=_samples(dt.float32),
    errors=_errors(dt.float32),
    namespace="primitive",
)
def place_beyond(count: Any, q: float, dtype: DType, /, *, method: str = "linear") -> Any:
    """How far beyond that element the fraction lies, as a part of the way to the next one.

    >>> pb.primitive.place_beyond(pb.tensor([3, 6]), 0.5, pb.float32)
    tensor([0. , 0.5], float32, cpu)
    """
    known_method("place_beyond", method)
    count = _counts("place_beyond", count)
    return bind(place_beyond.op, count, q=float(q), dtype=dtype, method=method)
