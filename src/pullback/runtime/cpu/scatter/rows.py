"""Rows of updates added to rows of accumulators, as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.records import Values
from pullback.runtime.cpu.llvm.values import Value
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = [
    "add_row",
    "add_to_one",
    "start_rows",
]


def start_rows(
    code: Code,
    sums: Sums,
    a: Values,
    table: SumTable,
    first: Value,
    rows: Value,
    width: int | Value,
) -> None:
    """Puts `rows` rows of x from row `first` on into a table."""
    wide = code.int(width) if isinstance(width, int) else width
    dense = code.equal(a["x_row"], wide)

    def copy(source: Value, to: Value, count: int | Value) -> None:
        def piece(at: Value, lanes: int) -> None:
            value = sums.load(code, a["x"], source + at, lanes)
            table.store(sums.start(value), to + at)

        each_piece(code, sums, count, piece)

    with code.either(dense) as (whole, by_rows):
        with whole:
            copy(first * wide, code.int(0), rows * wide)
        with by_rows, code.range(0, rows) as row:
            source = (first + row) * a["x_row"]
            copy(source, row * wide, width)


def add_row(
    code: Code,
    sums: Sums,
    table: SumTable,
    to: Value,
    updates: Value,
    source: Value,
    width: int | Value,
) -> None:
    def piece(at: Value, lanes: int) -> None:
        value = sums.load(code, updates, source + at, lanes)
        table.add(to + at, value, lanes)

    each_piece(code, sums, width, piece)


def add_to_one(
    code: Code, sums: Sums, table: SumTable, to: Value, rows: Sequence[Value], width: int
) -> None:
    """Adds several rows, one after the other, to one, whose sums stay in registers meanwhile."""

    def piece(at: Value, lanes: int) -> None:
        place = to + at
        total = table.load(place, lanes)
        for row in rows:
            total = sums.add(code, total, sums.load(code, row, at, lanes))
        table.store(total, place)

    each_piece(code, sums, width, piece)
