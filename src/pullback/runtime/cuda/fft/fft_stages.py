"""Fourier transforms along one axis of an array, as launches: any length, batch and layout.

A transform of a smooth length is a launch for each group of passes that fits into shared memory.
Long ones are two stages of columns, others convolutions, as `fft_order` says.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.kernel import fft_order, transforms
from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.compile.kernel.roots import roots
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval, dense_strides
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

NAMES = ("fft", "rfft", "irfft")  # of the intrinsics
_SECTOR = 32  # bytes that memory is read in: neighbouring lines that are read together fill it
_MOST_THREADS = 1024  # of a thread block


class _View(NamedTuple):
    """Rows of numbers of a batch: all strides count real parts; see `Points` of the kernels."""

    slot: int
    batch: tuple[int, ...]
    step: int
    imaginary: int


class _Transform:
    """The launches of a transform, in order; `batch` is what all arrays have in common."""

    def __init__(self, dtype: DType, batch: tuple[int, ...], area: Area):
        self.dtype, self.batch, self.area = dtype, batch, area
        self.items = math.prod(batch)
        self.steps: list[Step] = []

    def scratch(self, points: int) -> _View:
        """Dense rows of complex numbers."""
        slot = self.area(self.items * points * 2 * self.dtype.itemsize)
        return _View(slot, tuple(s * 2 * points for s in dense_strides(self.batch)), 2, 1)

    # -- before and after --------------------------------------------------------------------------

    def elementwise(
        self,
        end: str,
        source: _View,
        target: _View,
        n: int,
        count: int,
        table: Table | None = None,
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
        arguments = (At(target.slot), At(source.slot), 0 if table is None else table, nest, words)
        grid = grid_of(self.items * count), 1
        self.steps.append(Step(text, f"{name}_{end}", grid, THREADS, arguments))

    # -- complex transforms ------------------------------------------------------------------------

    def complex(
        self,
        n: int,
        source: _View,
        target: _View,
        swap: tuple[bool, bool],
        factor: float,
        stored: int | None = None,
    ) -> None:
        """The transform of n numbers; `swap` exchanges their parts before and after."""
        stored = n if stored is None else stored
        if fft_order.is_smooth(n):
            self.smooth(n, source, target, swap, factor, stored)
            return
        chirps, spectrum = _chirps(self.dtype, n), _spectrum(self.dtype, n)
        longer = fft_order.smooth_above(2 * n - 1)
        one, two = self.scratch(longer), self.scratch(longer)
        # A factor is taken after the product, but for numbers that were real: see `recipes` of CPU.
        factors = (1.0, factor) if source.imaginary else (factor, 1.0)
        self.elementwise("times", source, one, n, longer, chirps, (swap[0], False), factors)
        self.smooth(longer, one, two, (False, False), 1.0, longer)
        self.elementwise("times", two, one, longer, longer, spectrum, (False, True))
        self.smooth(longer, one, two, (False, True), 1.0, longer)
        self.elementwise("times", two, target, stored, stored, chirps, (False, swap[1]))

    def smooth(
        self,
        n: int,
        source: _View,
        target: _View,
        swap: tuple[bool, bool],
        factor: float,
        stored: int,
    ) -> None:
        if n <= fft_order.LONGEST:
            self.passes(n, self.batch, source, target, swap, factor, stored)
            return
        a, b = fft_order.halves_of(n)
        between = self.scratch(n)
        columns = source._replace(batch=(*source.batch, source.step), step=source.step * b)
        rows = between._replace(batch=(*between.batch, 2), step=2 * b)
        twist = _twist(self.dtype, n, a)
        self.passes(a, (*self.batch, b), columns, rows, (swap[0], False), factor, n, twist, b)
        columns = between._replace(batch=(*between.batch, 2 * b))
        rows = target._replace(batch=(*target.batch, target.step), step=target.step * a)
        self.passes(b, (*self.batch, a), columns, rows, (False, swap[1]), 1.0, stored, (), a)

    def passes(
        self,
        n: int,
        batch: tuple[int, ...],
        source: _View,
        target: _View,
        swap: tuple[bool, bool],
        factor: float,
        stored: int,
        twist: Sequence[Table] = (),
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
            if last:
                there = target
            else:
                slot = self.area(items * n * 2 * self.dtype.itemsize)
                there = _View(slot, tuple(s * 2 * n for s in dense_strides(batch)), 2, 1)
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
                    tables.append(_pass_roots(self.dtype, remaining, radix))
                remaining //= radix
            arguments = (At(there.slot), At(here.slot), nest, words, *tables)
            if last:
                arguments = (*arguments, *twist)
            grid = min(MAX_GRID, -(-lines // lines_of(passes))), 1
            text = passes_source(passes)
            self.steps.append(Step(text, passes.name, grid, passes.threads, arguments))
            before, here = before * points, there


def _beside(view: _View, lines: int) -> bool:
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


# -- tables ----------------------------------------------------------------------------------------


def _numbers(values: np.ndarray, dtype: DType) -> Table:
    return Table(values.astype(np.complex64 if dtype.itemsize == 4 else np.complex128))


@lru_cache(128)
def _pass_roots(dtype: DType, n: int, radix: int) -> Table:
    return _numbers(roots(n, transforms.pass_powers(n, radix)), dtype)


@lru_cache(16)
def _twist(dtype: DType, n: int, a: int) -> tuple[Table, Table]:
    """The roots between the stages, as products: of k1 by 16 and the rest of it."""
    i = np.arange(n // a)
    coarse = roots(n, FINE_ROWS * np.arange(-(-a // FINE_ROWS))[:, None] * i)
    fine = roots(n, np.arange(FINE_ROWS)[:, None] * i)
    return _numbers(coarse, dtype), _numbers(fine, dtype)


@lru_cache(16)
def _half_roots(dtype: DType, n: int, back: bool) -> Table:
    w = roots(n, np.arange(n // 2 + 1))
    return _numbers(1j * w.conj() if back else -0.5j * w, dtype)


@lru_cache(16)
def _chirps(dtype: DType, n: int) -> Table:
    return _numbers(transforms.chirp(n), dtype)


@lru_cache(16)
def _spectrum(dtype: DType, n: int) -> Table:
    return _numbers(transforms.spectrum(n), dtype)


# -- intrinsics ------------------------------------------------------------------------------------


def _view(place: Place, axis: int) -> _View:
    slot, av = place
    parts = 2 if av.dtype.is_complex else 1
    strides = dense_strides(av.shape) if av.strides is None else av.strides
    batch = tuple(s * parts for d, s in enumerate(strides) if d != axis)
    return _View(slot, batch, strides[axis] * parts, parts - 1)


def fourier_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    ((_, x),) = operands
    y: Aval = result[1]
    if y.size == 0:
        return []
    axis, factor = static["axis"], static["factor"]
    source, target = _view(operands[0], axis), _view(result, axis)
    n = y.shape[axis] if name == "irfft" else x.shape[axis]
    half, dtype = n // 2, x.dtype.real
    batch = tuple(size for d, size in enumerate(y.shape) if d != axis)
    t = _Transform(dtype, batch, area)
    if name == "fft":
        swap = static.get("inverse", False)
        t.complex(n, source, target, (swap, swap), factor)
    elif name == "rfft" and n % 2 == 0:
        made = t.scratch(half)
        pairs = source._replace(step=2 * source.step, imaginary=source.step)
        t.complex(half, pairs, made, (False, False), factor)
        t.elementwise("half", made, target, half, half + 1, _half_roots(dtype, n, False))
    elif name == "rfft":
        t.complex(n, source, target, (False, False), factor, half + 1)
    elif n % 2 == 0:
        made = t.scratch(half)
        table = _half_roots(dtype, n, True)
        t.elementwise("half", source, made, half, half, table, factors=(factor, 1.0))
        pairs = target._replace(step=2 * target.step, imaginary=target.step)
        t.complex(half, made, pairs, (True, True), 1.0)
    else:
        made = t.scratch(n)
        t.elementwise("whole", source, made, n, n, factors=(factor, 1.0))
        t.complex(n, made, target, (True, True), 1.0)
    return stage(*t.steps)
