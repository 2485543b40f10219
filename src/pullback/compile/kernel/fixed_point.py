"""The exact scatter-add: what its integer path computes, said once for every runtime.

For float16, bfloat16, float32, and each part of complex64: a destination becomes the exact sum of
what it holds (x) and of its contributions, rounded once, half to even, to its dtype. The exact sum
has no order, so the bits are the same on every device, for any number of threads.

Details that a sum of reals leaves open:

- If the contributions add up to exactly zero (or there are none), x keeps its bits, -0.0 included.
- Otherwise a sum of exactly zero is +0.0.
- If x is a NaN it keeps its bits. Otherwise a NaN, or infinities of both signs, among x and the
  contributions give the quiet NaN with no payload and no sign (0x7FC00000 for float32); else an
  infinity stays.
- A sum that rounds beyond the largest finite number is an infinity.

How an implementation can hold the exact sum in int64 "limbs" (the layout changes no bits):

- `top` is the least integer with |v| < 2**top for every finite contribution; `low` is the least
  `exponent - 24` (for frexp's exponent; no less than -149) of those that are not zero. x may be
  among them, or is added to the sum when it is rounded.
- P = `limb_bits(count)`: limb j counts units of 2**(top - (j + 1) * P); a value is cut, toward
  zero, into signed pieces of less than 2**P, one for each limb, of which at most two are not zero.
  `count` pieces cannot overflow an int64.
- `limb_count(count, top, low)` limbs hold every value. One limb holds nearly all of the values of
  nearly all calls, so that a contribution costs one integer addition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType

__all__ = ["FORMATS", "Format", "exact_scatter_add_reference", "limb_bits", "limb_count"]

_ORIGIN = -192  # the reference counts in units of 2**_ORIGIN, below every bit of a float32
_WORD = 32  # bits: 24 digits, shifted by fewer than that, fit 64


class Format(NamedTuple):
    """A binary format: digits of a significand, exponent of its last bit, |v| < 2**limit."""

    digits: int
    lowest: int
    limit: int


FORMATS: dict[DType, Format] = {
    dt.float16: Format(11, -24, 16),
    dt.bfloat16: Format(8, -133, 128),
    dt.float32: Format(24, -149, 128),
}


def limb_bits(count: int) -> int:
    """The bits of a piece if `count` pieces (contributions, and x) meet in one limb.

    Beyond 2**38 of them a limb would be narrower than a float32's significand.
    """
    return min(39, 63 - count.bit_length())


def limb_count(count: int, top: int, low: int) -> int:
    """The limbs that hold the bits from 2**low up to 2**top."""
    return max(1, -(-(top - low) // limb_bits(count)))


def exact_scatter_add_reference(
    indices: np.ndarray, values: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """`out` plus `values[i]` at row `indices[i]`, exactly, rounded once: slow, and plain to read.

    >>> x = np.zeros(2, np.float32)
    >>> v = np.array([1.0, 2.0**-30, -1.0, 3.0], np.float32)
    >>> exact_scatter_add_reference(np.array([0, 0, 0, -1]), v, x)
    array([9.313226e-10, 3.000000e+00], dtype=float32)
    """
    if out.dtype == np.complex64:
        parts = [
            exact_scatter_add_reference(indices, getattr(values, part), getattr(out, part))
            for part in ("real", "imag")
        ]
        return np.stack(parts, axis=-1).view(np.complex64)[..., 0]
    width = out.size // out.shape[0] if out.shape[0] else 0
    rows = np.where(indices < 0, indices.astype(np.int64) + out.shape[0], indices.astype(np.int64))
    places = (rows[:, None] * width + np.arange(width)).reshape(-1)
    flat, x = values.astype(np.float32).reshape(-1), out.reshape(-1)
    sums = _exact_sums(places, flat, x.size)
    result = x.copy()
    for d, total in sums.items():
        if np.isfinite(x[d]):
            result[d] = _rounded(total + _integer(float(x[d])), x.dtype)
    _set_not_finite(places, flat, x, result)
    return result.reshape(out.shape)


def _integer(v: float) -> int:
    """A float as a multiple of 2**_ORIGIN."""
    numerator, denominator = v.as_integer_ratio()
    return (numerator << -_ORIGIN) // denominator


def _exact_sums(places: np.ndarray, values: np.ndarray, size: int) -> dict[int, int]:
    """The sums of the finite values at each place, in units of 2**_ORIGIN, where not zero."""
    kept = np.isfinite(values) & (values != 0)
    places = places[kept]
    fractions, exponents = np.frexp(values[kept].astype(np.float64))
    wide = (fractions * 2.0**24).astype(np.int64)
    position = exponents.astype(np.int64) - 24 - _ORIGIN
    shifted = np.abs(wide) << (position % _WORD)
    sign = np.sign(wide)
    words = np.zeros((size, 12), np.int64)
    np.add.at(words, (places, position // _WORD), sign * (shifted & ((1 << _WORD) - 1)))
    np.add.at(words, (places, position // _WORD + 1), sign * (shifted >> _WORD))
    touched = np.flatnonzero(words.any(axis=1))
    sums = {
        int(d): sum(int(w) << (_WORD * k) for k, w in enumerate(row))
        for d, row in zip(touched, words[touched], strict=True)
    }
    return {d: total for d, total in sums.items() if total}


def _rounded(total: int, dtype: np.dtype) -> np.generic:
    """`total` units of 2**_ORIGIN, rounded half to even to a dtype."""
    form = FORMATS[dt.as_dtype(dtype)]
    size = abs(total)
    drop = max(size.bit_length() - form.digits, form.lowest - _ORIGIN)
    quotient, rest = size >> drop, size & ((1 << drop) - 1)
    half = 1 << (drop - 1)
    quotient += rest > half or (rest == half and quotient & 1)
    if quotient.bit_length() + drop + _ORIGIN > form.limit:
        return dtype.type(float("-inf") if total < 0 else float("inf"))
    number = float(np.ldexp(float(quotient), drop + _ORIGIN))
    return dtype.type(-number if total < 0 else number)


def _set_not_finite(
    places: np.ndarray, values: np.ndarray, x: np.ndarray, result: np.ndarray
) -> None:
    """Infinities and NaNs, by the rules of this module."""
    high, low, nan = (np.zeros(x.size, bool) for _ in range(3))
    high[places[values == np.inf]] = True
    low[places[values == -np.inf]] = True
    nan[places[np.isnan(values)]] = True
    high |= x == np.inf
    low |= x == -np.inf
    keep = np.isnan(x)
    result[high & ~keep] = np.inf
    result[low & ~keep] = -np.inf
    result[(nan | (high & low)) & ~keep] = np.nan
