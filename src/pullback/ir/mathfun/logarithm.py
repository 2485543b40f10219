"""log and its relatives, powers and roots.

log: x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), then k ln2 + log(1 + f).
"""

from __future__ import annotations

from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.ir.mathfun import coefficients as cf
from pullback.ir.mathfun.exact import (
    INF,
    NAN,
    Pair,
    fast_two_sum,
    format_of,
    is_nan,
    is_single,
    maximum,
    minimum,
    narrow,
    num,
    polynomial,
    two_product,
    two_sum,
    widen,
)
from pullback.ir.mathfun.exponential import exp, exponential, scale_of
from pullback.ir.scalar import (
    Expr,
    abs_,
    bitcast,
    const,
    copysign,
    floor,
    fma,
    logical_not,
    select,
    sqrt,
)

__all__ = ["cbrt", "hypot", "log", "log1p", "log2", "log10", "pow_", "rsqrt"]

# Bits of sqrt(1/2), rounded up.
_SQRT_HALF = {dt.float32: 0x3F3504F4, dt.float64: 0x3FE6A09E667F3BCD}


class Split(NamedTuple):
    """x = 2^k (1 + f); `field` holds the biased k in its exponent bits."""

    k: Expr
    f: Expr
    field: Expr


def split(x: Expr) -> Split:
    """The exponent and significand of a positive finite x, subnormals included."""
    fmt = format_of(x)
    lift = fmt.fraction + 2
    subnormal = x < num(fmt.tiny, x)
    bits = bitcast(select(subnormal, x * num(2.0**lift, x), x), fmt.bits)
    root = _SQRT_HALF[x.dtype]
    field = bits + (fmt.one - root)
    significand = bitcast((field & ((1 << fmt.fraction) - 1)) + root, x.dtype)
    # An integer in the low bits of a float whose ulp is 1: a conversion that every CPU vectorises.
    exponent = bitcast(
        (field >> fmt.fraction) | ((fmt.bias + fmt.fraction) << fmt.fraction), x.dtype
    )
    unit = 2.0**fmt.fraction + fmt.bias
    k = exponent - select(subnormal, num(unit + lift, x), num(unit, x))
    return Split(k, significand - 1.0, field)


def _log_pair(f: Expr, rest: Expr | None = None) -> Pair:
    """log(1 + f + rest) in float64 for 1 + f between sqrt(1/2) and sqrt(2), `rest` tiny."""
    s = f / (f + 2.0)
    z = s * s
    h, h_error = two_product(f * 0.5, f)
    high = f - h
    low = ((f - high) - h) - h_error
    low = fma(s, fma(z, polynomial(z, cf.LOG_64), h), low)
    return high, low if rest is None else low + rest


def _sum_log(k: Expr, pair: Pair) -> Expr:
    """k ln2 + pair."""
    high, low = cf.LN2_SHORT_64
    s, error = fast_two_sum(k * num(high, k), pair[0])
    return s + (error + fma(k, num(low, k), pair[1]))


def _log_single(k: Expr, f: Expr) -> Expr:
    """k ln2 + log(1 + f) in float32."""
    high, low = cf.LN2_32
    z = f * f
    tail = fma(f * z, polynomial(f, cf.LOG_32), k * num(low, k))
    return fma(k, num(high, k), fma(z, num(-0.5, z), tail) + f)


def _log_edges(x: Expr, y: Expr, zero: float = 0.0) -> Expr:
    """y, but -inf at `zero`, NaN below it, and inf at inf."""
    least = num(zero, x)
    below = select(x == least, num(-INF, x), num(NAN, x))
    return select(x == num(INF, x), x, select(x > least, y, below))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    s = split(x)
    y = _log_single(s.k, s.f) if is_single(x) else _sum_log(s.k, _log_pair(s.f))
    return _log_edges(x, y)


def _log_to_base(x: Expr, inverse: tuple[float, ...], unit: tuple[float, ...]) -> Expr:
    """log(x) times `inverse`, where `unit` is the logarithm of 2 in the new base."""
    s = split(x)
    high, low = _log_pair(s.f)
    p, error = two_product(high, num(inverse[0], x))
    rest = error + fma(high, num(inverse[1], x), low * num(inverse[0], x))
    total, sum_error = fast_two_sum(s.k * num(unit[0], x), p)
    return _log_edges(x, total + (sum_error + fma(s.k, num(unit[1], x), rest)))


def log2(x: Expr) -> Expr:
    """The logarithm to base 2."""
    if is_single(x):
        return narrow(log2(widen(x)), x)
    return _log_to_base(x, cf.INV_LN2, (1.0, 0.0))


def log10(x: Expr) -> Expr:
    """The logarithm to base 10."""
    if is_single(x):
        return narrow(log10(widen(x)), x)
    return _log_to_base(x, cf.INV_LN10, cf.LOG10_2)


