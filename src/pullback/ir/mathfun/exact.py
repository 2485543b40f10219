"""Error-free transforms, polynomials and the bit fields of floats: the tools of the other modules.

A pair `(hi, lo)` stands for the exact sum `hi + lo` with `|lo|` at most half an ulp of `hi`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, abs_, bitcast, cast, const, fma, select

Pair = tuple[Expr, Expr]
INF = float("inf")
NAN = float("nan")


class FloatLayout(NamedTuple):
    """The layout of a float dtype, and the constants that depend on it."""

    fraction: int  # explicit bits of the significand
    bias: int
    bits: DType  # the unsigned integer of the same width
    magic: float  # 1.5 * 2^fraction: adding it leaves an integer in the low bits
    tiny: float  # the smallest normal number

    @property
    def one(self) -> int:
        return self.bias << self.fraction

    @property
    def sign(self) -> int:
        return 1 << (8 * self.bits.itemsize - 1)


_FORMATS = {
    dt.float32: FloatLayout(23, 127, dt.uint32, 1.5 * 2.0**23, 2.0**-126),
    dt.float64: FloatLayout(52, 1023, dt.uint64, 1.5 * 2.0**52, 2.0**-1022),
}


def format_of(x: Expr) -> FloatLayout:
    """The format of a float32 or float64 expression."""
    return _FORMATS[x.dtype]


def is_single(x: Expr) -> bool:
    return x.dtype is dt.float32


def num(value: float, like: Expr) -> Expr:
    """A constant of the dtype of `like`, rounded to it."""
    return const(float(np.float32(value)) if is_single(like) else value, like.dtype)


def widen(x: Expr) -> Expr:
    return cast(x, dt.float64)


def narrow(x: Expr, like: Expr) -> Expr:
    return cast(x, like.dtype)


def two_sum(a: Expr, b: Expr) -> Pair:
    """a + b exactly."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def fast_two_sum(a: Expr, b: Expr) -> Pair:
    """a + b exactly, for |a| >= |b| or a = 0."""
    s = a + b
    return s, (a - s) + b


def two_product(a: Expr, b: Expr) -> Pair:
    """a * b exactly, while nothing underflows."""
    p = a * b
    return p, fma(a, b, -p)


def pair_quotient(a: Pair, b: Pair) -> Pair:
    """a / b for pairs, to about twice the precision, with one division."""
    inverse = num(1.0, b[0]) / b[0]
    q = a[0] * inverse
    rest = fma(-q, b[0], a[0]) + fma(-q, b[1], a[1])
    return fast_two_sum(q, rest * inverse)


def pair_product(a: Pair, b: Pair) -> Pair:
    """a * b for pairs, to about twice the precision."""
    p, error = two_product(a[0], b[0])
    return fast_two_sum(p, error + fma(a[0], b[1], a[1] * b[0]))


def polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """The polynomial with the given coefficients, lowest power first.

    Long ones as an even and an odd part by Horner's rule: two chains that run side by side.
    """
    if len(coefficients) < 6:
        return _horner(x, coefficients)
    square = x * x
    odd = _horner(square, coefficients[1::2])
    return fma(odd, x, _horner(square, coefficients[::2]))


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    value = num(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        value = fma(value, x, num(c, x))
    return value


def with_sign_bit(x: Expr, bit: Expr) -> Expr:
    """`x` with its sign flipped where the top bit of `bit` is set; the other bits are ignored."""
    f = format_of(x)
    return bitcast(bitcast(x, f.bits) ^ (bit & f.sign), x.dtype)


def minimum(x: Expr, bound: float) -> Expr:
    """x, at most `bound`; NaN stays."""
    return select(x > num(bound, x), num(bound, x), x)


def maximum(x: Expr, bound: float) -> Expr:
    """x, at least `bound`; NaN stays."""
    return select(x < num(bound, x), num(bound, x), x)


def tiny_as_is(x: Expr, y: Expr) -> Expr:
    """y, but x where it is so small that the function is the identity, which keeps -0."""
    return select(abs_(x) < num(2.0 ** -(format_of(x).fraction // 2 + 2), x), x, y)


def is_nan(x: Expr) -> Expr:
    return x != x
