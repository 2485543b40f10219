"""Where computed values live: one arena for what is dropped, one buffer for the outputs.

Groups run one after the other; a value is live from the group that first writes it to the last that
reads it (an output: to the end). Values whose lives do not meet may share memory, in the arena and,
before an output is written, in its place as well. A kernel may write over a value that it reads for
the last time, element by element.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    Group,
    Grouped,
    MapGroup,
    ParallelGroup,
    SequenceGroup,
    Stored,
    is_dense,
)
from pullback.compile.schedule.memory_gaps import Placed
from pullback.compile.schedule.memory_scan import Life, scanned
from pullback.core.errors import PullbackError
from pullback.ir.lowering import ScatterRows

__all__ = ["Life", "MemoryPlan", "Overwritable", "Place", "aligned", "plan_memory"]
__tuning__ = ("MANY",)

NOBODY = 1 << 62  # comes after all members of a group
ALIGNMENT = 64  # bytes: a cache line, and the widest vector there is
MANY = 4096  # values: from here on the largest first would take seconds


class Place(NamedTuple):
    """Bytes of the arena ("arena") or of the output buffer ("out")."""

    area: str
    offset: int


@dataclass(eq=False)
class MemoryPlan:
    """A place for every computed value."""

    places: dict[Stored, Place]
    arena_nbytes: int
    out_nbytes: int
    lives: list[Life]

    @property
    def peak_bytes(self) -> int:
        return self.arena_nbytes + self.out_nbytes

    def verify(self) -> None:
        """Check that no two values share memory while both are needed.

        But for a kernel that writes over its operand, at exactly the same place.
        """
        live = {"arena": _Spans(), "out": _Spans()}
        ending: list[tuple[int, int, Life]] = []
        for k, life in enumerate(sorted(self.lives, key=attrgetter("start"))):
            if life.nbytes == 0:
                continue
            while ending and ending[0][0] < life.start:
                old = heappop(ending)[2]
                place = self.places[old.value]
                live[place.area].remove(place.offset, old)
            place = self.places[life.value]
            for old in life.over:
                if old.value in self.places and self.places[old.value] == place:
                    live[place.area].remove(place.offset, old)
            other = live[place.area].add(place.offset, life)
            if other is not None:
                raise PullbackError(
                    f"memory: {life.value} and {other.value} share bytes while both are needed."
                )
            heappush(ending, (life.stop, k, life))


class _Spans:
    """Values in one area, by their offsets."""

    def __init__(self):
        self._offsets: list[int] = []
        self._lives: list[Life] = []

    def add(self, offset: int, life: Life) -> Life | None:
        """Put a value there; another one that has some of these bytes."""
        at = bisect_left(self._offsets, offset)
        for k in range(max(0, at - 1), min(at + 1, len(self._lives))):
            other = self._lives[k]
            if _overlap((offset, life.nbytes), (self._offsets[k], other.nbytes)):
                return other
        self._offsets.insert(at, offset)
        self._lives.insert(at, life)
        return None

    def remove(self, offset: int, life: Life) -> None:
        """Drop a value, unless another has taken its place already."""
        at = bisect_left(self._offsets, offset)
        if at < len(self._lives) and self._lives[at] is life:
            del self._offsets[at], self._lives[at]


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


Overwritable = Sequence[tuple[Stored, Stored]]  # (written, read) that may share their memory


def plan_memory(
    grouped: Grouped, local: Iterable[Stored] = (), known: dict[Group, Overwritable] | None = None
) -> MemoryPlan:
    """Assign places, the largest values first; `local` ones need none of the arena.

    `known` keeps what was found out of groups, for further plans that they are part of.
    """
    apart = {id(s) for s in local}
    lives = [
        life
        for life in _lives(grouped, {} if known is None else known)
        if id(life.value) not in apart
    ]
    places: dict[Stored, Place] = {}
    out_nbytes = 0
    for life in lives:
        if life.value.is_output:
            places[life.value] = Place("out", out_nbytes)
            out_nbytes += aligned(life.nbytes)
    rest = [life for life in lives if not life.value.is_output]
    placed = [life for life in lives if life.value.is_output]
    if len(lives) > MANY:
        outputs = [(life, places[life.value].offset) for life in placed]
        found, arena = scanned(rest, outputs, ALIGNMENT)
        places |= {life.value: Place(*where) for life, where in zip(rest, found, strict=True)}
    else:
        arena = _largest_first(rest, placed, places, out_nbytes)
    plan = MemoryPlan(places, arena, out_nbytes, lives)
    plan.verify()
    return plan


def _largest_first(
    rest: Sequence[Life], outputs: Sequence[Life], places: dict[Stored, Place], out_nbytes: int
) -> int:
    """Assign places and return the size of the arena."""
    order = [*outputs, *sorted(rest, key=lambda x: (-x.nbytes, x.start))]
    placed = Placed(order, [places[life.value].offset for life in outputs], ALIGNMENT)
    for life in order[len(outputs) :]:
        places[life.value] = Place(*placed.place(life, out_nbytes))
    return placed.arena_nbytes


def _lives(grouped: Grouped, known: dict[Group, Overwritable]) -> list[Life]:
    end = len(grouped.groups)
    found: dict[Stored, Life] = {}
    for step, group in enumerate(grouped.groups):
        for value in group.values_written():
            if value not in found:
                stop = end if value.is_output else step
                found[value] = Life(value, step, stop, value.nbytes)
        for value in group.values_read():
            if value in found:
                found[value].stop = max(found[value].stop, step)
    for step, group in enumerate(grouped.groups):
        if group not in known:
            known[group] = _overwritable(group)
        for new, old in known[group]:
            a, b = found[new], found.get(old)
            if b is not None and b.stop == step == a.start and not old.is_output:
                a.over.append(b)
    return list(found.values())


def _overwritable(group: Group) -> Overwritable:
    """Pairs (written, read) of a group that may share their memory."""
    if isinstance(group, CallGroup):
        return _scattered(group)
    if isinstance(group, ParallelGroup):
        return []
    members = group.members if isinstance(group, SequenceGroup) else [group]
    last: dict[Stored, int] = {}  # who reads a value last, element by element as all others do
    for k, m in enumerate(members):
        if isinstance(m, CallGroup):
            last |= dict.fromkeys(m.values_read(), NOBODY)
            continue
        shape = m.shape if isinstance(m, MapGroup) else m.kept + m.folded
        for a in m.reads:
            last[a.stored] = max(k, last.get(a.stored, k)) if _straight(a, shape) else NOBODY
    found = []
    for k, m in enumerate(members):
        if not isinstance(m, MapGroup):
            continue
        for w in m.writes:
            if not _straight(w, m.shape):
                continue
            new = w.stored.aval
            for old in dict.fromkeys(m.values_read()):
                if old.aval.dtype is not new.dtype or old.aval.size != new.size:
                    continue
                if last[old] <= k:
                    found.append((w.stored, old))
    return found


def _scattered(group: CallGroup) -> list[tuple[Stored, Stored]]:
    """A scatter may fold its updates into the array that it starts from."""
    if not isinstance(getattr(group.equation.op, "lowering", None), ScatterRows):
        return []
    base, *others = group.operands
    whole = base.is_whole and all(r.stored is not base.stored for r in others)
    return [(group.results[0], base.stored)] if whole else []


def _straight(access: Access, shape: tuple[int, ...]) -> bool:
    """Whether element i of the walk is element i of the value."""
    return access.offset == 0 and is_dense(shape, access.strides)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two spans, given by start and size, have bytes in common."""
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
