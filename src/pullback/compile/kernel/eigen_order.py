"""The order in which eigenvalues of real symmetric matrices of some rows are found: see `order`.

A matrix is divided by the power of 2 below its largest element, or by the least normal number,
which is one. Reflections make it tridiagonal,
from its last row to its first: each leaves one element of a row beside the diagonal. Then sweeps of
rotations, with implicit shifts (QL), make the elements beside the diagonal vanish, from the first
row on, and turn the product of the reflections into eigenvectors.

Sums along a row are made in vectors as `factor_order` says; what is summed over rows is summed in
sequence. How many sweeps there are depends on the numbers of the matrix alone.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from pullback.compile.kernel.factor_order import SUMS
from pullback.compile.kernel.order import VECTOR_BYTES, Array, chain, fused

__all__ = ["NOTHING", "ROWS", "SWEEPS", "eigh"]

# Beyond, LAPACK's way by blocks and divide and conquer is faster.
ROWS = 256  # of a matrix at most, up to which it is done so
SWEEPS = 30  # for each row, before it is said that eigenvalues were not found; two are usual
# Square of an element that is nothing beside elements around 1: below, squares would lose digits.
NOTHING = {"float32": 1e-30, "float64": 1e-260}


def eigh(a: Array) -> tuple[Array, Array]:
    """Eigenvalues in increasing order, and eigenvectors as columns, of a symmetric matrix."""
    least = np.finfo(a.dtype).tiny
    power = a.dtype.type(2.0 ** np.floor(np.log2(max(np.abs(a).max(), least))))
    d, e, q = _reduced(a / power)
    rows = q.T.copy()
    for start in range(len(a)):
        while (last := _end(d, e, start)) > start:
            _sweep(d, e, rows, start, last)
    for i in range(len(a)):  # the least of the rest comes next
        k = i + int(np.argmin(d[i:]))
        d[[i, k]], rows[[i, k]] = d[[k, i]], rows[[k, i]]
    return d * power, rows.T


def _reduced(a: Array) -> tuple[Array, Array, Array]:
    """The diagonal, what is beside it, and the product of the reflections."""
    n, a = len(a), a.copy()
    e, q, reflections = np.zeros(n, a.dtype), np.eye(n, dtype=a.dtype), []
    for i in range(n - 1, 0, -1):
        e[i - 1], u, tau = _reflector(a[i, :i])
        reflections.append((i, u, tau))
        if tau:
            w = chain(u[None], a[:i, :i])[0] * tau
            w = fused(tau * a.dtype.type(-0.5) * _dot(u, w), u, w)
            less = fused(-w[:, None], u, a[:i, :i])
            a[:i, :i] = fused(-u[:, None], w, less)
    for i, u, tau in reversed(reflections):
        if tau:
            w = chain(u[None], q[:i, :i])[0] * tau
            q[:i, :i] = fused(-u[:, None], w, q[:i, :i])
    return a.diagonal().copy(), e, q


def _reflector(row: Array) -> tuple[Array, Array, Array]:
    """What a reflection makes of the last element of a row while others vanish; its vector u and
    its factor t: it is 1 - t u u^T.
    """
    x, alpha, one = row.copy(), row[-1], row.dtype.type(1)
    x[-1] = 0
    rest = np.abs(x).max()
    if rest == 0:
        x[-1] = one
        return alpha, x, row.dtype.type(0)
    scale = max(abs(alpha), rest)
    x, alpha = x / scale, alpha / scale
    norm = np.sqrt(fused(alpha, alpha, _dot(x, x)))
    beta = -norm if alpha >= 0 else norm
    x /= alpha - beta
    x[-1] = one
    return beta * scale, x, (beta - alpha) / beta


def _dot(x: Array, y: Array) -> Array:
    """The sum of products: SUMS vectors of sums in turns, which are joined by halves."""
    lanes = VECTOR_BYTES // x.dtype.itemsize
    x, y = (np.append(v, np.zeros(-len(v) % lanes, v.dtype)).reshape(-1, lanes) for v in (x, y))
    sums, whole = np.zeros((SUMS, lanes), x.dtype), len(x) // SUMS * SUMS
    for k in range(len(x)):
        at = k % SUMS if k < whole else 0
        sums[at] = fused(x[k], y[k], sums[at])
    return _halves(_halves(sums))


def _halves(parts: Array) -> Array:
    while len(parts) > 1:
        parts = reduce(np.add, np.split(parts, 2))
    return parts[0]


def _end(d: Array, e: Array, start: int) -> int:
    """The last row of the block that begins at `start`: the first with nothing beside it."""
    kind, least = d.dtype.type, d.dtype.type(2 * NOTHING[d.dtype.name] ** 0.5)
    for k in range(start, len(d) - 1):
        bound = (abs(d[k]) + abs(d[k + 1])) * kind(np.finfo(kind).eps)
        if abs(e[k]) <= max(bound, least):
            return k
    return len(d) - 1


def _sweep(d: Array, e: Array, rows: Array, start: int, last: int) -> None:
    """Rotations of neighbours from the last two rows of a block to its first two."""
    kind = d.dtype.type
    half = (d[start + 1] - d[start]) / (e[start] * kind(2))
    root = np.sqrt(fused(half, half, kind(1)))
    g = d[last] - d[start] + e[start] / (half + np.copysign(root, half))
    s, c, p, k = kind(1), kind(1), kind(0), last - 1
    while k >= start:
        f, b = s * e[k], c * e[k]
        square = fused(f, f, g * g)
        if square < kind(NOTHING[d.dtype.name]):  # the block falls into two
            e[k] = b
            break
        e[k + 1] = np.sqrt(square)
        s, c = f / e[k + 1], g / e[k + 1]
        rest = d[k + 1] - p
        t = fused(d[k] - rest, s, (c + c) * b)
        p = s * t
        d[k + 1] = rest + p
        g = fused(c, t, -b)
        x, y = rows[k].copy(), rows[k + 1].copy()
        rows[k + 1], rows[k] = fused(s, x, c * y), fused(c, x, -(s * y))
        k -= 1
    d[k + 1] -= p
    e[k + 1] = g if k < start else 0
    e[last] = 0
