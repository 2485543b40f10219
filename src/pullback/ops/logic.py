"""Comparisons and logic: operations whose values are booleans."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value
from pullback.ops.families import broadcast_shapes, composite, elementwise
from pullback.ops.parts import astype
from pullback.ops.selection import truth

__all__ = [
    "allclose",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]

_BOOLEAN = "its values are booleans"


def _pairs(d: Draw) -> list[Sample]:
    special = np.array([0.0, -0.0, np.nan, np.inf, 1.0])
    return [
        Sample((d.real(3, 5), d.real(3, 5))),
        Sample((d.real(), d.real())),
        Sample((d.real(0, 2), d.real(0, 2))),
        Sample((d.integers(4, 1, 3), d.integers(2, 3))),
        Sample((d.integers(19, low=-5, dtype=np.int8), 2)),
        Sample((d.mask(19), d.mask(19))),
        Sample((special, special[:, None])),
    ]


def _singles(d: Draw) -> list[Sample]:
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 1e300])
    pairs = np.empty((7, 7), np.complex128)
    pairs.real, pairs.imag = special, special[:, None]
    return [
        Sample((d.real(3, 5),)),
        Sample((d.real(),)),
        Sample((d.real(0, 2),)),
        Sample((d.integers(19, high=3),)),
        Sample((d.mask(19),)),
        Sample((special,)),
        Sample((pairs,)),
    ]


@elementwise(
    "x y",
    body=lambda x, y: x == y,
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.equal,
    methods=("__eq__",),
)
def equal(x, y, /):
    """`x == y`.

    >>> pb.equal(pb.tensor([1.0, 2.0]), 2.0)
    tensor([False,  True], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x != y,
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.not_equal,
    methods=("__ne__",),
)
def not_equal(x, y, /):
    """`x != y`; true for NaN.

    >>> pb.not_equal(pb.tensor([1.0, 2.0]), 2.0)
    tensor([ True, False], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x < y,
    accepts="biuf",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.less,
    methods=("__lt__",),
)
def less(x, y, /):
    """`x < y`.

    >>> pb.less(pb.tensor([1.0, 2.0]), 2.0)
    tensor([ True, False], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x <= y,
    accepts="biuf",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.less_equal,
    methods=("__le__",),
)
def less_equal(x, y, /):
    """`x <= y`.

    >>> pb.less_equal(pb.tensor([1.0, 2.0]), 2.0)
    tensor([ True,  True], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x > y,
    accepts="biuf",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.greater,
    methods=("__gt__",),
)
def greater(x, y, /):
    """`x > y`.

    >>> pb.greater(pb.tensor([1.0, 2.0]), 2.0)
    tensor([False, False], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x >= y,
    accepts="biuf",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.greater_equal,
    methods=("__ge__",),
)
def greater_equal(x, y, /):
    """`x >= y`.

    >>> pb.greater_equal(pb.tensor([1.0, 2.0]), 2.0)
    tensor([False,  True], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: truth(x) & truth(y),
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.logical_and,
)
def logical_and(x, y, /):
    """Whether both x and y are not zero.

    >>> pb.logical_and(pb.tensor([True, False]), True)
    tensor([ True, False], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: truth(x) | truth(y),
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.logical_or,
)
def logical_or(x, y, /):
    """Whether x or y is not zero.

    >>> pb.logical_or(pb.tensor([True, False]), True)
    tensor([ True,  True], bool, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: truth(x) ^ truth(y),
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_pairs,
    oracle=np.logical_xor,
)
def logical_xor(x, y, /):
    """Whether exactly one of x and y is not zero.

    >>> pb.logical_xor(pb.tensor([True, False]), True)
    tensor([False,  True], bool, cpu)
    """


@elementwise(
    "x",
    body=lambda x: scalar.logical_not(truth(x)),
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_singles,
    oracle=np.logical_not,
)
def logical_not(x, /):
    """Whether x is zero.

    >>> pb.logical_not(pb.tensor([True, False]))
    tensor([False,  True], bool, cpu)
    """


# -- kinds of floats -------------------------------------------------------------------------------


def _is_nan(x: Value) -> Expr:
    return (x.re != x.re) | (x.im != x.im) if isinstance(x, Complex) else x != x


def _is_infinite(x: Value) -> Expr:
    if isinstance(x, Complex):
        return _is_infinite(x.re) | _is_infinite(x.im)
    return scalar.abs_(x) == np.inf if x.dtype.kind == "f" else x != x


def _is_finite(x: Value) -> Expr:
    if isinstance(x, Complex):
        return _is_finite(x.re) & _is_finite(x.im)
    return scalar.abs_(x) < np.inf if x.dtype.kind == "f" else x == x


@elementwise(
    "x",
    body=_is_nan,
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_singles,
    oracle=np.isnan,
)
def isnan(x, /):
    """Whether x is NaN, in one part at least.

    >>> pb.isnan(pb.tensor([1.0, float("inf"), float("nan")]))
    tensor([False, False,  True], bool, cpu)
    """


@elementwise(
    "x",
    body=_is_infinite,
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_singles,
    oracle=np.isinf,
)
def isinf(x, /):
    """Whether x is infinite, in one part at least.

    >>> pb.isinf(pb.tensor([1.0, float("inf"), float("nan")]))
    tensor([False,  True, False], bool, cpu)
    """


@elementwise(
    "x",
    body=_is_finite,
    accepts="biufc",
    result="bool",
    no_gradient=_BOOLEAN,
    samples=_singles,
    oracle=np.isfinite,
)
def isfinite(x, /):
    """Whether x is neither infinite nor NaN.

    >>> pb.isfinite(pb.tensor([1.0, float("inf"), float("nan")]))
    tensor([ True, False, False], bool, cpu)
    """


# -- closeness -------------------------------------------------------------------------------------


def _close_samples(d: Draw) -> list[Sample]:
    x = d.real(3, 5)
    special = np.array([np.nan, np.inf, -np.inf, 1.0])
    return [
        Sample((x, x + d.real(3, 5) * x.dtype.type(1e-5))),
        Sample((x, x[0]), {"rtol": 0.5, "atol": 0.1}),
        Sample((special, special[:, None])),
        Sample((special, special[:, None]), {"equal_nan": True}),
        Sample((d.integers(19, high=3, dtype=np.uint8), d.integers(19, high=3, dtype=np.uint8))),
    ]


def _close_errors(d: Draw) -> list[Bad]:
    return [
        Bad((object(), 1.0), {}, DTypeError, "expected an array"),
        Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
    ]


@composite(oracle=np.isclose, samples=_close_samples, errors=_close_errors, differentiable=False)
def isclose(
    x: Any, y: Any, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Whether `abs(x - y) <= atol + rtol * abs(y)`, or x and y are equal.

    >>> pb.isclose(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 2.1]))
    tensor([ True, False], bool, cpu)
    """
    return _close("isclose", x, y, rtol, atol, equal_nan)


def _close(name: str, x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
    x, y = (as_array(a, name) for a in (x, y))
    broadcast_shapes(name, x._aval.shape, y._aval.shape)
    # differences of integers would wrap
    x, y = (a if a._aval.dtype.is_inexact else astype(a, dt.float64) for a in (x, y))
    close = isfinite(y) & (abs(x - y) <= atol + rtol * abs(y)) | (x == y)
    return close | (isnan(x) & isnan(y)) if equal_nan else close


@composite(oracle=np.allclose, samples=_close_samples, errors=_close_errors, differentiable=False)
def allclose(
    x: Any, y: Any, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Whether all elements are close, as `isclose` says it.

    >>> pb.allclose(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 2.1]))
    tensor(False, bool, cpu)
    """
    return REGISTRY["all"].function(_close("allclose", x, y, rtol, atol, equal_nan))
