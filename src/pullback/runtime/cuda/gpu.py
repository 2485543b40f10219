"""One NVIDIA GPU as CuPy drives it: memory from its pool, loaded kernels, launches, copies.

CuPy is imported on first use. Everything goes to CuPy's current stream, and memory is given back to
its pool in the order of that stream: nobody waits for the device but who reads from it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pullback.core.errors import DeviceError
from pullback.runtime.cuda.code import machine_code

__all__ = ["Buffer", "CupyMissing", "Gpu", "cupy_module", "is_present"]

COMPILERS = 8  # kernels that are compiled at a time
SHARED_BYTES = 48 << 10  # that every launch may give a thread block without asking
_DRIVERS = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")


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
    return find_spec("cupy") is not None and _has_driver()


def _has_driver() -> bool:
    for name in _DRIVERS:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


class Buffer:
    """Memory of a GPU; `owner` is what keeps it alive."""

    __slots__ = ("__weakref__", "address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: Any):
        self.address, self.nbytes, self.owner = address, nbytes, owner


class Gpu:
    """The GPU of a number; kernels are loaded once, by their source and name."""

    def __init__(self, index: int):
        self.index = index
        cupy = cupy_module()
        self._runtime, self._driver, self._cuda = cupy.cuda.runtime, cupy.cuda.driver, cupy.cuda
        try:
            count = self._runtime.getDeviceCount()
        except self._runtime.CUDARuntimeError as error:
            driver = "was found" if _has_driver() else f"({', '.join(_DRIVERS)}) was not found"
            raise DeviceError(
                f"cuda: looked for an NVIDIA GPU with CuPy {cupy.__version__}, got {error}. The"
                f" driver {driver}."
            ) from error
        if index >= count:
            raise DeviceError(f"cuda: looked for GPU {index}, got {count} of them.")
        capability = self._cuda.Device(index).compute_capability
        self.name, self.architecture = f"GPU {index}", f"sm_{capability}"
        self._modules: dict[str, Any] = {}
        self._constants: WeakKeyDictionary[object, Buffer] = WeakKeyDictionary()
        self._functions: dict[tuple[str, str], Any] = {}

    @contextmanager
    def current(self) -> Iterator[int]:
        """A block in which this GPU is the current one; gives the stream."""
        runtime, before = self._runtime, self._runtime.getDevice()
        if before != self.index:
            runtime.setDevice(self.index)
        try:
            yield self._cuda.get_current_stream(self.index).ptr
        finally:
            if before != self.index:
                runtime.setDevice(before)

    @property
    def product(self) -> str:
        """What NVIDIA calls it."""
        name = self._runtime.getDeviceProperties(self.index)["name"]
        return name.decode() if isinstance(name, bytes) else name

    # -- memory: to be called where this GPU is current --------------------------------------------

    def empty(self, nbytes: int) -> Buffer:
        """A new buffer."""
        if nbytes == 0:
            return Buffer(0, 0, None)
        memory = self._cuda.alloc(nbytes)
        return Buffer(memory.ptr, nbytes, memory)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set bytes to 0."""
        self._runtime.memsetAsync(address, 0, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes on the device."""
        self._runtime.memcpyAsync(to, source, nbytes, self._runtime.memcpyDeviceToDevice, stream)

    def upload(self, to: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device; the array may change when this returns."""
        source, kind = array.__array_interface__["data"][0], self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(to, source, array.nbytes, kind, stream)

    def download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, when all work on the stream is done."""
        found = np.empty(nbytes, np.uint8)
        to, kind = found.__array_interface__["data"][0], self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(to, source, nbytes, kind, stream)
        self.wait(stream)
        return found

    def constant(self, key: object, array: np.ndarray) -> Buffer:
        """The copy of an array on this GPU, which is there as long as the key is."""
        buffer = self._constants.get(key)
        if buffer is None:
            with self.current() as stream:
                buffer = self.empty(array.nbytes)
                self.upload(buffer.address, array, stream)
                self.wait(stream)
            self._constants[key] = buffer
        return buffer

    def wait(self, stream: int) -> None:
        """Return when all work on the stream is done."""
        self._runtime.streamSynchronize(stream)

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
        if shared > SHARED_BYTES:
            attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.funcSetAttribute(handle, attribute, shared)
        return handle

    @property
    def enqueue(self) -> Any:
        """`cuLaunchKernel`."""
        return self._driver.launchKernel
