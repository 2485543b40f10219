"""A budget of memory: the ways to run a program, from much memory to little, and which one fits.

The ways do not depend on the budget, and of those that fit the fastest is taken. So a smaller
budget never takes more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pullback.compile.schedule.again import reruns
from pullback.compile.schedule.groups import Grouped

__all__ = ["GroupedRung", "ladder", "rungs"]
__tuning__ = ("MOST_ROUNDS",)

MOST_ROUNDS = 3  # of recomputation, each of which plans memory for every way that there is
LEAST_GAIN = 0.97  # of the bytes before: a round that leaves more was the last


class GroupedRung(NamedTuple):
    """A way to run a program: its peak in bytes, and its work beside that of the first way."""

    grouped: Grouped
    peak_bytes: int
    work: float


Measure = Callable[[Grouped], int]


def rungs(start: GroupedRung, measure: Measure) -> Iterator[list[GroupedRung]]:
    """Rounds of ways, each a ladder: from the most memory and least work to the reverse.

    A round begins where the one before has ended.
    """
    grouped = start.grouped
    for _ in range(MOST_ROUNDS):
        found = []
        for way in reruns(start.grouped.groups):
            plan = Grouped(grouped.inputs, grouped.constants, way.groups, grouped.outputs)
            found.append(GroupedRung(plan, measure(plan), start.work * way.work / way.first))
        found = ladder([start, *found])
        yield found[1:]
        if found[-1].peak_bytes > LEAST_GAIN * start.peak_bytes:
            return
        start = found[-1]


def ladder(ways: Sequence[GroupedRung]) -> list[GroupedRung]:
    """Those that no other beats in both memory and work, by falling peak."""
    found: list[GroupedRung] = []
    for way in sorted(ways, key=lambda w: (w.work, w.peak_bytes)):
        if not found or way.peak_bytes < found[-1].peak_bytes:
            found.append(way)
    return found
