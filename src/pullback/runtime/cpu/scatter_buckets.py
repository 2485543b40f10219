"""LLVM IR of the partition: updates, or their positions, brought near their destinations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I32, I64, Code, Value, address, kernel
from pullback.runtime.cpu.scatter_columns import checked_numbers
from pullback.runtime.cpu.scatter_rows import (
    LINE,
    Arguments,
    add_row,
    chunk_bounds,
    local_memory,
    prefetch,
    start_rows,
)
from pullback.runtime.cpu.scatter_sums import Sums, Table, each_piece

__all__ = ["LOCAL_BYTES", "move_rows", "partition", "plan_slots", "sort_runs", "sum_runs"]

BYTE, I16 = ir.IntType(8), ir.IntType(16)
SLOTS = ("index", "updates", "locals", "moved", "offsets")
UNROLLED = 8
LANES = 4  # parts of a chunk that are sorted side by side: equal buckets in a row wait less
PIECE = 32  # bytes that are written at once
LOCAL_BYTES = 2  # of the number of a destination in its bucket


class Runs:
    """Updates in the order of their buckets: the numbers of their destinations, and their rows."""

    def __init__(self, code: Code, locals_: Value, rows: Value, row_bytes: int):
        self.code, self.locals, self.rows, self.row_bytes = code, locals_, rows, row_bytes

    def row(self, i: Value, offset: int = 0) -> Value:
        place = self.code.b.mul(i, self.code.int(self.row_bytes))
        return self.code.at(self.rows, self.code.b.add(place, self.code.int(offset)), BYTE)

    def local(self, i: Value) -> Value:
        return self.code.b.zext(self.code.load(self.locals, i, I16), I64)

    def position(self, i: Value) -> Value:
        """The row, where rows are positions."""
        return self.code.load(self.rows, i, I32)


@cache
def partition(index: DType, number: DType, row_bytes: int, chunk_rows: int, far: bool) -> int:
    """A unit sorts a chunk of the updates, stably, by bucket: a range of 2**shift destinations.

    `locals` are the numbers of the destinations in their buckets, `moved` the rows of updates or,
    if `row_bytes` is 0, their positions (32 bits). `offsets` says where in the chunk each bucket
    starts. `number` is a dtype for all destinations; `far`: results don't fit in a cache. Words:
    updates, chunk, rows, shift, buckets, width, first code.
    """
    module = ir.Module()
    checked = checked_numbers(module, index, number)
    code = kernel(module, "partition")
    b = code.b
    a = Arguments(code, SLOTS, ("count", "chunk", "rows", "shift", "buckets", "width", "code"))
    shift, buckets = a["shift"], a["buckets"]
    payload = row_bytes or 4
    moved = (_Packed if payload in (1, 2, 4) else _Apart)(code, payload, chunk_rows, far)
    numbers = local_memory(code, BYTE, number.itemsize * chunk_rows)
    cursors = local_memory(code, I32, b.mul(buckets, code.int(LANES)))
    one, mask = code.int(1, I32), b.sub(b.shl(code.int(1), shift), code.int(1))

    def cursor(i: Value, lane: int) -> tuple[Value, Value]:
        """The number of a destination, and the cursor of its bucket."""
        found = code.load(numbers, i, ir.IntType(8 * number.itemsize))
        found = b.zext(found, I64) if number.itemsize < 8 else found
        bucket = b.mul(b.lshr(found, shift), code.int(LANES))
        return found, code.at(cursors, b.add(bucket, code.int(lane)), I32)

    def count(i: Value, lane: int) -> None:
        _, at = cursor(i, lane)
        b.store(b.add(b.load(at, typ=I32), one), at)

    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        length = b.sub(stop, start)
        checked(code, a, start, stop, numbers)
        with code.range(0, b.mul(buckets, code.int(LANES))) as k:
            code.store(code.int(0, I32), cursors, k)
        _in_lanes(code, length, count)
        offsets = code.at(a["offsets"], b.mul(chunk, b.add(buckets, code.int(1))), I32)
        _start_buckets(code, cursors, buckets, offsets)
        updates = code.at(a["updates"], b.mul(start, code.int(payload)), BYTE)

        def move(i: Value, lane: int) -> None:
            found, at = cursor(i, lane)
            to = b.load(at, typ=I32)
            b.store(b.add(to, one), at)
            if row_bytes:
                own = code.at(updates, b.mul(i, code.int(row_bytes)), BYTE)
                row = b.load(own, typ=ir.IntType(8 * row_bytes), align=1)
            else:
                row = b.trunc(b.add(start, i), I32)
            moved.store(b.zext(to, I64), b.and_(found, mask), row)

        _in_lanes(code, length, move)
        moved.write(a["locals"], a["moved"], start, length)
    if far:
        b.fence("seq_cst")  # other threads read what is on its way to memory
    return address(code, plain_loops=True)


def _start_buckets(code: Code, cursors: Value, buckets: Value, offsets: Value) -> None:
    """Turns the counts of all lanes into where each starts, and stores the starts of buckets."""
    b = code.b
    total = code.variable(code.int(0, I32))
    with code.range(0, buckets) as k:
        code.store(total.get(), offsets, k)
        for lane in range(LANES):
            at = b.add(b.mul(k, code.int(LANES)), code.int(lane))
            found = code.load(cursors, at, I32)
            code.store(total.get(), cursors, at)
            total.add(found)
    code.store(total.get(), offsets, buckets)


class _Apart:
    """The sorted updates of a chunk, in the cache: numbers and rows in two arrays."""

    def __init__(self, code: Code, row_bytes: int, count: int, far: bool):
        self.code, self.row_bytes, self.far = code, row_bytes, far
        self.locals = local_memory(code, I16, count)
        self.rows = local_memory(code, BYTE, row_bytes * count)

    def store(self, i: Value, local: Value, row: Value) -> None:
        code, b = self.code, self.code.b
        code.store(b.trunc(local, I16), self.locals, i)
        b.store(row, code.at(self.rows, b.mul(i, code.int(self.row_bytes)), BYTE), align=1)

    def write(self, locals_: Value, rows: Value, start: Value, count: Value) -> None:
        """Puts them where they belong, from element `start` on."""
        self._copy(self.locals, locals_, start, count, LOCAL_BYTES)
        self._copy(self.rows, rows, start, count, self.row_bytes)

    def _copy(self, source: Value, target: Value, start: Value, count: Value, size: int) -> None:
        code, b, vector = self.code, self.code.b, ir.VectorType(BYTE, PIECE)
        target = code.at(target, b.mul(start, code.int(size)), BYTE)
        nbytes = b.mul(count, code.int(size))
        pieces = b.udiv(nbytes, code.int(PIECE))
        with code.range(0, pieces) as k:
            value = b.load(code.at(source, k, vector), typ=vector, align=PIECE)
            self.put(value, code.at(target, k, vector))
        with code.range(b.mul(pieces, code.int(PIECE)), nbytes) as k:
            code.store(code.load(source, k, BYTE), target, k)

    def put(self, value: Value, place: Value) -> None:
        """Stores a vector; if `far`, around the caches, which then need not read the place."""
        size = value.type.count * value.type.element.width // 8
        stored = self.code.b.store(value, place, align=size)
        if self.far:
            once = self.code.module.add_metadata([self.code.int(1, I32)])
            stored.set_metadata("nontemporal", once)


class _Packed(_Apart):
    """The same with number and row in one word, so that a store does for both."""

    def __init__(self, code: Code, row_bytes: int, count: int, far: bool):
        self.code, self.row_bytes, self.far = code, row_bytes, far
        self.words = local_memory(code, I64, count)

    def store(self, i: Value, local: Value, row: Value) -> None:
        b = self.code.b
        high = b.shl(b.zext(row, I64), self.code.int(32))
        self.code.store(b.or_(high, local), self.words, i)

    def write(self, locals_: Value, rows: Value, start: Value, count: Value) -> None:
        code, b = self.code, self.code.b
        row, lanes = ir.IntType(8 * self.row_bytes), PIECE // 2
        pair = ir.VectorType(I32, 2 * lanes)
        targets = ((locals_, I16), (rows, row))

        def place(k: int, i: Value) -> Value:
            return code.at(targets[k][0], b.add(start, i), targets[k][1])

        pieces = b.udiv(count, code.int(lanes))
        with code.range(0, pieces) as piece:
            first = b.mul(piece, code.int(lanes))
            words = b.load(code.at(self.words, first, I64), typ=pair, align=PIECE)
            for k, (_, type_) in enumerate(targets):
                chosen = ir.Constant(ir.VectorType(I32, lanes), list(range(k, 2 * lanes, 2)))
                value = b.shuffle_vector(words, words, chosen)
                narrow = ir.VectorType(type_, lanes)
                self.put(value if type_ == I32 else b.trunc(value, narrow), place(k, first))
        with code.range(b.mul(pieces, code.int(lanes)), count) as i:
            word = code.load(self.words, i, I64)
            for k, (_, type_) in enumerate(targets):
                own = b.trunc(b.lshr(word, code.int(32 * k)), type_)
                b.store(own, place(k, i), align=1)


def _in_lanes(code: Code, length: Value, body: Callable[[Value, int], None]) -> None:
    """`body(i, lane)` for [0, length), cut in LANES parts that are walked side by side."""
    b = code.b
    part = b.udiv(length, code.int(LANES))
    with code.range(0, part) as k:
        for lane in range(LANES):
            body(b.add(b.mul(part, code.int(lane)), k), lane)
    with code.range(b.mul(part, code.int(LANES)), length) as i:
        body(i, LANES - 1)


@cache
def plan_slots() -> int:
    """A unit says for a chunk of partitioned positions where in the chunk each has come to.

    Pointers: positions, slots (of 16 bits). Words: updates, chunk.
    """
    code = kernel(ir.Module(), "plan_slots")
    b = code.b
    a = Arguments(code, ("positions", "slots"), ("count", "chunk"))
    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        with code.range(start, stop) as k:
            position = b.zext(code.load(a["positions"], k, I32), I64)
            code.store(b.trunc(b.sub(k, start), I16), a["slots"], position)
    return address(code, plain_loops=True)


@cache
def move_rows(row_bytes: int) -> int:
    """A unit brings a chunk of the updates in the order of a plan.

    Pointers: updates, slots, rows. Words: updates, chunk.
    """
    code = kernel(ir.Module(), "move_rows")
    b, word = code.b, ir.IntType(8 * row_bytes)
    a = Arguments(code, ("updates", "slots", "rows"), ("count", "chunk"))
    size = code.int(row_bytes)

    def move(i: Value, start: Value) -> None:
        slot = b.add(b.zext(code.load(a["slots"], i, I16), I64), start)
        value = b.load(code.at(a["updates"], b.mul(i, size), BYTE), typ=word, align=1)
        b.store(value, code.at(a["rows"], b.mul(slot, size), BYTE), align=1)

    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        rounds = b.udiv(b.sub(stop, start), code.int(UNROLLED))
        with code.range(0, rounds) as turn:
            for k in range(UNROLLED):
                at = b.add(b.mul(turn, code.int(UNROLLED)), code.int(k))
                move(b.add(start, at), start)
        with code.range(b.add(start, b.mul(rounds, code.int(UNROLLED))), stop) as i:
            move(i, start)
    return address(code, plain_loops=True)


RUNS_SLOTS = ("locals", "moved", "offsets")
FIRST_LINES = 8  # of a run, asked for during the run before
RUNS_WORDS = ("rows", "shift", "buckets", "chunks", "chunk")


def _runs(
    code: Code,
    a: Arguments,
    runs: Runs,
    bucket: Value,
    body: Callable[[Value], None],
) -> None:
    """`body(i)` for the updates of a bucket, in the order of the updates."""
    b = code.b
    step = b.add(a["buckets"], code.int(1))
    last = b.sub(a["chunks"], code.int(1))

    def span(chunk: Value) -> tuple[Value, Value]:
        own = code.at(a["offsets"], b.add(b.mul(chunk, step), bucket), I32)
        base = b.mul(chunk, a["chunk"])
        low, high = (b.zext(code.load(own, k, I32), I64) for k in range(2))
        return b.add(base, low), b.add(base, high)

    with code.range(0, a["chunks"]) as chunk:
        # The hardware can't know where the next run is.
        next_start, _ = span(code.minimum(b.add(chunk, code.int(1)), last))
        for line in range(FIRST_LINES):
            prefetch(code, runs.row(next_start, line * LINE))
        start, stop = span(chunk)
        with code.range(start, stop) as i:
            body(i)


@cache
def sum_runs(sums: Sums, width: int, capacity: int) -> int:
    """A unit sums a bucket of `capacity` rows; words: RUNS_WORDS, x's step.

    Pointers: those of the runs, x, out.
    """
    code = kernel(ir.Module(), "sum_runs")
    b = code.b
    a = Arguments(code, (*RUNS_SLOTS, "x", "out"), (*RUNS_WORDS, "x_row"))
    elements = capacity * width
    table = Table(code, sums, local_memory(code, sums.wide, sums.parts * elements), elements)
    runs = Runs(code, a["locals"], a["moved"], width * sums.dtype.itemsize)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = b.shl(bucket, a["shift"])
        rows = code.minimum(code.int(capacity), b.sub(a["rows"], first))
        start_rows(code, sums, a, table, first, rows, width)

        def add(i: Value) -> None:
            to = b.mul(runs.local(i), code.int(width))
            add_row(code, sums, table, to, runs.row(i), code.int(0), width)

        _runs(code, a, runs, bucket, add)
        start = b.mul(first, code.int(width))

        def finish(at: Value, lanes: int) -> None:
            total = sums.finish(code, table.load(at, lanes))
            sums.store(code, total, a["out"], b.add(start, at))

        each_piece(code, sums, b.mul(rows, code.int(width)), finish)
    return address(code, plain_loops=True)


@cache
def sort_runs(capacity: int) -> int:
    """A unit puts the positions of a bucket of `capacity` rows in the order of their rows.

    Pointers: those of the runs, order, starts (where the positions of each row begin). Words:
    RUNS_WORDS.
    """
    code = kernel(ir.Module(), "sort_runs")
    b = code.b
    a = Arguments(code, (*RUNS_SLOTS, "order", "starts"), RUNS_WORDS)
    runs = Runs(code, a["locals"], a["moved"], 4)
    counts = local_memory(code, I32, capacity)
    one = code.int(1, I32)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = b.shl(bucket, a["shift"])
        rows = code.minimum(code.int(capacity), b.sub(a["rows"], first))
        with code.range(0, rows) as k:
            code.store(code.int(0, I32), counts, k)

        def count(i: Value) -> None:
            row = runs.local(i)
            code.store(b.add(code.load(counts, row, I32), one), counts, row)

        _runs(code, a, runs, bucket, count)
        total = code.variable(code.int(0, I32))  # of all buckets before this one
        step = b.add(a["buckets"], code.int(1))
        with code.range(0, a["chunks"]) as chunk:
            total.add(code.load(a["offsets"], b.add(b.mul(chunk, step), bucket), I32))
        with code.range(0, rows) as k:
            found = code.load(counts, k, I32)
            code.store(total.get(), counts, k)
            code.store(total.get(), a["starts"], b.add(first, k))
            total.add(found)
        with b.if_then(b.icmp_signed("==", b.add(first, rows), a["rows"])):
            code.store(total.get(), a["starts"], a["rows"])

        def put(i: Value) -> None:
            row = runs.local(i)
            at = code.load(counts, row, I32)
            code.store(b.add(at, one), counts, row)
            code.store(runs.position(i), a["order"], b.zext(at, I64))

        _runs(code, a, runs, bucket, put)
    return address(code, plain_loops=True)
