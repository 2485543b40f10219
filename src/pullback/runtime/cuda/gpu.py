"""One NVIDIA GPU: its memory, loaded kernels, copies.

CuPy is imported on first use. Everything goes to CuPy's current stream, and memory is used again in
the order of that stream: nobody waits for the device but who reads from it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pullback.core.errors import DeviceError
from pullback.runtime.cuda import driver
from pullback.runtime.cuda.code import machine_code
from pullback.runtime.cuda.faults import Faults
from pullback.runtime.cuda.graphs import Graphs
from pullback.runtime.cuda.memory import Buffer, Pool
from pullback.runtime.cuda.stages import Step
from pullback.runtime.cuda.transfers import Transfers

__all__ = ["Buffer", "CupyMissing", "Gpu", "cupy_module", "gpu_of", "is_present"]

COMPILERS = 8  # kernels that are compiled at a time
SHARED_BYTES = 48 << 10  # that every launch may give a thread block without asking


class CupyMissing(DeviceError, ImportError):
    """CuPy is not installed."""


@cache
def cupy_module() -> Any:
    """CuPy, which only this runtime needs."""
    try:
        return import_module("cupy")
    except ImportError as error:
        raise CupyMissing(
            "cuda: CuPy was not found. Install it with `pip install pullback[cuda]`."
        ) from error


def is_present() -> bool:
    """Whether there are a driver and CuPy, which is not imported for that."""
    return find_spec("cupy") is not None and driver.is_found()


class Gpu:
    """The GPU of a number; kernels are loaded once, by their source and name."""

    def __init__(self, index: int):
        self.index = index
        cupy = cupy_module()
        self._runtime, self._driver, self._cuda = cupy.cuda.runtime, cupy.cuda.driver, cupy.cuda
        try:
            count = self._runtime.getDeviceCount()
        except self._runtime.CUDARuntimeError as error:
            missing = f"({', '.join(driver.LIBRARIES)}) was not found"
            raise DeviceError(
                f"cuda: looked for an NVIDIA GPU with CuPy {cupy.__version__}, got {error}. The"
                f" driver {'was found' if driver.is_found() else missing}."
            ) from error
        if index >= count:
            raise DeviceError(f"cuda: looked for GPU {index}, got {count} of them.")
        capability = self._cuda.Device(index).compute_capability
        self.name, self.architecture = f"GPU {index}", f"sm_{capability}"
        self._modules: dict[str, Any] = {}
        self._constants: WeakKeyDictionary[object, Buffer] = WeakKeyDictionary()
        self._functions: dict[tuple[str, str], Any] = {}
        self._shared: dict[tuple[str, str], int] = {}  # bytes that launches may ask for by now
        self._kept: list[Any] = []
        self._pool, self._transfers = Pool(self._allocate), Transfers(self.mark, self._cuda)
        self.maker = self._pool.maker
        self.stream = _current_stream(cupy, index)
        self.graphs, self.faults = Graphs(), Faults(self)
        self.context = 0  # of the driver; not made yet
        with self.current():
            self._flags = self._cuda.alloc_pinned_memory(driver.LOCKED)
            self.driver = driver.Driver(driver.library(), self._flags.ptr)
            self._cuda.alloc(1)  # which makes the context
            self.context = self.driver.context()

    @contextmanager
    def current(self) -> Iterator[int]:
        """A block in which this GPU is the current one; gives the stream."""
        runtime, before = self._runtime, self._runtime.getDevice()
        if before != self.index:
            runtime.setDevice(self.index)
        if self.context and not self.driver.context():  # a thread has none before its first call
            self.driver.enter(self.context)
        try:
            yield self.stream()
        finally:
            if before != self.index:
                runtime.setDevice(before)

    @property
    def product(self) -> str:
        """What NVIDIA calls it."""
        name = self._runtime.getDeviceProperties(self.index)["name"]
        return name.decode() if isinstance(name, bytes) else name

    @cached_property
    def processors(self) -> int:
        """Its multiprocessors."""
        return int(self._runtime.getDeviceProperties(self.index)["multiProcessorCount"])

    # -- memory: copies are to be made where this GPU is current -----------------------------------

    def _allocate(self, nbytes: int) -> Any:
        with self.current():
            return self._cuda.alloc(nbytes)

    def keep(self, nbytes: int) -> int:
        """The address of memory that is never given back."""
        self._kept.append(self._allocate(nbytes))
        return self._kept[-1].ptr

    def empty(self, nbytes: int) -> Buffer:
        """A new buffer."""
        return self.maker(nbytes)(self.stream())

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set bytes to 0."""
        self._runtime.memsetAsync(address, 0, nbytes, stream)

    def upload(self, to: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device; the array may change when this returns."""
        self._transfers.upload(to, array, stream)

    def start_download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, which are there when all work on the stream is done."""
        return self._transfers.download(source, nbytes, stream)

    def download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, when all work on the stream is done; errors in that are raised."""
        found = self.start_download(source, nbytes, stream)
        self.wait(stream)
        return found

    def constant(self, key: object, array: np.ndarray) -> Buffer:
        """The copy of an array on this GPU, which is there as long as the key is."""
        buffer = self._constants.get(key)
        if buffer is None:
            with self.current() as stream:
                buffer = self.empty(array.nbytes)
                self.upload(buffer.address, array, stream)
                self.join(stream)
            self._constants[key] = buffer
        return buffer

    def wait(self, stream: int) -> None:
        """Return when all work on the stream is done; errors in that are raised."""
        expected = self.faults.expected(stream)
        self.join(stream)
        self.faults.settle(stream, expected)

    def join(self, stream: int) -> None:
        """Return when all work on the stream is done."""
        with self.current():  # the default stream has one number on all GPUs
            self._runtime.streamSynchronize(stream)

    def mark(self, stream: int, event: Any = None) -> Any:
        """An event, a new one if none is given, that comes (it is `done`) when all work on the
        stream so far is done.
        """
        if self._runtime.getDevice() != self.index:
            with self.current():
                return self.mark(stream, event)
        event = event or self._cuda.Event(disable_timing=True)
        self._runtime.eventRecord(event.ptr, stream)
        return event

    @cached_property
    def side_stream(self) -> int:
        """A stream that waits for no other."""
        with self.current():
            self._side = self._cuda.Stream(non_blocking=True)
        return self._side.ptr

    def locked_word(self) -> ctypes.c_int64:
        """A new word of the host's that kernels may write to, zero; it is there for ever."""
        self._kept.append(self._cuda.alloc_pinned_memory(8))
        word = ctypes.c_int64.from_address(self._kept[-1].ptr)
        word.value = 0
        return word

    @cached_property
    def told(self) -> ctypes.c_int64:
        """The word that kernels of `scatter` set where they find a bad index."""
        return self.locked_word()

    # -- kernels -----------------------------------------------------------------------------------

    def load(self, sources: Iterable[str]) -> None:
        """Load the kernels of sources, which are compiled side by side."""
        wanted = [s for s in dict.fromkeys(sources) if s not in self._modules]
        if not wanted:
            return
        if len(wanted) == 1:
            codes = [machine_code(wanted[0], self.architecture)]
        else:
            with ThreadPoolExecutor(min(COMPILERS, len(wanted))) as pool:
                codes = list(pool.map(lambda s: machine_code(s, self.architecture), wanted))
        with self.current():
            for source, code in zip(wanted, codes, strict=True):
                module = self._cuda.function.Module()
                module.load(code)
                self._modules[source] = module

    def function(self, source: str, name: str, shared: int = 0) -> int:
        """The handle of a kernel of a source that was loaded; launches may ask for so many bytes
        of shared memory.
        """
        key = source, name
        if key not in self._functions:
            self._functions[key] = self._modules[source].get_function(name)
        handle = self._functions[key].ptr
        if shared > self._shared.get(key, SHARED_BYTES):
            self._shared[key] = shared
            attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.funcSetAttribute(handle, attribute, shared)
        return handle

    def step_function(self, step: Step) -> int:
        """The handle of the kernel of a launch."""
        return self.function(step.source, step.function, step.shared)


@cache
def gpu_of(index: int) -> Gpu:
    """The GPU of a number, for all who use it."""
    return Gpu(index)


def _current_stream(cupy: Any, index: int) -> Callable[[], int]:
    """A function that gives CuPy's current stream of a GPU."""
    try:
        backend = import_module(f"{cupy.__name__}_backends.cuda.stream")
        return partial(backend.get_current_stream_ptr, index)
    except (ImportError, AttributeError):
        return lambda: cupy.cuda.get_current_stream(index).ptr
