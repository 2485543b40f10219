"""Eigenvalues and singular values of many real matrices of a few rows at once, by Jacobi's method.

The results are packed as those of `lapack_kernels` are.
"""

from __future__ import annotations

import functools

import numpy as np

from pullback.compile.kernel.factor_order import (
    JACOBI_LARGE,
    JACOBI_NOTHING,
    JACOBI_ROUNDS,
    JACOBI_SWEEPS,
)
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.lanes import Lanes, LaneTile
from pullback.runtime.cpu.llvm.values import Value, constant, integer, vector

__all__ = ["TOGETHER", "eigh", "svd"]
__tuning__ = ("TOGETHER",)

TOGETHER = 16  # matrices: rotations wait for roots and quotients, so that more at once cost little


@functools.cache
def eigh(dtype: DType, n: int, vectors: bool) -> int:
    """x (n x n) -> eigenvalues in increasing order, then eigenvectors column after column; without
    `vectors` the eigenvalues alone. Jacobi's method, for a few rows.
    """
    m = Lanes("eigh", dtype, 1, n, TOGETHER)
    one, zero = m.number(1.0), m.number(0.0)
    width = 1 + n if vectors else 1
    with m.groups():
        x, a, out = LaneTile(m, n, n), LaneTile(m, n, n), LaneTile(m, width, n)
        m.read(1, x, n, n)
        oddity = m.oddity(x, n * n)
        usual = m.less(_largest(m, x, n), m.number(JACOBI_LARGE[dtype.name]))
        half = m.choose(usual, m.number(0.5), m.number(0.5 / 16))
        whole = m.choose(usual, one, m.number(16.0))
        for i in range(n):
            for j in range(n):
                mean = x.get(i, j) * half + x.get(j, i) * half
                a.put(mean, i, j)
                if vectors:
                    out.put(one if i == j else zero, 1 + i, j)  # row 1 + i is vector i
        for _ in range(JACOBI_SWEEPS[dtype.name]):
            for p in range(n):
                for q in range(p + 1, n):
                    _rotate(m, a, out if vectors else None, p, q)
        for i in range(n):
            out.put(a.get(i, i) * whole, 0, i)
        for last in reversed(range(n)):
            for i in range(last):
                _order(m, out, i, i + 1, vectors)
        m.spoil(out, width * n, oddity)
        m.write(out, width, n)
    return address(m.code)


def _rotate(m: Lanes, a: LaneTile, out: LaneTile | None, p: int, q: int) -> None:
    """Turns rows and columns p and q so that the element (p, q) vanishes."""
    zero = m.number(0.0)
    app, aqq, apq = a.get(p, p), a.get(q, q), a.get(p, q)
    t, c, s = _turn(m, app, aqq, apq)
    shift = t * apq
    a.put(app - shift, p, p)
    a.put(aqq + shift, q, q)
    a.put(zero, p, q)
    a.put(zero, q, p)
    for r in range(m.n):
        if r not in (p, q):
            x, y = _turned(m, c, s, a.get(r, p), a.get(r, q))
            for value, k in ((x, p), (y, q)):
                a.put(value, r, k)
                a.put(value, k, r)
        if out is not None:
            x, y = _turned(m, c, s, out.get(1 + p, r), out.get(1 + q, r))
            out.put(x, 1 + p, r)
            out.put(y, 1 + q, r)


def _order(m: Lanes, out: LaneTile, i: int, j: int, vectors: bool) -> None:
    """Exchanges eigenvalues i and j, with their vectors, if they are in the wrong order."""
    wrong = m.less(out.get(0, j), out.get(0, i))
    places = [((0, i), (0, j))]
    if vectors:
        places += [((1 + i, r), (1 + j, r)) for r in range(m.n)]
    for here, there in places:
        x, y = out.get(*here), out.get(*there)
        out.put(m.choose(wrong, y, x), *here)
        out.put(m.choose(wrong, x, y), *there)


# -- singular values -----------------------------------------------------------------------------


@functools.cache
def svd(dtype: DType, n: int, vectors: bool) -> int:
    """x (n x n) -> singular values in decreasing order, then U and V^T row after row; without
    `vectors` the singular values alone. One-sided Jacobi: columns are turned in pairs until all are
    orthogonal, and then are U times the singular values.
    """
    m = Lanes("svd", dtype, 1, n, TOGETHER)
    one, zero = m.number(1.0), m.number(0.0)
    height = 1 + 2 * n if vectors else 1
    with m.groups():
        x, g, v = (
            LaneTile(m, n, n),
            LaneTile(m, n, n),
            LaneTile(m, n, n),
        )  # row i of g and v is column i
        out = LaneTile(m, height, n)
        m.read(1, x, n, n)
        oddity = m.oddity(x, n * n)
        scale = _power_of_two(m, x, n, dtype)
        for i in range(n):
            for j in range(n):
                g.put(x.get(j, i) / scale, i, j)
                v.put(one if i == j else zero, i, j)
        for _ in range(JACOBI_ROUNDS[dtype.name]):
            for p in range(n):
                for q in range(p + 1, n):
                    _orthogonalise(m, g, v if vectors else None, p, q)
        for i in range(n):
            out.put(_dot(m, g, i, i), 0, i)
        for last in reversed(range(n)):
            for i in range(last):
                _decrease(m, out, (g, v) if vectors else (), i, i + 1)
        for i in range(n):
            square = out.get(0, i)
            length = m.call("sqrt", square)
            out.put(length * scale, 0, i)
            if vectors:
                nothing = m.less(square, m.number(JACOBI_NOTHING[dtype.name]))
                safe = m.choose(nothing, one, length)
                for j in range(n):
                    g.put(g.get(i, j) / safe, i, j)
                _complete(m, g, i, nothing)
        if vectors:
            for i in range(n):
                for j in range(n):
                    out.put(g.get(j, i), 1 + i, j)
                    out.put(v.get(i, j), 1 + n + i, j)
        m.spoil(out, height * n, oddity)
        m.write(out, height, n)
    return address(m.code)


