"""Indices that a program checks, and what it says of a bad one."""

from __future__ import annotations

from typing import NamedTuple

from pullback.core.dtypes import DType, uint64
from pullback.core.errors import IndexOutOfRange

__all__ = ["IndexedAxis"]


class IndexedAxis(NamedTuple):
    """The size of an axis, and the dtype of the indices into it."""

    size: int
    dtype: DType

    def error(self, name: str, position: int, value: int) -> IndexOutOfRange:
        """What the operation `name` says of an index out of range, given as 64 bits."""
        size, value = self.size, value % (1 << 64) if self.dtype is uint64 else value
        return IndexOutOfRange(
            f"{name}: index {value} is out of range for an axis of size {size},"
            f" at element {position} of the result. Valid indices are {-size} to {size - 1}."
        )
