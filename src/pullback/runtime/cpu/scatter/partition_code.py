"""LLVM IR of the partition: updates, or their positions, brought near their destinations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import product
from typing import Any

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import (
    OwnParams,
    ask,
    chunk_bounds,
    local_memory,
    unpacked,
)
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import I32, I64, Code, Value, address, kernel
from pullback.runtime.cpu.scatter.numbers import (
    BLOCK,
    GROUP,
    CheckedNumbers,
    each_block,
    halves,
    in_order,
    spread,
)
from pullback.runtime.cpu.scatter.sums import vector_of

__all__ = ["LOCAL_BYTES", "move_rows", "partition", "plan_places"]

BYTE, I16 = ir.IntType(8), ir.IntType(16)
SLOTS = ("index", "updates", "locals", "moved", "offsets")
WORDS = ("count", "chunk", "rows", "shift", "buckets", "width", "code")
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
    fit in a cache. Words: WORDS.
    """
    code = kernel(ir.Module(), "partition")
    sorting = _Partition(code, index, number, bucket, row_bytes, chunk_rows, far)
    with code.range(code.args[2], code.args[3]) as chunk:
        sorting.sort(chunk)
    if far:
        code.b.fence("seq_cst")  # other threads read what is on its way to memory
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
        self.code, self.a = code, OwnParams(code, SLOTS, WORDS)
        self.index, self.row_bytes, self.chunk_rows = index, row_bytes, chunk_rows
        self.part = chunk_rows // LANES  # whole blocks
        payload = row_bytes or 4
        self.row = ir.IntType(8 * payload)
        staged = _Packed if payload in (1, 2, 4) else _Apart
        self.moved = staged(code, payload, chunk_rows, far)
        self.split = _Split(code, bucket, chunk_rows, self.a["shift"])
        self.checked = CheckedNumbers(code, self.a, index, number, self.split)
        self.cursors = local_memory(code, I32, code.b.mul(self.a["buckets"], code.int(LANES)))

    def sort(self, chunk: Value) -> None:
        code, a, b = self.code, self.a, self.code.b
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        length = b.sub(stop, start)
        with code.range(0, b.mul(a["buckets"], code.int(LANES))) as k:
            code.store(code.int(0, I32), self.cursors, k)

        def block(first: Value, count: int | Value) -> None:
            rows = code.at(a["updates"], b.mul(first, code.int(self.row_bytes)), BYTE)
            ask(code, rows, BLOCK * self.row_bytes)
            self.checked.block(first, count, b.sub(first, start))
            self._count(b.sub(first, start), count)  # while the next indices are on their way

        each_block(code, start, stop, block)
        offsets = code.at(a["offsets"], b.mul(chunk, b.add(a["buckets"], code.int(1))), I32)
        _start_buckets(code, self.cursors, a["buckets"], offsets)
        with b.if_else(b.icmp_signed("==", length, code.int(self.chunk_rows))) as (full, short):
            with full:
                self._move_all(start)
            with short, code.range(0, length) as i:
                (bucket,), (taken,) = self.split.of(i, 1), self._taken(start, i, 1)
                self.moved.store(self._next(bucket, b.udiv(i, code.int(self.part))), taken)
        self.moved.write(a["locals"], a["moved"], start, length)

    def _next(self, bucket: Value, lane: Value) -> Value:
        """Where the cursor of a bucket is, which moves on."""
        code, b = self.code, self.code.b
        at = b.add(b.mul(bucket, code.int(LANES)), lane)
        place = code.load(self.cursors, at, I32)
        code.store(b.add(place, code.int(1, I32)), self.cursors, at)
        return b.zext(place, I64)

    def _count(self, first: Value, count: int | Value) -> None:
        code, b = self.code, self.code.b
        turn = TURN if isinstance(count, int) else 1
        turns = code.int(count // turn) if isinstance(count, int) else count
        lane = b.udiv(first, code.int(self.part))
        with code.range(0, turns) as k:
            for bucket in self.split.of(b.add(first, b.mul(k, code.int(turn))), turn):
                self._next(bucket, lane)

    def _move_all(self, start: Value) -> None:
        """Moves all parts of a whole chunk, and asks for the indices of the chunk that follows."""
        code, b = self.code, self.code.b
        after, item = b.add(start, code.int(self.chunk_rows)), self.index.itemsize
        with code.range(0, self.part // TURN) as k:
            done = b.mul(k, code.int(TURN))
            ahead = b.mul(b.add(after, b.mul(done, code.int(LANES))), code.int(item))
            ask(code, code.at(self.a["index"], ahead, BYTE), LANES * TURN * item)
            firsts = [b.add(code.int(lane * self.part), done) for lane in range(LANES)]
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
        code, b = self.code, self.code.b
        at = b.add(start, first)
        if self.row_bytes:
            place = code.at(self.a["updates"], b.mul(at, code.int(self.row_bytes)), BYTE)
            return b.load(place, typ=vector_of(self.row, count), align=1)
        position = spread(code, b.trunc(at, I32), count)
        steps = list(range(count)) if count > 1 else 0
        return b.add(position, ir.Constant(position.type, steps))


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


class _Split:
    """Numbers of destinations as the bucket and the number in it, 16 bits, of a chunk."""

    together = 1

    def __init__(self, code: Code, bucket: DType, chunk_rows: int, shift: Value):
        self.code, self.shift = code, shift
        self.word = ir.IntType(8 * bucket.itemsize)
        self.buckets = local_memory(code, self.word, chunk_rows)
        self.locals = local_memory(code, I16, chunk_rows)

    def store(self, rows: CheckedNumbers, found: list[Value], target: Value, at: Value) -> None:
        """Stores numbers from the destination `target` + `at` of the chunk on."""
        code, b = self.code, self.code.b
        (row,) = found
        lanes = getattr(row.type, "count", 1)
        one = code.int(1)
        mask = b.sub(b.shl(one, self.shift), one)
        at = b.add(target, at)
        bucket = rows.narrowed(b.lshr(row, rows.all(self.shift, lanes)), self.word)
        b.store(bucket, code.at(self.buckets, at, self.word), align=1)
        local = rows.narrowed(b.and_(row, rows.all(mask, lanes)), I16)
        b.store(local, code.at(self.locals, at, I16), align=1)

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
        places = [code.b.add(first, code.int(k)) for k in range(turn)]
        return [(code.load(locals_, at, I16), rows(at, 1)) for at in places]

    def store(self, i: Value, taken: Any) -> None:
        code, (local, row) = self.code, taken
        code.store(local, self.locals, i)
        place = code.at(self.rows, code.b.mul(i, code.int(self.row_bytes)), BYTE)
        code.b.store(row, place, align=1)

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
            _put(code, value, code.at(target, k, vector), PIECE, self.far)
        with code.range(b.mul(pieces, code.int(PIECE)), nbytes) as k:
            code.store(code.load(source, k, BYTE), target, k)


class _Packed(_Apart):
    """The same with number and row in one word, so that a store does for both."""

    def __init__(self, code: Code, row_bytes: int, count: int, far: bool):
        self.code, self.row_bytes, self.far = code, row_bytes, far
        self.words = local_memory(code, I64, count)

    def taken(self, locals_: Value, rows: Rows, first: Value, turn: int) -> list[Value]:
        """Their words, which vectors make: loads are what a processor can do the fewest of."""
        code, b, wide = self.code, self.code.b, vector_of(I32, turn)
        place = code.at(locals_, first, I16)
        local = b.zext(b.load(place, typ=vector_of(I16, turn), align=2), wide)
        row = rows(first, turn)
        row = b.zext(row, wide) if self.row_bytes < 4 else row
        if turn == 1:
            return [b.or_(b.zext(local, I64), b.shl(b.zext(row, I64), code.int(32)))]
        order = [k for pair in zip(range(turn), range(turn, 2 * turn), strict=True) for k in pair]
        both = b.shuffle_vector(local, row, ir.Constant(ir.VectorType(I32, 2 * turn), order))
        words = b.bitcast(both, ir.VectorType(I64, turn))
        return [b.extract_element(words, code.int(k, I32)) for k in range(turn)]

    def store(self, i: Value, taken: Value) -> None:
        self.code.store(taken, self.words, i)

    def write(self, locals_: Value, rows: Value, start: Value, count: Value) -> None:
        code, b = self.code, self.code.b
        targets = ((locals_, I16), (rows, ir.IntType(8 * self.row_bytes)))

        def place(k: int, i: Value) -> Value:
            return code.at(targets[k][0], b.add(start, i), targets[k][1])

        groups = b.udiv(count, code.int(GROUP))
        with code.range(0, groups) as group:
            first = b.mul(group, code.int(GROUP))
            words = ir.VectorType(I32, 2 * GROUP)
            found = b.load(code.at(self.words, first, I64), typ=words, align=PIECE)
            for k, (left, (_, type_)) in enumerate(zip(halves(code, found), targets, strict=True)):
                value = left if type_ == I32 else b.trunc(left, ir.VectorType(type_, GROUP))
                size = GROUP * type_.width // 8
                _put(code, in_order(code, value), place(k, first), size, self.far)
        with code.range(b.mul(groups, code.int(GROUP)), count) as i:
            word = code.load(self.words, i, I64)
            for k, (_, type_) in enumerate(targets):
                own = b.trunc(b.lshr(word, code.int(32 * k)), type_)
                b.store(own, place(k, i), align=1)


def _put(code: Code, value: Value, place: Value, align: int, far: bool) -> None:
    """Stores a value; if `far`, around the caches, which then need not read the place."""
    stored = code.b.store(value, place, align=align)
    if far:
        once = code.module.add_metadata([code.int(1, I32)])
        stored.set_metadata("nontemporal", once)


@cache
def plan_places() -> int:
    """A unit says for a chunk of partitioned positions where in the chunk each comes from.

    Pointers: positions, places (of 16 bits). Words: updates, chunk.
    """
    code = kernel(ir.Module(), "plan_places")
    b = code.b
    a = OwnParams(code, ("positions", "places"), ("count", "chunk"))
    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        with code.range(start, stop) as k:
            position = b.sub(code.load(a["positions"], k, I32), b.trunc(start, I32))
            code.store(b.trunc(position, I16), a["places"], k)
    return address(code)


@lru_cache(jit.KEPT)
def move_rows(row_bytes: int, far: bool) -> int:
    """A unit brings a chunk of the updates in the order of a plan; `far` as in `partition`.

    Reads go anywhere in the chunk, which is asked for during the one before. Stores go in order:
    to places anywhere they would wait for one line after the other. Pointers: updates, places,
    rows. Words: updates, chunk.
    """
    code = kernel(ir.Module(), "move_rows")
    b, size = code.b, code.int(row_bytes)
    word = ir.VectorType(I64, 2) if row_bytes == 16 else ir.IntType(8 * row_bytes)
    around = far and row_bytes in (4, 8, 16)  # what processors have an instruction for
    a = OwnParams(code, ("updates", "places", "rows"), ("count", "chunk"))

    def move(own: Value, i: Value, count: int) -> None:
        for k, place in enumerate(unpacked(code, I16, a["places"], i, count)):
            row = b.load(code.at(own, b.mul(place, size), BYTE), typ=word, align=1)
            to = code.at(a["rows"], b.mul(b.add(i, code.int(k)), size), BYTE)
            _put(code, row, to, row_bytes if around else 1, around)

    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        own = code.at(a["updates"], b.mul(start, size), BYTE)
        following = code.at(own, b.mul(a["chunk"], size), BYTE)
        rounds = b.udiv(b.sub(stop, start), code.int(TURN))
        with code.range(0, rounds) as turn:
            done = b.mul(turn, code.int(TURN))
            first = b.add(start, done)
            ask(code, code.at(following, b.mul(done, size), BYTE), TURN * row_bytes)
            ask(code, code.at(a["places"], b.add(first, code.int(AHEAD)), I16), TURN * LOCAL_BYTES)
            move(own, first, TURN)
        with code.range(b.add(start, b.mul(rounds, code.int(TURN))), stop) as i:
            move(own, i, 1)
    if around:
        b.fence("seq_cst")
    return address(code, plain_loops=True)
