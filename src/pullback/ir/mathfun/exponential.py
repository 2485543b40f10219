"""exp and its relatives: x = n ln2 + r with |r| <= ln2/2, then 2^n (1 + r + r^2 P(r)).

Where one rounding too many would show, the value in between is a pair (see exact.py).
"""

from __future__ import annotations

from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.ir.mathfun import coefficients as cf
from pullback.ir.mathfun.exact import (
    Pair,
    fast_two_sum,
    format_of,
    is_single,
    maximum,
    minimum,
    num,
    polynomial,
)
from pullback.ir.scalar import Expr, abs_, bitcast, const, fma, select

__all__ = ["exp", "exp2", "expm1", "sigmoid"]

# Beyond these exp is 0 or infinite, and expm1 is -1.
_EXP_RANGE = {dt.float32: (-104.0, 89.0), dt.float64: (-746.0, 710.0)}
_EXP2_RANGE = {dt.float32: (-151.0, 128.5), dt.float64: (-1076.0, 1024.5)}
_EXPM1_LOW = {dt.float32: -18.0, dt.float64: -38.0}


class Scale(NamedTuple):
    """2^n as two factors, so that products reach the subnormals and the largest floats."""

    first: Expr
    second: Expr

    def times(self, y: Expr) -> Expr:
        return (y * self.first) * self.second


def scale_of(t: Expr, n: Expr) -> Scale:
    """2^n where t = n + magic, for n from below the subnormals to one above the largest float."""
    f = format_of(n)
    shift = f.bias // 2
    low = n < num(-f.bias * 0.75, n)
    # The first exponent keeps off both ends of its range: n - 1, or n + shift where n is low.
    offset = select(
        low,
        const((f.bias + shift) << f.fraction, f.bits),
        const((f.bias - 1) << f.fraction, f.bits),
    )
    first = bitcast((bitcast(t, f.bits) << f.fraction) + offset, n.dtype)
    return Scale(first, select(low, num(2.0**-shift, n), num(2.0, n)))


def power_of_two(t: Expr) -> Expr:
    """2^n where t = n + magic, for n within the exponents of normal floats."""
    f = format_of(t)
    return bitcast((bitcast(t, f.bits) << f.fraction) + f.one, t.dtype)


def exp_tail(r: Expr) -> Expr:
    """P in exp(r) = 1 + r + r^2 P(r)."""
    return polynomial(r, cf.EXP_32 if is_single(r) else cf.EXP_64)


def _reduced(x: Expr) -> tuple[Expr, Expr, Expr]:
    """n + magic, n, and x minus n times the leading part of ln2, which is exact."""
    magic = num(format_of(x).magic, x)
    t = fma(x, num(cf.INV_LN2[0], x), magic)
    n = t - magic
    return t, n, fma(n, num(-_ln2(x)[0], x), x)


def _ln2(x: Expr) -> tuple[float, ...]:
    return cf.LN2_32 if is_single(x) else cf.LN2_64


def exp(x: Expr) -> Expr:
    """e^x."""
    low, high = _EXP_RANGE[x.dtype]
    t, n, r = _reduced(minimum(maximum(x, low), high))
    r = fma(n, num(-_ln2(x)[1], x), r)
    y = fma(r * r, exp_tail(r), r) + 1.0
    return scale_of(t, n).times(y)


def exp2(x: Expr) -> Expr:
    """2^x."""
    low, high = _EXP2_RANGE[x.dtype]
    x = minimum(maximum(x, low), high)
    magic = num(format_of(x).magic, x)
    t = x + magic
    n = t - magic
    r = x - n
    y = fma(r, polynomial(r, cf.EXP2_32 if is_single(x) else cf.EXP2_64), num(1.0, x))
    return scale_of(t, n).times(y)


class Exponential(NamedTuple):
    """exp(x) - 1 = 2^n (1 + tail) - 1 with `tail` = exp(r) - 1 as a pair, and t = n + magic."""

    t: Expr
    n: Expr
    tail: Pair

    @property
    def pair(self) -> Pair:
        """exp(r) between sqrt(1/2) and sqrt(2)."""
        one = num(1.0, self.n)
        s, error = fast_two_sum(one, self.tail[0])
        return s, error + self.tail[1]


def exponential(x: Expr, correction: Expr | None = None) -> Exponential:
    """exp(x + correction) in parts; the caller keeps x in the range of `exp`."""
    t, n, leading = _reduced(x)
    low = n * num(-_ln2(x)[1], x)
    if correction is not None:
        low = low + correction
    r, rest = fast_two_sum(leading, low)
    tail = fma(r * r, exp_tail(r), fma(rest, r, rest))
    return Exponential(t, n, fast_two_sum(r, tail))


def scaled_expm1(x: Expr, shift: int) -> Pair:
    """2^-shift (e^x - 1) as a pair, while that is finite; relative accuracy down to 0."""
    e = exponential(x)
    unit = power_of_two(e.t - float(shift))
    s, error = fast_two_sum_by_size(unit - 2.0**-shift, unit * e.tail[0])
    return s, fma(unit, e.tail[1], error)


def fast_two_sum_by_size(a: Expr, b: Expr) -> Pair:
    """a + b exactly, by whichever of the two is larger."""
    swap = abs_(a) < abs_(b)
    return fast_two_sum(select(swap, b, a), select(swap, a, b))


def expm1(x: Expr) -> Expr:
    """e^x - 1, accurate next to 0."""
    high = _EXP_RANGE[x.dtype][1]
    s, error = scaled_expm1(minimum(maximum(x, _EXPM1_LOW[x.dtype]), high), 1)
    y = (s + error) * 2.0
    small = abs_(x) < num(2.0 ** -(format_of(x).fraction + 2), x)
    return select(small, x, y)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), accurate in both tails."""
    e = exponential(maximum(-abs_(x), _EXP_RANGE[x.dtype][0]))
    scale = scale_of(e.t, e.n)
    high, low = (scale.times(part) for part in e.pair)
    one, zero = num(1.0, x), num(0.0, x)
    denominator, error = fast_two_sum(one, high)
    positive = x > zero
    top = select(positive, one, high)
    inverse = one / denominator
    q = top * inverse
    rest = fma(-q, denominator, top) + fma(-q, error + low, select(positive, zero, low))
    return fma(rest, inverse, q)
