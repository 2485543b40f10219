"""LLVM IR of sums by index into few places: private accumulators for every chunk of the updates.

Row numbers are new indices (see `local_code`), or come from a plan. A turn adds an update, or a
pair of them, to each of several tables, which the chunk joins at its end: equal indices in a row
must not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial

from pullback.compile.kernel.order import PAIR_LANES, PAIRED_ROWS, lanes_of
from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import ask, chunk_bounds, local_memory
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I1, I8, Value
from pullback.runtime.cpu.scatter.local_code import (
    LATER,
    GivenNumbers,
    LocalCells,
    each_block_ahead,
)
from pullback.runtime.cpu.scatter.numbers import (
    AHEAD,
    BLOCK,
    EIGHT,
    GROUP,
    PAIR_TURN,
    Cells,
    RowNumbers,
    each_block,
)
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = ["columns", "join_columns"]
__tuning__ = ("NARROW",)

COLUMNS = Record("index updates partial", "count chunk rows width code")
JOINED = Record("partial x out", "chunks elements row x_row")
NARROW = 8  # bytes of an update of a plan that is asked for ahead


class _Turns:
    """Adds updates to tables: element k of a turn to table k."""

    def __init__(
        self,
        code: Code,
        sums: Sums,
        numbers: RowNumbers,
        width: int,
        capacity: int,
        copies: int,
    ):
        self.code, self.sums, self.numbers, self.width = code, sums, numbers, width
        self.copies = copies
        self.turn = GROUP if width == 1 else copies
        # Tables a multiple of 4096 bytes apart would look alike to the store buffer.
        step = capacity + 64 // 8
        memory = local_memory(code, sums.wide, self.copies * sums.parts * step)
        self.tables = [
            SumTable(code, sums, code.at(memory, k * sums.parts * step, sums.wide), step)
            for k in range(self.copies)
        ]

    def run(
        self,
        numbers: Value,
        updates: Value,
        count: int | Value,
        before: Callable[[Value], None] | None = None,
    ) -> None:
        """All turns of `count` updates, with `before(first)` before each; a rest goes to the first
        table.
        """
        code = self.code
        if not isinstance(count, int):
            self._rest(numbers, updates, count)
            return
        with code.range(0, count // self.turn) as turn:
            first = turn * self.turn
            if before:
                before(first)
            self._turn(numbers, updates, first)

    def _turn(self, numbers: Value, updates: Value, first: Value) -> None:
        code = self.code
        if self.width > 1:
            for k, table in enumerate(self.tables):
                self._row(table, numbers, updates, first + k)
            return
        for at in range(0, GROUP, self.copies):
            place = first + at
            found = self.numbers.many(code, numbers, place, self.copies)
            values = self.sums.load(code, updates, place, self.copies)
            for k, table in enumerate(self.tables):
                table.add(found[k], code.lane(values, k))

    def _rest(self, numbers: Value, updates: Value, count: Value) -> None:
        with self.code.range(0, count) as i:
            self._row(self.tables[0], numbers, updates, i)

    def _row(self, table: SumTable, numbers: Value, updates: Value, i: Value) -> None:
        code = self.code
        number = self.numbers.one(code, numbers, i)
        to, source = (v * self.width for v in (number, i))

        def piece(at: Value, lanes: int) -> None:
            value = self.sums.load(code, updates, source + at, lanes)
            table.add(to + at, value, lanes)

        each_piece(code, self.sums, self.width, piece)

    def clear(self, elements: Value) -> None:
        def piece(at: Value, lanes: int) -> None:
            for table in self.tables:
                table.store(self.sums.empty(lanes), at)

        each_piece(self.code, self.sums, elements, piece)

    def join(self, target: SumTable, elements: Value) -> None:
        """The sums of all tables, in `target`."""

        def piece(at: Value, lanes: int) -> None:
            found = [t.load(at, lanes) for t in self.tables]
            target.store(_tree(self.code, self.sums, found), at)

        each_piece(self.code, self.sums, elements, piece)


class _Pairs(_Turns):
    """The same for pairs of single elements: one addition of two lanes at the cell of both rows.

    With half as many additions to memory, it is for so few rows that their pairs are few.
    """

    def __init__(self, code: Code, sums: Sums, cells: Cells):
        super().__init__(code, sums, cells, 1, 2 * PAIRED_ROWS**2, PAIR_LANES)
        self.cells, self.turn = cells, PAIR_TURN

    def _turn(self, numbers: Value, updates: Value, first: Value) -> None:
        code, half = self.code, EIGHT // 2
        cells = self.cells.turn(code, numbers, first)
        for eight in range(0, PAIR_TURN, EIGHT):
            low, high = (
                self.sums.load(code, updates, first + (eight + k), half) for k in (0, half)
            )
            # Pairs 0 and 2 in one vector, 1 and 3 in another, as instructions leave them.
            mixed = [code.shuffled(low, high, [k, k + half, k + 2, k + 2 + half]) for k in range(2)]
            for k in range(half):
                values, lane = mixed[k % 2], k // 2 * 2
                both = code.shuffled(values, values, [lane, lane + 1])
                self.tables[k].add(cells[eight // 2 + k], both, 2)

    def _rest(self, numbers: Value, updates: Value, count: Value) -> None:
        code, table = self.code, self.tables[0]
        pairs = count >> 1
        with code.range(0, pairs) as k:
            both = self.sums.load(code, updates, k * 2, 2)
            table.add(self.cells.one(code, numbers, k), both, 2)
        with code.when(count.trunc(I1)):
            last = self.sums.load(code, updates, count - 1)
            table.add(self.cells.single(code, numbers, pairs), last)

    def clear(self, elements: Value) -> None:
        super().clear(self._accumulators(elements))

    def _accumulators(self, elements: Value) -> Value:
        return elements * elements * 2

    def join(self, target: SumTable, elements: Value) -> None:
        """Joins the tables, then for each row the cells where it comes first and second."""
        code, sums = self.code, self.sums
        joined = self.tables[0]
        super().join(joined, self._accumulators(elements))
        with code.range(0, elements) as row:
            target.store(sums.empty(), row)
        with code.range(0, elements) as second:
            odd = [code.variable(v) for v in sums.empty()]
            with code.range(0, elements) as first:
                cell = (first + second * elements) * 2
                target.store(sums.merge(code, target.load(first), joined.load(cell)), first)
                found = joined.load(cell + 1)
                odd[0].set(sums.merge(code, [odd[0].get()], found)[0])
            joined.store([odd[0].get()], second)  # over the cells of the first turn
        with code.range(0, elements) as row:
            target.store(sums.merge(code, target.load(row), joined.load(row)), row)


def _tree(code: Code, sums: Sums, found: list[list[Value]]) -> list[Value]:
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [sums.merge(code, x, y) for x, y in pairs] + found[len(found) // 2 * 2 :]
    return found[0]


@lru_cache(jit.KEPT)
def columns(
    sums: Sums, index: DType | None, number: DType, width: int, capacity: int, paired: bool
) -> int:
    """A unit sums one chunk into tables of `capacity` elements, or `paired`. Params: COLUMNS.

    Without a dtype the indices are numbers that a plan has.
    """
    code = kernel(IRModule(), "columns")
    a = COLUMNS.unpacked(code)
    if paired:
        numbers = Cells() if index is None else LocalCells(code, a, index, number)
        turns: _Turns = _Pairs(code, sums, numbers)
    else:
        numbers = RowNumbers(number) if index is None else GivenNumbers(code, a, index, number)
        copies = lanes_of(width, sums.parts)
        turns = _Turns(code, sums, numbers, width, capacity, copies)
    elements = a["rows"] * width
    row = width * sums.dtype.itemsize

    def updates(first: Value) -> Value:
        return code.at(a["updates"], first * width, sums.memory)

    def add(found: Value, first: Value, count: int | Value) -> None:
        turns.run(found, updates(first), count)

    def add_planned(first: Value, count: int | Value) -> None:
        found = numbers.at(code, a["index"], first)
        if row <= NARROW:
            ask(code, code.at(found, AHEAD // 4, I8), numbers.nbytes(BLOCK))
            ask(code, code.at(updates(first), AHEAD, I8), row * BLOCK)
        add(found, first, count)

    def add_given(given: GivenNumbers, first: Value, count: int | Value) -> None:
        def before(turn: Value) -> None:
            at = first + turn + LATER
            given.ask(at, turns.turn)
            if row <= NARROW:
                ask(code, updates(at), row * turns.turn)

        turns.run(given.block(first, count), updates(first), count, before)

    with code.range(code.args[2], code.args[3]) as chunk:
        turns.clear(elements)
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        match numbers:
            case LocalCells():
                each_block_ahead(code, start, stop, numbers.block, add)
            case GivenNumbers():
                each_block(code, start, stop, partial(add_given, numbers))
            case _:
                each_block(code, start, stop, add_planned)
        place = chunk * (elements * sums.parts)
        turns.join(
            SumTable(code, sums, code.at(a["partial"], place, sums.wide), elements), elements
        )
    return address(code, plain_loops=True)


@cache
def join_columns(sums: Sums) -> int:
    """x plus the sums of all chunks; a unit is an element. Params: JOINED."""
    code = kernel(IRModule(), "join")
    a = JOINED.unpacked(code)
    lo, hi = code.args[2:4]
    step = a["elements"] * sums.parts

    def element(at: Value) -> None:
        row = at // a["row"]
        column = at - row * a["row"]
        x = sums.load(code, a["x"], row * a["x_row"] + column)
        total = [code.variable(v) for v in sums.start(x)]
        with code.range(0, a["chunks"]) as chunk:
            start = code.at(a["partial"], chunk * step, sums.wide)
            found = SumTable(code, sums, start, a["elements"]).load(at)
            for variable, value in zip(
                total, sums.merge(code, [t.get() for t in total], found), strict=True
            ):
                variable.set(value)
        sums.store(code, sums.finish(code, [t.get() for t in total]), a["out"], at)

    with code.range(lo, hi) as at:
        element(at)
    return address(code, plain_loops=True)
