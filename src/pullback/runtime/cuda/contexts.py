"""Which thread has which context: that of a GPU is entered for the length of a block.

Kernels, streams and memory belong to a context. A GPU's primary one is shared with CuPy, PyTorch
and JAX. A thread may have none, that of another GPU, or one of another library's making: what it
had before it has again when the block ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pullback.core.errors import DeviceError
from pullback.runtime.cuda.driver import Driver

__all__ = ["Context"]


class Context:
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

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block in which this thread has it."""
        before = self._driver.context()
        if before == self.handle:
            yield
            return
        self._driver.enter(self.handle)
        try:
            yield
        finally:
            self._driver.enter(before)
