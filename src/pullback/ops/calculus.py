"""Derivatives and integrals of sampled functions, and values between the samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, is_number
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import moveaxis
from pullback.ops.creation import zeros
from pullback.ops.cumulative import cumsum
from pullback.ops.extrema import ordered
from pullback.ops.families import composite, normalise_axes, normalise_axis
from pullback.ops.indexing import take
from pullback.ops.logic import isfinite
from pullback.ops.movement import broadcast_to, concat
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum
from pullback.ops.rounding import floor
from pullback.ops.selection import clip, where
from pullback.ops.sorting import argsort, searchsorted

__all__ = ["cumulative_trapezoid", "gradient", "interp", "trapezoid", "unwrap"]


def _inexact(name: str, x: Any) -> Any:
    x = as_array(x, name)
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


# -- derivatives -----------------------------------------------------------------------------------


def _gradient_oracle(f: np.ndarray, *spacing: Any, axis: Any = None, edge_order: Any = 1) -> Any:
    return np.gradient(f, *spacing, axis=axis, edge_order=edge_order)


def _places(*gaps: float) -> np.ndarray:
    return np.cumsum(np.asarray(gaps))


@composite(
    oracle=_gradient_oracle,
    samples=lambda d: [
        Sample((d.real(6),)),
        Sample((d.real(5), 0.5), {"edge_order": 2}),
        Sample((d.real(3, 4),)),
        Sample((d.real(3, 4), 2.0), {"axis": 1}),
        Sample((d.real(3, 4), 0.5, 2.0)),
        Sample((d.real(5), d.positive(5).cumsum()), order=2 if d.dtype.kind == "f" else 0),
        Sample((d.real(5), _places(0.1, 0.5, 0.3, 0.7, 0.2)), {"edge_order": 2}, order=1),
    ],
    errors=lambda d: [
        Bad((d.real(1),), {}, ShapeError, "at least 2 points"),
        Bad((d.real(2),), {"edge_order": 2}, ShapeError, "at least 3 points"),
        Bad((d.real(3),), {"edge_order": 3}, DTypeError, "edge_order must be 1 or 2"),
        Bad((d.real(3), 1.0, 2.0), {}, ShapeError, "a spacing for each axis"),
        Bad((d.real(3), np.ones(2)), {}, ShapeError, "3 coordinates"),
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
    ],
)
def gradient(f: Any, /, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """The slope of a sampled function along each axis, by differences of second order inside.

    >>> pb.gradient(pb.tensor([1.0, 2.0, 4.0, 7.0]))
    tensor([1. , 1.5, 2.5, 3. ], float32, cpu)

    `spacing` is one distance for all axes, or for each axis a distance or the coordinates of its
    points. Several axes give a tuple. At the ends the differences have order `edge_order`.
    """
    f = _inexact("gradient", f)
    if edge_order not in (1, 2) or isinstance(edge_order, bool):
        raise DTypeError(f"gradient: edge_order must be 1 or 2, got {edge_order!r}.")
    axes = normalise_axes("gradient", axis, f._aval.ndim)
    if len(spacing) not in (0, 1, len(axes)):
        raise ShapeError(
            f"gradient: give one spacing, or a spacing for each axis, got {len(spacing)} for"
            f" {len(axes)} axes."
        )
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    found = []
    for d, step in zip(axes, steps, strict=True):
        n = f._aval.shape[d]
        if n <= edge_order:
            raise ShapeError(f"gradient: axis {d} needs at least {edge_order + 1} points, got {n}.")
        rows = moveaxis(f, d, -1)
        found.append(moveaxis(_slope(rows, step, n, edge_order), -1, d))
    return found[0] if len(found) == 1 else tuple(found)


def _slope(f: Any, step: Any, n: int, edge_order: int) -> Any:
    """The slope along the last axis."""
    if not is_number(step):
        step = as_array(step, "gradient")
        if step._aval.ndim == 1:
            if step._aval.shape != (n,):
                raise ShapeError(
                    f"gradient: an axis of {n} points has {n} coordinates, got shape"
                    f" {step._aval.shape}."
                )
            return _slope_between(f, step, n, edge_order)
        if step._aval.ndim:
            raise ShapeError(f"gradient: a spacing is a number or 1-D, got {step._aval.shape}.")
    parts = [(f[..., 2:] - f[..., :-2]) / (2.0 * step)]
    if edge_order == 1:
        first, last = f[..., 1:2] - f[..., :1], f[..., -1:] - f[..., -2:-1]
    else:
        first = -1.5 * f[..., :1] + 2.0 * f[..., 1:2] - 0.5 * f[..., 2:3]
        last = 0.5 * f[..., -3:-2] - 2.0 * f[..., -2:-1] + 1.5 * f[..., -1:]
    return concat([first / step, *parts, last / step], axis=-1)


def _slope_between(f: Any, places: Any, n: int, edge_order: int) -> Any:
    """The same for coordinates of any distances."""
    gaps = places[1:] - places[:-1]
    before, after = gaps[:-1], gaps[1:]
    whole = before + after
    inside = (
        f[..., :-2] * (-after / (before * whole))
        + f[..., 1:-1] * ((after - before) / (before * after))
        + f[..., 2:] * (before / (after * whole))
    )
    if edge_order == 1:
        first = (f[..., 1:2] - f[..., :1]) / gaps[:1]
        last = (f[..., -1:] - f[..., -2:-1]) / gaps[-1:]
        return concat([first, inside, last], axis=-1)
    a, b = gaps[:1], gaps[1:2]
    first = (
        f[..., :1] * (-(2.0 * a + b) / (a * (a + b)))
        + f[..., 1:2] * ((a + b) / (a * b))
        - f[..., 2:3] * (a / (b * (a + b)))
    )
    a, b = gaps[-2:-1], gaps[-1:]
    last = (
        f[..., -3:-2] * (b / (a * (a + b)))
        - f[..., -2:-1] * ((a + b) / (a * b))
        + f[..., -1:] * ((2.0 * b + a) / (b * (a + b)))
    )
    return concat([first, inside, last], axis=-1)


# -- integrals -------------------------------------------------------------------------------------


def _panels(name: str, y: Any, x: Any, dx: Any, axis: Any) -> tuple[Any, int]:
    """The areas between neighbouring samples, along the last axis, and which axis that was."""
    y = _inexact(name, y)
    axis = normalise_axis(name, axis, y._aval.ndim)
    rows = moveaxis(y, axis, -1)
    n = rows._aval.shape[-1]
    width: Any = dx
    if x is not None:
        x = _inexact(name, x)  # differences of unsigned integers would wrap around
        if x._aval.ndim == 1 and x._aval.shape[0] != n:
            raise ShapeError(f"{name}: {n} samples have {n} places, got {x._aval.shape[0]}.")
        if x._aval.ndim != 1:
            if x._aval.shape != y._aval.shape:
                raise ShapeError(
                    f"{name}: places are 1-D or have the samples' shape {y._aval.shape}, got"
                    f" {x._aval.shape}."
                )
            x = moveaxis(x, axis, -1)
        width = x[..., 1:] - x[..., :-1]
    return (rows[..., 1:] + rows[..., :-1]) * 0.5 * width, axis


def _area_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(5),)),
        Sample((d.real(2, 4),), {"dx": 0.5}),
        Sample((d.real(4, 2),), {"axis": 0, "dx": 2.0}),
        Sample((d.real(2, 4), d.real(4))),
        Sample((d.real(3, 2), d.real(3, 2)), {"axis": 0}),
    ]


def _area_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(3), d.real(2)), {}, ShapeError, "3 places"),
        Bad((d.real(3, 2), d.real(2, 3)), {}, ShapeError, "the samples' shape"),
    ]


@composite(
    oracle="numpy.trapezoid",
    samples=lambda d: [*_area_samples(d), Sample((d.real(1),))],
    errors=_area_errors,
)
def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples `y` at places `x`, or `dx` apart, by the trapezoidal rule.

    >>> pb.trapezoid(pb.tensor([1.0, 2.0, 4.0]), dx=0.5)
    tensor(2.25, float32, cpu)
    """
    return sum(_panels("trapezoid", y, x, dx, axis)[0], axis=-1)


