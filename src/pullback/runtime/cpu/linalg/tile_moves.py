"""What tiled factorisations do beside arithmetic: copies of what is given, exchanges of rows, and
the triangle that a result does not have.

Offsets and distances are in bytes; for `status` see `tile_kernels`.
"""

from __future__ import annotations

import functools

from pullback.compile.kernel.factor_order import VECTOR_BYTES
from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.leaf_code import Leaf
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.vectors import squared

__all__ = [
    *("copy_kernel", "exchange_kernel", "identity_kernel", "order_kernel", "permute_kernel"),
    *("regular_kernel", "trim_kernel"),
]

COPY = Record("x out status", "m n bands x_row x_column out_row out_at")
EXCHANGE = Record("a swaps", "columns first last column at swaps_at")
PERMUTE = Record("x out numbers", "n k back x_row x_column numbers_at")
IDENTITY = Record("out", "rows columns")
ORDER = Record("out status", "n count at")
REGULAR = Record("a", "n step code")
TRIM = Record("out status", "rows columns at row side code")


@functools.cache
def copy_kernel(dtype: DType, symmetric: bool) -> int:
    """x to dense rows of `out`, which are beside each other in x or its transpose, or if
    `symmetric` the lower triangle of (x + x^T) / 2; a unit is a band of rows as high as a vector.

    `status` becomes -1 if an element is not finite.
    """
    leaf = Leaf(dtype, COPY)
    f, p, v, lanes, size = leaf.f, leaf.p, leaf.v, leaf.lanes, str(dtype.itemsize)
    bits = f"<{lanes} x i1>"
    beside = f(f"icmp eq i64 {p['x_column']}, {size}")
    across = f(f"xor i1 {beside}, true")
    area = f.array("i8", lanes * VECTOR_BYTES)
    half = leaf.splat(leaf.number(0.5))

    def place(r: int) -> str:
        return f.offset(area, str(r * VECTOR_BYTES))

    def lines(x: str, start: str, stop: str, step: str) -> list[str]:
        last = f.sub(stop, "1")
        rows = [f.minimum(f.add(start, str(r)), last) for r in range(lanes)]
        return [leaf.at(x, (r, step)) for r in rows]

    with f.loop("%lo", "%hi") as unit:
        item, band = f.divmod(unit.i, p["bands"])
        x_at, out_at = p.offsets(item, 2)
        x = f.offset(p.pointers[0], x_at)
        out = f.offset(p.pointers[1], f.add(out_at, p["out_at"]))
        i = f.mul(band, str(lanes))
        high = v.mask(f.sub(p["m"], i))
        stop = f.minimum(p["n"], f.add(i, str(lanes))) if symmetric else p["n"]
        targets = lines(out, i, p["m"], p["out_row"])
        odd = [(bits, "zeroinitializer")]
        with f.loop("0", stop, str(lanes), carried=odd) as j:
            broad = v.mask(f.sub(p["n"], j.i))
            if symmetric:  # in which a matrix and its transpose are alike
                own = [v.load(leaf.element(s, j.i), broad) for s in lines(x, i, p["m"], p["x_row"])]
                turned = [
                    v.load(leaf.element(s, i), high) for s in lines(x, j.i, p["n"], p["x_row"])
                ]
                rows = [
                    v.fma(a, half, f(f"fmul {v.type} {b}, {half}"))
                    for a, b in zip(own, squared(v, turned), strict=True)
                ]
            else:
                with f.when(beside):
                    for r, s in enumerate(lines(x, i, p["m"], p["x_row"])):
                        v.store(v.load(leaf.element(s, j.i), broad), place(r))
                with f.when(across):
                    columns = lines(x, j.i, p["n"], p["x_column"])
                    loaded = [v.load(leaf.element(s, i), high) for s in columns]
                    for r, row in enumerate(squared(v, loaded)):
                        v.store(row, place(r))
                rows = [v.load(place(r)) for r in range(lanes)]
            places = [leaf.element(target, j.i) for target in targets]
            j.next = [_put_rows(leaf, rows, places, i, broad, j.carried[0])]
        function = f.module.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", bits)
        with f.when(f(f"call i1 {function}({bits} {j.results[0]})")):
            status = f.element(p.pointers[2], "i64", item)
            f.do(f"store atomic i64 -1, ptr {status} monotonic, align 8")
    return leaf.finish()


