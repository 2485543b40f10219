"""The launches of convolutions as products of matrices that are never written out.

What a position of the kernel reads is found while a tile is copied to shared memory. The order is
that of `order.convolved`: one chain along blocks of channels, positions and channels; and of
`order.correlated`: chunks of tiles of pixels.
"""

from __future__ import annotations

import math
import struct

from pullback.compile.kernel import order
from pullback.compile.program.convolution import Convolution, Pixels, Weight
from pullback.compile.program.target import Area
from pullback.compile.program.windows import WeightSums, window_words
from pullback.core import dtypes as dt
from pullback.runtime.cuda.gemm.shapes import Tile, tile_of
from pullback.runtime.cuda.gemm.sources import kernel_source
from pullback.runtime.cuda.launch import THREADS, grid_of
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Step

__all__ = ["forward_steps", "is_gemm", "sums_steps"]

MASK_BITS = 64  # of a pixel, one for every position of the kernel on each axis
INDEX = 1 << 31  # from which on numbers of pixels and offsets are no int


def is_gemm(c: Convolution) -> bool:
    """Whether a convolution has channels to add up, and fits the kernels."""
    places = math.prod(a.places for a in c.axes)
    most = max(c.x.batch * places, c.ins * c.positions, c.y.channels)
    return not c.depthwise and _bits(c) <= MASK_BITS and most < INDEX


def _bits(c: Convolution) -> int:
    return sum(len(a.taps) for a in c.axes)


def _span(side: Pixels) -> int:
    """The elements between the first and the last of a group."""
    ends = zip(side.size, side.strides, strict=True)
    within = sum((n - 1) * abs(s) for n, s in ends) + side.channels * abs(side.channel_stride)
    return within + side.batch * abs(side.batch_stride)


def _words(c: Convolution, tile: Tile, bk: int, *, totals: bool) -> dict[str, object]:
    far = max(_span(c.x), _span(c.y)) >= INDEX // 2
    return {
        **tile.words(units=False), "BK": bk, "MERGE": 0, "SPLIT": 1, "TOTALS": tile.totals * totals,
        "RESIDENT": tile.resident[totals], "Distance": "i64" if far else "int",
        "Mask": "u32" if _bits(c) <= MASK_BITS // 2 else "u64",
    }  # fmt: skip


def _packed(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}q", *words)


def _entry_bytes(words: dict[str, object], distances: int) -> int:
    """The size of the structs Entry and Spot: offsets, and bits."""
    offset, mask = (8 if words[w] in ("i64", "u64") else 4 for w in ("Distance", "Mask"))
    own = distances * offset + mask
    return -(-own // max(offset, mask)) * max(offset, mask)


def _kind(c: Convolution) -> str:
    return "floats" if c.dtype is dt.float32 else "doubles"


def _has_fours(c: Convolution, *, last: bool) -> bool:
    """Whether the columns of the output lie side by side in fours, all at multiples of four."""
    y, places = c.y, [a.places for a in c.axes]
    strides = [s * a.every for s, a in zip(y.strides, c.axes, strict=True)]
    steps = [y.batch_stride * (y.batch > 1), y.channels * y.channel_stride * (c.x.groups > 1)]
    if last:
        steps += [s for s, n in zip(strides, places, strict=True) if n > 1]
        return y.channels % 4 == 0 and not any(s % 4 for s in steps)
    dense = [math.prod(places[d + 1 :]) for d in range(3)]
    whole = all(n == 1 or s == t for n, s, t in zip(places, strides, dense, strict=True))
    return (
        whole and math.prod(places) % 4 == 0 and not any(s % 4 for s in (*steps, y.channel_stride))
    )


def forward_steps(c: Convolution, weight: Weight, start: int, area: Area) -> list[Step]:
    """The output, from its element `start` on."""
    size, groups, depth = c.dtype.itemsize, c.x.groups, c.ins * c.positions
    pixels, outs = c.x.batch * math.prod(a.places for a in c.axes), c.y.channels
    last = c.y.channel_stride == 1
    m, n = (pixels, outs) if last else (outs, pixels)
    totals = c.is_product and c.ins > order.CHUNK
    tile = tile_of(_kind(c), groups, m, n, depth, totals=totals)
    block = order.CHUNK if c.is_product else max(1, c.order.block)
    run = c.ins if block >= c.ins else math.gcd(block, c.ins)
    bk = next((b for b in (tile.bk, 8) if run % b == 0), tile.bk)
    words = _words(c, tile, bk, totals=totals)
    words |= {"LAST": int(last), "GRAIN": bk if run % bk == 0 else 1}
    words |= {"FAST": int(c.x.channel_stride == 1 and run % bk == 0)}
    name = f"convolution_{c.dtype.name}"
    files = ("strips", "places", "tiles", "window", "pixels", "forward")
    source = kernel_source(name, files, c.dtype, c.dtype, words)
    width = -(-outs * size // VECTOR_BYTES) * VECTOR_BYTES // size
    packed = At(area(groups * depth * width * size))
    table = At(area((depth + 2) * _entry_bytes(words, 1)))
    window = _packed(window_words(c, weight))
    tiles = math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
    each = bk * (tile.bm + tile.bn + (4 if words["FAST"] else 0))
    shared = tile.stages * each * size + (tile.bm * tile.bn * size if words["TOTALS"] == 2 else 0)
    out = At(c.y.slot, start * size)
    fours = _has_fours(c, last=last)
    return [
        Step(
            source, f"{name}_pack", (grid_of(groups * depth * width), 1), THREADS,
            (packed, table, At(weight.slot), window, width),
        ),
        Step(
            source, f"{name}_forward", (groups * tiles, 1), tile.threads,
            (out, At(c.x.slot), packed, table, window, tiles, width, int(fours)), shared=shared,
        ),
    ]  # fmt: skip


def sums_steps(
    c: Convolution, weight: Weight, sums: WeightSums, slot: int, area: Area
) -> list[Step]:
    """The sums of weights of every chunk, one after the other."""
    size, groups = c.dtype.itemsize, c.x.groups
    m, n = c.y.channels, c.ins * c.positions
    places = math.prod(a.places for a in c.axes)
    depth = -(-c.x.batch * places // sums.chunks)
    tile = tile_of(_kind(c), groups * sums.chunks, m, n, depth, totals=False)
    along = c.x.channel_stride != 1  # or pixels would be many that a thread has to look at
    words = _words(c, tile, tile.bk if along else 8, totals=False)
    words |= {"FAST": int(along)}
    name = f"convolution_{c.dtype.name}"
    files = ("strips", "places", "tiles", "window", "pixels", "correlate")
    source = kernel_source(name, files, c.dtype, c.dtype, words)
    spots = At(area(places * _entry_bytes(words, 2)))
    window = _packed(window_words(c, weight, sums.tile))
    chunks = struct.pack("<4q", sums.chunks, sums.chunk, sums.tiles, groups * m * n)
    tiles = math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
    each = (tile.bk if along else 8) * (tile.bm + tile.bn + (8 if along else 0))
    given = (At(slot), At(c.x.slot), At(c.y.slot), spots, window, chunks, tiles)
    return [
        Step(source, f"{name}_spots", (grid_of(places), 1), THREADS, (spots, window)),
        Step(
            source, f"{name}_sums", (groups * tiles * sums.chunks, 1), tile.threads, given,
            shared=tile.stages * each * size,
        ),
    ]  # fmt: skip
