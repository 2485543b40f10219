"""What kernels across a batch are written with: each lane of a vector works on a matrix of its own.

Matrices are read as they lie, turned so that a vector has one element of each of them, and turned
back. Every lane does the same operations in the same order, so that the bits of a result depend
neither on its neighbours nor on the width of vectors. The size of the matrices is a constant of the
code; small ones are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import IRModule, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import (
    DOUBLE,
    FLOAT,
    I64,
    PTR,
    Value,
    constant,
    integer,
    vector,
)

__all__ = ["LANES", "LaneTile", "Lanes", "lane_params"]
__tuning__ = ("FEW", "LANES")

LANES = 8  # matrices at once: a register of AVX2 in float32, of AVX-512 in float64
FEW = 4  # rounds of a loop at a time
UNROLLED = 8  # rows up to which code has no loops; beyond, it would take long to compile

Index: TypeAlias = Value | int  # an int, or a value of a loop


class LaneTile:
    """A matrix of vectors in the cache (or in registers, where all indices are constants).

    A `turned` one is kept column after column.
    """

    def __init__(self, lanes: Lanes, rows: int, columns: int, turned: bool = False):
        self.rows, self.columns, self._lanes = rows, columns, lanes
        self.turned = turned
        self._steps = (1, rows) if turned else (columns, 1)
        self._slot = lanes.code.local(lanes.vector, rows * columns, 64)

    def _number(self, i: Index, j: Index) -> Index:
        return i * self._steps[0] + j * self._steps[1]

    def kept(self, number: Index) -> Value:
        """An element by its number in the order in which they are kept."""
        code, vector = self._lanes.code, self._lanes.vector
        return code.read(code.at(self._slot, number, vector), vector)

    def keep(self, value: Value, number: Index) -> None:
        code = self._lanes.code
        code.write(value, code.at(self._slot, number, self._lanes.vector))

    def get(self, i: Index, j: Index) -> Value:
        return self.kept(self._number(i, j))

    def put(self, value: Value, i: Index, j: Index) -> None:
        self.keep(value, self._number(i, j))


@cache
def lane_params(operands: int) -> Record:
    """The params: the output and the operands, how many matrices there are, the error code, and the
    elements from matrix to matrix of each array.
    """
    return Record("array[arrays]", "count code step[arrays]", arrays=1 + operands)


class Lanes:
    """A kernel under construction whose units are groups of `lanes` matrices of n rows.

    Operands that are `turned` lie column after column.
    """

    def __init__(
        self,
        name: str,
        dtype: DType,
        operands: int,
        n: int,
        lanes: int = LANES,
        turned: Sequence[bool] = (),
    ):
        self.code = kernel(IRModule(), name)
        self.n, self.unrolled = n, n <= UNROLLED
        self.real = FLOAT if dtype is dtypes.float32 else DOUBLE
        self.bytes = dtype.itemsize
        self.lanes = lanes
        self.vector = vector(self.real, lanes)
        self._operands = operands
        self._turned = turned

    # -- indices and loops -------------------------------------------------------------------------

    def each(self, start: Index, stop: Index, body: Callable[[Index], None]) -> None:
        """The body for all of [start, stop)."""
        if self.unrolled and isinstance(start, int) and isinstance(stop, int):
            for i in range(start, stop):
                body(i)
            return
        with self.code.range(start, stop) as i:
            body(i)

    def each_few(self, start: Index, stop: int, body: Callable[[Index], None]) -> None:
        """The same where all are independent of each other: a few at a time."""
        if self.unrolled and isinstance(start, int):
            self.each(start, stop, body)
            return
        count = stop - start
        rest = count % FEW
        with self.code.range(start, start + rest) as i:
            body(i)
        with self.code.range(0, count // FEW) as group:
            for k in range(FEW):
                body(start + rest + group * FEW + k)

    def if_any(self, flags: Value, body: Callable[[], None]) -> None:
        """The body, which does nothing in lanes whose flag is not set; not if none is."""
        if self.unrolled:
            body()
            return
        code, bits = self.code, integer(self.lanes)
        with code.when(code.differ(flags.bitcast(bits), constant(bits, 0))):
            body()

    def down(self, count: int, body: Callable[[Index], None]) -> None:
        """The body for count - 1, ..., 0."""
        if self.unrolled:
            for i in reversed(range(count)):
                body(i)
            return
        with self.code.range(0, count) as step:
            body(count - 1 - step)

    @contextmanager
    def groups(self) -> Iterator[list[Value]]:
        """The loop over groups: it yields the numbers of its matrices; those beyond the last are
        the last.
        """
        code = self.code
        _, ptrs, lo, hi, _ = code.args
        record, arrays = lane_params(self._operands), range(1 + self._operands)
        slots = [record.loaded(code, ("array", k)) for k in arrays]
        count, self._error = (record.loaded(code, word) for word in ("count", "code"))
        self._steps = [record.loaded(code, ("step", k)) for k in arrays]
        self._bases = [code.load(ptrs, slot, PTR) for slot in slots]
        last = count - 1
        with code.range(lo, hi) as group:
            start = group * self.lanes
            self.numbers = [code.minimum(start + lane, last) for lane in range(self.lanes)]
            yield self.numbers

    def _pointers(self, which: int) -> list[Value]:
        base, step = self._bases[which], self._steps[which]
        return [self.code.at(base, n * step, self.real) for n in self.numbers]

    # -- transposition -----------------------------------------------------------------------------

    def _chunks(self, size: int) -> tuple[int, list[int]]:
        """The width of the pieces that a row of elements is read in, and where they start; the last
        one may overlap the one before.
        """
        width = 1
        while width * 2 <= min(size, self.lanes):
            width *= 2
        starts = list(range(0, size - width + 1, width))
        return width, starts if starts[-1] + width == size else [*starts, size - width]

    def tile(self, operand: int, rows: int, columns: int) -> LaneTile:
        """The matrices of an operand, from 1 on, which may lie column after column."""
        turned = bool(self._turned) and self._turned[operand - 1]
        tile = LaneTile(self, rows, columns, turned)
        self.read(operand, tile, rows, columns)
        return tile

    def upright(self, tile: LaneTile) -> LaneTile:
        """The tile, or a copy of one that is turned: what is written lies row after row."""
        if not tile.turned:
            return tile
        out = LaneTile(self, tile.rows, tile.columns)

        def row(i: Index) -> None:
            self.each(0, tile.columns, lambda j: out.put(tile.get(i, j), i, j))

        self.each(0, tile.rows, row)
        return out

    def read(self, operand: int, tile: LaneTile, rows: int, columns: int) -> None:
        """Operand (from 1 on), matrices stored row after row (column after column, if the tile is
        turned), into a tile.
        """
        self._read(self._pointers(operand), tile, 0, rows * columns)

    def read_rows(
        self, operand: int, tile: LaneTile, rows: int, columns: int, numbered: int, numbers: int
    ) -> None:
        """The same, where row i of the tile is the one that number i says, of those that the
        operand `numbered` has from element `numbers` on.
        """
        sources, orders = self._pointers(operand), self._pointers(numbered)

        def row(i: Index) -> None:
            starts = self._rows_at(sources, columns, orders, i + numbers)
            self._read(starts, tile, i * columns, columns)

        self.each(0, rows, row)

    def _rows_at(
        self, bases: list[Value], columns: int, orders: list[Value], number: Index
    ) -> list[Value]:
        """Where the row is, in each lane, that a number says."""
        code, real = self.code, self.real
        rows = [code.read(code.at(p, number, real), real).fptosi(I64) for p in orders]
        return [code.at(p, row * columns, real) for p, row in zip(bases, rows, strict=True)]

    def _read(self, pointers: list[Value], tile: LaneTile, first: Index, size: int) -> None:
        """Elements of a tile, from number `first` on, from where each lane has a pointer."""
        shuffled = self.code.shuffled
        width, starts = self._chunks(size)
        type_ = vector(self.real, width)

        def piece(start: Index) -> None:
            loaded = [
                self.code.read(self.code.at(p, start, self.real), type_, self.bytes)
                for p in pointers
            ]
            # Joining the halves element by element, again and again, puts the lanes of each
            # element side by side.
            while len(loaded) > 1:
                half = len(loaded) // 2
                size = width * self.lanes // len(loaded)
                mask = [k for i in range(size) for k in (i, i + size)]
                loaded = [shuffled(loaded[i], loaded[i + half], mask) for i in range(half)]
            for k in range(width):
                mask = range(k * self.lanes, (k + 1) * self.lanes)
                tile.keep(shuffled(loaded[0], loaded[0], mask), first + start + k)

        self._each_start(starts, width, piece)

    def write(self, tile: LaneTile, rows: int, columns: int) -> None:
        """The tile to the output, each matrix row after row."""
        self._write(self._pointers(0), tile, 0, rows * columns)

    def write_rows(
        self, tile: LaneTile, rows: int, columns: int, operand: int, numbers: int
    ) -> None:
        """The tile to the output: row i goes to where number i says, of those that an operand has
        from element `numbers` on.
        """
        targets, orders = self._pointers(0), self._pointers(operand)

        def row(i: Index) -> None:
            starts = self._rows_at(targets, columns, orders, i + numbers)
            self._write(starts, tile, i, columns)

        self.each(0, rows, row)

    def _write(self, pointers: list[Value], tile: LaneTile, row: Index, size: int) -> None:
        """Elements of a tile, from the start of a row on, to where each lane has a pointer."""
        shuffled = self.code.shuffled
        width, starts = self._chunks(size)

        def piece(start: Index) -> None:
            parts = [tile.get(row, start + k) for k in range(width)]
            while len(parts) > 1:  # one long vector
                size = self.lanes * width // len(parts)
                mask = range(2 * size)
                parts = [shuffled(parts[i], parts[i + 1], mask) for i in range(0, len(parts), 2)]
            lanes = parts
            while len(lanes) < self.lanes:
                size = width * self.lanes // len(lanes)
                split = [[shuffled(x, x, range(k, size, 2)) for x in lanes] for k in range(2)]
                lanes = split[0] + split[1]
            for p, x in zip(pointers, lanes, strict=True):
                self.code.write(x, self.code.at(p, start, self.real), self.bytes)

        self._each_start(starts, width, piece)

    def _each_start(self, starts: list[int], width: int, piece: Callable[[Index], None]) -> None:
        if self.unrolled:
            for start in starts:
                piece(start)
            return
        whole = [s for s in starts if s % width == 0]
        with self.code.range(0, len(whole)) as k:
            piece(k * width)
        for start in starts[len(whole) :]:
            piece(start)

    # -- arithmetic --------------------------------------------------------------------------------

    def number(self, value: float) -> Value:
        return self.code.constant(self.vector, value)

    def call(self, name: str, *args: Value) -> Value:
        """A function of LLVM on vectors."""
        return self.code.intrinsic(name, *args)

    def fused(self, x: Value, y: Value, z: Value) -> Value:
        """x y + z, rounded once."""
        return self.call("fma", x, y, z)

    def less(self, x: Value, y: Value) -> Value:
        return x < y

    def equal(self, x: Value, y: Value) -> Value:
        return self.code.equal(x, y)

    def choose(self, condition: Value, x: Value, y: Value) -> Value:
        return self.code.select(condition, x, y)

    def variable(self, value: Value) -> LaneVariable:
        return LaneVariable(self, value)

    def whole(self, i: Index) -> Value:
        """An index as the same number in all lanes."""
        if isinstance(i, int):
            return self.number(float(i))
        return self.code.spread(i.sitofp(self.real), self.lanes)

    def oddity(self, tile: LaneTile, size: int) -> Value:
        """0 in lanes whose elements are numbers, else NaN."""
        found = self.variable(self.number(0.0))
        zero = self.number(0.0)
        self.each(0, size, lambda k: found.set(self.fused(tile.kept(k), zero, found.get())))
        return found.get() * zero

    def spoil(self, tile: LaneTile, size: int, oddity: Value) -> None:
        """NaN in all elements of the lanes that had one, or an infinity."""
        fine = self.equal(oddity, oddity)
        self.each(0, size, lambda k: tile.keep(self.choose(fine, tile.kept(k), oddity), k))

    def fail_if(self, found: Value) -> None:
        """Ends the kernel with an error about the first matrix whose number found is positive."""
        code, error = self.code, self.code.args[4]
        bad = found > self.number(0.0)
        bits = bad.bitcast(integer(self.lanes))
        with code.when(code.differ(bits, constant(integer(self.lanes), 0))):
            for lane in range(self.lanes):
                with code.when(code.lane(bad, lane)):
                    value = code.lane(found, lane)
                    code.store(self.numbers[lane], error, 1)
                    code.store(value.fptosi(I64), error, 2)
                    code.store(self._error, error, 0)
                    code.leave()


class LaneVariable:
    """A vector that changes."""

    def __init__(self, lanes: Lanes, value: Value):
        self._slot = lanes.code.local(lanes.vector)
        self._lanes = lanes
        self.set(value)

    def get(self) -> Value:
        return self._lanes.code.read(self._slot, self._lanes.vector)

    def set(self, value: Value) -> None:
        self._lanes.code.write(value, self._slot)
