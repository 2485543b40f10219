"""The error functions and the gamma functions.

erfc is exp(-x^2) times a polynomial in (x - 4) / (x + 4) over 1 + 2x, so that its relative accuracy
holds down to the underflow. lgamma and digamma use a polynomial around their zeros, a recurrence
next to it and Stirling's series beyond; negative arguments are reflected, out of line.
"""

from __future__ import annotations

import math
from fractions import Fraction

from pullback.ir.mathfun import coefficients as cf
from pullback.ir.mathfun.exact import (
    INF,
    NAN,
    is_single,
    minimum,
    narrow,
    num,
    polynomial,
    two_product,
    widen,
)
from pullback.ir.mathfun.exponential import exponential, scale_of
from pullback.ir.mathfun.logarithm import log
from pullback.ir.scalar import Expr, abs_, copysign, fma, rare, rint, select, sqrt

__all__ = ["digamma", "erf", "erfc", "erfinv", "lgamma", "polygamma"]


def erf(x: Expr) -> Expr:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    size = abs_(x)
    if is_single(x):
        inner = polynomial(x * x, cf.ERF_32)
        tail = polynomial(minimum(size, 4.0) - 2.5, cf.ERF_TAIL_32)
    else:
        inner = polynomial(x * x, cf.ERF_64)
        tail = _erfc_tail(minimum(size, 6.0))
    outer = copysign(num(1.0, x) - tail, x)
    return select(size < num(1.0, x), fma(x, inner, x), outer)


def _erfc_tail(x: Expr) -> Expr:
    """erfc(x) in float64 for x from 1/2 to 28."""
    square, error = two_product(x, x)
    e = exponential(-square, -error)
    high, low = e.pair
    t = (x - 4.0) / (x + 4.0)
    shape = polynomial(t, cf.ERFCX) / fma(x, num(2.0, x), num(1.0, x))
    return scale_of(e.t, e.n).times(fma(shape, low, shape * high))


def erfc(x: Expr) -> Expr:
    """1 - erf(x), with relative accuracy down to the underflow."""
    if is_single(x):
        return narrow(erfc(widen(x)), x)
    one = num(1.0, x)
    size = abs_(x)
    inner = (one - x) - x * polynomial(x * x, cf.ERF_64)
    tail = _erfc_tail(select(size < num(0.5, x), num(0.5, x), minimum(size, 27.5)))
    outer = select(x < num(0.0, x), num(2.0, x) - tail, tail)
    return select(size < num(0.5, x), inner, outer)


def erfinv(x: Expr) -> Expr:
    """The y with erf(y) = x; infinite at +-1, NaN beyond."""
    if is_single(x):
        return narrow(erfinv(widen(x)), x)
    one = num(1.0, x)
    size = abs_(x)
    inside = select(size < one, size, num(0.0, x))
    w = -log((one - inside) * (one + inside))
    centre = inside * polynomial(w - 3.125, cf.ERFINV_CENTRE)
    root = sqrt(w)
    middle = polynomial(root - 3.25, cf.ERFINV_MIDDLE)
    far = polynomial(root - 5.0, cf.ERFINV_FAR)
    y = select(w < num(6.25, x), centre, select(w < num(16.0, x), middle, far))
    end = select(size == one, num(INF, x), num(NAN, x))
    return copysign(select(size < one, y, end), x)


def _near_integer(x: Expr) -> Expr:
    """x minus the nearest integer, exact."""
    return x - rint(x)


def _sin_pi(r: Expr) -> Expr:
    """sin(pi r) for |r| <= 1/2."""
    return r * polynomial(r * r, cf.SINPI)


def _cot_pi(r: Expr) -> Expr:
    """cot(pi r) for |r| <= 1/2."""
    z = r * r
    cosine = fma(z, polynomial(z, cf.COSPI), num(1.0, r))
    near_half = num(0.5, r) - abs_(r)
    cosine = select(near_half < num(0.25, r), _sin_pi(near_half), cosine)
    return cosine / _sin_pi(r)


def lgamma(x: Expr) -> Expr:
    """log|gamma(x)|; infinite at the poles 0, -1, -2, ..."""
    if is_single(x):
        return narrow(lgamma(widen(x)), x)
    reflects = x < num(-0.5, x)
    return rare(reflects, _lgamma_reflected(x), _lgamma_right(x))


def _lgamma_reflected(x: Expr) -> Expr:
    """lgamma(x) for x < -1/2: log(pi / |x sin(pi x)|) - lgamma(-x)."""
    sine = abs_(_sin_pi(_near_integer(x)))
    pole = sine == num(0.0, x)
    y = log(num(math.pi, x) / (abs_(x) * sine)) - _lgamma_right(abs_(x))
    return select(pole | (abs_(x) == num(INF, x)), num(INF, x), y)


def _lgamma_right(x: Expr) -> Expr:
    """lgamma(x) for x >= -1/2: around 2 a polynomial, up to 6.5 and down by the recurrence."""
    one = num(1.0, x)
    large = x >= num(6.5, x)
    # x = nearest + d with nearest from 0 to 6; gamma(2 + d) is next
    nearest = minimum(rint(x), 6.0)
    nearest = select(nearest < num(0.0, x), num(0.0, x), nearest)
    d = x - nearest
    series = d * polynomial(d, cf.LGAMMA_2)
    up = one  # gamma(x) / gamma(2 + d) for x above 2.5
    for i in range(3, 7):
        up = select(nearest > num(i - 0.5, x), up * (d + float(i - 1)), up)
    zeroth, first = nearest < num(0.5, x), nearest < num(1.5, x)
    down = select(zeroth, abs_(x) * (x + 1.0), x)  # gamma(2 + d) / gamma(x) below 1.5
    ratio = select(first, down, up)
    logarithm = log(select(large, x, ratio))
    near = series + select(first, -logarithm, logarithm)
    inverse = one / x
    tail = fma(inverse, polynomial(inverse * inverse, cf.STIRLING), num(_STIRLING_CONSTANT, x))
    far = fma(x - 0.5, logarithm - 1.0, tail)
    y = select(large, far, near)
    y = select(x == num(0.0, x), num(INF, x), y)
    return select(x == num(INF, x), x, y)


