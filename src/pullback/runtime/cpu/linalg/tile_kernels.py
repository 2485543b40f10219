"""The leaves of tiled factorisations: triangular systems, Cholesky, LU of at most `LEAF` columns.

Offsets and distances are in bytes. `status` has an int64 for each matrix: 0, or -1 for one that
is not finite, or the number of the first pivot that is not positive.
"""

from __future__ import annotations

import functools

from pullback.compile.kernel.factor_order import LEAF, VECTOR_BYTES
from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.leaf_code import Leaf
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.vectors import squared

__all__ = ["cholesky_kernel", "panel_kernel", "triangle_kernel"]

TRIANGLE = Record("t x", "n count groups unit t_at t_row t_column x_at x_row x_column")
CHOLESKY = Record("a status", "n first at row")
PANEL = Record("a swaps", "m n first at column swaps_at")


# -- triangular systems --------------------------------------------------------------------------


@functools.cache
def triangle_kernel(dtype: DType) -> int:
    """Solves T X = B in place of B for a lower triangle T; a unit is a vector of columns of X.

    Either the columns of X lie side by side or its rows. A column of X is found row by row: each
    row is taken, times its elements of T, from all that follow.
    """
    leaf = Leaf(dtype, TRIANGLE)
    f, p, v, lanes, size = leaf.f, leaf.p, leaf.v, leaf.lanes, str(dtype.itemsize)
    area = f.array("i8", LEAF * VECTOR_BYTES)
    beside = f(f"icmp eq i64 {p['x_column']}, {size}")
    across = f(f"xor i1 {beside}, true")
    unit_diagonal = f(f"icmp ne i64 {p['unit']}, 0")
    n = p["n"]

    def row(i: str) -> str:
        return leaf.at(area, (i, str(VECTOR_BYTES)))

    with f.loop("%lo", "%hi") as unit:
        item, group = f.divmod(unit.i, p["groups"])
        t_at, x_at = p.offsets(item, 2)
        t = f.offset(p.pointers[0], f.add(t_at, p["t_at"]))
        x = f.offset(p.pointers[1], f.add(x_at, p["x_at"]))
        start = f.mul(group, str(lanes))
        x = leaf.at(x, (start, p["x_column"]))
        count = f.sub(p["count"], start)
        mask = v.mask(count)
        last = f.sub(f.minimum(count, str(lanes)), "1")
        lines = [leaf.at(x, (f.minimum(str(c), last), p["x_column"])) for c in range(lanes)]
        with f.when(beside), f.loop("0", n) as i:
            v.store(v.load(leaf.at(x, (i.i, p["x_row"])), mask), row(i.i))
        with f.when(across), f.loop("0", n, str(lanes)) as i:
            some = v.mask(f.sub(n, i.i))
            loaded = [v.load(leaf.element(line, i.i), some) for line in lines]
            for r, vector in enumerate(squared(v, loaded)):
                v.store(vector, row(f.add(i.i, str(r))))
        with f.loop("0", n) as j:
            column = leaf.at(t, (j.i, p["t_column"]))
            pivot = leaf.load(leaf.at(column, (j.i, p["t_row"])))
            pivot = leaf.select(unit_diagonal, leaf.number(1.0), pivot)
            found = v.divide(v.load(row(j.i)), leaf.splat(pivot))
            v.store(found, row(j.i))
            with f.loop(f.add(j.i, "1"), n) as i:
                factor = leaf.splat(leaf.negative(leaf.load(leaf.at(column, (i.i, p["t_row"])))))
                v.store(v.fma(factor, found, v.load(row(i.i))), row(i.i))
        with f.when(beside), f.loop("0", n) as i:
            v.store_masked(v.load(row(i.i)), leaf.at(x, (i.i, p["x_row"])), mask)
        with f.when(across), f.loop("0", n, str(lanes)) as i:
            some = v.mask(f.sub(n, i.i))
            rows = [v.load(row(f.add(i.i, str(r)))) for r in range(lanes)]
            # The line that stands for those beyond the last is written last with what is its own.
            for c, vector in reversed(list(enumerate(squared(v, rows)))):
                with f.when(f(f"icmp sle i64 {c}, {last}")):
                    v.store_masked(vector, leaf.element(lines[c], i.i), some)
    return leaf.finish()


# -- Cholesky ------------------------------------------------------------------------------------


