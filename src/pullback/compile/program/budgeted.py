"""The ways to run a graph in less memory, each with its exact peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pullback.compile.program.frame import Frame, local_values_of
from pullback.compile.program.slots import SlotTable
from pullback.compile.program.target import Target
from pullback.compile.schedule.budget import GroupedRung, rungs
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import Group, Grouped, ParallelGroup, SequenceGroup
from pullback.compile.schedule.memory import Overwritable, aligned, plan_memory
from pullback.compile.schedule.work import running_work
from pullback.core.avals import Aval
from pullback.ir.graph import Graph, Var

__all__ = ["FusedGraph", "Rounds"]


class FusedGraph(NamedTuple):
    """A graph as it is fused: its groups, the peak of its program, and the scratch in that."""

    grouped: Grouped
    peak_bytes: int
    scratch_nbytes: int

    @staticmethod
    def of(frame: Frame) -> FusedGraph:
        """What became of the groups of a frame."""
        return FusedGraph(frame.grouped, frame.peak_bytes, frame.scratch_nbytes)


class Rounds:
    """Ladders of ways to run a graph: as it is fused; with small groups apart; and steps again.

    What comes later in the iteration takes less memory, and is not looked for before it is needed.
    """

    def __init__(
        self,
        graph: Graph,
        layouts: Sequence[Aval],
        used: Sequence[Var],
        target: Target,
        first: FusedGraph,
    ):
        self._graph, self._layouts, self._used, self._target = graph, layouts, used, target
        self._first = first

    def __iter__(self) -> Iterator[list[GroupedRung]]:
        grouped, peak, scratch = self._first
        start = GroupedRung(grouped, peak, 1.0)
        yield [start]
        if any(map(_is_shared, grouped.groups)):
            apart = fuse(self._graph, self._layouts, together=False)
            in_params = self._target.tuning.slots_in_params
            table = SlotTable(len(self._graph.inputs), self._used, in_params)
            frame = self._target.together(Frame, apart, table, self._target, self._graph)
            _, peak, scratch = FusedGraph.of(frame)
            start = GroupedRung(apart, peak, max(1.0, _work(apart) / _work(grouped)))
            yield [start]
        known: dict[Group, Overwritable] = {}
        yield from rungs(start, lambda g: self._peak(g, scratch, known))

    def _peak(self, grouped: Grouped, scratch: int, known: dict[Group, Overwritable]) -> int:
        """What a call allocates; steps that are run again take no more scratch."""
        local = local_values_of(grouped, self._target.tuning)
        plan = plan_memory(grouped, [s for own in local.values() for s in own], known)
        return aligned(plan.arena_nbytes) + scratch + plan.out_nbytes


def _is_shared(group: object) -> bool:
    return isinstance(group, ParallelGroup) or (
        isinstance(group, SequenceGroup) and group.has_products
    )


def _work(grouped: Grouped) -> int:
    return sum(map(running_work, grouped.groups))
