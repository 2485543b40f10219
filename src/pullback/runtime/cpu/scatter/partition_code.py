"""LLVM IR of the partition: updates, or their positions, brought near their destinations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import product
from typing import Any

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import (
    ask,
    chunk_bounds,
    local_memory,
    unpacked,
)
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I8, I16, I32, I64, Value, constant, integer, vector
from pullback.runtime.cpu.scatter.numbers import (
    BLOCK,
    GROUP,
    CheckedNumbers,
    each_block,
    halves,
    in_order,
)

__all__ = ["LOCAL_BYTES", "move_rows", "partition", "plan_places"]

BYTE = I8
PARTITION = Record(
    "index updates locals moved offsets", "count chunk rows shift buckets width code"
)
PLACES = Record("positions places", "count chunk")
MOVED = Record("updates places rows", "count chunk")
TURN = 8  # updates that are loaded together, so that cache misses overlap
LANES = 2  # parts of a chunk that are sorted side by side: equal buckets in a row wait less
PIECE = 32  # bytes that are written at once
LOCAL_BYTES = 2  # of the number of a destination in its bucket, or of an update in its chunk
AHEAD = 1024  # updates by which a plan is asked for before it is needed


@lru_cache(jit.KEPT)
def partition(
    index: DType, number: DType, bucket: DType, row_bytes: int, chunk_rows: int, far: bool
) -> int:
    """A unit sorts a chunk of the updates, stably, by bucket: a range of 2**shift destinations.

    `locals` are the numbers of the destinations in their buckets, `moved` the rows of updates or,
    if `row_bytes` is 0, their positions (32 bits). `offsets` says where in the chunk each bucket
    starts. `number` and `bucket` are dtypes for all destinations and buckets; `far`: results don't
    fit in a cache. Params: PARTITION.
    """
    code = kernel(IRModule(), "partition")
    sorting = _Partition(code, index, number, bucket, row_bytes, chunk_rows, far)
    with code.range(code.args[2], code.args[3]) as chunk:
        sorting.sort(chunk)
    if far:
        code.fence()  # other threads read what is on its way to memory
    return address(code, plain_loops=True)


class _Partition:
    """The steps of sorting a chunk, in parts: element i belongs to part i // `part`."""

    def __init__(
        self,
        code: Code,
        index: DType,
        number: DType,
        bucket: DType,
        row_bytes: int,
        chunk_rows: int,
        far: bool,
    ):
        self.code, self.a = code, PARTITION.unpacked(code)
        self.index, self.row_bytes, self.chunk_rows = index, row_bytes, chunk_rows
        self.part = chunk_rows // LANES  # whole blocks
        payload = row_bytes or 4
        self.row = integer(8 * payload)
        staged = _Packed if payload in (1, 2, 4) else _Apart
        self.moved = staged(code, payload, chunk_rows, far)
        self.split = _Split(code, bucket, chunk_rows, self.a["shift"])
        self.checked = CheckedNumbers(code, self.a, index, number, self.split)
        self.cursors = local_memory(code, I32, self.a["buckets"] * LANES)

    def sort(self, chunk: Value) -> None:
        code, a = self.code, self.a
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        length = stop - start
        with code.range(0, a["buckets"] * LANES) as k:
            code.store(code.int(0, I32), self.cursors, k)

        def block(first: Value, count: int | Value) -> None:
            rows = code.at(a["updates"], first * self.row_bytes, BYTE)
            ask(code, rows, BLOCK * self.row_bytes)
            self.checked.block(first, count, first - start)
            self._count(first - start, count)  # while the next indices are on their way

        each_block(code, start, stop, block)
        offsets = code.at(a["offsets"], chunk * (a["buckets"] + 1), I32)
        _start_buckets(code, self.cursors, a["buckets"], offsets)
        with code.either(code.equal(length, self.chunk_rows)) as (full, short):
            with full:
                self._move_all(start)
            with short, code.range(0, length) as i:
                (bucket,), (taken,) = self.split.of(i, 1), self._taken(start, i, 1)
                self.moved.store(self._next(bucket, i // self.part), taken)
        self.moved.write(a["locals"], a["moved"], start, length)

    def _next(self, bucket: Value, lane: Value) -> Value:
        """Where the cursor of a bucket is, which moves on."""
        code = self.code
        at = bucket * LANES + lane
        place = code.load(self.cursors, at, I32)
        code.store(place + 1, self.cursors, at)
        return place.zext(I64)

    def _count(self, first: Value, count: int | Value) -> None:
        code = self.code
        turn = TURN if isinstance(count, int) else 1
        turns = code.int(count // turn) if isinstance(count, int) else count
        lane = first // self.part
        with code.range(0, turns) as k:
            for bucket in self.split.of(first + k * turn, turn):
                self._next(bucket, lane)

    def _move_all(self, start: Value) -> None:
        """Moves all parts of a whole chunk, and asks for the indices of the chunk that follows."""
        code = self.code
        after, item = start + self.chunk_rows, self.index.itemsize
        with code.range(0, self.part // TURN) as k:
            done = k * TURN
            ahead = (after + done * LANES) * item
            ask(code, code.at(self.a["index"], ahead, BYTE), LANES * TURN * item)
            firsts = [lane * self.part + done for lane in range(LANES)]
            taken = [self._taken(start, first, TURN) for first in firsts]
            found = [self.split.of(first, TURN) for first in firsts]
            for step, lane in product(range(TURN), range(LANES)):
                place = self._next(found[lane][step], code.int(lane))
                self.moved.store(place, taken[lane][step])

    def _taken(self, start: Value, first: Value, count: int) -> list[Any]:
        return self.moved.taken(
            self.split.locals, lambda at, n: self._rows(start, at, n), first, count
        )

    def _rows(self, start: Value, first: Value, count: int) -> Value:
        """Rows of the updates, or positions, as integers."""
        code = self.code
        at = start + first
        if self.row_bytes:
            place = code.at(self.a["updates"], at * self.row_bytes, BYTE)
            return code.read(place, vector(self.row, count), 1)
        position = code.spread(at.trunc(I32), count)
        steps = list(range(count)) if count > 1 else 0
        return position + constant(position.type, steps)


def _start_buckets(code: Code, cursors: Value, buckets: Value, offsets: Value) -> None:
    """Turns the counts of all lanes into where each starts, and stores the starts of buckets."""
    total = code.variable(code.int(0, I32))
    with code.range(0, buckets) as k:
        code.store(total.get(), offsets, k)
        for lane in range(LANES):
            at = k * LANES + lane
            found = code.load(cursors, at, I32)
            code.store(total.get(), cursors, at)
            total.add(found)
    code.store(total.get(), offsets, buckets)


class _Split:
    """Numbers of destinations as the bucket and the number in it, 16 bits, of a chunk."""

    together = 1

    def __init__(self, code: Code, bucket: DType, chunk_rows: int, shift: Value):
        self.code, self.shift = code, shift
        self.word = integer(8 * bucket.itemsize)
        self.buckets = local_memory(code, self.word, chunk_rows)
        self.locals = local_memory(code, I16, chunk_rows)

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        """Stores numbers from the destination `target` + `at` of the chunk on."""
        code = self.code
        (row,) = found
        lanes = row.type.count
        one = code.int(1)
        mask = (one << self.shift) - one
        at = target + at
        bucket = rows.narrowed(row >> rows.all(self.shift, lanes), self.word)
        code.write(bucket, code.at(self.buckets, at, self.word), 1)
        local = rows.narrowed(row & rows.all(mask, lanes), I16)
        code.write(local, code.at(self.locals, at, I16), 1)

    def of(self, i: Value, count: int) -> list[Value]:
        """The buckets of updates from `i` on."""
        return unpacked(self.code, self.word, self.buckets, i, count)


Rows = Callable[[Value, int], Value]  # so many rows from one on, as integers


class _Apart:
    """The sorted updates of a chunk, in the cache: numbers and rows in two arrays."""

    def __init__(self, code: Code, row_bytes: int, count: int, far: bool):
        self.code, self.row_bytes, self.far = code, row_bytes, far
        self.locals = local_memory(code, I16, count)
        self.rows = local_memory(code, BYTE, row_bytes * count)

    def taken(self, locals_: Value, rows: Rows, first: Value, turn: int) -> list[Any]:
        """What `store` wants to know of the updates from `first` on."""
        code = self.code
        places = [first + k for k in range(turn)]
        return [(code.load(locals_, at, I16), rows(at, 1)) for at in places]

    def store(self, i: Value, taken: Any) -> None:
        code, (local, row) = self.code, taken
        code.store(local, self.locals, i)
        place = code.at(self.rows, i * self.row_bytes, BYTE)
        code.write(row, place, 1)

    def write(self, locals_: Value, rows: Value, start: Value, count: Value) -> None:
        """Puts them where they belong, from element `start` on."""
        self._copy(self.locals, locals_, start, count, LOCAL_BYTES)
        self._copy(self.rows, rows, start, count, self.row_bytes)

    def _copy(self, source: Value, target: Value, start: Value, count: Value, size: int) -> None:
        code, piece = self.code, vector(BYTE, PIECE)
        target = code.at(target, start * size, BYTE)
        nbytes = count * size
        pieces = nbytes // PIECE
        with code.range(0, pieces) as k:
            value = code.read(code.at(source, k, piece), piece, PIECE)
            _put(code, value, code.at(target, k, piece), PIECE, self.far)
        with code.range(pieces * PIECE, nbytes) as k:
            code.store(code.load(source, k, BYTE), target, k)


class _Packed(_Apart):
    """The same with number and row in one word, so that a store does for both."""

    def __init__(self, code: Code, row_bytes: int, count: int, far: bool):
        self.code, self.row_bytes, self.far = code, row_bytes, far
        self.words = local_memory(code, I64, count)

    def taken(self, locals_: Value, rows: Rows, first: Value, turn: int) -> list[Value]:
        """Their words, which vectors make: loads are what a processor can do the fewest of."""
        code, wide = self.code, vector(I32, turn)
        place = code.at(locals_, first, I16)
        local = code.read(place, vector(I16, turn), 2).zext(wide)
        row = rows(first, turn)
        row = row.zext(wide) if self.row_bytes < 4 else row
        if turn == 1:
            return [local.zext(I64) | (row.zext(I64) << 32)]
        order = [k for pair in zip(range(turn), range(turn, 2 * turn), strict=True) for k in pair]
        both = code.shuffled(local, row, order)
        words = both.bitcast(vector(I64, turn))
        return [code.lane(words, k) for k in range(turn)]

    def store(self, i: Value, taken: Value) -> None:
        self.code.store(taken, self.words, i)

    def write(self, locals_: Value, rows: Value, start: Value, count: Value) -> None:
        code = self.code
        targets = ((locals_, I16), (rows, integer(8 * self.row_bytes)))

        def place(k: int, i: Value) -> Value:
            return code.at(targets[k][0], start + i, targets[k][1])

        groups = count // GROUP
        with code.range(0, groups) as group:
            first = group * GROUP
            words = vector(I32, 2 * GROUP)
            found = code.read(code.at(self.words, first, I64), words, PIECE)
            for k, (left, (_, type_)) in enumerate(zip(halves(code, found), targets, strict=True)):
                value = left if type_ == I32 else left.trunc(vector(type_, GROUP))
                size = GROUP * type_.width // 8
                _put(code, in_order(code, value), place(k, first), size, self.far)
        with code.range(groups * GROUP, count) as i:
            word = code.load(self.words, i, I64)
            for k, (_, type_) in enumerate(targets):
                own = (word >> (32 * k)).trunc(type_)
                code.write(own, place(k, i), 1)


def _put(code: Code, value: Value, place: Value, align: int, far: bool) -> None:
    """Stores a value; if `far`, around the caches, which then need not read the place."""
    code.write(value, place, align, far)


@cache
def plan_places() -> int:
    """A unit says for a chunk of partitioned positions where in the chunk each comes from.

    Params: PLACES; places have 16 bits.
    """
    code = kernel(IRModule(), "plan_places")
    a = PLACES.unpacked(code)
    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        with code.range(start, stop) as k:
            position = code.load(a["positions"], k, I32) - start.trunc(I32)
            code.store(position.trunc(I16), a["places"], k)
    return address(code)


@lru_cache(jit.KEPT)
def move_rows(row_bytes: int, far: bool) -> int:
    """A unit brings a chunk of the updates in the order of a plan; `far` as in `partition`.

    Reads go anywhere in the chunk, which is asked for during the one before. Stores go in order:
    to places anywhere they would wait for one line after the other. Params: MOVED.
    """
    code = kernel(IRModule(), "move_rows")
    size = code.int(row_bytes)
    word = vector(I64, 2) if row_bytes == 16 else integer(8 * row_bytes)
    around = far and row_bytes in (4, 8, 16)  # what processors have an instruction for
    a = MOVED.unpacked(code)

    def move(own: Value, i: Value, count: int) -> None:
        for k, place in enumerate(unpacked(code, I16, a["places"], i, count)):
            row = code.read(code.at(own, place * size, BYTE), word, 1)
            to = code.at(a["rows"], (i + k) * size, BYTE)
            _put(code, row, to, row_bytes if around else 1, around)

    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        own = code.at(a["updates"], start * size, BYTE)
        following = code.at(own, a["chunk"] * size, BYTE)
        rounds = (stop - start) // TURN
        with code.range(0, rounds) as turn:
            done = turn * TURN
            first = start + done
            ask(code, code.at(following, done * size, BYTE), TURN * row_bytes)
            ask(code, code.at(a["places"], first + AHEAD, I16), TURN * LOCAL_BYTES)
            move(own, first, TURN)
        with code.range(start + rounds * TURN, stop) as i:
            move(own, i, 1)
    if around:
        code.fence()
    return address(code, plain_loops=True)
