"""sin, cos, tan and their inverses.

x = q pi/2 + r: Cody and Waite's reduction with fma for moderate x, Payne and Hanek's, exact in
integers, for the rest, out of line. asin and acos share a polynomial with a square root; atan
and atan2 divide once.
"""

from __future__ import annotations

from itertools import pairwise
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
    narrow,
    num,
    pair_product,
    pair_quotient,
    polynomial,
    tiny_as_is,
    two_product,
    two_sum,
    widen,
    with_sign_bit,
)
from pullback.ir.scalar import (
    Expr,
    abs_,
    bitcast,
    cast,
    const,
    copysign,
    fma,
    rare,
    select,
    sqrt,
    table,
)

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]

# Up to here x - q pi/2 comes out of three fused steps with its full relative accuracy.
_MODERATE = {dt.float32: 2.0**15, dt.float64: 2.0**30}
_WORD = 2**32 - 1


class Reduced(NamedTuple):
    """x = quadrant pi/2 + r + rest, |r| at most a little over pi/4; two bits of quadrant count."""

    quadrant: Expr
    r: Expr
    rest: Expr


def _moderate(x: Expr) -> Reduced:
    fmt = format_of(x)
    magic = num(fmt.magic, x)
    t = fma(x, num(0.6366197723675814, x), magic)  # 2 / pi
    n = -(t - magic)
    quadrant = bitcast(t, fmt.bits)
    parts = cf.HALF_PI_32 if is_single(x) else cf.HALF_PI_64
    high, middle, low = (num(part, x) for part in parts)
    p, p_error = two_product(n, middle)
    r, rest = two_sum(fma(n, high, x), p)
    return Reduced(quadrant, r, fma(n, low, rest + p_error))


def _window(shift: Expr) -> list[Expr]:
    """192 bits of 2/pi from bit `shift` on, as six words of 32 bits in uint64, highest first."""
    position, offset = cast(shift >> 6, dt.int64), shift & 63
    words = [table(cf.TWO_OVER_PI, position + i, dt.uint64) for i in range(4)]
    limbs = []
    for word, following in pairwise(words):
        # Two shifts, because a shift by 64 is not defined.
        joined = (word << offset) | ((following >> 1) >> (const(63, dt.uint64) - offset))
        limbs += [joined >> 32, joined & _WORD]
    return limbs


def _huge(x: Expr) -> Reduced:
    """Payne and Hanek: x 2/pi modulo 4 with 190 bits after the point, for |x| >= 2^15."""
    u64 = dt.uint64
    bits = bitcast(abs_(x), u64)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    exponent = bits >> 52
    # The first bit of 2/pi that matters, counted from 64 zeros; in range for idle lanes too.
    start = exponent - (1075 + 2 - 64)
    start = select(exponent < const(1023, u64), const(10, u64), start)
    start = select(exponent > const(2046, u64), const(10, u64), start)
    limbs = _window(start)[::-1]
    low, high = mantissa & _WORD, mantissa >> 32
    by_low, by_high = [limb * low for limb in limbs], [limb * high for limb in limbs]
    product: list[Expr] = []
    column = const(0, u64)
    for i in range(6):
        column = (column >> 32) + (by_low[i] & _WORD)
        if i > 0:
            column = column + (by_low[i - 1] >> 32) + (by_high[i - 1] & _WORD)
        if i > 1:
            column = column + (by_high[i - 2] >> 32)
        product.append(column & _WORD)
    return _from_limbs(x, product)


def _from_limbs(x: Expr, product: list[Expr]) -> Reduced:
    """The quadrant and the fraction, times pi/2, of a number in units of 2^-190."""
    top = product[5]
    rounded = (top + (1 << 29)) >> 30
    fraction = bitcast(top - (rounded << 30), dt.int64)
    terms = [cast(fraction, dt.float64) * 2.0**-30]
    for i, limb in enumerate(reversed(product[:5])):
        terms.append(cast(cast(limb, dt.int64), dt.float64) * 2.0 ** (-62 - 32 * i))
    a, rest = two_sum(terms[0], terms[1])
    b, rest = two_sum(rest, terms[2])
    c, rest = two_sum(rest, terms[3])
    rest = rest + terms[4]
    a, b = two_sum(a, b)
    b, c = two_sum(b, c)
    f = fast_two_sum(*two_sum(a, b))
    f = fast_two_sum(f[0], f[1] + (c + rest))
    half_pi = (num(cf.HALF_PI_64[0], x), num(cf.HALF_PI_64[1], x))
    r, low = pair_product(f, half_pi)
    sign = bitcast(x, dt.uint64)
    negative = x < num(0.0, x)
    quadrant = select(negative, const(0, dt.uint64) - rounded, rounded)
    return Reduced(quadrant, with_sign_bit(r, sign), with_sign_bit(low, sign))


