"""How a product is cut into tiles of its output, which threads share.

A tile is some blocks high and wide. Large ones read their lines of the operands seldom, small ones
keep all threads busy until the end: the cut that takes least time by a simple model is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.program.sizes import as_one
from pullback.core.dtypes import DType
from pullback.runtime.cpu.gemm.block_code import block_sides

__all__ = ["Cut", "cut_of", "task_tiles"]
__tuning__ = ("_READ", "_COPY", "_TILE", "_JOB", "_TASK", "_MOST_BYTES")

# Times are in multiplications of one thread, of which a core makes 50 to 130 in a nanosecond.
_READ = 12  # to bring an element of a line that has been copied from the L2 to the L1 cache
_COPY = 32  # to copy it from memory, and to bring it then
_TILE = 10_000  # to begin a tile: 100 to 200 ns by that rate
_JOB = 200_000  # to call other threads, and to wait for them
_TASK = 500_000  # that are worth a task, if there are many
_STRAGGLERS = 0.3  # of a tile that the last thread is expected to be late
_MOST_BYTES = 2048  # of the lines of a tile, for each k: half of an L2 cache holds a chunk of them
_HEIGHTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)  # of tiles at most, in blocks
_WIDTHS = (1, 2, 3, 4, 6, 8)


class Cut(NamedTuple):
    """The rows and columns of a tile."""

    rows: int
    columns: int

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.columns)


@as_one
@functools.lru_cache(1024)
def cut_of(
    dtype: DType, m: int, n: int, k: int, count: int, threads: int, copied: bool = False
) -> Cut:
    """The tiles that take `threads` the least time to make `count` products of m x n sums over k.

    Lines are `copied` before, or by each tile for itself.
    """
    height, width = block_sides(dtype)
    line = _READ if copied else _COPY
    found: list[tuple[float, Cut]] = []
    for h in _even(_HEIGHTS, -(-m // height)):
        for w in _even(_WIDTHS, -(-n // width)):
            cut = Cut(h * height, w * width)
            lines = sum(cut)
            if lines * dtype.itemsize > _MOST_BYTES:
                continue
            tiles = count * cut.tiles(m, n)
            rounds = -(-tiles // threads) + (_STRAGGLERS if tiles > 1 and threads > 1 else 0)
            time = rounds * ((cut.rows * cut.columns + line * lines) * k + _TILE)
            found.append((time + (_JOB if tiles > 1 and threads > 1 else 0), cut))
    return min(found)[1]


def _even(sizes: Sequence[int], blocks: int) -> list[int]:
    """The sizes, made smaller where that leaves the number of parts: the last is then no rest."""
    parts = [-(-blocks // size) for size in sizes]
    return sorted({-(-blocks // count) for count in parts})


def task_tiles(cut: Cut, k: int, tiles: int, threads: int) -> int:
    """How many of so many tiles make a task: few enough for all threads to have some."""
    enough = -(-_TASK // max(1, cut.rows * cut.columns * k))
    return max(1, min(enough, tiles // (4 * threads)))
