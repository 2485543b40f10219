"""Indices that a program checks, and what it says of a bad one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import DType, uint64
from pullback.core.errors import IndexOutOfRange

__all__ = ["IndexedAxis", "indexed_axes"]


class IndexedAxis(NamedTuple):
    """The size of an axis, and the dtype of the indices into it.

    What is read or written has the shape `places`, of whose axes the first `lead` are those of the
    indices. Where these vary along further axes, `lead` is 0, and their position is not told: the
    functions that do so have moved the axes.
    """

    size: int
    dtype: DType
    places: tuple[int, ...]
    lead: int

    def error(self, name: str, position: int, value: int) -> IndexOutOfRange:
        """What the operation `name` says of an index out of range, given as 64 bits."""
        size, value = self.size, value % (1 << 64) if self.dtype is uint64 else value
        found = tuple(int(i) for i in np.unravel_index(position, self.places)[: self.lead])
        where = f", at position {found[0] if len(found) == 1 else found} of the indices"
        return IndexOutOfRange(
            f"{name}: index {value} is out of range for an axis of size {size}"
            f"{where if found else ''}. Valid indices are {-size} to {size - 1}."
        )


def indexed_axes(
    sizes: Sequence[int], indices: Sequence[Aval], places: tuple[int, ...], lead: int
) -> list[IndexedAxis]:
    """The axes that each of some index arrays goes into, for errors; see `IndexedAxis`."""
    if any(n != 1 for i in indices for n in i.shape[lead:]):
        lead = 0
    return [IndexedAxis(n, i.dtype, places, lead) for n, i in zip(sizes, indices, strict=True)]
