"""The orders in which results are combined, for all targets, each with a reference in NumPy.

An order is a function of shapes and dtypes alone, and decides the bits of a result. How a target
walks through it (tiles, threads, caches) is that target's schedule, and decides none. The constants
here are part of what users get: with any of them `VERSION` changes, and there is a line in the
changelog. That is why some look like sizes of a cache: they were, when they were chosen.

    reductions     a tree over blocks: `tree`
    running folds  in sequence: `running`
    products       chunks of k: `product`
    factors        by halves: `factor_order`
    scatter-add    in the order of the updates: `scattered`; few destinations: `scattered_by_lanes`;
                   PyTorch's CUDA tensors: `scatter_order`
    convolutions   blocks of input channels: `convolved`; weights: chunks of tiles: `correlated`

Sums in fixed point (`fixed_point`) and sorts depend on values only, and need no order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product as positions_of
from typing import NamedTuple

import numpy as np

from pullback.compile.kernel.fused import fused

__all__ = [
    "BLOCK",
    "CHUNK",
    "LANES",
    "SMALL",
    "VECTOR_BYTES",
    "VERSION",
    "ConvolutionOrder",
    "Line",
    "attended",
    "chain",
    "chunk_of_updates",
    "convolved",
    "correlated",
    "even",
    "has_lanes",
    "is_paired",
    "lanes_of",
    "product",
    "reach",
    "running",
    "scattered",
    "scattered_by_lanes",
    "tile_count",
    "tile_of",
    "tree",
]

VERSION = 2  # of all orders together: a change of one is a new number

Array = np.ndarray
Combine = Callable[[Array, Array], Array]

# An order may not depend on the vectors that a processor has.
VECTOR_BYTES = 64  # of the vectors in which orders count: those of AVX-512, as at the first target


# -- reductions ------------------------------------------------------------------------------------

SMALL = 32  # elements from which on there is a tree; fewer are folded in sequence
LANES = 16  # of a block: element j is folded in lane j % LANES
BLOCK = 1024  # elements of a block, the leaf of the tree


def running(values: Array, combine: Combine, init: Array) -> Iterator[Array]:
    """The accumulators after each element, in sequence; the elements are along axis 0."""
    total = init
    for value in values:
        total = combine(total, value)
        yield total


def tree(values: Array, combine: Combine, init: Array) -> Array:
    """A reduction along axis 0: in a block, lanes in sequence, then joined by halves; then a
    balanced tree over blocks, whose aligned parts of 2**k blocks are whole subtrees.
    """
    if len(values) < SMALL:
        return reduce(combine, values, init)
    blocks = [_block(values[i : i + BLOCK], combine, init) for i in range(0, len(values), BLOCK)]
    while len(blocks) > 1:
        pairs = [blocks[i : i + 2] for i in range(0, len(blocks), 2)]
        blocks = [reduce(combine, pair) for pair in pairs]
    return blocks[0]


def _block(values: Array, combine: Combine, init: Array) -> Array:
    lanes = [reduce(combine, values[lane::LANES], init) for lane in range(LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [combine(x, y) for x, y in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


# -- products --------------------------------------------------------------------------------------

CHUNK = 256  # products along k that one chain of fused multiply-adds takes


def product(a: Array, b: Array) -> Array:
    """(m, k) @ (k, n): chunks of k in sequence from 0, then the chunks' sums in sequence.

    Of complex numbers: the products of the parts are made so, and then joined.
    """
    if a.dtype.kind == "c":
        (x, y), (u, v) = ((np.real(z), np.imag(z)) for z in (a, b))
        parts = [product(x, u) - product(y, v), product(x, v) + product(y, u)]
        return np.stack(parts, axis=-1).view(a.dtype)[..., 0]
    chunks = [chain(a[:, i : i + CHUNK], b[i : i + CHUNK]) for i in range(0, a.shape[1], CHUNK)]
    return reduce(np.add, chunks)


def chain(a: Array, b: Array) -> Array:
    """A product of matrices: fused multiply-adds along k, from 0."""
    total = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(len(b)):
        total = fused(a[:, k : k + 1], b[k], total)
    return total


# -- scatter-add and its relatives -----------------------------------------------------------------

# Sums of float16, bfloat16 and float32 are accumulated in float64, those of float64 as a sum and
# the sum of its errors, integers in their own dtype; each is rounded once, to the dtype.

FEW_UPDATES = 1 << 15  # elements up to which updates are folded one after the other
FEW_DESTINATIONS = 2048  # accumulators up to which every chunk of the updates has its own
UPDATES_PER_ROW = 16  # at least, so that clearing and joining lanes is a small part
UPDATE_CHUNK = 1 << 16  # updates of a chunk, about: work for some tens of microseconds
MOST_CHUNKS = 256  # of one scatter: their accumulators are joined one after the other
CHUNKS_TOGETHER = 16  # more chunks than these are a multiple of these, so that threads share well
UPDATE_LANES = 8  # accumulators of a destination in a chunk
PAIRED_ROWS = 24  # rows up to which updates of one element are added in pairs
PAIR_LANES = 4  # tables that take pairs in turn, as UPDATE_LANES take updates
UPDATE_BLOCK = 64  # updates of a chunk are a multiple


def has_lanes(count: int, rows: int, width: int, parts: int) -> bool:
    """Whether `count` updates of `width` elements into `rows` rows are folded in chunks with lanes;
    an accumulator has so many `parts`.
    """
    if count * width <= FEW_UPDATES:
        return False
    return rows * width * parts <= FEW_DESTINATIONS and count >= UPDATES_PER_ROW * rows


def lanes_of(width: int, parts: int) -> int:
    """The lanes of a chunk: fewer where accumulators of an update are many."""
    return max(1, UPDATE_LANES // (width * parts))


def is_paired(rows: int, width: int, parts: int) -> bool:
    """Whether the lanes take pairs of updates."""
    return width == 1 and rows <= PAIRED_ROWS and parts == 1


def chunk_of_updates(count: int) -> int:
    """The updates of a chunk."""
    chunks = min(MOST_CHUNKS, -(-count // UPDATE_CHUNK))
    if chunks <= CHUNKS_TOGETHER:
        chunks = 1 << max(0, chunks - 1).bit_length()
    else:
        chunks = -(-chunks // CHUNKS_TOGETHER) * CHUNKS_TOGETHER
    return -(-count // (UPDATE_BLOCK * chunks)) * UPDATE_BLOCK


def scattered(x: Array, indices: Array, updates: Array) -> Array:
    """x plus the updates of each row in their order (float32, accumulated in float64)."""
    total = x.astype(np.float64)
    for i, update in zip(indices.tolist(), updates, strict=True):
        total[i] += update
    return total.astype(x.dtype)


def scattered_by_lanes(x: Array, indices: Array, updates: Array) -> Array:
    """The same where `has_lanes` says so, for rows of one element and more than PAIRED_ROWS.

    In each chunk, lane j % UPDATE_LANES takes update j, but those after the last whole turn go to
    lane 0; a tree joins neighbouring lanes; then x, and the chunks' sums in sequence.
    """
    turn, lanes, chunk = 16, UPDATE_LANES, chunk_of_updates(len(indices))
    total = x.astype(np.float64)
    for start in range(0, len(indices), chunk):
        own = np.full((lanes, len(x)), -0.0)
        numbers, values = indices[start : start + chunk], updates[start : start + chunk]
        whole = len(numbers) // UPDATE_BLOCK * UPDATE_BLOCK
        assert UPDATE_BLOCK % turn == 0
        for j, (i, value) in enumerate(zip(numbers.tolist(), values.tolist(), strict=True)):
            own[j % lanes if j < whole else 0, i] += value
        sums = list(own)
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        total = total + sums[0]
    return total.astype(x.dtype)


# -- convolutions ----------------------------------------------------------------------------------

# A kernel of one position that takes every pixel, and nothing beside the image, is a product of
# matrices in the order of `product`. All others have that of `convolved`, cut into blocks:
PANEL_BYTES = 20 << 10  # of weights for one block of input channels
LEAST_BLOCK = 8  # input channels: a block has a multiple of them, or all that there are
DEPTHWISE_BLOCK = 64  # channels that a tile of a depthwise convolution has at most
# Sums of weights go over tiles of pixels. These are the values of the CPU's first schedule, chosen
# for its caches and kept since they decide bits:
TILE_PIXELS = 128  # of a tile at most: what it reads stays near for all positions
LEAST_PIXELS = 24  # of a tile, as long as what it writes is small: sums are loaded for each tile
INPUT_BYTES = 160 << 10  # of what a tile reads, at most: part of an L2 cache
OUTPUT_BYTES = 128 << 10  # of the gradient of its pixels
SUM_BYTES = 160 << 10  # of the sums of weights of a tile's part of the output channels
WAYS = 16  # to cut the work, at least: enough for a few threads
# and over chunks of tiles:
CHUNKS = 16  # at most, but where there are few other ways to cut the work
CHUNK_PIXELS = 1 << 13  # of a chunk at least, so that adding up chunks takes little of the time
CHUNKS_BYTES = 32 << 20  # of the sums of all chunks
CHUNK_FLOPS = 1 << 25  # of a chunk: its sums have to be cleared and added up
COPY_FLOPS = 32  # that take as long as a copy of an element


class Line(NamedTuple):
    """One spatial axis: how many outputs there are, and the inputs that they read."""

    places: int
    step: int  # inputs from one output to the next
    span: int  # inputs that an output reads over


class ConvolutionOrder(NamedTuple):
    """The extents that decide the order of a convolution; a depthwise one has one group."""

    itemsize: int
    batch: int
    groups: int
    into: int  # input channels of a group
    out: int
    positions: int  # of the kernel
    run: int  # positions that follow each other along the last axis, read as one
    lines: tuple[Line, Line, Line]
    depthwise: bool

    @property
    def lanes(self) -> int:
        return VECTOR_BYTES // self.itemsize

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return self.lanes if self.out <= self.lanes else 2 * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.out // self.width)

    @property
    def block(self) -> int:
        """Input channels whose products are added up before those of the next ones."""
        if self.depthwise:
            return even(self.panels, DEPTHWISE_BLOCK // self.width) * self.width
        fit = PANEL_BYTES // (self.width * self.itemsize * max(1, self.positions))
        if fit >= self.into:
            return self.into
        return min(self.into, max(LEAST_BLOCK, fit // LEAST_BLOCK * LEAST_BLOCK))

    @property
    def gap(self) -> int:
        return 0 if self.depthwise or self.run > 1 else self.lanes

    def work(self) -> int:
        """The arithmetic, and copies in its measure."""
        sums = 2 * self.out * (1 if self.depthwise else self.into) * max(1, self.positions)
        pixels = self.batch * self.groups * math.prod(x.places for x in self.lines)
        return pixels * (sums + COPY_FLOPS * (self.out + self.into))

    def _ways(self) -> int:
        """In how many ways the sums of weights are cut, beside the pixels."""
        if self.depthwise:
            return -(-self.into // self.block)
        nbytes = self.block * self.positions * self.width * self.itemsize
        part = even(self.panels, max(1, SUM_BYTES // nbytes))
        return self.groups * -(-self.into // self.block) * -(-self.panels // part)

    def weight_tile(self) -> tuple[int, int, int]:
        """The extents of the tiles of pixels over which the sums of weights go."""
        return tile_of(
            self.lines,
            self.itemsize * (self.block if self.depthwise else self.width),
            self.itemsize * (self.block + self.gap),
            self.batch * self._ways(),
            TILE_PIXELS,
            (LEAST_PIXELS, OUTPUT_BYTES, INPUT_BYTES, WAYS),
        )

    def weight_chunk(self, tile: Sequence[int]) -> int:
        """How many tiles are added up one after the other."""
        every = self.batch * tile_count(self.lines, tile)
        pixels = self.batch * math.prod(x.places for x in self.lines)
        ins = 1 if self.depthwise else self.into
        nbytes = self.groups * self.panels * ins * self.positions * self.width * self.itemsize
        most = min(every, CHUNKS_BYTES // nbytes, self.work() // CHUNK_FLOPS)
        wanted = max(-(-WAYS // self._ways()), min(CHUNKS, pixels // CHUNK_PIXELS))
        return -(-every // max(1, min(most, wanted)))


def even(count: int, most: int) -> int:
    """The largest of equal pieces of `count`, of at most `most`."""
    most = min(count, most)
    return -(-count // -(-count // most))


def tile_count(lines: Sequence[Line], tile: Sequence[int]) -> int:
    return math.prod(-(-x.places // n) for x, n in zip(lines, tile, strict=True))


def reach(lines: Sequence[Line], tile: Sequence[int]) -> tuple[int, int, int]:
    """The inputs of a tile along each axis."""
    one, two, three = ((n - 1) * x.step + x.span for n, x in zip(tile, lines, strict=True))
    return one, two, three


def tile_of(
    lines: Sequence[Line],
    output: int,
    pixel: int,
    others: int,
    most: int,
    limits: tuple[int, int, int, int],
) -> tuple[int, int, int]:
    """The extents of a tile of output pixels: long rows first, of at most `most` pixels.

    `output` and `pixel` are bytes of an output and an input pixel, `others` the other ways to cut
    the work. `limits` are the least pixels, bytes of a tile's output and input, and enough tiles.
    """
    least, output_bytes, input_bytes, enough = limits
    pixels = min(most, max(least, output_bytes // output))
    while True:
        left, tile = pixels, [1, 1, 1]
        for d in (2, 1, 0):
            tile[d] = even(lines[d].places, max(1, left))
            left //= tile[d]
        units = others * tile_count(lines, tile)
        fits = math.prod(reach(lines, tile)) * pixel <= input_bytes and units >= enough
        small = pixels * output <= 2 * output_bytes
        if fits or pixels == 1 or (pixels <= least and small):
            one, two, three = tile
            return one, two, three
        pixels //= 2


def convolved(x: Array, w: Array, block: int) -> Array:
    """x (batch, channels, row, column) with w (out, channels, rows, columns), no padding: from 0,
    block by block of channels, position by position of the kernel, channel by channel.
    """
    (_, into, *_), (out, _, *kernel) = x.shape, w.shape
    height, length = (n - k + 1 for n, k in zip(x.shape[2:], kernel, strict=True))
    total = np.zeros((len(x), out, height, length), x.dtype)
    for start in range(0, into, block):
        for i, j in positions_of(*map(range, kernel)):
            for c in range(start, min(start + block, into)):
                read = x[:, c, None, i : i + height, j : j + length]
                total = fused(read, w[:, c, i, j][:, None, None], total)
    return total


def correlated(x: Array, g: Array, tile: Sequence[int], chunk: int) -> Array:
    """The gradient of the weights of `convolved`, given that of its result: in each chunk of tiles
    from 0, tile by tile and pixel by pixel; then the chunks' sums in sequence.
    """
    (batch, into, *size), (_, out, *places) = x.shape, g.shape
    kernel = [n - p + 1 for n, p in zip(size, places, strict=True)]
    starts = [range(0, n, t) for n, t in zip(places, tile, strict=True)]
    tiles = list(positions_of(range(batch), *starts))
    sums = []
    for first in range(0, len(tiles), chunk):
        total = np.zeros((out, into, *kernel), x.dtype)
        for item, top, left in tiles[first : first + chunk]:
            rows, columns = (
                range(s, min(s + t, n)) for s, t, n in zip((top, left), tile, places, strict=True)
            )
            for i, j in positions_of(rows, columns):
                read = x[item, None, :, i : i + kernel[0], j : j + kernel[1]]
                total = fused(read, g[item, :, i, j][:, None, None, None], total)
        sums.append(total)
    return reduce(np.add, sums)


def attended(width: int) -> int:
    """Keys that attention on matrix units takes between two looks for the largest score of a row,
    by the width of heads.

    What the units add up is theirs: 16 products in some way, one such sum after the other.
    """
    return 64 if width <= 64 else 32
