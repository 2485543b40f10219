"""LLVM IR over partitioned updates: sums by bucket, and positions in the order of their rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

from pullback.runtime.cpu.indexing.checked import are_equal, ask, local_memory, unpacked
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record, Values
from pullback.runtime.cpu.llvm.values import I8, I16, I32, I64, Value
from pullback.runtime.cpu.scatter.partition_code import LOCAL_BYTES
from pullback.runtime.cpu.scatter.rows import add_row, add_to_one, start_rows
from pullback.runtime.cpu.scatter.sums import Sums, SumTable, each_piece

__all__ = ["sort_runs", "sum_runs"]

BYTE = I8


class Runs:
    """Updates in the order of their buckets: the numbers of their destinations, and their rows."""

    def __init__(self, code: Code, locals_: Value, rows: Value, row_bytes: int):
        self.code, self.locals, self.rows, self.row_bytes = code, locals_, rows, row_bytes

    def row(self, i: Value) -> Value:
        return self.code.at(self.rows, i * self.row_bytes, BYTE)

    def local(self, i: Value, count: int) -> list[Value]:
        return unpacked(self.code, I16, self.locals, i, count)

    def ask(self, i: Value, count: int) -> None:
        """Asks for the memory of `count` updates from `i` on."""
        ask(self.code, self.row(i), self.row_bytes * count)
        ask(self.code, self.code.at(self.locals, i, I16), LOCAL_BYTES * count)

    def position(self, i: Value) -> Value:
        """The row, where rows are positions."""
        return self.code.load(self.rows, i, I32)


TURN = 8  # updates of a run that are added in a turn
LONG = 2048  # updates of a run: twice its share of a chunk where buckets are fewest
SUMMED = Record("locals moved offsets x out", "rows shift buckets chunks chunk x_row")
SORTED = Record("locals moved offsets order starts", "rows shift buckets chunks chunk")
Body = Callable[[Value, int], None]


def _runs(
    code: Code,
    a: Values,
    runs: Runs,
    bucket: Value,
    body: Body,
    crowded: Body | None = None,
) -> None:
    """`body(i, count)` for the updates of a bucket, in the order of the updates.

    `crowded` in its place for turns of long runs, in which many may have one destination.
    """
    step = a["buckets"] + 1
    last = a["chunks"] - 1

    def span(chunk: Value) -> tuple[Value, Value]:
        own = code.at(a["offsets"], chunk * step + bucket, I32)
        base = chunk * a["chunk"]
        low, high = (code.load(own, k, I32).zext(I64) for k in range(2))
        return base + low, base + high

    with code.range(0, a["chunks"]) as chunk:
        # The hardware can't know where the next run is: it is asked for during this one.
        following, _ = span(code.minimum(chunk + 1, last))
        runs.ask(following, TURN)
        start, stop = span(chunk)
        length = stop - start
        turns = length // TURN

        def each_turn(body: Body) -> None:
            with code.range(0, turns) as turn:
                done = turn * TURN
                runs.ask(following + (done + TURN), TURN)
                body(start + done, TURN)

        if crowded is None:
            each_turn(body)
        else:
            long = code.unsigned(">", length, LONG)
            with code.either(long, likely=False) as (many, few):
                with many:
                    each_turn(crowded)
                with few:
                    each_turn(body)
        with code.range(start + turns * TURN, stop) as i:
            body(i, 1)


@lru_cache(jit.KEPT)
def sum_runs(sums: Sums, width: int, capacity: int) -> int:
    """A unit sums a bucket of `capacity` rows. Params: SUMMED."""
    code = kernel(IRModule(), "sum_runs")
    a = SUMMED.unpacked(code)
    elements = capacity * width
    table = SumTable(code, sums, local_memory(code, sums.wide, sums.parts * elements), elements)
    runs = Runs(code, a["locals"], a["moved"], width * sums.dtype.itemsize)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = bucket << a["shift"]
        rows = code.minimum(code.int(capacity), a["rows"] - first)
        start_rows(code, sums, a, table, first, rows, width)

        def add(i: Value, count: int) -> None:
            found = runs.local(i, count)
            if width == 1 and count > 1:
                values = sums.load(code, a["moved"], i, count)
                for k, local in enumerate(found):
                    table.add(local, code.lane(values, k))
                return
            for k, local in enumerate(found):
                to, row = local * width, runs.row(i + k)
                add_row(code, sums, table, to, row, code.int(0), width)

        def add_to_few(i: Value, count: int) -> None:
            """The same, but equal destinations in a row don't wait for each other's stores."""
            same = are_equal(code, I16, runs.locals, i, count)
            with code.either(same) as (equal, others):
                with equal:
                    (local,) = runs.local(i, 1)
                    rows = [runs.row(i + k) for k in range(count)]
                    add_to_one(code, sums, table, local * width, rows, width)
                with others:
                    add(i, count)

        _runs(code, a, runs, bucket, add, add_to_few)
        start = first * width

        def finish(at: Value, lanes: int) -> None:
            total = sums.finish(code, table.load(at, lanes))
            sums.store(code, total, a["out"], start + at)

        each_piece(code, sums, rows * width, finish)
    return address(code, plain_loops=True)


@cache
def sort_runs(capacity: int) -> int:
    """A unit puts the positions of a bucket of `capacity` rows in the order of their rows.

    Params: SORTED; the positions of each row begin at `starts`.
    """
    code = kernel(IRModule(), "sort_runs")
    a = SORTED.unpacked(code)
    runs = Runs(code, a["locals"], a["moved"], 4)
    counts = local_memory(code, I32, capacity)
    one = code.int(1, I32)
    with code.range(code.args[2], code.args[3]) as bucket:
        first = bucket << a["shift"]
        rows = code.minimum(code.int(capacity), a["rows"] - first)
        with code.range(0, rows) as k:
            code.store(code.int(0, I32), counts, k)

        def count(i: Value, several: int) -> None:
            for row in runs.local(i, several):
                code.store(code.load(counts, row, I32) + one, counts, row)

        _runs(code, a, runs, bucket, count)
        total = code.variable(code.int(0, I32))  # of all buckets before this one
        step = a["buckets"] + 1
        with code.range(0, a["chunks"]) as chunk:
            total.add(code.load(a["offsets"], chunk * step + bucket, I32))
        with code.range(0, rows) as k:
            found = code.load(counts, k, I32)
            code.store(total.get(), counts, k)
            code.store(total.get(), a["starts"], first + k)
            total.add(found)
        with code.when(code.equal(first + rows, a["rows"])):
            code.store(total.get(), a["starts"], a["rows"])

        def put(i: Value, several: int) -> None:
            for k, row in enumerate(runs.local(i, several)):
                at = code.load(counts, row, I32)
                code.store(at + one, counts, row)
                position = runs.position(i + k)
                code.store(position, a["order"], at.zext(I64))

        _runs(code, a, runs, bucket, put)
    return address(code, plain_loops=True)
