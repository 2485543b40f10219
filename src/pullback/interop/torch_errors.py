"""The error of an index out of range, with position and value, for both kinds of device."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.core.errors import IndexOutOfRange

__all__ = ["out_of_range"]


def out_of_range(name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> IndexOutOfRange:
    """The error that names the first index outside its axis."""
    for index, size in zip(indices, sizes, strict=True):
        flat = index.reshape(-1).to(torch.int64)
        bad = ((flat < -size) | (flat >= size)).nonzero()
        if len(bad):
            at = int(bad[0])
            return IndexOutOfRange(
                f"{name}: index {int(flat[at])} at position {at} is out of range for an axis of"
                f" size {size}. Valid indices are {-size} to {size - 1}."
            )
    raise AssertionError(f"{name}: every index is in range.")
