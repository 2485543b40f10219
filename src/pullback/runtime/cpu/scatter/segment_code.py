"""LLVM IR of sums of wide rows: the updates of each destination one after the other, by a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from pullback.runtime.cpu.indexing.checked import LINE, local_memory, prefetch
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record, Values
from pullback.runtime.cpu.llvm.values import I1, I8, I32, I64, PTR, VOID, Value
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = ["BLOCK", "SEGMENTS", "SegmentWalk", "segments"]

SEGMENTS = Record("order starts updates x out", "count rows width x_row parts blocks")
BLOCK = 256  # elements of a row that are summed at once
AHEAD = 16  # rows of the updates that are asked for before they are needed
PIECE = 32  # rows of the updates that stay in the cache while all their columns are added


class SegmentWalk:
    """The walk over the rows of a unit: a block of columns of a part of the rows.

    Parts are of equal work, counted as updates plus rows.
    """

    def __init__(self, code: Code, sums: Sums, a: Values):
        self.code, self.sums, self.a = code, sums, a

    def each(self, body: Callable[..., None]) -> None:
        """`body(span, places, columns)` for rows with updates; the others are copied from x.

        `span` is the row's in the order, `places` are its first column and its elements in x and
        in the output.
        """
        code, a = self.code, self.a
        work = a["count"] + a["rows"]
        same = code.equal(a["x"], a["out"])
        with code.range(code.args[2], code.args[3]) as unit:
            part = unit // a["blocks"]
            left = (unit - part * a["blocks"]) * BLOCK
            count = code.minimum(code.int(BLOCK), a["width"] - left)
            lo, hi = (_row_of_work(code, a, p * work // a["parts"]) for p in (part, part + 1))
            with code.range(lo, hi) as row:
                start, stop = (code.load(a["starts"], row + k, I32).zext(I64) for k in range(2))
                x_at = row * a["x_row"] + left
                out_at = row * a["width"] + left
                with code.either(start < stop) as (some, none):
                    with some:
                        body((start, stop), (left, x_at, out_at), count)
                    with none, code.when(~same):
                        _copy_row(code, self.sums, a, x_at, out_at, count)


@cache
def segments(sums: Sums) -> int:
    """A unit sums a block of columns of a part of the rows. Params: SEGMENTS."""
    code = kernel(IRModule(), "segments")
    a = SEGMENTS.unpacked(code)
    table = SumTable(code, sums, local_memory(code, sums.wide, sums.parts * BLOCK), BLOCK)

    def segment(span: tuple[Value, Value], places: tuple[Value, Value, Value], count: Value):
        _segment(code, sums, a, table, span, places, count)

    SegmentWalk(code, sums, a).each(segment)
    return address(code, plain_loops=True)


def _row_of_work(code: Code, a: Values, target: Value) -> Value:
    """The first row before which `target` updates and rows come."""
    low, high = code.variable(code.int(0)), code.variable(a["rows"])
    with code.loop() as leave:
        leave(low.get() >= high.get())
        middle = (low.get() + high.get()) >> 1
        before = code.load(a["starts"], middle, I32).zext(I64) + middle
        less = code.unsigned("<", before, target)
        low.set(code.select(less, middle + 1, low.get()))
        high.set(code.select(less, high.get(), middle))
    return low.get()


def _copy_row(code: Code, sums: Sums, a: Values, x_at: Value, out_at: Value, count: Value) -> None:
    nbytes = count * sums.dtype.itemsize
    copy = code.declare("llvm.memcpy.p0.p0.i64", VOID, (PTR, PTR, I64, I1))
    target = code.at(a["out"], out_at, sums.memory)
    source = code.at(a["x"], x_at, sums.memory)
    code.call(copy, [target, source, nbytes, code.int(0, I1)])


def _segment(
    code: Code,
    sums: Sums,
    a: Values,
    table: SumTable,
    span: tuple[Value, Value],
    places: tuple[Value, Value, Value],
    count: Value,
) -> None:
    """The sum of the updates at `span` of the order, and of a row of x, for `count` columns."""
    (start, stop), (left, x_at, out_at) = span, places
    end = a["count"] - 1

    def source(i: Value, at: Value) -> Value:
        position = code.load(a["order"], i, I32).zext(I64)
        return position * a["width"] + left + at

    def begin(at: Value, lanes: int) -> None:
        value = sums.load(code, a["x"], x_at + at, lanes)
        table.store(sums.start(value), at)

    each_piece(code, sums, count, begin)
    pieces = (stop - start + (PIECE - 1)) // PIECE
    with code.range(0, pieces) as piece:
        first = start + piece * PIECE
        last = code.minimum(first + PIECE, stop)

        def add(at: Value, lanes: int) -> None:
            totals = [code.variable(v) for v in table.load(at, lanes)]
            with code.range(first, last) as i:
                ahead = source(code.minimum(i + AHEAD, end), at)
                for line in range(0, lanes * sums.dtype.itemsize, LINE):
                    place = code.at(a["updates"], ahead, sums.memory)
                    prefetch(code, code.at(place, line, I8))
                value = sums.load(code, a["updates"], source(i, at), lanes)
                found = sums.add(code, [t.get() for t in totals], value)
                for total, new in zip(totals, found, strict=True):
                    total.set(new)
            table.store([t.get() for t in totals], at)

        each_piece(code, sums, count, add, (sums.group, sums.group // 2, sums.group // 4))

    def finish(at: Value, lanes: int) -> None:
        total = sums.finish(code, table.load(at, lanes))
        sums.store(code, total, a["out"], out_at + at)

    each_piece(code, sums, count, finish)
