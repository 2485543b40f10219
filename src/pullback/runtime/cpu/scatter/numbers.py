"""LLVM IR of row numbers: indices that are checked, wrapped and narrowed, a block at a time.

Numbers of up to 31 bits are found in lanes of 32, whatever the indices are: one of 64 bits is its
low half if the high half is nothing but the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

from pullback.compile.kernel.order import UPDATE_BLOCK
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import (
    chunk_bounds,
    local_memory,
    report,
    unpacked,
)
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record, Values
from pullback.runtime.cpu.llvm.values import I32, I64, Type, Value, constant, integer, vector

__all__ = [
    "AHEAD",
    "BLOCK",
    "EIGHT",
    "GROUP",
    "NARROWED",
    "PAIR_TURN",
    "Cells",
    "CheckedNumbers",
    "RowNumbers",
    "any_lane",
    "cells_of_pairs",
    "each_block",
    "halves",
    "in_order",
    "narrow",
]
__tuning__ = ("AHEAD",)

BLOCK = UPDATE_BLOCK  # indices that are narrowed before they are used
GROUP = 16  # indices that are narrowed together: a vector of 64 bytes
EIGHT = 8  # of which four pairs are made
PAIR_TURN = 32  # whose cells are found, and added to, together
AHEAD = 3072  # bytes by which memory is asked for before it is needed
NARROWED = Record("index numbers", "count chunk rows width code")
# Where vector instructions leave the low halves of eight numbers, and so where number k is found.
_LEFT = (0, 1, 4, 5, 2, 3, 6, 7)
_FOUND = [8 * g + _LEFT.index(k) for g in range(GROUP // 8) for k in range(8)]


def each_block(
    code: Code, start: Value, stop: Value, body: Callable[[Value, int | Value], None]
) -> None:
    """`body(first, count)` for blocks of [start, stop): whole ones, of BLOCK, and what is left."""
    whole = (stop - start) >> (BLOCK.bit_length() - 1)
    with code.range(0, whole) as k:
        body(start + k * BLOCK, BLOCK)
    last = start + whole * BLOCK
    with code.when(last < stop):
        body(last, stop - last)


class Form(Protocol):
    """How numbers are stored, `together` of them as one."""

    together: int

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        """Stores numbers from `at` on: a vector of GROUP, or `together` single ones."""
        ...


class RowNumbers:
    """Row numbers side by side."""

    together = 1

    def __init__(self, dtype: DType):
        self.word = integer(8 * dtype.itemsize)

    def at(self, code: Code, pointer: Value, row: Value) -> Value:
        """Where the number of a row is."""
        return code.at(pointer, row, self.word)

    def room(self, code: Code, rows: int) -> Value:
        """Local memory for the numbers of so many rows."""
        return local_memory(code, self.word, rows // self.together)

    def nbytes(self, rows: int) -> int:
        """Of the numbers of so many rows."""
        return self.word.width // 8 * rows // self.together

    def one(self, code: Code, numbers: Value, i: Value) -> Value:
        """Number i."""
        return code.load(numbers, i, self.word).zext(I64)

    def many(self, code: Code, numbers: Value, first: Value, count: int) -> list[Value]:
        """`count` numbers."""
        return unpacked(code, self.word, numbers, first, count)

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        value = rows.narrowed(found[0], self.word)
        rows.code.write(value, self.at(rows.code, target, at), 1)


class Cells(RowNumbers):
    """Numbers of pairs of rows.

    Of each EIGHT rows of a block, k and k + 4 are a pair, as vectors hold them; in a rest that is
    no block, neighbours are. The cell of a pair is first + rows * second, twice: it counts
    accumulators, two for each pair.
    """

    together = 2

    def __init__(self) -> None:
        super().__init__(dt.uint16)

    def at(self, code: Code, pointer: Value, row: Value) -> Value:
        """Where the cells of a row's EIGHT begin."""
        return super().at(code, pointer, row >> 1)

    def turn(self, code: Code, numbers: Value, first: Value) -> list[Value]:
        """The cells of PAIR_TURN rows of a block, from row `first` on."""
        return self.many(code, numbers, first >> 1, PAIR_TURN // 2)

    def single(self, code: Code, numbers: Value, i: Value) -> Value:
        """The cell of pair i of a rest, which has one row only."""
        return self.one(code, numbers, i)

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        code = rows.code
        found = [rows.narrowed(row, self.word) for row in found]
        if len(found) == 1:
            half = EIGHT // 2
            parts = ([k for k in range(GROUP) if k // half % 2 == part] for part in range(2))
            found = [code.shuffled(found[0], found[0], part) for part in parts]
        code.write(cells_of_pairs(code, rows.a["rows"], *found), self.at(code, target, at), 1)


def cells_of_pairs(code: Code, rows: Value, first: Value, second: Value) -> Value:
    """The cells of pairs of numbers, as `Cells` defines them."""
    type_ = first.type
    lanes, lane = type_.count, type_.element
    cell = first + second * code.spread(rows.trunc(lane), lanes)
    return cell + cell


class CheckedNumbers:
    """The numbers of blocks of indices; at a bad index it leaves the kernel, with an error.

    The kernel has the arguments index, rows, width and code.
    """

    def __init__(self, code: Code, a: Values, index: DType, number: DType, form: Form):
        self.code, self.a, self.index, self.form = code, a, index, form
        self.lane = I64 if number is dt.uint64 else I32
        self.given = integer(8 * index.itemsize)
        self.halved = self.given.width > self.lane.width
        self.complain = report(code.module, index)

    def block(self, first: Value, count: int | Value, target: Value) -> None:
        """Stores the numbers of `count` indices from `first` on."""
        code = self.code
        source = code.at(self.a["index"], first, self.given)
        if isinstance(count, int):
            bad, count = self._whole(source, count, target), code.int(count)
        else:
            bad = self._rest(source, count, target)
        with code.when(bad, likely=False):
            words = (self.a[name] for name in ("rows", "width", "code"))
            stop = first + count
            code.call(self.complain, (self.a["index"], first, stop, *words, code.args[4]))
            code.leave()

    def _whole(self, source: Value, count: int, target: Value) -> Value:
        code = self.code
        none = constant(vector(self.lane, GROUP), 0)
        bad, beyond = code.variable(none), code.variable(none)
        # A loop, though a short one: what it notes would fill all registers otherwise.
        with code.range(0, count // GROUP) as group:
            at = group * GROUP
            row, below, high = self._rows(code.at(source, at, self.given), GROUP)
            bad.set(bad.get() | below)
            beyond.set(beyond.get() | high)
            self.form.store(self, [row], target, at)
        below = bad.get() < none
        some = below | code.differ(beyond.get(), none)
        return any_lane(code, some)

    def _rest(self, source: Value, count: Value, target: Value) -> Value:
        code, each = self.code, self.form.together
        none = code.int(0, self.lane)
        bad, beyond = code.variable(none), code.variable(none)
        with code.range(0, (count + (each - 1)) // each) as k:
            at, found = k * each, []
            for part in range(each):
                own = at + part
                there = own < count
                own = code.select(there, own, at)
                row, below, high = self._rows(code.at(source, own, self.given), 1)
                found.append(code.select(there, row, none))
                bad.set(bad.get() | below)
                beyond.set(beyond.get() | high)
            self.form.store(self, found, target, at)
        below = bad.get() < none
        return below | code.differ(beyond.get(), none)

    def _rows(self, source: Value, lanes: int) -> tuple[Value, Value, Value]:
        """Row numbers as they are left in lanes, words below zero where an index is bad, and words
        other than zero where its high half says so.
        """
        code, signed = self.code, self.index.kind == "i"
        low, high = self._low_and_high(source, lanes)
        row = low
        if signed:
            sign = code.ashr(low, self.all(self.lane.width - 1, lanes))
            row = low + (sign & self.all(self.a["rows"], lanes))
            high = high ^ sign if self.halved else high
        last = self.a["rows"] - 1
        return row, row | (self.all(last, lanes) - row), high

    def _low_and_high(self, source: Value, lanes: int) -> tuple[Value, Value]:
        """Indices in lanes and zeros; if they have twice the bits, both halves."""
        code, align = self.code, self.index.itemsize
        if not self.halved:
            raw = code.read(source, vector(self.given, lanes), align)
            wide = vector(self.lane, lanes)
            if self.given.width < self.lane.width:
                raw = raw.sext(wide) if self.index.kind == "i" else raw.zext(wide)
            return raw, constant(wide, 0)
        both = code.read(source, vector(I32, 2 * lanes), align)
        if lanes > 1:
            return halves(self.code, both)
        low, high = (code.lane(both, k) for k in range(2))
        return low, high

    def narrowed(self, row: Value, word: Type) -> Value:
        """Numbers in order, in the bits of a word."""
        lanes = row.type.count
        if word.width < self.lane.width:
            row = row.trunc(vector(word, lanes))
        ordered = lanes == 1 or not self.halved
        row = row if ordered else in_order(self.code, row)
        return row.zext(vector(word, lanes)) if word.width > self.lane.width else row

    def all(self, value: Value | int, lanes: int) -> Value:
        """A number in every lane."""
        if isinstance(value, int):
            word = self.code.int(value, self.lane)
        else:
            word = value.trunc(I32) if self.lane is I32 else value
        return self.code.spread(word, lanes)


def any_lane(code: Code, lanes: Value) -> Value:
    """Whether a lane is set."""
    bits = integer(lanes.type.count)
    return code.differ(lanes.bitcast(bits), constant(bits, 0))


def halves(code: Code, words: Value) -> tuple[Value, Value]:
    """The low and the high halves of GROUP words of 64 bits, left as `in_order` finds them."""
    order = [0] * GROUP
    for k, at in enumerate(_FOUND):
        order[at] = 2 * k
    low, high = (code.shuffled(words, words, [k + part for k in order]) for part in range(2))
    return low, high


def in_order(code: Code, left: Value) -> Value:
    """What was computed from `halves`, in order."""
    return code.shuffled(left, left, _FOUND)


@cache
def narrow(index: DType, number: DType, paired: bool) -> int:
    """A unit narrows a chunk of row numbers. Params: NARROWED."""
    code = kernel(IRModule(), "narrow")
    a = NARROWED.unpacked(code)
    numbers = Cells() if paired else RowNumbers(number)
    checked = CheckedNumbers(code, a, index, number, numbers)

    def block(first: Value, count: int | Value) -> None:
        checked.block(first, count, numbers.at(code, a["numbers"], first))

    with code.range(code.args[2], code.args[3]) as chunk:
        each_block(code, *chunk_bounds(code, chunk, a["chunk"], a["count"]), block)
    return address(code, plain_loops=True)