@composite(
    oracle="scipy.integrate.cumulative_trapezoid",
    samples=lambda d: [*_area_samples(d), Sample((d.real(2, 4),), {"initial": 0})],
    errors=lambda d: [
        *_area_errors(d),
        Bad((d.real(3),), {"initial": 1}, DTypeError, "initial must be 0 or None"),
    ],
)
def cumulative_trapezoid(
    y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: int | None = None
) -> Any:
    """The integrals from the first sample to each later one, by the trapezoidal rule.

    >>> pb.cumulative_trapezoid(pb.tensor([1.0, 2.0, 4.0]), initial=0)
    tensor([0. , 1.5, 4.5], float32, cpu)

    With `initial=0` there is one for the first sample, too.
    """
    if initial is not None and (isinstance(initial, bool) or initial != 0):
        raise DTypeError(f"cumulative_trapezoid: initial must be 0 or None, got {initial!r}.")
    areas, axis = _panels("cumulative_trapezoid", y, x, dx, axis)
    total = cumsum(areas, axis=-1)
    if initial is not None:
        av = total._aval
        first = zeros((*av.shape[:-1], 1), dtype=av.dtype, device=av.device)
        total = concat([first, total], axis=-1)
    return moveaxis(total, -1, axis)


# -- between samples -------------------------------------------------------------------------------


