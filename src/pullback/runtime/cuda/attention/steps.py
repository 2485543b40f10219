"""The launches of attention on matrix units."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.order import ATTENDED
from pullback.compile.program.nest import coalesce
from pullback.core.dtypes import DType
from pullback.runtime.cuda.attention.sources import kernel_source
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step

__all__ = [
    "FORWARD",
    "KEYS",
    "NUMBERS",
    "QUERIES",
    "TILES",
    "Matrices",
    "Problem",
    "Tile",
    "head_numbers",
    "tile_of",
]

SIZE = 2  # bytes of a number
NUMBERS = VECTOR_BYTES // SIZE  # that are read at once
FORWARD, QUERIES, KEYS = "forward", "queries", "keys"  # kernels


class Tile(NamedTuple):
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
TILES: dict[str, list[tuple[int, Tile]]] = {
    FORWARD: [
        (64, Tile(2, 4, ATTENDED, True, 2)),
        (128, Tile(1, 8, ATTENDED, True, 1)),
        (128, Tile(1, 4, ATTENDED, True, 2)),
    ],
    QUERIES: [
        (64, Tile(2, 4, 32, True, 2)),
        (128, Tile(2, 4, 32, False, 2)),
        (128, Tile(1, 4, 32, True, 2)),
    ],
    KEYS: [(64, Tile(2, 4, 32, False, 2)), (128, Tile(1, 4, 32, False, 2))],
}


def tile_of(kernel: str, width: int, most: int) -> Tile:
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


class Matrices(NamedTuple):
    """Matrices of heads: strides in elements over the batch, then the group, rows, numbers."""

    at: At
    strides: tuple[int, ...]

    def is_wide(self) -> bool:
        """Whether rows may be read 16 bytes at a time, if the first one may."""
        *apart, last = self.strides
        return last == 1 and all(s % NUMBERS == 0 for s in apart)


class Problem(NamedTuple):
    """Attention of `group` queries' heads for each of a batch of heads of keys."""

    dtype: DType
    batch: tuple[int, ...]
    group: int
    rows: int
    columns: int
    width: int
    scale: float
    causal: bool
    masked: bool = False

    def step(
        self,
        kernel: str,
        out: At,
        matrices: Sequence[Matrices],
        rest: Sequence[At],
        tile: Tile,
    ) -> Step | Either:
        """The launch of a kernel for query, key, value (cotangent, and mask), and what else it
        reads.
        """
        other = self._step(kernel, out, matrices, rest, tile, wide=False)
        numbers = matrices[: len(matrices) - self.masked]
        if self.width % NUMBERS or not all(m.is_wide() for m in numbers):
            return other
        return Either(self._step(kernel, out, matrices, rest, tile, wide=True), other)

    def _step(
        self,
        kernel: str,
        out: At,
        matrices: Sequence[Matrices],
        rest: Sequence[At],
        tile: Tile,
        *,
        wide: bool,
    ) -> Step:
        depth = rounded(self.width)
        words = {
            "D": depth, "TM": tile.tm, "WARPS": tile.warps, "STEP": tile.step,
            "KEPT": int(tile.kept), "CAUSAL": int(self.causal), "MASK": int(self.masked),
            "WIDE": int(wide), "RESIDENT": tile.resident,
        }  # fmt: skip
        name = f"attention_{kernel}_{self.dtype.name}"
        source = kernel_source(name, kernel, self.dtype, tuple(words.items()))
        by_group = kernel != KEYS
        shape = (*self.batch, self.group) if by_group else self.batch
        numbers, masks = matrices, []
        if self.masked:
            *numbers, mask = matrices
            masks = [mask]
        nothing = (0,) * (len(self.batch) + 3)
        strides = [m.strides for m in (*numbers, *masks)] + [nothing] * (not masks)
        heads = coalesce(shape, [own[: len(shape)] for own in strides])
        blocks = math.ceil((self.rows if by_group else self.columns) / tile.own)
        grid = math.prod(shape) * blocks, 1
        arguments = (
            out, *(m.at for m in numbers), *rest, masks[0].at if masks else 0, packed(heads),
            self._sizes(strides, blocks),
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
        return struct.pack("<22qd", *words, self.scale)
