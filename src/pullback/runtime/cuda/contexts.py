"""Which thread has which context: that of a GPU is entered for the length of a block.

Kernels, streams and memory belong to a context. A GPU's primary one is shared with CuPy, PyTorch
and JAX. A thread may have none, that of another GPU, or one of another library's making: what it
had before it has again when the block ends.
"""

from __future__ import annotations

from typing import Any

from pullback.core.errors import DeviceError
from pullback.runtime.cuda.driver import Driver

__all__ = ["CudaContext", "Entered"]


class CudaContext:
    """The primary context of the GPU of a number."""

    def __init__(self, driver: Driver, index: int, runtime: Any):
        self._driver, self.handle = driver, driver.primary_context(index)
        with self.entered():
            found = runtime.getDevice()
        if found != index:  # CuPy would take memory of another GPU
            raise DeviceError(f"cuda: the context of GPU {index} was entered, got GPU {found}.")

    def is_current(self) -> bool:
        """Whether this thread has it."""
        return self._driver.context() == self.handle

    def entered(self, value: int = 0) -> Entered:
        """A block in which this thread has it; gives a value."""
        return Entered(self._driver, self.handle, value)


class Entered:
    """A block in which a thread has a context; all waits come by here, so it is a plain class."""

    __slots__ = ("_before", "_driver", "_own", "_value")

    def __init__(self, driver: Driver, own: int, value: int):
        self._driver, self._own, self._value = driver, own, value

    def __enter__(self) -> int:
        self._before = self._driver.context()
        if self._before != self._own:
            self._driver.enter(self._own)
        return self._value

    def __exit__(self, *exception: object) -> None:
        if self._before != self._own:
            self._driver.enter(self._before)