def _kernel(reduced: Reduced) -> tuple[Pair, Pair]:
    """sin and cos of r + rest, as pairs."""
    r, rest = reduced.r, reduced.rest
    single = is_single(r)
    z = r * r
    half = z * 0.5
    sine = polynomial(z, cf.SIN_32 if single else cf.SIN_64)
    cosine = polynomial(z, cf.COS_32 if single else cf.COS_64)
    leading = num(1.0, r) - half
    error = (num(1.0, r) - leading) - half
    tail = fma(z * r, sine, fma(rest, -half, rest))
    error = fma(-r, rest, error)
    return fast_two_sum(r, tail), fast_two_sum(leading, fma(z * z, cosine, error))


def _sin_of(reduced: Reduced, turn: int) -> Expr:
    """sin(x + turn pi/2)."""
    sine, cosine = _kernel(reduced)
    fmt = format_of(reduced.r)
    quadrant = reduced.quadrant + turn
    odd = (quadrant & 1) != const(0, fmt.bits)
    return with_sign_bit(select(odd, cosine[0], sine[0]), quadrant << (8 * fmt.bits.itemsize - 2))


def _tan_of(reduced: Reduced) -> Expr:
    sine, cosine = _kernel(reduced)
    odd = (reduced.quadrant & 1) != const(0, dt.uint64)
    top = [select(odd, -c, s) for s, c in zip(sine, cosine, strict=True)]
    bottom = [select(odd, s, c) for s, c in zip(sine, cosine, strict=True)]
    high, low = pair_quotient((top[0], top[1]), (bottom[0], bottom[1]))
    return high + low


def _is_huge(x: Expr) -> Expr:
    size = abs_(x)
    return (size > num(_MODERATE[x.dtype], x)) & (size < num(INF, x))


def sin(x: Expr) -> Expr:
    """The sine; the bound holds for every finite x."""
    slow = narrow(_sin_of(_huge(widen(x)), 0), x)
    return rare(_is_huge(x), slow, tiny_as_is(x, _sin_of(_moderate(x), 0)))


def cos(x: Expr) -> Expr:
    """The cosine; the bound holds for every finite x."""
    slow = narrow(_sin_of(_huge(widen(x)), 1), x)
    return rare(_is_huge(x), slow, _sin_of(_moderate(x), 1))


def tan(x: Expr) -> Expr:
    """The tangent; the bound holds for every finite x."""
    if is_single(x):
        return narrow(tan(widen(x)), x)
    return rare(_is_huge(x), _tan_of(_huge(x)), tiny_as_is(x, _tan_of(_moderate(x))))


def _asin_parts(x: Expr) -> tuple[Expr, Pair]:
    """(|x| > 1/2, p): p is asin|x| up to 1/2, asin(sqrt((1 - |x|) / 2)) above."""
    size = abs_(x)
    big = size > num(0.5, x)
    half = (num(1.0, x) - size) * 0.5
    root = sqrt(half)
    root_low = fma(-root, root, half) / (root + root)
    zero = num(0.0, x)
    root_low = select(root > zero, root_low, zero)
    z = select(big, half, size * size)
    t = select(big, root, size)
    low = select(big, root_low, zero)
    return big, fast_two_sum(t, fma(z * t, polynomial(z, cf.ASIN), low))


def _half_pi(x: Expr) -> Pair:
    return num(cf.HALF_PI_64[0], x), num(cf.HALF_PI_64[1], x)


