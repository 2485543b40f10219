"""Runs recipes on an NVIDIA GPU, launched from tables like every program."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from pullback.compile.program.stages import Program
from pullback.core.errors import IndexOutOfRange
from pullback.runtime.cuda.gpu import Gpu, cupy_module, gpu_of
from pullback.runtime.cuda.launcher import LAUNCH, launcher
from pullback.runtime.cuda.scatter.recipes import SLOT_BYTES, Recipe, ScatterStep
from pullback.runtime.cuda.stages import At, Clear, Step, stage
from pullback.runtime.cuda.table import LaunchTable

__all__ = [
    "Array",
    "IndexReport",
    "LoadedRecipe",
    "StreamWords",
    "cupy_module",
    "program",
    "shared_limit",
]

Array: TypeAlias = Any  # a cupy.ndarray
GIVEN = ("index", "value", "out", "aligned", "slot")  # what every recipe is given, in this order
SLOTS = 1024  # of one allocation, so that calls allocate one time in 1024
EARLY = 90  # the compute capability, 9.0, that has launches that begin early


@cache
def shared_limit(device: int) -> int:
    """The shared memory that a thread block can have."""
    properties = cupy_module().cuda.runtime.getDeviceProperties(device)
    return int(properties["sharedMemPerBlockOptin"])


@cache
def capability(device: int) -> int:
    """The compute capability: 90 is 9.0."""
    return int(cupy_module().cuda.Device(device).compute_capability)


class LoadedRecipe:
    """A recipe with its kernels loaded on a device.

    `names` are GIVEN and the buffers of a plan, in the order of their addresses. The buffer "out"
    has so many bytes `cleared` first.
    """

    def __init__(self, recipe: Recipe, device: int, cleared: int = 0):
        self._gpu = gpu = gpu_of(device)
        scratch = dict(recipe.scratch)
        given = [a for step in recipe.steps for a in step.arguments if isinstance(a, str)]
        self.names = tuple(dict.fromkeys([*GIVEN, *(a for a in given if a not in scratch)]))
        slots = {name: 1 + k for k, name in enumerate([*self.names, *scratch])}
        kernels = gpu.modules.load(step.source for step in recipe.steps)
        with gpu.current():
            functions = [kernels[s.source].function(s.function, s.shared) for s in recipe.steps]
            steps = [
                _step(s, slots, device, k > 0, function)
                for k, (s, function) in enumerate(zip(recipe.steps, functions, strict=True))
            ]
            stages = stage(*([Clear(slots["out"], cleared)] if cleared else []), *steps)
            asked = Program(len(self.names), 0, list(scratch.values()), (), stages)
            self._table = LaunchTable(gpu, asked, kernels)
        self._play = launcher(self._table.address)
        self._scratch = gpu.maker(self._table.scratch) if self._table.scratch else None

    def run(self, buffers: dict[str, int], stream: int) -> None:
        """Enqueue the launches; `buffers` are addresses by name, of those that it reads."""
        self.launch(tuple([buffers.get(name, 0) for name in self.names]), stream)

    def launch(self, addresses: tuple[int, ...], stream: int) -> None:
        """Enqueue the launches; the addresses are in the order of `names`."""
        if self._scratch is None:
            status = self._play(LAUNCH, 0, stream, 0, 0, 0, addresses)
        else:
            memory = self._scratch(stream)  # what uses it next comes later on the same stream
            status = self._play(LAUNCH, 0, stream, 0, memory.address, 0, addresses)
        if status:
            self._gpu.driver.check(status, "a launch")


def _step(
    step: ScatterStep, slots: dict[str, int], device: int, later: bool, function: int
) -> Step:
    """A launch, which may begin early if it is not the first of a recipe."""
    arguments = tuple([At(slots[a]) if isinstance(a, str) else a for a in step.arguments])
    return Step(
        step.source,
        step.function,
        _grid(step, device, function),
        step.block,
        arguments,
        shared=step.shared,
        together=step.together,
        early=later and not step.together and capability(device) >= EARLY,
    )


def _grid(step: ScatterStep, device: int, function: int) -> tuple[int, int]:
    """The grid; not more thread blocks than the device holds if they wait for each other."""
    across, down = step.grid
    if step.together:
        cupy = cupy_module()
        each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            function, step.block, step.shared
        )
        count = cupy.cuda.runtime.getDeviceProperties(device)["multiProcessorCount"]
        across = min(across, each * count)
    return across, down


@cache
def program(recipe: Recipe, device: int, cleared: int = 0) -> LoadedRecipe:
    """A recipe with its kernels loaded on a device, once; see `LoadedRecipe`."""
    return LoadedRecipe(recipe, device, cleared)


class StreamWords:
    """Words for calls on a stream; each is used once, so that no call has to clear any."""

    _own: ClassVar[threading.local] = threading.local()

    def __init__(self, gpu: Gpu, stream: int):
        words = np.zeros((SLOTS, SLOT_BYTES // 8), np.uint64)
        words[:, -1] = ctypes.addressof(gpu.told)
        self._gpu, self._memory = gpu, gpu.maker(words.nbytes)(stream)
        self.address = self._memory.address
        with gpu.current():
            gpu.upload(self.address, words, stream)
        self.used = 0

    def take(self) -> int:
        """The address of the next slot."""
        at = self.address + self.used * SLOT_BYTES
        self.used += 1
        return at

    def words(self, stream: int) -> np.ndarray:
        """The words of each call, as they are now; the first is not 0 if an index was bad."""
        with self._gpu.current():
            found = self._gpu.fetch(self.address, SLOTS * SLOT_BYTES, stream)
        return found.view(np.uint64).reshape(SLOTS, -1)

    @classmethod
    def of(cls, device: int, stream: int) -> StreamWords:
        """Those of this thread for a stream: launches of two threads may come in any order."""
        try:
            known = cls._own.known
        except AttributeError:
            known = cls._own.known = {}
        slots = known.get((device, stream))
        if slots is None or slots.used == SLOTS:
            slots = known[device, stream] = cls(gpu_of(device), stream)
        return slots


class IndexReport:
    """What a call found out about its indices; reading it waits for the device."""

    __slots__ = ("_indices", "_made", "_number", "_op", "_rows", "_slots", "device", "stream")

    def __init__(self, op: str, indices: Array, rows: int):
        cuda = cupy_module().cuda
        self.device = device = cuda.runtime.getDevice()
        self.stream = stream = cuda.get_current_stream(device)
        self._slots = StreamWords.of(device, stream.ptr)
        self._number = self._slots.used
        self._slots.take()
        self._op, self._indices, self._rows = op, indices, rows
        self._made: IndexReport | None = None

    def follow(self, made: IndexReport) -> None:
        """The indices were looked at when a plan was made, not by this call."""
        self._made = made

    @property
    def words(self) -> tuple[StreamWords, int]:
        """Where the indices of this call are reported, by it or by the plan that it follows."""
        source = self._made or self
        return source._slots, source._number

    def run(self, work: LoadedRecipe, buffers: dict[str, int]) -> None:
        """Enqueue launches that report to this call's words."""
        buffers["slot"] = self._slots.address + self._number * SLOT_BYTES
        work.run(buffers, self.stream.ptr)

    def bad_position(self) -> int | None:
        """The first position of an index that is out of range, or None."""
        if self._made is not None:
            return self._made.bad_position()
        word = int(self._slots.words(self.stream.ptr)[self._number, 0])
        return (1 << 64) - 1 - word if word else None

    def raise_if_bad(self) -> None:
        """Raise `IndexError`, with position and value, if an index was out of range."""
        position = self.bad_position()
        if position is not None:
            self.raise_for(position)

    def raise_for(self, position: int) -> NoReturn:
        """Raise `IndexError` for the index at a position."""
        with self.stream:
            value = int(self._indices.reshape(-1)[position : position + 1].get()[0])
        raise IndexOutOfRange(
            f"{self._op}: index {value} at position {position} is out of range for"
            f" {self._rows} rows."
        )
