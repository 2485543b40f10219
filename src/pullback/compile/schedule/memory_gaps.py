"""Memory for values that are placed one by one, each in the tightest gap among those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pullback.compile.schedule.memory_scan import Life

__all__ = ["Placed", "gap_of_few", "gap_of_many"]
__tuning__ = ("FEW",)

AREAS = ("out", "arena")
FEW = 64  # values: with more, NumPy is quicker


class Placed:
    """Values with places in two areas: the outputs come first, at known offsets.

    A value may lie in the place of an output that is not needed yet, and exactly in that of one
    that it is written over.
    """

    def __init__(self, order: Sequence[Life], outputs: Sequence[int], unit: int):
        self._unit = unit
        self._number = {id(life): k for k, life in enumerate(order)}
        self._sharing: dict[int, list[int]] = {}  # by number, with whom a place may be shared
        for life in order:
            for old in life.over:
                if id(old) in self._number:
                    a, b = self._number[id(life)], self._number[id(old)]
                    self._sharing.setdefault(a, []).append(b)
                    self._sharing.setdefault(b, []).append(a)
        self._order = order
        self._first = np.array([life.start for life in order], np.int64)
        self._last = np.array([life.stop for life in order], np.int64)
        self._size = np.array([-(-life.nbytes // unit) * unit for life in order], np.int64)
        self._offset = np.zeros(len(order), np.int64)
        self._area = np.full(len(order), -1)
        self._offset[: len(outputs)] = outputs
        self._area[: len(outputs)] = 0
        self._count = len(outputs)
        self.arena_nbytes = 0

    def place(self, life: Life, out_nbytes: int) -> tuple[str, int]:
        """Area and offset of the next value in order: in the outputs if it fits there."""
        n = self._count
        met = (self._first[:n] <= life.stop) & (self._last[:n] >= life.start)
        for area, limit in enumerate((out_nbytes, None)):
            found = self._fit(n, np.flatnonzero(met & (self._area[:n] == area)), limit)
            if found is not None:
                break
        else:
            raise AssertionError("the arena has no limit")
        self._area[n], self._offset[n], self._count = area, found, n + 1
        if area == 1:
            self.arena_nbytes = max(self.arena_nbytes, found + int(self._size[n]))
        return AREAS[area], found

    def _fit(self, number: int, others: np.ndarray, limit: int | None) -> int | None:
        """Where a value fits among others that live meanwhile; None if it does not."""
        size, nbytes = int(self._size[number]), self._order[number].nbytes
        start = self._offset[others]
        end = start + self._size[others]
        for other in sorted(self._sharing.get(number, ())):
            same = self._order[other].nbytes == nbytes and (others == other).any()
            if same and self._is_free(number, others, int(self._offset[other])):
                return int(self._offset[other])
        gap = gap_of_few if len(others) <= FEW else gap_of_many
        return gap(size, start, end, limit)

    def _is_free(self, number: int, others: np.ndarray, offset: int) -> bool:
        """Whether a place overlaps none but those of sharers that lie exactly there."""
        start = self._offset[others]
        hit = others[(start < offset + self._order[number].nbytes)
                     & (offset < start + self._size[others])]  # fmt: skip
        sharing, nbytes = self._sharing.get(number, ()), self._order[number].nbytes
        return all(
            k in sharing and self._order[k].nbytes == nbytes and self._offset[k] == offset
            for k in hit.tolist()
        )


def gap_of_many(size: int, start: np.ndarray, end: np.ndarray, limit: int | None) -> int | None:
    """The start of the smallest gap of at least `size`, the first of several."""
    order = np.argsort(start, kind="stable")
    low = np.concatenate([[0], np.maximum.accumulate(end[order])])
    wide = start[order] - low[:-1]
    at = int(low[-1])
    if limit is not None:
        wide = np.append(wide, limit - at)
    wide = np.where(wide >= size, wide, np.iinfo(np.int64).max)
    best = int(np.argmin(wide)) if len(wide) else 0
    if len(wide) and wide[best] < np.iinfo(np.int64).max:
        return int(low[best])
    return at if limit is None else None


def gap_of_few(size: int, start: np.ndarray, end: np.ndarray, limit: int | None) -> int | None:
    """The same as `gap_of_many`, by Python alone."""
    at = found = 0
    least: int | None = None
    spans = sorted(zip(start.tolist(), end.tolist(), strict=True), key=_start)
    if limit is not None:
        spans.append((limit, limit))
    for low, high in spans:
        if low - at >= size and (least is None or low - at < least):
            least, found = low - at, at
        at = max(at, high)
    if least is not None:
        return found
    return at if limit is None else None


def _start(span: tuple[int, int]) -> int:
    return span[0]
