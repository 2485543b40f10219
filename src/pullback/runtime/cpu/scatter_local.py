"""LLVM IR of row numbers that a kernel keeps in local memory, a block ahead of their use."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I8, I32, I64, Code, Value
from pullback.runtime.cpu.scatter_numbers import (
    BLOCK,
    GROUP,
    I16,
    CheckedNumbers,
    Numbers,
    any_lane,
    cells_of_pairs,
    lanes_in,
    spread,
)
from pullback.runtime.cpu.scatter_rows import Arguments, ask, local_memory, unpacked
from pullback.runtime.cpu.scatter_sums import vector_of

__all__ = ["LocalNumbers", "each_block_ahead"]

NEAR = 2048  # where tables should stay in the first cache meanwhile


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
    b, none, one = code.b, code.int(0), code.int(1)
    whole = b.lshr(b.sub(stop, start), code.int(BLOCK.bit_length() - 1))

    def at(k: Value) -> Value:
        return b.add(start, b.mul(k, code.int(BLOCK)))

    with b.if_then(b.icmp_signed(">", whole, none)):
        ready, last = code.variable(prepare(start, BLOCK, none)), b.sub(whole, one)
        with code.range(0, whole) as k:
            found, after = ready.get(), b.add(k, one)
            ready.set(prepare(at(code.minimum(after, last)), BLOCK, b.and_(after, one)))
            body(found, at(k), BLOCK)
    rest = at(whole)
    with b.if_then(b.icmp_signed("<", rest, stop)):
        count = b.sub(stop, rest)
        body(prepare(rest, count, none), rest, count)


class LocalNumbers:
    """The numbers of blocks of indices, of at most 16 bits, in local memory, or cells of pairs.

    Most indices are row numbers as they are, which takes less to find out than to wrap those that
    count from the end. The kernel has the arguments index, rows, width and code; at a bad index it
    is left, with an error.
    """

    def __init__(self, code: Code, a: Arguments, index: DType, number: DType, paired: bool):
        self.code, self.a, self.index = code, a, index
        self.given = ir.IntType(8 * index.itemsize)
        self.pairs = Numbers(number, paired) if paired else None
        self.together = 2 if paired else 1
        self.checked = CheckedNumbers(code, a, index, number, self)
        self.room = BLOCK // self.together
        self.numbers = local_memory(code, I16, 2 * self.room)
        # Numbers that shifts bring into the bits of one index: number k of a GROUP is at order[k].
        self.merged = max(1, self.given.width // 16)
        self.lanes = GROUP // self.merged
        self.order = [k % self.lanes * self.merged + k // self.lanes for k in range(GROUP)]

    def one(self, code: Code, numbers: Value, i: Value) -> Value:
        """Number i of a block."""
        return code.b.zext(code.load(numbers, self._place(i), I16), I64)

    def many(self, code: Code, numbers: Value, first: Value) -> list[Value]:
        """GROUP numbers of a block."""
        found = unpacked(code, I16, numbers, first, GROUP)
        return [found[at] for at in self.order]

    def _place(self, i: Value) -> Value:
        code, b = self.code, self.code.b
        group, lane = (b.and_(i, code.int(mask)) for mask in (-GROUP, self.lanes - 1))
        part = b.udiv(b.sub(i, group), code.int(self.lanes))
        return b.add(group, b.add(b.mul(lane, code.int(self.merged)), part))

    def block(self, first: Value, count: int | Value, odd: Value) -> Value:
        """The place of the numbers of `count` indices, in one of two halves of the memory.

        Indices after them are asked for.
        """
        code, b = self.code, self.code.b
        source = code.at(self.a["index"], first, self.given)
        ask(code, code.at(source, code.int(NEAR), I8), self.index.itemsize * BLOCK)
        target = code.at(self.numbers, b.mul(odd, code.int(self.room)), I16)
        if not isinstance(count, int):
            self.checked.block(first, count, target)
            return target
        with b.if_else(self._are_others(source), likely=False) as (others, rows):
            with others:
                self.checked.block(first, count, target)
            with rows:
                self._narrowed(source, target)
        return target

    def _are_others(self, source: Value) -> Value:
        """Whether some indices of a block are no row numbers: the largest of all words says so.

        Words have at most 32 bits, of which the high halves of longer ones must be zero.
        """
        code, b = self.code, self.code.b
        lane = I32 if self.given == I64 else self.given
        lanes = 256 // lane.width
        most = (1 << lane.width - (self.index.kind == "i")) - 1
        last = code.minimum(b.sub(self.a["rows"], code.int(1)), code.int(most))
        limit = spread(code, b.trunc(last, lane), lanes)
        if self.given == I64:
            limit = b.and_(limit, ir.Constant(limit.type, [-1, 0] * (lanes // 2)))
        larger = code.declare(f"llvm.umax.v{lanes}i{lane.width}", limit.type, [limit.type] * 2)
        found = [
            b.load(code.at(source, code.int(k), lane), typ=limit.type, align=self.index.itemsize)
            for k in range(0, BLOCK * self.given.width // lane.width, lanes)
        ]
        while len(found) > 1:
            found = [b.call(larger, pair) for pair in zip(found[::2], found[1::2], strict=True)]
        return any_lane(code, b.icmp_unsigned(">", found[0], limit))

    def _narrowed(self, source: Value, target: Value) -> None:
        """Stores row numbers of a block in 16 bits, or the cells of its pairs.

        Shifts put several numbers in the bits of one: few units of a processor can shuffle.
        """
        code, b = self.code, self.code.b
        part, short = vector_of(self.given, self.lanes), ir.VectorType(I16, GROUP)
        for first in range(0, BLOCK, GROUP):
            both = ir.Constant(part, None)
            for k in range(self.merged):
                at = code.at(source, code.int(first + k * self.lanes), self.given)
                found = b.load(at, typ=part, align=self.index.itemsize)
                both = b.or_(both, b.shl(found, ir.Constant(part, [16 * k] * self.lanes)))
            both = b.zext(both, short) if self.given.width < 16 else b.bitcast(both, short)
            if self.pairs:
                parts = (b.shuffle_vector(both, both, lanes_in(self.order[k::2])) for k in range(2))
                both = cells_of_pairs(code, self.a["rows"], *parts)
            b.store(both, code.at(target, code.int(first // self.together), I16), align=2)

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        """Stores what was checked and wrapped, as `Form` has it, where `_narrowed` would."""
        if self.pairs:
            self.pairs.store(rows, found, target, at)
            return
        code, (row,) = self.code, found
        value = rows.narrowed(row, I16)
        if isinstance(value.type, ir.VectorType):
            order = [self.order.index(k) for k in range(GROUP)]
            value = code.b.shuffle_vector(value, value, lanes_in(order))
        else:
            at = self._place(at)
        code.b.store(value, code.at(target, at, I16), align=2)
