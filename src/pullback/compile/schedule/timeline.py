"""The memory of a compiled program over its steps: which bytes hold what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.schedule.memory import Life, MemoryPlan, aligned

__all__ = ["MemoryBlock", "Timeline"]


class MemoryBlock(NamedTuple):
    """Bytes of an area ("arena" or "out") from step `start` to step `stop`, both included."""

    name: str
    area: str
    offset: int
    nbytes: int
    start: int
    stop: int


class Timeline(NamedTuple):
    """The steps of a program by their names, and the blocks that live meanwhile.

    A call allocates `arena_nbytes` for what is dropped, and `out_nbytes` for its outputs.
    """

    steps: list[str]
    blocks: list[MemoryBlock]
    arena_nbytes: int
    out_nbytes: int

    @staticmethod
    def of(plan: MemoryPlan, steps: Sequence[tuple[str, int]], arena_nbytes: int) -> Timeline:
        """The timeline of a plan whose steps, by name, use so many bytes of scratch after it."""
        last = len(steps) - 1
        blocks = [
            MemoryBlock(repr(x.value), *_place(plan, x), x.nbytes, x.start, min(x.stop, last))
            for x in plan.lives
            if x.nbytes
        ]
        scratch = aligned(plan.arena_nbytes)
        for k, (label, nbytes) in enumerate(steps):
            if nbytes:
                blocks.append(MemoryBlock(f"scratch of {label}", "arena", scratch, nbytes, k, k))
        return Timeline([label for label, _ in steps], blocks, arena_nbytes, plan.out_nbytes)

    @property
    def peak_bytes(self) -> int:
        """What a call allocates."""
        return self.arena_nbytes + self.out_nbytes

    @property
    def live_bytes(self) -> list[int]:
        """Bytes that are needed at each step: values, whether or not they share memory, once."""
        found = []
        for k in range(len(self.steps)):
            spans = {(b.area, b.offset, b.nbytes) for b in self.blocks if b.start <= k <= b.stop}
            found.append(sum(nbytes for *_, nbytes in spans))
        return found


def _place(plan: MemoryPlan, life: Life) -> tuple[str, int]:
    place = plan.places[life.value]
    return place.area, place.offset
