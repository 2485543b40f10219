"""LLVM IR of new indices as row numbers: used where they are, or, as pairs, a block ahead."""

from __future__ import annotations

from collections.abc import Callable

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import ask
from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.records import Values
from pullback.runtime.cpu.llvm.values import I32, I64, Value, constant, integer, vector
from pullback.runtime.cpu.scatter.numbers import (
    BLOCK,
    EIGHT,
    PAIR_TURN,
    Cells,
    CheckedNumbers,
    RowNumbers,
    any_lane,
    cells_of_pairs,
)

__all__ = ["LATER", "GivenNumbers", "LocalCells", "each_block_ahead"]

LATER = 256  # indices by which memory is asked for: tables stay in the first cache meanwhile


def each_block_ahead(
    code: Code,
    start: Value,
    stop: Value,
    prepare: Callable[[Value, int | Value, Value], Value],
    body: Callable[[Value, Value, int | Value], None],
) -> None:
    """`body(prepare(first, count, odd), first, count)` for blocks, each prepared before the last
    one is worked on; `odd` is 0 and 1 by turns.
    """
    none, one = code.int(0), code.int(1)
    whole = (stop - start) >> (BLOCK.bit_length() - 1)

    def at(k: Value) -> Value:
        return start + k * BLOCK

    with code.when(whole > none):
        ready, last = code.variable(prepare(start, BLOCK, none)), whole - one
        with code.range(0, whole) as k:
            found, after = ready.get(), k + one
            ready.set(prepare(at(code.minimum(after, last)), BLOCK, after & one))
            body(found, at(k), BLOCK)
    rest = at(whole)
    with code.when(rest < stop):
        count = stop - rest
        body(prepare(rest, count, none), rest, count)


class GivenNumbers(RowNumbers):
    """The numbers of blocks of indices: where they are, or wrapped, in local memory.

    Most indices are row numbers as they are, which takes less to find out than to wrap those that
    count from the end. The kernel has the arguments index, rows, width and code; at a bad index it
    is left, with an error.
    """

    def __init__(self, code: Code, a: Values, index: DType, number: DType):
        # Eight bits can count from the end of more rows than they can number.
        super().__init__(index if index.itemsize > 1 else dt.uint16)
        self.code, self.a, self.index = code, a, index
        self.given = integer(8 * index.itemsize)
        self.checked = CheckedNumbers(code, a, index, number, self)
        self.wrapped = self.room(code, BLOCK)

    def block(self, first: Value, count: int | Value) -> Value:
        """The place of the numbers of `count` indices."""
        code = self.code
        if not isinstance(count, int) or self.word != self.given:
            self.checked.block(first, count, self.wrapped)
            return self.wrapped
        source = code.at(self.a["index"], first, self.given)
        others = self._are_others(source)
        with code.when(others, likely=False):
            self.checked.block(first, count, self.wrapped)
        return code.select(others, self.wrapped, source)

    def _are_others(self, source: Value) -> Value:
        """Whether some indices of a block are no row numbers: the largest of all words says so.

        Words have at most 32 bits, of which the high halves of longer ones must be zero.
        """
        code = self.code
        lane = I32 if self.given == I64 else self.given
        lanes = 256 // lane.width
        most = (1 << lane.width - (self.index.kind == "i")) - 1
        last = code.minimum(self.a["rows"] - 1, code.int(most))
        limit = code.spread(last.trunc(lane), lanes)
        if self.given == I64:
            limit = limit & constant(limit.type, [-1, 0] * (lanes // 2))
        larger = code.declare(f"llvm.umax.v{lanes}i{lane.width}", limit.type, [limit.type] * 2)
        found = [
            code.read(code.at(source, k, lane), limit.type, self.index.itemsize)
            for k in range(0, BLOCK * self.given.width // lane.width, lanes)
        ]
        while len(found) > 1:
            found = [code.call(larger, pair) for pair in zip(found[::2], found[1::2], strict=True)]
        return any_lane(code, code.unsigned(">", found[0], limit))

    def ask(self, i: Value, count: int) -> None:
        """Asks for the memory of `count` indices from `i` on."""
        place = self.code.at(self.a["index"], i, self.given)
        ask(self.code, place, self.index.itemsize * count)


class LocalCells(Cells):
    """The cells of pairs of new indices: those of whole blocks in local memory."""

    def __init__(self, code: Code, a: Values, index: DType, number: DType):
        super().__init__()
        self.rows, self.given = a["rows"], GivenNumbers(code, a, index, number)
        self.memory = self.room(code, 2 * BLOCK)

    def block(self, first: Value, count: int | Value, odd: Value) -> Value:
        """The place of the cells of a block, in one of two halves of the memory; of a rest, the
        place of its numbers.
        """
        code = self.given.code
        self.given.ask(first + LATER, BLOCK)
        numbers = self.given.block(first, count)
        if not isinstance(count, int):
            return numbers
        target = self.at(code, self.memory, odd * BLOCK)
        # Shifts put four numbers in the bits of one: few units of a processor can shuffle.
        half, word, wide = EIGHT // 2, self.given.word, vector(I64, EIGHT // 2)
        for at in range(0, BLOCK, PAIR_TURN):
            parts = [constant(wide, 0)] * 2
            for eight in range(PAIR_TURN // EIGHT):
                shift = constant(wide, 16 * eight)
                for k in range(2):
                    place = code.at(numbers, at + EIGHT * eight + half * k, word)
                    rows = code.read(place, vector(word, half), word.width // 8)
                    parts[k] = parts[k] | (rows.zext(wide) << shift)
            parts = [part.bitcast(vector(self.word, PAIR_TURN // 2)) for part in parts]
            cells = cells_of_pairs(code, self.rows, *parts)
            code.write(cells, self.at(code, target, code.int(at)), 2)
        return target

    def turn(self, code: Code, numbers: Value, first: Value) -> list[Value]:
        found, eights = super().turn(code, numbers, first), PAIR_TURN // EIGHT
        return [found[eights * k + eight] for eight in range(eights) for k in range(EIGHT // 2)]

    def one(self, code: Code, numbers: Value, i: Value) -> Value:
        at = i * 2
        pair = (self.given.one(code, numbers, at + k) for k in range(2))
        return cells_of_pairs(code, self.rows, *pair)

    def single(self, code: Code, numbers: Value, i: Value) -> Value:
        row = self.given.one(code, numbers, i * 2)
        return cells_of_pairs(code, self.rows, row, code.int(0))
