"""Products by the tensor cores of warps: `mma.sync`, which GPUs have from sm_80 on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pullback.runtime.cuda.gemm.kinds import Kind, Problem, Side, cores_source
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.stages import At, Either, Step

__all__ = ["LEAST_ARCHITECTURE", "TILES", "Tile", "Warps", "tile_of"]
__tuning__ = ("ENTRY", "RATE")

LEAST_ARCHITECTURE = 80  # that has copies beside the arithmetic, and units for these dtypes
ELEMENTS = 2  # KIND of kernels/warps.cu: any strides
FILES = "strips", "places", "fragments", "sums", "warps"
PAD = 16  # bytes after each row of a tile in shared memory, twice as many after lines of words
# Multiply-adds of 16 bits of a processor in a cycle (half of them of TF32): those of an A100.
RATE = 1024.0
ENTRY = 2000.0  # cycles of a block for its first operands, and for what it writes


class Tile(NamedTuple):
    """How a thread block makes a tile: see `kernels/warps.cu`; `bk` is in bytes.

    `resident` blocks are on a processor; `rate` is the part of the arithmetic that they reach
    together, `alone` that of one.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    resident: int
    rate: float
    alone: float

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn

    def shared(self, kinds: Sequence[int], itemsize: int) -> int:
        """Bytes of shared memory: `Panel::BYTES` of the stages."""
        panels = 0
        for lines, kind in zip((self.bm, self.bn), kinds, strict=True):
            if kind == 1:
                pad = PAD * 2 if itemsize == 4 else PAD
                panels += self.bk // itemsize * (lines * itemsize + pad)
            else:
                panels += lines * (self.bk + PAD)
        return self.stages * panels


TILES = (
    Tile(128, 256, 64, 2, 4, 3, 1, 0.5, 0.5),
    Tile(256, 128, 64, 4, 2, 3, 1, 0.5, 0.5),
    Tile(128, 128, 64, 2, 2, 4, 1, 0.5, 0.4),
    Tile(128, 64, 64, 2, 2, 4, 2, 0.45, 0.35),
    Tile(64, 64, 128, 2, 2, 3, 2, 0.4, 0.3),
    Tile(64, 32, 128, 2, 1, 4, 2, 0.3, 0.2),
    Tile(32, 32, 128, 1, 1, 4, 2, 0.2, 0.1),
)
PLAIN = Tile(64, 64, 64, 2, 2, 2, 1, 0.1, 0.1)  # where operands are read element by element


@cache
def tile_of(processors: int, kind: Kind, batch: int, m: int, n: int, k: int) -> Tile:
    """The tile that is expected to be the fastest; it has no effect on any bit."""

    def cycles(tile: Tile) -> float:
        blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        rate = RATE * 2 / kind.unit.itemsize
        depth = tile.bk // kind.unit.itemsize
        work = tile.bm * tile.bn * math.ceil(k / depth) * depth / rate  # of a block
        full, rest = divmod(math.ceil(blocks / processors), tile.resident)
        turn = tile.resident * work / tile.rate + ENTRY
        return full * turn + (rest * work / tile.alone + ENTRY if rest else 0.0)

    return min(TILES, key=cycles)


class Warps:
    """The tensor cores of a GPU with so many multiprocessors."""

    def __init__(self, processors: int):
        self._processors = processors

    def lies(self, side: Side, k: int, kind: Kind) -> int | None:
        """See `Side.lies`."""
        return side.lies(k, kind)

    def launch(self, problem: Problem, lies: Sequence[int | None], out: At) -> Step | Either:
        """The launch; the output is dense."""
        other = _step(problem, out, PLAIN, (ELEMENTS, ELEMENTS), aligned=False)
        if all(lie is None for lie in lies) and problem.end is None:
            return other
        kinds = [ELEMENTS if lie is None else lie for lie in lies]
        tile = PLAIN
        if ELEMENTS not in kinds:
            tile = tile_of(self._processors, problem.kind, problem.batch.size, *problem.sides)
        return Either(_step(problem, out, tile, kinds, aligned=True), other)


def _step(problem: Problem, out: At, tile: Tile, kinds: Sequence[int], *, aligned: bool) -> Step:
    kind, batch = problem.kind, problem.batch
    size = kind.unit.itemsize
    words = {
        "BM": tile.bm, "BN": tile.bn, "BK": tile.bk // size, "WM": tile.wm, "WN": tile.wn,
        "STAGES": tile.stages, "RESIDENT": tile.resident, "A_KIND": kinds[0], "B_KIND": kinds[1],
    }  # fmt: skip
    name, given = f"warps_{kind.name}", tuple(words.items())
    source = cores_source(
        name, FILES, kind, problem.given, problem.stored, given, "", problem.end_code(aligned)
    )
    tiles = problem.tiles(tile.bm, tile.bn)
    arguments = (
        out, problem.a.at, problem.b.at, packed(batch, 2), problem.packed(tiles),
        *problem.end_arguments(),
    )  # fmt: skip
    shared = tile.shared(kinds, size)
    return Step(source, name, (batch.size * tiles, 1), tile.threads, arguments, shared=shared)
