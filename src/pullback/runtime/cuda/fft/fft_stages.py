"""Fourier transforms along one axis of an array, as launches: any length, batch and layout.

A transform of a smooth length is a launch for each group of passes that fits into shared memory.
Long ones are two stages of columns, others convolutions, as `fft_order` says.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import lru_cache, partial

from pullback.compile.kernel import fft_order
from pullback.compile.program import fourier
from pullback.compile.program.fourier import Formula, Numbers, Passes, Points, Transform
from pullback.compile.program.nest import coalesce
from pullback.core.dtypes import DType
from pullback.runtime.cuda.fft.kernels import (
    Group,
    formula_source,
    group_source,
    lines_of,
    most_points,
)
from pullback.runtime.cuda.launch import MAX_GRID, THREADS, grid_of, packed
from pullback.runtime.cuda.stages import At, Step, Table, stage

__all__ = ["fourier_stages"]

_SECTOR = 32  # bytes that memory is read in: neighbouring lines that are read together fill it
_MOST_THREADS = 1024  # of a thread block: CUDA's limit on all architectures


class _Launches(Transform[Step]):
    """The launches of a transform."""

    def formula(self, given: Formula) -> None:
        """A thread for each result."""
        kind, source, target, n, count, table, swap, factors = given
        name, text = formula_source(self.dtype)
        nest = packed(coalesce(self.batch, [source.batch, target.batch]))
        words = struct.pack(
            "<9q2d", self.items, n, count, source.step, source.imaginary, target.step,
            target.imaginary, *swap, *factors,
        )  # fmt: skip
        arguments = (
            At(target.slot),
            At(source.slot),
            0 if table is None else _table(table),
            nest,
            words,
        )
        grid = grid_of(self.items * count), 1
        self.steps.append(Step(text, f"{name}_{kind}", grid, THREADS, arguments))

    def passes(self, given: Passes) -> None:
        """A launch for each group of passes."""
        n, batch, source, target, swap, factor, stored, twist, width = given
        groups = list(_groups(self.dtype, n))
        before, rest, here = 1, n, source
        items = math.prod(batch)
        for k, radices in enumerate(groups):
            last = k + 1 == len(groups)
            points = math.prod(radices)
            rest //= points
            there = target if last else self.scratch(n, batch)
            group = Group(
                self.dtype, radices, rest > 1, last and bool(twist),
                (_beside(here, before * rest), _beside(there, before)),
            )  # fmt: skip
            lines = items * before * rest
            words = struct.pack(
                "<11qd", lines, before, rest, here.step, here.imaginary, there.step,
                there.imaginary, stored if last else n, swap[0] and k == 0, swap[1] and last,
                width if last else 1, factor if k == 0 else 1.0,
            )  # fmt: skip
            nest = packed(coalesce(batch, [here.batch, there.batch]))
            tables: list[Table] = []
            remaining = n // before
            for i, radix in enumerate(radices):
                if group.turned(i):
                    tables.append(_table(Numbers("pass", self.dtype, remaining, radix)))
                remaining //= radix
            arguments = (At(there.slot), At(here.slot), nest, words, *tables)
            if last:
                arguments = (*arguments, *map(_table, twist))
            grid = min(MAX_GRID, -(-lines // lines_of(group))), 1
            text = group_source(group)
            self.steps.append(Step(text, group.name, grid, group.threads, arguments))
            before, here = before * points, there


def _beside(view: Points, lines: int) -> bool:
    """Whether neighbouring lines lie closer than points: those of an item, if it has several."""
    if lines > 1:
        return True
    inner = view.batch[-1] if view.batch else 0
    return 0 < abs(inner) < abs(view.step)


def _groups(dtype: DType, n: int) -> Iterator[tuple[int, ...]]:
    """The radices of a length, in groups whose points fit a thread block."""
    most = most_points(dtype)
    if n > most:
        most //= max(1, _SECTOR // (2 * dtype.itemsize))
    group: list[int] = []
    for radix in fft_order.radices(n):
        points = math.prod(group) * radix
        if group and (points > most or points > _MOST_THREADS * min(*group, radix)):
            yield tuple(group)
            group = []
        group.append(radix)
    yield tuple(group)


@lru_cache(128)
def _table(numbers: Numbers) -> Table:
    return Table(numbers.values())


fourier_stages = partial(fourier.fourier_stages, _Launches, stage)
