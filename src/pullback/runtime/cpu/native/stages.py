"""Stages made of stages as words of the native core: they need no Python while they run.

Their params have positions and no names, unlike those of kernels that are written by Python: the
text that reads them (`stages.ll`) is no Python, and most of them are lists of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

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
from pullback.runtime.cpu import native

__all__ = [
    "LOCAL_BYTES",
    "branch_stage",
    "encode",
    "encoded",
    "loop_stage",
    "parts_stage",
    "rows_stage",
    "while_stage",
    "words",
]

_FOREVER = 2**63 - 1  # rounds of a loop that its test ends
_LINE = 64  # bytes of a cache line, at which every local array starts
LOCAL_BYTES = 1 << 19  # of local arrays: they lie on a thread's stack

Moves = Sequence[tuple[int, int]]
Carries = Sequence[tuple[int, int, int]]


def encode(
    p: Program, faults: object = (), /
) -> Callable[..., native.Buffer | tuple[int, int, int]]:
    """The program as a native function, which returns its errors; see `native.program`."""
    if len(p.stages) == 1 and type(p.stages[0]) is Stage and not (p.scratch or p.pointers):
        return native.single_program(p.inputs, p.out_nbytes, p.stages[0], p.heavy)
    return native.make_program(
        p.inputs, p.out_nbytes, p.scratch, p.pointers, encoded(p.stages), p.heavy
    )


def words(p: Program) -> tuple[list[SupportsIndex], int]:
    """The words of a program, and where among them those of stages begin."""
    stages = encoded(p.stages)
    return native.program_words(p.inputs, p.out_nbytes, p.scratch, p.pointers, stages, p.heavy)


def encoded(nodes: Sequence[Node]) -> list[Stage]:
    """Stages without structure: those made of others are kernels of the native core."""
    return [node if isinstance(node, Stage) else _joint(node) for node in nodes]


def _joint(node: Loop | While | Branch | Parts | Blocks) -> Stage:
    """A stage made of stages, as one of the native core's kernels."""
    if isinstance(node, Loop):
        return loop_stage(encoded(node.body), node.rounds, node.moves, node.carries)
    if isinstance(node, While):
        return while_stage(encoded(node.test), node.flag, encoded(node.body), node.carries)
    if isinstance(node, Branch):
        return branch_stage(node.flag, encoded(node.then), encoded(node.otherwise))
    if isinstance(node, Parts):
        return parts_stage([encoded(part) for part in node.parts])
    return rows_stage(*node)


def loop_stage(
    body: Sequence[Stage], rounds: int, moves: Moves = (), carries: Carries = ()
) -> Stage:
    """A stage that runs `body` so many times.

    After each round the pointer of `slot` moves by `nbytes` for each of `moves` (slot, nbytes), and
    for each of `carries` (slot, spare, nbytes) what the body wrote to `spare` is found at `slot`.
    In the end all pointers are as before, and the memory of `slot` holds the last carry.
    """
    return _loop(rounds, moves, carries, body, None, 0)


def while_stage(
    test: Sequence[Stage], flag_slot: int, body: Sequence[Stage], carries: Carries = ()
) -> Stage:
    """A stage that runs `test` and then `body`, until the test leaves 0 in the byte at `flag_slot`.

    For `carries` see `loop_stage`.
    """
    return _loop(_FOREVER, (), carries, body, test, flag_slot)


def _loop(
    rounds: int,
    moves: Moves,
    carries: Carries,
    body: Sequence[Stage],
    test: Sequence[Stage] | None,
    flag_slot: int,
) -> Stage:
    entries = [word for entry in (*moves, *carries) for word in entry]
    words = native.encode(body)
    body_at = 8 * (6 + len(entries))
    test_at = body_at + 8 * len(words) if test is not None else 0
    if not body and test is None:
        rounds = 0  # there is nothing to do, and nobody who asks whether it should end
    head = (rounds, len(moves), len(carries), body_at, test_at, flag_slot)
    words += native.encode(test) if test is not None else []
    return Stage(native.LOOP, 1, 1, (*head, *entries, *words))


def branch_stage(flag_slot: int, then: Sequence[Stage], otherwise: Sequence[Stage]) -> Stage:
    """A stage that runs `then` if the byte at `flag_slot` is not 0, else `otherwise`."""
    yes, no = native.encode(then), native.encode(otherwise)
    return Stage(native.BRANCH, 1, 1, (flag_slot, 24, 24 + 8 * len(yes), *yes, *no))


def parts_stage(parts: Sequence[Sequence[Stage]]) -> Stage:
    """A stage whose tasks are lists of stages that need nothing of each other."""
    offsets: list[int] = []
    words: list[SupportsIndex] = []
    for part in parts:
        offsets.append(8 * (len(parts) + len(words)))
        words += native.encode(part)
    return Stage(native.PARTS, len(parts), 1, (*offsets, *words))


def rows_stage(
    members: Sequence[Stage],
    rows: int,
    block: int,
    grain: int,
    local: Moves = (),
    row_units: Sequence[int] = (),
) -> Stage:
    """A stage that runs all members on a block of rows before it goes on to the next block.

    The units of each member are those of row 0, then of row 1, ...: as many for every row, or
    `row_units` for each but the last, which has the rest. A task has `grain` rows. `local` are
    pairs (slot, bytes of a row) of dense arrays that nobody needs afterwards: they have room for
    one block only, and need no memory of their own.
    """
    each = row_units or [stage.units // max(1, rows) for stage in members]
    for stage, units in zip(members, each, strict=True):
        most = units * rows
        if rows and not (most - units < stage.units <= most if row_units else stage.units == most):
            raise ValueError(
                f"rows_stage: needs as many units for each of {rows} rows, got {stage.units}."
            )
    arrays, nbytes = [], 0
    for slot, row_bytes in local:
        arrays += (slot, row_bytes, nbytes)
        nbytes += -(-block * row_bytes // _LINE) * _LINE
    if nbytes > LOCAL_BYTES:
        raise ValueError(
            f"rows_stage: local arrays have {LOCAL_BYTES} bytes at most, got {nbytes}."
        )
    params: list[SupportsIndex] = []
    entries: list[SupportsIndex] = []
    first = 4 + len(arrays) + 4 * len(members)
    for stage, units in zip(members, each, strict=True):
        entries += (stage.code, units, 8 * (first + len(params)), stage.units)
        params += stage.params
    head = (block, len(members), len(arrays) // 3, nbytes)
    return Stage(native.ROWS, rows, max(1, grain), (*head, *arrays, *entries, *params))
