"""Copies between the host and a GPU through page-locked memory, while both go on working."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Transfers"]

# To lock pages takes about as long as to copy them, and the system is short of what is locked: CuPy
# keeps it for the next copy.
MOST = 1 << 26  # bytes of one copy through page-locked memory
SMALL = 1 << 16  # bytes that the driver takes a copy of before it returns, as cuda.h says


class Transfers:
    """The copies of a GPU, which has to be the current one."""

    def __init__(self, mark: Callable[[int], Any], cuda: Any):
        """`mark` gives an event that is `done` when all work on a stream is."""
        self._mark, self._cuda, self._runtime = mark, cuda, cuda.runtime
        self._sent: deque[tuple[Any, Any]] = deque()  # events, and memory that is copied until then

    def upload(self, to: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device; the array may change when this returns."""
        source, nbytes = array.__array_interface__["data"][0], array.nbytes
        if SMALL < nbytes <= MOST:
            memory = self._cuda.alloc_pinned_memory(nbytes)
            ctypes.memmove(memory.ptr, source, nbytes)
            self._copy(to, memory.ptr, nbytes, self._runtime.memcpyHostToDevice, stream)
            self._keep(memory, stream)
        else:
            self._copy(to, source, nbytes, self._runtime.memcpyHostToDevice, stream)

    def _keep(self, memory: Any, stream: int) -> None:
        self._sent.append((self._mark(stream), memory))
        while self._sent[0][0].done and len(self._sent) > 1:
            self._sent.popleft()

    def download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, which are there when all work on the stream is done."""
        if nbytes > MOST:
            found = np.empty(nbytes, np.uint8)
        else:
            memory = self._cuda.alloc_pinned_memory(max(1, nbytes))
            raw: Any = (ctypes.c_ubyte * nbytes).from_address(memory.ptr)
            raw.owner = memory
            found = np.frombuffer(raw, np.uint8)
        to = found.__array_interface__["data"][0]
        self._copy(to, source, nbytes, self._runtime.memcpyDeviceToHost, stream)
        return found

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self._runtime.memcpyAsync(to, source, nbytes, kind, stream)