def _put_rows(
    leaf: Leaf, rows: list[str], places: list[str], first: str, columns: str, found: str
) -> str:
    """Writes rows from row `first` on; what was `found`, and where elements are not finite."""
    f, v, bits = leaf.f, leaf.v, f"<{leaf.lanes} x i1>"
    for r, row in reversed(list(enumerate(rows))):
        some = f(f"icmp slt i64 {f.add(first, str(r))}, {leaf.p['m']}")
        with f.when(some):
            v.store_masked(row, places[r], columns)
        strange = f(f"fcmp uno {v.type} {v.subtract(row, row)}, zeroinitializer")
        strange = f(f"and {bits} {strange}, {columns}")
        strange = f(f"and {bits} {strange}, {f.splat(some, 'i1', leaf.lanes)}")
        found = f(f"or {bits} {found}, {strange}")
    return found


@functools.cache
def exchange_kernel(dtype: DType) -> int:
    """Exchanges rows `first` to `last` of dense columns with those that the numbers at `swaps` say;
    a unit is a column.
    """
    leaf = Leaf(dtype, EXCHANGE)
    f, p = leaf.f, leaf.p
    with f.loop("%lo", "%hi") as unit:
        item, number = f.divmod(unit.i, p["columns"])
        a_at, swaps_at = p.offsets(item, 2)
        place = f.add(f.add(a_at, p["at"]), f.mul(number, p["column"]))
        column = f.offset(p.pointers[0], place)
        swaps = f.offset(p.pointers[1], f.add(swaps_at, p["swaps_at"]))
        with f.loop(p["first"], p["last"]) as k:
            row = f(f"fptosi {leaf.kind} {leaf.load(leaf.element(swaps, k.i))} to i64")
            here, there = leaf.element(column, k.i), leaf.element(column, row)
            first, second = leaf.load(here), leaf.load(there)
            leaf.store(second, here)
            leaf.store(first, there)
    return leaf.finish()


@functools.cache
def order_kernel(dtype: DType) -> int:
    """The permutation that `count` exchanges of n rows lead to: a row of numbers behind the row of
    exchanges, which ends in zeros; of what is not finite, nothing is exchanged. A unit is a matrix.
    """
    leaf = Leaf(dtype, ORDER)
    f, p, kind = leaf.f, leaf.p, leaf.kind
    with f.loop("%lo", "%hi") as item:
        (offset,) = p.offsets(item.i, 1)
        swaps = f.offset(p.pointers[0], f.add(offset, p["at"]))
        numbers = leaf.element(swaps, p["n"])
        with f.loop("0", p["n"]) as i:
            leaf.store(f(f"sitofp i64 {i.i} to {kind}"), leaf.element(numbers, i.i))
        status = f.int_at(f.element(p.pointers[1], "i64", item.i), 0)
        odd = f(f"icmp ne i64 {status}, 0")
        known = f(f"select i1 {odd}, i64 0, i64 {p['count']}")
        with f.loop("0", known) as k:
            row = f(f"fptosi {kind} {leaf.load(leaf.element(swaps, k.i))} to i64")
            here, there = leaf.element(numbers, k.i), leaf.element(numbers, row)
            first, second = leaf.load(here), leaf.load(there)
            leaf.store(second, here)
            leaf.store(first, there)
        with f.loop(known, p["n"]) as k:
            leaf.store(leaf.number(0.0), leaf.element(swaps, k.i))
    return leaf.finish()


@functools.cache
def permute_kernel(dtype: DType) -> int:
    """Dense rows of `out`: row i is the row of x that number i says, or with `back` the row that
    number i says is row i of x; a unit is a row.
    """
    leaf = Leaf(dtype, PERMUTE)
    f, p, v = leaf.f, leaf.p, leaf.v
    back = f(f"icmp ne i64 {p['back']}, 0")
    beside = f(f"icmp eq i64 {p['x_column']}, {dtype.itemsize}")
    across = f(f"xor i1 {beside}, true")
    with f.loop("%lo", "%hi") as unit:
        item, i = f.divmod(unit.i, p["n"])
        x_at, out_at, numbers_at = p.offsets(item, 3)
        numbers = f.offset(p.pointers[2], f.add(numbers_at, p["numbers_at"]))
        number = f(f"fptosi {leaf.kind} {leaf.load(leaf.element(numbers, i))} to i64")
        here = f(f"select i1 {back}, i64 {i}, i64 {number}")
        there = f(f"select i1 {back}, i64 {number}, i64 {i}")
        source = leaf.at(f.offset(p.pointers[0], x_at), (here, p["x_row"]))
        target = leaf.element(f.offset(p.pointers[1], out_at), f.mul(there, p["k"]))

        def move(
            places: list[str], mask: str | None, _: list[str], source=source, target=target
        ) -> list[str]:
            for j in places:
                leaf.put(v.load(leaf.element(source, j), mask), leaf.element(target, j), mask)
            return []

        with f.when(beside):
            leaf.column("0", p["k"], [], move)
        with f.when(across), f.loop("0", p["k"]) as j:
            value = leaf.load(leaf.at(source, (j.i, p["x_column"])))
            leaf.store(value, leaf.element(target, j.i))
    return leaf.finish()


