"""Programs on a GPU: a stage is a list of launches, whose arguments are found through slots.

All launches go to one stream. The host walks through loops and branches; it waits for the device
where a flag decides, and at the end of a program that looks for errors.

The words of all arguments of a program lie in one array, which a call fills in from its slots. The
slot RECORD is the last one: the address of the struct Record of `indexing`, where errors are noted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

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
from pullback.runtime.cuda.gpu import Buffer, Gpu

__all__ = [
    "RECORD",
    "RECORD_BYTES",
    "At",
    "Either",
    "HostCall",
    "Run",
    "Step",
    "Table",
    "encode",
    "stage",
]

RECORD = -1
RECORD_BYTES = 40
VECTOR_BYTES = 16  # at a multiple of which arrays start that are read several elements at a time
_LINE = 256  # bytes at a multiple of which scratch memory starts, as CuPy's allocations do


class At(NamedTuple):
    """The address of a slot, or so many bytes after it."""

    slot: int
    nbytes: int = 0


class Table:
    """Numbers that a kernel looks up: an array of the host, which each GPU gets a copy of."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: np.ndarray):
        self.values = np.ascontiguousarray(values)


class Step(NamedTuple):
    """A launch: a function of a source, thread blocks, threads of each, arguments.

    An argument is an address, a table, an int64, or the bytes of a struct that is passed by value.
        `checked`: it notes errors. `shared`: bytes of shared memory that the launch gives a block.
    """

    source: str
    function: str
    grid: tuple[int, int]
    block: int
    arguments: tuple[At | Table | int | bytes, ...]
    checked: bool = False
    shared: int = 0


class Either(NamedTuple):
    """`aligned` if all arrays start at multiples of VECTOR_BYTES, else `other`."""

    aligned: Step
    other: Step


class HostCall(NamedTuple):
    """A function of the host, which gives (code, position, value) of an error, or None."""

    function: Callable[[Run], tuple[int, int, int] | None]


class _Code(tuple[Step | Either | HostCall, ...]):
    """The code of a stage."""

    __slots__ = ()

    def __index__(self) -> int:
        return id(self)


def stage(*steps: Step | Either | HostCall) -> list[Stage]:
    """A stage of launches, none if there are none."""
    return [Stage(_Code(steps), 1, 1, ())] if steps else []


class Found(Exception):
    """The code, position and value of an error."""


class Run:
    """A call of a program: its slots, and memory for the arguments of its launches."""

    __slots__ = ("_frame", "arguments", "gpu", "slots", "stream", "words")

    def __init__(self, gpu: Gpu, slots: list[int], stream: int, frame: _Frame):
        self.gpu, self.slots, self.stream, self._frame = gpu, slots, stream, frame
        self.words, self.arguments = frame.words, frame.start

    def byte(self, slot: int) -> int:
        """The byte at a slot."""
        return int(self.gpu.download(self.slots[slot], 1, self.stream)[0])


class _Frame:
    """The words of all arguments, and their addresses; a call has them for itself."""

    __slots__ = ("_addresses", "start", "words")

    def __init__(self, words: array[int], places: Sequence[int]):
        self.words = words[:]
        base = self.words.buffer_info()[0]
        self._addresses = array("Q", [base + 8 * place for place in places])
        self.start = self._addresses.buffer_info()[0]


Play = Callable[[Run], None]