def _interp_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind == "c":
        return []
    xp = np.asarray([-2.0, -0.5, 0.7, 2.5]).astype(d.dtype)
    x = np.asarray([[-3.0, -1.1, 0.1], [0.3, 2.2, 4.0]]).astype(d.dtype)
    return [
        Sample((x, xp, d.real(4)), order=2),
        Sample((x, xp, d.real(4)), {"left": -1.0, "right": 7.0}, order=2),
        Sample((x, xp, d.real(4)), {"period": 5.0}, order=2),
        Sample((xp, xp, d.real(4)), order=0),
        Sample((np.append(x, xp), xp, np.array([1.0, np.inf, 2.0, -np.inf])), order=0),
        Sample((x, xp[:1], d.real(1)), order=1),
    ]


@composite(
    oracle="numpy.interp",
    samples=_interp_samples,
    errors=lambda d: [
        Bad((d.real(2), d.real(3), d.real(2)), {}, ShapeError, "as many values as places"),
        Bad((d.real(2), d.real(0), d.real(0)), {}, ShapeError, "at least one place"),
        Bad((d.real(2), d.real(2), d.real(2)), {"period": 0}, DTypeError, "period must be"),
        Bad((np.ones(2, complex), np.ones(2), np.ones(2)), {}, DTypeError, "no order"),
    ],
)
def interp(
    x: Any,
    xp: Any,
    fp: Any,
    /,
    left: Any = None,
    right: Any = None,
    period: float | None = None,
) -> Any:
    """The piecewise linear function through the points (xp, fp), at `x`; `xp` must increase.

    >>> pb.interp(pb.tensor([0.5, 3.0]), pb.tensor([0.0, 1.0, 2.0]), pb.tensor([1.0, 3.0, 4.0]))
    tensor([2., 4.], float32, cpu)

    Outside it is `left` and `right`, by default the first and the last value. With a `period` the
    places may be in any order. It can be differentiated by `x`, `xp` and `fp`.
    """
    x, xp = (_inexact("interp", ordered("interp", v)) for v in same_dtype("interp", x, xp))
    fp = _inexact("interp", fp)
    if xp._aval.ndim != 1 or fp._aval.shape != xp._aval.shape:
        raise ShapeError(
            f"interp: needs as many values as places, both 1-D, got {xp._aval.shape} and"
            f" {fp._aval.shape}."
        )
    if xp._aval.size == 0:
        raise ShapeError("interp: needs at least one place, got none.")
    if period is not None:
        if isinstance(period, bool) or not isinstance(period, (int, float)) or not period:
            raise DTypeError(f"interp: period must be a number other than 0, got {period!r}.")
        x, xp, fp = _wrapped(x, xp, fp, abs(float(period)))
        left = right = None
    n = xp._aval.shape[0]
    if n == 1:
        inside = broadcast_to(fp[0], x._aval.shape)
    else:
        low = clip(searchsorted(xp, x, side="right") - 1, 0, n - 2)
        start, end = take(xp, low), take(xp, low + 1)
        weight = clip((x - start) / (end - start), 0.0, 1.0)
        first, last = take(fp, low), take(fp, low + 1)
        gap = last - first
        usual = isfinite(gap)
        # between a number and an infinity it is infinite, but not at the number
        ends = where(weight == 0.0, first, where(weight == 1.0, last, first + last))
        inside = where(usual, first + where(usual, gap, 0.0) * weight, ends)
    below = fp[0] if left is None else left
    above = fp[-1] if right is None else right
    return where(x < xp[0], below, where(x > xp[-1], above, inside))


