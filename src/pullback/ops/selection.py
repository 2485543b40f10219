"""One of several elements: where, the larger, the smaller, the clipped."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value, select
from pullback.ops.families import broadcast_shapes, composite, elementwise

__all__ = ["clip", "fmax", "fmin", "maximum", "minimum", "where"]


def truth(x: Value) -> Expr:
    """Whether an element is not zero; NaN is not."""
    if isinstance(x, Complex):
        return (x.re != 0.0) | (x.im != 0.0)
    return scalar.cast(x, dt.bool_)


def _choice(condition: Value, x: Value, y: Value) -> Value:
    c = truth(condition)
    if isinstance(x, Complex) and isinstance(y, Complex):
        return Complex(select(c, x.re, y.re), select(c, x.im, y.im))
    assert isinstance(x, Expr) and isinstance(y, Expr)
    return select(c, x, y)


@elementwise(
    "condition x y",
    body=_choice,
    accepts="biufc",
    unpromoted=("condition",),
    vjp={
        "x": lambda g, condition: where(condition, g, 0.0),
        "y": lambda g, condition: where(condition, 0.0, g),
    },
    samples=lambda d: [
        Sample((d.mask(3, 5), d.real(3, 5), d.real(3, 5))),
        Sample((d.mask(), d.real(), d.real())),
        Sample((d.mask(0, 2), d.real(0, 2), d.real(0, 2))),
        Sample((d.mask(4, 1, 3), d.real(2, 3), d.real())),
        Sample((d.mask(3), d.real(2, 1), d.real(4, 1, 3))),
        Sample((d.integers(19, low=-1, high=2), d.integers(19), d.integers(19))),
        Sample((d.mask(19), 1.0, d.real(19))),
        Sample((d.mask(19), d.real(19), 0)),
        Sample((d.mask(5), d.mask(5), True)),
    ],
    errors=lambda d: [
        Bad((object(), 1.0, 2.0), {}, DTypeError, "expected an array"),
        Bad((d.mask(2), d.real(3), d.real(3)), {}, ShapeError, "do not broadcast"),
    ],
    oracle=np.where,
)
def where(condition, x, y, /):
    """`x` where the condition holds (is not zero), elsewhere `y`.

    >>> pb.where(pb.tensor([True, False]), pb.tensor([1.0, 2.0]), 0.0)
    tensor([1., 0.], float32, cpu)
    """


def _ordered_samples(d: Draw) -> list[Sample]:
    """Pairs without ties, whose derivatives exist, and some with ties and NaN."""
    tied = np.array([1.0, 2.0, np.nan, 4.0, np.nan, np.inf, 0.0])
    other = np.array([1.0, 3.0, 0.0, np.nan, np.nan, -np.inf, 0.0])
    return [
        Sample((d.distinct(3, 5), d.distinct(3, 5) + d.dtype.type(0.13))),
        Sample((d.real(), d.real())),
        Sample((d.real(0, 2), d.real(0, 2))),
        Sample((d.distinct(4, 1, 3), d.distinct(2, 3) + d.dtype.type(0.13))),
        Sample((d.real(19), 0.1)),
        Sample((d.integers(19), d.integers(19))),
        Sample((tied, other), order=0),
    ]


def _sharing_samples(d: Draw) -> list[Sample]:
    """The same, and ties whose derivative is the mean of the two sides'."""
    return [
        *_ordered_samples(d),
        Sample((np.array([1.0, 2.0, 0.5]), np.array([1.0, 3.0, 0.5])), order=1),
    ]


def _larger(x: Expr, y: Expr) -> Expr:
    if x.dtype.kind == "f":
        return select((x >= y) | (x != x), x, y)
    return select(x >= y, x, y)


def _smaller(x: Expr, y: Expr) -> Expr:
    if x.dtype.kind == "f":
        return select((x <= y) | (x != x), x, y)
    return select(x <= y, x, y)


def _share(g: Any, x: Any, y: Any, loses: Any) -> Any:
    """The cotangent of x in a contest with y: nothing where it loses, half of it at a tie."""
    return where(x == y, g * 0.5, where(loses, 0.0, g))


@elementwise(
    "x y",
    body=_larger,
    accepts="biuf",
    vjp={
        "x": lambda g, x, y: _share(g, x, y, x < y),
        "y": lambda g, x, y: _share(g, x, y, y < x),
    },
    samples=_sharing_samples,
    oracle=np.maximum,
)
def maximum(x, y, /):
    """The larger of x and y, NaN if one of them is; a tie shares the derivative evenly.

    >>> pb.maximum(pb.tensor([1.0, 5.0]), 3.0)
    tensor([3., 5.], float32, cpu)
    """


