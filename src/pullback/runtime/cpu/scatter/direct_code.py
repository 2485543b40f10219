"""LLVM IR of sums by index of few updates: one after the other."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import Indices, OwnParams
from pullback.runtime.cpu.llvm.builder import I32, I64, Value, address, kernel
from pullback.runtime.cpu.scatter.rows import add_row, start_rows
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = ["direct", "sparse"]

DIRECT_SLOTS = ("index", "updates", "x", "out", "table")


@cache
def direct(sums: Sums, index: DType) -> int:
    """One unit; words: updates, rows, width, x's step from row to row, first code."""
    code = kernel(ir.Module(), "direct")
    b = code.b
    a = OwnParams(code, DIRECT_SLOTS, ("count", "rows", "width", "x_row", "code"))
    rows, width = a["rows"], a["width"]
    indices = Indices(code, index, a["index"], rows, width)
    table = SumTable(code, sums, a["table"], b.mul(rows, width))
    start_rows(code, sums, a, table, code.int(0), rows, width)
    with code.range(0, a["count"]) as i:
        given = indices.given(i)
        row = indices.wrapped(given)
        indices.check(row, rows, given, i, a["code"])
        add_row(code, sums, table, b.mul(row, width), a["updates"], b.mul(i, width), width)

    def finish(at: Value, lanes: int) -> None:
        sums.store(code, sums.finish(code, table.load(at, lanes)), a["out"], at)

    each_piece(code, sums, b.mul(rows, width), finish)
    return address(code, plain_loops=True)


@cache
def sparse(sums: Sums, index: DType) -> int:
    """As `direct`, but visits only the rows that are met: `out` holds x already.

    Pointers: index, updates, out, table, places, keys. `places` has a number for every row, and
    is never cleared: an entry counts only if `keys` points back.
    """
    code = kernel(ir.Module(), "sparse")
    b = code.b
    names = ("index", "updates", "out", "table", "places", "keys")
    a = OwnParams(code, names, ("count", "rows", "width", "code"))
    rows, width, out = a["rows"], a["width"], a["out"]
    indices = Indices(code, index, a["index"], rows, width)
    table = SumTable(code, sums, a["table"], b.mul(a["count"], width))
    met = code.variable(code.int(0))
    with code.range(0, a["count"]) as i:
        given = indices.given(i)
        row = indices.wrapped(given)
        indices.check(row, rows, given, i, a["code"])
        own = code.variable(b.zext(code.load(a["places"], row, I32), I64))
        known = b.icmp_unsigned("<", own.get(), met.get())
        key = code.load(a["keys"], b.select(known, own.get(), code.int(0)), I64)
        known = b.and_(known, b.icmp_signed("==", key, row))
        with b.if_then(b.not_(known)):
            own.set(met.get())
            code.store(row, a["keys"], met.get())
            code.store(b.trunc(met.get(), I32), a["places"], row)

            def start(at: Value, lanes: int, row: Value = row) -> None:
                value = sums.load(code, out, b.add(b.mul(row, width), at), lanes)
                table.store(sums.start(value), b.add(b.mul(met.get(), width), at))

            each_piece(code, sums, width, start)
            met.add(code.int(1))
        to = b.mul(own.get(), width)
        add_row(code, sums, table, to, a["updates"], b.mul(i, width), width)
    with code.range(0, met.get()) as k:
        row = code.load(a["keys"], k, I64)

        def finish(at: Value, lanes: int) -> None:
            total = sums.finish(code, table.load(b.add(b.mul(k, width), at), lanes))
            sums.store(code, total, out, b.add(b.mul(row, width), at))

        each_piece(code, sums, width, finish)
    return address(code, plain_loops=True)