def _largest(m: Lanes, x: LaneTile, n: int) -> Value:
    """The size of the largest element."""
    largest = m.number(0.0)
    for k in range(n * n):
        size = m.call("fabs", x.get(0, k))
        largest = m.choose(m.less(largest, size), size, largest)
    return largest


def _power_of_two(m: Lanes, x: LaneTile, n: int, dtype: DType) -> Value:
    """The power of 2 below the largest element, or the least normal number, which is one."""
    largest = _largest(m, x, n)
    word = vector(integer(8 * m.bytes), m.lanes)
    exponent = 0x7F800000 if m.bytes == 4 else 0x7FF << 52
    mask = constant(word, exponent)
    power = (largest.bitcast(word) & mask).bitcast(m.vector)
    normal = m.number(float(np.finfo(dtype.numpy).tiny))
    power = m.choose(m.less(power, normal), normal, power)
    return m.choose(m.less(power, m.number(float(np.inf))), power, m.number(1.0))


def _dot(m: Lanes, g: LaneTile, p: int, q: int) -> Value:
    total = g.get(p, 0) * g.get(q, 0)
    for k in range(1, m.n):
        total = m.fused(g.get(p, k), g.get(q, k), total)
    return total


def _turn(m: Lanes, app: Value, aqq: Value, apq: Value) -> tuple[Value, Value, Value]:
    """Tangent, cosine and sine of the rotation that makes a symmetric 2 x 2 matrix diagonal."""
    one, zero = m.number(1.0), m.number(0.0)
    none = m.equal(apq, zero)
    ratio = (aqq - app) * m.number(0.5) / m.choose(none, one, apq)
    root = m.call("sqrt", m.fused(ratio, ratio, one))
    t = m.call("copysign", one, ratio) / (m.call("fabs", ratio) + root)
    t = m.choose(none, zero, t)
    c = one / m.call("sqrt", m.fused(t, t, one))
    return t, c, t * c


def _turned(m: Lanes, c: Value, s: Value, x: Value, y: Value) -> tuple[Value, Value]:
    return m.fused(c, x, -(s * y)), m.fused(s, x, c * y)


def _orthogonalise(m: Lanes, g: LaneTile, v: LaneTile | None, p: int, q: int) -> None:
    """Turns columns p and q so that their product vanishes."""
    _, c, s = _turn(m, _dot(m, g, p, p), _dot(m, g, q, q), _dot(m, g, p, q))
    for tile in (g, v):
        if tile is not None:
            for k in range(m.n):
                x, y = _turned(m, c, s, tile.get(p, k), tile.get(q, k))
                tile.put(x, p, k)
                tile.put(y, q, k)


def _decrease(m: Lanes, out: LaneTile, tiles: tuple[LaneTile, ...], i: int, j: int) -> None:
    """Exchanges squared lengths i and j, with their columns, if they are in the wrong order."""
    wrong = m.less(out.get(0, i), out.get(0, j))
    pairs = [(out, (0, i), (0, j))]
    pairs += [(tile, (i, k), (j, k)) for tile in tiles for k in range(m.n)]
    for tile, here, there in pairs:
        x, y = tile.get(*here), tile.get(*there)
        tile.put(m.choose(wrong, y, x), *here)
        tile.put(m.choose(wrong, x, y), *there)


def _complete(m: Lanes, g: LaneTile, i: int, nothing: Value) -> None:
    """In lanes with nothing in column i, a unit vector orthogonal to those before: what is left of
    the axis that they are farthest from.
    """
    n = m.n
    best, kept = m.number(-1.0), [m.number(0.0)] * n
    for axis in range(n):
        rest = [m.number(1.0 if k == axis else 0.0) for k in range(n)]
        for _ in range(2):  # the second time takes away what rounding left
            for before in range(i):
                along = g.get(before, 0) * rest[0]
                for k in range(1, n):
                    along = m.fused(g.get(before, k), rest[k], along)
                rest = [m.fused(-along, g.get(before, k), rest[k]) for k in range(n)]
        square = rest[0] * rest[0]
        for k in range(1, n):
            square = m.fused(rest[k], rest[k], square)
        better = m.less(best, square)
        best = m.choose(better, square, best)
        kept = [m.choose(better, x, y) for x, y in zip(rest, kept, strict=True)]
    length = m.call("sqrt", m.choose(m.less(m.number(0.0), best), best, m.number(1.0)))
    for k in range(n):
        g.put(m.choose(nothing, kept[k] / length, g.get(i, k)), i, k)
