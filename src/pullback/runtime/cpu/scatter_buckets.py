"""LLVM IR of the partition: updates, or their positions, brought near their destinations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I32, I64, PTR, Code, Value, address, kernel
from pullback.runtime.cpu.scatter_rows import (
    LINE,
    Arguments,
    Indices,
    add_row,
    chunk_bounds,
    local_memory,
    prefetch,
    start_rows,
)
from pullback.runtime.cpu.scatter_sums import Sums, Table, each_piece

__all__ = ["LOCAL_BYTES", "move_rows", "partition", "plan_slots", "sort_runs", "sum_runs"]

BYTE, I16 = ir.IntType(8), ir.IntType(16)
PARTITION_SLOTS = ("index", "updates", "records", "offsets")
UNROLLED = 8
LANES = 4  # parts of a chunk that are sorted side by side: equal buckets in a row wait less
LOCAL_BYTES = 4  # of a record: the number of the destination in its bucket; then comes the payload


class Record:
    """An update with its destination, as the partition writes it."""

    def __init__(self, code: Code, pointer: Value, row_bytes: int):
        self.code, self.pointer, self.row_bytes = code, pointer, row_bytes
        self.nbytes = LOCAL_BYTES + row_bytes
        self.payload_type = ir.IntType(8 * row_bytes)

    def at(self, i: Value, offset: int = 0) -> Value:
        place = self.code.b.add(
            self.code.b.mul(i, self.code.int(self.nbytes)), self.code.int(offset)
        )
        return self.code.at(self.pointer, place, BYTE)

    def payload(self, i: Value) -> Value:
        return self.at(i, LOCAL_BYTES)

    def local(self, i: Value) -> Value:
        return self.code.b.zext(self.code.b.load(self.at(i), typ=I32, align=1), I64)

    def store(self, i: Value, local: Value, payload: Value) -> None:
        b = self.code.b
        prefetch(self.code, self.at(i, LINE), write=True)
        if self.row_bytes == LOCAL_BYTES:  # one store instead of two
            high = b.shl(b.zext(payload, I64), self.code.int(8 * LOCAL_BYTES))
            b.store(b.or_(high, local), self.at(i), align=1)
            return
        b.store(b.trunc(local, I32), self.at(i), align=1)
        b.store(payload, self.payload(i), align=1)


class Planned:
    """The same in two arrays: numbers of 16 bits, which a plan has, and rows of the updates."""

    def __init__(self, code: Code, locals_: Value, rows: Value, row_bytes: int):
        self.code, self.locals, self.rows, self.row_bytes = code, locals_, rows, row_bytes

    def at(self, i: Value, offset: int = 0) -> Value:
        place = self.code.b.mul(i, self.code.int(self.row_bytes))
        return self.code.at(self.rows, self.code.b.add(place, self.code.int(offset)), BYTE)

    def payload(self, i: Value) -> Value:
        return self.at(i)

    def local(self, i: Value) -> Value:
        return self.code.b.zext(self.code.load(self.locals, i, I16), I64)


@cache
def partition(index: DType, row_bytes: int) -> int:
    """A unit sorts a chunk of the updates, stably, by bucket: a range of 2**shift destinations.

    A record holds the number of the destination in its bucket and the row of the updates or, if
    `row_bytes` is 0, its position (32 bits). `offsets` says where in the chunk each bucket starts.
    Words: updates, chunk, rows, shift, buckets, width, first code.
    """
    module = ir.Module()
    report = _report(module, index)
    code = kernel(module, "partition")
    b = code.b
    words = ("count", "chunk", "rows", "shift", "buckets", "width", "code")
    a = Arguments(code, PARTITION_SLOTS, words)
    rows, shift, buckets = a["rows"], a["shift"], a["buckets"]
    indices = Indices(code, index, a["index"], rows, a["width"])
    cursors = local_memory(code, I32, b.mul(buckets, code.int(LANES)))
    payload_type = ir.IntType(8 * row_bytes) if row_bytes else I32
    one = code.int(1, I32)

    def cursor(row: Value, lane: int) -> Value:
        bucket = b.lshr(row, shift)
        return code.at(cursors, b.add(b.mul(bucket, code.int(LANES)), code.int(lane)), I32)

    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        with code.range(0, b.mul(buckets, code.int(LANES))) as k:
            code.store(code.int(0, I32), cursors, k)

        def count(i: Value, lane: int) -> None:
            row = indices.wrapped(indices.given(i))
            with b.if_then(b.icmp_unsigned(">=", row, rows), likely=False):
                found = (a["index"], start, stop, rows, a["width"], a["code"], code.args[4])
                b.call(report, found)
                b.ret_void()
            at = cursor(row, lane)
            b.store(b.add(b.load(at, typ=I32), one), at)

        _in_lanes(code, start, stop, count)
        offsets = code.at(a["offsets"], b.mul(chunk, b.add(buckets, code.int(1))), I32)
        total = code.variable(code.int(0, I32))
        with code.range(0, buckets) as k:
            code.store(total.get(), offsets, k)
            for lane in range(LANES):
                at = b.add(b.mul(k, code.int(LANES)), code.int(lane))
                found = code.load(cursors, at, I32)
                code.store(total.get(), cursors, at)
                total.add(found)
        code.store(total.get(), offsets, buckets)
        nbytes = LOCAL_BYTES + payload_type.width // 8
        own = code.at(a["records"], b.mul(start, code.int(nbytes)), BYTE)
        record = Record(code, own, payload_type.width // 8)
        mask = b.sub(b.shl(code.int(1), shift), code.int(1))

        def move(i: Value, lane: int) -> None:
            row = indices.wrapped(indices.given(i))
            at = cursor(row, lane)
            to = b.load(at, typ=I32)
            b.store(b.add(to, one), at)
            if row_bytes:
                source = code.at(a["updates"], b.mul(i, code.int(row_bytes)), BYTE)
                payload = b.load(source, typ=payload_type, align=1)
            else:
                payload = b.trunc(i, I32)
            record.store(b.zext(to, I64), b.and_(row, mask), payload)

        _in_lanes(code, start, stop, move)
    return address(code, plain_loops=True)


def _in_lanes(code: Code, start: Value, stop: Value, body: Callable[[Value, int], None]) -> None:
    """`body(i, lane)` for [start, stop), cut in LANES parts that are walked side by side."""
    b = code.b
    part = b.udiv(b.sub(stop, start), code.int(LANES))
    with code.range(0, part) as k:
        for lane in range(LANES):
            body(b.add(b.add(start, b.mul(part, code.int(lane))), k), lane)
    with code.range(b.add(start, b.mul(part, code.int(LANES))), stop) as i:
        body(i, LANES - 1)


def _report(module: ir.Module, index: DType) -> ir.Function:
    """A function that finds the first bad index of a span and sets the error word."""
    code = Code(module, "report", (PTR, I64, I64, I64, I64, I64, PTR))
    pointer, start, stop, rows, width, first, error = code.args
    indices = Indices(code, index, pointer, rows, width)
    with code.range(start, stop) as i:
        given = indices.given(i)
        indices.check(indices.wrapped(given), rows, given, i, first, error)
    code.function.attributes.add("noinline")
    return code.internal()


@cache
def plan_slots() -> int:
    """A unit says for a chunk of partitioned positions where in the chunk each has come to.

    Pointers: records, slots, locals (both of 16 bits). Words: updates, chunk.
    """
    code = kernel(ir.Module(), "plan_slots")
    b = code.b
    a = Arguments(code, ("records", "slots", "locals"), ("count", "chunk"))
    record = Record(code, a["records"], 4)
    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        with code.range(start, stop) as k:
            position = b.zext(b.load(record.payload(k), typ=I32, align=1), I64)
            code.store(b.trunc(b.sub(k, start), I16), a["slots"], position)
            code.store(b.trunc(record.local(k), I16), a["locals"], k)
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


RUNS_SLOTS = ("records", "offsets")
FIRST_LINES = 8  # of a run of records, asked for during the run before
RUNS_WORDS = ("rows", "shift", "buckets", "chunks", "chunk")


def _runs(
    code: Code,
    a: Arguments,
    record: Record | Planned,
    bucket: Value,
    body: Callable[[Value], None],
) -> None:
    """`body(i)` for the records of a bucket, in the order of the updates."""
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
            prefetch(code, record.at(next_start, line * LINE))
        start, stop = span(chunk)
        with code.range(start, stop) as i:
            body(i)


@cache
def sum_runs(dtype: DType, width: int, capacity: int, planned: bool) -> int:
    """A unit sums a bucket of `capacity` rows; words: RUNS_WORDS, x's step.

    Pointers: those of the runs, x, out; `planned`: in place of the records locals and moved rows.
    """
    code = kernel(ir.Module(), "sum_runs")
    b, sums = code.b, Sums(dtype)
    slots = ("locals", "moved", "offsets") if planned else RUNS_SLOTS
    a = Arguments(code, (*slots, "x", "out"), (*RUNS_WORDS, "x_row"))
    elements = capacity * width
    table = Table(code, sums, local_memory(code, sums.wide, sums.parts * elements), elements)
    row_bytes = width * dtype.itemsize
    if planned:
        record = Planned(code, a["locals"], a["moved"], row_bytes)
    else:
        record = Record(code, a["records"], row_bytes)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = b.shl(bucket, a["shift"])
        rows = code.minimum(code.int(capacity), b.sub(a["rows"], first))
        start_rows(code, sums, a, table, first, rows, width)

        def add(i: Value) -> None:
            to = b.mul(record.local(i), code.int(width))
            add_row(code, sums, table, to, record.payload(i), code.int(0), width)

        _runs(code, a, record, bucket, add)
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
    record = Record(code, a["records"], 4)
    counts = local_memory(code, I32, capacity)
    one = code.int(1, I32)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = b.shl(bucket, a["shift"])
        rows = code.minimum(code.int(capacity), b.sub(a["rows"], first))
        with code.range(0, rows) as k:
            code.store(code.int(0, I32), counts, k)

        def count(i: Value) -> None:
            row = record.local(i)
            code.store(b.add(code.load(counts, row, I32), one), counts, row)

        _runs(code, a, record, bucket, count)
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
            row = record.local(i)
            at = code.load(counts, row, I32)
            code.store(b.add(at, one), counts, row)
            position = b.load(record.payload(i), typ=I32, align=1)
            code.store(position, a["order"], b.zext(at, I64))

        _runs(code, a, record, bucket, put)
    return address(code, plain_loops=True)