@functools.cache
def identity_kernel(dtype: DType) -> int:
    """Dense rows with ones on the diagonal, and zeros; a unit is a row."""
    leaf = Leaf(dtype, IDENTITY)
    f, p = leaf.f, leaf.p
    with f.loop("%lo", "%hi") as unit:
        item, i = f.divmod(unit.i, p["rows"])
        (offset,) = p.offsets(item, 1)
        row = leaf.element(f.offset(p.pointers[0], offset), f.mul(i, p["columns"]))

        def fill(places: list[str], mask: str | None, _: list[str], row=row) -> list[str]:
            for j in places:
                leaf.put("zeroinitializer", leaf.element(row, j), mask)
            return []

        leaf.column("0", p["columns"], [], fill)
        with f.when(f(f"icmp slt i64 {i}, {p['columns']}")):
            leaf.store(leaf.number(1.0), leaf.element(row, i))
    return leaf.finish()


@functools.cache
def trim_kernel(dtype: DType) -> int:
    """Clears what a triangle does not have (`side`: 1 above the diagonal, -1 below it, 0 nothing),
    fills a matrix that is not finite with NaN, and ends with an error about one that is not
    positive; a unit is a row.
    """
    leaf = Leaf(dtype, TRIM)
    f, p = leaf.f, leaf.p
    above = f(f"icmp sgt i64 {p['side']}, 0")
    below = f(f"icmp slt i64 {p['side']}, 0")
    nan = leaf.number(float("nan"))
    with f.loop("%lo", "%hi") as unit:
        item, i = f.divmod(unit.i, p["rows"])
        (offset,) = p.offsets(item, 1)
        place = f.add(f.add(offset, p["at"]), f.mul(i, p["row"]))
        row = f.offset(p.pointers[0], place)
        status = f.int_at(f.element(p.pointers[1], "i64", item), 0)
        fine = f(f"icmp eq i64 {status}, 0")
        start = f(f"select i1 {above}, i64 {f.add(i, '1')}, i64 0")
        stop = f(f"select i1 {below}, i64 {f.minimum(i, p['columns'])}, i64 0")
        stop = f(f"select i1 {above}, i64 {p['columns']}, i64 {stop}")
        start = f(f"select i1 {fine}, i64 {start}, i64 0")
        stop = f(f"select i1 {fine}, i64 {stop}, i64 {p['columns']}")
        value = leaf.select(fine, leaf.number(0.0), nan)
        wide = leaf.splat(value)

        def fill(
            places: list[str], mask: str | None, _: list[str], row=row, wide=wide
        ) -> list[str]:
            for j in places:
                leaf.put(wide, leaf.element(row, j), mask)
            return []

        with f.when(f(f"icmp slt i64 {start}, {stop}")):
            leaf.column(start, stop, [], fill)
        failed = f(f"icmp sgt i64 {status}, 0")
        _report(leaf, failed, item, status)
    return leaf.finish()


def _report(leaf: Leaf, failed: str, item: str, value: str) -> None:
    """Leaves an error about a matrix, unless there is one."""
    f, p = leaf.f, leaf.p
    none = f(f"icmp eq i64 {f.int_at('%error', 0)}, 0")
    with f.when(f(f"and i1 {failed}, {none}")):
        f.do(f"store i64 {item}, ptr {f.element('%error', 'i64', '1')}")
        f.do(f"store i64 {value}, ptr {f.element('%error', 'i64', '2')}")
        f.do(f"store i64 {p['code']}, ptr %error")


@functools.cache
def regular_kernel(dtype: DType) -> int:
    """Ends with an error about a matrix that has a 0 on its diagonal; a unit is a matrix."""
    leaf = Leaf(dtype, REGULAR)
    f, p = leaf.f, leaf.p
    with f.loop("%lo", "%hi") as item:
        (offset,) = p.offsets(item.i, 1)
        a = f.offset(p.pointers[0], offset)
        with f.loop("0", p["n"], carried=[("i64", "0")]) as k:
            value = leaf.load(leaf.at(a, (k.i, p["step"])))
            zero = f(f"fcmp oeq {leaf.kind} {value}, {leaf.number(0.0)}")
            new = f(f"and i1 {zero}, {f(f'icmp eq i64 {k.carried[0]}, 0')}")
            k.next = [f(f"select i1 {new}, i64 {f.add(k.i, '1')}, i64 {k.carried[0]}")]
        found = k.results[0]
        _report(leaf, f(f"icmp sgt i64 {found}, 0"), item.i, found)
    return leaf.finish()
