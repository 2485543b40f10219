"""Which tiles a product is cut into: by its shape alone, and without an effect on any bit."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from pullback.compile.kernel import order

__all__ = ["DOUBLES", "FLOATS", "UNITS", "Choice", "Tile", "choice_of"]

PROCESSORS = 132  # multiprocessors that a choice has in mind: those of a Hopper
CLUSTER = 8  # thread blocks of a cluster: more are not portable
UNITS_RATE = 128.0  # fused multiply-adds of a processor in a cycle, in float32 or by matrix units
# Cycles that a block needs for what does not grow with k: its first operands, and what it writes.
ENTRY = 1800.0
JOIN = 3500.0  # cycles of another launch that adds up chains
MEETING = 900.0  # cycles in which a cluster adds up its chains


class Tile(NamedTuple):
    """How a thread block makes a tile: see `kernels/tiles.cu` and `kernels/units.cu`.

    `resident` are the blocks that a processor holds, without totals and with them; `rate` is the
    part of the arithmetic that these reach together.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    wm: int
    wn: int
    stages: int
    resident: tuple[int, int]
    rate: float
    totals: int = 1  # 1 in registers, 2 in shared memory

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn


# Measured on an H200, from the largest to the smallest.
FLOATS = (
    Tile(256, 128, 8, 16, 8, 4, 2, 4, (1, 1), 0.78, 2),
    Tile(128, 128, 16, 8, 8, 4, 2, 3, (2, 1), 0.76),
    Tile(128, 64, 16, 8, 8, 4, 1, 3, (3, 2), 0.74),
    Tile(64, 64, 16, 4, 8, 4, 1, 3, (4, 3), 0.66),
    Tile(32, 64, 16, 4, 4, 2, 2, 4, (4, 4), 0.55),
    Tile(32, 32, 32, 4, 4, 2, 1, 4, (6, 6), 0.5),
)

# float64 by the arithmetic units, where matrix units do not keep the order
DOUBLES = (
    Tile(64, 64, 16, 4, 4, 4, 2, 3, (2, 1), 0.35),
    Tile(32, 32, 16, 4, 4, 2, 1, 4, (4, 4), 0.3),
)
# float64 by matrix units; `tm` and `tn` say nothing there
UNITS = (
    Tile(128, 128, 8, 0, 0, 2, 4, 3, (1, 1), 0.78, 2),
    Tile(128, 64, 16, 0, 0, 4, 2, 4, (1, 1), 0.72),
    Tile(64, 64, 16, 0, 0, 2, 2, 3, (2, 1), 0.66),
    Tile(32, 64, 16, 0, 0, 1, 2, 3, (4, 3), 0.6),
    Tile(32, 32, 16, 0, 0, 2, 1, 3, (6, 4), 0.5),
)


class Choice(NamedTuple):
    """A tile, and who adds up the chains: 0 the block that makes all, 1 a cluster, 2 a launch."""

    tile: Tile
    merge: int


@cache
def choice_of(kind: str, batch: int, m: int, n: int, k: int) -> Choice:
    """The choice for "floats", "doubles" or "units", which is expected to be the fastest."""
    tiles = {"floats": FLOATS, "doubles": DOUBLES, "units": UNITS}[kind]
    chains = max(1, math.ceil(k / order.CHUNK))
    merges = (0,) if chains == 1 else (0, 1) if chains <= CLUSTER else (0, 2)
    if k >= 1 << 31:
        merges = (2,)
    every = (Choice(tile, merge) for tile in tiles for merge in merges)
    return min(every, key=lambda c: _cycles(c, batch, m, n, k, chains))


def _cycles(choice: Choice, batch: int, m: int, n: int, k: int, chains: int) -> float:
    """About how long a product takes."""
    tile, merge = choice
    blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn) * (chains if merge else 1)
    depth = min(k, order.CHUNK) if merge else k
    resident = tile.resident[0 if merge or chains == 1 else 1]
    work = tile.bm * tile.bn * depth / UNITS_RATE  # cycles of a block at full rate
    full, rest = divmod(math.ceil(blocks / PROCESSORS), resident)

    def turn(held: int) -> float:
        # fewer warps hide less of what they wait for
        warps, most = held * tile.threads / 32, resident * tile.threads / 32
        rate = tile.rate * (warps / most) ** 0.5
        return ENTRY + held * work / rate

    cycles = full * turn(resident) + (turn(rest) if rest else 0.0)
    if merge == 2:
        return cycles + JOIN + batch * m * n * chains / 4000.0
    return cycles + (MEETING if merge else 0.0)