@functools.cache
def cholesky_kernel(dtype: DType) -> int:
    """The lower triangle L of A = L L^T, in place of that of A; a unit is a matrix.

    Column by column: each is taken, times its elements, from all that follow.
    """
    leaf = Leaf(dtype, CHOLESKY)
    f, p, v, size = leaf.f, leaf.p, leaf.v, dtype.itemsize
    step = LEAF * size  # bytes of a column
    places = range(0, step, VECTOR_BYTES)
    area = f.array("i8", LEAF * step)
    n = p["n"]

    def at(i: str, j: str) -> str:
        return leaf.element(leaf.at(area, (j, str(step))), i)

    with f.loop("%lo", "%hi") as item:
        (offset,) = p.offsets(item.i, 1)
        a = f.offset(p.pointers[0], f.add(offset, p["at"]))
        status = f.element(p.pointers[1], "i64", item.i)
        leaf.zeros(area, str(LEAF * step // VECTOR_BYTES))
        with f.loop("0", n) as i, f.loop("0", f.add(i.i, "1")) as j:
            leaf.store(leaf.load(leaf.element(leaf.at(a, (i.i, p["row"])), j.i)), at(i.i, j.i))
        with f.loop("0", n) as j:
            square = leaf.load(at(j.i, j.i))
            bad = f(f"fcmp ule {leaf.kind} {square}, {leaf.number(0.0)}")
            before = f.int_at(status, 0)
            new = f(f"and i1 {bad}, {f(f'icmp eq i64 {before}, 0')}")
            order = f.add(f.add(p["first"], j.i), "1")
            f.do(f"store i64 {f(f'select i1 {new}, i64 {order}, i64 {before}')}, ptr {status}")
            root = leaf.unary("sqrt", square)
            column = leaf.at(area, (j.i, str(step)))
            found = [v.divide(v.load(f.offset(column, str(k))), leaf.splat(root)) for k in places]
            for k, vector in zip(places, found, strict=True):
                v.store(vector, f.offset(column, str(k)))
            leaf.store(root, at(j.i, j.i))
            with f.loop(f.add(j.i, "1"), n) as k:
                factor = leaf.splat(leaf.negative(leaf.load(at(k.i, j.i))))
                other = leaf.at(area, (k.i, str(step)))
                for b, vector in zip(places, found, strict=True):
                    place = f.offset(other, str(b))
                    v.store(v.fma(vector, factor, v.load(place)), place)
        with f.loop("0", n) as i, f.loop("0", f.add(i.i, "1")) as j:
            leaf.store(leaf.load(at(i.i, j.i)), leaf.element(leaf.at(a, (i.i, p["row"])), j.i))
    return leaf.finish()


# -- LU ------------------------------------------------------------------------------------------


@functools.cache
def panel_kernel(dtype: DType) -> int:
    """L and U of a few columns, which are dense, by partial pivoting; a unit is a matrix.

    A column gets all exchanges, and what the columns before it take from it, when it is its turn.
    The row that each row was exchanged with, counted from that of the whole matrix, is left at
    `swaps` as a number.
    """
    leaf = Leaf(dtype, PANEL)
    f, p, v, kind = leaf.f, leaf.p, leaf.v, leaf.kind
    pivots = f.array("i64", LEAF)
    m, n = p["m"], p["n"]
    with f.loop("%lo", "%hi") as item:
        a_at, swaps_at = p.offsets(item.i, 2)
        a = f.offset(p.pointers[0], f.add(a_at, p["at"]))
        swaps = f.offset(p.pointers[1], f.add(swaps_at, p["swaps_at"]))
        with f.loop("0", n) as j:
            own = leaf.at(a, (j.i, p["column"]))
            _settle_top(leaf, a, own, pivots, j.i)
            most = _settle_rest(leaf, a, own, j.i, m)
            row = _first_of(leaf, own, most, j.i, m)
            f.do(f"store i64 {row}, ptr {f.element(pivots, 'i64', j.i)}")
            number = f(f"sitofp i64 {f.add(row, p['first'])} to {kind}")
            leaf.store(number, leaf.element(swaps, f.add(p["first"], j.i)))
            with f.loop("0", f.add(j.i, "1")) as k:
                column = leaf.at(a, (k.i, p["column"]))
                _exchange(leaf, leaf.element(column, j.i), leaf.element(column, row))
            pivot = leaf.load(leaf.element(own, j.i))
            zero = f(f"fcmp oeq {kind} {pivot}, {leaf.number(0.0)}")
            wide = leaf.splat(leaf.select(zero, leaf.number(1.0), pivot))

            def scale(
                places: list[str], mask: str | None, _: list[str], own=own, wide=wide
            ) -> list[str]:
                for i in places:
                    place = leaf.element(own, i)
                    leaf.put(v.divide(v.load(place, mask), wide), place, mask)
                return []

            leaf.column(f.add(j.i, "1"), m, [], scale)
    return leaf.finish()


def _exchange(leaf: Leaf, here: str, there: str) -> None:
    first, second = leaf.load(here), leaf.load(there)
    leaf.store(second, here)
    leaf.store(first, there)


def _settle_top(leaf: Leaf, a: str, own: str, pivots: str, j: str) -> None:
    """Exchanges rows of column j, and makes its part of U."""
    f, p = leaf.f, leaf.p
    with f.loop("0", j) as k:
        row = f.int_at(pivots, k.i)
        _exchange(leaf, leaf.element(own, k.i), leaf.element(own, row))
    with f.loop("0", j) as k:
        factor = leaf.negative(leaf.load(leaf.element(own, k.i)))
        column = leaf.at(a, (k.i, p["column"]))
        with f.loop(f.add(k.i, "1"), j) as i:
            place = leaf.element(own, i.i)
            low = leaf.load(leaf.element(column, i.i))
            leaf.store(leaf.fma(low, factor, leaf.load(place)), place)


def _settle_rest(leaf: Leaf, a: str, own: str, j: str, m: str) -> str:
    """Takes the columns before j from its rows j to m; gives their largest magnitude."""
    f, p, v = leaf.f, leaf.p, leaf.v

    def body(places: list[str], mask: str | None, carried: list[str]) -> list[str]:
        targets = [leaf.element(own, i) for i in places]
        start = [(v.type, v.load(t, mask)) for t in targets]
        with f.loop("0", j, carried=start) as k:
            factor = leaf.splat(leaf.negative(leaf.load(leaf.element(own, k.i))))
            column = leaf.at(a, (k.i, p["column"]))
            lows = [v.load(leaf.element(column, i), mask) for i in places]
            k.next = [v.fma(x, factor, s) for x, s in zip(lows, k.carried, strict=True)]
        most = carried[0]
        for value, target in zip(k.results, targets, strict=True):
            leaf.put(value, target, mask)
            size = v.unary("fabs", value)
            larger = f(f"fcmp ogt {v.type} {size}, {most}")
            most = f(f"select <{v.lanes} x i1> {larger}, {v.type} {size}, {v.type} {most}")
        return [most]

    (most,) = leaf.column(j, m, [(v.type, "zeroinitializer")], body)
    return leaf.reduced("fmax", most)


def _first_of(leaf: Leaf, own: str, most: str, j: str, m: str) -> str:
    """The first of the rows j to m whose magnitude is the largest; j if none is."""
    f, v, lanes = leaf.f, leaf.v, leaf.lanes
    words, bits = f"<{lanes} x i64>", f"<{lanes} x i1>"
    wide = leaf.splat(most)
    far = f.splat(str(1 << 62), "i64", lanes)
    numbers = f"<{', '.join(f'i64 {k}' for k in range(lanes))}>"

    def body(places: list[str], mask: str | None, carried: list[str]) -> list[str]:
        found = carried[0]
        for i in reversed(places):
            size = v.unary("fabs", v.load(leaf.element(own, i), mask))
            same = f(f"fcmp oeq {v.type} {size}, {wide}")
            same = same if mask is None else f(f"and {bits} {same}, {mask}")
            rows = f(f"add {words} {f.splat(i, 'i64', lanes)}, {numbers}")
            less = f(f"icmp slt {words} {rows}, {found}")
            taken = f(f"and {bits} {same}, {less}")
            found = f(f"select {bits} {taken}, {words} {rows}, {words} {found}")
        return [found]

    (found,) = leaf.column(j, m, [(words, far)], body)
    name = f"llvm.vector.reduce.smin.v{lanes}i64"
    function = leaf.module.intrinsic(name, "i64", words)
    row = f(f"call i64 {function}({words} {found})")
    return f(f"select i1 {f(f'icmp slt i64 {row}, {m}')}, i64 {row}, i64 {j}")
