"""Errors that kernels note: they are raised by whoever waits for the device next.

A program has one record for each stream, which stays clean unless there is an error, and then
keeps the first; whoever notes one sets a word of the host's too. So nobody waits for the device, or
copies or clears anything, to see that all is well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Protocol

import numpy as np

from pullback.runtime.cuda.stages import RECORD_BYTES

__all__ = ["Faults"]

RECORDS = 512  # of one allocation: 24 kB, for as many programs and streams


class Checked(Protocol):
    """A program whose kernels note errors."""

    def error(self, code: int, position: int, value: int) -> BaseException:
        """The exception of an error code."""
        ...


class RecordMemory(Protocol):
    """What is asked of the GPU: see `gpu.Gpu`."""

    def current(self) -> AbstractContextManager[Any]: ...

    def keep(self, nbytes: int) -> int: ...

    def locked_word(self) -> ctypes.c_int64: ...

    def upload(self, to: int, array: np.ndarray, stream: int) -> None: ...

    def fetch(self, source: int, nbytes: int, stream: int) -> np.ndarray: ...

    def clear(self, address: int, nbytes: int, stream: int) -> None: ...

    def join(self, stream: int) -> None: ...

    def wait(self, stream: int) -> None: ...


class Faults:
    """The records of a GPU, and which of them belong to programs that nobody has waited for."""

    def __init__(self, gpu: RecordMemory):
        self._gpu = gpu
        self._clean: list[int] = []
        self._lock = RLock()
        self._told: ctypes.c_int64 | None = None  # which kernels set when they note an error
        # By stream and address; a launch puts a new tuple there.
        self._open: dict[tuple[int, int], tuple[Checked]] = {}

    def record(self, stream: int) -> int:
        """The address of a clean record."""
        try:
            return self._clean.pop()
        except IndexError:
            with self._lock:
                self._more(stream)
            return self.record(stream)

    def _more(self, stream: int) -> None:
        """More records, unless another thread has made some."""
        if self._clean:
            return
        if self._told is None:
            self._told = self._gpu.locked_word()
        words = np.zeros((RECORDS, RECORD_BYTES // 8), np.uint64)
        words[:, -1] = ctypes.addressof(self._told)
        slab = self._gpu.keep(words.nbytes)
        with self._gpu.current():
            self._gpu.upload(slab, words, stream)
            self._gpu.join(stream)  # other streams will use it too
        self._clean += [slab + k * RECORD_BYTES for k in range(RECORDS)]

    def release(self, record: int) -> None:
        """Let another program use a record."""
        self._clean.append(record)

    def expect(self, stream: int, record: int, program: Checked) -> None:
        """A program that notes its errors there is about to be launched."""
        self._open[stream, record] = (program,)

    def expected(self, stream: int) -> list[tuple[int, tuple[Checked]]]:
        """The records of a stream that may hold errors, when all work on it is done."""
        return [(record, p) for (own, record), p in [*self._open.items()] if own == stream]

    def settle(self, stream: int, ended: Sequence[tuple[int, tuple[Checked]]]) -> None:
        """Raise the first error of records that were `expected` and waited for since; their other
        errors go too.
        """
        for record, launched in ended:
            if self._open.get((stream, record)) is launched:  # and not again meanwhile
                del self._open[stream, record]
        if not ended or self._told is None or not self._told.value:
            return
        self._told.value = 0
        if self._open:  # looked at after that: what is told from here on stays
            self._told.value = 1  # it may be about others
        errors = [e for record, (p,) in ended if (e := self._error(record, stream, p))]
        if errors:
            raise errors[0]

    def _error(self, record: int, stream: int, program: Checked) -> BaseException | None:
        """The error of a record, which is clean afterwards."""
        with self._gpu.current():
            raw = self._gpu.fetch(record, RECORD_BYTES, stream)
            _, code, position, value, *_ = map(int, raw.view(np.int64))
            if code == 0:
                return None
            self._gpu.clear(record, RECORD_BYTES - 8, stream)
        return program.error(code, position, value)

    def look(self, stream: int) -> None:
        """Wait for a stream if programs on it may have noted errors, and raise the first."""
        if any(own == stream for own, _ in self._open):
            self._gpu.wait(stream)
