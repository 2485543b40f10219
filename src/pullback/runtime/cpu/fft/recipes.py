"""The steps of transforms: of one row at a time, or of as many as there are lanes.

Both do the same arithmetic in the same order, so that their bits are equal.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.transforms import chirp, convolution
from pullback.core.dtypes import DType, float64
from pullback.runtime.cpu import native
from pullback.runtime.cpu.fft import halves, moves, passes, tables
from pullback.runtime.cpu.fft.driver import (
    IN,
    OUT,
    A,
    B,
    BlockCut,
    TransformStep,
    bits_of,
    driver_stage,
)
from pullback.runtime.cpu.llvm.vectors import lanes_of

__all__ = ["StepList", "convolved", "lane_recipe", "row_recipe"]

_WHOLE_ROW = 1 << 62  # of a step that works on parts: all is one part


class StepList:
    """Steps under construction; `dtype` is that of real parts."""

    def __init__(self, dtype: DType):
        self.dtype, self.lanes = dtype, lanes_of(dtype)
        self.vector = self.lanes * dtype.itemsize
        self.steps: list[TransformStep] = []
        self.nbytes = 64  # of a buffer
        self.at = IN

    def step(self, function: Any, args: tuple[Any, ...], to: int | None = None) -> None:
        """Go on from where the last step has left its results, to the other buffer."""
        target = to if to is not None else B if self.at == A else A
        self.steps.append(TransformStep(function, self.at, target, args))
        self.at = target

    def need(self, elements: int) -> None:
        """Room for so many elements in a buffer."""
        self.nbytes = max(self.nbytes, elements * 2 * self.vector)

    def swap(self, yes: bool) -> int:
        return self.vector if yes else 0

    def move(self, rows: int, columns: int, pitch: int, swap: bool, factor: float = 1.0) -> None:
        """Rows of complex numbers to elements; `pitch` counts bytes."""
        self.need(rows * self.vectors(columns))
        function = moves.move_function(self.dtype, False, False)
        self.step(function, self.moved(rows, columns, pitch, swap, factor))

    def move_out(
        self, rows: int, columns: int, pitch: int, swap: bool, to: int | None = None
    ) -> None:
        function = moves.move_function(self.dtype, True, False)
        self.step(function, self.moved(rows, columns, pitch, swap), to)

    def moved(
        self, rows: int, columns: int, pitch: int, swap: bool, factor: float = 0.0, apart: int = 0
    ) -> tuple[Any, ...]:
        """The args of a step that moves rows; -1 `columns` are as many as there are lanes."""
        return moves.MOVE.packed(
            rows=rows, count=columns, pitch=pitch, swap=self.swap(swap), factor=bits_of(factor),
            apart=apart,
        )  # fmt: skip

    def vectors(self, columns: int) -> int:
        return 1 if columns < 0 else -(-columns // self.lanes)

    def passes(self, n: int, factors: tuple[int, ...], span: int) -> None:
        """Transforms of n elements `span` apart, for as many of them."""
        self.need(n * span)
        for radix in factors:
            rest = n // radix
            turned = rest > 1
            table = tables.pass_roots(self.dtype, n, radix) if turned else 0
            args = passes.PASS.packed(groups=rest, span=span, roots=table)
            self.step(passes.pass_function(self.dtype, radix, turned), args)
            n, span = rest, span * radix

    # -- a row ---------------------------------------------------------------------------------

    def row(
        self, n: int, swap: tuple[bool, bool], factor: float = 1.0, to: int | None = None
    ) -> None:
        """The transform of a row of n complex numbers, as a row of them.

        `swap` says whether to exchange real and imaginary parts before and after.
        """
        if fft_order.is_smooth(n):
            first, *others = fft_order.radices(n)
            rest = n // first
            number = 2 * self.dtype.itemsize
            self.move(first, rest, rest * number, swap[0], factor)
            across, blocks = self.vectors(rest), self.vectors(first)
            args = passes.PASS.packed(groups=1, span=across, roots=0)
            self.step(passes.pass_function(self.dtype, first, False), args)
            self.need(across * self.lanes * blocks)
            table = tables.twist_roots(self.dtype, n, first, self.lanes)
            args = passes.TWIST.packed(
                rows=first, across=across, column_step=blocks, block_step=1, roots=table,
                fine_roots=0, pitch=across,
            )  # fmt: skip
            self.step(passes.twist_function(self.dtype, False), args)
            self.passes(rest, tuple(others), blocks)
            self.move_out(rest, first, first * number, swap[1], to=to)
            return
        longer, chirps, kernel = convolved(self.dtype, n)
        self.need(self.vectors(longer) + 1)
        self.times(n, longer, chirps, factor, swap[0], False)
        self.row(longer, (False, False))
        self.times(longer, longer, kernel, 1.0, False, True)
        self.row(longer, (False, True))
        self.times(n, n, chirps, 1.0, False, swap[1], to=to)

    def times(
        self,
        count: int,
        total: int,
        table: Any,
        factor: float,
        before: bool,
        after: bool,
        to: int | None = None,
        part: int = _WHOLE_ROW,
    ) -> None:
        """Products of a row with a table, followed by zeros."""
        args = halves.TIMES.packed(
            count=count, total=total, table=table, length=part, factor=bits_of(factor),
            before=int(before), after=int(after),
        )  # fmt: skip
        self.step(halves.times_row(self.dtype), args, to)

    def half_row(
        self, n: int, back: bool, factor: float, to: int | None = None, part: int = _WHOLE_ROW
    ) -> None:
        """A real transform of n points from a complex one of half as many; or the way back."""
        args = halves.HALF_ROW.packed(
            half=n // 2, roots=tables.half_roots(self.dtype, n, back), length=part,
            factor=bits_of(factor),
        )  # fmt: skip
        self.step(halves.half_row(self.dtype, back), args, to)

    # -- lanes ---------------------------------------------------------------------------------

    def half_elements(self, n: int, back: bool) -> None:
        """What `half_row` does, on elements."""
        args = halves.HALF_ELEMENTS.packed(
            half=n // 2, roots=tables.half_roots(self.dtype, n, back), swap=self.swap(back)
        )
        self.step(halves.half_elements(self.dtype, back), args)

    def lane_passes(self, n: int) -> None:
        """The transform of n elements."""
        self.passes(n, fft_order.radices(n), 1)


def row_recipe(kind: str, dtype: DType, n: int, inverse: bool, factor: float) -> StepList:
    """The steps for one row of a transform of n points, real or complex, with unit strides."""
    r = StepList(dtype)
    size, half, swap = dtype.itemsize, n // 2, (inverse, inverse)
    if kind == "fft":
        r.row(n, swap, factor, to=OUT)
    elif kind == "rfft" and n % 2 == 0:
        r.row(half, (False, False), factor)
        r.half_row(n, False, 1.0, to=OUT)
    elif kind == "irfft" and n % 2 == 0:
        r.need(r.vectors(half))
        r.half_row(n, True, factor)
        r.row(half, (True, True), to=OUT)
    elif kind == "rfft":
        r.need(r.vectors(n))
        r.step(moves.move_function(dtype, False, True), r.moved(1, n, 0, False, factor))
        r.move_out(1, n, 0, False)
        r.row(n, (False, False))
        r.step(halves.copy_function(dtype), halves.COPY.packed(nbytes=(half + 1) * 2 * size), OUT)
    else:
        r.need(r.vectors(n))
        r.step(halves.whole_row(dtype), halves.WHOLE_ROW.packed(n=n, factor=bits_of(factor)))
        r.row(n, (True, True))
        r.move(1, n, 0, False)
        r.step(moves.move_function(dtype, True, True), r.moved(1, n, 0, False), OUT)
    return r


def lane_recipe(
    kind: str,
    dtype: DType,
    n: int,
    inverse: bool,
    factor: float,
    pitch: tuple[int, int],
    turned: bool,
) -> StepList:
    """The same for as many transforms as there are lanes, of smooth n.

    `pitch` counts bytes in input and output: from point to point where transforms lie side by side,
    or if they are `turned` from transform to transform, whose points are then neighbours.
    """
    r = StepList(dtype)
    r.need(n + 2 * r.lanes)
    half, even = n // 2, n % 2 == 0

    def move(
        out: bool, points: int, real: bool, swap: bool = False, apart: int = 0, step: int = 1
    ) -> None:
        scale, to = (0.0, OUT) if out else (factor, None)
        if turned:
            args = moves.TURN.packed(
                count=points, pitch=pitch[out], swap=r.swap(swap), factor=bits_of(scale)
            )
            r.step(moves.turn_function(dtype, out, real), args, to)
        else:
            args = r.moved(points, -1, pitch[out] * step, swap, scale, apart)
            r.step(moves.move_function(dtype, out, real), args, to)

    load, store = partial(move, False), partial(move, True)
    if kind == "fft":
        load(n, False, inverse)
        r.lane_passes(n)
        store(n, False, inverse)
    elif kind == "rfft" and even:
        # Two real points side by side are a complex one; one above the other, two rows are.
        load(half, not turned, apart=pitch[0], step=2)
        r.lane_passes(half)
        r.half_elements(n, False)
        store(half + 1, False)
    elif kind == "rfft":
        load(n, True)
        r.lane_passes(n)
        store(half + 1, False)
    elif even:
        load(half + 1, False)
        r.half_elements(n, True)
        r.lane_passes(half)
        store(half, not turned, True, apart=pitch[1], step=2)
    else:
        load(half + 1, False)
        args = halves.WHOLE_ELEMENTS.packed(n=n, swap=r.swap(True))
        r.step(halves.whole_elements(dtype), args)
        r.lane_passes(n)
        store(n, True, True)
    return r


@functools.lru_cache(16)
def convolved(dtype: DType, n: int) -> tuple[int, tables.NumberTable, tables.NumberTable]:
    """What makes a transform of n points a convolution (Bluestein): its length, the factors of
    points and results, and the transform of the other operand.
    """
    factors, other = chirp(n), convolution(n)
    longer = len(other)
    spectrum = _transform(other) / longer
    return longer, tables.numbers(factors, dtype), tables.numbers(spectrum, dtype)


def _transform(values: np.ndarray) -> np.ndarray:
    """The transform of complex128 numbers, of a smooth length."""
    recipe = row_recipe("fft", float64, len(values), False, 1.0)
    area = native.Scratch(2)
    batch: tuple[tuple[int, ...], ...] = ((), ())
    stage = driver_stage(recipe.steps, BlockCut(), (), batch, (1, 0), recipe.nbytes, 1, area)
    run = native.program(1, values.nbytes, area.sizes, [stage], True)
    made = run(native.wrap(values.ctypes.data, values.nbytes, values))
    return np.frombuffer(memoryview(made), np.complex128)  # type: ignore[arg-type]
