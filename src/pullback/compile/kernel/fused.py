"""A fused multiply-add in NumPy, which has none: the references of orders are made of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

__all__ = ["fused"]

Array = np.ndarray


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once: every product below is made of these."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype == np.float32:
        # The product is exact in float64. A sum that was rounded is made odd in its last place, so
        # that it is no tie, nor becomes one, when it is rounded again.
        x, y = a.astype(np.float64) * b, c.astype(np.float64)
        total = x + y
        part = total - x
        lost = (x - (total - part)) + (y - part)
        bits = total.view(np.int64)
        step = np.where((lost > 0) == (total > 0), 1, -1)
        odd = np.where((lost != 0) & (bits & 1 == 0), bits + step, bits)
        return odd.view(np.float64).astype(np.float32)
    found, safe = _fused_wide(a, b, c)
    if not safe.all():
        found[~safe] = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(
            a[~safe].tolist(), b[~safe].tolist(), c[~safe].tolist(), strict=True)]  # fmt: skip
    return found


def _fused_wide(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The same in float64, and where numbers are of a size for which it is right."""
    with np.errstate(all="ignore"):
        p, low = _exact_product(a, b)
        total, rest = _exact_sum(c, low)
        high, middle = _exact_sum(p, total)
        # Boldo and Melquiond (2008): the tail is rounded to odd, so that rounding again is right.
        tail, lost = _exact_sum(middle, rest)
        bits = np.atleast_1d(tail).view(np.int64).reshape(tail.shape)
        step = np.where((lost > 0) == (tail > 0), 1, -1)
        odd = np.where((lost != 0) & (bits & 1 == 0), bits + step, bits)
        found = np.where(
            low == 0, p + c, high + np.atleast_1d(odd).view(np.float64).reshape(p.shape)
        )
        sizes = [np.abs(x) for x in (a, b, c)]
        safe = [((x < _LARGE) & (x > 1 / _LARGE)) | (x == 0) for x in sizes]
        return found, safe[0] & safe[1] & safe[2]


_LARGE = 2.0**300  # beyond it, and below its inverse, errors of products may not be numbers
_SPLITTER = 2.0**27 + 1.0  # Dekker's factor, which cuts a float64 into halves of 26 bits


def _exact_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """A sum and what rounding took from it (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _exact_product(x: Array, y: Array) -> tuple[Array, Array]:
    """A product and what rounding took from it (Dekker)."""
    p = x * y
    pairs = []
    for value in (x, y):
        big = _SPLITTER * value
        high = big - (big - value)
        pairs.append((high, value - high))
    (x1, x2), (y1, y2) = pairs
    return p, ((x1 * y1 - p) + x1 * y2 + x2 * y1) + x2 * y2
