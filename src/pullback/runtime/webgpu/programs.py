"""Programs on a GPU: what one does for given places of its inputs is recorded on the first call,
loops and all, unless a flag decides or the host is called in between; then the host walks through
it anew every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pullback.compile.program.stages import Branch, Loop, Node, Program, Stage, While
from pullback.compile.program.target import Fault
from pullback.core.avals import Aval
from pullback.core.dtypes import complex128
from pullback.core.errors import DeviceError
from pullback.runtime.webgpu.gpu import (
    MOST_ACROSS,
    Buffer,
    Command,
    Gpu,
    Pipeline,
    PooledBuffer,
    copy_command,
)
from pullback.runtime.webgpu.host_calls import read_array
from pullback.runtime.webgpu.kernels_text import whole_text
from pullback.runtime.webgpu.printer import check_dtype
from pullback.runtime.webgpu.stages import (
    FAULT,
    FAULT_WORDS,
    LINE,
    Dispatch,
    HostCall,
    Step,
    Table,
    copied,
    inner_of,
    is_straight,
    scratch_places,
    steps_of,
)

__all__ = ["Run", "encode"]

MOST_RECORDED = 1 << 14  # commands of a program that are kept: some megabytes
MOST_RESOLVED = 8  # sets of buffers for which they are kept ready
ROOT = 1 << 40  # a place is a root, times this, and a byte


class Found(Exception):
    """The code, position and value of an error."""


class _Launch(NamedTuple):
    """A dispatch whose kernel is compiled, at places that are known."""

    pipeline: Pipeline
    chunk: Any
    offset: int
    roots: tuple[int, ...]
    x: int
    y: int


class _Copy(NamedTuple):
    """Words from one place to another, which are in different buffers or apart."""

    source: int
    target: int
    nbytes: int


_Command: TypeAlias = _Launch | _Copy


class Run:
    """A call of a program: the places of its slots, and the memory of its roots."""

    __slots__ = ("gpu", "memories", "places")

    def __init__(self, gpu: Gpu, places: list[int], memories: Sequence[PooledBuffer]):
        self.gpu, self.places, self.memories = gpu, places, memories

    def memory(self, slot: int) -> tuple[PooledBuffer, int]:
        """The memory that a slot is in, and the byte."""
        root, offset = divmod(self.places[slot], ROOT)
        return self.memories[root], offset

    def read(self, slot: int, av: Aval) -> np.ndarray:
        """An array at a slot, when all commands are done."""
        return read_array(self.gpu, *self.memory(slot), av)

    def wait(self) -> None:
        """Return when all commands are done."""
        self.gpu.wait()

    def byte(self, slot: int) -> int:
        """The byte at a slot, when all commands are done."""
        memory, offset = self.memory(slot)
        return int(self.gpu.download(memory, offset, 1)[0])

    def write(self, slot: int, array: np.ndarray) -> None:
        """Write an array to a slot, after all commands so far."""
        memory, offset = self.memory(slot)
        self.gpu.overwrite(memory, offset, array)

    def command(self, command: _Command) -> Command:
        """A command on the memory of the roots."""
        memories, gpu = self.memories, self.gpu
        if isinstance(command, _Launch):
            pipeline, chunk, offset, roots, x, y = command
            group = gpu.group(pipeline, chunk, tuple([memories[r] for r in roots]))
            return pipeline.pipeline, group, offset, x, y
        (one, start), (two, to) = divmod(command.source, ROOT), divmod(command.target, ROOT)
        return copy_command(memories[one], start, memories[two], to, command.nbytes)


def encode(
    gpu: Gpu, program: Program, faults: Sequence[tuple[str, Fault]] = ()
) -> Callable[..., Any]:
    """The program as a function of buffers: see `Target.encode`."""
    return Encoded(gpu, program, faults).run


class Encoded:
    """A program and what it did for places of its inputs.

    The roots are the output, the inputs, scratch memory and the words of errors.
    """

    def __init__(self, gpu: Gpu, program: Program, faults: Sequence[tuple[str, Fault]]):
        self._gpu, self._program, self._meanings = gpu, program, faults
        self._inputs = program.inputs
        areas, local, self._scratch = scratch_places(program)
        scratch = (1 + self._inputs) * ROOT
        self._areas = [scratch + n for n in areas]
        self._local = [(slot, scratch + n) for slot, n in local]
        steps = [s for s in steps_of(program.stages) if isinstance(s, Dispatch)]
        if any(a.item == "u128" for s in steps for a in s.arrays):
            check_dtype("jit", complex128)  # eager operations have looked before
        self._check_rounds(max((s.rounds for s in steps), default=0))
        self.tables: dict[Table, int] = {}  # where they are among the constants
        self._constants = self._kept_tables(steps)
        self._changed = {
            a.at.slot for s in steps for a in s.arrays
            if a.mode != "read" and 0 < a.at.slot <= self._inputs
        }  # fmt: skip
        # The numbers, from 0, of the errors that each dispatch may note.
        noted = [[a.at.nbytes // (4 * FAULT_WORDS) for a in s.arrays if a.at.slot == FAULT]
                 for s in steps if s.checked]  # fmt: skip
        self._noted = list(dict.fromkeys(map(tuple, noted)))
        self._codes = 1 + max((n for own in noted for n in own), default=-1)
        self.fault_nbytes = 4 * FAULT_WORDS * self._codes
        self._straight = is_straight(program.stages)
        self._recorded: dict[tuple[int, ...], list[_Command]] = {}
        self._commands: dict[tuple[Any, ...], list[Command]] = {}
        self._dropped = gpu.dropped
        self._kernels: dict[tuple[int, tuple[int, ...]], tuple[Pipeline, tuple[int, ...]]] = {}
        self._packed: list[int] = []
        # Kernels are compiled for inputs that start where their memory does, as most do.
        inputs = [k * ROOT for k in range(1, 1 + self._inputs)]
        if self._most_bound(steps, self._places(inputs)) > gpu.most_buffers:
            self._packed = [k for k in range(1, 1 + self._inputs) if k not in self._changed]
            inputs = [self._packed[0] * ROOT if p // ROOT in self._packed else p for p in inputs]
        player = _Player(self, self._places(inputs), None)
        for step in steps:
            player.launch(step, compile_only=True)

    def _check_rounds(self, rounds: int) -> None:
        """Raise if the driver would end a loop early: results would be wrong without a word."""
        most = self._gpu.most_rounds
        if most is not None and rounds > most:
            raise DeviceError(
                f"webgpu: the driver of this adapter ends loops after {most} rounds, and one here"
                f" has up to {rounds}. Use shorter axes or smaller matrices, move the operands to"
                ' the CPU with to_device("cpu"), or try a GPU.'
            )

    def _kept_tables(self, steps: Sequence[Dispatch]) -> list[PooledBuffer]:
        """The memory of tables, if there are some."""
        contents = []
        for table in dict.fromkeys(a.table for s in steps for a in s.arrays):
            if table is not None:
                self.tables[table] = sum(c.size for c in contents)
                raw = table.values().reshape(-1).view(np.uint8)
                contents += [raw, np.zeros(-raw.size % LINE, np.uint8)]
        return [self._gpu.uploaded(np.concatenate(contents)).memory] if contents else []

    def _most_bound(self, steps: Sequence[Dispatch], places: Sequence[int]) -> int:
        """The most buffers that a kernel sees."""
        return max((len({places[a.at.slot] // ROOT for a in s.arrays}) for s in steps), default=0)

    def _places(self, inputs: Sequence[int]) -> list[int]:
        """The place of every slot, given those of the inputs."""
        places = [0, *inputs, *self._areas]
        for origin, nbytes in self._program.pointers:
            places.append(places[origin] + nbytes)
        for slot, place in self._local:
            places[slot] = place
        places += [(3 + self._inputs) * ROOT, (2 + self._inputs) * ROOT]
        return places

    def run(self, *buffers: Buffer) -> Buffer | tuple[int, int, int]:
        """See `Target.encode`."""
        gpu = self._gpu
        with gpu.lock:
            out = gpu.empty(self._program.out_nbytes)
            scratch = gpu.empty(self._scratch).memory if self._scratch else out.memory
            faults = out.memory
            if self._codes:
                faults = gpu.empty(self.fault_nbytes).memory
                gpu.clear(faults, 0, self.fault_nbytes)
            memories = [out.memory, *(b.memory for b in buffers), scratch, faults]
            memories += self._constants
            for slot in self._changed:
                self._part(memories, slot)
            inputs = [k * ROOT + b.offset for k, b in enumerate(buffers, 1)]
            if self._packed:
                self._pack(inputs, memories)
            places = tuple(inputs)
            recorded = self._recorded.get(places)
            if recorded is not None:
                gpu.queue(self._resolved(places, memories, recorded))
            else:
                found = self._play(gpu, places, memories)
                if found is not None:
                    return (self._read(faults) if self._codes else None) or found
            if self._codes and self._meanings:
                gpu.faults.expect(faults, self)
                return out
            return (self._read(faults) if self._codes else None) or out

    def _pack(self, inputs: list[int], memories: list[PooledBuffer]) -> None:
        """Bring inputs that are only read to one buffer: there are too many for a kernel."""
        gpu, first = self._gpu, self._packed[0]
        own = list(dict.fromkeys(memories[k] for k in self._packed))
        starts = dict(zip(own, accumulate((m.nbytes for m in own), initial=0), strict=False))
        pack = gpu.empty(sum(m.nbytes for m in own)).memory
        for m, start in starts.items():
            gpu.copy(m, 0, pack, start, m.nbytes)
        for k in self._packed:
            inputs[k - 1] += (first - k) * ROOT + starts[memories[k]]
        memories[first] = pack

    def _resolved(
        self,
        inputs: tuple[int, ...],
        memories: Sequence[PooledBuffer],
        recorded: Sequence[_Command],
    ) -> Sequence[Command]:
        """What was recorded as commands on these buffers: few of the pool's are met in turns."""
        gpu, key = self._gpu, (inputs, *[m.number for m in memories])
        if self._dropped != gpu.dropped:  # buffers that are gone must not be held here
            self._commands.clear()
            self._dropped = gpu.dropped
        found = self._commands.get(key)
        if found is None:
            run = Run(gpu, [], memories)
            if len(self._commands) >= MOST_RESOLVED:
                self._commands.clear()
            found = self._commands[key] = [run.command(c) for c in recorded]
        return found

    def _part(self, memories: list[PooledBuffer], slot: int) -> None:
        """Let other inputs that are in the memory of one that is written be copies."""
        own, gpu = memories[slot], self._gpu
        for k in range(1, 1 + self._inputs):
            if k != slot and memories[k] is own:
                memories[k] = gpu.empty(own.nbytes).memory
                gpu.copy(own, 0, memories[k], 0, own.nbytes)

    def _play(
        self, gpu: Gpu, inputs: tuple[int, ...], memories: Sequence[PooledBuffer]
    ) -> tuple[int, int, int] | None:
        """Run the program step by step, and keep what it did if that will be the same again."""
        player = _Player(self, self._places(inputs), Run(gpu, [], memories))
        try:
            player.play(self._program.stages)
        except Found as found:
            code, position, value = found.args
            return code, position, value
        if self._straight and len(player.commands) <= MOST_RECORDED:
            if len(self._recorded) >= 16:  # places of inputs that are views at ever new places
                self._recorded.clear()
            self._recorded[inputs] = player.commands
        return None

    def error(self, words: np.ndarray) -> BaseException | None:
        """See `Checked`."""
        first = self._first(words)
        if first is None:
            return None
        code, position, value = first
        name, fault = self._meanings[code - 1]
        return fault.error(name, position, value)

    def _read(self, faults: PooledBuffer) -> tuple[int, int, int] | None:
        return self._first(self._gpu.download(faults, 0, self.fault_nbytes).view(np.uint32))

    def _first(self, noted: np.ndarray) -> tuple[int, int, int] | None:
        """The first error that is noted."""
        words = noted.reshape(-1, FAULT_WORDS)
        for own in self._noted:
            code = max(own, key=lambda n: int(words[n, 0]))  # of equal ones the first
            position, low, high, _ = words[code].tolist()
            if position:
                value = int(np.array([low | high << 32], np.uint64).view(np.int64)[0])
                return code + 1, 0xFFFFFFFF - position, value
        return None

    def kernel(self, step: Dispatch, roots: tuple[int, ...]) -> tuple[Pipeline, tuple[int, ...]]:
        """The compiled kernel of a dispatch whose arrays are in these roots, and its bindings."""
        key = id(step), roots
        found = self._kernels.get(key)
        if found is None:
            bound = tuple(dict.fromkeys(roots))
            gpu = self._gpu
            text, written, nbytes = whole_text(
                step.source,
                [(a.item, a.mode) for a in step.arrays],
                [bound.index(r) for r in roots],
                len(step.words),
                gpu.arithmetic,
            )
            found = self._kernels[key] = gpu.pipeline(text, written, nbytes), bound
        return found


