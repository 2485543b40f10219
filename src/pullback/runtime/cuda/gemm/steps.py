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
from pullback.runtime.cuda.gemm.shapes import Choice, choice_of
from pullback.runtime.cuda.gemm.sources import kernel_source, wide_of
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step

__all__ = ["Operand", "join_step", "row_steps", "tile_step", "tile_steps", "widened_steps"]

WARPS = 4  # of a block that multiplies rows
AHEAD = 32  # elements of a column that a thread asks for before it waits
ROW_STAGES = 4  # steps of a warp's lines that are on their way
WIDE, ALONG, LINES, DEEP = range(4)  # KIND of kernels/tiles.cu


class Operand(NamedTuple):
    """Matrices as lines (rows of the left, columns of the right) of products.

    Strides are in elements, of the batch's axes, from line to line, and along k.
    """

    at: At
    batch: Strides
    line: int
    k: int

    def kind(self, itemsize: int, aligned: bool, *, units: bool) -> int:
        """How a tile is read, if the operand starts at a multiple of VECTOR_BYTES or not."""
        wide = VECTOR_BYTES // itemsize
        if self.k == 1 and not units:
            return ALONG
        batched = aligned and all(s % wide == 0 for s in self.batch)
        if batched and self.line == 1 and self.k % wide == 0:
            return WIDE
        if batched and self.k == 1 and self.line % wide == 0:
            return ALONG
        return DEEP if abs(self.k) < abs(self.line) else LINES


def tile_steps(
    dtype: DType,
    batch: Sequence[int],
    sides: tuple[int, int, int],
    a: Operand,
    b: Operand,
    out: At,
    area: Area,
    *,
    stored: DType,
    units: bool,
) -> list[Step | Either]:
    """Products (m, k) @ (k, n) of `dtype` in tiles; the output, of `stored`, is dense."""
    m, n, k = sides
    kind = "floats" if dtype is dt.float32 else "units" if units else "doubles"
    items = math.prod(batch)
    choice = choice_of(kind, items, m, n, k)
    chains = max(1, math.ceil(k / order.CHUNK))
    partial = choice.merge == 2
    target = At(area(chains * items * m * n * dtype.itemsize)) if partial else out
    written = dtype if partial else stored
    nest = packed(coalesce(batch, [a.batch, b.batch]), 2)

    def step(aligned: bool) -> Step:
        kinds = [x.kind(dtype.itemsize, aligned, units=units) for x in (a, b)]
        return tile_step(choice, dtype, written, sides, (a, b), kinds, target, nest, items, units)

    first, other = step(True), step(False)
    steps: list[Step | Either] = [first if first.source == other.source else Either(first, other)]
    return (
        [*steps, join_step(dtype, stored, out, target, chains, items * m * n)] if partial else steps
    )


def tile_step(
    choice: Choice,
    dtype: DType,
    stored: DType,
    sides: tuple[int, int, int],
    operands: tuple[Operand, Operand],
    kinds: Sequence[int],
    out: At,
    nest: bytes,
    items: int,
    units: bool,
) -> Step:
    (tile, merge), (m, n, k), (a, b) = choice, sides, operands
    chains = max(1, math.ceil(k / order.CHUNK))
    kept = 0 if chains == 1 or merge == 2 else tile.totals
    far = any(abs(x.line) * max(tile.bm, tile.bn) >= 1 << 31 for x in operands)
    words = {
        "BM": tile.bm, "BN": tile.bn, "BK": tile.bk, "TM": tile.tm, "TN": tile.tn,
        "WM": tile.wm, "WN": tile.wn, "STAGES": tile.stages, "MERGE": merge,
        "TOTALS": "(PB_CLUSTERS ? 0 : 1)" if merge == 1 else kept,
        "SPLIT": chains if merge == 1 else 1,
        "RESIDENT": tile.resident[1 if kept and not merge else 0],
        "A_KIND": kinds[0], "B_KIND": kinds[1], "Distance": "i64" if far else "int",
    }  # fmt: skip
    if units:
        words = {w: v for w, v in words.items() if w not in ("TM", "TN", "Distance")}
    name = f"product_{dtype.name}"
    files = ("places", *(("multiply", "units") if units else ("tiles",)), "products")
    source = kernel_source(name, files, stored, dtype, words)
    tiles = math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
    given = struct.pack("<8q", m, n, k, a.line, a.k, b.line, b.k, tiles)
    grid = items * tiles * (chains if merge else 1), 1
    shared = tile.stages * sum(
        _tile_bytes(lines, tile.bk, kind, dtype.itemsize, units)
        for lines, kind in zip((tile.bm, tile.bn), kinds, strict=True)
    )
    whole = tile.bm * tile.bn * dtype.itemsize
    shared = max(shared, whole) if merge == 1 else shared + (whole if kept == 2 else 0)
    return Step(source, name, grid, tile.threads, (out, a.at, b.at, nest, given), shared=shared)


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
    return Step(
        source, f"{name}_join", (grid_of(count), 1), THREADS, (out, partials, chains, count)
    )


def row_steps(
    dtype: DType, batch: Sequence[int], n: int, k: int, a: Operand, b: Operand, out: At, area: Area
) -> list[Step | Either]:
    """One row of k times a matrix of n columns."""
    wide, items, chains = wide_of(dtype), math.prod(batch), math.ceil(k / order.CHUNK)
    partials = out if chains == 1 else At(area(chains * items * n * wide.itemsize))
    nest = packed(coalesce(batch, [a.batch, b.batch]), 2)
    given = struct.pack("<6q", n, k, chains, a.k, b.k, b.line)
    arguments, threads = (out, partials, a.at, b.at, nest, given), 32 * WARPS
    name = f"row_{dtype.name}"

    def step(end: str, copy: int, shared: int) -> Step:
        words = {"THREADS": threads, "AHEAD": AHEAD, "STAGES": ROW_STAGES, "COPY": copy}
        source = kernel_source(name, ("rows", f"rows_{end}"), dtype, wide, words)
        blocks = math.ceil(chains * items * n / threads)
        return Step(source, f"{name}_{end}", (blocks, 1), threads, arguments, shared=shared)

    along = b.k == 1 and b.line != 1
    shared = ROW_STAGES * WARPS * 32 * (64 + VECTOR_BYTES)
    size = dtype.itemsize
    other = step("along", size, shared) if along and size >= 4 else step("across", 4, 0)
    steps: list[Step | Either] = [other]
    if along and all(s * size % VECTOR_BYTES == 0 for s in (b.line, *b.batch)):
        steps = [Either(step("along", VECTOR_BYTES, shared), other)]
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
