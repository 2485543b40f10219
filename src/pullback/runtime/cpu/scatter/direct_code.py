"""LLVM IR of sums by index of few updates: one after the other."""

from __future__ import annotations

from functools import cache

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import Indices
from pullback.runtime.cpu.llvm.builder import IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I32, I64, Value
from pullback.runtime.cpu.scatter.rows import add_row, start_rows
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = ["direct", "sparse"]

DIRECT = Record("index updates x out table", "count rows width x_row code")
SPARSE = Record("index updates out table places keys", "count rows width code")


@cache
def direct(sums: Sums, index: DType) -> int:
    """One unit. Params: DIRECT; x steps by `x_row` elements from row to row."""
    code = kernel(IRModule(), "direct")
    a = DIRECT.unpacked(code)
    rows, width = a["rows"], a["width"]
    indices = Indices(code, index, a["index"], rows, width)
    table = SumTable(code, sums, a["table"], rows * width)
    start_rows(code, sums, a, table, code.int(0), rows, width)
    with code.range(0, a["count"]) as i:
        given = indices.given(i)
        row = indices.wrapped(given)
        indices.check(row, rows, given, i, a["code"])
        add_row(code, sums, table, row * width, a["updates"], i * width, width)

    def finish(at: Value, lanes: int) -> None:
        sums.store(code, sums.finish(code, table.load(at, lanes)), a["out"], at)

    each_piece(code, sums, rows * width, finish)
    return address(code, plain_loops=True)


@cache
def sparse(sums: Sums, index: DType) -> int:
    """As `direct`, but visits only the rows that are met: `out` holds x already.

    Params: SPARSE. `places` has a number for every row, and
    is never cleared: an entry counts only if `keys` points back.
    """
    code = kernel(IRModule(), "sparse")
    a = SPARSE.unpacked(code)
    rows, width, out = a["rows"], a["width"], a["out"]
    indices = Indices(code, index, a["index"], rows, width)
    table = SumTable(code, sums, a["table"], a["count"] * width)
    met = code.variable(code.int(0))
    with code.range(0, a["count"]) as i:
        given = indices.given(i)
        row = indices.wrapped(given)
        indices.check(row, rows, given, i, a["code"])
        own = code.variable(code.load(a["places"], row, I32).zext(I64))
        known = code.unsigned("<", own.get(), met.get())
        key = code.load(a["keys"], code.select(known, own.get(), code.int(0)), I64)
        known = known & code.equal(key, row)
        with code.when(~known):
            own.set(met.get())
            code.store(row, a["keys"], met.get())
            code.store(met.get().trunc(I32), a["places"], row)

            def start(at: Value, lanes: int, row: Value = row) -> None:
                value = sums.load(code, out, row * width + at, lanes)
                table.store(sums.start(value), met.get() * width + at)

            each_piece(code, sums, width, start)
            met.add(code.int(1))
        to = own.get() * width
        add_row(code, sums, table, to, a["updates"], i * width, width)
    with code.range(0, met.get()) as k:
        row = code.load(a["keys"], k, I64)

        def finish(at: Value, lanes: int) -> None:
            total = sums.finish(code, table.load(k * width + at, lanes))
            sums.store(code, total, out, row * width + at)

        each_piece(code, sums, width, finish)
    return address(code, plain_loops=True)