@elementwise(
    "x y",
    body=_smaller,
    accepts="biuf",
    vjp={
        "x": lambda g, x, y: _share(g, x, y, x > y),
        "y": lambda g, x, y: _share(g, x, y, y > x),
    },
    samples=_sharing_samples,
    oracle=np.minimum,
)
def minimum(x, y, /):
    """The smaller of x and y, NaN if one of them is; a tie shares the derivative evenly.

    >>> pb.minimum(pb.tensor([1.0, 5.0]), 3.0)
    tensor([1., 3.], float32, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: select((x >= y) | (y != y), x, y),
    accepts="biuf",
    vjp={
        "x": lambda g, x, y: where((x >= y) | (y != y), g, 0.0),
        "y": lambda g, x, y: where((x >= y) | (y != y), 0.0, g),
    },
    samples=_ordered_samples,
    oracle=np.fmax,
)
def fmax(x, y, /):
    """The larger of x and y, or the one that is not NaN; the derivative of a tie goes to x.

    >>> pb.fmax(pb.tensor([1.0, float("nan")]), 3.0)
    tensor([3., 3.], float32, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: select((x <= y) | (y != y), x, y),
    accepts="biuf",
    vjp={
        "x": lambda g, x, y: where((x <= y) | (y != y), g, 0.0),
        "y": lambda g, x, y: where((x <= y) | (y != y), 0.0, g),
    },
    samples=_ordered_samples,
    oracle=np.fmin,
)
def fmin(x, y, /):
    """The smaller of x and y, or the one that is not NaN; the derivative of a tie goes to x.

    >>> pb.fmin(pb.tensor([5.0, float("nan")]), 3.0)
    tensor([3., 3.], float32, cpu)
    """


# A bound takes the derivative only where it replaces x: at a tie all of it belongs to x.


@elementwise(
    "x low",
    body=_larger,
    accepts="iuf",
    vjp={
        "x": lambda g, x, low: where(x < low, 0.0, g),
        "low": lambda g, x, low: where(x < low, g, 0.0),
    },
    samples=_ordered_samples,
    oracle=np.maximum,
    namespace="primitive",
)
def at_least(x, low, /):
    """x, or the bound where x is below it.

    >>> pb.primitive.at_least(pb.tensor([1.0, 5.0]), 3.0)
    tensor([3., 5.], float32, cpu)
    """


@elementwise(
    "x high",
    body=_smaller,
    accepts="iuf",
    vjp={
        "x": lambda g, x, high: where(x > high, 0.0, g),
        "high": lambda g, x, high: where(x > high, g, 0.0),
    },
    samples=_ordered_samples,
    oracle=np.minimum,
    namespace="primitive",
)
def at_most(x, high, /):
    """x, or the bound where x is above it.

    >>> pb.primitive.at_most(pb.tensor([1.0, 5.0]), 3.0)
    tensor([1., 3.], float32, cpu)
    """


@elementwise(
    "x low high",
    body=lambda x, low, high: _smaller(_larger(x, low), high),
    accepts="iuf",
    vjp={
        "x": lambda g, x, low, high: where((x < low) | (x > high), 0.0, g),
        "low": lambda g, x, low, high: where((x < low) & (low <= high), g, 0.0),
        "high": lambda g, x, low, high: where((x > high) | (low > high), g, 0.0),
    },
    domain=((-2.0, 2.0), (-1.5, -0.5), (0.5, 1.5)),
    oracle=np.clip,
    namespace="primitive",
)
def between(x, low, high, /):
    """x, or the bound that it is beyond; the upper bound wins where they are the wrong way round.

    >>> pb.primitive.between(pb.tensor([1.0, 3.5, 5.0]), 3.0, 4.0)
    tensor([3. , 3.5, 4. ], float32, cpu)
    """


@composite(
    oracle=lambda x, min=None, max=None: x.copy() if min is max is None else np.clip(x, min, max),
    samples=lambda d: [
        Sample((d.real(3, 5), -0.7, 0.9)),
        Sample((d.real(3, 5), -0.7)),
        Sample((d.real(3, 5),), {"max": 0.9}),
        Sample((d.real(4),)),
        Sample((d.real(4, 3), d.real(3, low=-1.5, high=-0.5), d.real(4, 1, low=0.5, high=1.5))),
        Sample((d.real(), None, d.real(2))),
        Sample((d.integers(19), 2, 5)),
        Sample((np.array([1.0, np.nan, np.inf, -np.inf]), 0.0, 2.0), order=0),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((d.mask(2), 0, 1), {}, DTypeError, "got bool"),
        Bad((d.real(2) + 1j, 0, 1), {}, DTypeError, "got complex128"),
    ],
    methods=("clip",),
)
def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """x limited to [min, max]; a bound may be None, a number or an array, and a NaN stays NaN.

    >>> pb.clip(pb.tensor([-1.0, 0.5, 3.0]), 0.0, 1.0)
    tensor([0. , 0.5, 1. ], float32, cpu)
    """
    given = [as_array(a, "clip") for a in (x, min, max) if a is not None]
    broadcast_shapes("clip", *[a._aval.shape for a in given])
    for a in given:
        if a._aval.dtype.kind not in "iuf":
            raise DTypeError(
                f"clip: expected an integer or floating dtype, got {a._aval.dtype.name}."
                " Cast with astype."
            )
    if min is None and max is None:
        return +given[0]
    if max is None:
        return at_least(x, min)
    return at_most(x, max) if min is None else between(x, min, max)
