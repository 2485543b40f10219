"""Slots: the table of pointers of a program, and what building its parts needs of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pullback.compile.program.stages import Node
from pullback.compile.program.target import Fault, Target, WantedPlan
from pullback.compile.program.templates import Templates
from pullback.compile.schedule.groups import (
    CallGroup,
    Group,
    ParallelGroup,
    Region,
    SequenceGroup,
    Stored,
)
from pullback.compile.schedule.memory import MemoryPlan, aligned
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.graph import Graph, Var

__all__ = [
    *("BuiltFrame", "Context", "CopyStep", "GroupStep", "LoopSlots", "Planned", "SlotTable"),
]


@dataclass(eq=False)
class LoopSlots:
    """The pointers that a loop changes after every round: see `stages.Loop`."""

    moves: dict[int, int] = field(default_factory=dict)  # slot: bytes
    carries: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot: (spare slot, bytes)

    def carry_entries(self) -> list[tuple[int, int, int]]:
        return [(slot, spare, nbytes) for slot, (spare, nbytes) in self.carries.items()]


class Planned(NamedTuple):
    """Indices, by their slot, of which a plan is of use."""

    slot: int
    dtype: DType
    wanted: WantedPlan


class SlotTable:
    """What all frames of a program share: its pointers, arena and error codes.

    Slots: 0 is the output, then inputs, constants (of inner graphs too), the arrays of the plans of
    `planned` indices, the arena, and pointers derived from others.
    """

    def __init__(
        self,
        inputs: int,
        constants: Sequence[Var],
        slots_in_params: bool,
        planned: Sequence[Planned] = (),
    ):
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
        self.errors: list[tuple[str, Fault]] = []
        self.loops: list[LoopSlots] = []
        self.templates = Templates(slots_in_params)
        self._slots: dict[tuple[int, int], int] = {}

    def pointer(self, base: int, nbytes: int) -> int:
        """The slot of the place `nbytes` after the pointer at slot `base`, with which it moves."""
        if nbytes == 0:
            return base
        if (base, nbytes) not in self._slots:
            self._slots[base, nbytes] = self.fresh(base, nbytes)
        return self._slots[base, nbytes]

    def fresh(self, base: int, nbytes: int, apart: LoopSlots | None = None) -> int:
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

    def plan(self, slot: int, dtype: DType, wanted: WantedPlan | None) -> range | None:
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


class GroupStep(NamedTuple):
    """What became of a group: bytes of its scratch, after all values, and where its stages are."""

    group: Group
    scratch_nbytes: int
    stages: range

    @property
    def label(self) -> str:
        """What the group computes."""
        if isinstance(self.group, CallGroup) and self.group.then:
            return f"{self.group.label}+{self.group.then.label}"
        if not isinstance(self.group, (SequenceGroup, ParallelGroup)):
            return self.group.label
        inside = dict.fromkeys(m.label for m in self.group.members)
        return f"{self.group.label} of {', '.join(inside)}"


class CopyStep(NamedTuple):
    """A value that is copied to a slot in the end, by so many stages."""

    source: Stored
    slot: int
    stages: int


class BuiltFrame(Protocol):
    """The frame of a graph, with its stages; values start at `start` in the arena, and the scratch
    of groups at `base`.
    """

    stages: list[Node]
    steps: list[GroupStep]
    copies: list[CopyStep]
    plan: MemoryPlan
    start: int
    base: int

    def own_slot(self, value: Stored) -> int | None:
        """The slot of a value that has no place in the arena or the output."""
        ...


class Context(Protocol):
    """The frame of a graph, for those who turn its groups into stages."""

    table: SlotTable
    target: Target

    def slot(self, value: Stored, offset: int = 0) -> int:
        """The slot of element `offset` of a value."""
        ...

    def scratch(self, nbytes: int) -> int:
        """The slot of memory that only the group in hand uses."""
        ...

    def copy(self, region: Region, slot: int) -> Sequence[Node]:
        """Stages that write a region to a slot, dense."""
        ...

    def inner(
        self,
        graph: Graph,
        layouts: Sequence[Aval],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> BuiltFrame:
        """The frame of a graph inside, which uses the free part of the arena."""
        ...
