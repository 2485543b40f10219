"""Quantiles: values below which a fraction of the elements lies, and what is made of them."""

from __future__ import annotations

import builtins
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import stack
from pullback.ops.extrema import ordered
from pullback.ops.families import composite, normalise_axes
from pullback.ops.indexing import take
from pullback.ops.logic import isfinite
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.quantile_places import (
    CONTINUOUS,
    STEPS,
    Arithmetic,
    known_method,
    stepped,
)
from pullback.ops.reductions import reduced_shape
from pullback.ops.requirements import within
from pullback.ops.rounding import floor
from pullback.ops.selection import clip, where
from pullback.ops.sorting import sort

__all__ = ["median", "partway", "percentile", "quantile"]


_NUMBERS = Arithmetic(np.floor, np.ceil, np.rint, np.where)


def _between(n: int, q: float, method: str) -> tuple[int, float]:
    """The element before the quantile, and how much of the next one it has."""
    if method in CONTINUOUS:
        a, b = CONTINUOUS[method]
        place = q * (n + 1 - a - b) + a - 1
    else:
        place = float(stepped(float(n), q, method, _NUMBERS))
    place = builtins.min(builtins.max(place, 0.0), n - 1.0)
    low = int(place)
    return low, place - low


def _in_last_axis(x: Any, axes: tuple[int, ...]) -> Any:
    """The array with the given axes flattened into one, the last."""
    av = x._aval
    kept = tuple(d for d in range(av.ndim) if d not in axes)
    moved = permute_dims(x, kept + axes)
    return reshape(moved, (*[av.shape[d] for d in kept], size_of(av.shape[d] for d in axes)))


def _at_fraction(ranked: Any, q: float, method: str) -> Any:
    """The value at the fraction `q` of the sorted last axis; NaN if there is one."""
    n = ranked._aval.shape[-1]
    low, part = _between(n, q, method)
    first, last = ranked[..., low], ranked[..., n - 1]
    value = first
    if part > 0.0:
        value = first + (ranked[..., low + 1] - first) * part
    return where(last == last, value, last)


def partway(value: Any, gap: Any, part: Any) -> Any:
    """The value, and a part of the gap to the next one: nothing of a gap that is not finite, where
    the part is 0.
    """
    return value + where((part == 0.0) & ~isfinite(gap), 0.0, gap) * part


def _at_fractions(ranked: Any, q: Any, method: str) -> Any:
    """The values at an array of fractions, which it can be differentiated by; their axes lead.

    Between two elements the derivative is their distance, also at the lower one and at the last.
    """
    n = ranked._aval.shape[-1]
    a, b = CONTINUOUS[method]
    place = astype(q, ranked._aval.dtype) * (n + 1 - a - b)
    if method != "linear":
        place = clip(place + (a - 1), 0.0, n - 1.0)
    low = clip(astype(floor(place.detach()), dt.int64), 0, n - 1)
    start = clip(low, 0, builtins.max(n - 2, 0))
    flat = reshape(ranked, (size_of(ranked._aval.shape[:-1]), n))

    def at(index: Any) -> Any:
        found = take(permute_dims(flat, (1, 0)), reshape(index, (-1,)), axis=0)
        return reshape(found, (*q._aval.shape, *ranked._aval.shape[:-1]))

    value, last = at(low), ranked[..., n - 1]
    if n > 1:
        part = reshape(place - astype(low, place._aval.dtype), (*q._aval.shape, *[1] * last.ndim))
        gap = at(start + 1) - at(start)
        value = partway(value, gap, part)
    return where(last == last, value, last)


def _quantile_oracle(
    x: Any, q: Any, *, axis: Any = None, keepdims: bool = False, method: Any = "linear"
) -> Any:
    return np.quantile(x, q, axis=axis, keepdims=keepdims, method=method).astype(x.dtype)


def _quantile_samples(d: Draw, *args: Any) -> list[Sample]:
    return [
        Sample((d.distinct(6), *args)),
        Sample((d.distinct(3, 5), *args), {"axis": 0}),
        Sample((d.distinct(2, 3, 4), *args), {"axis": (0, -1), "keepdims": True}),
        Sample((np.asarray([1.0, np.nan, 2.0]), *args), order=0),
    ]


