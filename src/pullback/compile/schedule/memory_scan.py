"""Memory for many values: placed in order of time, each in the tightest gap that is free by then.

`memory_gaps` places the largest values first, which takes less memory but a time that grows with
the square of their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from pullback.compile.schedule.groups import Stored

__all__ = ["Gaps", "Life", "scanned"]
__tuning__ = ("CANDIDATES",)

CANDIDATES = 8  # outputs whose place is considered for a value


@dataclass(eq=False)
class Life:
    """When a value is needed: from step `start` to step `stop`, both included."""

    value: Stored
    start: int
    stop: int
    nbytes: int
    over: list[Life] = field(default_factory=list)  # dying values that it may be written over


class Gaps:
    """The free spans of an arena that can grow: (offset, size), neighbours joined."""

    def __init__(self):
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}  # by the end of the span

    def take(self, nbytes: int) -> int:
        """The offset of `nbytes`: the tightest gap, or the end of the arena."""
        k = bisect_left(self._by_size, (nbytes, -1))
        if k < len(self._by_size):
            size, offset = self._by_size[k]
            self._remove(offset, size)
            if size > nbytes:
                self._insert(offset + nbytes, size - nbytes)
            return offset
        offset = self._start_of.get(self.end, self.end)
        if offset < self.end:
            self._remove(offset, self.end - offset)
        self.end = offset + nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Free a span that was taken."""
        if nbytes == 0:
            return
        after = self._size_at.get(offset + nbytes)
        if after is not None:
            self._remove(offset + nbytes, after)
            nbytes += after
        before = self._start_of.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            nbytes += offset - before
            offset = before
        self._insert(offset, nbytes)

    def _insert(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._start_of[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset], self._start_of[offset + size]


class _Outputs:
    """Places of outputs, to be lent to others until the outputs are written."""

    def __init__(self, outputs: Sequence[tuple[Life, int]]):
        self._idle = sorted((life.nbytes, -life.start, offset) for life, offset in outputs)

    def borrow(self, life: Life) -> tuple[int, int, int] | None:
        """An output's place that is large enough and not needed before the value is dropped."""
        k = bisect_left(self._idle, (life.nbytes, -(1 << 62), -1))
        for at in range(k, min(k + CANDIDATES, len(self._idle))):
            if -self._idle[at][1] > life.stop:
                return self._idle.pop(at)
        return None

    def give_back(self, place: tuple[int, int, int]) -> None:
        insort(self._idle, place)


def scanned(
    lives: Sequence[Life], outputs: Sequence[tuple[Life, int]], unit: int
) -> tuple[list[tuple[str, int]], int]:
    """Area and offset of each of the `lives`, and the size of the arena.

    Sizes are rounded up to `unit`; `outputs` are the places of the outputs in their buffer.
    """
    gaps, idle = Gaps(), _Outputs(outputs)
    ending: list[tuple[int, int]] = []
    found: list[tuple[str, int]] = [("", 0)] * len(lives)
    borrowed: dict[int, tuple[int, int, int]] = {}
    number = {id(life): k for k, life in enumerate(lives)}
    passed_on: set[int] = set()

    def release(k: int) -> None:
        if k in passed_on:
            return
        if k in borrowed:
            idle.give_back(borrowed[k])
        else:
            gaps.give(found[k][1], _rounded(lives[k].nbytes, unit))

    def inherited(life: Life, k: int) -> bool:
        """Whether the value is written over one that it reads, whose place it gets."""
        for old in life.over:
            j = number.get(id(old))
            if j is None or j in passed_on or old.nbytes != life.nbytes or not found[j][0]:
                continue
            if j in borrowed and -borrowed[j][1] <= life.stop:
                continue
            found[k] = found[j]
            passed_on.add(j)
            if j in borrowed:
                borrowed[k] = borrowed[j]
            return True
        return False

    order = sorted(range(len(lives)), key=lambda k: (lives[k].start, -lives[k].nbytes))
    for k in order:
        life = lives[k]
        while ending and ending[0][0] < life.start:
            release(heappop(ending)[1])
        if not inherited(life, k):
            place = idle.borrow(life)
            if place is not None:
                borrowed[k] = place
                found[k] = ("out", place[2])
            else:
                found[k] = ("arena", gaps.take(_rounded(life.nbytes, unit)))
        heappush(ending, (life.stop, k))
    return found, gaps.end


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
