"""As much of CuPy as gather and scatter use, on the host: arrays of NumPy, emulated kernels."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from cuda_emulator import TOGETHER, Emulator, library_of
from pullback.ir import dlpack

_EMULATORS: dict[str, Emulator] = {}
_running = threading.RLock()  # a kernel: the emulator has one set of threads
PROPERTIES = {
    "name": b"emulated GPU", "sharedMemPerBlockOptin": 65_536, "multiProcessorCount": 2,
}  # fmt: skip
LEVEL = "-O1"
__version__ = "0.fake"
COUNT = 2  # GPUs
launched: list[str] = []
contexts = threading.local()  # of a thread: `own`, the number of its GPU
devices_of: dict[int, int] = {}  # the GPU of memory, by address
synchronized: list[tuple[int, int]] = []  # GPUs and streams that were waited for
limit: list[int] = []  # bytes that may be allocated at once
unloaded: list[str] = []  # sources whose modules were freed


def current() -> int:
    """The GPU of this thread's context, or the first one."""
    return getattr(contexts, "own", None) or 0


printed: set[str] = set()  # sources that were compiled


class Array(np.ndarray):
    """An array that knows its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)


def _raw(size: int) -> np.ndarray:
    raw = np.full(size + 512, 0xAB, np.uint8)
    return raw[-raw.ctypes.data % 512 :][:size]


def empty(shape: Any, dtype: Any = float) -> Array:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return _raw(max(size, 1))[:size].view(dtype).reshape(shape).view(Array)


def zeros(shape: Any, dtype: Any = float) -> Array:
    a = empty(shape, dtype)
    a[...] = 0
    return a


def asarray(a: Any) -> Array:
    a = np.asarray(a)
    new = empty(a.shape, a.dtype)
    new[...] = a
    return new


def ascontiguousarray(a: Any) -> Array:
    return a if a.flags.c_contiguous else asarray(a)


def _labelled(capsule: Any, kind: int) -> Any:
    """A capsule whose memory is said to be of this kind of device."""
    dlpack._contents(capsule).tensor.device_type = kind
    return capsule


class DeviceArray(Array):
    """An array that says it is on a GPU."""

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **other: Any) -> Any:
        return _labelled(np.asarray(self).__dlpack__(max_version=max_version), dlpack.CUDA)

    def __dlpack_device__(self) -> Any:
        return dlpack.CUDA, 0


class _OnHost:
    def __init__(self, producer: Any):
        self.producer = producer

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("dl_device", None)
        options.pop("copy", None)
        return _labelled(self.producer.__dlpack__(**options), 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU


def from_dlpack(producer: Any) -> DeviceArray:
    return np.from_dlpack(_OnHost(producer)).view(DeviceArray)


def ndarray(shape: Any, dtype: Any, memory: Any, strides: Any) -> DeviceArray:
    """An array at an address; `memory` keeps it alive."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw: Any = (ctypes.c_char * max(size, 1)).from_address(memory.ptr)
    raw.owner = memory
    return np.ndarray(shape, dtype, raw, strides=strides).view(DeviceArray)


class Entry:
    """What the driver has of a kernel, for as long as its module is loaded."""

    all: ClassVar[list[Entry]] = []

    def __init__(self, module: Module, name: str):
        self.is_loaded, self.name, self.emulator = True, name, module.emulator
        self.all.append(self)

    def sizes(self) -> list[int]:
        """The bytes of each argument."""
        return self.emulator.sizes(self.name) if self.emulator else [8] * 6

    @classmethod
    def of(cls, ptr: int) -> Entry | None:
        """The kernel of a handle, if that is one."""
        found = cls.all[ptr] if ptr < len(cls.all) else None
        return found if found and found.is_loaded else None

    def launch(self, grid: Any, block: int, shared: int, arguments: int, together: bool) -> None:
        """Run it; at `arguments` are the addresses of its arguments."""
        launched.append(self.name)
        if self.emulator is None:
            set_conditions(arguments)
            return
        mode = TOGETHER if together else self.emulator.mode(self.name)
        with _running:
            self.emulator.start(self.name, grid, block, shared, arguments, mode)


