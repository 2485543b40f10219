"""As much of CuPy as gather and scatter use, on the host: arrays of NumPy, emulated kernels."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from cuda_emulator import TOGETHER, Emulator, library_of
from pullback.ir import dlpack

_EMULATORS: dict[str, Emulator] = {}
PROPERTIES = {
    "name": b"emulated GPU", "sharedMemPerBlockOptin": 65_536, "multiProcessorCount": 2,
}  # fmt: skip
LEVEL = "-O1"
__version__ = "0.fake"
COUNT = 2  # GPUs
launched: list[str] = []
current = [0]  # the number of the current GPU
devices_of: dict[int, int] = {}  # the GPU of memory, by address
synchronized: list[tuple[int, int]] = []  # GPUs and streams that were waited for
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


class Function:
    """A kernel, known by its number."""

    _all: ClassVar[list[Function]] = []

    def __init__(self, emulator: Emulator, name: str):
        self._emulator, self._name = emulator, name
        self.ptr = len(self._all)
        self._all.append(self)

    @classmethod
    def sizes(cls, ptr: int) -> list[int]:
        """The bytes of each argument."""
        return cls._all[ptr]._emulator.sizes(cls._all[ptr]._name)

    @classmethod
    def launch(cls, ptr: int, grid: Any, block: int, shared: int, arguments: int, together: bool):
        """Run a kernel; at `arguments` are the addresses of its arguments."""
        own = cls._all[ptr]
        mode = TOGETHER if together else own._emulator.mode(own._name)
        launched.append(own._name)
        own._emulator.start(own._name, grid, block, shared, arguments, mode)


def launch_kernel(f, grid_x, grid_y, grid_z, x, y, z, shared, stream, arguments, extra) -> None:
    assert (grid_z, y, z, stream, extra) == (1, 1, 1, 0, 0)
    Function.launch(f, (grid_x, grid_y), x, shared, arguments, False)


def launch_together(f, grid_x, grid_y, grid_z, x, y, z, shared, stream, arguments) -> None:
    assert (grid_z, y, z, stream) == (1, 1, 1, 0)
    Function.launch(f, (grid_x, grid_y), x, shared, arguments, True)


def precompile(source: str) -> str:
    """In place of a compiler: the kernels of a source for the host, and the source."""
    printed.add(source)
    library_of(source, LEVEL)
    return source


class Module:
    """Kernels of a source, which takes the place of machine code."""

    def load(self, source: str) -> None:
        if source not in _EMULATORS:
            _EMULATORS[source] = Emulator(source, LEVEL)
        self._emulator = _EMULATORS[source]

    def get_function(self, name: str) -> Function:
        return Function(self._emulator, name)


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for an error of CUDA's."""


class Memory:
    def __init__(self, size: int):
        self._held = _raw(max(size, 1))
        self.ptr = self._held.ctypes.data
        devices_of[self.ptr] = current[0]


def set_device(device: int) -> None:
    current[0] = device


def synchronize(stream: int) -> None:
    synchronized.append((current[0], stream))


class Event:
    """An event that has come."""

    ptr = 0
    done = True

    def __init__(self, disable_timing: bool = False):
        pass

    def synchronize(self) -> None:
        pass


class Stream:
    ptr = 0

    def __init__(self, non_blocking: bool = False):
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def record(self) -> None:
        pass


_STREAM = Stream()
cuda = SimpleNamespace(
    UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
    MemoryPointer=lambda memory, offset: memory,
    alloc=Memory,
    Event=Event,
    Stream=Stream,
    alloc_pinned_memory=Memory,
    Device=lambda device: SimpleNamespace(compute_capability="90"),
    get_current_stream=lambda device: _STREAM,
    function=SimpleNamespace(Module=Module),
    runtime=SimpleNamespace(
        getDevice=lambda: current[0],
        setDevice=set_device,
        getDeviceCount=lambda: COUNT,
        getDeviceProperties=lambda device: PROPERTIES,
        CUDARuntimeError=CUDARuntimeError,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
        memsetAsync=lambda at, value, size, stream: ctypes.memset(at, value, size),
        streamSynchronize=synchronize,
        eventRecord=lambda event, stream: None,
    ),
    driver=SimpleNamespace(
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, block, shared: 1,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcSetAttribute=lambda function, attribute, value: None,
        launchKernel=launch_kernel,
        launchCooperativeKernel=launch_together,
    ),
)
