"""One NVIDIA GPU: its memory, loaded kernels, copies.

CuPy is imported on first use. Everything goes to CuPy's current stream, and memory is used again in
the order of that stream: nobody waits for the device but who reads from it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pullback.core.errors import DeviceError
from pullback.runtime.cuda import driver, launcher
from pullback.runtime.cuda.conditions import SETTER, Stop
from pullback.runtime.cuda.contexts import CudaContext, Entered
from pullback.runtime.cuda.faults import Faults
from pullback.runtime.cuda.graphs import Graphs
from pullback.runtime.cuda.memory import Buffer, Pool
from pullback.runtime.cuda.modules import Modules
from pullback.runtime.cuda.transfers import MOST, Transfers

__all__ = ["Buffer", "CupyMissing", "Gpu", "cupy_module", "gpu_of", "is_present"]

_making = RLock()  # a GPU: its errors are noted in one place


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
    """The GPU of a number."""

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
        self._lock = RLock()  # for what is made once
        self._constants: WeakKeyDictionary[object, Buffer] = WeakKeyDictionary()
        self._kept: list[Any] = []
        self._side: Any = None
        self._stops: dict[int, Stop] = {}
        self._told: ctypes.c_int64 | None = None
        self._pool = Pool(self._allocate)
        self.maker = self._pool.maker
        self.stream = _current_stream(cupy, index)
        self.driver = driver.Driver(driver.library())
        self.graphs, self.faults = Graphs(self.driver), Faults(self)
        self.context = CudaContext(self.driver, index, self._runtime)
        self._errors = self._runtime.CUDARuntimeError, self._driver.CUDADriverError
        self._transfers = Transfers(self.mark, self._locked, self.driver)
        self.modules = Modules(
            self.driver, self.context, self.architecture, self._load, self.graphs.free
        )
        with self.current():
            self._flags = self._locked(driver.LOCKED)
        self.driver.use_locked(self._flags.ptr)

    def current(self) -> Entered:
        """A block in which this GPU is the current one; gives the stream."""
        return self.context.entered(self.stream())

    def asked(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function of CuPy's, whose errors are ours."""
        try:
            return function(*args)
        except self._errors as error:
            self.driver.check(error.status, what)

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

    def _allocate(self, nbytes: int, stream: int) -> Any:
        """Memory that is used in the order of a stream."""
        with self.current() as current:
            if stream != current:
                with self._cuda.ExternalStream(stream):
                    return self._allocate(nbytes, stream)
            missing = self._cuda.memory.OutOfMemoryError
            try:
                return self.asked("an allocation", self._cuda.alloc, nbytes)
            except missing:
                self.make_room()
            try:
                return self.asked("an allocation", self._cuda.alloc, nbytes)
            except missing as error:
                free, total = self._runtime.memGetInfo()
                raise MemoryError(
                    f"cuda: out of memory, got a request for {nbytes} bytes. Of {total} bytes of"
                    f" {self.name} {free} are free."
                ) from error

    def _locked(self, nbytes: int) -> Any:
        """Page-locked memory of the host."""
        return self.asked("to lock memory", self._cuda.alloc_pinned_memory, nbytes)

    def _load(self, code: bytes) -> Any:
        """The kernels of machine code."""
        module = self._cuda.function.Module()
        self.asked("to load a kernel", module.load, code)
        return module

    def make_room(self) -> None:
        """Give back what is kept for later: blocks of lists, and scratch memory of graphs."""
        self.graphs.retire()
        self._pool.trim()

    def keep(self, nbytes: int) -> int:
        """The address of memory that is never given back."""
        memory = self._allocate(nbytes, self.stream())
        self._kept.append(memory)
        return memory.ptr

    def empty(self, nbytes: int) -> Buffer:
        """A new buffer."""
        return self.maker(nbytes)(self.stream())

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set bytes to 0."""
        self.driver.clear(address, nbytes, stream)

    def upload(self, to: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device; the array may change when this returns."""
        self._transfers.upload(to, array, stream)

    def start_download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, which are there when all work on the stream is done."""
        return self._transfers.download(source, nbytes, stream)

    def download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, when all work on the stream is done; errors in that are raised."""
        expected = self.faults.expected(stream)
        found = self.fetch(source, nbytes, stream)
        self.faults.settle(stream, expected)
        return found

    def fetch(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, when all work on the stream is done."""
        if nbytes > MOST:  # the driver would wait for it where no interrupt ends that
            self.join(stream)
        found = self.start_download(source, nbytes, stream)
        try:
            self.join(stream)
        except BaseException:  # an interrupt: the device may write there later
            self._transfers.keep(found, stream)
            raise
        return found

    def constant(self, key: object, array: np.ndarray) -> Buffer:
        """The copy of an array on this GPU, which is there as long as the key is."""
        with self._lock:
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
            self.driver.check(launcher.wait(self.driver.entries, stream), "the work of a stream")

    def mark(self, stream: int, event: Any = None) -> Any:
        """An event, a new one if none is given, that comes (it is `done`) when all work on the
        stream so far is done.
        """
        if not self.context.is_current():
            with self.current():
                return self.mark(stream, event)
        event = event or self.asked("an event", partial(self._cuda.Event, disable_timing=True))
        self.asked("an event", self._runtime.eventRecord, event.ptr, stream)
        return event

    def is_idle(self, stream: int) -> bool:
        """Whether all work on a stream of this GPU, which is the current one, is done."""
        return self._runtime.streamQuery(stream) == 0

    @cached_property
    def side_stream(self) -> int:
        """A stream that waits for no other."""
        with self._lock:
            if self._side is None:
                with self.current():
                    self._side = self._cuda.Stream(non_blocking=True)
            return self._side.ptr

    @cached_property
    def has_conditions(self) -> bool:
        """Whether its graphs have loops and choices."""
        if not self.driver.has_conditions:
            return False
        try:
            self.modules.load([SETTER])
        except DeviceError:  # an older driver does not know what the kernel calls
            return False
        return True

    def stop_of(self, stream: int) -> Stop:
        """How loops of graphs on a stream are ended."""
        with self._lock:
            found = self._stops.get(stream)
            if found is None:
                with self.current():
                    memory = self._locked(16)
                self._kept.append(memory)
                words = (ctypes.c_int64 * 2).from_address(memory.ptr)
                words[:] = 0, 0
                found = self._stops[stream] = Stop(words)
        return found

    def locked_word(self) -> ctypes.c_int64:
        """A new word of the host's that kernels may write to, zero; it is there for ever."""
        with self.current():
            memory = self._locked(8)
        self._kept.append(memory)
        word = ctypes.c_int64.from_address(memory.ptr)
        word.value = 0
        return word

    @cached_property
    def told(self) -> ctypes.c_int64:
        """The word that kernels of `scatter` set where they find a bad index."""
        with self._lock:
            if self._told is None:
                self._told = self.locked_word()
            return self._told


@cache
def _gpu(index: int) -> Gpu:
    return Gpu(index)


def gpu_of(index: int) -> Gpu:
    """The GPU of a number, for all who use it."""
    with _making:
        return _gpu(index)


def _current_stream(cupy: Any, index: int) -> Callable[[], int]:
    """A function that gives CuPy's current stream of a GPU."""
    try:
        backend = import_module(f"{cupy.__name__}_backends.cuda.stream")
        return partial(backend.get_current_stream_ptr, index)
    except (ImportError, AttributeError):
        return lambda: cupy.cuda.get_current_stream(index).ptr
