"""Products whose right operand has its columns side by side, in blocks that stay in registers.

A block is some rows and some vectors of columns of the output; k runs in order (`order.product`),
so the sum of an element does not depend on its neighbours, nor on the block that it is made in.
Blocks at the end of rows and columns may therefore overlap others, and few kinds of them make every
shape. Each kind is compiled once, for all shapes; the params of a product say which blocks lie
where.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import index
from typing import Any

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.gemm.transpose_code import turned
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Params, Record, numbers_of
from pullback.runtime.cpu.llvm.vectors import Vectors, lanes_of
from pullback.runtime.cpu.llvm.writer import Function, IRModule, literal

__all__ = ["direct_kernel", "direct_params", "part_lengths", "task_rows", "turned_pitch"]
__tuning__ = ("_BY_VECTORS", "_PADDED", "_SUMS")

# Strides are in bytes, but `b_column`. Then come RULES, then the batch, then what rules refer to.
DIRECT = Record("a b out", "m k a_row a_column b_row out_row n b_column")
# What follows: for each number of rows left the height of a block, how far it begins before them,
# and where its table is; the batch; tables, with how many segments of columns there are, and of
# each the code and its first byte.
RULE = Record("", "table height back")
SEGMENT = Record("", "code column panels")
_BLOCK = (("ptr", "%a"), ("ptr", "%b"), ("ptr", "%out"), ("i64", "%panels"), ("ptr", "%params"))
BLOCKS = 24  # rows that are a whole number of the highest blocks
_SUMS = 8  # in registers at least: so many are on their way at a time
_PADDED = 2  # times the elements of a matrix, at most, are worth a copy by vectors
# Smaller matrices come from memory anyway, element by element.
_BY_VECTORS = 1024  # elements from which on a copy by vectors is faster
# A rule is for a number of rows that are left; the last one is for all larger numbers.
RULES = 12  # one for each number of rows below that, one for all others


def _heights() -> tuple[int, ...]:
    return (8, 4, 2, 1) if jit.host().vector_bits == 512 else (6, 4, 2, 1)


def _chosen(lengths: Sequence[int]) -> Sequence[tuple[int, int]]:
    """The height of the next block and how far it reaches back, by the rows that are left.

    `lengths` are the numbers of rows that are made at a time; none if it may be any.
    """
    heights = _heights()
    # All that have more rows than the highest block are alike.
    return _rules(index(min((heights[0], *lengths))) if lengths else 1, heights)


@functools.cache
def _rules(least: int, heights: tuple[int, ...]) -> Sequence[tuple[int, int]]:
    """The rules for at least so many rows at a time, of blocks of these heights."""
    heights = tuple(h for h in heights if h >= 4 or least < 4)
    rules, costs = [(0, 0)], [0]
    for left in range(1, RULES):
        options = [(h + 1 + costs[left - h], h, 0) for h in heights if h <= left]
        options += [(h + 1, h, h - left) for h in heights if left < h <= least]
        cost, height, back = min(options)
        costs.append(cost)
        rules.append((height, back))
    rules[-1] = (heights[0], 0)
    return rules


def task_rows(rows: int, tasks: int, threads: int) -> int:
    """Rows of a task, in whole blocks: about so many tasks, and as many for each thread."""
    if tasks > threads:
        tasks -= tasks % threads
    whole = -(-rows // (max(1, tasks) * BLOCKS)) * BLOCKS
    return min(rows, whole)


def part_lengths(m: int, rows: int, grain: int) -> tuple[int, ...]:
    """How many rows of a matrix of m rows a task makes; none if that varies too much to tell."""
    if rows <= grain or grain % m == 0:
        return (m,)
    if rows == m or m % grain == 0:
        return (grain, m % grain) if m % grain else (grain,)
    return ()


def _reached(rules: Sequence[tuple[int, int]], lengths: Sequence[int]) -> set[int]:
    """The heights that are used for these numbers of rows."""
    if not lengths:
        return {height for height, _ in rules[1:]}
    found = set()
    most, _ = rules[-1]
    for left in lengths:
        if left >= RULES:  # as many of the highest blocks as leave fewer rows than that
            found.add(most)
            left -= (left - RULES) // most * most + most
        rest = index(left)
        while rest > 0:
            height, back = rules[min(rest, RULES - 1)]
            found.add(height)
            rest -= height - back
    return found


def _segments(dtype: DType, height: int, n: int, long: bool = False) -> list[tuple[Any, int, int]]:
    """Which blocks make some rows of n columns: their code, the first column, how many there are.

    Of the columns that are left over, one more block makes some again.
    """
    lanes = lanes_of(dtype)
    if n < lanes or lanes < n < 2 * lanes:
        columns = index(n)
        return [(_block(dtype, height, -(-columns // lanes), columns, long=long), 0, 1)]
    if n % lanes == 0 and n // lanes * height <= _SUMS:  # a few rows wait for sums, not for units
        return [(_block(dtype, height, index(n // lanes), long=long), 0, 1)]
    vectors = 1
    while 2 * vectors * lanes <= n and 2 * vectors * height <= max(_SUMS, 2 * height):
        vectors *= 2
    panels, rest = divmod(n, vectors * lanes)
    found = [(_block(dtype, height, vectors, long=long), 0, panels)]
    if rest:
        last = 1
        while last * lanes < rest:
            last *= 2
        found.append((_block(dtype, height, last, long=long), n - last * lanes, 1))
    return found


def direct_params(
    dtype: DType,
    slots: Sequence[int],
    sizes: tuple[int, int, int],
    strides: tuple[int, int, int, int],
    batch: Sequence[int],
    lengths: Sequence[int] = (),
) -> tuple[Any, ...]:
    """The params of `direct_kernel`.

    `slots` are those of a, b and the output, `sizes` m, n and k; `strides` are those of a's rows,
    of its columns, of b's rows and of its columns, in elements. `batch` are `builder.index_params`
    of a and b, in bytes. For `lengths` see `_chosen`.
    """
    (a, b, out), (m, n, k), size = slots, sizes, dtype.itemsize
    a_row, a_column, b_row, b_column = strides
    record = DIRECT.packed(
        a=a, b=b, out=out, m=m, n=n, k=k,
        a_row=a_row * size, a_column=a_column * size, b_row=b_row * size, b_column=b_column,
        out_row=n * size,
    )  # fmt: skip
    return (*record, *_blocks_of(dtype, n, k, tuple(batch), tuple(lengths)))


def _blocks_of(
    dtype: DType, n: int, k: int, batch: tuple[int, ...], lengths: tuple[int, ...]
) -> tuple[Any, ...]:
    """The params after the record: which blocks lie where."""
    size, rules = dtype.itemsize, _chosen(lengths)
    at = len(DIRECT) + len(RULE) * RULES + len(batch)
    places, tables = {}, []
    for height in sorted(_reached(rules, lengths)):
        places[height] = at + len(tables)
        segments = _segments(dtype, height, n, k > CHUNK)
        tables.append(len(segments))
        for code, column, panels in segments:
            tables += SEGMENT.packed(code=code, column=column * size, panels=panels)
    words: list[Any] = []
    for height, back in rules:
        words += RULE.packed(table=places.get(height, 0), height=height, back=back)
    return (*words, *batch, *tables)


def turned_pitch(dtype: DType, n: int, k: int) -> tuple[int, bool]:
    """How far apart the rows lie that `direct_kernel` copies, and whether it copies by vectors."""
    lanes = lanes_of(dtype)
    pitch, height = (-(-extent // lanes) * lanes for extent in (n, k))
    by_vectors = pitch * height <= _PADDED * n * k and n * k >= _BY_VECTORS
    return pitch if by_vectors else n, by_vectors


@functools.cache
def direct_kernel(turn: DType | None = None, by_vectors: bool = False) -> int:
    """A kernel over the rows of all matrices of a batch; its params are `direct_params`.

    With `turn`, the dtype, the columns of b are dense: of each matrix that it comes to the kernel
    copies b to rows that are dense, `by_vectors` or one element after the other.
    """
    module = IRModule()
    f = Function(module, "@kernel")
    p = BatchParams(f, DIRECT, len(RULE) * RULES)
    a, b, out = p.pointers
    turning = None if turn is None else _TurnedCopies(f, p, turn, by_vectors)
    with p.parts() as part:
        end = f.add(part.row, part.rows)
        columns = f.offset(b, part.b)
        if turning is not None:
            columns = turning.copied(columns)
        with f.loop(part.row, end) as block:
            left = f.minimum(f.sub(end, block.i), str(RULES - 1))
            number = f.add(f.mul(left, str(len(RULE))), str(len(DIRECT)))
            rule = Params(f, RULE, f.element("%params", "i64", number))
            table, height, back = rule["table"], rule["height"], rule["back"]
            row = f.sub(block.i, back)
            lines = f.offset(a, f.add(part.a, f.mul(row, p["a_row"])))
            target = f.add(f.mul(part.item, p["m"]), row)
            target = f.offset(out, f.mul(target, p["out_row"]))
            segments = f.element("%params", "i64", table)
            with f.loop("0", f.int_at(segments, 0)) as s:
                number = f.add(f.mul(s.i, str(len(SEGMENT))), "1")
                segment = Params(f, SEGMENT, f.element(segments, "i64", number))
                code = segment.address("code")
                column, panels = segment["column"], segment["panels"]
                passed = (lines, f.offset(columns, column), f.offset(target, column), panels)
                _call(f, code, (*passed, "%params"))
            block.step = f.sub(height, back)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _TurnedCopies:
    """Copies of matrices of which the columns are dense, in memory of the thread's own."""

    def __init__(self, f: Function, p: BatchParams, dtype: DType, by_vectors: bool):
        self.f, self.p, self.v, self.by_vectors = f, p, Vectors(f, dtype), by_vectors
        height = f.add(p["k"], str(self.v.lanes)) if by_vectors else p["k"]
        self.copy = f(f"alloca i8, i64 {f.mul(height, p['b_row'])}, align 64")

    def copied(self, source: str) -> str:
        f, p, v = self.f, self.p, self.v
        k, n, stride = p["k"], p["n"], p["b_column"]
        pitch = f(f"udiv i64 {p['b_row']}, {v.size}")
        if self.by_vectors:
            turned(v, source, self.copy, k, n, stride, pitch)
            return self.copy
        with f.loop("0", n) as j, f.loop("0", k) as i:
            value = f(f"load {v.scalar}, ptr {v.at(source, f.add(f.mul(j.i, stride), i.i))}")
            f.do(f"store {v.scalar} {value}, ptr {v.at(self.copy, f.add(f.mul(i.i, pitch), j.i))}")
        return self.copy


