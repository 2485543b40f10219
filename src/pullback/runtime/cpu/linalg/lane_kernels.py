"""Cholesky and LU factors, and what comes from them, of many small real matrices at once.

The results are packed as those of `lapack_kernels` are.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

from pullback.compile.kernel.factor_order import MINORS, minors
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.lanes import Index, Lanes, LaneTile
from pullback.runtime.cpu.llvm.values import Value

__all__ = ["cholesky", "cofactors", "det", "lu", "lu_solve", "solve_triangular"]
__tuning__ = ("_COLUMNS",)

Turned: TypeAlias = tuple[bool, ...]  # which operands lie column after column

_COLUMNS = 4  # right-hand sides that are solved for at a time


@functools.cache
def cholesky(dtype: DType, n: int, turned: Turned) -> int:
    """x (n x n) -> L; the operand is looked at in both triangles."""
    m = Lanes("cholesky", dtype, 1, n, turned=turned)
    zero = m.number(0.0)
    with m.groups():
        a, factor = m.tile(1, n, n), LaneTile(m, n, n)
        failed = m.variable(zero)
        oddity = m.oddity(a, n * n)

        def column(j: Index) -> None:
            def row(i: Index) -> None:
                half = m.number(0.5)
                mean = a.get(i, j) * half
                total = m.variable(mean + a.get(j, i) * half)

                def product(k: Index) -> None:
                    minus = -factor.get(i, k)
                    total.set(m.fused(minus, factor.get(j, k), total.get()))

                m.each(0, j, product)
                factor.put(total.get(), i, j)

            m.each(j, n, row)
            d = factor.get(j, j)
            bad = (d <= zero) & m.equal(failed.get(), zero)
            failed.set(m.choose(bad, m.whole(j + 1), failed.get()))
            root = m.call("sqrt", d)
            factor.put(root, j, j)

            def divided(i: Index) -> None:
                factor.put(factor.get(i, j) / root, i, j)
                factor.put(zero, j, i)

            m.each(j + 1, n, divided)

        m.each(0, n, column)
        m.fail_if(m.choose(m.equal(oddity, oddity), failed.get(), zero))
        m.spoil(factor, n * n, oddity)
        m.write(factor, n, n)
    return address(m.code)


@functools.cache
def lu(dtype: DType, n: int, turned: Turned) -> int:
    """x (n x n) -> LU column after column, the rows exchanged, the permutation."""
    m = Lanes("lu", dtype, 1, n, turned=turned)
    zero, one = m.number(0.0), m.number(1.0)
    with m.groups():
        a, packed, order = m.tile(1, n, n), LaneTile(m, n + 2, n), LaneTile(m, n, 1)
        oddity = m.oddity(a, n * n)
        m.each(0, n, lambda i: order.put(m.whole(i), i, 0))

        def column(k: Index) -> None:
            best, place = m.variable(m.call("fabs", a.get(k, k))), m.variable(m.whole(k))

            def compare(i: Index) -> None:
                size = m.call("fabs", a.get(i, k))
                larger = m.less(best.get(), size)
                best.set(m.choose(larger, size, best.get()))
                place.set(m.choose(larger, m.whole(i), place.get()))

            m.each(k + 1, n, compare)
            packed.put(place.get(), n, k)

            def exchange(i: Index) -> None:
                mine = m.equal(place.get(), m.whole(i))

                def swap(tile: LaneTile, j: Index, upper: Index, lower: Index) -> None:
                    here, there = tile.get(upper, j), tile.get(lower, j)
                    tile.put(m.choose(mine, there, here), upper, j)
                    tile.put(m.choose(mine, here, there), lower, j)

                def rows() -> None:
                    m.each(0, n, lambda j: swap(a, j, k, i))
                    swap(order, 0, k, i)

                m.if_any(mine, rows)

            m.each(k + 1, n, exchange)
            pivot = a.get(k, k)
            pivot = m.choose(m.equal(pivot, zero), one, pivot)

            def eliminate(i: Index) -> None:
                ratio = a.get(i, k) / pivot
                a.put(ratio, i, k)
                minus = -ratio
                m.each_few(
                    k + 1, n, lambda j: a.put(m.fused(minus, a.get(k, j), a.get(i, j)), i, j)
                )

            m.each(k + 1, n, eliminate)

        m.each(0, n, column)
        m.spoil(a, n * n, oddity)
        m.each(0, n, lambda i: packed.put(order.get(i, 0), n + 1, i))
        m.each(0, n, lambda i: m.each(0, n, lambda j: packed.put(a.get(i, j), j, i)))
        m.write(packed, n + 2, n)
    return address(m.code)


@functools.cache
def solve_triangular(
    dtype: DType, n: int, turned: Turned, columns: int, lower: bool, unit: bool
) -> int:
    """a (n x n), b (n x columns) -> the solution."""
    m = Lanes("solve_triangular", dtype, 2, n, turned=turned)
    with m.groups():
        a, x = m.tile(1, n, n), m.upright(m.tile(2, n, columns))
        if not unit:
            m.fail_if(_zero_on_diagonal(m, a, n))
        _solve(m, a, x, columns, lower, unit, False)
        m.write(x, n, columns)
    return address(m.code)


def _zero_on_diagonal(m: Lanes, a: LaneTile, n: int) -> Value:
    """1 + the position of the first 0 on the diagonal, or 0."""
    zero = m.number(0.0)
    found = m.variable(zero)

    def look(i: Index) -> None:
        bad = m.equal(a.get(i, i), zero)
        found.set(m.choose(bad, m.whole(i + 1), found.get()))

    m.down(n, look)
    return found.get()


def _solve(
    m: Lanes, a: LaneTile, x: LaneTile, columns: int, lower: bool, unit: bool, turned: bool
) -> None:
    """x becomes the solution of A y = x for a triangle of `a`, or of its transpose if `turned`."""
    n = m.n

    def some(start: Index, width: int) -> None:
        places = [start + c for c in range(width)]

        def row(i: Index) -> None:
            totals = [m.variable(x.get(i, c)) for c in places]

            def product(k: Index) -> None:
                minus = -(a.get(k, i) if turned else a.get(i, k))
                for c, total in zip(places, totals, strict=True):
                    total.set(m.fused(minus, x.get(k, c), total.get()))

            first, last = (0, i) if lower else (i + 1, n)
            m.each(first, last, product)
            for c, total in zip(places, totals, strict=True):
                x.put(total.get() if unit else total.get() / a.get(i, i), i, c)

        if lower:
            m.each(0, n, row)
        else:
            m.down(n, row)

    # Sums of several columns are on their way at a time.
    whole, rest = divmod(columns, _COLUMNS)
    with m.code.range(0, whole) as group:
        some(group * _COLUMNS, _COLUMNS)
    if rest:
        some(whole * _COLUMNS, rest)


@functools.cache
def lu_solve(dtype: DType, n: int, turned: Turned, columns: int, adjoint: bool) -> int:
    """a, b (n x columns) and the result of `lu` -> A^-1 b or A^-T b; a is not looked at."""
    m = Lanes("lu_solve", dtype, 3, n, turned=turned)
    with m.groups():
        packed, x = m.tile(3, n + 2, n), LaneTile(m, n, columns)
        m.fail_if(_zero_on_diagonal(m, packed, n))
        numbers = 3, (n + 1) * n  # where the permutation is
        if adjoint:  # the packed factor is transposed already
            m.read(2, x, n, columns)
            _solve(m, packed, x, columns, True, False, False)
            _solve(m, packed, x, columns, False, True, False)
            m.write_rows(x, n, columns, *numbers)
        else:
            m.read_rows(2, x, n, columns, *numbers)
            _solve(m, packed, x, columns, True, True, True)
            _solve(m, packed, x, columns, False, False, True)
            m.write(x, n, columns)
    return address(m.code)


@functools.cache
def det(dtype: DType, n: int, turned: Turned) -> int:
    """x and the result of `lu` -> the determinant; x is not looked at."""
    m = Lanes("det", dtype, 2, n, turned=turned)
    with m.groups():
        packed, out = m.tile(2, n + 2, n), LaneTile(m, 1, 1)
        total = m.variable(m.number(1.0))

        def factor(i: Index) -> None:
            pivot = packed.get(i, i)
            stayed = m.equal(packed.get(n, i), m.whole(i))
            pivot = m.choose(stayed, pivot, -pivot)
            total.set(total.get() * pivot)

        m.each(0, n, factor)
        out.put(total.get(), 0, 0)
        m.write(out, 1, 1)
    return address(m.code)


@functools.cache
def cofactors(dtype: DType, n: int, turned: Turned) -> int:
    """x and the result of `lu` -> the matrix of cofactors; only one of them is looked at."""
    m = Lanes("cofactors", dtype, 2, n, turned=turned)
    return _minors(m) if n <= MINORS else _factored(m)


def _minors(m: Lanes) -> int:
    n = m.n
    with m.groups():
        x, out = m.tile(1, n, n), LaneTile(m, n, n)
        for k, value in enumerate(minors(n, x.get, m.number(1.0))):
            out.keep(value, k)
        m.write(out, n, n)
    return address(m.code)


def _factored(m: Lanes) -> int:
    zero, n = m.number(0.0), m.n
    with m.groups():
        packed, row, out = m.tile(2, n + 2, n), LaneTile(m, 1, n), LaneTile(m, n, n)
        before = m.variable(m.number(1.0))  # the sign, and the pivots before a row

        def turn(i: Index) -> None:
            stayed = m.equal(packed.get(n, i), m.whole(i))
            before.set(m.choose(stayed, before.get(), -before.get()))

        m.each(0, n, turn)

        def less(start: Index, stop: Index, of: Index, value: Value) -> Value:
            """value - the product of a row of the packed factor with the row in work."""
            total = m.variable(value)

            def product(k: Index) -> None:
                total.set(m.fused(-packed.get(of, k), row.get(0, k), total.get()))

            m.each(start, stop, product)
            return total.get()

        def of_adjugate(r: Index) -> None:
            m.each(0, r, lambda k: row.put(zero, 0, k))
            row.put(before.get(), 0, r)

            def column(j: Index) -> None:
                found, pivot = less(r, j, j, zero), packed.get(j, j)
                m.each(r, j, lambda k: row.put(row.get(0, k) * pivot, 0, k))
                row.put(found, 0, j)

            m.each(r + 1, n, column)
            before.set(before.get() * packed.get(r, r))

            def solved(i: Index) -> None:
                value = less(i + 1, n, i, row.get(0, i))
                row.put(value, 0, i)
                out.put(value, i, r)

            m.down(n, solved)

        m.each(0, n, of_adjugate)
        m.write_rows(out, n, n, 2, (n + 1) * n)
    return address(m.code)
