"""Logistic, error and gamma functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import mathfun, scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.ir.scalar import Complex, Expr, Value, select
from pullback.ops.arithmetic import inverse
from pullback.ops.exponential import exp, log
from pullback.ops.families import elementwise, primitive
from pullback.ops.parts import astype, cc
from pullback.ops.selection import where

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "logaddexp",
    "polygamma",
    "sigmoid",
    "xlogy",
]


def _sigmoid(x: Value) -> Value:
    if isinstance(x, Complex):
        return inverse(mathfun.exp(-x) + 1.0)
    return mathfun.sigmoid(x)


@elementwise(
    "x",
    body=_sigmoid,
    accepts="fc",
    vjp={"x": lambda g, out: g * cc(out * (1.0 - out))},
    domain=(-1.5, 1.5),
    oracle=lambda x: 1.0 / (1.0 + np.exp(-x)),
    methods=("sigmoid",),
)
def sigmoid(x, /):
    """The logistic function `1 / (1 + exp(-x))`.

    >>> pb.sigmoid(pb.tensor([0.0, 2.0]))
    tensor([0.5      , 0.8807971], float32, cpu)
    """


def _log_sum(x: Expr, y: Expr) -> Expr:
    """Equal infinities have no difference, so equal operands go their own way."""
    apart = scalar.abs_(x - y)
    larger = select((x >= y) | (x != x), x, y)
    return select(x == y, x + math.log(2.0), larger + mathfun.log1p(mathfun.exp(-apart)))


def _share(g: Any, x: Any, y: Any) -> Any:
    """g times the share exp(x) of exp(x) + exp(y): half of it between equal infinities."""
    apart = x - y
    return g * sigmoid(where((x == y) & (apart != apart), 0.0, apart))


@elementwise(
    "x y",
    body=_log_sum,
    accepts="f",
    vjp={"x": lambda g, x, y: _share(g, x, y), "y": lambda g, x, y: _share(g, y, x)},
    oracle=np.logaddexp,
)
def logaddexp(x, y, /):
    """`log(exp(x) + exp(y))` without overflow.

    >>> pb.logaddexp(pb.tensor([0.0, 1000.0]), 0.0)
    tensor([6.931472e-01, 1.000000e+03], float32, cpu)
    """


def _x_log_y(x: Expr, y: Expr) -> Expr:
    return select((x == 0.0) & (y == y), 0.0, x * mathfun.log(y))


def _xlogy_vjp_x(g: Any, x: Any, y: Any) -> Any:
    constant = (x == 0.0) & (y <= 0.0)
    return where(constant, 0.0, g * log(where(constant, 1.0, y)))


@elementwise(
    "x y",
    body=_x_log_y,
    accepts="f",
    vjp={
        "x": _xlogy_vjp_x,
        "y": lambda g, x, y: g * (x / where((x == 0.0) & (y == 0.0), 1.0, y)),
    },
    domain=((-2.0, 2.0), (0.3, 3.0)),
    oracle="scipy.special.xlogy",
)
def xlogy(x, y, /):
    """`x * log(y)`, and 0 where x is 0, whatever y is.

    >>> pb.xlogy(pb.tensor([0.0, 2.0]), pb.tensor([0.0, 1.0]))
    tensor([0., 0.], float32, cpu)
    """


# -- error and gamma functions ---------------------------------------------------------------------

_ERF_SLOPE = 2.0 / math.sqrt(math.pi)


@elementwise(
    "x",
    body=mathfun.erf,
    accepts="f",
    vjp={"x": lambda g, x: g * (exp(-x * x) * _ERF_SLOPE)},
    oracle="scipy.special.erf",
)
def erf(x, /):
    """The error function: 2 / sqrt(pi) times the integral of `exp(-t**2)` from 0 to x.

    >>> pb.erf(pb.tensor([0.0, 1.0]))
    tensor([0.        , 0.84270084], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.erfc,
    accepts="f",
    vjp={"x": lambda g, x: -g * (exp(-x * x) * _ERF_SLOPE)},
    oracle="scipy.special.erfc",
)
def erfc(x, /):
    """`1 - erf(x)`, accurate for large x.

    >>> pb.erfc(pb.tensor([0.0, 5.0]))
    tensor([1.0000000e+00, 1.5374598e-12], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.erfinv,
    accepts="f",
    vjp={"x": lambda g, out: g * (exp(out * out) / _ERF_SLOPE)},
    domain=(-0.9, 0.9),
    oracle="scipy.special.erfinv",
)
def erfinv(x, /):
    """The inverse of erf.

    >>> pb.erfinv(pb.tensor([0.0, 0.5]))
    tensor([0.        , 0.47693628], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.lgamma,
    accepts="f",
    vjp={"x": lambda g, x: g * digamma(x)},
    domain=(0.3, 4.0),
    oracle="scipy.special.gammaln",
)
def lgamma(x, /):
    """The logarithm of the absolute value of the gamma function.

    >>> pb.lgamma(pb.tensor([1.0, 5.0]))
    tensor([0.       , 3.1780539], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.digamma,
    accepts="f",
    vjp={"x": lambda g, x: g * polygamma(1, x)},
    domain=(0.3, 4.0),
    oracle="scipy.special.digamma",
)
def digamma(x, /):
    """The derivative of lgamma.

    >>> pb.digamma(pb.tensor([1.0, 5.0]))
    tensor([-0.5772157,  1.5061177], float32, cpu)
    """


# Coefficients of the series grow like n!, and are floats up to here.
MOST_DERIVATIVES = 128


@primitive(
    "x",
    infer=lambda x, n: (x.shape, x.dtype),
    lowering=Elementwise(lambda x, n: mathfun.polygamma(n, x)),
    batch="elementwise",
    vjp={"x": lambda g, x, n: g * polygamma(n + 1, x)},
    jvp="elementwise",
    oracle="scipy.special.polygamma",
    samples=lambda d: [
        *[Sample((n, d.positive(3, 4, low=0.7))) for n in (0, 1, 2, 3)],
        Sample((1, d.positive())),
        Sample((1, d.real(0, 2))),
    ],
    errors=lambda d: [
        Bad((-1, d.real(2)), {}, DTypeError, "n must be a nonnegative integer"),
        Bad((0.5, d.real(2)), {}, DTypeError, "n must be a nonnegative integer"),
        Bad((10**6, d.real(2)), {}, ShapeError, "n must be at most 128"),
        Bad((1, np.ones(2, np.complex64)), {}, DTypeError, "got complex64"),
    ],
)
def polygamma(n: int, x: Any, /) -> Any:
    """The derivative of order n of digamma, for a Python integer n up to 128.

    >>> pb.polygamma(1, pb.tensor([1.0, 5.0]))
    tensor([1.644934  , 0.22132295], float32, cpu)
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise DTypeError(f"polygamma: n must be a nonnegative integer, got {n!r}.")
    if n > MOST_DERIVATIVES:
        raise ShapeError(f"polygamma: n must be at most {MOST_DERIVATIVES}, got {n}.")
    x = as_array(x, "polygamma")
    dtype = x._aval.dtype
    if dtype.is_complex:
        raise DTypeError(f"polygamma: expected a floating dtype, got {dtype.name}.")
    if not dtype.is_float:
        x = astype(x, default_float())
    return digamma(x) if n == 0 else bind(polygamma.op, x, n=int(n))
