"""LLVM IR of row numbers that a kernel keeps in local memory, a block ahead of their use."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I1, I8, I32, I64, PTR, Code, Value
from pullback.runtime.cpu.scatter_numbers import (
    BLOCK,
    GROUP,
    I16,
    any_lane,
    cells_of_pairs,
    lanes_in,
    spread,
)
from pullback.runtime.cpu.scatter_rows import Arguments, ask, local_memory, report, unpacked
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

    Most indices are row numbers as they are. A block in which some count from the end is copied
    first. The kernel has the arguments index, rows, width and code; at a bad index it is left,
    with an error.
    """

    def __init__(self, code: Code, a: Arguments, index: DType, number: DType, paired: bool):
        self.code, self.a, self.index, self.paired = code, a, index, paired
        self.given = ir.IntType(8 * index.itemsize)
        least = number.itemsize if index.kind == "i" else 1
        self.word = ir.IntType(8 * max(index.itemsize, least))  # of a copy
        self.copy = local_memory(code, self.word, BLOCK)
        self.wrap = _wrap(code.module, index, self.word)
        self.room = BLOCK // 2 if paired else BLOCK
        self.numbers = local_memory(code, I16, 2 * self.room)
        self.together = max(1, self.word.width // 16)
        lanes = GROUP // self.together
        self.order = [n % lanes * self.together + n // lanes for n in range(GROUP)]

    def one(self, code: Code, numbers: Value, i: Value) -> Value:
        """Number i of a block."""
        b, lanes = code.b, GROUP // self.together
        group, lane = (b.and_(i, code.int(mask)) for mask in (-GROUP, lanes - 1))
        part = b.udiv(b.sub(i, group), code.int(lanes))
        at = b.add(group, b.add(b.mul(lane, code.int(self.together)), part))
        return b.zext(code.load(numbers, at, I16), I64)

    def many(self, code: Code, numbers: Value, first: Value) -> list[Value]:
        """GROUP numbers of a block."""
        found = unpacked(code, I16, numbers, first, GROUP)
        return [found[at] for at in self.order]

    def block(self, first: Value, count: int | Value, odd: Value) -> Value:
        """The place of the numbers of `count` indices, in one of two halves of the memory.

        Indices after them are asked for.
        """
        code, b = self.code, self.code.b
        source = code.at(self.a["index"], first, self.given)
        ask(code, code.at(source, code.int(NEAR), I8), self.index.itemsize * BLOCK)
        place = code.variable(source)
        if not isinstance(count, int):
            code.store(code.int(0, self.word), self.copy, count)  # the other one of a last pair
            others, stop = code.int(1, I1), b.add(first, count)
        else:
            others, stop = self._are_others(source), b.add(first, code.int(count))
        with b.if_then(others, likely=False):
            self._wrapped(first, stop)
            place.set(self.copy)
        target = code.at(self.numbers, b.mul(odd, code.int(self.room)), I16)
        self._narrowed(place.get(), target)
        return target

    def _are_others(self, source: Value) -> Value:
        """Whether some indices of a block are no row numbers: the largest of all words says so.

        Words have at most 32 bits, of which the high halves of longer ones must be zero.
        """
        code, b = self.code, self.code.b
        if self.word != self.given:
            return code.int(1, I1)
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

    def _wrapped(self, first: Value, stop: Value) -> None:
        """Copies indices as row numbers, or leaves the kernel."""
        code, b, error = self.code, self.code.b, self.code.args[4]
        words = (self.a[name] for name in ("rows", "width", "code"))
        b.call(self.wrap, (self.a["index"], first, stop, *words, error, self.copy))
        bad = b.icmp_unsigned("!=", code.load(error, 0, I64), code.int(0))
        with b.if_then(bad, likely=False):
            b.ret_void()

    def _narrowed(self, place: Value, target: Value) -> None:
        """Stores the row numbers of a block in 16 bits, or the cells of its pairs.

        Shifts put several numbers in the bits of one: few units of a processor can shuffle. What a
        copy of a rest holds beyond its end only reaches the bits of numbers that are further on.
        """
        code, b = self.code, self.code.b
        together, lanes = self.together, GROUP // self.together
        part, short = vector_of(self.word, lanes), ir.VectorType(I16, GROUP)
        for first in range(0, BLOCK, GROUP):
            both = ir.Constant(part, None)
            for k in range(together):
                at = code.at(place, code.int(first + k * lanes), self.word)
                found = b.load(at, typ=part, align=self.index.itemsize)
                both = b.or_(both, b.shl(found, ir.Constant(part, [16 * k] * lanes)))
            both = b.zext(both, short) if self.word.width < 16 else b.bitcast(both, short)
            at = code.at(target, code.int(first * self.room // BLOCK), I16)
            if self.paired:
                pairs = (b.shuffle_vector(both, both, lanes_in(self.order[k::2])) for k in range(2))
                both = cells_of_pairs(code, self.a["rows"], *pairs)
            b.store(both, at, align=2)


def _wrap(module: ir.Module, index: DType, word: ir.IntType) -> ir.Function:
    """A function that copies a span of indices as row numbers; a bad one sets the error word."""
    complain = report(module, index)
    code = Code(module, "wrap", (PTR, I64, I64, I64, I64, I64, PTR, PTR))
    pointer, start, stop, rows, *_, target = code.args
    b, given, signed = code.b, ir.IntType(8 * index.itemsize), index.kind == "i"
    lane = I64 if given == I64 else I32
    bad = code.variable(code.int(0, I1))

    def copy(at: Value, lanes: int) -> None:
        place = code.at(pointer, b.add(start, at), given)
        row = b.load(place, typ=vector_of(given, lanes), align=index.itemsize)
        if given.width < lane.width:
            row = (b.sext if signed else b.zext)(row, vector_of(lane, lanes))
        limit = spread(code, b.trunc(rows, I32) if lane is I32 else rows, lanes)
        if signed:
            end = ir.Constant(row.type, None)
            row = b.add(row, b.select(b.icmp_signed("<", row, end), limit, end))
        bad.set(b.or_(bad.get(), any_lane(code, b.icmp_unsigned(">=", row, limit))))
        row = b.trunc(row, vector_of(word, lanes)) if word.width < lane.width else row
        b.store(row, code.at(target, at, word), align=word.width // 8)

    count = b.sub(stop, start)
    whole = b.lshr(count, code.int(GROUP.bit_length() - 1))
    with code.range(0, whole) as k:
        copy(b.mul(k, code.int(GROUP)), GROUP)
    with code.range(b.mul(whole, code.int(GROUP)), count) as at:
        copy(at, 1)
    with b.if_then(bad.get(), likely=False):
        b.call(complain, code.args[:7])
    code.function.attributes.add("noinline")
    return code.internal()