def _wrapped(x: Any, xp: Any, fp: Any, period: float) -> tuple[Any, Any, Any]:
    """Places within a period in order, with one more on each side."""
    x, xp = (v - floor((v / period).detach()) * period for v in (x, xp))
    order = argsort(xp.detach())
    xp, fp = take(xp, order), take(fp, order)
    around = concat([xp[-1:] - period, xp, xp[:1] + period])
    return x, around, concat([fp[-1:], fp, fp[:1]])


# -- phases ----------------------------------------------------------------------------------------


def _phases(d: Draw) -> np.ndarray:
    return np.asarray([0.1, 2.0, -2.5, -0.4, 3.0, 9.0]).astype(d.dtype)


def _unwrap_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind == "c":
        return []
    return [
        Sample((_phases(d),)),
        Sample((np.stack([_phases(d), _phases(d)[::-1]], 1),), {"axis": 0}),
        Sample((_phases(d) * 60,), {"period": 360.0}),
        Sample((_phases(d), 4.0)),
    ]


def _unwrap_errors() -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((np.ones(3, complex),), {}, DTypeError, "no order"),
    ]


@composite(oracle="numpy.unwrap", samples=_unwrap_samples, errors=_unwrap_errors())
def unwrap(
    p: Any, /, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi
) -> Any:
    """Phases moved by whole periods, so that neighbours differ by half a period at most.

    >>> pb.unwrap(pb.tensor([0.0, 3.0, -3.0]))
    tensor([0.       , 3.       , 3.2831855], float32, cpu)

    Jumps below `discont` (half a period) are left as they are.
    """
    p = _inexact("unwrap", ordered("unwrap", p))
    axis = normalise_axis("unwrap", axis, p._aval.ndim)
    rows = moveaxis(p, axis, -1)
    if rows._aval.shape[-1] < 2:
        return p
    steps = (rows[..., 1:] - rows[..., :-1]).detach()
    half = period / 2
    wrapped = (steps + half) - floor((steps + half) / period) * period - half
    wrapped = where((wrapped == -half) & (steps > 0), half, wrapped)
    limit = half if discont is None else discont
    corrections = where(where(steps < 0, -steps, steps) < limit, 0.0, wrapped - steps)
    moved = rows[..., 1:] + cumsum(corrections, axis=-1)
    return moveaxis(concat([rows[..., :1], moved], axis=-1), -1, axis)
