"""A program as plain data: kernels, and the steps that dispatch them with places for their arrays.

All arrays are in four buffers, so a kernel binds four at most. A slot is a buffer and a byte; loops
move slots and exchange pairs of them, always within a buffer, so kernels do not depend on the
round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from pullback.compile.program.executable import Assembled
from pullback.compile.program.indexing import IndexedAxis
from pullback.compile.program.stages import (
    Blocks,
    Branch,
    Loop,
    Node,
    Parts,
    Program,
    Stage,
    While,
)
from pullback.compile.program.target import Fault
from pullback.core.dtypes import complex128, uint64
from pullback.core.errors import DeviceError
from pullback.runtime.webgpu.printer import check_dtype
from pullback.runtime.webgpu.stages import (
    FAULT,
    FAULT_WORDS,
    LINE,
    Binding,
    Dispatch,
    Table,
    copied,
    scratch_places,
)

__all__ = [
    "FAULTS",
    "INPUTS",
    "WEIGHTS",
    "WORK",
    "PageBranch",
    "PageKernel",
    "PageLoop",
    "PagePlace",
    "PageProgram",
    "PageStep",
    "Steps",
    "lines",
]

INPUTS, WEIGHTS, WORK, FAULTS = range(4)  # the buffers


class PagePlace(NamedTuple):
    """Where an array starts."""

    buffer: int
    byte: int


class PageKernel(NamedTuple):
    """What a dispatch needs compiled: arrays are (item, mode), `bindings` the buffer of each."""

    source: str
    arrays: tuple[tuple[str, str], ...]
    bindings: tuple[int, ...]
    words: int


class PageStep(NamedTuple):
    """A dispatch: its arrays are (slot, byte); `label` says what it computes, or nothing."""

    kernel: int
    groups: int
    arrays: tuple[tuple[int, int], ...]
    words: tuple[int, ...]
    label: str = ""


class PageLoop(NamedTuple):
    """Steps so many times, or while `test` sets the flag.

    After each round slots move by bytes and pairs of them are exchanged. After an odd number of
    rounds the last carries are in spare memory: then come the steps `odd`.
    """

    steps: Steps
    moves: Sequence[tuple[int, int]]
    carries: Sequence[tuple[int, int]]
    odd: Steps
    rounds: int = 0
    test: Steps | None = None
    flag: int = 0


class PageBranch(NamedTuple):
    """`then` if the byte at the slot `flag` is not 0, else `otherwise`."""

    flag: int
    then: Steps
    otherwise: Steps


Steps: TypeAlias = "list[PageStep | PageLoop | PageBranch]"


def lines(nbytes: int) -> int:
    """Bytes of memory that an array of so many takes, where others follow."""
    return -(-nbytes // LINE) * LINE


class PageProgram:
    """Kernels, steps and places of a program whose inputs are at given places.

    `constant` finds a place for a table that a kernel reads.
    """

    def __init__(
        self,
        name: str,
        assembled: Assembled,
        program: Program,
        inputs: Sequence[PagePlace],
        constant: Callable[[np.ndarray], PagePlace],
    ):
        self.name, self._constant = name, constant
        self._tables: dict[Table, int] = {}
        self.kernels: dict[PageKernel, int] = {}
        self.noted: dict[tuple[int, ...], None] = {}
        self.waits = False  # for values that decide what comes next
        areas, local, scratch = scratch_places(program)
        first = lines(program.out_nbytes)
        self.work_bytes = first + scratch
        self.slots = [PagePlace(WORK, 0), *inputs, *(PagePlace(WORK, first + n) for n in areas)]
        for origin, nbytes in program.pointers:
            base = self.slots[origin]
            self.slots.append(PagePlace(base.buffer, base.byte + nbytes))
        for slot, at in local:
            self.slots[slot] = PagePlace(WORK, first + at)
        self._fault_slot = len(self.slots)
        self.slots.append(PagePlace(FAULTS, 0))
        self.steps = self._labelled(assembled, program)
        codes = 1 + max((code for own in self.noted for code in own), default=-1)
        self.faults = [_described(*error) for error in assembled.errors[:codes]]
        self.fault_bytes = 4 * FAULT_WORDS * codes

    def _labelled(self, assembled: Assembled, program: Program) -> Steps:
        found: Steps = []
        at = 0
        for label, stages in assembled.labels:
            found += self._steps(program.stages[at : stages.start], "")
            found += self._steps(program.stages[stages.start : stages.stop], label)
            at = stages.stop
        return found + self._steps(program.stages[at:], "")

    def _steps(self, nodes: Sequence[Node], label: str) -> Steps:
        """The steps of some nodes; the first is called by what they compute."""
        found: Steps = []
        for node in nodes:
            own = "" if found else label
            if isinstance(node, Stage):
                for step in node.code:  # type: ignore[attr-defined]
                    found.append(self._step(step, "" if found else label))
            elif isinstance(node, (Loop, While)):
                found += self._loop(node, own)
            elif isinstance(node, Branch):
                sides = [self._steps(side, "") for side in (node.then, node.otherwise)]
                found.append(PageBranch(node.flag, *sides))
                self.waits = True
            elif isinstance(node, Blocks):
                found += self._steps(node.members, own)
            elif isinstance(node, Parts):
                for part in node.parts:
                    found += self._steps(part, "" if found else label)
        return found

    def _loop(self, node: Loop | While, label: str) -> Steps:
        pairs = [(slot, spare) for slot, spare, _ in node.carries]
        assert all(self.slots[s].buffer == WORK for pair in pairs for s in pair)
        counted = isinstance(node, Loop)
        moved = [] if counted and node.rounds % 2 == 0 else [c for c in node.carries if c[2]]
        odd: Steps = [self._dispatched(copied(n), ((t, 0), (s, 0)), "") for s, t, n in moved]
        body = self._steps(node.body, label)
        if counted:
            return [PageLoop(body, node.moves, pairs, odd, rounds=node.rounds)] if body else odd
        self.waits = True
        test = self._steps(node.test, "")
        return [PageLoop(body, (), pairs, odd, test=test, flag=node.flag)]

    def _step(self, step: object, label: str) -> PageStep:
        if not isinstance(step, Dispatch):
            raise DeviceError(
                f"export_web: `{self.name}` computes {label or 'a part'} on the host, which a web"
                " page lacks."
            )
        if any(a.item == "u128" for a in step.arrays):
            check_dtype("export_web", complex128)
        slots = [self._slot(a) for a in step.arrays]
        if step.checked:
            codes = [a.at.nbytes for a in step.arrays if a.at.slot == FAULT]
            self.noted[tuple([n // (4 * FAULT_WORDS) for n in codes])] = None
        arrays = [(slot, a.at.nbytes) for slot, a in zip(slots, step.arrays, strict=True)]
        return self._dispatched(step, tuple(arrays), label)

    def _slot(self, array: Binding) -> int:
        """Where an array is found; a table has a slot of its own."""
        if array.table is None:
            return self._fault_slot if array.at.slot == FAULT else array.at.slot
        if array.table not in self._tables:
            self._tables[array.table] = len(self.slots)
            self.slots.append(self._constant(array.table.values()))
        return self._tables[array.table]

    def _dispatched(
        self, step: Dispatch, arrays: tuple[tuple[int, int], ...], label: str
    ) -> PageStep:
        kinds = tuple([(a.item, a.mode) for a in step.arrays])
        bindings = tuple([self.slots[slot].buffer for slot, _ in arrays])
        kernel = PageKernel(step.source, kinds, bindings, len(step.words))
        number = self.kernels.setdefault(kernel, len(self.kernels))
        words = tuple([w & 0xFFFFFFFF for w in step.words])
        return PageStep(number, step.groups, arrays, words, label)


def _described(name: str, fault: Fault) -> dict[str, object]:
    """What a page needs to word an error as Python does."""
    if not isinstance(fault, IndexedAxis):
        return {"name": name}
    return {
        "name": name,
        "size": fault.size,
        "unsigned": fault.dtype is uint64,
        "shape": list(fault.places),
        "lead": fault.lead,
    }
