"""Products by the tensor cores of warps: `mma.sync`, which GPUs have from sm_80 on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pullback.runtime.cuda.gemm.kinds import Kind, Problem, Side, cores_source
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.stages import At, Either, Step

__all__ = ["LEAST_ARCHITECTURE", "TILES", "WarpTile", "Warps", "tile_of"]

LEAST_ARCHITECTURE = 80  # that has copies beside the arithmetic, and units for these dtypes
ELEMENTS = 2  # KIND of kernels/warps.cu: operands with any strides
FILES = "strips", "places", "fragments", "sums", "warps"
PAD = 16  # bytes after each row of a tile in shared memory, twice as many after lines of words


class WarpTile(NamedTuple):
    """How a thread block makes a tile: see `kernels/warps.cu`; `bk` is in bytes.

    A processor holds `resident` blocks. A block takes `cycles` for each product of 16 bits along k,
    and `entry` cycles for its first operands and for what it writes; those that share a processor
    take as long as one after the other, since shared memory is what they wait for.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    resident: int
    cycles: float
    entry: int

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
    WarpTile(128, 256, 64, 2, 4, 3, 1, 29.0, 6100),
    WarpTile(256, 128, 64, 4, 2, 3, 1, 29.4, 6100),
    WarpTile(128, 128, 64, 2, 2, 4, 1, 20.0, 4900),
    WarpTile(128, 64, 64, 2, 2, 4, 2, 14.6, 4400),
    WarpTile(64, 64, 128, 2, 2, 3, 2, 8.7, 3400),
    WarpTile(64, 32, 128, 2, 1, 4, 2, 6.3, 3700),
    WarpTile(32, 32, 128, 1, 1, 4, 2, 5.8, 3700),
)  # measured on an H200, at 1.7 GHz
PLAIN = WarpTile(64, 64, 64, 2, 2, 2, 1, 0.0, 0)  # where operands are read element by element


@cache
def tile_of(processors: int, kind: Kind, batch: int, m: int, n: int, k: int) -> WarpTile:
    """The tile that is expected to be the fastest; it has no effect on any bit."""

    def cycles(tile: WarpTile) -> float:
        blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        each = math.ceil(blocks / processors)
        turns = math.ceil(each / tile.resident)
        work = tile.cycles * k * kind.unit.itemsize / 2
        return turns * (tile.entry + min(each, tile.resident) * work)

    return min(TILES, key=cycles)


class Warps:
    """The tensor cores of a GPU with so many multiprocessors."""

    def __init__(self, processors: int):
        self._processors = processors

    def lies(self, side: Side, k: int, kind: Kind) -> int | None:
        """See `Side.lies`."""
        return side.lies(k, kind)

    def reads_across(self, side: Side, lie: int | None, kind: Kind) -> bool:
        """Copies of 16 bytes may start anywhere."""
        return False

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


def _step(
    problem: Problem, out: At, tile: WarpTile, kinds: Sequence[int], *, aligned: bool
) -> Step:
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
    own = (out, problem.a.at, problem.b.at, packed(batch, 2), problem.packed(tiles))
    grid, arguments = (batch.size * tiles, 1), (*own, *problem.end_arguments())
    return Step(
        source, name, grid, tile.threads, arguments,
        shared=tile.shared(kinds, size), anywhere=problem.anywhere(len(own)),
    )  # fmt: skip
