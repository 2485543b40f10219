"""The orders in which Fourier transforms are made: the passes of a length, by the length alone.

So results have the same bits in any batch, on any machine. The estimates here choose between ways
that are all right, and count operations of vectors; to change one is to change the order.
"""

from __future__ import annotations

import functools
import math

__all__ = [
    "FINE_ROWS", "LARGEST_PRIME", "LONGEST", "halves_of", "is_smooth", "radices", "smooth_above",
]  # fmt: skip

LARGEST_PRIME = 31  # that has a codelet; a length with a larger one is a convolution
LONGEST = 1 << 15  # that is transformed in the cache of one core
# Between the two passes of a longer transform an element is turned by a product of two roots: a
# coarse one for each so many rows, and a fine one for the rest. So tables stay in the cache.
FINE_ROWS = 16  # rows of the table of fine roots
_LANES = 16  # for which the first radix is chosen

# Operations of a codelet, by its points. Those that are missing are slower than two passes.
_OPERATIONS = {
    2: 4, 3: 14, 4: 16, 5: 36, 6: 40, 7: 66, 8: 56, 9: 100, 10: 92, 11: 150, 12: 104, 13: 204,
    14: 160, 15: 178, 16: 160, 17: 336, 19: 414, 20: 224, 21: 296, 23: 594, 24: 280, 25: 424,
    27: 490, 28: 376, 29: 924, 30: 416, 31: 1050, 32: 432,
}  # fmt: skip
_TURN = 7  # operations to turn an element by a root
_MOVE = 5  # to load and store an element
_SPILL = 4  # more for an element of a codelet that registers do not hold
_REGISTER_POINTS = 16  # complex points of a codelet, in 32 vector registers


@functools.cache
def _pass_cost(radix: int) -> float:
    """Operations for an element."""
    spill = _SPILL if radix > _REGISTER_POINTS else 0
    return _OPERATIONS[radix] / radix + _MOVE + _TURN + spill


@functools.cache
def _cheapest(n: int) -> tuple[float, tuple[int, ...]]:
    """The cost of an element, and the radices, largest first."""
    if n == 1:
        return 0.0, ()
    found = (math.inf, ())
    for radix in _OPERATIONS:
        if n % radix == 0:
            cost, rest = _cheapest(n // radix)
            if cost + _pass_cost(radix) < found[0]:
                found = (cost + _pass_cost(radix), tuple(sorted((radix, *rest), reverse=True)))
    return found


@functools.cache
def radices(n: int) -> tuple[int, ...]:
    """The radices of the passes of a smooth length.

    After the first pass rows become columns, so that the first radix and its cofactor should fill
    vectors.
    """
    if n == 1:
        return (1,)
    found = (math.inf, ())
    for radix in _OPERATIONS:
        if n % radix == 0:
            rest, others = _cheapest(n // radix)
            cost = _pass_cost(radix) * _waste(n // radix) + rest * _waste(radix)
            if cost < found[0]:
                found = (cost, (radix, *others))
    return found[1]


def _waste(columns: int) -> float:
    """How many lanes there are to one that is of use."""
    return -(-columns // _LANES) * _LANES / columns


def is_smooth(n: int) -> bool:
    """Whether the length is a product of radices."""
    for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, LARGEST_PRIME):
        while n % p == 0:
            n //= p
    return n == 1


@functools.cache
def smooth_above(n: int) -> int:
    """A length from n on, and below 2 n, that is cheap to transform: 2^a, 3, 5 or 9 times 2^a."""
    candidates = []
    for odd in (1, 3, 5, 9):
        power = 1
        while odd * power < n:
            power *= 2
        candidates.append(odd * power)
    # A few percent more points cost less than a radix of 3 or 5.
    return min(candidates, key=lambda m: m * (1.0 if m & (m - 1) == 0 else 1.1))


@functools.cache
def halves_of(n: int) -> tuple[int, int]:
    """Two factors of a smooth length, as close to each other as can be; the smaller one first."""
    factor = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return factor, n // factor
