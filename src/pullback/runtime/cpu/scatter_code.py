"""LLVM IR of sums by index into few places, and of few updates."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I32, I64, Code, Value, address, kernel
from pullback.runtime.cpu.scatter_rows import (
    Arguments,
    Indices,
    add_row,
    chunk_bounds,
    local_memory,
    start_rows,
)
from pullback.runtime.cpu.scatter_sums import Sums, Table, each_piece

__all__ = ["columns", "direct", "join_columns", "sparse"]

# -- few destinations: private accumulators for every chunk of the updates -------------------------

COLUMNS_SLOTS = ("index", "updates", "partial")


def columns_copies(width: int, parts: int) -> int:
    """Interleaved accumulators of a destination: equal indices in a row must not wait for each
    other.
    """
    return max(1, 8 // (width * parts))


@cache
def columns(dtype: DType, index: DType, width: int, capacity: int) -> int:
    """A unit sums one chunk; words: updates, chunk, rows, first code.

    A table has `capacity` elements; with a signed index, its second half is for negative ones.
    """
    code = kernel(ir.Module(), "columns")
    b, sums = code.b, Sums(dtype)
    a = Arguments(code, COLUMNS_SLOTS, ("count", "chunk", "rows", "code"))
    indices = Indices(code, index, a["index"], a["rows"], code.int(width))
    copies = columns_copies(width, sums.parts)
    # Tables a multiple of 4096 bytes apart would look alike to the store buffer.
    step = capacity + 64 // 8
    memory = local_memory(code, sums.wide, copies * sums.parts * step)
    tables = [
        Table(code, sums, code.at(memory, code.int(k * sums.parts * step), sums.wide), step)
        for k in range(copies)
    ]
    sides = 2 if indices.signed else 1
    used = b.mul(a["rows"], code.int(sides))
    elements = b.mul(used, code.int(width))
    before = a["rows"] if indices.signed else code.int(0)

    def add(i: Value, table: Table) -> None:
        given = indices.given(i)
        place = b.add(given, before)
        indices.check(place, used, given, i, a["code"])
        to, source = b.mul(place, code.int(width)), b.mul(i, code.int(width))

        def piece(at: Value, lanes: int) -> None:
            value = sums.load(code, a["updates"], b.add(source, at), lanes)
            table.add(b.add(to, at), value, lanes)

        each_piece(code, sums, width, piece)

    def clear(at: Value, lanes: int) -> None:
        for table in tables:
            table.store(sums.empty(lanes), at)

    with code.range(code.args[2], code.args[3]) as chunk:
        each_piece(code, sums, elements, clear)
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        rounds = b.udiv(b.sub(stop, start), code.int(copies))
        with code.range(0, rounds) as turn:
            first = b.add(start, b.mul(turn, code.int(copies)))
            for k, table in enumerate(tables):
                add(b.add(first, code.int(k)), table)
        with code.range(b.add(start, b.mul(rounds, code.int(copies))), stop) as i:
            add(i, tables[0])
        own = b.mul(a["rows"], code.int(width))
        target = code.at(a["partial"], b.mul(chunk, b.mul(own, code.int(sums.parts))), sums.wide)
        partial = Table(code, sums, target, own)

        def join(at: Value, lanes: int) -> None:
            starts = [at] if sides == 1 else [b.add(at, own), at]
            found = [t.load(s, lanes) for s in starts for t in tables]
            partial.store(_tree(code, sums, found), at)

        each_piece(code, sums, own, join)
    return address(code, plain_loops=True)


def _tree(code: Code, sums: Sums, found: list[list[Value]]) -> list[Value]:
    while len(found) > 1:
        pairs = [sums.merge(code, x, y) for x, y in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(pairs) * 2 :]
    return found[0]


@cache
def join_columns(dtype: DType) -> int:
    """x plus the sums of all chunks; a unit is an element. Words: chunks, elements, x's step."""
    code = kernel(ir.Module(), "join")
    b, sums = code.b, Sums(dtype)
    a = Arguments(code, ("partial", "x", "out"), ("chunks", "elements", "row", "x_row"))
    lo, hi = code.args[2:4]
    step = b.mul(a["elements"], code.int(sums.parts))

    def element(at: Value) -> None:
        row = b.udiv(at, a["row"])
        column = b.sub(at, b.mul(row, a["row"]))
        x = sums.load(code, a["x"], b.add(b.mul(row, a["x_row"]), column))
        total = [code.variable(v) for v in sums.start(x)]
        with code.range(0, a["chunks"]) as chunk:
            start = code.at(a["partial"], b.mul(chunk, step), sums.wide)
            found = Table(code, sums, start, a["elements"]).load(at)
            for variable, value in zip(
                total, sums.merge(code, [t.get() for t in total], found), strict=True
            ):
                variable.set(value)
        sums.store(code, sums.finish(code, [t.get() for t in total]), a["out"], at)

    with code.range(lo, hi) as at:
        element(at)
    return address(code, plain_loops=True)


# -- few updates: one after the other --------------------------------------------------------------

DIRECT_SLOTS = ("index", "updates", "x", "out", "table")


@cache
def direct(dtype: DType, index: DType) -> int:
    """One unit; words: updates, rows, width, x's step from row to row, first code."""
    code = kernel(ir.Module(), "direct")
    b, sums = code.b, Sums(dtype)
    a = Arguments(code, DIRECT_SLOTS, ("count", "rows", "width", "x_row", "code"))
    rows, width = a["rows"], a["width"]
    indices = Indices(code, index, a["index"], rows, width)
    table = Table(code, sums, a["table"], b.mul(rows, width))
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
def sparse(dtype: DType, index: DType) -> int:
    """As `direct`, but visits only the rows that are met: `out` holds x already.

    Pointers: index, updates, out, table, places, keys. `places` has a number for every row, and
    is never cleared: an entry counts only if `keys` points back.
    """
    code = kernel(ir.Module(), "sparse")
    b, sums = code.b, Sums(dtype)
    names = ("index", "updates", "out", "table", "places", "keys")
    a = Arguments(code, names, ("count", "rows", "width", "code"))
    rows, width, out = a["rows"], a["width"], a["out"]
    indices = Indices(code, index, a["index"], rows, width)
    table = Table(code, sums, a["table"], b.mul(a["count"], width))
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