class _Encoder:
    """Nodes as functions of a call."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.words: array[int] = array("q")
        self.places: list[int] = []
        self.tables: list[Table] = []
        self.local: dict[int, int] = {}  # the bytes of arrays of blocks, by slot
        self.checked = False

    def all(self, nodes: Sequence[Node]) -> list[Play]:
        return [play for node in nodes for play in self.node(node)]

    def node(self, node: Node) -> list[Play]:
        if isinstance(node, Stage):
            assert isinstance(node.code, _Code)
            return [self.step(s) for s in node.code]
        if isinstance(node, Parts):
            return [play for part in node.parts for play in self.all(part)]
        if isinstance(node, Blocks):
            for slot, nbytes in node.local:
                self.local[slot] = max(self.local.get(slot, 0), nbytes * node.rows)
            return self.all(node.members)
        if isinstance(node, Branch):
            return [_branch(node.flag, self.all(node.then), self.all(node.otherwise))]
        if isinstance(node, Loop):
            return [_loop(self.all(node.body), node)]
        return [_while(self.all(node.test), self.all(node.body), node)]

    def step(self, step: Step | Either | HostCall) -> Play:
        if isinstance(step, HostCall):
            self.checked = True
            return _call(step)
        if isinstance(step, Step):
            return self.launch(step)
        aligned, other = self.launch(step.aligned), self.launch(step.other)
        ats = [a for a in step.aligned.arguments if isinstance(a, At)]

        def choose(run: Run) -> None:
            slots = run.slots
            (other if any((slots[s] + n) % VECTOR_BYTES for s, n in ats) else aligned)(run)

        return choose

    def launch(self, step: Step) -> Play:
        """A launch; its arguments get places."""
        first, fills = 8 * len(self.places), []
        for argument in step.arguments:
            place = len(self.words)
            self.places.append(place)
            if isinstance(argument, At):
                fills.append((place, *argument))
                self.words.append(0)
            elif isinstance(argument, bytes):
                self.words.frombytes(argument)
            elif isinstance(argument, Table):
                self.tables.append(argument)
                self.words.append(self.gpu.constant(argument, argument.values).address)
            else:
                self.words.append(argument)
        self.checked = self.checked or step.checked
        function = self.gpu.function(step.source, step.function, step.shared)
        enqueue = self.gpu.enqueue
        across, down = step.grid
        block, shared = step.block, step.shared

        def launch(run: Run) -> None:
            words, slots = run.words, run.slots
            for place, slot, nbytes in fills:
                words[place] = slots[slot] + nbytes
            stream, at = run.stream, run.arguments + first
            # the arguments are copied before this returns
            enqueue(function, across, down, 1, block, 1, 1, shared, stream, at, 0)

        return launch


def _branch(flag: int, then: Sequence[Play], otherwise: Sequence[Play]) -> Play:
    def branch(run: Run) -> None:
        for play in then if run.byte(flag) else otherwise:
            play(run)

    return branch


def _loop(body: Sequence[Play], node: Loop) -> Play:
    def loop(run: Run) -> None:
        before, slots = list(run.slots), run.slots
        for _ in range(node.rounds):
            for play in body:
                play(run)
            for slot, nbytes in node.moves:
                slots[slot] += nbytes
            for slot, spare, _ in node.carries:
                slots[slot], slots[spare] = slots[spare], slots[slot]
        _settle(run, before, node.carries, node.rounds)

    return loop


def _while(test: Sequence[Play], body: Sequence[Play], node: While) -> Play:
    def loop(run: Run) -> None:
        before, slots, rounds = list(run.slots), run.slots, 0
        while True:
            for play in test:
                play(run)
            if not run.byte(node.flag):
                break
            for play in body:
                play(run)
            for slot, spare, _ in node.carries:
                slots[slot], slots[spare] = slots[spare], slots[slot]
            rounds += 1
        _settle(run, before, node.carries, rounds)

    return loop


def _settle(
    run: Run, before: list[int], carries: Sequence[tuple[int, int, int]], rounds: int
) -> None:
    """All pointers as before a loop, and its carries where they are looked for."""
    run.slots[:] = before
    for slot, spare, nbytes in carries if rounds % 2 else ():
        if nbytes:
            run.gpu.copy(before[slot], before[spare], nbytes, run.stream)


def _call(step: HostCall) -> Play:
    def call(run: Run) -> None:
        found = step.function(run)
        if found is not None:
            raise Found(*found)

    return call


def _sources(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Stage):
            assert isinstance(node.code, _Code)
            for step in node.code:
                if not isinstance(step, HostCall):
                    pair = step if isinstance(step, Either) else (step,)
                    yield from (s.source for s in pair)
        else:
            for part in _inner(node):
                yield from _sources(part)


def _inner(node: Loop | While | Branch | Parts | Blocks) -> list[Sequence[Node]]:
    """The lists of nodes inside a node."""
    if isinstance(node, Loop):
        return [node.body]
    if isinstance(node, While):
        return [node.test, node.body]
    if isinstance(node, Branch):
        return [node.then, node.otherwise]
    return [*node.parts] if isinstance(node, Parts) else [node.members]


def encode(gpu: Gpu, program: Program) -> Callable[..., Any]:
    """The program as a function of buffers: see `Target.encode`."""
    return _Encoded(gpu, program).run


class _Encoded:
    """A program whose kernels are loaded."""

    def __init__(self, gpu: Gpu, program: Program):
        self._gpu, self._nbytes = gpu, program.out_nbytes
        gpu.load(_sources(program.stages))
        encoder = _Encoder(gpu)
        self._plays = encoder.all(program.stages)
        self._checked = encoder.checked
        self._pointers = program.pointers
        sizes = [*program.scratch, *encoder.local.values(), RECORD_BYTES]
        *offsets, self._scratch = accumulate((-(-n // _LINE) * _LINE for n in sizes), initial=0)
        self._areas = offsets[: len(program.scratch)]
        self._local = list(zip(encoder.local, offsets[len(program.scratch) :], strict=False))
        self._record = offsets[-1]
        self._words, self._places = encoder.words, encoder.places
        self._tables = encoder.tables  # which keep what they stand for on the GPU
        self._free: list[_Frame] = []

    def run(self, *buffers: Buffer) -> Buffer | tuple[int, int, int]:
        gpu = self._gpu
        with gpu.current() as stream:
            out = gpu.empty(self._nbytes)
            # what uses the memory next comes later on the same stream
            memory = gpu.empty(self._scratch)
            base = memory.address
            slots = [out.address, *(b.address for b in buffers), *(base + n for n in self._areas)]
            for origin, nbytes in self._pointers:
                slots.append(slots[origin] + nbytes)
            for slot, offset in self._local:
                slots[slot] = base + offset
            slots.append(base + self._record)
            if self._checked:
                gpu.clear(slots[RECORD], RECORD_BYTES, stream)
            try:
                frame = self._free.pop()
            except IndexError:
                frame = _Frame(self._words, self._places)
            run = Run(gpu, slots, stream, frame)
            try:
                for play in self._plays:
                    play(run)
            except Found as found:
                code, position, value = found.args
                return self._first(run) or (code, position, value)
            finally:
                self._free.append(frame)
            return (self._first(run) if self._checked else None) or out

    def _first(self, run: Run) -> tuple[int, int, int] | None:
        """The first error that is noted."""
        found = run.gpu.download(run.slots[RECORD], RECORD_BYTES, run.stream).view(np.int64)
        _, code, position, value, _ = map(int, found)
        return (code, position, value) if code else None
