"""The source of a kernel that goes through all launches of a loop: see `loop_kernels`.

Groups of launches that need nothing of each other are side by side between two barriers, and the
last ones of a round beside the first ones of the next. Where a slot is in a round is computed from
the numbers of rounds.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeAlias

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
from pullback.runtime.cuda.loop_code import (
    HEAD,
    OWN_NAME,
    STATIC_BYTES,
    function,
    kernel_of,
    namespaces,
)
from pullback.runtime.cuda.stages import (
    RECORD,
    VECTOR_BYTES,
    At,
    Either,
    GraphNumber,
    StageCode,
    Step,
    Table,
    TensorMap,
)
from pullback.runtime.cuda.table import copy_step, inner

__all__ = ["LoopWriter", "Refused", "code_of"]
__tuning__ = ("MOST_STEPS",)

MOST_STEPS = 96  # launches of a kernel: more take the compiler seconds
_BEGIN = """
extern "C" __global__ void pb_loop_begin(unsigned* count) { *count = 0; }"""


class Refused(Exception):
    """A loop that can't be one kernel, or had better not be."""


class _LoopLaunch(NamedTuple):
    """A launch in the kernel: its code, of block `b`, and where its blocks begin among others."""

    code: str
    first: int
    blocks: int
    threads: int

    def text(self, grid: int) -> str:
        """The launch by a grid, which may be smaller."""
        own = f"threadIdx.x < {self.threads}"
        if self.first + self.blocks <= grid:
            last = f" && blockIdx.x < {self.first + self.blocks}u"
            own += f" && blockIdx.x >= {self.first}u" if self.first else ""
            own += last if self.first + self.blocks < grid else ""
            return f"if ({own}) {{ const unsigned b = blockIdx.x - {self.first}u; {self.code} }}"
        start = f"(blockIdx.x + {-self.first % grid}u) % {grid}u"
        return (
            f"if ({own}) for (unsigned b = {start}; b < {self.blocks}u; b += {grid}u) {{"
            f" {self.code} pb_meet<{self.threads}>(); }}"
        )


class _Between(NamedTuple):
    """Between launches that have so many blocks together: a block may have parts of both."""

    blocks: int

    def text(self, grid: int) -> str:
        return "__syncthreads();" if self.blocks > grid else ""


class _Round(NamedTuple):
    """A loop around a node: the name of its counter, and what becomes of pointers."""

    counter: str
    moves: dict[int, int]
    partners: dict[int, int]


_Line: TypeAlias = str | _LoopLaunch | _Between | None  # None is a barrier of all blocks


