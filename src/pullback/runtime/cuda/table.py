"""The table of a program: its nodes as words that the launcher walks.

    head    inputs, areas, pointers, local arrays, slots, place of the nodes, context, entries,
            then the offsets of the areas, (origin, bytes) of pointers, (slot, offset) of arrays
    LAUNCH  function, grid x and y, block, shared bytes, n, values that a graph keeps of it, an
            attribute of cuda.h or 0, then n arguments: (slot, bytes after it), (-1, an int64),
            (-2, the place of a struct), (-3, the place of slot, bytes after it, 15 words of a
            struct which follow the address) or (-4, the place among a graph's numbers for a loop)
    EITHER  length, pairs, place of the second launch, (slot, bytes).., a launch, the second one
    LOOP    length, rounds, moves, carries, (slot, bytes).., (slot, spare).., body
    WHILE   length, flag, carries, place of the body, of what follows an odd number of rounds, of
            two or three launches that set conditions, (slot, spare).., test
    BRANCH  length, flag, place of the other list, of a launch that sets conditions, list
    HOST    length, callback, number
    CLEAR   length, slot, bytes
    GROUP   length, count, numbers of nodes that the next node of a graph waits for

A list of nodes ends with a 0. Places count words from the beginning of the table.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from struct import pack
from typing import TYPE_CHECKING

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
from pullback.runtime.cuda import conditions
from pullback.runtime.cuda.stages import (
    RECORD,
    At,
    Clear,
    Either,
    GraphNumber,
    HostCall,
    StageCode,
    Step,
    Table,
    TensorMap,
)

if TYPE_CHECKING:
    from pullback.runtime.cuda.gpu import Gpu
    from pullback.runtime.cuda.modules import Loaded

__all__ = ["LaunchTable", "copy_step", "inner"]

LAUNCH, EITHER, LOOP, WHILE, BRANCH, HOST, CLEAR, GROUP = range(1, 9)
# CU_LAUNCH_ATTRIBUTE_COOPERATIVE and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
TOGETHER, EARLY = 2, 6
HEAD = 8  # words of a table before those of its nodes: sizes, counts, places
LINE = 512  # bytes at a multiple of which scratch memory starts, as blocks of memory do
_COPY = """
extern "C" __global__ void pb_copy_bytes(unsigned char* out, const unsigned char* x, long long n) {
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long long i = first; i < n; i += (long long)gridDim.x * blockDim.x) out[i] = x[i];
}"""
_COPY_THREADS = 256  # of a thread block that copies bytes inside a program
_COPY_GRID = 132  # thread blocks at most: one for each processor of a Hopper
Carries = Sequence[tuple[int, int, int]]


def copy_step(to: int, source: int, nbytes: int) -> Step:
    """The launch that copies the bytes of one slot to another."""
    grid = min(_COPY_GRID, -(-nbytes // _COPY_THREADS))
    return Step(_COPY, "pb_copy_bytes", (grid, 1), _COPY_THREADS, (At(to), At(source), nbytes))


class LaunchTable:
    """The words of a program, and what they ask for; `kernels` are those of its sources.

    `slots` is their number, `scratch` the bytes of its scratch memory. `checked`: its kernels note
    errors. `straight`: a graph can have all of it. `launches` and `values` are what a graph keeps,
    `numbers` those of its loops and choices; `loops`: it has some.
    """

    def __init__(
        self, gpu: Gpu, program: Program, kernels: Mapping[str, Loaded], callback: int = 0
    ):
        self._gpu, self._kernels, self._callback = gpu, kernels, callback
        self.calls: list[HostCall] = []
        self._tables: list[Table] = []  # which keep what they stand for on the GPU
        self.checked, self.straight = False, True
        self.launches = self.values = 0
        self.numbers, self.loops = 1, False
        self._local: dict[int, int] = {}  # the bytes of arrays of blocks, by slot
        self._rounds = 1  # of the loops around a node
        first = 1 + program.inputs + len(program.scratch)
        self.slots = first + len(program.pointers) + 1
        self._words: list[int] = []
        self._structs: list[tuple[int, bytes]] = []  # places of structs, which come last
        start = HEAD + len(program.scratch) + 2 * len(program.pointers)
        # the arrays of blocks are known when the nodes are: they stand between head and nodes
        self._start = start + 2 * len(_local_slots(program.stages))
        self._groups(program)
        self.scratch, areas, local = self._places(program)
        head = [
            *(program.inputs, len(areas), len(program.pointers), len(local) // 2, self.slots),
            *(self._start, gpu.context.handle, gpu.driver.entries, *areas),
            *(word for pair in program.pointers for word in pair),
            *local,
        ]
        assert len(head) == self._start
        self._memory = self._packed(head)

    @property
    def address(self) -> int:
        """Where the words are."""
        return self._memory.buffer_info()[0]

    def _places(self, program: Program) -> tuple[int, list[int], list[int]]:
        """Bytes of scratch memory, and where areas and local arrays are in it."""
        at, areas, local = 0, [], []
        for nbytes in program.scratch:
            areas.append(at)
            at += -(-nbytes // LINE) * LINE
        for slot, nbytes in self._local.items():
            local += [slot, at]
            at += -(-nbytes // LINE) * LINE
        return at, areas, local

    def _packed(self, head: Sequence[int]) -> array[int]:
        words = array("q", [*head, *self._words])
        for place, struct in self._structs:
            words[self._start + place] = len(words)
            words.frombytes(struct)
        return words

    # -- groups ------------------------------------------------------------------------------------

    def _groups(self, program: Program) -> None:
        """The stages, and which nodes of a graph wait for which where they are not in line."""
        at = 0
        last: list[list[int]] = []  # the nodes that end each group
        noted: list[int] = []  # what ends all groups whose kernels note errors, in one record
        told = False  # whether a group that has no launches was told to wait: the next one is too
        for count, after in program.waits:
            own = program.stages[at : at + count]
            at += count
            needed = sorted({k for g in after for k in last[g]})
            notes = _notes_errors(own)
            if notes:
                needed = sorted({*needed, *noted})
            first = self.launches
            told = told or needed != [first - 1]
            if told:
                self._words += [GROUP, 3 + len(needed), len(needed), *needed]
            for node in own:
                self._node(node)
            if self.launches == first:
                last.append(needed)
                continue
            told = False
            last.append([self.launches - 1])
            noted = last[-1] if notes else noted
        self._list(program.stages[at:])

    # -- nodes -------------------------------------------------------------------------------------

    def _here(self) -> int:
        return self._start + len(self._words)

    def _list(self, nodes: Sequence[Node]) -> bool:
        """Whether there is something in a list."""
        before = len(self._words)
        for node in nodes:
            self._node(node)
        self._words.append(0)
        return len(self._words) > before + 1

    def _node(self, node: Node) -> None:
        if isinstance(node, Stage):
            assert isinstance(node.code, StageCode)
            for step in node.code:
                self._step(step)
        elif isinstance(node, Parts):
            for part in node.parts:
                for member in part:
                    self._node(member)
        elif isinstance(node, Blocks):
            for slot, nbytes in node.local:
                self._local[slot] = max(self._local.get(slot, 0), nbytes * node.rows)
            for member in node.members:
                self._node(member)
        elif isinstance(node, Branch):
            self._branch(node)
        elif isinstance(node, Loop):
            self._loop(node)
        else:
            self._while(node)

    def _begin(self, kind: int, *words: int) -> int:
        """The place of the length of a node, which `_end` fills in."""
        self._words += [kind, 0, *words]
        return len(self._words) - len(words) - 1

    def _end(self, at: int) -> None:
        self._words[at] = len(self._words) - at + 1

    def _branch(self, node: Branch) -> None:
        at = self._begin(BRANCH, node.flag, 0, 0)
        bodies = self._list(node.then)
        self._words[at + 2] = self._here()
        bodies += self._list(node.otherwise)
        self._words[at + 3] = self._here()
        self._conditions([conditions.choice_setter(node.flag)], conditions.CHOICE)
        self.launches += self._rounds * bodies
        self._end(at)

    def _loop(self, node: Loop) -> None:
        carries = [c for c in node.carries if c[2]]
        at = self._begin(LOOP, node.rounds, len(node.moves), len(node.carries))
        self._words += [word for pair in node.moves for word in pair]
        self._words += [word for slot, spare, _ in node.carries for word in (slot, spare)]
        around = self._rounds
        self._rounds *= node.rounds
        self._list(node.body)
        self._rounds = around
        self._end(at)
        for slot, spare, nbytes in carries if node.rounds % 2 else ():
            self._step(copy_step(slot, spare, nbytes))

    def _while(self, node: While) -> None:
        """A graph has the test once before the loop, and two rounds in it; one without a body."""
        self.loops, around = True, self._rounds
        at = self._begin(WHILE, node.flag, len(node.carries), 0, 0, 0)
        self._words += [word for slot, spare, _ in node.carries for word in (slot, spare)]
        before = self._counted()
        self._list(node.test)
        test = [a - b for a, b in zip(self._counted(), before, strict=True)]
        self._words[at + 3] = self._here()
        self._rounds = around * 2
        has_body = self._list(node.body)
        self._rounds = around
        self._words[at + 4] = self._here()
        copies = [copy_step(*c) for c in node.carries if c[2]]
        for step in copies:
            self._step(step)
        self._words.append(0)
        self._words[at + 5] = self._here()
        first, odd, even = conditions.loop_setters(node.flag)
        self._conditions([first, odd, even] if has_body else [first, even], conditions.LOOP)
        self.launches += around * (1 + has_body + bool(copies))
        further = 1 + has_body
        self.launches += further * test[0]
        self.values += further * test[1]
        self.numbers += further * test[2]
        self._end(at)

    def _counted(self) -> tuple[int, int, int]:
        return self.launches, self.values, self.numbers

    def _conditions(self, setters: Sequence[Step], count: int) -> None:
        """The launches that set so many conditions of a loop or choice, outside of all lists."""
        self.numbers += self._rounds * count
        if not self._gpu.has_conditions or self.numbers > conditions.MOST * conditions.LOOP:
            self.straight = False
            return
        for setter in setters:
            self._step(setter)

    # -- steps -------------------------------------------------------------------------------------

    def _step(self, step: Step | Either | Clear | HostCall) -> None:
        if isinstance(step, Clear):
            self.straight = False  # a graph is a line of kernels
            self._words += [CLEAR, 4, *step]
        elif isinstance(step, HostCall):
            self.straight = False
            self._words += [HOST, 4, self._callback, len(self.calls)]
            self.calls.append(step)
        elif isinstance(step, Either):
            self._either(step)
        else:
            self._launch(step, len(step.arguments))
            self._count(len(step.arguments))

    def _either(self, step: Either) -> None:
        ats = step.asked()
        most = max(len(step.aligned.arguments), len(step.other.arguments))
        at = self._begin(EITHER, len(ats), 0)
        self._words += [word for a in ats for word in self._argument(a)]
        self._launch(step.aligned, most)
        self._words[at + 2] = self._here()
        self._launch(step.other, most)
        self._end(at)
        self._count(most)

    def _count(self, arguments: int) -> None:
        self.launches += self._rounds
        self.values += self._rounds * (arguments + 1)

    def _launch(self, step: Step, most: int) -> None:
        self.checked = self.checked or step.checked
        across, down = step.grid
        count = len(step.arguments)
        attribute = TOGETHER if step.together else EARLY if step.early else 0
        self.straight = self.straight and attribute != EARLY
        sizes = (across, down, step.block, step.shared, count, most + 1, attribute)
        function = self._kernels[step.source].function(step.function, step.shared)
        self._words += [LAUNCH, function, *sizes]
        for argument in step.arguments:
            if isinstance(argument, bytes):
                self._structs.append((len(self._words) + 1, argument))
                self._words += [-2, 0]
            elif isinstance(argument, TensorMap):
                words = pack("<2q", *argument.at) + argument.rest
                self._structs.append((len(self._words) + 1, words))
                self._words += [-3, 0]
            else:
                self._words += self._argument(argument)

    def _argument(self, argument: At | Table | GraphNumber | int) -> tuple[int, int]:
        if isinstance(argument, Table):
            self._tables.append(argument)
            return -1, self._gpu.constant(argument, argument.values).address
        if isinstance(argument, GraphNumber):
            return -4, argument.place
        if not isinstance(argument, At):
            return -1, argument
        slot, nbytes = argument
        return (self.slots - 1 if slot == RECORD else slot), nbytes


def _notes_errors(nodes: Sequence[Node]) -> bool:
    """Whether some kernel of nodes notes errors."""
    for node in nodes:
        if isinstance(node, Stage):
            assert isinstance(node.code, StageCode)
            if any(isinstance(step, Step) and step.checked for step in node.code):
                return True
        if any(_notes_errors(part) for part in inner(node)):
            return True
    return False


def _local_slots(nodes: Sequence[Node]) -> set[int]:
    """The slots of arrays of blocks, at any depth."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, Blocks):
            found.update(slot for slot, _ in node.local)
        for part in inner(node):
            found |= _local_slots(part)
    return found


def inner(node: Node) -> list[Sequence[Node]]:
    """The lists of nodes inside a node."""
    if isinstance(node, Stage):
        return []
    if isinstance(node, Loop):
        return [node.body]
    if isinstance(node, While):
        return [node.test, node.body]
    if isinstance(node, Branch):
        return [node.then, node.otherwise]
    return [*node.parts] if isinstance(node, Parts) else [node.members]
