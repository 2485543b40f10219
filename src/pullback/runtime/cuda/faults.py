"""Errors that kernels note: they are raised by whoever waits for the device next.

A program has one record for each stream, which stays clean unless there is an error, and then keeps
the first. So nobody waits for the device, or clears anything, to look for errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pullback.runtime.cuda.stages import RECORD_BYTES

if TYPE_CHECKING:
    from pullback.runtime.cuda.gpu import Gpu

__all__ = ["Faults"]

RECORDS = 512  # of one allocation: 20 kB, which take no longer to read than one record
Copies = Sequence[tuple[int, np.ndarray]]  # the address of an allocation, and its bytes


class Checked(Protocol):
    """A program whose kernels note errors."""

    def error(self, code: int, position: int, value: int) -> BaseException:
        """The exception of an error code."""
        ...


class Faults:
    """The records of a GPU, and which of them belong to programs that nobody has waited for."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._slabs: list[int] = []
        self._clean: list[int] = []
        self._open: dict[tuple[int, int], Checked] = {}  # by stream and address

    def record(self, stream: int) -> int:
        """The address of a clean record."""
        if not self._clean:
            slab = self._gpu.keep(RECORDS * RECORD_BYTES)
            self._gpu.clear(slab, RECORDS * RECORD_BYTES, stream)
            self._gpu.wait(stream)  # other streams will use it too
            self._slabs.append(slab)
            self._clean = [slab + k * RECORD_BYTES for k in range(RECORDS)]
        return self._clean.pop()

    def release(self, record: int) -> None:
        """Let another program use a record."""
        self._clean.append(record)

    def expect(self, stream: int, record: int, program: Checked) -> None:
        """A program that notes its errors there is about to be launched."""
        self._open.setdefault((stream, record), program)

    def reading(self, stream: int) -> list[tuple[int, np.ndarray]]:
        """Enqueue copies of the allocations that may hold errors of a stream."""
        if not self._open:
            return []
        wanted = [record for own, record in self._open if own == stream]
        size, found = RECORDS * RECORD_BYTES, []
        for slab in self._slabs:
            if any(slab <= record < slab + size for record in wanted):
                found.append((slab, self._gpu.start_download(slab, size, stream)))
        return found

    def settle(self, stream: int, copies: Copies) -> None:
        """Raise the first error in copies that have arrived; all others of the stream go too."""
        if not copies:
            return
        first = None
        for own, record in [key for key in self._open if key[0] == stream]:
            noted = _found(record, copies)
            if noted is None:
                continue
            program = self._open.pop((own, record))
            if noted[0]:
                self._gpu.clear(record, RECORD_BYTES, stream)
                first = first or program.error(*noted)
        if first is not None:
            raise first

    def look(self, stream: int) -> None:
        """Wait for a stream if programs on it may have noted errors, and raise the first."""
        if any(own == stream for own, _ in self._open):
            self._gpu.wait(stream)


def _found(record: int, copies: Copies) -> tuple[int, int, int] | None:
    """The code, position and value of a record; None if it was not copied."""
    for slab, raw in copies:
        at = record - slab
        if 0 <= at < raw.nbytes:
            _, code, position, value, _ = map(int, raw[at : at + RECORD_BYTES].view(np.int64))
            return code, position, value
    return None
