"""What programs are made of on a GPU: a stage is a list of dispatches, whose arrays are found
through slots.

A dispatch is plain data: WGSL without bindings, arrays, words, workgroups.

The slot FAULT holds four words for each error code, 0 before the program: the position of the first
bad index with all bits turned, so that the largest number is the first one, its value, and whether
that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from pullback.compile.program.host_calls import HostCall
from pullback.compile.program.stages import (
    At,
    Blocks,
    Branch,
    Loop,
    Node,
    Parts,
    Program,
    Stage,
    While,
)

__all__ = [
    "CONSTANT",
    "FAULT",
    "FAULT_WORDS",
    "LINE",
    "At",
    "Binding",
    "Dispatch",
    "HostCall",
    "Step",
    "Table",
    "copied",
    "fault_words",
    "inner_of",
    "is_straight",
    "linear_groups",
    "scratch_places",
    "stage",
    "steps_of",
]

FAULT = -1  # the slot of the words of errors
CONSTANT = -2  # the slot of tables
FAULT_WORDS = 4  # of an error code: position, value in two, whether it is known
LINE = 256  # bytes at a multiple of which scratch memory starts


class Table(Protocol):
    """Numbers that a kernel reads; equal ones are the same."""

    def values(self) -> np.ndarray: ...

    def __hash__(self) -> int: ...


class Binding(NamedTuple):
    """An array of a dispatch: items "u8", "u16", "u32" or "u64", used as `mode` says.

    That is "read", "write" (and read), or "atomic" (of items "u32").
    """

    at: At
    item: str
    mode: str = "read"
    table: Table | None = None  # what is at the slot CONSTANT, for this array


class Dispatch(NamedTuple):
    """A kernel over `groups` workgroups: see `kernels_text` for what its source may call.

    Negative words wrap. `checked`: it may note errors. `rounds`: how often loops of a thread go
    round, about, where that may be more than a driver allows. `faster`: another dispatch with the
    same results, for adapters with the arithmetic that it `needs`: see `Gpu.chosen`.
    """

    source: str
    arrays: tuple[Binding, ...]
    words: tuple[int, ...]
    groups: int
    checked: bool = False
    rounds: int = 0
    faster: Dispatch | None = None
    needs: tuple[str, ...] = ()


Step: TypeAlias = Dispatch | HostCall


class StageCode(tuple[Step, ...]):
    """The code of a stage."""

    __slots__ = ()

    def __index__(self) -> int:
        return id(self)


def stage(*steps: Step) -> list[Stage]:
    """A stage of steps, none if there are none."""
    return [Stage(StageCode(steps), 1, 1, ())] if steps else []


def linear_groups(threads: int, size: int) -> int:
    """The workgroups of `size` threads that have so many threads together."""
    return max(1, -(-threads // size))


def fault_words(code: int) -> At:
    """Where the words of an error code are."""
    return At(FAULT, 4 * FAULT_WORDS * (code - 1))


def steps_of(nodes: Sequence[Node]) -> Iterator[Step]:
    for node in nodes:
        if isinstance(node, Stage):
            assert isinstance(node.code, StageCode)
            yield from node.code
        else:
            for part in inner_of(node):
                yield from steps_of(part)


def inner_of(node: Loop | While | Branch | Parts | Blocks) -> list[Sequence[Node]]:
    """The lists of nodes inside a node."""
    if isinstance(node, Loop):
        return [node.body]
    if isinstance(node, While):
        return [node.test, node.body]
    if isinstance(node, Branch):
        return [node.then, node.otherwise]
    return [*node.parts] if isinstance(node, Parts) else [node.members]


def is_straight(nodes: Sequence[Node]) -> bool:
    """Whether what is done depends on no contents."""
    if any(isinstance(step, HostCall) for step in steps_of(nodes)):
        return False
    return not any(
        isinstance(n, (While, Branch)) or not all(is_straight(p) for p in inner_of(n))
        for n in nodes
        if not isinstance(n, Stage)
    )


def _locals(nodes: Sequence[Node], found: dict[int, int]) -> dict[int, int]:
    """The bytes of the arrays of blocks, by slot: each has memory for all rows."""
    for node in nodes:
        if isinstance(node, Stage):
            continue
        if isinstance(node, Blocks):
            for slot, nbytes in node.local:
                found[slot] = max(found.get(slot, 0), nbytes * node.rows)
        for part in inner_of(node):
            _locals(part, found)
    return found


def scratch_places(program: Program) -> tuple[list[int], list[tuple[int, int]], int]:
    """Where in scratch memory the areas start, then pairs of slots that are local to blocks and the
    bytes where they are, then the bytes of it all.
    """
    local = _locals(program.stages, {})
    offsets, total = [], 0
    for nbytes in (*program.scratch, *local.values()):
        offsets.append(total)
        total += -(-nbytes // LINE) * LINE
    count = len(program.scratch)
    return offsets[:count], list(zip(local, offsets[count:], strict=True)), total


_COPY = """
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>) {
  let i = (w.x + w.y * n.x) * 64u + l.x;
  if (i < arg(0u)) { store1(i, load0(i)); }
}"""
_copies: dict[int, Dispatch] = {}


def copied(nbytes: int) -> Dispatch:
    """A copy of so many bytes between places that are given."""
    found = _copies.get(nbytes)
    if found is None:
        item = "u8" if nbytes % 4 else "u32"
        count = nbytes * 8 // int(item[1:])
        arrays = (Binding(At(0), item), Binding(At(0), item, "write"))
        found = Dispatch(_COPY, arrays, (count,), linear_groups(count, 64))
        found = _copies.setdefault(nbytes, found)
    return found
