"""Tables of numbers in memory, kept for as long as a program uses them."""

from __future__ import annotations

import numpy as np

__all__ = ["NumberTable"]


class NumberTable:
    """Numbers in memory; as an integer, their address. A program keeps its parameters alive."""

    def __init__(self, values: np.ndarray):
        raw = np.empty(values.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self._values = raw[start : start + values.nbytes]
        self._values[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._address = self._values.ctypes.data

    def __index__(self) -> int:
        return self._address

    @property
    def contents(self) -> bytes:
        """The numbers as bytes."""
        return self._values.tobytes()
