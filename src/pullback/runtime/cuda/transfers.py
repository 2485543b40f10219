"""Copies between the host and a GPU through page-locked memory, while both go on working."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np

from pullback.runtime.cuda.driver import Driver

__all__ = ["MOST", "Transfers"]

# To lock pages takes about as long as to copy them, and the system is short of what is locked: CuPy
# keeps it for the next copy.
MOST = 1 << 26  # bytes of one copy through page-locked memory
SMALL = 1 << 16  # bytes that the driver takes a copy of before it returns, as cuda.h says


class Transfers:
    """The copies of a GPU, which has to be the current one."""

    def __init__(self, mark: Callable[[int], Any], locked: Callable[[int], Any], driver: Driver):
        """`mark` gives an event that is `done` when all work on a stream is, `locked` page-locked
        memory.
        """
        self._mark, self._locked, self._driver = mark, locked, driver
        self._lock = RLock()
        self._sent: deque[tuple[Any, Any]] = deque()  # events, and memory that is copied until then

    def upload(self, to: int, array: np.ndarray, stream: int) -> None:
        """Copy a C-contiguous array to the device; the array may change when this returns."""
        source, nbytes = array.__array_interface__["data"][0], array.nbytes
        if SMALL < nbytes <= MOST:
            memory = self._locked(nbytes)
            ctypes.memmove(memory.ptr, source, nbytes)
            self._driver.upload(to, memory.ptr, nbytes, stream)
            self.keep(memory, stream)
        else:
            self._driver.upload(to, source, nbytes, stream)

    def keep(self, memory: Any, stream: int) -> None:
        """Keep memory until all work on a stream is done, and let go of what was kept before."""
        with self._lock:  # or two threads would take one memory for done, and let go of two
            self._sent.append((self._mark(stream), memory))
            while len(self._sent) > 1 and self._sent[0][0].done:
                self._sent.popleft()

    def download(self, source: int, nbytes: int, stream: int) -> np.ndarray:
        """Bytes of the device, which are there when all work on the stream is done."""
        if nbytes > MOST:
            found = np.empty(nbytes, np.uint8)
        else:
            memory = self._locked(max(1, nbytes))
            raw: Any = (ctypes.c_ubyte * nbytes).from_address(memory.ptr)
            raw.owner = memory
            found = np.frombuffer(raw, np.uint8)
        to = found.__array_interface__["data"][0]
        self._driver.download(to, source, nbytes, stream)
        return found
