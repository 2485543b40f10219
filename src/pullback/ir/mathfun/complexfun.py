"""The functions of a complex argument, computed in float64; branch cuts and special values as in C.

The inverse functions are Kahan's ("Branch cuts for complex elementary functions", 1987): real
functions of square roots of 1 - z and 1 + z, which keeps the sign of a zero that selects the side
of a cut.
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.ir.mathfun import coefficients as cf
from pullback.ir.mathfun import exponential as real_exp
from pullback.ir.mathfun import hyperbolic as real_hyp
from pullback.ir.mathfun import logarithm as real_log
from pullback.ir.mathfun import trigonometric as real_trig
from pullback.ir.mathfun.exact import (
    INF,
    NAN,
    is_nan,
    is_single,
    minimum,
    narrow,
    num,
    two_product,
    two_sum,
    widen,
)
from pullback.ir.scalar import Complex, Expr, abs_, copysign, fma, logical_not, select
from pullback.ir.scalar import sqrt as real_sqrt

__all__ = [
    "absolute",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "pow_",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

Function = Callable[[Complex], Complex]


def _in_double(f: Function) -> Function:
    """`f` for complex64 too: by way of complex128, rounded once at the end."""

    def wrapped(z: Complex) -> Complex:
        if not is_single(z.re):
            return f(z)
        w = f(Complex(widen(z.re), widen(z.im)))
        return Complex(narrow(w.re, z.re), narrow(w.im, z.im))

    wrapped.__name__, wrapped.__doc__ = f.__name__, f.__doc__
    return wrapped


def _i_times(z: Complex) -> Complex:
    return Complex(-z.im, z.re)


def _over_i(z: Complex) -> Complex:
    return Complex(z.im, -z.re)


def _choose(condition: Expr, a: Complex, b: Complex) -> Complex:
    return Complex(select(condition, a.re, b.re), select(condition, a.im, b.im))


def absolute(z: Complex) -> Expr:
    """|z|."""
    return real_log.hypot(z.re, z.im)


def angle(z: Complex) -> Expr:
    """The argument of z, between -pi and pi."""
    return real_trig.atan2(z.im, z.re)


def _times(size: Expr, more: Expr, direction: Expr) -> Expr:
    """size * more * direction, where an exact zero of the direction wins over an infinite size."""
    nothing = direction * copysign(num(1.0, size), size)
    return select(direction == num(0.0, size), nothing, size * direction * more)


def _split_exponent(x: Expr, limit: float) -> tuple[Expr, Expr]:
    """x clamped from above, and exp of what that took away: they reach beyond the overflow."""
    inside = minimum(x, limit)
    excess = minimum(select(x > num(limit, x), x - inside, num(0.0, x)), 800.0)
    return inside, real_exp.exp(excess)


@_in_double
def exp(z: Complex) -> Complex:
    """e^z."""
    inside, more = _split_exponent(z.re, 700.0)
    size = real_exp.exp(inside)
    zero = num(0.0, z.re)
    finite = abs_(z.im) < num(INF, z.re)
    vanishes, explodes = z.re == num(-INF, z.re), z.re == num(INF, z.re)
    re = _times(size, more, real_trig.cos(z.im))
    im = _times(size, more, real_trig.sin(z.im))
    wild = logical_not(finite)
    re = select(wild & vanishes, zero, select(wild & explodes, z.re, re))
    im = select(wild & vanishes, zero, im)
    return Complex(re, im)


@_in_double
def expm1(z: Complex) -> Complex:
    """e^z - 1, accurate next to 0."""
    half = real_trig.sin(z.im * 0.5)
    e = real_exp.expm1(z.re)
    whole = exp(z)
    # e^x cos y - 1 = (e^x - 1) cos y - 2 sin^2(y/2)
    re = fma(half * -2.0, half, e * real_trig.cos(z.im))
    re = select(abs_(z.re) < num(1.0, z.re), re, whole.re - 1.0)
    zero = num(0.0, z.re)
    re = select((z.re == zero) & (z.im == zero), zero, re)  # +0, where e^x - 1 of the real -0 is -0
    return Complex(re, whole.im)


def _log_size(x: Expr, y: Expr) -> Expr:
    """log of hypot(x, y), with relative accuracy where that is near 1."""
    a, b = abs_(x), abs_(y)
    near = (a < num(3.0, x)) & (b < num(3.0, x))
    # x^2 + y^2 - 1 as a sum without rounding errors that matter
    p, p_error = two_product(a, a)
    q, q_error = two_product(b, b)
    s, s_error = two_sum(select(p < q, q, p), num(-1.0, x))
    t, t_error = two_sum(s, select(p < q, p, q))
    rest = t_error + s_error + (p_error + q_error)
    close = real_log.log1p(t + rest) * 0.5
    big, small = select(a < b, b, a), select(a < b, a, b)
    size = real_log.hypot(x, y)
    usual = real_log.log(size)
    # Halves keep the largest numbers from overflowing, doublings the smallest from losing bits.
    huge, tiny = big > num(2.0**1000, x), big < num(2.0**-1000, x)
    scale = select(huge, num(2.0**-60, x), select(tiny, num(2.0**60, x), num(1.0, x)))
    scaled = real_log.log(real_log.hypot(big * scale, small * scale))
    shift = select(huge, num(60 * cf.LN2_64[0], x), num(-60 * cf.LN2_64[0], x))
    inner = near & (big > num(0.5, x))
    return select(inner, close, select(huge | tiny, scaled + shift, usual))


@_in_double
def log(z: Complex) -> Complex:
    """The principal logarithm, its cut along the negative axis."""
    return Complex(_log_size(z.re, z.im), angle(z))


@_in_double
def log1p(z: Complex) -> Complex:
    """log(1 + z), accurate next to 0."""
    one = num(1.0, z.re)
    # log|1 + z| = log1p(x (2 + x) + y^2) / 2
    p, p_error = two_product(z.re, z.re)
    q, q_error = two_product(z.im, z.im)
    s, s_error = two_sum(z.re + z.re, p)
    t, t_error = two_sum(s, q)
    near = real_log.log1p(t + (t_error + s_error + (p_error + q_error))) * 0.5
    # Next to -1 that sum cancels, but 1 + x is exact.
    small = (abs_(z.re) < one) & (abs_(z.im) < one) & (t > num(-0.5, t))
    shifted = Complex(z.re + 1.0, z.im)
    re = select(small, near, _log_size(shifted.re, shifted.im))
    return Complex(re, angle(shifted))


@_in_double
def sqrt(z: Complex) -> Complex:
    """The principal square root, its cut along the negative axis."""
    x, y = z.re, z.im
    zero, inf = num(0.0, x), num(INF, x)
    a, b = abs_(x), abs_(y)
    big = select(a < b, b, a)
    huge, tiny = big > num(2.0**1000, x), big < num(2.0**-1000, x)
    one = num(1.0, x)
    scale = select(huge, num(2.0**-60, x), select(tiny, num(2.0**60, x), one))
    back = select(huge, num(2.0**30, x), select(tiny, num(2.0**-30, x), one))
    a, b = a * scale, b * scale
    root = real_sqrt((a + real_log.hypot(a, b)) * 0.5)
    other = select(root == zero, zero, b / (root + root))
    root, other = root * back, other * back
    left = x < zero
    result = Complex(select(left, other, root), copysign(select(left, root, other), y))
    result = _choose(abs_(x) == inf, _sqrt_at_infinity(x, y), result)
    return _choose(abs_(y) == inf, Complex(inf, y), result)


def _sqrt_at_infinity(x: Expr, y: Expr) -> Complex:
    """sqrt(+-inf + i y) for finite or NaN y."""
    zero, inf = num(0.0, x), num(INF, x)
    flat = select(is_nan(y), y, zero)
    right = Complex(inf, copysign(flat, y))
    return _choose(x < zero, Complex(flat, copysign(inf, y)), right)


@_in_double
def sinh(z: Complex) -> Complex:
    """The hyperbolic sine."""
    inside, more = _split_exponent(abs_(z.re), 700.0)
    s = copysign(real_hyp.sinh(inside), z.re)
    c = real_hyp.cosh(inside)
    cosine, sine = real_trig.cos(z.im), real_trig.sin(z.im)
    re = select(_wild_zero(z), z.re, _times(s, more, cosine))
    re = select(_wild(z), abs_(z.re), re)
    return Complex(re, _times(c, more, sine))


def _wild(z: Complex) -> Expr:
    """Whether an infinite real part meets an imaginary part that is not finite."""
    return (abs_(z.re) == num(INF, z.re)) & logical_not(abs_(z.im) < num(INF, z.re))


def _wild_zero(z: Complex) -> Expr:
    """Whether a real part of zero meets an imaginary part that is not finite."""
    return (z.re == num(0.0, z.re)) & logical_not(abs_(z.im) < num(INF, z.re))


@_in_double
def cosh(z: Complex) -> Complex:
    """The hyperbolic cosine."""
    inside, more = _split_exponent(abs_(z.re), 700.0)
    s = copysign(real_hyp.sinh(inside), z.re)
    c = real_hyp.cosh(inside)
    cosine, sine = real_trig.cos(z.im), real_trig.sin(z.im)
    re = select(_wild(z), abs_(z.re), _times(c, more, cosine))
    im = select(_wild_zero(z), num(0.0, z.re), _times(s, more, sine))
    return Complex(re, im)


@_in_double
def tanh(z: Complex) -> Complex:
    """The hyperbolic tangent."""
    x, y = z.re, z.im
    one, zero = num(1.0, x), num(0.0, x)
    size = abs_(x)
    t = real_trig.tan(y)
    slope = fma(t, t, one)
    s = real_hyp.sinh(minimum(size, 22.0))
    c = real_hyp.cosh(minimum(size, 22.0))
    bottom = fma(slope * s, s, one)
    near = Complex(slope * c * s / bottom, t / bottom)
    # Far out it is 1 with an imaginary part 4 sin y cos y e^(-2x), the exponential in two halves.
    e = real_exp.exp(-minimum(size, 800.0))
    far_im = real_trig.sin(y) * real_trig.cos(y) * e * e * 4.0
    infinite = size == num(INF, x)
    wild = logical_not(abs_(y) < num(INF, x))
    far_im = select(infinite, copysign(zero, y), far_im)
    far = size > num(22.0, x)
    far_re = select(wild & logical_not(infinite), num(NAN, x), one)
    re = copysign(select(far, far_re, near.re), x)
    im = select(far, far_im, near.im)
    return Complex(select(is_nan(x) | (x == zero), x, re), select(y == zero, y, im))


@_in_double
def sin(z: Complex) -> Complex:
    """The sine."""
    return _over_i(sinh(_i_times(z)))


@_in_double
def cos(z: Complex) -> Complex:
    """The cosine."""
    return cosh(_i_times(z))


@_in_double
def tan(z: Complex) -> Complex:
    """The tangent."""
    return _over_i(tanh(_i_times(z)))


def _roots(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    one = num(1.0, z.re)
    return sqrt(Complex(one - z.re, -z.im)), sqrt(Complex(one + z.re, z.im))


def _large(z: Complex) -> Expr:
    """Where 1 no longer counts beside z."""
    limit = num(2.0**60, z.re)
    return (abs_(z.re) > limit) | (abs_(z.im) > limit)


def _log_of_double(z: Complex) -> Expr:
    """log|2z|."""
    return _log_size(z.re, z.im) + num(cf.LN2_64[0], z.re)


@_in_double
def asin(z: Complex) -> Complex:
    """The arc sine; cuts along the real axis beyond +-1."""
    minus, plus = _roots(z)
    re = real_trig.atan2(z.re, minus.re * plus.re - minus.im * plus.im)
    im = real_hyp.asinh(minus.re * plus.im - minus.im * plus.re)
    far = _large(z)
    re = select(far, real_trig.atan2(z.re, abs_(z.im)), re)
    im = select(far, _log_of_double(z), im)
    return Complex(select(z.re == num(0.0, re), z.re, re), copysign(abs_(im), z.im))


@_in_double
def acos(z: Complex) -> Complex:
    """The arc cosine; cuts along the real axis beyond +-1."""
    minus, plus = _roots(z)
    re = real_trig.atan2(minus.re, plus.re) * 2.0
    im = real_hyp.asinh(plus.re * minus.im - plus.im * minus.re)
    far = _large(z)
    re = select(far, real_trig.atan2(abs_(z.im), z.re), re)
    im = select(far, _log_of_double(z), im)
    re = select(z.re == num(0.0, re), num(cf.HALF_PI_64[0], re), re)
    return Complex(re, copysign(abs_(im), -z.im))


@_in_double
def asinh(z: Complex) -> Complex:
    """The inverse of sinh; cuts along the imaginary axis beyond +-i."""
    return _over_i(asin(_i_times(z)))


@_in_double
def acosh(z: Complex) -> Complex:
    """The inverse of cosh; cut along the real axis below 1."""
    w = acos(z)
    # acosh z = +-i acos z, the sign that makes the real part positive
    return Complex(abs_(w.im), copysign(w.re, z.im))


@_in_double
def atanh(z: Complex) -> Complex:
    """The inverse of tanh; cuts along the real axis beyond +-1."""
    x, y = abs_(z.re), abs_(z.im)
    one, zero, inf = num(1.0, x), num(0.0, x), num(INF, x)
    below = one - x
    # log1p(4x / ((1 - x)^2 + y^2)) / 4, and log(2/y) / 2 where that divides by an underflow
    re = real_log.log1p(x * 4.0 / fma(below, below, y * y)) * 0.25
    close = (num(cf.LN2_64[0], x) - real_log.log(y)) * 0.5
    re = select((x == one) & (y < num(2.0**-500, x)), close, re)
    im = real_trig.atan2(y * 2.0, fma(below, one + x, -(y * y))) * 0.5
    far = _large(z)
    size = real_log.hypot(x * 2.0**-60, y * 2.0**-60)
    far_re = (x * 2.0**-60 / size) / size * 2.0**-60
    far_re = select((x == inf) | (y == inf), zero, far_re)
    far_im = num(cf.HALF_PI_64[0], x)
    lost = is_nan(y) | (is_nan(x) & (y != inf))
    re = select(x == zero, x, select(far, far_re, re))
    im = select(lost, num(NAN, x), select(far, far_im, im))
    return Complex(copysign(re, z.re), copysign(im, z.im))


@_in_double
def atan(z: Complex) -> Complex:
    """The arc tangent; cuts along the imaginary axis beyond +-i."""
    return _over_i(atanh(_i_times(z)))


def pow_(z: Complex, w: Complex) -> Complex:
    """z^w = exp(w log z); 1 where w is 0, 0 where z is 0 and Re w > 0."""
    if is_single(z.re):
        wide = pow_(Complex(widen(z.re), widen(z.im)), Complex(widen(w.re), widen(w.im)))
        return Complex(narrow(wide.re, z.re), narrow(wide.im, z.re))
    zero, one, nan = num(0.0, z.re), num(1.0, z.re), num(NAN, z.re)
    result = exp(w * log(z))
    origin = (z.re == zero) & (z.im == zero)
    at_origin = select(w.re > zero, zero, nan)
    result = _choose(origin, Complex(at_origin, at_origin), result)
    return _choose((w.re == zero) & (w.im == zero), Complex(one, zero), result)
