"""Reductions that leave NaN out, as NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf, nan
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, is_number, scalar
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.cumulative import cumprod, cumsum
from pullback.ops.exponential import sqrt
from pullback.ops.extrema import argmax, argmin, max, min, ordered
from pullback.ops.families import composite, normalise_axes, normalise_axis
from pullback.ops.indexing import take_along_axis
from pullback.ops.logic import isinf, isnan, logical_not
from pullback.ops.movement import concat, permute_dims, reshape
from pullback.ops.parts import astype, imag, real
from pullback.ops.quantile_places import (
    CONTINUOUS,
    STEPS,
    known_method,
    place_below,
    place_beyond,
)
from pullback.ops.quantiles import partway
from pullback.ops.reductions import all as all_
from pullback.ops.reductions import axis_errors, prod, reduced_shape, sum
from pullback.ops.requirements import require
from pullback.ops.selection import clip, where
from pullback.ops.sorting import sort

__all__ = [
    "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean",
    "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
]  # fmt: skip


def _filled(x: Any, value: float) -> Any:
    """The array with a value in place of NaN."""
    return where(isnan(x), value, x) if x._aval.dtype.is_inexact else x


def _prepared(name: str, x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """The array, and the axes to reduce."""
    x = as_array(x, name)
    return x, normalise_axes(name, axis, x._aval.ndim)


def _present(x: Any, axis: Any, keepdims: bool) -> Any:
    """How many elements are no NaN, as floats."""
    dtype = x._aval.dtype.real if x._aval.dtype.is_inexact else default_float()
    return sum(astype(~isnan(x), dtype), axis=axis, keepdims=keepdims)


def _samples(d: Draw) -> list[Sample]:
    holes = d.with_nan(3, 4)
    return [
        Sample((holes,)),
        Sample((holes,), {"axis": 0}),
        Sample((d.with_nan(2, 3, 4),), {"axis": (0, -1), "keepdims": True}),
        Sample((d.real(5),), {"axis": 0}),
    ]


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy's without its warnings."""

    def oracle(x: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = function(x, *args, **options)
        return np.asarray(found)

    return oracle


def _inexact(name: str, x: Any) -> Any:
    x = as_array(x, name)
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


@composite(oracle=_quiet(np.nansum), samples=_samples, errors=axis_errors)
def nansum(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The sum of the elements that are no NaN.

    >>> pb.nansum(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(3., float32, cpu)
    """
    x, axes = _prepared("nansum", x, axis)
    return sum(_filled(x, 0.0), axis=axes, keepdims=keepdims)


@composite(oracle=_quiet(np.nanprod), samples=_samples, errors=axis_errors)
def nanprod(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The product of the elements that are no NaN.

    >>> pb.nanprod(pb.tensor([3.0, pb.nan, 2.0]))
    tensor(6., float32, cpu)
    """
    x, axes = _prepared("nanprod", x, axis)
    return prod(_filled(x, 1.0), axis=axes, keepdims=keepdims)


@composite(oracle=_quiet(np.nanmean), samples=_samples, errors=axis_errors)
def nanmean(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The mean of the elements that are no NaN; NaN where there are none.

    >>> pb.nanmean(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(1.5, float32, cpu)
    """
    x, axes = _prepared("nanmean", _inexact("nanmean", x), axis)
    total = sum(_wide(_filled(x, 0.0)), axis=axes, keepdims=keepdims)
    return astype(total / _present(_wide(x), axes, keepdims), x._aval.dtype)


def _wide(x: Any) -> Any:
    return astype(x, dt.float32) if x._aval.dtype in (dt.float16, dt.bfloat16) else x


def _variance(name: str, x: Any, axis: Any, correction: Any, keepdims: bool) -> Any:
    if isinstance(correction, bool) or not isinstance(correction, (int, float)):
        raise DTypeError(f"{name}: correction must be a number, got {correction!r}.")
    wide = _wide(_inexact(name, x))
    axes = normalise_axes(name, axis, wide._aval.ndim)
    missing = isnan(wide)
    present = _present(wide, axes, True)
    centre = sum(where(missing, 0.0, wide), axis=axes, keepdims=True) / present
    off = where(missing, 0.0, wide - centre)
    squares = real(off * off.conj()) if wide._aval.dtype.is_complex else off * off
    count = _present(wide, axes, keepdims) - float(correction)
    total = sum(squares, axis=axes, keepdims=keepdims)
    return where(count > 0, total / where(count > 0, count, 1.0), nan)


def _spread_samples(d: Draw) -> list[Sample]:
    return [
        *_samples(d),
        Sample((d.with_nan(3, 4),), {"axis": 1, "correction": 1}),
    ]


def _spread_errors(d: Draw) -> list[Bad]:
    return [
        *axis_errors(d),
        Bad((d.real(2),), {"correction": "n"}, DTypeError, "correction must be a number"),
    ]


@composite(
    oracle=lambda x, correction=0, **o: _quiet(np.nanvar)(x, ddof=correction, **o),
    samples=_spread_samples,
    errors=_spread_errors,
)
def nanvar(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The variance of the elements that are no NaN: see `var`.

    >>> pb.nanvar(pb.tensor([1.0, pb.nan, 3.0]))
    tensor(1., float32, cpu)
    """
    found = _variance("nanvar", x, axis, correction, keepdims)
    return astype(found, _inexact("nanvar", x)._aval.dtype.real)


@composite(
    oracle=lambda x, correction=0, **o: _quiet(np.nanstd)(x, ddof=correction, **o),
    samples=_spread_samples,
    errors=_spread_errors,
)
def nanstd(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The standard deviation of the elements that are no NaN: see `std`.

    >>> pb.nanstd(pb.tensor([1.0, pb.nan, 3.0]))
    tensor(1., float32, cpu)
    """
    found = _variance("nanstd", x, axis, correction, keepdims)
    zero = found == 0.0
    root = where(zero, 0.0, sqrt(where(zero, 1.0, found)))
    return astype(root, _inexact("nanstd", x)._aval.dtype.real)


def _extremum(name: str, x: Any, axis: Any, keepdims: bool, sense: int) -> Any:
    x, axes = _prepared(name, ordered(name, x), axis)
    reduce = max if sense > 0 else min
    if 0 in [x._aval.shape[d] for d in axes]:
        raise ShapeError(f"{name}: an empty axis has no such element, got shape {x._aval.shape}.")
    if not x._aval.dtype.is_inexact:
        return reduce(x, axis=axes, keepdims=keepdims)
    found = reduce(where(isnan(x), -inf * sense, x), axis=axes, keepdims=keepdims)
    return where(all_(isnan(x), axis=axes, keepdims=keepdims), nan, found)


def _extremum_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "out of range"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
        Bad((d.real(0),), {}, ShapeError, "empty"),
    ]


@composite(oracle=_quiet(np.nanmax), samples=_samples, errors=_extremum_errors)
def nanmax(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The largest element that is no NaN; NaN where all are.

    >>> pb.nanmax(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(2., float32, cpu)
    """
    return _extremum("nanmax", x, axis, keepdims, 1)


@composite(oracle=_quiet(np.nanmin), samples=_samples, errors=_extremum_errors)
def nanmin(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The smallest element that is no NaN; NaN where all are.

    >>> pb.nanmin(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(1., float32, cpu)
    """
    return _extremum("nanmin", x, axis, keepdims, -1)


def _position(name: str, x: Any, axis: Any, keepdims: bool, sense: int) -> Any:
    x, axes = _prepared(name, ordered(name, x), axis)
    if x._aval.dtype.is_inexact:
        empty = all_(isnan(x), axis=axes)
        x = where(isnan(x), -inf * sense, x)
        fact = "is without numbers, got NaN alone."
        x = require(x, logical_not(empty), name, fact, "a slice", "ShapeError")
    return (argmax if sense > 0 else argmin)(x, axis=axis, keepdims=keepdims)


def _position_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.with_nan(5),)),
        Sample((d.with_nan(3, 4),), {"axis": 1}),
        Sample((d.with_nan(3, 4),), {"axis": 0, "keepdims": True}),
    ]


def _position_errors(name: str) -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "out of range"),
        Bad((np.full(2, np.nan),), {}, ShapeError, "without numbers"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
    ]


@composite(
    oracle=np.nanargmax,
    samples=_position_samples,
    errors=_position_errors("nanargmax"),
    differentiable=False,
)
def nanargmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The position of the largest element that is no NaN.

    >>> pb.nanargmax(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(2, int64, cpu)
    """
    return _position("nanargmax", x, axis, keepdims, 1)


@composite(
    oracle=np.nanargmin,
    samples=_position_samples,
    errors=_position_errors("nanargmin"),
    differentiable=False,
)
def nanargmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The position of the smallest element that is no NaN.

    >>> pb.nanargmin(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(0, int64, cpu)
    """
    return _position("nanargmin", x, axis, keepdims, -1)


def _running_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.with_nan(5),)),
        Sample((d.with_nan(3, 4),), {"axis": 1}),
        Sample((d.with_nan(2, 3),)),
    ]


def _running_errors(d: Draw) -> list[Bad]:
    return [Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range")]


def _running(name: str, accumulate: Any, x: Any, axis: int | None, value: float) -> Any:
    x = _filled(as_array(x, name), value)
    if axis is None:
        return accumulate(reshape(x, (x._aval.size,)), axis=0)
    return accumulate(x, axis=normalise_axis(name, axis, x._aval.ndim))


@composite(oracle=np.nancumsum, samples=_running_samples, errors=_running_errors)
def nancumsum(x: Any, /, axis: int | None = None) -> Any:
    """The running sum along `axis`, or of the flat array, to which NaN adds nothing.

    >>> pb.nancumsum(pb.tensor([1.0, pb.nan, 2.0]))
    tensor([1., 1., 3.], float32, cpu)
    """
    return _running("nancumsum", cumsum, x, axis, 0.0)


@composite(oracle=np.nancumprod, samples=_running_samples, errors=_running_errors)
def nancumprod(x: Any, /, axis: int | None = None) -> Any:
    """The running product along `axis`, or of the flat array, in which NaN counts as 1.

    >>> pb.nancumprod(pb.tensor([3.0, pb.nan, 2.0]))
    tensor([3., 3., 6.], float32, cpu)
    """
    return _running("nancumprod", cumprod, x, axis, 1.0)


# -- quantiles -----------------------------------------------------------------------------------


def _fractions(name: str, q: Any, percent: bool) -> list[float]:
    values = np.asarray(q, np.float64).reshape(-1) / (100.0 if percent else 1.0)
    if not ((values >= 0) & (values <= 1)).all():
        highest = 100 if percent else 1
        raise ShapeError(f"{name}: q must lie between 0 and {highest}, got {q!r}.")
    return [float(v) for v in values]


def _nan_quantile(
    name: str, x: Any, q: Any, axis: Any, keepdims: bool, percent: bool, method: str = "linear"
) -> Any:
    x = ordered(name, x)
    known_method(name, method)
    x = x if x._aval.dtype.is_inexact else astype(x, default_float())
    if not is_number(q) and not isinstance(q, (list, tuple, np.ndarray)):
        raise DTypeError(f"{name}: q is a number or a list of numbers, got {q!r}.")
    fractions = _fractions(name, q, percent)
    axes = normalise_axes(name, axis, x._aval.ndim)
    shape = x._aval.shape
    kept = [d for d in range(len(shape)) if d not in axes]
    count = size_of(shape[d] for d in axes)
    if count == 0:
        raise ShapeError(f"{name}: there must be an element, got shape {shape} along {axis}.")
    rows = reshape(permute_dims(x, (*kept, *axes)), (*[shape[d] for d in kept], count))
    ranked = sort(rows, axis=-1)
    present = sum(astype(~isnan(rows), dt.int64), axis=-1, keepdims=True)
    found = [_at_fraction(ranked, present, f, method) for f in fractions]
    result = reduced_shape(shape, axes, keepdims)
    if is_number(q) or np.ndim(q) == 0:
        return reshape(found[0], result)
    stacked = [reshape(v, (1, *result)) for v in found]
    return reshape(concat(stacked, axis=0), (*np.shape(q), *result))


def _at_fraction(ranked: Any, present: Any, q: float, method: str) -> Any:
    """The value at a fraction of those elements of sorted rows that are present."""
    n = ranked._aval.shape[-1]
    low = place_below(present, q, method=method)
    high = clip(low + 1, 0, clip(present - 1, 0, n - 1))
    weight = place_beyond(present, q, ranked._aval.dtype, method=method)
    a, b = (take_along_axis(ranked, i, axis=-1) for i in (low, high))
    return partway(a, b - a, weight)


def _quantile_samples(*q: Any) -> Callable[[Draw], list[Sample]]:
    def samples(d: Draw) -> list[Sample]:
        return [
            Sample((d.with_nan(6), *q)),
            Sample((d.with_nan(3, 5), *q), {"axis": 1}),
            Sample((d.with_nan(2, 3, 4), *q), {"axis": (0, -1), "keepdims": True}),
        ]

    return samples


def _quantile_errors(*q: Any) -> Callable[[Draw], list[Bad]]:
    def errors(d: Draw) -> list[Bad]:
        found = [
            Bad((d.real(3), *q), {"axis": 1}, ShapeError, "out of range"),
            Bad((np.ones(2, np.complex64), *q), {}, DTypeError, "no order"),
            Bad((d.real(0), *q), {}, ShapeError, "an element"),
        ]
        return [*found, *([Bad((d.real(3), -0.5), {}, ShapeError, "between 0")] if q else [])]

    return errors


@composite(oracle=_quiet(np.nanmedian), samples=_quantile_samples(), errors=_quantile_errors())
def nanmedian(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The median of the elements that are no NaN.

    >>> pb.nanmedian(pb.tensor([1.0, pb.nan, 2.0]))
    tensor(1.5, float32, cpu)
    """
    return _nan_quantile("nanmedian", x, 0.5, axis, keepdims, False)


@composite(
    oracle=_quiet(np.nanquantile),
    samples=lambda d: [
        *_quantile_samples(0.3)(d),
        *_quantile_samples([0.0, 0.4, 1.0])(d),
        *[
            Sample((d.with_nan(3, 7), [0.1, 0.37, 0.9]), {"axis": 1, "method": m})
            for m in (*CONTINUOUS, *STEPS)
        ],
        *[  # NumPy has NaN where a method goes between elements
            Sample((np.asarray([np.inf, 1.0, np.nan]), q), {"method": m}, order=0)
            for m in ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
            for q in (0.0, 1.0)
        ],
    ],
    errors=lambda d: [
        *_quantile_errors(0.5)(d),
        Bad((d.real(3), 0.5), {"method": "cubic"}, DTypeError, "method must be one of"),
    ],
)
def nanquantile(
    x: Any, q: Any, /, axis: Any = None, *, keepdims: bool = False, method: str = "linear"
) -> Any:
    """The quantile of the elements that are no NaN: see `quantile`.

    >>> pb.nanquantile(pb.tensor([1.0, pb.nan, 2.0]), 0.25)
    tensor(1.25, float32, cpu)
    """
    return _nan_quantile("nanquantile", x, q, axis, keepdims, False, method)


@composite(
    oracle=_quiet(np.nanpercentile),
    samples=_quantile_samples(30.0),
    errors=_quantile_errors(50.0),
)
def nanpercentile(
    x: Any, q: Any, /, axis: Any = None, *, keepdims: bool = False, method: str = "linear"
) -> Any:
    """`nanquantile` at q percent.

    >>> pb.nanpercentile(pb.tensor([1.0, pb.nan, 2.0]), 25)
    tensor(1.25, float32, cpu)
    """
    return _nan_quantile("nanpercentile", x, q, axis, keepdims, True, method)


# -- values --------------------------------------------------------------------------------------


def _to_num_samples(d: Draw) -> list[Sample]:
    values = np.array([1.5, np.nan, np.inf, -np.inf, -2.0])
    if d.dtype.kind == "f" or d.dtype.name == "bfloat16":
        values = values.astype(d.dtype)
    return [
        Sample((values,), {"nan": 3.0, "posinf": 4.0, "neginf": -5.0}, order=0),
        Sample((d.real(2, 3),)),
        Sample((np.arange(3),)),
    ]


@composite(
    oracle=np.nan_to_num,
    samples=_to_num_samples,
    errors=lambda d: [Bad((d.real(3),), {"nan": "0"}, DTypeError, "nan must be a number")],
)
def nan_to_num(
    x: Any, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """The array with numbers in place of NaN and of infinities: by default 0 and the largest ones.

    >>> pb.nan_to_num(pb.tensor([1.0, pb.nan, pb.inf]), posinf=9.0)
    tensor([1., 0., 9.], float32, cpu)
    """
    x = as_array(x, "nan_to_num")
    dtype = x._aval.dtype
    for word, value in (("nan", nan), ("posinf", posinf), ("neginf", neginf)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise DTypeError(f"nan_to_num: {word} must be a number, got {value!r}.")
    if not dtype.is_inexact:
        return x
    if dtype.is_complex:
        parts = [nan_to_num(part, nan, posinf, neginf) for part in (real(x), imag(x))]
        return parts[0] + parts[1] * 1j
    largest = _largest(dtype)
    high = scalar(float(largest if posinf is None else posinf), dtype, x._aval.device)
    low = scalar(float(-largest if neginf is None else neginf), dtype, x._aval.device)
    return where(isnan(x), float(nan), where(isinf(x), where(x > 0, high, low), x))


def _largest(dtype: Any) -> float:
    if dtype is dt.bfloat16:
        return float(np.ldexp(2.0 - 2.0**-7, 127))
    return float(np.finfo(dtype.numpy).max)
