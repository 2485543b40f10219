"""Runs recipes on an NVIDIA GPU through CuPy, on its current stream.

CuPy is imported on first use; it holds the memory, loads compiled kernels and launches them.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias

from pullback.core.errors import IndexOutOfRange
from pullback.runtime.cuda.code import machine_code
from pullback.runtime.cuda.gpu import cupy_module
from pullback.runtime.cuda.scatter.overlap import LEAST_CAPABILITY, overlapping
from pullback.runtime.cuda.scatter.recipes import PLAIN_SHARED, SLOT_BYTES, Recipe, ScatterStep

__all__ = [
    "Array",
    "Checked",
    "LoadedRecipe",
    "ZeroWords",
    "compiled",
    "cupy_module",
    "program",
    "shared_limit",
]

Array: TypeAlias = Any  # a cupy.ndarray
SLOTS = 1024  # of one allocation, so that calls allocate one time in 1024
SMALL_SCRATCH = 1 << 20  # bytes of scratch memory that every stream keeps


@cache
def shared_limit(device: int) -> int:
    """The shared memory that a thread block can have."""
    properties = cupy_module().cuda.runtime.getDeviceProperties(device)
    return int(properties["sharedMemPerBlockOptin"])


@cache
def capability(device: int) -> int:
    """The compute capability: 90 is 9.0."""
    return int(cupy_module().cuda.Device(device).compute_capability)


@cache
def compiled(device: int, source: str) -> Any:
    """The module of a source for a device, which has to be the current one."""
    module = cupy_module().cuda.function.Module()
    module.load(machine_code(source, f"sm_{capability(device)}"))
    return module


@cache
def _function(device: int, source: str, name: str, shared: int) -> Any:
    """A loaded kernel of the device, which has to be the current one."""
    kernel, driver = compiled(device, source).get_function(name), cupy_module().cuda.driver
    if shared > PLAIN_SHARED:
        # all that there is: other shapes may use the same function with more
        attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(kernel.ptr, attribute, shared_limit(device))
    return kernel


class Arguments:
    """Memory for the arguments of several launches: words of eight bytes, and their addresses."""

    __slots__ = ("_addresses", "places", "words")

    def __init__(self, words: array[int], counts: list[int]):
        self.words = words[:]
        start = self.words.buffer_info()[0]
        self._addresses = array("Q", range(start, start + 8 * len(words), 8))
        start = self._addresses.buffer_info()[0]
        ends = list(accumulate(counts))
        self.places = [start + 8 * (end - n) for end, n in zip(ends, counts, strict=True)]


class PreparedLaunch(NamedTuple):
    """A kernel with everything but its arguments: `enqueue(stream, address of arguments, *end)`."""

    enqueue: Callable[..., None]
    end: tuple[int, ...]
    name: str


class LoadedRecipe:
    """A recipe with its kernels loaded on a device."""

    def __init__(self, recipe: Recipe, device: int):
        self.launches = [_launch(step, device, k > 0) for k, step in enumerate(recipe.steps)]
        given = [a for step in recipe.steps for a in step.arguments]
        self._words = array("Q", [0 if isinstance(a, str) else a for a in given])
        self._counts = [len(step.arguments) for step in recipe.steps]
        # each call takes one of them, be it in another thread
        self._free: list[Arguments] = []
        offsets, self._bytes = {}, 0
        for name, size in recipe.scratch:
            offsets[name] = self._bytes
            self._bytes += -(-size // 512) * 512
        names = [(k, a) for k, a in enumerate(given) if isinstance(a, str)]
        self._scratch = [(k, offsets[name]) for k, name in names if name in offsets]
        self._names = [(k, name) for k, name in names if name not in offsets]

    def run(self, buffers: dict[str, int], pool: ZeroWords, stream: int) -> None:
        """Enqueue the launches; `buffers` are addresses by name."""
        try:
            arguments = self._free.pop()
        except IndexError:
            arguments = Arguments(self._words, self._counts)
        words = arguments.words
        for place, name in self._names:
            words[place] = buffers[name]
        if self._bytes:
            # what uses the memory next comes later on the same stream
            if self._bytes <= SMALL_SCRATCH:
                start = pool.scratch
            else:
                memory = cupy_module().cuda.alloc(self._bytes)  # freed when this returns
                start = memory.ptr
            for place, offset in self._scratch:
                words[place] = start + offset
        for (enqueue, end, _), address in zip(self.launches, arguments.places, strict=True):
            enqueue(stream, address, *end)  # which copies the arguments
        self._free.append(arguments)


def _launch(step: ScatterStep, device: int, early: bool) -> PreparedLaunch:
    """A launch, which may begin `early` if it is not the first of a recipe."""
    function = _function(device, step.source, step.function, step.shared).ptr
    sizes = (*_grid(step, device), step.block, 1, 1, step.shared)
    driver = cupy_module().cuda.driver
    if step.together:
        return PreparedLaunch(
            partial(driver.launchCooperativeKernel, function, *sizes), (), step.function
        )
    if early and capability(device) >= LEAST_CAPABILITY:
        enqueue = overlapping(function, sizes)
        if enqueue is not None:
            return PreparedLaunch(enqueue, (), step.function)
    return PreparedLaunch(partial(driver.launchKernel, function, *sizes), (0,), step.function)


def _grid(step: ScatterStep, device: int) -> tuple[int, int, int]:
    """The grid; not more thread blocks than the device holds if they wait for each other."""
    across, down = step.grid
    if step.together:
        cupy = cupy_module()
        function = _function(device, step.source, step.function, step.shared)
        each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            function.ptr, step.block, step.shared
        )
        count = cupy.cuda.runtime.getDeviceProperties(device)["multiProcessorCount"]
        across = min(across, each * count)
    return across, down, 1


@cache
def program(recipe: Recipe, device: int) -> LoadedRecipe:
    """A recipe with its kernels loaded on a device, once."""
    return LoadedRecipe(recipe, device)


class ZeroWords:
    """Words for calls, zero at first; each is used once, so that no call has to clear any.

    Beside them is scratch memory for calls that need little. A thread has its own for each stream:
    launches of two threads may come in any order.
    """

    _own: ClassVar[threading.local] = threading.local()

    def __init__(self, words: Any, memory: Any):
        self.words, self._memory = words, memory
        self.address, self.scratch = int(words.data.ptr), int(memory.ptr)
        self.used = 0

    @classmethod
    def take(cls, device: int, stream: int) -> tuple[ZeroWords, int]:
        """The next slot of a stream: its pool and its number."""
        try:
            pools = cls._own.pools
        except AttributeError:
            pools = cls._own.pools = {}
        pool = pools.get((device, stream))
        if pool is None or pool.used == SLOTS:
            # CuPy also makes the device's context current in this thread, as launches need it
            words = cupy_module().zeros((SLOTS, SLOT_BYTES // 8), "u8")
            memory = pool._memory if pool else cupy_module().cuda.alloc(SMALL_SCRATCH)
            pool = pools[device, stream] = cls(words, memory)
        number = pool.used
        pool.used = number + 1
        return pool, number


class Checked:
    """What a call found out about its indices; reading it waits for the device."""

    __slots__ = ("_indices", "_made", "_number", "_op", "_pool", "_rows", "device", "stream")

    def __init__(self, op: str, indices: Array, rows: int):
        cuda = cupy_module().cuda
        self.device = device = cuda.runtime.getDevice()
        self.stream = stream = cuda.get_current_stream(device)
        self._pool, self._number = ZeroWords.take(device, stream.ptr)
        self._op, self._indices, self._rows = op, indices, rows
        self._made: Checked | None = None

    def follow(self, made: Checked) -> None:
        """The indices were looked at when a plan was made, not by this call."""
        self._made = made

    def run(self, work: LoadedRecipe, buffers: dict[str, int]) -> None:
        """Enqueue launches that report to this call's words."""
        buffers["slot"] = self._pool.address + self._number * SLOT_BYTES
        work.run(buffers, self._pool, self.stream.ptr)

    def copy_word(self, address: int) -> None:
        """Enqueue a copy of eight bytes to host memory that does not stay zero if an index is bad;
        the memory must be page-locked.
        """
        source = self._made or self
        place = source._pool.address + source._number * SLOT_BYTES
        runtime = cupy_module().cuda.runtime
        runtime.memcpyAsync(address, place, 8, runtime.memcpyDeviceToHost, self.stream.ptr)

    def bad_position(self) -> int | None:
        """The first position of an index that is out of range, or None."""
        if self._made is not None:
            return self._made.bad_position()
        with self.stream:
            word = int(self._pool.words[self._number, :1].get()[0])
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
