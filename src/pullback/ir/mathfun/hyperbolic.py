"""The hyperbolic functions from pairs of exp and expm1, their inverses from logarithms of pairs."""

from __future__ import annotations

from pullback.ir.mathfun import coefficients as cf
from pullback.ir.mathfun.exact import (
    INF,
    NAN,
    Pair,
    fast_two_sum,
    is_single,
    minimum,
    narrow,
    num,
    pair_quotient,
    polynomial,
    tiny_as_is,
    two_product,
    two_sum,
    widen,
)
from pullback.ir.mathfun.exponential import exp, exponential, power_of_two, scaled_expm1
from pullback.ir.mathfun.logarithm import log_of_sum
from pullback.ir.scalar import Expr, abs_, copysign, fma, select, sqrt

__all__ = ["acosh", "asinh", "atanh", "cosh", "sinh", "tanh"]

_LARGEST = 710.6  # a little beyond the overflow of sinh and cosh, within that of e^x / 4


def _plus(pair: Pair, value: float) -> Pair:
    s, error = two_sum(pair[0], num(value, pair[0]))
    return s, error + pair[1]


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    size = abs_(x)
    if is_single(x):
        z = x * x
        inner = fma(z * size, polynomial(z, cf.TANH_32), size)
        outer = num(1.0, x) - num(2.0, x) / (exp(size + size) + 1.0)
        return copysign(select(size < num(0.63, x), inner, outer), x)
    half = scaled_expm1(minimum(size, 20.0) * 2.0, 1)
    high, low = pair_quotient(half, _plus(half, 1.0))
    return tiny_as_is(x, copysign(high + low, x))


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine."""
    if is_single(x):
        return narrow(sinh(widen(x)), x)
    quarter = scaled_expm1(minimum(abs_(x), _LARGEST), 2)
    # With E = e^|x| - 1: sinh |x| = (E + E / (E + 1)) / 2, in quarters because e^|x| may overflow
    ratio = pair_quotient(quarter, _plus(quarter, 0.25))
    s, error = fast_two_sum(quarter[0], ratio[0] * 0.25)
    y = (s + (error + fma(ratio[1], num(0.25, x), quarter[1]))) * 2.0
    return tiny_as_is(x, copysign(y, x))


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine."""
    if is_single(x):
        return narrow(cosh(widen(x)), x)
    e = exponential(minimum(abs_(x), _LARGEST))
    unit = power_of_two(e.t - 2.0)
    high, low = e.pair
    quarter = high * unit
    s, error = fast_two_sum(quarter, num(0.0625, x) / quarter)
    return (s + fma(low, unit, error)) * 2.0


def asinh(x: Expr) -> Expr:
    """The inverse of sinh."""
    if is_single(x):
        return narrow(asinh(widen(x)), x)
    size = abs_(x)
    huge = size > num(2.0**30, x)
    a = minimum(size, 2.0**30)
    square = a * a
    q = square / (sqrt(square + 1.0) + 1.0)
    t, t_low = fast_two_sum(a, q)
    # asinh a = log(1 + a + a^2 / (1 + sqrt(1 + a^2))), and log(2a) where that is the same
    small = log_of_sum(num(1.0, x), t, t_low)
    y = select(huge, _log_twice(size), small)
    return tiny_as_is(x, copysign(y, x))


def _log_twice(x: Expr) -> Expr:
    """log(2x) for large x, without overflow."""
    y = log_of_sum(num(0.0, x), x) + num(cf.LN2_64[0], x)
    return select(x == num(INF, x), x, y)


def acosh(x: Expr) -> Expr:
    """The inverse of cosh on [1, inf); NaN below 1."""
    if is_single(x):
        return narrow(acosh(widen(x)), x)
    huge = x > num(2.0**30, x)
    a = minimum(x, 2.0**30)
    t, t_low = two_sum(a, num(-1.0, x))
    # With t = x - 1: log(1 + t + sqrt(2t + t^2))
    square, square_error = two_product(t, t)
    v, v_error = two_sum(t + t, square)
    root = sqrt(v)
    root_low = (fma(-root, root, v) + (v_error + fma(t_low, num(2.0, x), square_error))) / (
        root + root
    )
    s, error = two_sum(t, root)
    y = log_of_sum(num(1.0, x), s, error + (t_low + root_low))
    y = select(huge, _log_twice(x), y)
    return select(x < num(1.0, x), num(NAN, x), select(x == num(1.0, x), num(0.0, x), y))


def atanh(x: Expr) -> Expr:
    """The inverse of tanh; infinite at +-1, NaN beyond."""
    if is_single(x):
        return narrow(atanh(widen(x)), x)
    size = abs_(x)
    one, zero = num(1.0, x), num(0.0, x)
    inside = select(size < one, size, num(0.5, x))
    high, low = pair_quotient((inside + inside, zero), fast_two_sum(one, -inside))
    y = log_of_sum(one, high, low) * 0.5
    end = select(size == one, num(INF, x), num(NAN, x))
    return tiny_as_is(x, copysign(select(size < one, y, end), x))
