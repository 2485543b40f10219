"""What kernels across a batch are written with: each lane of a vector works on a matrix of its own.

Matrices are read as they lie, turned so that a vector has one element of each of them, and turned
back. Every lane does the same operations in the same order, so that the bits of a result depend
neither on its neighbours nor on the width of vectors. The size of the matrices is a constant of the
code; small ones are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
__tuning__ = ("LANES",)

LANES = 8  # matrices at once: a register of AVX2 in float32, of AVX-512 in float64
UNROLLED = 8  # rows up to which code has no loops; beyond, it would take long to compile

Index: TypeAlias = Value | int  # an int, or a value of a loop


class LaneTile:
    """A matrix of vectors in the cache (or in registers, where all indices are constants)."""

    def __init__(self, lanes: Lanes, rows: int, columns: int):
        self.rows, self.columns, self._lanes = rows, columns, lanes
        self._slot = lanes.code.local(lanes.vector, rows * columns, 64)

    def _at(self, i: Index, j: Index) -> Value:
        lanes = self._lanes
        return lanes.code.at(self._slot, i * self.columns + j, lanes.vector)

    def get(self, i: Index, j: Index) -> Value:
        return self._lanes.code.read(self._at(i, j), self._lanes.vector)

    def put(self, value: Value, i: Index, j: Index) -> None:
        self._lanes.code.write(value, self._at(i, j))


@cache
def lane_params(operands: int) -> Record:
    """The params: the output and the operands, how many matrices there are, the error code, and the
    elements from matrix to matrix of each array.
    """
    return Record("array[arrays]", "count code step[arrays]", arrays=1 + operands)


class Lanes:
    """A kernel under construction whose units are groups of `lanes` matrices of n rows."""

    def __init__(self, name: str, dtype: DType, operands: int, n: int, lanes: int = LANES):
        self.code = kernel(IRModule(), name)
        self.n, self.unrolled = n, n <= UNROLLED
        self.real = FLOAT if dtype is dtypes.float32 else DOUBLE
        self.bytes = dtype.itemsize
        self.lanes = lanes
        self.vector = vector(self.real, lanes)
        self._operands = operands

    # -- indices and loops -------------------------------------------------------------------------

    def each(self, start: Index, stop: Index, body: Callable[[Index], None]) -> None:
        """The body for all of [start, stop)."""
        if self.unrolled and isinstance(start, int) and isinstance(stop, int):
            for i in range(start, stop):
                body(i)
            return
        with self.code.range(start, stop) as i:
            body(i)

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

    def read(self, operand: int, tile: LaneTile, rows: int, columns: int) -> None:
        """Operand (from 1 on), matrices stored row after row, into a tile."""
        pointers, shuffled = self._pointers(operand), self.code.shuffled
        width, starts = self._chunks(rows * columns)
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
                flat = start + k
                tile.put(shuffled(loaded[0], loaded[0], mask), 0, flat)

        self._each_start(starts, width, piece)

    def write(self, tile: LaneTile, rows: int, columns: int) -> None:
        """The tile to the output, each matrix row after row."""
        pointers, shuffled = self._pointers(0), self.code.shuffled
        width, starts = self._chunks(rows * columns)

        def piece(start: Index) -> None:
            parts = [tile.get(0, start + k) for k in range(width)]
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
        self.each(0, size, lambda k: found.set(self.fused(tile.get(0, k), zero, found.get())))
        return found.get() * zero

    def spoil(self, tile: LaneTile, size: int, oddity: Value) -> None:
        """NaN in all elements of the lanes that had one, or an infinity."""
        fine = self.equal(oddity, oddity)
        self.each(0, size, lambda k: tile.put(self.choose(fine, tile.get(0, k), oddity), 0, k))

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
