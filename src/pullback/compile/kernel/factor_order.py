"""The orders in which matrices are factored and systems of equations solved: see `order`.

A matrix is divided by halves down to leaves. What a part takes from another is a product, chunk by
chunk in the order of `order.product`. Sums along a column, which reflections need, are made in
`SUMS` vectors of `order.VECTOR_BYTES` in turns, which are joined by halves, and then their lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.compile.kernel.order import CHUNK, VECTOR_BYTES, Array, chain, fused

__all__ = [
    "FAINT", "JACOBI", "JACOBI_LARGE", "JACOBI_NOTHING", "JACOBI_ROUNDS", "JACOBI_SWEEPS", "LEAF",
    "MINORS", "PANEL", "SMALL", "SUMS", "VECTOR_BYTES", "cholesky", "cofactors", "first_half", "lu",
    "minors", "solved",
]  # fmt: skip

LEAF = 32  # columns of a block that is not divided
PANEL = 128  # columns that a QR factorisation reflects at once
SMALL = 16  # rows up to which real matrices of a batch are factored without being divided
MINORS = 4  # rows up to which cofactors are polynomials of the elements
JACOBI = 4  # rows up to which Jacobi's method finds eigenvalues and singular values of real ones
# Rounds over all pairs, whatever the numbers are: Jacobi's method converges quadratically, and
# after so many rounds nothing is left of off-diagonal elements of matrices of up to four rows.
JACOBI_SWEEPS = {"float32": 6, "float64": 7}
JACOBI_ROUNDS = {"float32": 7, "float64": 9}  # of singular values: squares of elements converge
# Size of an element from which on eigenvalues are those of a 16th of the matrix, times 16: smaller
# ones and their differences, of up to four rows, are far from the largest number.
JACOBI_LARGE = {"float32": 2.0**123, "float64": 2.0**1019}
# Squared length from which on a column is 0, of matrices with elements of up to 2: below, the
# products of its elements would lose their digits.
JACOBI_NOTHING = {"float32": 1e-30, "float64": 1e-260}
# Size of a column below which a reflection multiplies it by the inverse, a power of 2: what is left
# of a column that depends on others has few digits, or none, near the smallest numbers.
FAINT = {"float32": 2.0**-100, "float64": 2.0**-960}
SUMS = 4  # vectors of sums along a column, which take vectors of elements in turns


def first_half(n: int) -> int:
    """Rows of the first part of n rows that are divided: whole leaves."""
    return -(-n // (2 * LEAF)) * LEAF


def _less(c: Array, a: Array, b: Array) -> Array:
    """c - a b, chunk after chunk of the product."""
    for i in range(0, a.shape[1], CHUNK):
        c = c - chain(a[:, i : i + CHUNK], b[i : i + CHUNK])
    return c


def solved(t: Array, b: Array) -> Array:
    """The solution of t x = b for a lower triangle: by halves, and in a leaf row by row."""
    n, h = len(t), first_half(len(t))
    if n > LEAF:
        top = solved(t[:h, :h], b[:h])
        return np.concatenate([top, solved(t[h:, h:], _less(b[h:], t[h:, :h], top))])
    x = b.copy()
    for j in range(n):
        x[j] /= t[j, j]
        x[j + 1 :] = fused(t[j + 1 :, j : j + 1], -x[j], x[j + 1 :])
    return x


def cholesky(a: Array) -> Array:
    """The lower Cholesky factor: by halves, and in a leaf column by column."""
    n, h = len(a), first_half(len(a))
    out = np.tril(a)
    if n > LEAF:
        out[:h, :h] = cholesky(a[:h, :h])
        below = out[h:, :h] = solved(out[:h, :h], a[h:, :h].T).T
        out[h:, h:] = cholesky(_less(a[h:, h:], below, below.T))
        return out
    for j in range(n):
        root = np.sqrt(out[j, j])
        out[j:, j] /= root
        out[j, j] = root
        rest = out[j + 1 :, j]
        out[j + 1 :, j + 1 :] = np.tril(fused(rest[:, None], -rest, out[j + 1 :, j + 1 :]))
    return out


def lu(a: Array) -> tuple[Array, Array]:
    """Both triangles in one matrix, and the order of the rows: columns by halves, by partial
    pivoting, and in a leaf column by column.
    """
    m, n = a.shape
    h = first_half(n) if n <= m else m
    a, rows = a.copy(), np.arange(m)
    if n > min(m, LEAF):
        a[:, :h], rows = lu(a[:, :h])
        right = a[rows, h:]
        right[:h] = solved(np.tril(a[:h, :h], -1) + np.eye(h, dtype=a.dtype), right[:h])
        if h < m:
            right[h:], below = lu(_less(right[h:], a[h:, :h], right[:h]))
            a[h:, :h], rows[h:] = a[h:, :h][below], rows[h:][below]
        a[:, h:] = right
        return a, rows
    for j in range(n):
        r = j + int(np.argmax(np.abs(a[j:, j])))
        a[[j, r]], rows[[j, r]] = a[[r, j]], rows[[r, j]]
        a[j + 1 :, j] /= a[j, j] if a[j, j] else 1
        a[j + 1 :, j + 1 :] = fused(a[j + 1 :, j : j + 1], -a[j, j + 1 :], a[j + 1 :, j + 1 :])
    return a, rows


def minors(n: int, element: Callable[[int, int], Any], one: Any) -> list[Any]:
    """The cofactors of up to MINORS rows, row after row: each minor by its first row; no product is
    fused with a sum.
    """
    known: dict[tuple[Any, ...], Any] = {}

    def minor(rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
        if not rows:
            return one
        if (rows, columns) not in known:
            first, rest = rows[0], rows[1:]
            total = None
            for k, c in enumerate(columns):
                below = (*columns[:k], *columns[k + 1 :])
                term = element(first, c) * minor(rest, below) if rest else element(first, c)
                total = term if total is None else total - term if k % 2 else total + term
            known[rows, columns] = total
        return known[rows, columns]

    def without(i: int) -> tuple[int, ...]:
        return tuple(k for k in range(n) if k != i)

    entries = [minor(without(i), without(j)) for i in range(n) for j in range(n)]
    return [-e if (k // n + k % n) % 2 else e for k, e in enumerate(entries)]


def cofactors(both: Array, rows: Array) -> Array:
    """The cofactors of a matrix by the result of `lu`: row after row of the adjugate of U, for
    which nothing is divided, times the inverse of L.
    """
    n = len(both)
    out, total = np.empty_like(both), both.dtype.type
    before = total(_parity(rows))
    for r in range(n):
        row = np.zeros(n, both.dtype)
        row[r] = before
        for j in range(r + 1, n):
            found = total(0)
            for k in range(r, j):
                found = fused(-both[k, j], row[k], found)
            row[r:j] *= both[j, j]
            row[j] = found
        before = before * both[r, r]
        for i in reversed(range(n)):
            for k in range(i + 1, n):
                row[i] = fused(-both[k, i], row[k], row[i])
        out[rows, r] = row
    return out


def _parity(rows: Array) -> int:
    """The determinant of a permutation: each pair that is out of order turns its sign."""
    return 1 - 2 * (sum(int(np.sum(r > rows[i + 1 :])) for i, r in enumerate(rows)) % 2)