def _call(f: Function, code: str, values: Sequence[str]) -> None:
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(_BLOCK, values, strict=True))
    f.do(f"call void {code}({passed})")


@functools.cache
def _block(dtype: DType, rows: int, vectors: int, columns: int = 0, long: bool = False) -> Any:
    """The function that makes panels of some vectors of columns each.

    With `columns`, which are no whole vectors, it makes one panel of just these: two vectors share
    some of them, and one that is too wide is made in part. A `long` sum has more than one chunk.
    """
    module = IRModule()
    _BlockWriter(Function(module, "@block", _BLOCK), dtype, rows, vectors, columns, long)
    return jit.compile_ir(module.text(), ["block"])["block"]


class _BlockWriter:
    """Writes the code of a block."""

    def __init__(
        self, f: Function, dtype: DType, rows: int, vectors: int, columns: int, long: bool
    ):
        self.f, self.v = f, Vectors(f, dtype)
        self.vectors, self.columns = vectors, columns
        words = numbers_of(f, DIRECT)
        self.k, self.along, self.line = words["k"], words["a_column"], words["b_row"]
        self.heads = [f.offset("%a", f.mul(words["a_row"], str(r))) for r in range(rows)]
        lanes = self.v.lanes
        self.mask = self.v.first(columns) if 0 < columns < lanes else None
        self.starts = [str(c * lanes) for c in range(vectors)]
        if columns > lanes:
            self.starts[-1] = str(columns - lanes)
        width = str(vectors * lanes * self.v.size)
        start = [("ptr", "%b"), ("ptr", "%out")]
        with f.loop("0", "%panels", carried=start) as panel:
            b, out = panel.carried
            sums = self._chunks(b) if long else self._products(b, self.k)[2:]
            for r in range(rows):
                target = f.offset(out, f.mul(words["out_row"], str(r)))
                self._store(sums[r * vectors : (r + 1) * vectors], target)
            panel.next = [f.offset(b, width), f.offset(out, width)]
        f.finish()

    def _chunks(self, b: str) -> list[str]:
        """The sums over k, row by row, chunk after chunk."""
        f, v = self.f, self.v
        nothing = f.splat(literal(-0.0, v.dtype), v.scalar, v.lanes)  # x + -0.0 is x, also for 0.0
        totals = [(v.type, nothing)] * (len(self.heads) * self.vectors)
        start = [("i64", "0"), ("ptr", b), *totals]
        with f.loop("0", self.k, str(CHUNK), carried=start) as chunk:
            at, line, *before = chunk.carried
            k = f.minimum(f.sub(self.k, chunk.i), str(CHUNK))
            at, line, *sums = self._products(line, k, at)
            joined = [v.add(total, own) for total, own in zip(before, sums, strict=True)]
            chunk.next = [at, line, *joined]
        return chunk.results[2:]

    def _products(self, b: str, count: str, first: str = "0") -> list[str]:
        """Where a and b go on after so many k, and the sums of these, row by row."""
        f = self.f
        zeros = [(self.v.type, "zeroinitializer")] * (len(self.heads) * self.vectors)
        state = [("i64", first), ("ptr", b), *zeros]
        with f.loop("0", count, carried=state) as k:
            at, line, *sums = k.carried
            joined = self._step(at, line, sums)
            k.next = [f.add(at, self.along), f.offset(line, self.line), *joined]
        return k.results

    def _step(self, at: str, line: str, sums: Sequence[str]) -> list[str]:
        """The sums after one more k: `at` is the offset of a's elements, `line` b's row."""
        f, v = self.f, self.v
        columns = [v.load(v.at(line, start), self.mask) for start in self.starts]
        joined = []
        for r, head in enumerate(self.heads):
            factor = v.repeat(f.offset(head, at))
            own = sums[r * self.vectors : (r + 1) * self.vectors]
            joined += [v.fma(factor, c, total) for c, total in zip(columns, own, strict=True)]
        return joined

    def _store(self, values: Sequence[str], target: str) -> None:
        v = self.v
        if self.mask is not None:
            v.store_lanes(values[0], target, self.columns)
            return
        for value, start in zip(values, self.starts, strict=True):
            v.store(value, v.at(target, start))