@composite(
    oracle=_quantile_oracle,
    samples=lambda d: [
        *_quantile_samples(d, 0.3),
        Sample((d.distinct(5), [0.0, 0.4, 1.0])),
        Sample((d.distinct(4, 6), d.real(2, low=0.05, high=0.15)), {"axis": 1}),
        Sample((d.distinct(2, 5, 2), d.real(low=0.3, high=0.45)), {"axis": 1, "keepdims": True}),
        Sample((d.distinct(3), np.asarray([[0.0, 0.5], [1.0, 0.25]])), order=0),
        *[
            Sample((d.distinct(7), [0.0, 0.1, 0.37, 0.5, 0.9, 1.0]), {"method": m})
            for m in (*CONTINUOUS, *STEPS)
        ],
        Sample((d.distinct(8), [0.125, 0.25, 0.3125, 0.5]), {"method": "averaged_inverted_cdf"}),
        Sample((d.distinct(8), [0.0625, 0.1875, 0.3125]), {"method": "closest_observation"}),
        Sample((d.distinct(6), d.real(2, low=0.3, high=0.33)), {"method": "hazen"}),
    ],
    errors=lambda d: [
        Bad((d.real(3), 1.5), {}, ShapeError, "between 0 and 1"),
        Bad((d.real(0), 0.5), {}, ShapeError, "empty"),
        Bad((np.ones(2, np.complex64), 0.5), {}, DTypeError, "no order"),
        Bad((d.real(3), 0.5), {"method": "cubic"}, DTypeError, "method must be one of"),
        Bad((d.real(3), d.positive(2) * 0.1), {"method": "lower"}, DTypeError, "takes numbers"),
    ],
)
def quantile(
    x: Any, q: Any, /, axis: Any = None, *, keepdims: bool = False, method: str = "linear"
) -> Any:
    """The value below which a fraction `q` of the elements along `axis` lie.

    A sequence of fractions adds an axis in front. A tensor of them is differentiated by too, unless
    the quantile is a step function of it. `method` says what lies between two elements: the names
    are NumPy's ("linear", "lower", "higher", "midpoint", "nearest", "hazen", ...).

    >>> pb.quantile(pb.tensor([1.0, 2.0, 4.0]), 0.25)
    tensor(1.5, float32, cpu)
    """
    return _quantile("quantile", x, q, axis, keepdims, method)


def _quantile(name: str, x: Any, q: Any, axis: Any, keepdims: bool, method: str = "linear") -> Any:
    x = ordered(name, x)
    known_method(name, method)
    x = x if x._aval.dtype.is_float else astype(x, default_float())
    axes = normalise_axes(name, axis, x._aval.ndim)
    if isinstance(q, (list, tuple)):
        q = as_array(q, "quantile") if any(isinstance(f, Array) for f in q) else np.asarray(q)
    if isinstance(q, Array):
        q = within(name, "fraction", q, 0, 1)
    elif any(not 0.0 <= f <= 1.0 for f in np.ravel(q)):
        raise ShapeError(f"{name}: fractions must lie between 0 and 1, got {q}.")
    if size_of(x._aval.shape[d] for d in axes) == 0:
        raise ShapeError(f"{name}: an empty array has none, got shape {x._aval.shape}.")
    ranked = sort(_in_last_axis(x, axes))
    shape = reduced_shape(x._aval.shape, axes, keepdims)
    if isinstance(q, Array):
        if method in STEPS:
            raise DTypeError(f"{name}: method {method!r} takes numbers as fractions, got a tensor.")
        return reshape(_at_fractions(ranked, q, method), (*q._aval.shape, *shape))
    found = [reshape(_at_fraction(ranked, float(f), method), shape) for f in np.ravel(q)]
    return found[0] if np.ndim(q) == 0 else reshape(stack(found), (*np.shape(q), *shape))


@composite(
    oracle=lambda x, *, axis=None, keepdims=False: np.median(x, axis=axis, keepdims=keepdims),
    samples=_quantile_samples,
    errors=lambda d: [
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
    ],
)
def median(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The middle element along `axis` (None: all axes), or the mean of the middle two.

    >>> pb.median(pb.tensor([3.0, 1.0, 2.0, 10.0]))
    tensor(2.5, float32, cpu)
    """
    return _quantile("median", x, 0.5, axis, keepdims)


@composite(
    oracle=lambda x, q, **o: _quantile_oracle(x, np.asarray(q) / 100, **o),
    samples=lambda d: [
        *_quantile_samples(d, 30.0),
        Sample((d.distinct(5), [0.0, 40.0, 100.0]), {"method": "nearest"}),
    ],
    errors=lambda d: [
        Bad((d.real(3), 150.0), {}, ShapeError, "between 0 and 1"),
        Bad((d.real(3), 50.0), {"axis": 1}, ShapeError, "out of range"),
    ],
)
def percentile(
    x: Any, q: Any, /, axis: Any = None, *, keepdims: bool = False, method: str = "linear"
) -> Any:
    """`quantile` at q percent.

    >>> pb.percentile(pb.tensor([1.0, 2.0, 4.0]), 25)
    tensor(1.5, float32, cpu)
    """
    fractions = _parts_of_hundred(q)
    return _quantile("percentile", x, fractions, axis, keepdims, method)


def _parts_of_hundred(q: Any) -> Any:
    listed = isinstance(q, (list, tuple)) and any(isinstance(f, Array) for f in q)
    if listed or isinstance(q, Array):
        percents: Any = as_array(q, "percentile")
        return percents / 100.0
    return (np.asarray(q) / 100.0).tolist()