conditions: dict[int, int] = {}  # their values, by handle


def set_conditions(arguments: int) -> None:
    """What the kernel of `conditions.SETTER` does."""
    places = (ctypes.c_void_p * 6).from_address(arguments)
    flag, stop, *handles = [ctypes.c_uint64.from_address(p).value for p in places]
    on = ctypes.c_ubyte.from_address(flag).value != 0
    words = (ctypes.c_int64 * 2).from_address(stop) if stop else [0, 0]
    if on and words[0]:
        on, words[1] = False, 1
    for handle, value in zip(handles, (on, on, not on, False), strict=True):
        if handle:
            assert handle in conditions
            conditions[handle] = value


class Function:
    """A kernel, known by its handle, which keeps its module."""

    def __init__(self, module: Module, ptr: int):
        self._module, self.ptr = module, ptr


def precompile(source: str) -> str:
    """In place of a compiler: the kernels of a source for the host, and the source."""
    printed.add(source)
    library_of(source, LEVEL)
    return source


class Module:
    """Kernels of a source, which takes the place of machine code; its handles end with it."""

    emulator: Emulator | None

    def load(self, source: str | bytes) -> None:
        if isinstance(source, bytes):  # PTX
            self.emulator, self._source, self._entries = None, "PTX", {}
            return
        if source not in _EMULATORS:
            _EMULATORS[source] = Emulator(source, LEVEL)
        self.emulator, self._source = _EMULATORS[source], source
        self._entries: dict[str, int] = {}

    def get_function(self, name: str) -> Function:
        if name not in self._entries:
            Entry(self, name)
            self._entries[name] = len(Entry.all) - 1
        return Function(self, self._entries[name])

    def __del__(self):
        unloaded.append(self._source)
        for ptr in self._entries.values():
            Entry.all[ptr].is_loaded = False


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for an error of CUDA's."""


class CUDADriverError(RuntimeError):
    """What CuPy raises for an error of the driver."""


class OutOfMemoryError(MemoryError):
    """What CuPy raises where there is no memory."""


class Memory:
    def __init__(self, size: int):
        if limit and size > limit[0]:
            raise OutOfMemoryError
        self._held = _raw(max(size, 1))
        self.ptr = self._held.ctypes.data
        devices_of[self.ptr] = current()


class Event:
    """An event that has come."""

    ptr = 0
    done = True

    def __init__(self, disable_timing: bool = False):
        pass

    def synchronize(self) -> None:
        pass


class Stream:
    def __init__(self, ptr: int = 0, non_blocking: bool = False):
        self.ptr = ptr

    def __enter__(self) -> Stream:
        self._before, _STREAM[0] = _STREAM[0], self
        return self

    def __exit__(self, *exception: object) -> None:
        _STREAM[0] = self._before

    def record(self) -> None:
        pass


_STREAM = [Stream()]
cuda = SimpleNamespace(
    UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
    MemoryPointer=lambda memory, offset: memory,
    alloc=Memory,
    Event=Event,
    Stream=Stream,
    ExternalStream=Stream,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    alloc_pinned_memory=Memory,
    Device=lambda device: SimpleNamespace(compute_capability="90"),
    get_current_stream=lambda device: _STREAM[0],
    function=SimpleNamespace(Module=Module),
    runtime=SimpleNamespace(
        getDevice=current,
        getDeviceCount=lambda: COUNT,
        getDeviceProperties=lambda device: PROPERTIES,
        memGetInfo=lambda: (10, 1000),
        CUDARuntimeError=CUDARuntimeError,
        eventRecord=lambda event, stream: None,
        streamQuery=lambda stream: 0,
    ),
    driver=SimpleNamespace(
        CUDADriverError=CUDADriverError,
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, block, shared: 1,
    ),
)
