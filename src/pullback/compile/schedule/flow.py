"""The steps of a program around its turn: what is kept across it, and what could be computed again.

The turn is the step after which most bytes wait for their last use. In a program of values and
gradients that is where the forward part ends. *Crossing* values are made before the turn and read
after it. The part before it is cut into *stages* where few bytes go from one to the next: the
*frontier* of a cut are the values that stages behind it read, so that these can be run again from
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from pullback.compile.schedule.groups import CallGroup, Group, ParallelGroup, SequenceGroup, Stored
from pullback.compile.schedule.work import running_work
from pullback.ir.control import WHILE
from pullback.ir.effects import has_effect
from pullback.ir.graph import Equation, Graph
from pullback.ir.lowering import Intrinsic

__all__ = ["Flow"]
__tuning__ = ("MOST_STAGES",)

MOST_STAGES = 64  # so that the choice among all ways to run them takes a second at most


class Flow:
    """Steps, the values that cross their turn, and the stages before it."""

    def __init__(self, groups: Sequence[Group]):
        self.groups = groups
        self.work = [running_work(g) for g in groups]
        self.reads = [_computed(g.values_read()) for g in groups]
        self.writes = [_computed(g.values_written()) for g in groups]
        self.writers: dict[Stored, list[int]] = {}
        self.readers: dict[Stored, list[int]] = {}
        for k, (read, written) in enumerate(zip(self.reads, self.writes, strict=True)):
            for s in read:
                self.readers.setdefault(s, []).append(k)
            for s in written:
                self.writers.setdefault(s, []).append(k)
        waiting = [0] * (len(groups) + 1)
        for s, read in self.readers.items():
            if not s.is_output:
                waiting[self.writers[s][-1]] += s.nbytes
                waiting[read[-1]] -= s.nbytes
        held = list(accumulate(waiting))
        self.turn = held.index(max(held))
        fixed = {s for k in range(self.turn + 1) if _is_fixed(groups[k]) for s in self.writes[k]}
        self.movable = {
            s
            for s, made in self.writers.items()
            if made[-1] <= self.turn and s not in fixed and not s.is_output
        }
        self.crossing = [s for s in self.movable if self.last_read(s) > self.turn]
        self._forward = self._waiting_before()
        self.cuts = self._cuts()
        self.stage_of = {
            s: next(i for i, end in enumerate(self.cuts[1:]) if self.born(s) <= end)
            for s in self.movable
        }
        self.stages: list[list[Stored]] = [[] for _ in self.cuts[1:]]  # what crosses, by stage
        for s in self.crossing:
            self.stages[self.stage_of[s]].append(s)
        self.frontiers = [self._frontier(at) for at in self.cuts[:-1]]

    def born(self, s: Stored) -> int:
        """The step that completes a value."""
        return self.writers[s][-1]

    def last_read(self, s: Stored) -> int:
        """The last step that reads a value."""
        return self.readers[s][-1] if s in self.readers else -1

    def stage_work(self, i: int) -> int:
        """What running a stage takes."""
        return sum(self.work[self.cuts[i] + 1 : self.cuts[i + 1] + 1])

    def closure(
        self, wanted: Iterable[Stored], known: Collection[Stored]
    ) -> tuple[list[int], set[Stored]]:
        """The steps that make what is wanted from what is known, and the known values they read."""
        steps: set[int] = set()
        used: set[Stored] = set()
        stack = list(wanted)
        seen = set(stack)
        while stack:
            for k in self.writers[stack.pop()]:
                if k in steps:
                    continue
                steps.add(k)
                for s in self.reads[k]:
                    if s in known:
                        used.add(s)
                    elif s in self.movable and s not in seen:
                        seen.add(s)
                        stack.append(s)
        return sorted(steps), used

    def _cuts(self) -> list[int]:
        """The steps after which stages end: before all (-1), where little goes on, and the turn."""
        made = [0] * (self.turn + 1)
        for s in self.crossing:
            made[self.born(s)] += s.nbytes
        going = [0] * (self.turn + 2)
        for s, (start, end) in self._forward.items():
            going[start] += s.nbytes
            going[end] -= s.nbytes
        going = list(accumulate(going))
        least = max(1, sum(made) // MOST_STAGES)
        cuts, size, best = [-1], 0, -1
        for k in range(self.turn):
            size += made[k]
            if size < least:
                continue
            if best < 0 or going[k] < going[best]:
                best = k
            if size + made[k + 1] >= 2 * least:
                cuts.append(best)
                size, best = sum(made[best + 1 : k + 1]), -1
        return [*cuts, self.turn]

    def _waiting_before(self) -> dict[Stored, tuple[int, int]]:
        """From when to when values before the turn wait for others before it."""
        found = {}
        for s in self.movable:
            before = [k for k in self.readers.get(s, ()) if k <= self.turn]
            if before:
                found[s] = self.born(s), before[-1]
        return found

    def _frontier(self, at: int) -> set[Stored]:
        """What steps between a cut and the turn read of those before the cut."""
        return {s for s, (start, end) in self._forward.items() if start <= at < end}


def _computed(values: Iterable[Stored]) -> list[Stored]:
    return list(dict.fromkeys(s for s in values if s.origin == "computed" and s.nbytes))


def _is_fixed(g: Group) -> bool:
    """Whether a group must not run twice: it acts on the world, or may take any time."""
    if isinstance(g, (SequenceGroup, ParallelGroup)):
        return any(_is_fixed(m) for m in g.members)
    return isinstance(g, CallGroup) and (has_effect(g.equation) or _may_take_long(g.equation))


def _may_take_long(eq: Equation) -> bool:
    """Whether an equation calls the host's functions, or loops for an unknown number of times."""
    low = getattr(eq.op, "lowering", None)
    if eq.op is WHILE or (isinstance(low, Intrinsic) and low.name == "host"):
        return True
    graphs = [g for g in eq.static.values() if isinstance(g, Graph)]
    return any(_may_take_long(e) for g in graphs for e in g.equations)
