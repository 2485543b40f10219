"""The accumulators of sums by index, as LLVM IR: wider than what is added, and rounded once.

    float32    a float64
    float64    two float64: the running sum, and the sum of all its rounding errors
    integers   themselves, modulo their range; a bool is the "or"

Largest, smallest and product are folded in the same way: with one part, in float64 for floats.

Complex numbers are pairs of reals; float16 and bfloat16 are made float32 before they get here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.values import DOUBLE, FLOAT, Type, Value, constant, integer, vector

__all__ = ["SumTable", "Sums", "each_piece", "two_sum"]

DOUBLE, FLOAT = DOUBLE, FLOAT


@dataclass(frozen=True)
class Sums:
    """Folds of elements of a real `dtype`, most of all sums; an accumulator is a list of values."""

    dtype: DType
    fold: str = "add"  # or "max", "min", "mul"

    @property
    def inexact(self) -> bool:
        return self.dtype.is_float

    @property
    def memory(self) -> Type:
        """The type of an element in memory."""
        if self.inexact:
            return FLOAT if self.dtype is dt.float32 else DOUBLE
        return integer(8 * self.dtype.itemsize)

    @property
    def wide(self) -> Type:
        """The type of a part of an accumulator."""
        return DOUBLE if self.inexact else self.memory

    @property
    def parts(self) -> int:
        return 2 if self.dtype is dt.float64 and self.fold == "add" else 1

    @property
    def nbytes(self) -> int:
        """Of one accumulator."""
        return self.parts * (8 if self.inexact else self.dtype.itemsize)

    @property
    def lanes(self) -> int:
        """Elements that are added together where they lie side by side."""
        return 8 if self.inexact else max(4, 32 // self.dtype.itemsize)

    @property
    def group(self) -> int:
        """Elements whose accumulators fit in registers."""
        return 64 // self.parts if self.inexact else 8 * self.lanes

    def load(self, code: Code, pointer: Value, i: Value, lanes: int = 1) -> Value:
        """Elements from `i` on, in the type of an accumulator's part."""
        type_ = vector(self.memory, lanes)
        at = code.at(pointer, i, self.memory)
        value = code.read(at, type_, self.dtype.itemsize)
        return value.fpext(vector(self.wide, lanes)) if self.memory is FLOAT else value

    def empty(self, lanes: int = 1) -> list[Value]:
        """The accumulator of nothing, which leaves everything as it is."""
        return self.start(constant(vector(self.wide, lanes), self._neutral()))

    def _neutral(self) -> float | int:
        if self.fold == "mul":
            return 1.0 if self.inexact else 1
        if self.inexact:
            return {"add": -0.0, "max": -math.inf, "min": math.inf}[self.fold]
        bits = 8 * self.dtype.itemsize
        if self.fold == "add" or self.dtype is dt.bool_:
            return int(self.fold == "min")
        if self.dtype.kind == "u":
            return 0 if self.fold == "max" else (1 << bits) - 1
        return -(1 << bits - 1) if self.fold == "max" else (1 << bits - 1) - 1

    def start(self, value: Value) -> list[Value]:
        """The accumulator that holds a single value."""
        return [value, *(constant(value.type, 0) for _ in range(self.parts - 1))]

    def add(self, code: Code, sums: Sequence[Value], value: Value) -> list[Value]:
        before = sums[0]
        if self.fold in ("max", "min"):
            return [self._extremum(code, before, value)]
        if not self.inexact:
            if self.dtype is dt.bool_:
                return [before | value if self.fold == "add" else before & value]
            return [before + value if self.fold == "add" else before * value]
        if self.fold == "mul":
            return [before * value]
        if self.parts == 1:
            return [before + value]
        total, error = two_sum(code, before, value)
        return [total, sums[1] + error]

    def _extremum(self, code: Code, before: Value, value: Value) -> Value:
        """The value if it is beyond what was before, or a NaN."""
        sign = ">" if self.fold == "max" else "<"
        if self.inexact:
            beyond = code.signed(sign, value, before)
            return code.select(beyond | code.is_nan(value), value, before)
        compare = code.signed if self.dtype.kind == "i" else code.unsigned
        return code.select(compare(sign, value, before), value, before)

    def merge(self, code: Code, sums: Sequence[Value], others: Sequence[Value]) -> list[Value]:
        """One accumulator for what two of them hold."""
        merged = self.add(code, sums, others[0])
        if self.parts == 2:
            merged[1] = merged[1] + others[1]
        return merged

    def finish(self, code: Code, sums: Sequence[Value]) -> Value:
        """The sum as it is stored."""
        if self.parts == 2:
            # Once the sum is infinite or NaN, its error means nothing.
            total, error = sums
            zero = constant(total.type, 0)
            finite = code.equal(total - total, zero)
            # A sum without error keeps the sign of its zero.
            used = finite & code.differ(error, zero)
            return code.select(used, total + error, total)
        if self.memory is FLOAT:
            narrow = vector(FLOAT, sums[0].type.count)
            return sums[0].fptrunc(narrow)
        return sums[0]

    def store(self, code: Code, value: Value, pointer: Value, i: Value) -> None:
        at = code.at(pointer, i, self.memory)
        code.write(value, at, self.dtype.itemsize)


def two_sum(code: Code, x: Value, y: Value) -> tuple[Value, Value]:
    """The rounded sum, and what the rounding lost, exactly."""
    total = x + y
    from_y = total - x
    lost_x = x - (total - from_y)
    return total, lost_x + (y - from_y)


class SumTable:
    """Accumulators side by side in memory; part p of all of them starts at p * `stride`."""

    def __init__(self, code: Code, sums: Sums, pointer: Value, stride: Value | int):
        self.code, self.sums = code, sums
        stride = code.int(stride) if isinstance(stride, int) else stride
        self.starts = [code.at(pointer, stride * p, sums.wide) for p in range(sums.parts)]

    def load(self, i: Value, lanes: int = 1) -> list[Value]:
        code, wide = self.code, self.sums.wide
        align = max(1, wide_bytes(self.sums))
        return [
            code.read(self.code.at(s, i, wide), vector(wide, lanes), align) for s in self.starts
        ]

    def store(self, values: Sequence[Value], i: Value) -> None:
        align = max(1, wide_bytes(self.sums))
        for start, value in zip(self.starts, values, strict=True):
            at = self.code.at(start, i, self.sums.wide)
            self.code.write(value, at, align)

    def add(self, i: Value, value: Value, lanes: int = 1) -> None:
        """Adds to the accumulators from `i` on."""
        self.store(self.sums.add(self.code, self.load(i, lanes), value), i)


def wide_bytes(sums: Sums) -> int:
    """Of one part of an accumulator."""
    return sums.nbytes // sums.parts


def each_piece(
    code: Code,
    sums: Sums,
    width: int | Value,
    body: Callable[[Value, int], None],
    groups: Sequence[int] = (),
) -> None:
    """`body(first, lanes)` for elements 0 to `width`: in `groups`, vectors, single elements."""
    sizes = (*groups, sums.lanes, 1)
    if isinstance(width, int):
        at = 0
        while at < width:
            lanes = min(sizes[0], 1 << ((width - at).bit_length() - 1))
            body(code.int(at), lanes)
            at += lanes
        return
    done = code.int(0)
    for lanes in sizes:
        whole = (width - done) // lanes
        with code.range(0, whole) as i:
            body(done + i * lanes, lanes)
        done = done + whole * lanes
