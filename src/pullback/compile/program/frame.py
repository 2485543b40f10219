"""Groups as stages: where every value is, and the pointers through which kernels find it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pullback.compile.kernel.forms import Accumulate
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program import control, operations
from pullback.compile.program.slots import CopyStep, GroupStep, SlotTable
from pullback.compile.program.stages import Blocks, Node, Parts, Stage
from pullback.compile.program.target import Target, Tuning, ending
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    Grouped,
    MapGroup,
    ParallelGroup,
    Region,
    SequenceGroup,
    Stored,
    squeezed,
)
from pullback.compile.schedule.memory import MemoryPlan, plan_memory
from pullback.compile.schedule.row_kernel import is_one_row, row_plan
from pullback.compile.schedule.sequences import local_values
from pullback.compile.schedule.work import product_work
from pullback.core.avals import Aval, dense_strides
from pullback.ir.graph import Graph

__all__ = ["Frame", "inner_graphs", "local_values_of"]


def inner_graphs(graph: Graph) -> Iterator[Graph]:
    """The graphs inside control flow, at any depth."""
    for eq in graph.equations:
        for g in eq.static.values():
            if isinstance(g, Graph):
                yield g
                yield from inner_graphs(g)


def _step_bytes(g: SequenceGroup, value: Stored) -> int:
    return g.step_elements(value) * value.dtype.itemsize


def _product_rows(g: SequenceGroup, tuning: Tuning) -> int:
    """Rows of a task of a sequence with products."""
    work = sum(product_work(m) for m in g.members if isinstance(m, CallGroup))
    tasks = max(2, min(g.count // tuning.least_rows, work // tuning.task_work))
    return -(-g.count // tasks // tuning.rows_together) * tuning.rows_together


def _block_steps(g: SequenceGroup, tuning: Tuning) -> int:
    """Steps of a sequence that are worked on at once: what stays in the cache of a core."""
    if g.length:
        return 1
    if g.has_products:
        return _product_rows(g, tuning)
    values = dict.fromkeys([*g.values_read(), *g.values_written()])
    size = sum(_step_bytes(g, s) for s in values)
    return max(1, min(g.steps, tuning.block_bytes // max(1, size)))


def local_values_of(grouped: Grouped, tuning: Tuning) -> dict[int, list[Stored]]:
    """Of each sequence, by its id, the values that need no memory but a block of rows."""
    readers = Counter(s for g in grouped.groups for s in set(g.values_read()))
    found = {}
    for g in grouped.groups:
        if isinstance(g, SequenceGroup):
            own = local_values(readers, g)
            block = _block_steps(g, tuning)
            while block * sum(_step_bytes(g, s) + tuning.line for s in own) > tuning.local_bytes:
                own.remove(max(own, key=lambda s: s.nbytes))
            found[id(g)] = own
    return found


class Frame:
    """The stages of one graph.

    A graph inside another has its `inputs` and `outputs` at given slots, and its temporaries in the
    arena from `start` on.
    """

    def __init__(
        self,
        grouped: Grouped,
        table: SlotTable,
        target: Target,
        graph: Graph,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
        start: int = 0,
    ):
        self.grouped, self.table, self.target, self.start = grouped, table, target, start
        self.inputs = range(1, 1 + len(grouped.inputs)) if inputs is None else inputs
        self.constants = [table.constants.get(id(v), 0) for v in graph.constants]
        self._own_slots: dict[Stored, int] = {}  # of values that have no place in arena or output
        copies = self._place_outputs(outputs or ())
        self.local = local_values_of(grouped, target.tuning)
        apart = [s for own in self.local.values() for s in own] + list(self._own_slots)
        self.plan: MemoryPlan = plan_memory(grouped, apart)
        self.free = table.reserve(start, self.plan.arena_nbytes)
        self.stages: list[Node] = []
        self.steps: list[GroupStep] = []
        self.base = base = self.free  # where the scratch of each group begins
        for group in grouped.groups:
            self.free, known, first = base, len(table.reserved), len(self.stages)
            self.stages += self.stages_of(group)
            scratch = max(table.reserved[known:], default=base) - base
            self.steps.append(GroupStep(group, scratch, range(first, len(self.stages))))
        self.copies: list[CopyStep] = []
        for region, slot in copies:
            copied = self.copy(region, slot)
            self.stages += copied
            self.copies.append(CopyStep(region.stored, slot, len(copied)))

    @property
    def peak_bytes(self) -> int:
        """Bytes of the program of which this is the outermost frame: arena and outputs."""
        return self.table.arena_nbytes + self.plan.out_nbytes

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of the arena after all values."""
        return max((s.scratch_nbytes for s in self.steps), default=0)

    def _place_outputs(self, outputs: Sequence[int]) -> list[tuple[Region, int]]:
        """Let outputs be computed where they are wanted; what is to be copied there instead."""
        copies = []
        for region, slot in zip(self.grouped.outputs, outputs, strict=False):
            stored = region.stored
            if stored.origin == "computed" and stored not in self._own_slots and stored.aval.size:
                self._own_slots[stored] = slot
            else:
                copies.append((region, slot))
        return copies

    def inner(
        self,
        graph: Graph,
        layouts: Sequence[Aval],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> Frame:
        """The frame of a graph inside, which uses the free part of the arena."""
        grouped = fuse(graph, layouts, ending=ending(self.target))
        return Frame(grouped, self.table, self.target, graph, inputs, outputs, self.free)

    def copy(self, region: Region, slot: int) -> Sequence[Node]:
        """Stages that write a region to a slot, dense."""
        av = region.aval
        if av.size == 0:
            return []
        source = self.slot(region.stored, region.offset)
        dense = dense_strides(av.shape)
        assert av.strides is not None
        return self.target.map(
            copy_kernel(av.dtype), av.shape, [slot], [dense], [source], [av.strides]
        )

    def own_slot(self, value: Stored) -> int | None:
        """The slot of a value that has no place in arena or output: what it was given, or local."""
        if value.origin == "input":
            return self.inputs[value.position]
        return self._own_slots.get(value)

    def slot(self, value: Stored, offset: int = 0) -> int:
        """The slot of element `offset` of a value; an empty one may be anywhere."""
        if value.aval.size == 0:
            return 0
        nbytes = offset * value.dtype.itemsize
        if value.origin != "computed":
            known = self.inputs if value.origin == "input" else self.constants
            return self.table.pointer(known[value.position], nbytes)
        if value in self._own_slots:
            return self.table.pointer(self._own_slots[value], nbytes)
        place = self.plan.places[value]
        if place.area == "out":
            return self.table.pointer(0, place.offset + nbytes)
        return self.table.pointer(self.table.arena, self.start + place.offset + nbytes)

    def scratch(self, nbytes: int) -> int:
        """The slot of memory that only the group in hand uses.

        A slot without memory is nobody else's: what is local to a block will be found there.
        """
        if nbytes == 0:
            return self.table.fresh(self.table.arena, self.free)
        slot = self.table.pointer(self.table.arena, self.free)
        self.free = self.table.reserve(self.free, nbytes)
        return slot

    def stages_of(self, group: Group) -> Sequence[Node]:
        if isinstance(group, MapGroup):
            return self._map(group)
        if isinstance(group, FoldGroup):
            return self._fold(group)
        if isinstance(group, SequenceGroup):
            return self._sequence(group)
        if isinstance(group, ParallelGroup):
            return [Parts([self.stages_of(m) for m in group.members])]
        if group.label in control.BUILDERS:
            return control.BUILDERS[group.label](self, group)
        return operations.stages_of(self, group)

    def _sequence(self, g: SequenceGroup) -> Sequence[Node]:
        if g.length:
            plan = row_plan(g.members, g.lead, g.length, self.local[id(g)])
            return [*self.target.rows(plan, g.count, g.length, self.slot, self.scratch)]
        if self.target.tuning.whole_rows and is_one_row(g.members, g.count):
            plan = row_plan(g.members, (), g.count, self.local[id(g)])
            return [*self.target.rows(plan, 1, g.count, self.slot, self.scratch)]
        local = []
        for s in self.local[id(g)]:
            self._own_slots[s] = self.table.fresh(self.table.arena, 0)
            local.append((self._own_slots[s], _step_bytes(g, s)))
        members: list[Stage] = []
        units: list[int] = []
        before: list[Stage] = []
        after: list[Stage] = []
        for m in g.members:
            if isinstance(m, CallGroup):
                *first, last = operations.product_rows(self, m)
                before += first
                members.append(last)
                units.append(1)
                continue
            first, *more = (
                self._map(m, g.count) if isinstance(m, MapGroup) else self._rows_fold(m, g)
            )
            members.append(first)
            whole = isinstance(m, FoldGroup) and not squeezed(m.kept)
            units.append(1 if whole else first.units // g.count * g.taken)
            after += more
        block = _block_steps(g, self.target.tuning)
        elements = max(g.step_elements(s) for s in g.values_written())
        grain = (
            block
            if g.has_products
            else max(block, self.target.tuning.task_elements // max(1, elements))
        )
        return [*before, Blocks(members, g.steps, block, grain, local, units), *after]

    def _rows_fold(self, m: FoldGroup, g: SequenceGroup) -> list[Stage]:
        return self._fold(m, True, 0 if squeezed(m.kept) else g.piece)

    def _map(self, g: MapGroup, rows: int = 0) -> list[Stage]:
        count = len(g.writes)

        def made(slots: Sequence[int], _: Any) -> list[Stage]:
            return self.target.map(
                operations.map_kernel(g),
                g.shape,
                slots[:count],
                [a.strides for a in g.writes],
                slots[count:],
                [a.strides for a in g.reads],
                rows,
            )

        accesses = g.writes + g.reads
        walks = [x for a in accesses for x in (a.stored.aval, a.strides)]
        key = ("map", rows, g.shape, count, *g.bodies, *walks)
        slots = self._slots(accesses)
        return self.table.templates.stages(key, slots, self.scratch, made)

    def _fold(self, g: FoldGroup, by_rows: bool = False, piece: int = 0) -> list[Stage]:
        strides = [a.strides for a in g.reads]

        def made(slots: Sequence[int], scratch: Any) -> list[Stage]:
            *ins, out = slots
            if isinstance(g.kernel, Accumulate):
                (length,) = g.folded
                return self.target.accumulate(
                    g.kernel, g.kept, length, ins, strides, out, g.write.strides, g.reverse
                )
            return self.target.reduce(
                g.kernel, g.kept, g.folded, ins, strides, out, scratch, by_rows, piece
            )

        key = (
            *("fold", by_rows, piece, g.kernel, g.kept, g.folded, g.reverse, g.write.strides),
            *strides,
        )
        slots = [*self._slots(g.reads), self.slot(g.write.stored)]
        return self.table.templates.stages(key, slots, self.scratch, made)

    def _slots(self, accesses: Sequence[Access]) -> list[int]:
        return [self.slot(a.stored, a.offset) for a in accesses]
