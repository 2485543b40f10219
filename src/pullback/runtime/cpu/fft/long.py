"""Transforms that do not fit a cache: two stages of columns, the tasks of which share a transform.

With n = a b, points i = b i1 + i2 and results k = k1 + a k2, the first stage transforms columns i2
of a points, turns them by `exp(-2 pi i i2 k1 / n)` and leaves blocks of k1 as the second stage
reads them: whole elements, one after the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.compile.kernel.roots import roots
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft import halves, moves, passes, recipes, tables
from pullback.runtime.cpu.fft.driver import IN, OUT, BlockCut, bits_of, driver_stage
from pullback.runtime.cpu.fft.recipes import StepList
from pullback.runtime.cpu.llvm.vectors import lanes_of
from pullback.runtime.cpu.native import Stage

__all__ = ["long_stages"]
__tuning__ = ("_PART",)

_PART = 1 << 12  # numbers of a task that goes over a row once

Place = tuple[int, tuple[int, ...]]  # a slot, and bytes from item to item of the batch


class _LongTransform(NamedTuple):
    """What all stages of a transform have in common."""

    dtype: DType  # of real parts
    batch: tuple[int, ...]
    area: Callable[[int], int]

    def scratch(self, nbytes: int) -> Place:
        """Room for so many bytes in each item of the batch."""
        slot = self.area(math.prod(self.batch) * nbytes)
        return slot, tuple(s * nbytes for s in dense_strides(self.batch))

    def stage(self, recipe: StepList, block: BlockCut, source: Place, target: Place) -> Stage:
        slots, strides = (source[0], target[0]), (source[1], target[1])
        return driver_stage(
            recipe.steps, block, self.batch, strides, slots, recipe.nbytes, 1, self.area
        )

    def complex_row(self, n: int) -> Place:
        return self.scratch(n * 2 * self.dtype.itemsize)


def long_stages(
    call: Any,
    dtype: DType,
    batch: Sequence[int],
    source: Place,
    target: Place,
    area: Callable[[int], int],
) -> list[Stage]:
    """The stages of a long transform of rows; `call` says which one, and its factor."""
    rows = _LongTransform(dtype, tuple(batch), area)
    n, half = call.n, call.n // 2
    if call.name == "fft":
        swap = (call.inverse, call.inverse)
        return _complex(rows, n, source, target, swap, call.factor)
    if call.name == "rfft" and n % 2 == 0:
        made = rows.complex_row(half)
        stages = _complex(rows, half, source, made, (False, False), call.factor)
        return [*stages, _half(rows, n, made, target, False, 1.0)]
    if call.name == "irfft" and n % 2 == 0:
        made = rows.complex_row(half)
        stages = _complex(rows, half, made, target, (True, True), 1.0)
        return [_half(rows, n, source, made, True, call.factor), *stages]
    full, made = rows.complex_row(n), rows.complex_row(n)
    if call.name == "rfft":
        nbytes = (half + 1) * 2 * dtype.itemsize
        copy = StepList(dtype)
        copy.step(halves.copy_function(dtype), halves.COPY.packed(nbytes=nbytes), OUT)
        return [
            _widened(rows, n, source, full, call.factor),
            *_complex(rows, n, full, made, (False, False), 1.0),
            rows.stage(copy, BlockCut(), made, target),
        ]
    whole = StepList(dtype)
    args = halves.WHOLE_ROW.packed(n=n, factor=bits_of(call.factor))
    whole.step(halves.whole_row(dtype), args, OUT)
    return [
        rows.stage(whole, BlockCut(), source, full),
        *_complex(rows, n, full, made, (True, True), 1.0),
        _narrowed(rows, n, made, target),
    ]


def _parts(count: int) -> BlockCut:
    """A row in parts, which the steps find by their number."""
    return BlockCut(max(1, -(-count // _PART)))


def _half(
    rows: _LongTransform, n: int, source: Place, target: Place, back: bool, factor: float
) -> Stage:
    recipe = StepList(rows.dtype)
    recipe.half_row(n, back, factor, OUT, _PART)
    return rows.stage(recipe, _parts(n // 2), source, target)


def _widened(rows: _LongTransform, n: int, source: Place, target: Place, factor: float) -> Stage:
    """Real numbers as complex ones."""
    recipe, size = StepList(rows.dtype), rows.dtype.itemsize
    recipe.need(_PART // recipe.lanes)
    function = moves.move_function(rows.dtype, False, True)
    recipe.step(function, recipe.moved(1, -1, 0, False, factor))
    recipe.move_out(1, -1, 0, False, to=OUT)
    block = BlockCut(-(-n // _PART), _PART, n, _PART * size, _PART * 2 * size)
    return rows.stage(recipe, block, source, target)


def _narrowed(rows: _LongTransform, n: int, source: Place, target: Place) -> Stage:
    """The real parts of complex numbers."""
    recipe, size = StepList(rows.dtype), rows.dtype.itemsize
    recipe.move(1, -1, 0, False)
    recipe.need(_PART // recipe.lanes)
    recipe.step(moves.move_function(rows.dtype, True, True), recipe.moved(1, -1, 0, False), OUT)
    block = BlockCut(-(-n // _PART), _PART, n, _PART * 2 * size, _PART * size)
    return rows.stage(recipe, block, source, target)


def _complex(
    rows: _LongTransform,
    n: int,
    source: Place,
    target: Place,
    swap: tuple[bool, bool],
    factor: float,
) -> list[Stage]:
    """The transform of n complex numbers; `swap` exchanges their parts before and after."""
    if fft_order.is_smooth(n):
        return _two_stages(rows, n, source, target, swap, factor)
    longer, chirps, kernel = recipes.convolved(rows.dtype, n)
    one, two = rows.complex_row(longer), rows.complex_row(longer)

    def times(
        counts: tuple[int, int], table: Any, factor: float, swap: tuple[bool, bool],
        source: Place, target: Place,
    ) -> Stage:  # fmt: skip
        recipe = StepList(rows.dtype)
        recipe.times(*counts, table, factor, *swap, to=OUT, part=_PART)
        return rows.stage(recipe, _parts(counts[1]), source, target)

    return [
        times((n, longer), chirps, factor, (swap[0], False), source, one),
        *_two_stages(rows, longer, one, two, (False, False), 1.0),
        times((longer, longer), kernel, 1.0, (False, True), two, one),
        *_two_stages(rows, longer, one, two, (False, True), 1.0),
        times((n, n), chirps, 1.0, (False, swap[1]), two, target),
    ]


def _two_stages(
    rows: _LongTransform,
    n: int,
    source: Place,
    target: Place,
    swap: tuple[bool, bool],
    factor: float,
) -> list[Stage]:
    dtype = rows.dtype
    lanes, number = lanes_of(dtype), 2 * dtype.itemsize
    a, b = fft_order.halves_of(n)
    columns, blocks = -(-b // lanes), -(-a // lanes)
    element = lanes * number
    between = rows.scratch(blocks * columns * lanes * element)

    first = StepList(dtype)
    first.move(a, -1, b * number, swap[0], factor)
    first.passes(a, fft_order.radices(a), 1)
    coarse, fine = _twist_roots(dtype, n, a, lanes)
    args = passes.TWIST.packed(
        rows=a, across=1, column_step=1, block_step=columns * lanes, roots=coarse, fine_roots=fine,
        pitch=columns,
    )  # fmt: skip
    first.step(passes.twist_function(dtype, True), args, OUT)
    first_block = BlockCut(columns, lanes, b, lanes * number, lanes * element)

    second = StepList(dtype)
    second.passes(b, fft_order.radices(b), 1)
    second.move_out(b, -1, a * number, swap[1], to=OUT)
    second_block = BlockCut(blocks, lanes, a, columns * lanes * element, lanes * number)
    assert second.steps[0].source == IN
    return [
        rows.stage(first, first_block, source, between),
        rows.stage(second, second_block, between, target),
    ]


@functools.lru_cache(16)
def _twist_roots(
    dtype: DType, n: int, a: int, lanes: int
) -> tuple[tables.NumberTable, tables.NumberTable]:
    """The roots between the stages, as products: of k1 by 16 and the rest of it."""
    i = np.arange(n // a)
    coarse = roots(n, FINE_ROWS * np.arange(-(-a // FINE_ROWS))[:, None] * i)
    fine = roots(n, np.arange(FINE_ROWS)[:, None] * i)
    return tables.planes(coarse, dtype, lanes), tables.planes(fine, dtype, lanes)
