"""Programs on a GPU: launched from a table, and from the second call on as a graph.

All launches go to one stream. Loops of a known number of rounds are walked by the launcher; where a
flag decides, it waits for the device, but in graphs. Errors are raised by whoever waits next: see
`faults`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pullback.compile.program.stages import Branch, Loop, Node, Program, Stage, While
from pullback.compile.program.target import Fault
from pullback.core.avals import Aval
from pullback.core.errors import DeviceError
from pullback.runtime.cuda.conditions import choice_setter
from pullback.runtime.cuda.gpu import Buffer, Gpu
from pullback.runtime.cuda.graphs import LEAST_NODES, MOST_NODES, RETIRED, ProgramGraph
from pullback.runtime.cuda.host_calls import read_array
from pullback.runtime.cuda.launcher import LAUNCH, MISCOUNTED, STOPPED, launcher
from pullback.runtime.cuda.loop_kernels import with_loop_kernels
from pullback.runtime.cuda.stages import Clear, Either, HostCall, StageCode, Step
from pullback.runtime.cuda.table import LaunchTable, copy_step, inner

__all__ = ["Run", "encode"]

Meanings = Sequence[tuple[str, Fault]]  # the operation and the fault of each error code

# int callback(slots, stream, number)
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def encode(gpu: Gpu, program: Program, meanings: Meanings = ()) -> Callable[..., Buffer]:
    """The program as a function of buffers: see `Target.encode`."""
    encoded = Encoded(gpu, with_loop_kernels(gpu, program), meanings)
    if encoded.makes_graphs:
        return encoded.replayed
    return encoded.plain() if encoded.is_plain else encoded.launched


class Run:
    """What a function of the host sees of a call: the addresses of its slots, and its stream."""

    __slots__ = ("gpu", "slots", "stream")

    def __init__(self, gpu: Gpu, slots: ctypes.Array[ctypes.c_int64], stream: int):
        self.gpu, self.slots, self.stream = gpu, slots, stream

    def read(self, slot: int, av: Aval) -> np.ndarray:
        return read_array(self.gpu, self.slots[slot], av, self.stream)

    def write(self, slot: int, array: np.ndarray) -> None:
        self.gpu.upload(self.slots[slot], array, self.stream)

    def wait(self) -> None:
        self.gpu.wait(self.stream)


class _Stopped(threading.local):
    """Why the launcher was stopped in this thread: an exception, or what a function found."""

    error: BaseException | None = None
    found: tuple[int, int, int] | None = None


_stopped = _Stopped()


class Encoded:
    """A program whose kernels are loaded."""

    def __init__(self, gpu: Gpu, program: Program, meanings: Meanings):
        self._gpu, self._meanings = gpu, meanings
        self._records: dict[int, int] = {}  # by stream
        steps = [*_steps(gpu, program.stages)]
        kernels = gpu.modules.load(s.source for s in steps if isinstance(s, Step))
        callback = 0
        if any(isinstance(s, HostCall) for s in steps):
            self._callback = _Callback(self._call)
            callback = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        with gpu.current():
            table = LaunchTable(gpu, program, kernels, callback)
        self._table = table
        self._play = launcher(table.address)
        self._stream = gpu.stream
        self._out, self._scratch = gpu.maker(program.out_nbytes), gpu.maker(table.scratch)
        self._graphs: dict[int, ProgramGraph] = {}  # by stream
        self._called = self._refused = False
        self.is_plain = not (table.scratch or table.checked)
        self.makes_graphs = table.straight and LEAST_NODES <= table.launches <= MOST_NODES

    def plain(self) -> Callable[..., Buffer]:
        """`launched` for what needs neither scratch memory nor a record: as little Python as can
        be, since that is what a small operation costs.
        """
        stream_of, make, play, fail = self._stream, self._out, self._play, self._fail

        def launched(*buffers: Buffer) -> Buffer:
            stream = stream_of()
            out = make(stream)
            status = play(LAUNCH, 0, stream, out.address, 0, 0, buffers)
            if status:
                fail(status)
            return out

        return launched

    def launched(self, *buffers: Buffer) -> Buffer:
        """Launch everything."""
        stream = self._stream()
        out, scratch = self._out(stream), self._scratch(stream)
        record = self._expecting(stream) if self._table.checked else 0
        status = self._play(LAUNCH, 0, stream, out.address, scratch.address, record, buffers)
        if status:
            self._fail(status)
        return out

    def replayed(self, *buffers: Buffer) -> Buffer:
        """Launch a graph, which the second call makes."""
        stream = self._stream()
        graph = self._graphs.get(stream)
        if graph is None:
            if not self._called or self._refused:
                self._called = True
                return self.launched(*buffers)
            try:
                graph = self._graph(stream, buffers)
            except DeviceError:
                if self._table.numbers == 1:
                    raise
                self._refused = True  # a driver may not take all loops and choices in graphs
                return self.launched(*buffers)
        out = self._out(stream)
        if self._table.checked:
            self._expecting(stream)
        status = graph.replay(stream, out.address, buffers)
        if status == RETIRED:
            self._graphs.pop(stream, None)
            return self.launched(*buffers)
        if status:
            self._fail(status)
        if self._table.loops:
            self._gpu.stop_of(stream).wait(lambda: self._gpu.join(stream))
        return out

    def _graph(self, stream: int, buffers: tuple[Buffer, ...]) -> ProgramGraph:
        table, record = self._table, self._expecting(stream) if self._table.checked else 0
        sizes = table.launches, table.values, table.numbers
        stop = self._gpu.stop_of(stream).address if table.numbers > 1 else 0
        graphs, scratch = self._gpu.graphs, self._scratch(stream)
        graph = ProgramGraph(graphs, self._play, sizes, scratch, record, stop)
        with self._gpu.current():
            status = graph.build(stream, self._out(stream).address, buffers)
            if status:
                self._fail(status)
            graphs.add(graph)
        return self._graphs.setdefault(stream, graph)

    def _expecting(self, stream: int) -> int:
        """The record of errors on a stream, which somebody will look at."""
        faults = self._gpu.faults
        record = self._records.get(stream)
        if record is None:
            record = self._records[stream] = faults.record(stream)
        faults.expect(stream, record, self)
        return record

    def error(self, code: int, position: int, value: int) -> BaseException:
        """The exception of an error code."""
        name, fault = self._meanings[code - 1]
        return fault.error(name, position, value)

    def __del__(self):
        for record in self._records.values():
            self._gpu.faults.release(record)

    def _fail(self, status: int) -> None:
        if status == MISCOUNTED:
            raise TypeError("cuda: a program was called with another number of buffers.")
        if status != STOPPED:
            self._gpu.driver.check(status, "a launch")
        error, found = _stopped.error, _stopped.found
        _stopped.error = _stopped.found = None
        self._gpu.faults.look(self._stream())  # what kernels found came before
        if error is not None:
            raise error
        assert found is not None
        raise self.error(*found)

    def _call(self, slots: int, stream: int | None, number: int) -> int:
        """Call a function of the host in the middle of the launches; 1 stops them."""
        given = (ctypes.c_int64 * self._table.slots).from_address(slots)
        try:
            found = self._table.calls[number].function(Run(self._gpu, given, stream or 0))
        except BaseException as error:  # it is raised again where the launcher was called
            _stopped.error = error
            return 1
        _stopped.found = found
        return 0 if found is None else 1


def _steps(gpu: Gpu, nodes: Sequence[Node]) -> Iterator[Step | HostCall]:
    """All launches and calls that a program may come to."""
    for node in nodes:
        if isinstance(node, Stage):
            assert isinstance(node.code, StageCode)
            for step in node.code:
                if isinstance(step, Clear):
                    continue
                yield from (step.aligned, step.other) if isinstance(step, Either) else (step,)
        elif isinstance(node, (Loop, While)):
            yield copy_step(0, 0, 1)
        if isinstance(node, (Branch, While)) and gpu.has_conditions:
            yield choice_setter(0)
        for part in inner(node):
            yield from _steps(gpu, part)
