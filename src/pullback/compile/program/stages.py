"""A program: stages one after the other, some of them made of others.

Stages read and write memory through slots, a table of pointers: slot 0 is the output, then come the
inputs, then scratch areas or an arena, then pointers derived from others. A loop changes pointers
and leaves them as they were, so stages may be nested in any way. A target encodes a program for
its device; nothing here names one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex, TypeAlias

__all__ = [
    "At",
    "Blocks",
    "Branch",
    "Loop",
    "Node",
    "Parts",
    "Program",
    "Scratch",
    "Stage",
    "Wait",
    "While",
]


class Stage(NamedTuple):
    """One kernel over [0, units) in tasks of `grain` units; ends before the next stage starts."""

    code: SupportsIndex  # the target's name for the kernel
    units: int
    grain: int
    params: tuple[SupportsIndex, ...]


class Wait(NamedTuple):
    """A group of so many nodes: which groups before it have to end first, and which of the round
    before that.
    """

    nodes: int
    after: Sequence[int]
    again: Sequence[int]


class At(NamedTuple):
    """The place of a slot, or so many bytes after it."""

    slot: int
    nbytes: int = 0


class Loop(NamedTuple):
    """`body` so many times.

    After each round the pointer of `slot` moves by `nbytes` for each of `moves` (slot, nbytes), and
    for each of `carries` (slot, spare, nbytes) what the body wrote to `spare` is found at `slot`.
    In the end all pointers are as before, and the memory of `slot` holds the last carry. `waits`
    divides the body into groups, if it is not in line.
    """

    body: Sequence[Node]
    rounds: int
    moves: Sequence[tuple[int, int]]
    carries: Sequence[tuple[int, int, int]]
    waits: Sequence[Wait] = ()


class While(NamedTuple):
    """`test` and then `body`, until the test leaves 0 in the byte at the slot `flag`."""

    test: Sequence[Node]
    flag: int
    body: Sequence[Node]
    carries: Sequence[tuple[int, int, int]]


class Branch(NamedTuple):
    """`then` if the byte at the slot `flag` is not 0, else `otherwise`."""

    flag: int
    then: Sequence[Node]
    otherwise: Sequence[Node]


class Parts(NamedTuple):
    """Lists of stages that need nothing of each other."""

    parts: Sequence[Sequence[Node]]


class Blocks(NamedTuple):
    """All members on a block of rows before the next block; a task has `grain` rows.

    Row r has units of each member, `row_units` of them, which follow those of row r - 1. `local`
    are pairs (slot, bytes of a row) of arrays that need room for one block only.
    """

    members: Sequence[Stage]
    rows: int
    block: int
    grain: int
    local: Sequence[tuple[int, int]]
    row_units: Sequence[int]


Node: TypeAlias = Stage | Loop | While | Branch | Parts | Blocks


class Program(NamedTuple):
    """Stages, and the memory behind their slots.

    `scratch` are the bytes of areas (a single one is the arena), `pointers` the slots that are
    derived: a base, which comes before, and an offset in bytes. A `heavy` program lets other
    Python threads run. `waits` divides the stages into groups: how many there are in each, and the
    groups before that have to end first, directly; without it all stages are in line.
    """

    inputs: int
    out_nbytes: int
    scratch: Sequence[int]
    pointers: Sequence[tuple[int, int]]
    stages: Sequence[Node]
    heavy: bool = False
    waits: Sequence[tuple[int, Sequence[int]]] = ()


class Scratch:
    """Scratch areas as they are asked for: called with a size in bytes, it gives a slot."""

    def __init__(self, first: int):
        self.first = first
        self.sizes: list[int] = []

    def __call__(self, nbytes: int) -> int:
        self.sizes.append(nbytes)
        return self.first + len(self.sizes) - 1