def log_of_sum(one: Expr, x: Expr, correction: Expr | None = None) -> Expr:
    """log(one + x + correction), the sum taken exactly; without the edge cases."""
    fmt = format_of(x)
    u, rest = two_sum(one, x)
    if correction is not None:
        rest = rest + correction
    s = split(u)
    exponent_bits = ((1 << (8 * fmt.bits.itemsize - 1 - fmt.fraction)) - 1) << fmt.fraction
    down = bitcast(
        const(2 * fmt.bias << fmt.fraction, fmt.bits) - (s.field & exponent_bits), x.dtype
    )
    # Where 2^-k would leave the normal floats the rest is far below an ulp.
    rest = select(abs_(u) > num(2.0**100, x), num(0.0, x), rest * down)
    f, rest = two_sum(s.f, rest)
    return _log_single(s.k, f) if is_single(x) else _sum_log(s.k, _log_pair(f, rest))


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate next to 0."""
    y = _log_edges(x, log_of_sum(num(1.0, x), x), -1.0)
    small = abs_(x) < num(2.0 ** -(format_of(x).fraction + 2), x)
    return select(small, x, y)


def _wide_log(x: Expr) -> Pair:
    """log(x) in float64 as a pair with an error near 2^-65: what `pow_` needs."""
    s = split(x)
    base, base_error = fast_two_sum(num(2.0, x), s.f)
    inverse = num(1.0, x) / base
    q = s.f * inverse
    q_low = (fma(-q, base, s.f) - q * base_error) * inverse
    z, z_error = two_product(q, q)
    z_low = fma(q * 2.0, q_low, z_error)
    third, third_low = cf.THIRD
    w, w_error = two_product(z, num(third, x))
    w_low = w_error + fma(z, num(third_low, x), z_low * num(third, x))
    v, v_low = fast_two_sum(w, fma(z * z, polynomial(z, cf.LOG_WIDE), w_low))
    # log(1 + f) = 2q + 2q v
    double, double_low = q * 2.0, q_low * 2.0
    p, p_error = two_product(double, v)
    p_low = p_error + fma(double, v_low, double_low * v)
    high, error = fast_two_sum(double, p)
    low = error + (p_low + double_low)
    total, sum_error = fast_two_sum(s.k * num(cf.LN2_SHORT_64[0], x), high)
    return fast_two_sum(total, sum_error + fma(s.k, num(cf.LN2_SHORT_64[1], x), low))


def _power(x: Expr, y: Expr) -> Expr:
    """x^y in float64 for finite x > 0 and |y| below 2^66."""
    high, low = _wide_log(x)
    p, error = two_product(y, high)
    rest = fma(y, low, error)
    inside = abs_(p) < num(800.0, p)
    p = minimum(maximum(p, -746.0), 710.0)
    e = exponential(p, select(inside, rest, num(0.0, p)))
    s, error = e.pair
    return scale_of(e.t, e.n).times(s + error)


def pow_(x: Expr, y: Expr) -> Expr:
    """x^y, with the special cases of C."""
    if is_single(x):
        size, exponent = widen(abs_(x)), widen(y)
        magnitude = narrow(exp(exponent * log(size)), x)
    else:
        size = abs_(x)
        magnitude = _power(size, minimum(maximum(y, -(2.0**66)), 2.0**66))
    zero, one, inf = num(0.0, x), num(1.0, x), num(INF, x)
    at_end = (x == zero) | (abs_(x) == inf)
    goes_up = (abs_(x) > one) == (y > zero)  # to infinity, where x or y is at an end
    ended = select(goes_up, inf, zero)
    endless = abs_(y) == inf
    magnitude = select(at_end | endless, ended, magnitude)
    magnitude = select((abs_(x) == one) & endless, one, magnitude)
    whole = floor(y) == y
    half = y * 0.5
    odd = whole & (floor(half) != half) & logical_not(endless)
    negative = bitcast(x, format_of(x).bits) >= const(format_of(x).sign, format_of(x).bits)
    signed = select(odd & negative, -magnitude, magnitude)
    lost = (x < zero) & logical_not(whole) & logical_not(abs_(x) == inf)
    result = select(lost | is_nan(x) | is_nan(y), num(NAN, x), signed)
    return select((y == zero) | (x == one), one, result)


def cbrt(x: Expr) -> Expr:
    """The real cube root."""
    if is_single(x):
        return narrow(cbrt(widen(x)), x)
    size = abs_(x)
    s = split(size)
    magic = num(format_of(x).magic, x)
    t = fma(s.k, num(1.0 / 3.0, x), magic)
    third = t - magic
    fmt = format_of(x)
    left = fma(third, num(-3.0, x), s.k) + magic
    # size = 8^third a with a between 0.35 and 2.83
    a = (s.f + 1.0) * bitcast((bitcast(left, fmt.bits) << fmt.fraction) + fmt.one, x.dtype)
    y = polynomial(a, cf.CBRT)
    cube = y * y * y
    y = y - y * (cube - a) / fma(cube, num(2.0, x), a)  # Halley
    square, error = two_product(y, y)
    rest = fma(square, y, -a) + error * y
    y = y - rest / (square * 3.0)
    y = y * bitcast((bitcast(t, fmt.bits) << fmt.fraction) + fmt.one, x.dtype)
    usual = (size > num(0.0, x)) & (size < num(INF, x))
    return select(usual, copysign(y, x), x)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x)."""
    return num(1.0, x) / sqrt(x)


def hypot(x: Expr, y: Expr) -> Expr:
    """sqrt(x^2 + y^2) without overflow or underflow on the way."""
    a, b = abs_(x), abs_(y)
    inf = num(INF, x)
    if is_single(x):
        wide, other = widen(a), widen(b)
        size = narrow(sqrt(fma(wide, wide, other * other)), x)
    else:
        swap = a < b
        big, small = select(swap, b, a), select(swap, a, b)
        high, low = big > num(2.0**500, x), big < num(2.0**-500, x)
        scale = select(high, num(2.0**-600, x), select(low, num(2.0**600, x), num(1.0, x)))
        back = select(high, num(2.0**600, x), select(low, num(2.0**-600, x), num(1.0, x)))
        big, small = big * scale, small * scale
        size = sqrt(fma(big, big, small * small)) * back
    return select((a == inf) | (b == inf), inf, size)