class LoopWriter:
    """The kernel of a loop.

    `moved` are the slots that loops around it change. What is found when it is called, these and
    inputs, starts at multiples of VECTOR_BYTES if `aligned`, else anywhere.
    """

    def __init__(self, program: Program, moved: frozenset[int], aligned: bool):
        self._program, self._aligned = program, aligned
        self._moved = moved
        self._first = 1 + program.inputs + len(program.scratch)
        self._arena = self._first - 1
        self.local: list[Blocks] = []
        self._own: set[int] = set()  # slots of arrays of blocks
        self._roots: dict[At | Table, str] = {}  # what the kernel is given
        self._spaces: dict[tuple[str, int], str] = {}
        self._functions: dict[tuple[str, str], str] = {}  # names, by namespace and code
        self._lines: list[_Line] = []
        self._rounds: list[_Round] = []
        self.launched: list[Step] = []
        self._flags = 0
        self.room = 0  # bytes of shared memory
        self.widths: list[int] = []  # thread blocks of launches side by side, between barriers

    # -- the launch --------------------------------------------------------------------------------

    def write(self, loop: Loop | While, most: int) -> None:
        """The kernel of a loop, of `most` rounds at most where a flag decides."""
        self._find_local([loop])
        self._lines = self._loop(loop) if isinstance(loop, Loop) else self._while(loop, most)

    def steps(self, grid: int, kind: str, arena: int) -> list[Step]:
        """The launches: a counter is set where blocks are many, then comes the kernel."""
        threads = max(step.block for step in self.launched)
        barrier = {
            "block": "__syncthreads();",
            "cluster": "pb_meet_cluster();",
            "grid": "pb_meet_grid(count, goal);",
        }[kind]
        code = [
            x.text(grid) if isinstance(x, _LoopLaunch | _Between) else barrier if x is None else x
            for x in self._lines
        ]
        given = [f"unsigned char* const p{k}" for k in range(len(self._roots))]
        arguments: list[At | Table] = [*self._roots]
        before = []
        if kind == "grid":
            counter = At(self._arena, arena)
            given.append("unsigned* const count")
            arguments.append(counter)
            before.append(Step(_BEGIN, "pb_loop_begin", (1, 1), 1, (counter,)))
            code.insert(0, "unsigned goal = 0;")
        body = "\n".join(f"  {line}" for line in code)
        text = "\n".join([HEAD, *namespaces(self._parts())])
        name = f"loop_{hashlib.sha256((text + body + kind).encode()).hexdigest()[:12]}"
        own = f"PB_CLUSTER({grid}) " if kind == "cluster" else ""
        told = f"PB_CLUSTERED({grid})\n" if own else ""
        source = (
            f'{text}\n{told}extern "C" __global__ void {own}__launch_bounds__({threads}) {name}('
            f"{', '.join(given)}) {{\n  DYNAMIC_SHARED(unsigned char, pb_memory);\n{body}\n}}\n"
        )
        checked = any(step.checked for step in self.launched)
        one = Step(
            source, name, (grid, 1), threads, tuple(arguments), checked, self.room,
            together=kind == "grid",
        )  # fmt: skip
        return [*before, one]

    @property
    def widest(self) -> int:
        """The thread blocks of the largest launch."""
        return max((math.prod(step.grid) for step in self.launched), default=1)

    def _parts(self) -> list[tuple[str, str, int, list[str]]]:
        """The namespaces with their functions."""
        found = []
        for (before, threads), space in self._spaces.items():
            own = [
                code.replace(OWN_NAME, name)
                for (where, code), name in self._functions.items()
                if where == space
            ]
            found.append((space, before, threads, own))
        return found

    # -- nodes -------------------------------------------------------------------------------------

    def _find_local(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Blocks):
                self.local.append(node)
                self._own.update(slot for slot, _ in node.local)
            for part in inner(node):
                self._find_local(part)

    def _nodes(self, nodes: Sequence[Node]) -> list[_Line]:
        """Nodes in line."""
        lines: list[_Line] = []
        for node in nodes:
            if isinstance(node, Loop):
                lines += self._loop(node)
            elif isinstance(node, While):
                lines += self._while(node, 0)
            elif isinstance(node, Branch):
                lines += self._branch(node)
            else:
                for steps in self._sequence(node):
                    lines += self._at_once(steps)
        return lines

    def _flag(self, slot: int) -> str:
        return f"*(const volatile unsigned char*)({self._pointer(slot, len(self._rounds))}) != 0"

    def _new_flag(self) -> str:
        self._flags += 1
        return f"f{self._flags}"

    def _branch(self, node: Branch) -> list[_Line]:
        """Nobody writes over the flag before all have read it."""
        name = self._new_flag()
        then, otherwise = self._nodes(node.then), self._nodes(node.otherwise)
        flag = f"const bool {name} = {self._flag(node.flag)};"
        return [flag, None, f"if ({name}) {{", *then, "} else {", *otherwise, "}"]

    def _round(self, loop: Loop | While) -> _Round:
        partners = {slot: spare for slot, spare, _ in loop.carries}
        partners |= {spare: slot for slot, spare in partners.items()}
        moves = dict(loop.moves) if isinstance(loop, Loop) else {}
        if len(partners) != 2 * len(loop.carries) or partners.keys() & moves.keys():
            raise Refused
        return _Round(f"t{len(self._rounds)}", moves, partners)

    def _while(self, loop: While, most: int) -> list[_Line]:
        """So many rounds at most; 0 stands for any number."""
        one = self._round(loop)
        self._rounds.append(one)
        counter, name = one.counter, self._new_flag()
        flag = f"const bool {name} = {self._flag(loop.flag)};"
        lines = [*self._nodes(loop.test), flag, None, f"if (!{name}) break;"]
        lines += self._nodes(loop.body)
        self._rounds.pop()
        goes_on = f"{counter} < {most}" if most else ""
        begin = f"int {counter} = 0; for (; {goes_on}; ++{counter}) {{"
        copies = self._copies(loop)
        settled = [f"if ({counter} & 1) {{", *copies, "}"] if copies else []
        return ["{", begin, *lines, "}", *settled, "}"]

    def _sequence(self, node: Node) -> list[list[Step]]:
        """The launches of a node, those together that need nothing of each other."""
        if isinstance(node, Stage):
            return [[self._chosen(step)] for step in code_of(node)]
        if isinstance(node, Blocks):
            return [steps for member in node.members for steps in self._sequence(member)]
        if isinstance(node, Parts):
            parts = [[s for n in part for s in self._sequence(n)] for part in node.parts]
            return [[*chain(*steps)] for steps in zip_longest(*parts, fillvalue=())]
        raise Refused

    def _loop(self, loop: Loop) -> list[_Line]:
        one = self._round(loop)
        self._rounds.append(one)
        line = not loop.waits or any(isinstance(n, Loop | While | Branch) for n in loop.body)
        body, after = (self._nodes(loop.body), []) if line else self._groups(loop)
        self._rounds.pop()
        t = one.counter
        begin = f"for (int {t} = 0; {t} < {loop.rounds}; ++{t}) {{"
        return [begin, *body, "}", *after, *(self._copies(loop) if loop.rounds % 2 else [])]

    def _copies(self, loop: Loop | While) -> list[_Line]:
        """Copies of what an odd number of rounds left in spare memory, by the blocks there are."""
        copies = [copy_step(*c) for c in loop.carries if c[2]]
        fewer = [c._replace(grid=(min(c.grid[0], self.widest), 1)) for c in copies]
        return self._at_once(fewer) if copies else []

    def _groups(self, loop: Loop) -> tuple[list[_Line], list[_Line]]:
        """The groups of a round, each as early as it may begin, and what comes after all rounds:
        what the last groups do can be done beside the first ones of the next round.
        """
        times: list[list[Step]] = []  # launches between two barriers
        present: list[set[int]] = []  # their groups
        ends: list[int] = []
        at = 0
        for k, wait in enumerate(loop.waits):
            own = [s for node in loop.body[at : at + wait.nodes] for s in self._sequence(node)]
            at += wait.nodes
            begin = max((ends[i] for i in wait.after), default=0)
            ends.append(begin + len(own))
            for time, steps in enumerate(own, begin):
                if time == len(times):
                    times.append([])
                    present.append(set())
                times[time] += steps
                present[time].add(k)
        late: list[Step] = []
        if len(times) > 1 and not any(present[-1] & set(loop.waits[k].again) for k in present[0]):
            late = times.pop()
        first, *others = times
        one = self._rounds[-1]
        before = f"({one.counter} - 1)"
        lines = self._at_once(first, (late, before))
        for steps in others:
            lines += self._at_once(steps)
        return lines, self._at_once([], (late, f"{loop.rounds - 1}")) if late else []

    # -- launches ----------------------------------------------------------------------------------

    def _at_once(
        self, steps: Sequence[Step], other: tuple[Sequence[Step], str] = ((), "")
    ) -> list[_Line]:
        """Launches side by side, with some of another round, and a barrier."""
        late, counter = other
        blocks = sum(math.prod(step.grid) for step in (*late, *steps))
        self.widths.append(blocks)
        lines: list[_Line] = []
        first = 0
        for step in steps:
            lines += [self._call(step, first), _Between(blocks)]
            first += math.prod(step.grid)
        if late:
            one = self._rounds.pop()
            self._rounds.append(one._replace(counter=counter))
            lines.append(f"if ({counter} >= 0) {{")
            for step in late:
                lines += [self._call(step, first), _Between(blocks)]
                first += math.prod(step.grid)
            lines.append("}")
            self._rounds[-1] = one
        return [*lines, None]

    def _call(self, step: Step, first: int) -> _LoopLaunch:
        kernel = kernel_of(step.source, step.function)
        if kernel is None or step.together or step.early or step.block % 32:
            raise Refused
        if len(self.launched) == MOST_STEPS:
            raise Refused
        self.launched.append(step)
        start = -(-step.shared // VECTOR_BYTES) * VECTOR_BYTES
        self.room = max(self.room, start + (STATIC_BYTES if kernel.has_static else 0))
        space = self._spaces.setdefault((kernel.before, step.block), f"s{len(self._spaces)}")
        arguments = [a for a in step.arguments if not isinstance(a, TensorMap | GraphNumber)]
        if len(arguments) < len(step.arguments):
            raise Refused
        given = [_initialiser(a) for a in arguments]
        code = function(kernel, given, step.grid, step.block, start)
        name = self._functions.setdefault((space, code), f"call_{len(self._functions)}")
        places = [f"PbPlace{{{self._address(a)}}}" for a in arguments if isinstance(a, At | Table)]
        call = f"{space}::{name}({', '.join(['b', 'pb_memory', *places])});"
        return _LoopLaunch(call, first, math.prod(step.grid), step.block)

    def _chosen(self, step: object) -> Step:
        """The launch for these inputs."""
        if isinstance(step, Either):
            return step.aligned if all(map(self._is_aligned, step.asked())) else step.other
        if not isinstance(step, Step):
            raise Refused
        return step

    # -- addresses ---------------------------------------------------------------------------------

    def _origin(self, slot: int) -> tuple[int, int]:
        """The slot that the kernel is given, and how many bytes after it this one begins."""
        after = 0
        while slot >= self._first and slot not in self._own and slot not in self._moved:
            slot, nbytes = self._program.pointers[slot - self._first]
            after += nbytes
        return slot, after

    def _address(self, at: At | Table) -> str:
        if isinstance(at, Table) or at.slot == RECORD:
            return self._given(at)
        found = self._pointer(at.slot, len(self._rounds))
        return f"{found} + {at.nbytes}LL" if at.nbytes else found

    def _given(self, root: At | Table) -> str:
        return self._roots.setdefault(root, f"p{len(self._roots)}")

    def _pointer(self, slot: int, depth: int) -> str:
        """Where a slot is in a round of the first `depth` loops."""
        if depth == 0:
            root, after = self._origin(slot)
            own = self._given(At(root))
            return f"{own} + {after}LL" if after else own
        counter, moves, partners = self._rounds[depth - 1]
        own = self._pointer(slot, depth - 1)
        if slot in partners:
            return f"({counter} & 1 ? {self._pointer(partners[slot], depth - 1)} : {own})"
        return f"{own} + {counter} * {moves[slot]}LL" if slot in moves else own

    def _is_aligned(self, at: At) -> bool:
        """Whether an address is a multiple of VECTOR_BYTES in all rounds."""
        return at.slot == RECORD or (
            at.nbytes % VECTOR_BYTES == 0 and self._starts_aligned(at.slot, len(self._rounds))
        )

    def _starts_aligned(self, slot: int, depth: int) -> bool:
        if depth == 0:
            root, after = self._origin(slot)
            given = 1 <= root <= self._program.inputs or root in self._moved
            return after % VECTOR_BYTES == 0 and (self._aligned or not given)
        _, moves, partners = self._rounds[depth - 1]
        others = [slot, partners[slot]] if slot in partners else [slot]
        moved = moves.get(slot, 0) % VECTOR_BYTES == 0
        return moved and all(self._starts_aligned(s, depth - 1) for s in others)


def _initialiser(argument: At | Table | int | bytes) -> str | None:
    """What is the same in all rounds; None for an address."""
    if isinstance(argument, int):
        return f"{argument}LL"
    if isinstance(argument, bytes):
        words = struct.unpack(f"<{len(argument) // 8}q", argument)
        return f"{{{', '.join(f'{w}LL' for w in words)}}}"
    return None


def code_of(stage: Stage) -> StageCode:
    """The launches of a stage."""
    assert isinstance(stage.code, StageCode)
    return stage.code
