"""Which groups of a program have to wait for which: those that use the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.program.slots import BuiltFrame, GroupStep, LoopSlots
from pullback.compile.program.stages import Wait
from pullback.compile.schedule.groups import Access, MapGroup, Stored
from pullback.core.avals import dense_strides

__all__ = ["round_waits", "waits_of"]

MOST = 256  # groups up to which all pairs are compared; longer programs are lines, mostly loops


class _Box(NamedTuple):
    """The first and the last element along each axis of an array of a shape."""

    shape: Sequence[int]
    first: Sequence[int]
    last: Sequence[int]

    def meets(self, other: _Box) -> bool:
        ends = zip(self.first, self.last, other.first, other.last, strict=True)
        return all(a <= d and c <= b for a, b, c, d in ends)


class _Span(NamedTuple):
    """Bytes of the arena, of the output or of what a slot stands for; a part of the array there."""

    area: str | int
    start: int
    end: int
    box: _Box | None = None

    def meets(self, other: _Span) -> bool:
        if self.area != other.area or self.start >= other.end or other.start >= self.end:
            return False
        a, b = self.box, other.box
        same = self.start == other.start and self.end == other.end
        return not (same and a and b and a.shape == b.shape) or a.meets(b)


class _Use(NamedTuple):
    """What a group of so many stages reads and writes."""

    stages: int
    reads: Sequence[_Span]
    writes: Sequence[_Span]

    def waits_for(self, other: _Use) -> bool:
        """Whether the other one, which comes before, has to end first."""
        return _meet(self.reads, other.writes) or _meet(self.writes, [*other.reads, *other.writes])


def _meet(some: Sequence[_Span], others: Sequence[_Span]) -> bool:
    return any(a.meets(b) for a in some for b in others)


def waits_of(frame: BuiltFrame) -> list[tuple[int, tuple[int, ...]]]:
    """For each group of an outermost frame the number of its stages, and the groups that have to
    end before it begins, but for those that these wait for. Empty if it is a line.
    """
    if len(frame.steps) > MOST:
        return []
    return _waits([_use(frame, step) for step in frame.steps])


def round_waits(frame: BuiltFrame, loop: LoopSlots) -> list[Wait]:
    """The groups of the body of a loop; copies in the end are groups too. Empty if it is a line."""
    if len(frame.steps) + len(frame.copies) > MOST:
        return []
    uses = [_use(frame, step) for step in frame.steps]
    for copy in frame.copies:
        uses.append(_Use(copy.stages, _spans(frame, [copy.source]), [_Span(copy.slot, 0, 1)]))
    partners = {slot: spare for slot, (spare, _) in loop.carries.items()}
    partners |= {spare: slot for slot, spare in partners.items()}

    def later(span: _Span) -> _Span:
        """The same in the round after it; what moves is then elsewhere."""
        if span.area in loop.moves:
            return span._replace(area=f"{span.area} in the next round")
        return span._replace(area=partners.get(span.area, span.area))  # type: ignore[arg-type]

    found = []
    for use, (count, after) in zip(uses, _waits(uses), strict=True):
        again = _Use(count, [*map(later, use.reads)], [*map(later, use.writes)])
        before = tuple(i for i, other in enumerate(uses) if again.waits_for(other))
        found.append(Wait(count, after, before))
    return found


def _waits(uses: Sequence[_Use]) -> list[tuple[int, tuple[int, ...]]]:
    found: list[tuple[int, tuple[int, ...]]] = []
    behind: list[set[int]] = []  # all that each group waits for
    for k, use in enumerate(uses):
        all_before: set[int] = set()
        direct = []
        for i in range(k - 1, -1, -1):
            if i not in all_before and use.waits_for(uses[i]):
                direct.append(i)
                all_before |= {i, *behind[i]}
        behind.append(all_before)
        found.append((use.stages, tuple(direct)))
    return found


def _use(frame: BuiltFrame, step: GroupStep) -> _Use:
    group = step.group
    scratch = [_Span("arena", frame.base, frame.base + step.scratch_nbytes)]
    own = scratch if step.scratch_nbytes else []
    count = len(step.stages)
    if isinstance(group, MapGroup):
        parts = [
            [s for a in accesses for s in _spans(frame, [a.stored], _box(a, group.shape))]
            for accesses in (group.reads, group.writes)
        ]
        return _Use(count, parts[0], [*parts[1], *own])
    reads, writes = group.values_read(), group.values_written()
    return _Use(count, _spans(frame, reads), [*_spans(frame, writes), *own])


def _box(access: Access, shape: Sequence[int]) -> _Box | None:
    """What a kernel over a shape goes through of a dense array, if that is a box."""
    own = access.stored.aval.shape
    dense = dense_strides(own)
    if access.stored.origin != "computed" or 0 in own:
        return None
    rest, first = access.offset, []
    for step in dense:
        first.append(rest // step)
        rest %= step
    last = [*first]
    for n, stride in zip(shape, access.strides, strict=True):
        if n == 1 or stride == 0:
            continue
        axes = [d for d, step in enumerate(dense) if own[d] > 1 and step <= stride]
        if not axes or stride % dense[axes[0]]:
            return None
        last[axes[0]] += (n - 1) * (stride // dense[axes[0]])
    fits = all(k < n for k, n in zip(last, own, strict=True))
    return _Box(own, first, last) if fits else None


def _spans(frame: BuiltFrame, values: Sequence[Stored], box: _Box | None = None) -> list[_Span]:
    """Where values are; constants are never written."""
    found = []
    for value in dict.fromkeys(values):
        place, slot = frame.plan.places.get(value), frame.own_slot(value)
        if place is not None and value.nbytes:
            start = place.offset + (frame.start if place.area == "arena" else 0)
            found.append(_Span(place.area, start, start + value.nbytes, box))
        elif slot is not None and value.nbytes:
            found.append(_Span(slot, 0, 1, box))
    return found
