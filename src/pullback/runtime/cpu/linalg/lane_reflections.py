"""QR factorisations of many real matrices of a few rows and columns, across the batch.

The bits are those of the tiled factorisation (`reflection_kernels`, and products): a sum along a
column is made of as many parts as a vector there has lanes, which are joined by halves.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.compile.kernel.factor_order import FAINT, VECTOR_BYTES
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.lanes import Lanes, LaneTile
from pullback.runtime.cpu.llvm.values import Value

__all__ = ["qr", "suits"]
__tuning__ = ("ROWS", "MATRICES")

ROWS = 8  # rows and columns up to which it is done so: all is unrolled
MATRICES = 32  # from which on code for one size of matrices pays

Column = list[Value]


def suits(x: Aval) -> bool:
    """Whether it is done so for these matrices."""
    rows, columns = x.shape[-2:]
    few = 0 < rows <= ROWS and 0 < columns <= ROWS
    return few and not x.dtype.is_complex and x.size >= MATRICES * rows * columns


@functools.cache
def qr(dtype: DType, rows: int, columns: int, complete: bool) -> int:
    """x -> Q column after column, then R row after row."""
    m = Lanes("qr", dtype, 1, max(rows, columns))
    least = min(rows, columns)
    width = rows if complete else least
    with m.groups():
        x = LaneTile(m, rows, columns)
        out = LaneTile(m, width, rows + columns)
        m.read(1, x, rows, columns)
        oddity = m.oddity(x, rows * columns)
        a = [[x.get(i, j) for i in range(rows)] for j in range(columns)]
        vectors, t = _factored(m, a, least, dtype)
        for j in range(least, columns):  # C - V T^T V^T C
            first = [_chain(m, v, a[j]) for v in vectors]
            second = [_chain(m, [row[r] for row in t], first) for r in range(least)]
            a[j] = _less(m, a[j], vectors, second)
        for c in range(width):  # 1 - V T V^T
            unit = [m.number(float(i == c)) for i in range(rows)]
            first = [m.fused(v[c], m.number(1.0), m.number(0.0)) for v in vectors]
            second = [_chain(m, row, first) for row in t]
            for i, value in enumerate(_less(m, unit, vectors, second)):
                out.put(value, 0, c * rows + i)
        for i in range(width):
            for j in range(columns):
                value = a[j][i] if j >= i else m.number(0.0)
                out.put(value, 0, width * rows + i * columns + j)
        size = width * (rows + columns)
        m.spoil(out, size, oddity)
        m.write(out, width, rows + columns)
    return address(m.code)


def _chain(m: Lanes, x: Sequence[Value], y: Sequence[Value]) -> Value:
    """The sum of products as a product of matrices makes it."""
    total = m.number(0.0)
    for p, q in zip(x, y, strict=True):
        total = m.fused(p, q, total)
    return total


def _less(m: Lanes, c: Column, vectors: Sequence[Column], factors: Sequence[Value]) -> Column:
    """A column without the sum of all vectors, each by its factor."""
    return [x - _chain(m, [v[i] for v in vectors], factors) for i, x in enumerate(c)]


def _dot(m: Lanes, x: Sequence[Value], y: Sequence[Value], dtype: DType) -> Value:
    """The sum of products along a column, whose parts are joined by halves."""
    parts = [m.fused(p, q, m.number(0.0)) for p, q in zip(x, y, strict=True)]
    width = VECTOR_BYTES // dtype.itemsize
    assert len(parts) <= width
    while width > 1:
        width //= 2
        high = parts[width:]
        parts = [p + high[k] if k < len(high) else p for k, p in enumerate(parts[:width])]
    return parts[0] if parts else m.number(0.0)


def _factored(
    m: Lanes, a: list[Column], count: int, dtype: DType
) -> tuple[list[Column], list[list[Value]]]:
    """Makes the first `count` columns a triangle, column by column: V and T."""
    zero, rows = m.number(0.0), len(a[0])
    vectors: list[Column] = []
    t = [[zero] * count for _ in range(count)]
    for j in range(count):
        beta, vector, tau = _reflector(m, a[j][j:], dtype)
        a[j][j] = beta
        vectors.append([zero] * j + vector)
        for k in range(j + 1, count):
            factor = -(tau * _dot(m, vector, a[k][j:], dtype))
            for i in range(j, rows):
                a[k][i] = m.fused(vector[i - j], factor, a[k][i])
        products = [_dot(m, v[j:], vector, dtype) for v in vectors[:j]]
        for k in range(j):
            t[k][j] = -(tau * _chain(m, t[k][k:j], products[k:]))
        t[j][j] = tau
    return vectors, t


def _reflector(m: Lanes, x: Column, dtype: DType) -> tuple[Value, Column, Value]:
    """What a reflection leaves of a column in its first element; its vector, and tau."""
    zero, one = m.number(0.0), m.number(1.0)
    alpha, below = x[0], x[1:]
    rest = zero
    for value in below:
        size = m.call("fabs", value)
        rest = m.choose(m.less(rest, size), size, rest)
    nothing = m.equal(rest, zero)
    size = m.call("fabs", alpha)
    scale = m.choose(nothing, one, m.choose(m.less(rest, size), size, rest))
    faint = FAINT[dtype.name]
    lift = m.choose(m.less(scale, m.number(faint)), m.number(1 / faint), one)
    alpha, scale, below = alpha * lift, scale * lift, [value * lift for value in below]
    scaled = [value / scale for value in below]
    ratio = alpha / scale
    root = m.call("sqrt", m.fused(ratio, ratio, _dot(m, scaled, scaled, dtype)))
    norm = scale * root
    beta = m.choose(m.less(alpha, zero), norm, -norm)
    beta = m.choose(nothing, alpha, beta)
    tau = (beta - alpha) / m.choose(nothing, one, beta)
    divisor = m.choose(nothing, one, alpha - beta)
    return beta / lift, [one, *(value / divisor for value in below)], tau
