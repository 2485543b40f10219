"""Fourier transforms along one axis of an array, as launches: any length, batch and layout.

A transform of a smooth length is a launch for each group of passes that fits into shared memory.
Long ones are two stages of columns, others convolutions, as `fft_order` says.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pullback.compile.kernel import fft_order
from pullback.compile.program.fourier import NAMES, Numbers, Points, Transform
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.dtypes import DType
from pullback.runtime.cuda.fft.kernels import (
    Passes,
    elementwise_source,
    lines_of,
    most_points,
    passes_source,
)
from pullback.runtime.cuda.launch import MAX_GRID, THREADS, grid_of, packed
from pullback.runtime.cuda.stages import At, Step, Table, stage

__all__ = ["NAMES", "fourier_stages"]

_SECTOR = 32  # bytes that memory is read in: neighbouring lines that are read together fill it
_MOST_THREADS = 1024  # of a thread block


class _Launches(Transform):
    """The launches of a transform."""

    def __init__(self, dtype: DType, batch: tuple[int, ...], area: Area):
        super().__init__(dtype, batch, area)
        self.steps: list[Step] = []

    def elementwise(
        self,
        end: str,
        source: Points,
        target: Points,
        n: int,
        count: int,
        table: Numbers | None = None,
        swap: tuple[bool, bool] = (False, False),
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """A kernel of `elementwise_source`: a thread for each of `count` numbers of a row."""
        name, text = elementwise_source(self.dtype)
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
        self.steps.append(Step(text, f"{name}_{end}", grid, THREADS, arguments))

    def passes(
        self,
        n: int,
        batch: tuple[int, ...],
        source: Points,
        target: Points,
        swap: tuple[bool, bool],
        factor: float,
        stored: int,
        twist: Sequence[Numbers] = (),
        width: int = 1,
    ) -> None:
        """All passes of a transform of n points, by groups of them.

        Result k of item i is number `k width + i % width` of a row; so many of these are stored.
        """
        groups = list(_groups(self.dtype, n))
        before, rest, here = 1, n, source
        items = math.prod(batch)
        for k, radices in enumerate(groups):
            last = k + 1 == len(groups)
            points = math.prod(radices)
            rest //= points
            there = target if last else self.scratch(n, batch)
            passes = Passes(
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
                if passes.turned(i):
                    tables.append(_table(Numbers("pass", self.dtype, remaining, radix)))
                remaining //= radix
            arguments = (At(there.slot), At(here.slot), nest, words, *tables)
            if last:
                arguments = (*arguments, *map(_table, twist))
            grid = min(MAX_GRID, -(-lines // lines_of(passes))), 1
            text = passes_source(passes)
            self.steps.append(Step(text, passes.name, grid, passes.threads, arguments))
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


def fourier_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    (operand,) = operands
    y = result[1]
    if y.size == 0:
        return []
    batch = tuple(size for d, size in enumerate(y.shape) if d != static["axis"])
    t = _Launches(operand[1].dtype.real, batch, area)
    t.whole(name, operand, result, static)
    return stage(*t.steps)
