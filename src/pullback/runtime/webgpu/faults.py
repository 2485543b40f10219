"""Errors that kernels note: they are raised by whoever reads next, so that nobody waits to see that
all is well.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pullback.core.errors import called_name, renamed

__all__ = ["Checked", "Faults"]

MOST_OPEN = 256  # calls that nobody has looked at: the words of each are a buffer


class Checked(Protocol):
    """A program whose kernels note errors."""

    fault_nbytes: int  # of the words that they note them in

    def error(self, words: np.ndarray) -> BaseException | None:
        """The exception of the first error that is noted."""
        ...


class WordMemory(Protocol):
    """What is asked of the GPU: see `gpu.Gpu`."""

    lock: Any

    def empty(self, nbytes: int, /) -> Any: ...

    def copy(self, source: Any, start: int, target: Any, to: int, nbytes: int, /) -> None: ...

    def download(self, memory: Any, offset: int, nbytes: int, /) -> np.ndarray: ...


class Faults:
    """The words of calls that nobody has waited for."""

    def __init__(self, gpu: WordMemory):
        self._gpu = gpu
        self._open: list[tuple[Any, Checked, str]] = []

    def expect(self, words: Any, program: Checked) -> None:
        """A program has been given to the device, which notes its errors there."""
        self._open.append((words, program, called_name()))
        if len(self._open) >= MOST_OPEN:
            self.look()

    def look(self) -> None:
        """Wait for all programs that may have noted errors, and raise the first of them."""
        gpu = self._gpu
        with gpu.lock:
            given, self._open = self._open, []
            if not given:
                return
            total = sum(p.fault_nbytes for _, p, _ in given)
            every, at = gpu.empty(total).memory, 0
            for words, program, _ in given:
                gpu.copy(words, 0, every, at, program.fault_nbytes)
                at += program.fault_nbytes
            found = gpu.download(every, 0, total).view(np.uint32)
        at = 0
        for _, program, name in given:
            count = program.fault_nbytes // 4
            error = program.error(found[at : at + count])
            if error is not None:
                raise renamed(error, name)
            at += count
