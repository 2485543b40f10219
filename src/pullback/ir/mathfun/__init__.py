"""Elementary and special functions as branch-free expressions of the scalar language.

Each takes and gives an `Expr` of dtype float32 or float64; those with a complex continuation take
and give a `Complex` too. Accuracy: docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from pullback.ir.mathfun import complexfun as _complex
from pullback.ir.mathfun import exponential as _exponential
from pullback.ir.mathfun import hyperbolic as _hyperbolic
from pullback.ir.mathfun import logarithm as _logarithm
from pullback.ir.mathfun import trigonometric as _trigonometric
from pullback.ir.mathfun.exponential import exp2, sigmoid
from pullback.ir.mathfun.logarithm import cbrt, hypot, log2, log10, rsqrt
from pullback.ir.mathfun.special import digamma, erf, erfc, erfinv, lgamma, polygamma
from pullback.ir.mathfun.trigonometric import atan2
from pullback.ir.scalar import Complex, Expr, Value, abs_, copysign
from pullback.ir.scalar import sqrt as _sqrt

__all__ = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "polygamma",
    "pow_",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

V = TypeVar("V", Expr, Complex)


class ScalarFunction(Protocol):
    """A function of a real or a complex element."""

    __name__: str

    def __call__(self, x: V, /) -> V: ...


def _either(real: Callable[[Expr], Expr], other: Callable[[Complex], Complex]) -> ScalarFunction:
    def function(x: V, /) -> V:
        return other(x) if isinstance(x, Complex) else real(x)

    function.__name__ = function.__qualname__ = real.__name__
    function.__doc__ = real.__doc__
    return function


exp = _either(_exponential.exp, _complex.exp)
expm1 = _either(_exponential.expm1, _complex.expm1)
log = _either(_logarithm.log, _complex.log)
log1p = _either(_logarithm.log1p, _complex.log1p)
sqrt = _either(_sqrt, _complex.sqrt)
sin = _either(_trigonometric.sin, _complex.sin)
cos = _either(_trigonometric.cos, _complex.cos)
tan = _either(_trigonometric.tan, _complex.tan)
asin = _either(_trigonometric.asin, _complex.asin)
acos = _either(_trigonometric.acos, _complex.acos)
atan = _either(_trigonometric.atan, _complex.atan)
sinh = _either(_hyperbolic.sinh, _complex.sinh)
cosh = _either(_hyperbolic.cosh, _complex.cosh)
tanh = _either(_hyperbolic.tanh, _complex.tanh)
asinh = _either(_hyperbolic.asinh, _complex.asinh)
acosh = _either(_hyperbolic.acosh, _complex.acosh)
atanh = _either(_hyperbolic.atanh, _complex.atanh)


def abs(x: Value) -> Expr:
    """|x|: hypot of the parts where x is complex."""
    return _complex.absolute(x) if isinstance(x, Complex) else abs_(x)


def angle(x: Value) -> Expr:
    """The argument of x: for real x, 0 or pi by its sign bit."""
    if isinstance(x, Complex):
        return _complex.angle(x)
    return atan2(copysign(0.0, abs_(x)), x)


@overload
def pow_(x: Expr, y: Expr) -> Expr: ...
@overload
def pow_(x: Complex, y: Value) -> Complex: ...
@overload
def pow_(x: Value, y: Complex) -> Complex: ...
def pow_(x: Value, y: Value) -> Value:
    """x^y, real with the special cases of C, or complex where either is."""
    if isinstance(x, Complex):
        return _complex.pow_(x, Complex.of(y, x))
    if isinstance(y, Complex):
        return _complex.pow_(Complex.of(x, y), y)
    return _logarithm.pow_(x, y)