_STIRLING_CONSTANT = 0.5 * math.log(2 * math.pi) - 0.5


def digamma(x: Expr) -> Expr:
    """The derivative of lgamma; -+inf at +-0, NaN at the negative integers."""
    if is_single(x):
        return narrow(digamma(widen(x)), x)
    negative = x < num(0.0, x)
    right = _digamma_right(x)
    y = rare(negative, _digamma_reflected(x), right)
    return select(x == num(0.0, x), copysign(num(INF, x), -x), y)


def _digamma_reflected(x: Expr) -> Expr:
    """digamma(x) for x < 0: digamma(-x) - 1/x - pi cot(pi x)."""
    z = abs_(x)
    r = _near_integer(x)
    y = _digamma_right(z) + (num(1.0, x) / z - num(math.pi, x) * _cot_pi(r))
    lost = (r == num(0.0, x)) | (z == num(INF, x))
    return select(lost, num(NAN, x), y)


def _digamma_right(x: Expr) -> Expr:
    """digamma(x) for x > 0: a polynomial on [1, 2.2], the recurrence around it up to 3."""
    one, zero = num(1.0, x), num(0.0, x)
    low, high = x < one, x > num(2.2, x)
    # digamma(x) = digamma(y) + shift with y in [1, 2.2]; the root is taken away without rounding y.
    below = x - 1.0
    shift = select(low, -one, one) / select(low, x, below)
    root, root_low = cf.DIGAMMA_ROOT
    from_root = select(high, below, x) - select(low, num(root - 1.0, x), num(root, x))
    t = from_root - num(root_low, x)
    near = fma(t, polynomial(t, cf.DIGAMMA_1), select(low | high, shift, zero))
    inverse = one / x
    u = inverse * inverse
    tail = fma(u, polynomial(u, cf.DIGAMMA_TAIL), inverse * 0.5)
    far = log(x) - tail
    y = select(x < num(3.0, x), near, far)
    return select(x == num(INF, x), x, y)


def polygamma(n: int, x: Expr) -> Expr:
    """The n-th derivative of digamma, n >= 1."""
    if n < 1:
        raise ValueError(f"polygamma: the order must be at least 1, got {n}. Use digamma for 0.")
    if is_single(x):
        return narrow(polygamma(n, widen(x)), x)
    right = _hurwitz(n, x)
    return rare(x < num(0.0, x), _polygamma_reflected(n, x), right)


def _hurwitz(n: int, x: Expr) -> Expr:
    """polygamma(n, x) for x > 0, as (-1)^(n+1) n! zeta(n + 1, x) by Euler's and Maclaurin's sum."""
    steps, tail = _euler_maclaurin(n + 1)
    one = num(1.0, x)
    y = x + float(steps)
    inverse = one / y
    total = inverse * polynomial(inverse * inverse, tail) + 0.5
    total = fma(y, num(1.0 / n, x), total) * _power(inverse, n + 1)
    single = num(0.0, x)
    for i in reversed(range(steps)):
        single = single + _power(one / (x + float(i)), n + 1)
    total = total + single
    total = select(x == num(INF, x), num(0.0, x), total)
    return total * float((-1) ** (n + 1) * math.factorial(n))


def _power(x: Expr, n: int) -> Expr:
    """x^n by squaring."""
    if n == 1:
        return x
    half = _power(x, n // 2)
    return half * half * x if n % 2 else half * half


def _euler_maclaurin(s: int) -> tuple[int, tuple[float, ...]]:
    """How many summands to take singly, and the coefficients of y^(1-2j-s), for zeta(s, x)."""
    exact, terms = [], 10
    rising = Fraction(s)
    for j in range(1, terms + 2):
        exact.append(_bernoulli(2 * j) / math.factorial(2 * j) * rising)
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    steps = 4
    while abs(exact[terms]) * (s - 1) > Fraction(1, 2**57) * steps ** (2 * terms + 2):
        steps += 1
    return steps, tuple(float(c) for c in exact[:terms])


def _bernoulli(n: int) -> Fraction:
    """The n-th Bernoulli number, by Akiyama's and Tanigawa's triangle."""
    row = [Fraction(1, i + 1) for i in range(n + 1)]
    for level in range(n):
        row = [(i + 1) * (row[i] - row[i + 1]) for i in range(n - level)]
    return row[0]


def _polygamma_reflected(n: int, x: Expr) -> Expr:
    """polygamma(n, x) for x < 0: (-1)^n polygamma(n, 1 - x) - pi d^n/dx^n cot(pi x)."""
    derivative = [0, 1]  # a polynomial in c = cot(pi x), whose derivative is -pi (1 + c^2)
    for _ in range(n):
        slope = [-i * c for i, c in enumerate(derivative)][1:]
        derivative = [a + b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    r = _near_integer(x)
    scaled = tuple(float(c * Fraction(math.pi) ** (n + 1)) for c in derivative)
    cotangent = polynomial(_cot_pi(r), scaled)
    y = _hurwitz(n, num(1.0, x) - x) * float((-1) ** n) - cotangent
    pole = num(INF if n % 2 else NAN, x)
    return select((r == num(0.0, x)) | (x == num(-INF, x)), pole, y)
