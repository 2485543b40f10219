"""Loops as one kernel: its thread blocks go through all launches of a round, round after round.

A launch becomes a function (`loop_code`), its thread blocks are shared out among those that there
are, and these wait for each other before the next one: threads of one block, blocks of a cluster,
or all blocks of a grid that is on the device at once. Which of these is a schedule: no launch does
anything else than before, so all bits stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pullback.compile.program.stages import Branch, Loop, Node, Program, Stage, While
from pullback.runtime.cuda.loop_writer import LoopWriter, Refused, code_of
from pullback.runtime.cuda.row_kernels import shared_bytes
from pullback.runtime.cuda.stages import Either, StageCode, Step
from pullback.runtime.cuda.table import inner

if TYPE_CHECKING:
    from pullback.runtime.cuda.gpu import Gpu

__all__ = ["with_loop_kernels"]
__tuning__ = ("LEAST_LAUNCHES", "TURNS", "TURN", "MOST_ROUNDS")

LEAST_LAUNCHES = 128  # of all rounds, from which on a kernel is compiled: 0.3 ms of an H200
CLUSTER = 8  # thread blocks of a cluster at most: all GPUs that have clusters have such
TURNS = 1  # thread blocks of a launch for each processor: of larger ones it holds several at a time
MOST_ROUNDS = 1024  # of a loop until a flag is 0 in one launch: Python may be interrupted then
CLUSTERS_FROM = 90  # the first architecture whose thread blocks make clusters: Hopper
TURN = 600  # nanoseconds of a launch of few blocks in such a kernel (H200, 2026-11-19)
# Nanoseconds of a barrier with what has to come from memory after it, measured on the same day.
BARRIERS = {"block": 40, "cluster": 600, "grid": 1250}
COUNTER_BYTES = 64  # of the arena for a counter of blocks: a line of its own


def with_loop_kernels(gpu: Gpu, program: Program) -> Program:
    """The program with kernels in place of its loops, where that is possible."""
    if not program.scratch:
        return program
    found = _Replaced(gpu, program)
    stages = found.nodes(program.stages, frozenset())
    *others, _ = program.scratch
    return program._replace(stages=stages, scratch=(*others, found.arena))


class _Replaced:
    """The nodes of a program, with kernels in place of loops."""

    def __init__(self, gpu: Gpu, program: Program):
        self._gpu, self._program = gpu, program
        self.arena = program.scratch[-1]  # bytes, with counters of blocks

    def nodes(self, nodes: Sequence[Node], moved: frozenset[int]) -> list[Node]:
        """The same nodes; loops around them change the slots `moved`."""
        return [self._node(node, moved) for node in nodes]

    def _node(self, node: Node, moved: frozenset[int]) -> Node:
        if isinstance(node, Branch):
            lists = (self.nodes(part, moved) for part in (node.then, node.otherwise))
            return Branch(node.flag, *lists)
        if not isinstance(node, Loop | While):
            return node
        made = self._one_kernel(node, moved)
        if made is not None:
            return made
        pairs = {s for slot, spare, _ in node.carries for s in (slot, spare)}
        if isinstance(node, While):
            lists = [self.nodes(part, moved | pairs) for part in (node.test, node.body)]
            return node._replace(test=lists[0], body=lists[1])
        pairs |= {slot for slot, _ in node.moves}
        return node._replace(body=self.nodes(node.body, moved | pairs))

    def _one_kernel(self, node: Loop | While, moved: frozenset[int]) -> Node | None:
        if isinstance(node, Loop) and node.rounds * _launches(node.body) < LEAST_LAUNCHES:
            return None
        writers = [LoopWriter(self._program, moved, given) for given in (True, False)]
        try:
            aligned, other = (self._steps(writer, node) for writer in writers)
        except Refused:
            return None
        self.arena += COUNTER_BYTES
        last = aligned[-1] if aligned == other else Either(aligned[-1], other[-1])
        before = aligned[:-1] or other[:-1]
        made: Node = Stage(StageCode([*before, last]), 1, 1, ())
        for blocks in writers[0].local:  # whose arrays want room
            made = blocks._replace(members=[made])
        if isinstance(node, While):  # the kernel is launched until it leaves a 0
            return While([made], node.flag, [], [])
        return made

    def _steps(self, writer: LoopWriter, node: Loop | While) -> list[Step]:
        writer.write(node, MOST_ROUNDS)
        return writer.steps(*self.grid(writer), self.arena)

    def grid(self, writer: LoopWriter) -> tuple[int, str]:
        """Thread blocks, and who waits for whom: what is expected to be the fastest."""
        widths = writer.widths
        most = shared_bytes(self._gpu.architecture)
        if not widths or writer.room > most or writer.widest > TURNS * self._gpu.processors:
            raise Refused
        ways = [(1, "block")]
        if int(self._gpu.architecture.removeprefix("sm_")) >= CLUSTERS_FROM:
            ways += [(n, "cluster") for n in range(2, CLUSTER + 1)]
        widest = max(widths)
        if widest > CLUSTER:
            ways.append((min(widest, self._gpu.processors), "grid"))

        def nanoseconds(way: tuple[int, str]) -> int:
            grid, kind = way
            turns = sum(-(-width // grid) for width in widths)
            return turns * TURN + len(widths) * BARRIERS[kind]

        return min(ways, key=nanoseconds)


def _launches(nodes: Sequence[Node]) -> int:
    """The launches of some nodes, one after the other."""
    count = 0
    for node in nodes:
        rounds = node.rounds if isinstance(node, Loop) else 1
        own = len(code_of(node)) if isinstance(node, Stage) else 0
        count += own + rounds * sum(map(_launches, inner(node)))
    return count
