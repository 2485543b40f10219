"""Which groups of a program have to wait for which: those that use the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pullback.compile.schedule.groups import Stored

if TYPE_CHECKING:
    from pullback.compile.program.frame import Frame, GroupStep

__all__ = ["waits_of"]

# Groups up to which all pairs are compared; longer programs are lines, and mostly loops.
MOST = 256


class _Span(NamedTuple):
    """Bytes of the arena or of the output."""

    area: str
    start: int
    end: int

    def meets(self, other: _Span) -> bool:
        return self.area == other.area and self.start < other.end and other.start < self.end


class _Use(NamedTuple):
    """What a group reads and writes."""

    reads: Sequence[_Span]
    writes: Sequence[_Span]

    def waits_for(self, other: _Use) -> bool:
        """Whether the other one, which comes before, has to end first."""
        return _meet(self.reads, other.writes) or _meet(self.writes, [*other.reads, *other.writes])


def _meet(some: Sequence[_Span], others: Sequence[_Span]) -> bool:
    return any(a.meets(b) for a in some for b in others)


def waits_of(frame: Frame) -> list[tuple[int, tuple[int, ...]]]:
    """For each group of an outermost frame the number of its stages, and the groups that have to
    end before it begins, but for those that these wait for. Empty if it is a line.
    """
    if len(frame.steps) > MOST:
        return []
    uses = [_use(frame, step) for step in frame.steps]
    found: list[tuple[int, tuple[int, ...]]] = []
    behind: list[set[int]] = []  # all that each group waits for
    for k, (step, use) in enumerate(zip(frame.steps, uses, strict=True)):
        all_before: set[int] = set()
        direct = []
        for i in range(k - 1, -1, -1):
            if i not in all_before and use.waits_for(uses[i]):
                direct.append(i)
                all_before |= {i, *behind[i]}
        behind.append(all_before)
        found.append((len(step.stages), tuple(direct)))
    return found


def _use(frame: Frame, step: GroupStep) -> _Use:
    group = step.group
    scratch = [_Span("arena", frame.base, frame.base + step.scratch_nbytes)]
    own = scratch if step.scratch_nbytes else []
    reads, writes = group.values_read(), group.values_written()
    return _Use(_spans(frame, reads), [*_spans(frame, writes), *own])


def _spans(frame: Frame, values: Sequence[Stored]) -> list[_Span]:
    """Where values are that have a place; what is local to a group has none."""
    found = []
    for value in dict.fromkeys(values):
        place = frame.plan.places.get(value)
        if place is not None and value.nbytes:
            found.append(_Span(place.area, place.offset, place.offset + value.nbytes))
    return found
