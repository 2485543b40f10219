"""Which stages of a chain to keep, and which to run again, for every amount of memory at once.

A range of stages is run in one of three ways, each with what its later reads need at hand:

    keep    all of its stages keep what crosses the turn, but what is cheaper than `option` says
    first   its first stage does so, the rest is a range of its own
    again   it is run up to a cut, whose frontier is kept; the rest is a range of its own, and when
            that is done with, the part before the cut is run again as a range

The best way to run a range in so many bytes depends on that of smaller ranges only. So a table of
all ranges and sizes gives the optimum, among these ways, for every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

__all__ = ["Again", "Chain", "First", "Keep", "Option", "Way"]
__tuning__ = ("UNITS",)

UNITS = 192  # of which memory is handed out


class Option(NamedTuple):
    """What a stage keeps if all that is cheap is dropped: bytes, and work to have the rest again.

    `missing` are the bytes that are made again when the stage is done with.
    """

    nbytes: int
    missing: int
    work: int


class Keep(NamedTuple):
    """Stages `start` to `end` keep what an option says."""

    start: int
    end: int
    option: int


class First(NamedTuple):
    """Stage `start` keeps what an option says, and there are others."""

    start: int
    option: int
    rest: Way


class Again(NamedTuple):
    """Stages from `start` up to `cut` are run again, after those from `cut` on."""

    start: int
    cut: int
    rest: Way
    before: Way


Way: TypeAlias = Keep | First | Again


class Chain:
    """The table for stages that take `work`, have `options`, and read so many bytes of frontier."""

    def __init__(
        self,
        work: Sequence[int],
        options: Sequence[Sequence[Option]],
        frontier: Sequence[int],
        going_on: Sequence[Sequence[int]],  # by stage and option: frontier behind it, not kept yet
    ):
        self._work, self._options, self._going_on = work, options, going_on
        self._frontier = frontier
        total = sum(o[0].nbytes for o in options) + max(frontier, default=0)
        self.unit = max(1, -(-total // UNITS))
        n = len(work)
        self._cost: list[list[np.ndarray]] = [[np.empty(0)] * n for _ in range(n)]
        self._way: list[list[np.ndarray]] = [[np.empty(0)] * n for _ in range(n)]
        for end in range(n):
            self._fill(end)

    def _units(self, nbytes: int) -> int:
        return -(-nbytes // self.unit)

    def _fill(self, end: int) -> None:
        """All ranges that end with stage `end`."""
        kept = [0] * len(self._options[0])  # bytes that a range keeps, by option
        most = [0] * len(kept)  # and while what is missing is made again
        extra = [0] * len(kept)
        total = 0
        for start in range(end, -1, -1):
            cost = np.full(UNITS + 1, np.inf)
            way = np.zeros(UNITS + 1, np.int64)
            total += self._work[start]
            for j, o in enumerate(self._options[start]):
                kept[j] += o.nbytes
                most[j] = o.nbytes + max(o.missing, most[j])
                extra[j] += o.work
                low = self._units(max(kept[j], most[j]))
                _improve(cost, way, low, total + extra[j], -1 - j)
                if start < end:
                    self._try_first(cost, way, start, end, j)
            before = 0
            for cut in range(start + 1, end + 1):
                before += self._work[cut - 1]
                held = self._units(self._frontier[cut])
                if held <= UNITS:
                    rest = self._cost[cut][end][: UNITS + 1 - held]
                    both = rest + self._cost[start][cut - 1][held:] + before
                    _improve(cost, way, held, both, cut)
            self._cost[start][end], self._way[start][end] = cost, way

    def _try_first(self, cost: np.ndarray, way: np.ndarray, start: int, end: int, j: int) -> None:
        o = self._options[start][j]
        held = self._units(o.nbytes + self._going_on[start][j])
        if held > UNITS:
            return
        rest = self._cost[start + 1][end][: UNITS + 1 - held] + (self._work[start] + o.work)
        low = self._units(o.nbytes + o.missing)
        if low > held:
            rest = rest.copy()
            rest[: low - held] = np.inf
        _improve(cost, way, held, rest, -1 - len(self._options[start]) - j)

    def ways(self, most: int) -> list[Way]:
        """How to run all stages, the most memory first: at most so many of all that differ.

        Each takes a certain share less memory than the one before.
        """
        cost = self._cost[0][-1]
        sizes = [m for m in range(UNITS, 0, -1) if np.isfinite(cost[m]) and cost[m] < cost[m - 1]]
        if not sizes:
            return []
        share = (sizes[-1] / sizes[0]) ** (1 / most)
        chosen = sizes[:1]
        for m in sizes[1:]:
            if m <= share * chosen[-1] or m == sizes[-1]:
                chosen.append(m)
        return [self._at(0, len(self._work) - 1, m) for m in chosen]

    def _at(self, start: int, end: int, size: int) -> Way:
        code, count = int(self._way[start][end][size]), len(self._options[start])
        if code > 0:
            rest = self._at(code, end, size - self._units(self._frontier[code]))
            return Again(start, code, rest, self._at(start, code - 1, size))
        j = -1 - code
        if j < count:
            return Keep(start, end, j)
        j -= count
        o = self._options[start][j]
        held = self._units(o.nbytes + self._going_on[start][j])
        return First(start, j, self._at(start + 1, end, size - held))


def _improve(
    cost: np.ndarray, way: np.ndarray, low: int, found: np.ndarray | int, code: int
) -> None:
    """Take what was found, for sizes from `low` on, where it costs less."""
    if low > UNITS:
        return
    part = cost[low:]
    better = found < part
    part[better] = found[better] if isinstance(found, np.ndarray) else found
    way[low:][better] = code
