"""The launches of products of real matrices."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel import order
from pullback.compile.program.nest import coalesce
from pullback.compile.program.target import Area, Strides
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.gemm.endings import End
from pullback.runtime.cuda.gemm.shapes import ALONE, CLUSTER, LAST, LAUNCH, TileChoice, choice_of
from pullback.runtime.cuda.gemm.sources import kernel_source, wide_of
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step

__all__ = ["Operand", "Tiled", "join_step", "may_end", "row_steps", "tile_steps", "widened_steps"]

ROW_THREADS = 128  # of a block that multiplies rows
LINES_TOGETHER = 32  # columns of such a block: LINES of kernels/rows.cu
# A thread for each of few sums would wait for one chain after the other: then many share a sum.
FEW_SUMS = 1 << 16  # of a product at most, for that: with more there are threads enough
MANY_CHAINS = 32  # of a sum at least, for that: two for each of the threads that read them
JOIN_THREADS = 512  # of such a block: sixteen read the chains of a sum
PLACES = "strips", "places"  # files of all kernels that make tiles
LEAST_COPY = 4  # bytes that can be copied to shared memory beside the arithmetic
WIDE, ALONG, LINES, DEEP = range(4)  # KIND of kernels/tiles.cu


class Operand(NamedTuple):
    """Matrices as lines (rows of the left, columns of the right) of products.

    Strides are in elements, of the batch's axes, from line to line, and along k.
    """

    at: At
    batch: Strides
    line: int
    k: int

    def kind(self, lines: int, itemsize: int, aligned: bool, *, units: bool) -> int:
        """How a tile is read, if the operand starts at a multiple of VECTOR_BYTES or not."""
        wide = VECTOR_BYTES // itemsize
        if self.k == 1 and not units:
            return ALONG
        batched = aligned and all(s % wide == 0 for s in self.batch)
        if batched and self.line == 1 and self.k % wide == 0 and lines % wide == 0:
            return WIDE
        if batched and self.k == 1 and self.line % wide == 0:
            return ALONG
        return DEEP if abs(self.k) < abs(self.line) else LINES


class Tiled(NamedTuple):
    """A batch of products (m, k) @ (k, n) of `dtype` in tiles; what is written is of `stored`."""

    dtype: DType
    stored: DType
    batch: tuple[int, ...]
    sides: tuple[int, int, int]
    a: Operand
    b: Operand
    units: bool  # whether matrix units multiply
    choice: TileChoice
    end: End | None = None

    @property
    def chains(self) -> int:
        return max(1, math.ceil(self.sides[2] / order.CHUNK))

    @property
    def tiles(self) -> int:
        """The tiles of all items of the batch."""
        (m, n, _), tile = self.sides, self.choice.tile
        return math.prod(self.batch) * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)

    def steps(self, out: At, area: Area) -> list[Step | Either]:
        """The launches; the output is dense."""
        merge, tile, size = self.choice.merge, self.choice.tile, self.dtype.itemsize
        count = math.prod(self.batch) * self.sides[0] * self.sides[1]
        if merge == LAUNCH:
            partials = At(area(self.chains * count * size))
            made = self._replace(stored=self.dtype)._either(partials, partials, partials)
            return [made, join_step(self.dtype, self.stored, out, partials, self.chains, count)]
        if merge != LAST:
            return [self._either(out, out, out)]
        scratch = At(area(self.tiles * self.chains * tile.bm * tile.bn * size))
        counters = At(area(4 * self.tiles))
        made = self._either(out, scratch, counters)
        one = made.other if isinstance(made, Either) else made
        given = (counters, self.tiles)
        begin = f"{one.function}_begin"
        return [Step(one.source, begin, (grid_of(self.tiles), 1), THREADS, given), made]

    def _either(self, out: At, scratch: At, counters: At) -> Step | Either:
        first, other = (self._step(aligned, out, scratch, counters) for aligned in (True, False))
        return first if first.source == other.source else Either(first, other)

    def _step(self, aligned: bool, out: At, scratch: At, counters: At) -> Step:
        (tile, merge), (m, n, k), (a, b), size = (
            self.choice, self.sides, (self.a, self.b), self.dtype.itemsize
        )  # fmt: skip
        kinds = [x.kind(lines, size, aligned, units=self.units) for x, lines in ((a, m), (b, n))]
        kept = tile.totals if self.chains > 1 and merge == ALONE else 0
        words = {
            **tile.words(self.units), "MERGE": merge, "RESIDENT": tile.resident[1 if kept else 0],
            "TOTALS": "(PB_CLUSTERS ? 0 : 1)" if merge == CLUSTER else kept,
            "SPLIT": self.chains if merge == CLUSTER else 1,
            "A_KIND": kinds[0], "B_KIND": kinds[1],
        }  # fmt: skip
        if self.units:
            words["REST"] = int(k % tile.bk > 0)
        else:
            far = any(abs(x.line) * max(tile.bm, tile.bn) >= 1 << 31 for x in (a, b))
            forward = min(a.line, b.line) >= 0  # unsigned offsets take fewer instructions
            words["Distance"] = "i64" if far else "u32" if forward else "int"
        name = f"product_{self.dtype.name}"
        files = *PLACES, *(("multiply", "units") if self.units else ("tiles",)), "products"
        together = 2 if self.units else 4  # neighbours of a thread
        code = self.end.code(n, together, aligned) if self.end else None
        source = kernel_source(name, files, self.stored, self.dtype, words, code)
        nest = packed(coalesce(self.batch, [a.batch, b.batch]), 2)
        own = math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        given = struct.pack("<8q", m, n, k, a.line, a.k, b.line, b.k, own)
        grid = self.tiles * (self.chains if merge else 1), 1
        shared = tile.stages * sum(
            _tile_bytes(lines, tile.bk, kind, size, self.units)
            for lines, kind in zip((tile.bm, tile.bn), kinds, strict=True)
        )
        whole = tile.bm * tile.bn * size
        shared = max(shared, whole) if merge == CLUSTER else shared + (whole if kept == 2 else 0)
        own = (out, a.at, b.at, nest, given, scratch, counters)
        more = self.end.arguments(self.batch) if self.end else ()
        free = self.end.anywhere(len(own)) if self.end else ()
        return Step(source, name, grid, tile.threads, (*own, *more), shared=shared, anywhere=free)


def tile_steps(
    dtype: DType,
    batch: tuple[int, ...],
    sides: tuple[int, int, int],
    a: Operand,
    b: Operand,
    out: At,
    area: Area,
    *,
    stored: DType,
    units: bool,
    end: End | None = None,
) -> list[Step | Either]:
    """Products in the tiles that are expected to be the fastest."""
    choice = _choice(dtype, batch, sides, units)
    return Tiled(dtype, stored, batch, sides, a, b, units, choice, end).steps(out, area)


def _choice(
    dtype: DType, batch: Sequence[int], sides: tuple[int, int, int], units: bool
) -> TileChoice:
    kind = "floats" if dtype is dt.float32 else "units" if units else "doubles"
    return choice_of(kind, math.prod(batch), *sides)


def may_end(
    dtype: DType, batch: Sequence[int], sides: tuple[int, int, int], *, units: bool
) -> bool:
    """Whether one kernel makes the whole product."""
    return _choice(dtype, batch, sides, units).merge != LAUNCH


def _tile_bytes(lines: int, bk: int, kind: int, itemsize: int, units: bool) -> int:
    """The shared memory of one step of an operand: `Operand::BYTES`."""
    along = kind in (ALONG, DEEP)
    if units:
        return itemsize * (lines * (bk + 4) if along else bk * (lines + 4))
    return itemsize * bk * (lines + 4 if along else lines)


def join_step(dtype: DType, stored: DType, out: At, partials: At, chains: int, count: int) -> Step:
    """Adds up the chains of `count` elements."""
    name = f"product_{stored.name}"
    source = kernel_source(name, ("join",), stored, dtype, {})
    function, grid, threads = f"{name}_join", grid_of(count), THREADS
    if chains >= MANY_CHAINS and count <= FEW_SUMS:
        function, grid, threads = f"{name}_join_many", math.ceil(count / 32), JOIN_THREADS
    return Step(source, function, (grid, 1), threads, (out, partials, chains, count))


def row_steps(
    dtype: DType, batch: Sequence[int], n: int, k: int, a: Operand, b: Operand, out: At, area: Area
) -> list[Step | Either]:
    """One row of k times a matrix of n columns."""
    wide, items, chains = wide_of(dtype), math.prod(batch), math.ceil(k / order.CHUNK)
    partials = out if chains == 1 else At(area(chains * items * n * wide.itemsize))
    nest = packed(coalesce(batch, [a.batch, b.batch]), 2)
    given = struct.pack("<6q", n, k, chains, a.k, b.k, b.line)
    arguments = (out, partials, a.at, b.at, nest, given)
    name, size, along = f"row_{dtype.name}", dtype.itemsize, b.k == 1 and b.line != 1
    blocks = items * chains * math.ceil(n / LINES_TOGETHER)

    def step(copy: int) -> Step:
        words = {"THREADS": ROW_THREADS, "ALONG": int(along), "COPY": copy}
        source = kernel_source(name, ("rows",), dtype, wide, words)
        held = LINES_TOGETHER * (order.CHUNK + (VECTOR_BYTES // size if along else 0))
        return Step(source, name, (blocks, 1), ROW_THREADS, arguments, shared=held * size)

    other = step(size if size >= LEAST_COPY else 0)
    steps: list[Step | Either] = [other]
    apart = b.line if along else b.k
    dense = along or b.line == 1
    if dense and all(x * size % VECTOR_BYTES == 0 for x in (apart, *b.batch)):
        steps = [Either(step(VECTOR_BYTES), other)]
    if chains > 1:
        steps.append(join_step(wide, dtype, out, partials, chains, items * n))
    return steps


def widened_steps(
    dtype: DType,
    batch: Sequence[int],
    sides: tuple[int, int, int],
    a: Operand,
    b: Operand,
    area: Area,
) -> tuple[Step, Operand, Operand]:
    """Copies of both operands in the dtype of sums, and the launch that makes them."""
    wide, (m, n, k) = wide_of(dtype), sides
    found = [_widened(wide, (*batch, lines, k), x, area) for lines, x in ((m, a), (n, b))]
    (left, first, count), (right, second, more) = found
    name = f"product_{dtype.name}"
    source = kernel_source(name, ("join",), dtype, wide, {})
    arguments = (left.at, a.at, first, right.at, b.at, second)
    step = Step(source, f"{name}_widen", (grid_of(count + more), 1), THREADS, arguments)
    return step, left, right


def _widened(
    wide: DType, shape: Sequence[int], x: Operand, area: Area
) -> tuple[Operand, bytes, int]:
    """A dense copy of an operand in the order of its memory, the nest of what is read, its size."""
    strides = [*x.batch, x.line, x.k]
    axes = [d for d in range(len(shape)) if strides[d] and shape[d] > 1]
    axes.sort(key=lambda d: -abs(strides[d]))
    own, step = [0] * len(shape), 1
    for d in reversed(axes):
        own[d] = step
        step *= shape[d]
    nest = coalesce([shape[d] for d in axes], [[strides[d] for d in axes]])
    *batched, line, k = own
    copy = Operand(At(area(step * wide.itemsize)), batched, line, k)
    return copy, packed(nest, 1), step
