"""The launches of attention on matrix units."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.order import attended
from pullback.compile.program.nest import coalesce
from pullback.core.dtypes import DType
from pullback.ops import philox
from pullback.runtime.cuda.attention.sources import kernel_source
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step

__all__ = [
    "FORWARD",
    "KEYS",
    "NUMBERS",
    "QUERIES",
    "TILES",
    "AttentionProblem",
    "Given",
    "HeadMatrices",
    "PanelTile",
    "head_numbers",
    "tile_of",
]

KEY_WORDS = 2  # of 32 bits, which a random key of Philox has
PHILOX = {
    **{f"MULTIPLIER_{k}": f"{x}u" for k, x in enumerate(philox.MULTIPLIERS)},
    **{f"WEYL_{k}": f"{x}u" for k, x in enumerate(philox.WEYL)},
    **{"ROUNDS": philox.ROUNDS, "PURPOSE": philox.ATTENTION},
}  # constants of the generator
SIZE = 2  # bytes of a float16 or bfloat16, which matrix units take
NUMBERS = VECTOR_BYTES // SIZE  # that are read at once
FORWARD, QUERIES, KEYS = "forward", "queries", "keys"  # kernels


class PanelTile(NamedTuple):
    """What a thread block works on: see kernels/panels.cu."""

    tm: int
    warps: int
    step: int
    kept: bool
    resident: int  # thread blocks that a processor should have room for

    @property
    def own(self) -> int:
        return 16 * self.tm * self.warps

    def shared(self, kernel: str, depth: int) -> int:
        """The bytes of shared memory, for a width rounded up to `depth`."""
        line = (depth + 8) * SIZE
        stage = 2 * self.step * line + (8 * self.step if kernel == KEYS else 0)
        return (1 if kernel == FORWARD else 2) * self.own * line + 2 * stage


# By kernel: tiles and the widest heads that they are for, by time on an H200; the last ones ask
# for the least shared memory. Steps of the forward kernel decide bits, nothing else does: the
# others add up products in their order, however many a step has.
TILES: dict[str, list[tuple[int, PanelTile]]] = {
    FORWARD: [
        (64, PanelTile(2, 4, attended(64), True, 2)),
        (128, PanelTile(2, 4, attended(128), False, 2)),
    ],
    QUERIES: [
        (64, PanelTile(2, 4, 32, True, 2)),
        (128, PanelTile(2, 4, 32, False, 2)),
        (128, PanelTile(1, 4, 32, True, 2)),
    ],
    KEYS: [(64, PanelTile(2, 4, 32, False, 2)), (128, PanelTile(1, 4, 32, False, 2))],
}


def tile_of(kernel: str, width: int, most: int) -> PanelTile:
    """The tile for heads of this width, where a thread block has so much shared memory at most."""
    depth = rounded(width)
    fitting = (tile for wide, tile in TILES[kernel] if width <= wide)
    return next(tile for tile in fitting if tile.shared(kernel, depth) <= most)


def rounded(width: int) -> int:
    """The width of a tile: matrix units take 16 numbers at a time."""
    return -(-width // 16) * 16


def head_numbers(rows: int, width: int) -> tuple[int, int]:
    """What a head of the forward kernel's result has: numbers before it, and of all.

    Before it are logarithms of float32; both are multiples of 16 bytes.
    """
    start = -(-2 * rows // NUMBERS) * NUMBERS
    return start, start + -(-rows * width // NUMBERS) * NUMBERS


class HeadMatrices(NamedTuple):
    """Matrices of heads: strides in elements over the batch, then the group, rows, numbers."""

    at: At
    strides: tuple[int, ...]

    def is_wide(self) -> bool:
        """Whether rows may be read 16 bytes at a time, if the first one may."""
        *apart, last = self.strides
        return last == 1 and all(s % NUMBERS == 0 for s in apart)


class Given(NamedTuple):
    """What a kernel reads: query, key, value (and cotangent); for the backward kernels what the
    forward pass left, and deltas; a mask and the keys of dropout, where there are such.
    """

    numbers: Sequence[HeadMatrices]
    rest: Sequence[At] = ()
    mask: HeadMatrices | None = None
    words: At | None = None


class AttentionProblem(NamedTuple):
    """Attention of `group` queries' heads for each of a batch of heads of keys."""

    dtype: DType
    batch: tuple[int, ...]
    group: int
    rows: int
    columns: int
    width: int
    scale: float
    causal: bool
    dropout: float = 0.0
    heads: int = 1  # that share a key of dropout

    def step(self, kernel: str, out: At, given: Given, tile: PanelTile) -> Step | Either:
        """The launch of a kernel."""
        other = self._step(kernel, out, given, tile, wide=False)
        if self.width % NUMBERS or not all(m.is_wide() for m in given.numbers):
            return other
        return Either(self._step(kernel, out, given, tile, wide=True), other)

    def _step(self, kernel: str, out: At, given: Given, tile: PanelTile, *, wide: bool) -> Step:
        depth, by_group = rounded(self.width), kernel != KEYS
        words = {
            "D": depth, "TM": tile.tm, "WARPS": tile.warps, "STEP": tile.step,
            "KEPT": int(tile.kept), "RESIDENT": tile.resident, "WIDE": int(wide),
            "CAUSAL": int(self.causal), "MASK": int(given.mask is not None),
            "DROPOUT": int(given.words is not None), **PHILOX,
        }  # fmt: skip
        name = f"attention_{kernel}_{self.dtype.name}"
        source = kernel_source(name, kernel, self.dtype, tuple(words.items()))
        shape = (*self.batch, self.group) if by_group else self.batch
        nothing = (0,) * (len(self.batch) + 3)
        mask = given.mask or HeadMatrices(At(0), nothing)
        strides = [m.strides for m in (*given.numbers, mask)]
        heads = coalesce(shape, [own[: len(shape)] for own in strides])
        blocks = math.ceil((self.rows if by_group else self.columns) / tile.own)
        grid = math.prod(shape) * blocks, 1
        arguments = (
            out, *(m.at for m in given.numbers), *given.rest, given.mask.at if given.mask else 0,
            given.words or 0, packed(heads), self._sizes(strides, blocks),
        )  # fmt: skip
        shared = tile.shared(kernel, depth)
        return Step(source, name, grid, 32 * tile.warps, arguments, shared=shared)

    def _sizes(self, strides: Sequence[Sequence[int]], blocks: int) -> bytes:
        """The struct `Sizes` of the kernels; strides are of the matrices, then of the mask."""
        start, numbers = head_numbers(self.rows, self.width)
        words = [self.rows, self.columns, self.width, self.group, blocks, numbers, start]
        *given, mask = strides
        for axis in (-2, -1, -3):
            words += [s[axis] for s in given] + [0] * (4 - len(given)) + [mask[axis]]
        several = math.prod(self.batch) * self.group > self.heads
        words += [round(self.dropout * 2**32), self.heads, KEY_WORDS if several else 0]
        return struct.pack("<25q2d", *words, self.scale, 1.0 / (1.0 - self.dropout))