def _minus(a: Pair, high: Expr, low: Expr) -> Expr:
    """a - (high + low), for |a| >= |high|."""
    s, error = fast_two_sum(a[0], -high)
    return s + (error + (a[1] - low))


def asin(x: Expr) -> Expr:
    """The arc sine; NaN beyond [-1, 1]."""
    if is_single(x):
        return narrow(asin(widen(x)), x)
    big, (high, low) = _asin_parts(x)
    beyond = _minus(_half_pi(x), high * 2.0, low * 2.0)
    y = copysign(select(big, beyond, high + low), x)
    return select(abs_(x) > num(1.0, x), num(NAN, x), tiny_as_is(x, y))


def acos(x: Expr) -> Expr:
    """The arc cosine; NaN beyond [-1, 1]."""
    if is_single(x):
        return narrow(acos(widen(x)), x)
    big, (high, low) = _asin_parts(x)
    half_pi = _half_pi(x)
    double = (high * 2.0, low * 2.0)
    near_minus_one = _minus((half_pi[0] * 2.0, half_pi[1] * 2.0), *double)
    negative = x < num(0.0, x)
    outer = select(negative, near_minus_one, double[0] + double[1])
    inner = _minus(half_pi, select(negative, -high, high), select(negative, -low, low))
    return select(abs_(x) > num(1.0, x), num(NAN, x), select(big, outer, inner))


def _arc(y: Expr, x: Expr) -> Pair:
    """atan(y / x) as a pair for y, x >= 0, not both zero, neither at the ends of the range."""
    steep, flat = y * num(0.4142135623730951, x) > x, x * num(0.4142135623730951, x) >= y
    zero = num(0.0, x)
    difference, sum_ = two_sum(y, -x), two_sum(y, x)
    # y/x, (y - x)/(y + x) or -x/y: a rotation by 0, pi/4 or pi/2
    top = [select(flat, a, select(steep, -b, c)) for a, b, c in
           ((y, x, difference[0]), (zero, zero, difference[1]))]  # fmt: skip
    bottom = [select(flat, a, select(steep, b, c)) for a, b, c in
              ((x, y, sum_[0]), (zero, zero, sum_[1]))]  # fmt: skip
    t, t_low = pair_quotient((top[0], top[1]), (bottom[0], bottom[1]))
    z = t * t
    low = fma(z * t, polynomial(z, cf.ATAN), t_low)
    half = _half_pi(x)
    base, base_low = (select(flat, zero, select(steep, c, c * 0.5)) for c in half)
    s, error = fast_two_sum(base, t)
    return s, error + (base_low + low)


def atan(x: Expr) -> Expr:
    """The arc tangent."""
    if is_single(x):
        return narrow(atan(widen(x)), x)
    size = abs_(x)
    high, low = _arc(select(size > num(2.0**100, x), num(2.0**100, x), size), num(1.0, x))
    return tiny_as_is(x, copysign(high + low, x))


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), between -pi and pi."""
    if is_single(x):
        return narrow(atan2(widen(y), widen(x)), x)
    zero, one, inf = num(0.0, x), num(1.0, x), num(INF, x)
    a, b = abs_(x), abs_(y)
    both_infinite, both_zero = (a == inf) & (b == inf), (a == zero) & (b == zero)
    a, b = select(both_infinite, one, a), select(both_infinite | both_zero, one, b)
    b = select(both_zero, zero, b)
    a = select(both_zero, one, a)
    # An infinite side beats any finite one, and the reciprocal of the larger must stay normal.
    infinite = (a == inf) | (b == inf)
    a, b = (select(v == inf, one, select(infinite, zero, v)) for v in (a, b))
    large = select(a < b, b, a)
    down, up = large > num(2.0**1000, x), large < num(2.0**-900, x)
    scale = select(down, num(2.0**-100, x), select(up, num(2.0**200, x), one))
    high, low = _arc(b * scale, a * scale)
    pi = _half_pi(x)
    angle = high + low
    mirrored = _minus((pi[0] * 2.0, pi[1] * 2.0), high, low)
    negative = bitcast(x, dt.uint64) >= const(1 << 63, dt.uint64)
    result = copysign(select(negative, mirrored, angle), y)
    return select(is_nan(x) | is_nan(y), num(NAN, x), result)