class _Player:
    """Walks through a program, and notes what it does."""

    def __init__(self, program: Encoded, places: list[int], run: Run | None):
        self.program, self.places, self.run = program, places, run
        self.commands: list[_Command] = []
        if run is not None:
            run.places = places

    def play(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Stage):
                for step in node.code:  # type: ignore[attr-defined]
                    self.step(step)
            elif isinstance(node, Branch):
                assert self.run is not None
                self.play(node.then if self.run.byte(node.flag) else node.otherwise)
            elif isinstance(node, Loop):
                self.loop(node)
            elif isinstance(node, While):
                self.repeat(node)
            else:
                for part in inner_of(node):
                    self.play(part)

    def loop(self, node: Loop) -> None:
        before, places = list(self.places), self.places
        for _ in range(node.rounds):
            self.play(node.body)
            for slot, nbytes in node.moves:
                places[slot] += nbytes
            for slot, spare, _ in node.carries:
                places[slot], places[spare] = places[spare], places[slot]
        self.settle(before, node.carries, node.rounds)

    def repeat(self, node: While) -> None:
        assert self.run is not None
        before, places, rounds = list(self.places), self.places, 0
        while True:
            self.play(node.test)
            if not self.run.byte(node.flag):
                break
            self.play(node.body)
            for slot, spare, _ in node.carries:
                places[slot], places[spare] = places[spare], places[slot]
            rounds += 1
        self.settle(before, node.carries, rounds)

    def settle(self, before: list[int], carries: Sequence[tuple[int, int, int]], rounds: int):
        """All places as before a loop, and its carries where they are looked for."""
        self.places[:] = before
        for slot, spare, nbytes in carries if rounds % 2 else ():
            if nbytes:
                self.copy(before[spare], before[slot], nbytes)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copy bytes; whole words, through a buffer of its own where both are in the same one."""
        if source // ROOT == target // ROOT or (source | target) % 4:
            self.launch(copied(nbytes), [source, target])
        else:
            self.do(_Copy(source, target, -(-nbytes // 4) * 4))

    def step(self, step: Step) -> None:
        if isinstance(step, HostCall):
            assert self.run is not None
            found = step.function(self.run)
            if found is not None:
                raise Found(*found)
        else:
            self.launch(step)

    def launch(
        self, step: Dispatch, given: Sequence[int] | None = None, compile_only: bool = False
    ) -> None:
        """A dispatch with its arrays where they are now, or at given places."""
        step = self.program._gpu.chosen(step)
        if given is None:
            tables = self.program.tables
            given = [
                self.places[a.at.slot] + (a.at.nbytes if a.table is None else tables[a.table])
                for a in step.arrays
            ]
        roots = tuple([place // ROOT for place in given])
        pipeline, bound = self.program.kernel(step, roots)
        if compile_only:
            return
        words = [0]
        for place, a in zip(given, step.arrays, strict=True):
            unit = min(4, int(a.item[1:]) // 8)
            assert place % unit == 0, "an item starts at a multiple of its size"
            words.append(place % ROOT // unit)
        words += [w & 0xFFFFFFFF for w in step.words]
        gpu = self.program._gpu
        chunk, offset = gpu.record(np.array(words, np.uint32), pipeline.record)
        x = min(step.groups, MOST_ACROSS)
        self.do(_Launch(pipeline, chunk, offset, bound, x, -(-step.groups // x)))

    def do(self, command: _Command) -> None:
        if len(self.commands) <= MOST_RECORDED:
            self.commands.append(command)
        if self.run is not None:
            self.program._gpu.queue([self.run.command(command)])
