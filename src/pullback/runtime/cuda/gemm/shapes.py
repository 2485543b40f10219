"""Which tiles a product is cut into: by its shape alone, and without an effect on any bit."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from pullback.compile.kernel import order

__all__ = [
    "ALONE",
    "CLUSTER",
    "DOUBLES",
    "FLOATS",
    "LAST",
    "LAUNCH",
    "THIN",
    "UNITS",
    "Tile",
    "TileChoice",
    "choice_of",
    "choices",
    "cycles",
    "tile_of",
]  # fmt: skip

PROCESSORS = 132  # multiprocessors that a choice has in mind: those of a Hopper
MOST_CLUSTER = 8  # thread blocks of a cluster: more are not portable
# Chains of a tile wait in memory for its last block, which adds them up while the others are idle:
LAST_BYTES = 128 << 20  # of all chains of a product at most, a bound of its scratch memory
LAST_CHAINS = 64  # of a tile at most: a second launch spreads more of them over all processors
CLUSTER_TILE = 4096  # elements of a tile whose blocks are a cluster: larger ones wait too long
# Who adds up the chains of a tile (MERGE of kernels/tiles.cu): the block that makes all of them, a
# cluster of blocks, another launch, the last block to arrive.
ALONE, CLUSTER, LAUNCH, LAST = range(4)
UNITS_RATE = 128.0  # fused multiply-adds of a processor in a cycle, in float32 or by matrix units
# The model of time, in cycles of an H200: only their relations choose a tile, and no bit.
ENTRY = 4000.0  # of a block for what does not grow with k: its first operands, what it writes
JOIN = 5000.0  # of another launch that adds up chains, and of its start
MOVED = 300.0  # sums of chains that are written and read again in a cycle
MEETING = 4200.0  # cycles in which a cluster adds up its chains; twice that if blocks have to wait
ARRIVALS = 6000.0  # cycles in which a last block does, and in which counters are set before


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
    last: bool = True  # whether its last block may add up; for others it was slower
    fewer: float = 0.11  # exponent of the part of the resident blocks that are there, in the rate

    def words(self, units: bool) -> dict[str, object]:
        """The constants of the kernels."""
        own = {"BM": self.bm, "BN": self.bn, "BK": self.bk, "WM": self.wm, "WN": self.wn}
        return {**own, "STAGES": self.stages, **({} if units else {"TM": self.tm, "TN": self.tn})}

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn


# Measured on an H200, from the largest to the smallest.
FLOATS = (
    Tile(256, 128, 8, 16, 8, 4, 2, 4, (1, 1), 0.73, 2, last=False),
    Tile(128, 128, 16, 8, 8, 4, 2, 3, (1, 1), 0.68, last=False),
    Tile(128, 64, 16, 8, 8, 4, 1, 3, (3, 2), 0.67, last=False),
    Tile(64, 128, 16, 8, 8, 2, 2, 3, (3, 2), 0.64),
    Tile(64, 64, 16, 4, 8, 4, 1, 3, (4, 3), 0.59),
    Tile(32, 64, 16, 4, 4, 2, 2, 4, (4, 4), 0.45, last=False),
    Tile(32, 32, 32, 4, 4, 2, 1, 4, (6, 6), 0.37, last=False),
    Tile(32, 32, 32, 2, 4, 4, 1, 4, (4, 4), 0.36, last=False, fewer=0.0),
)

# For products alone, with a short side. Blocks of these make one chain each.
THIN = (
    # with fewer registers: where k is short, one more block hides what others wait for
    Tile(128, 64, 16, 8, 8, 4, 1, 3, (4, 4), 0.64, last=False),
    # for few rows, where others make rows that are not there; the rate is low enough that it is not
    # taken for small products, for which the others were measured
    Tile(8, 64, 32, 2, 4, 1, 2, 4, (6, 6), 0.15, last=False, fewer=0.0),
)

# float64 by the arithmetic units, where matrix units do not keep the order
DOUBLES = (
    Tile(64, 64, 16, 4, 4, 4, 2, 3, (2, 1), 0.35),
    Tile(32, 32, 16, 4, 4, 2, 1, 4, (4, 4), 0.3),
)
# float64 by matrix units; `tm` and `tn` say nothing there
UNITS = (
    Tile(128, 128, 8, 0, 0, 2, 4, 3, (1, 1), 0.81, 2, last=False, fewer=0.19),
    Tile(96, 192, 8, 0, 0, 3, 4, 3, (1, 1), 0.8, 2, last=False, fewer=0.19),
    Tile(128, 64, 16, 0, 0, 4, 2, 4, (1, 1), 0.78, 2, last=False, fewer=0.19),
    Tile(64, 64, 16, 0, 0, 2, 2, 4, (2, 2), 0.79, 2, last=False, fewer=0.25),
    Tile(64, 64, 8, 0, 0, 2, 2, 4, (3, 2), 0.55, last=False, fewer=0.19),
    Tile(64, 32, 16, 0, 0, 2, 2, 3, (4, 3), 0.48, last=False, fewer=0.19),
    Tile(32, 64, 16, 0, 0, 1, 2, 3, (4, 3), 0.4, last=False, fewer=0.19),
    Tile(32, 32, 16, 0, 0, 2, 1, 3, (6, 4), 0.43, last=False, fewer=0.19),
)


class TileChoice(NamedTuple):
    """A tile, and who adds up the chains."""

    tile: Tile
    merge: int


@cache
def choice_of(kind: str, batch: int, m: int, n: int, k: int) -> TileChoice:
    """The choice for "floats", "doubles" or "units", which is expected to be the fastest."""
    return min(choices(kind, batch, m, n, k), key=lambda c: cycles(c, batch, m, n, k))


def choices(kind: str, batch: int, m: int, n: int, k: int) -> list[TileChoice]:
    """All that a product may be made with."""
    tiles = {"floats": FLOATS + THIN, "doubles": DOUBLES, "units": UNITS}[kind]
    chains = math.ceil(k / order.CHUNK)
    merges = [ALONE] if k < 1 << 31 else []
    if chains > 1:
        merges += [CLUSTER if chains <= MOST_CLUSTER else LAUNCH]
        if chains <= LAST_CHAINS and chains * batch * m * n * 8 <= LAST_BYTES:
            merges.append(LAST)
    every = [TileChoice(tile, merge) for tile in tiles for merge in merges]
    every = [c for c in every if c.merge != CLUSTER or _may_be_shared(c.tile)]
    every = [c for c in every if c.merge != ALONE or chains == 1 or c.tile not in THIN]
    return [c for c in every if c.merge != LAST or c.tile.last]


def _may_be_shared(tile: Tile) -> bool:
    """Whether a cluster may make a tile: totals in shared memory are for a block that makes all."""
    return tile.bm * tile.bn <= CLUSTER_TILE and tile.totals != 2


def tile_of(kind: str, batch: int, m: int, n: int, k: int, *, totals: bool) -> Tile:
    """The tile for convolutions, whose blocks make all of k.

    A block that has a processor for itself waits too long for what it looks up.
    """
    tiles = [t for t in {"floats": FLOATS, "doubles": DOUBLES}[kind] if t.resident[0] > 1]

    def alone(tile: Tile) -> float:
        blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        return _turns(tile, tile.resident[totals], blocks, k)

    return min(tiles, key=alone)


def cycles(choice: TileChoice, batch: int, m: int, n: int, k: int) -> float:
    """About how long a product takes."""
    tile, merge = choice
    chains = max(1, math.ceil(k / order.CHUNK))
    blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn) * (chains if merge else 1)
    depth = min(k, order.CHUNK) if merge else k
    cycles = _turns(tile, tile.resident[0 if merge or chains == 1 else 1], blocks, depth)
    meeting = MEETING * (2 if blocks > PROCESSORS and tile.last else 1)
    joined = {ALONE: 0.0, CLUSTER: meeting, LAUNCH: JOIN, LAST: ARRIVALS}[merge]
    return cycles + joined + (batch * m * n * chains / MOVED if merge == LAUNCH else 0.0)


def _turns(tile: Tile, resident: int, blocks: int, depth: int) -> float:
    """The cycles of blocks of so many products of each element, `resident` at a time."""
    work = tile.bm * tile.bn * depth / UNITS_RATE  # cycles of a block at full rate
    full, rest = divmod(math.ceil(blocks / PROCESSORS), resident)

    def turn(held: int) -> float:
        # fewer warps hide less of what they wait for
        return ENTRY + held * work / (tile.rate * (held / resident) ** tile.fewer)

    return full * turn(resident) + (turn(rest) if rest else 0.0)
