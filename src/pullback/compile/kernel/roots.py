"""Roots of unity, rounded once: twice the precision of float64 by plain float64 arithmetic.

Only additions, products and divisions are used, so that every machine has the same roots.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["roots"]

Pair = tuple[np.ndarray, np.ndarray]  # a number as the unevaluated sum of two

_SPLITTER = 2.0**27 + 1.0  # Dekker's factor, which cuts a float64 into halves of 26 bits
# pi / 4 and 1 / 6, each a float64 and what it lacks.
_QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)
_SIXTH = (0.16666666666666666, 9.25185853854297e-18)


def roots(n: int, powers: np.ndarray) -> np.ndarray:
    """`exp(-2 pi i k / n)` for integers k, as complex128; the error is below 0.53 ulp."""
    eighths = 8 * (np.asarray(powers, np.int64) % n)  # of a turn, in units of 1 / n
    below = eighths > 4 * n
    eighths = np.where(below, 8 * n - eighths, eighths)
    left = eighths > 2 * n
    eighths = np.where(left, 4 * n - eighths, eighths)
    steep = eighths > n
    eighths = np.where(steep, 2 * n - eighths, eighths)
    cos, sin = _cos_sin(_times(_ratio(eighths.astype(np.float64), float(n)), _QUARTER_PI))
    cos, sin = np.where(steep, sin, cos), np.where(steep, cos, sin)
    result = np.empty(cos.shape, np.complex128)
    result.real = np.where(left, -cos, cos)
    result.imag = np.where(below, sin, -sin)
    return result


def _cos_sin(angle: Pair) -> Pair:
    """Cosine and sine of angles from 0 to pi / 4: the first terms in pairs, the rest rounded."""
    square = _times(angle, angle)
    x = square[0]
    cos_rest, sin_rest = np.zeros_like(x), np.zeros_like(x)
    for k in range(11, 1, -1):
        sign = -1.0 if k % 2 else 1.0
        cos_rest = cos_rest * x + sign / math.factorial(2 * k)
        sin_rest = sin_rest * x + sign / math.factorial(2 * k + 1)
    cos = _plus((-0.5 * square[0], -0.5 * square[1]), cos_rest * x * x)
    third = _times(square, _SIXTH)
    ratio = _plus((-third[0], -third[1]), sin_rest * x * x)
    sin = _times(angle, _plus_one(ratio))
    return _plus_one(cos)[0], sin[0]


def _product(a: np.ndarray, b: np.ndarray | float) -> Pair:
    """The exact product of two numbers."""
    p = a * b
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _split(a: np.ndarray | float) -> tuple:
    big = _SPLITTER * a
    high = big - (big - a)
    return high, a - high


def _times(a: Pair, b: tuple) -> Pair:
    p, rest = _product(a[0], b[0])
    return _ordered_sum(p, rest + (a[0] * b[1] + a[1] * b[0]))


def _ratio(a: np.ndarray, b: float) -> Pair:
    q = a / b
    p, rest = _product(q, b)
    return q, ((a - p) - rest) / b


def _plus(a: Pair, b: np.ndarray) -> Pair:
    """The sum with a number that is smaller."""
    high, low = _ordered_sum(a[0], b)
    return _ordered_sum(high, low + a[1])


def _plus_one(a: Pair) -> Pair:
    high, low = _ordered_sum(np.ones_like(a[0]), a[0])
    return _ordered_sum(high, low + a[1])


def _ordered_sum(a: np.ndarray, b: np.ndarray) -> Pair:
    """The exact sum of a number and one that is not larger."""
    total = a + b
    return total, b - (total - a)
