"""Groups as stages: where every value is, and the pointers through which kernels find it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pullback.compile.kernel.forms import Accumulate, Map, MultiMap
from pullback.compile.kernel.lower import copy_kernel
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
from pullback.compile.schedule.memory import Plan, aligned, plan_memory
from pullback.compile.schedule.product_rows import product_work
from pullback.compile.schedule.row_kernel import row_plan
from pullback.compile.schedule.sequences import local_values
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.graph import Graph, Var
from pullback.runtime.cpu import call_stages, control_stages
from pullback.runtime.cpu.host_calls import HostCall
from pullback.runtime.cpu.indexing.index_stages import IndexedAxis
from pullback.runtime.cpu.linalg.linalg_stages import Failure
from pullback.runtime.cpu.loops import fold_stages, map_stages
from pullback.runtime.cpu.loops.row_stages import row_stages
from pullback.runtime.cpu.native import Stage, stages
from pullback.runtime.cpu.scatter.scatter_stages import Wanted

__all__ = ["Frame", "Loop", "Planned", "Table", "inner_graphs"]

CACHE_BYTES = 1 << 17  # that a block of rows may take in all
TASK_ELEMENTS = 1 << 16
TASK_WORK = 400_000  # operations of products: some microseconds
LEAST_ROWS, ROWS_TOGETHER = 8, 4  # of a task, and of a block of a product
LINE = 64


def inner_graphs(graph: Graph) -> Iterator[Graph]:
    """The graphs inside control flow, at any depth."""
    for eq in graph.equations:
        for g in eq.static.values():
            if isinstance(g, Graph):
                yield g
                yield from inner_graphs(g)


@dataclass(eq=False)
class Loop:
    """The pointers that a loop changes after every round: see `stages.loop_stage`."""

    moves: dict[int, int] = field(default_factory=dict)  # slot: bytes
    carries: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot: (spare slot, bytes)

    def carry_entries(self) -> list[tuple[int, int, int]]:
        return [(slot, spare, nbytes) for slot, (spare, nbytes) in self.carries.items()]


class Planned(NamedTuple):
    """Indices, by their slot, of which a plan is of use."""

    slot: int
    dtype: DType
    wanted: Wanted


class Table:
    """What all frames of a program share: its pointers, arena and error codes.

    Slots: 0 is the output, then inputs, constants (of inner graphs too), the arrays of the plans of
    `planned` indices, the arena, and pointers derived from others.
    """

    def __init__(self, inputs: int, constants: Sequence[Var], planned: Sequence[Planned] = ()):
        self.n_given = self.n_inputs = inputs + len(constants)
        self.constants = {id(v): 1 + inputs + k for k, v in enumerate(constants)}
        self.plannable: dict[Planned, None] = {}  # in the order of their first use
        self._plans: dict[Planned, range] = {}
        for own in planned:
            first = 1 + self.n_inputs
            self.n_inputs += len(own.wanted.sizes())
            self._plans[own] = range(first, 1 + self.n_inputs)
        self.arena = 1 + self.n_inputs
        self.reserved: list[int] = []  # the end of each part of the arena that was asked for
        self.pointers: list[tuple[int, int]] = []
        # The operation of error code k + 1, and what can say the rest of the message.
        self.errors: list[tuple[str, IndexedAxis | Failure | HostCall]] = []
        self.loops: list[Loop] = []
        self._slots: dict[tuple[int, int], int] = {}

    def pointer(self, base: int, nbytes: int) -> int:
        """The slot of the place `nbytes` after the pointer at slot `base`, with which it moves."""
        if nbytes == 0:
            return base
        if (base, nbytes) not in self._slots:
            self._slots[base, nbytes] = self.fresh(base, nbytes)
        return self._slots[base, nbytes]

    def fresh(self, base: int, nbytes: int, apart: Loop | None = None) -> int:
        """A slot of its own for that place; in all loops but `apart` it changes with its base."""
        self.pointers.append((base, nbytes))
        slot = self.arena + len(self.pointers)
        for loop in self.loops:
            if loop is apart:
                continue
            if base in loop.moves:
                loop.moves[slot] = loop.moves[base]
            if base in loop.carries:
                loop.carries[slot] = (self.fresh(loop.carries[base][0], nbytes, loop), 0)
            for carry, (spare, _) in list(loop.carries.items()):
                if spare == base:
                    loop.carries[self.fresh(carry, nbytes, loop)] = (slot, 0)
        return slot

    def plan(self, slot: int, dtype: DType, wanted: Wanted | None) -> range | None:
        """The slots of the plan of indices that are an input or a constant, if it is given."""
        if wanted is None or not 1 <= slot <= self.n_given:
            return None
        own = Planned(slot, dtype, wanted)
        self.plannable.setdefault(own)
        return self._plans.get(own)

    @property
    def arena_nbytes(self) -> int:
        return max(self.reserved, default=0)

    def reserve(self, start: int, nbytes: int) -> int:
        """The end of `nbytes` of the arena from `start` on."""
        self.reserved.append(start + aligned(nbytes))
        return self.reserved[-1]


def _step_bytes(g: SequenceGroup, value: Stored) -> int:
    return g.step_elements(value) * value.dtype.itemsize


def _product_rows(g: SequenceGroup) -> int:
    """Rows of a task of a sequence with products."""
    work = sum(product_work(m) for m in g.members if isinstance(m, CallGroup))
    tasks = max(2, min(g.count // LEAST_ROWS, work // TASK_WORK))
    return -(-g.count // tasks // ROWS_TOGETHER) * ROWS_TOGETHER


def _block_steps(g: SequenceGroup) -> int:
    """Steps of a sequence that are worked on at once: what stays in the cache of a core."""
    if g.length:
        return 1
    if g.has_products:
        return _product_rows(g)
    values = dict.fromkeys([*g.values_read(), *g.values_written()])
    size = sum(_step_bytes(g, s) for s in values)
    return max(1, min(g.steps, CACHE_BYTES // max(1, size)))


class Step(NamedTuple):
    """What became of a group: bytes of its scratch, after all values, and where its stages are."""

    group: Group
    scratch_nbytes: int
    stages: range

    @property
    def label(self) -> str:
        """What the group computes."""
        if not isinstance(self.group, (SequenceGroup, ParallelGroup)):
            return self.group.label
        inside = dict.fromkeys(m.label for m in self.group.members)
        return f"{self.group.label} of {', '.join(inside)}"


class Frame:
    """The stages of one graph.

    A graph inside another has its `inputs` and `outputs` at given slots, and its temporaries in the
    arena from `start` on.
    """

    def __init__(
        self,
        grouped: Grouped,
        table: Table,
        graph: Graph,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
        start: int = 0,
    ):
        self.grouped, self.table, self.start = grouped, table, start
        self.inputs = range(1, 1 + len(grouped.inputs)) if inputs is None else inputs
        self.constants = [table.constants.get(id(v), 0) for v in graph.constants]
        self._own_slots: dict[Stored, int] = {}  # of values that have no place in arena or output
        copies = self._place_outputs(outputs or ())
        self.local = self._local_values()
        apart = [s for own in self.local.values() for s in own] + list(self._own_slots)
        self.plan: Plan = plan_memory(grouped, apart)
        self.free = table.reserve(start, self.plan.arena_nbytes)
        self.stages: list[Stage] = []
        self.steps: list[Step] = []
        base = self.free
        for group in grouped.groups:
            self.free, known, first = base, len(table.reserved), len(self.stages)
            self.stages += self.stages_of(group)
            scratch = max(table.reserved[known:], default=base) - base
            self.steps.append(Step(group, scratch, range(first, len(self.stages))))
        for region, slot in copies:
            self.stages += self.copy(region, slot)

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

    def copy(self, region: Region, slot: int) -> list[Stage]:
        """Stages that write a region to a slot, dense."""
        av = region.aval
        if av.size == 0:
            return []
        source = self.slot(region.stored, region.offset)
        dense = dense_strides(av.shape)
        assert av.strides is not None
        return map_stages.map_stages(
            copy_kernel(av.dtype), av.shape, [slot], [dense], [source], [av.strides]
        )

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
        """The slot of memory that only the group in hand uses."""
        slot = self.table.pointer(self.table.arena, self.free)
        self.free = self.table.reserve(self.free, nbytes)
        return slot

    def stages_of(self, group: Group) -> list[Stage]:
        if isinstance(group, MapGroup):
            return self._map(group)
        if isinstance(group, FoldGroup):
            return self._fold(group)
        if isinstance(group, SequenceGroup):
            return self._sequence(group)
        if isinstance(group, ParallelGroup):
            return [stages.parts_stage([self.stages_of(m) for m in group.members])]
        if group.label in control_stages.BUILDERS:
            return control_stages.BUILDERS[group.label](self, group)
        return call_stages.call_stages(self, group)

    def _local_values(self) -> dict[int, list[Stored]]:
        """Of each sequence the values that need no memory but a block of rows."""
        groups = self.grouped.groups
        readers = Counter(s for g in groups for s in set(g.values_read()))
        found = {}
        for g in self.grouped.groups:
            if isinstance(g, SequenceGroup):
                own = local_values(readers, g)
                block = _block_steps(g)
                while block * sum(_step_bytes(g, s) + LINE for s in own) > stages.LOCAL_BYTES:
                    own.remove(max(own, key=lambda s: s.nbytes))
                found[id(g)] = own
        return found

    def _sequence(self, g: SequenceGroup) -> list[Stage]:
        if g.length:
            plan = row_plan(g.members, g.lead, g.length, self.local[id(g)])
            return row_stages(plan, g.count, g.length, self.slot, self.scratch)
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
                *first, last = call_stages.product_row_stages(self, m)
                before += first
                members.append(last)
                units.append(1)
                continue
            first, *more = self._map(m, True) if isinstance(m, MapGroup) else self._rows_fold(m, g)
            members.append(first)
            whole = isinstance(m, FoldGroup) and not squeezed(m.kept)
            units.append(1 if whole else first.units // g.count * g.taken)
            after += more
        block = _block_steps(g)
        elements = max(g.step_elements(s) for s in g.values_written())
        grain = block if g.has_products else max(block, TASK_ELEMENTS // max(1, elements))
        return [*before, stages.rows_stage(members, g.steps, block, grain, local, units), *after]

    def _rows_fold(self, m: FoldGroup, g: SequenceGroup) -> list[Stage]:
        return self._fold(m, True, 0 if squeezed(m.kept) else g.piece)

    def _map(self, g: MapGroup, by_rows: bool = False) -> list[Stage]:
        inputs = tuple(a.stored.dtype for a in g.reads)
        outputs = tuple(a.stored.dtype for a in g.writes)
        if len(outputs) == 1:
            kernel: Map | MultiMap = Map(inputs, outputs[0], g.bodies[0])
        else:
            kernel = MultiMap(inputs, outputs, tuple(g.bodies))
        return map_stages.map_stages(
            kernel,
            g.shape,
            self._slots(g.writes),
            [a.strides for a in g.writes],
            self._slots(g.reads),
            [a.strides for a in g.reads],
            by_rows,
        )

    def _fold(self, g: FoldGroup, by_rows: bool = False, piece: int = 0) -> list[Stage]:
        slots = self._slots(g.reads)
        strides = [a.strides for a in g.reads]
        out = self.slot(g.write.stored)
        if isinstance(g.kernel, Accumulate):
            (length,) = g.folded
            return fold_stages.accumulate_stages(
                g.kernel, g.kept, length, slots, strides, out, g.write.strides, g.reverse
            )
        return fold_stages.reduce_stages(
            g.kernel, g.kept, g.folded, slots, strides, out, self.scratch, by_rows, piece
        )

    def _slots(self, accesses: Sequence[Access]) -> list[int]:
        return [self.slot(a.stored, a.offset) for a in accesses]
