"""Loop nests over strided arrays: neighbouring axes that every array walks as one are merged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Nest", "coalesce", "step_of"]


@dataclass(frozen=True)
class Nest:
    """Merged axes, outermost first: `strides[s][d]` belongs to stream `s` and axis `d`."""

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def inner(self, stream: int) -> int:
        """The innermost stride of a stream."""
        return self.strides[stream][-1] if self.shape else 0


def coalesce(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Nest:
    """Drop axes of size 1, and merge neighbours that are contiguous in every stream."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(own[-1] == s[d] * n for own, s in zip(steps, strides, strict=True)):
            sizes[-1] *= n
            for own, s in zip(steps, strides, strict=True):
                own[-1] = s[d]
        else:
            sizes.append(n)
            for own, s in zip(steps, strides, strict=True):
                own.append(s[d])
    return Nest(tuple(sizes), tuple(map(tuple, steps)))


def step_of(stride: int, itemsize: int) -> str:
    """The class of an innermost stride that code is specialised for."""
    return "zero" if stride == 0 else "unit" if stride == itemsize else "any"
