"""Fourier transforms along one axis of an array, as stages of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.lower import copy_kernel
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft import long
from pullback.runtime.cpu.fft.driver import BlockCut, driver_stage
from pullback.runtime.cpu.fft.recipes import lane_recipe, row_recipe
from pullback.runtime.cpu.llvm.vectors import lanes_of
from pullback.runtime.cpu.loops import map_stages
from pullback.runtime.cpu.native import Stage

__all__ = ["NAMES", "fft_stages"]
__tuning__ = ("_TASK_WORK", "_LONGEST_LANES", "_TURNED_POINTS")

NAMES = ("fft", "rfft", "irfft")  # of the intrinsics

_TASK_WORK = 1 << 16  # points of a task times their logarithm: some tens of microseconds
_LONGEST_LANES = 1 << 12  # points of transforms that are done side by side, else row by row
_TURNED_POINTS = 192  # up to here many rows are done side by side: they stay in the first cache

Area = Callable[[int], int]


class _Line(NamedTuple):
    """An array seen as (batch ..., points): its slot, shape and strides in elements."""

    slot: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def bytes_of(self, axes: slice) -> tuple[int, ...]:
        return tuple(s * self.dtype.itemsize for s in self.strides[axes])


def fft_stages(
    name: str,
    operand: tuple[int, Aval],
    static: dict[str, Any],
    result: tuple[int, Aval],
    area: Area,
) -> list[Stage]:
    """The stages of a primitive; operand and result are (slot, aval), the result is dense."""
    (in_slot, x), (out_slot, y) = operand, result
    if y.size == 0:
        return []
    axis = static["axis"]
    n = y.shape[axis] if name == "irfft" else x.shape[axis]
    strides = dense_strides(x.shape) if x.strides is None else x.strides
    source = _Line(in_slot, x.dtype, x.shape, strides)
    target = _Line(out_slot, y.dtype, y.shape, dense_strides(y.shape))
    call = _Call(name, n, static.get("inverse", name == "irfft"), static["factor"])
    inner = math.prod(y.shape[axis + 1 :])
    if inner == 1:
        keep = slice(0, axis + 1)
        source = source._replace(shape=x.shape[: axis + 1], strides=strides[keep])
        target = target._replace(shape=y.shape[: axis + 1], strides=target.strides[keep])
        return _rows(call, source, target, area)
    lanes = lanes_of(x.dtype.real)
    if fft_order.is_smooth(call.points) and n <= _LONGEST_LANES and 2 * inner >= lanes:
        return _columns(call, source, target, axis, area)
    return _by_copies(call, source, target, axis, area)


class _Call(NamedTuple):
    name: str
    n: int
    inverse: bool
    factor: float

    @property
    def points(self) -> int:
        """Of the complex transform that does the work."""
        return self.n // 2 if self.name != "fft" and self.n % 2 == 0 else self.n

    def words(self, real: DType) -> tuple[str, DType, int, bool, float]:
        return self.name, real, self.n, self.inverse, self.factor

    def grain(self) -> int:
        return max(1, _TASK_WORK // (self.n * max(1, self.n.bit_length())))


def _copy(source: _Line, target: _Line) -> list[Stage]:
    kernel = copy_kernel(source.dtype)
    places = ([target.slot], [target.strides], [source.slot], [source.strides])
    return map_stages.map_stages(kernel, source.shape, *places)


def _dense(source: _Line, area: Area) -> tuple[list[Stage], _Line]:
    """The array in scratch memory."""
    slot = area(math.prod(source.shape) * source.dtype.itemsize)
    copy = source._replace(slot=slot, strides=dense_strides(source.shape))
    return _copy(source, copy), copy


def _by_copies(call: _Call, source: _Line, target: _Line, axis: int, area: Area) -> list[Stage]:
    """Columns as rows of a copy, and back."""

    def moved(line: _Line) -> _Line:
        order = [d for d in range(len(line.shape)) if d != axis] + [axis]
        return line._replace(
            shape=tuple(line.shape[d] for d in order),
            strides=tuple(line.strides[d] for d in order),
        )

    first, rows = _dense(moved(source), area)
    back = moved(target)
    slot = area(math.prod(back.shape) * back.dtype.itemsize)
    made = back._replace(slot=slot, strides=dense_strides(back.shape))
    return [*first, *_rows(call, rows, made, area), *_copy(made, back)]


def _columns(call: _Call, source: _Line, target: _Line, axis: int, area: Area) -> list[Stage]:
    """Transforms side by side: the lanes are neighbours on the axes that follow."""
    stages: list[Stage] = []
    following = slice(axis + 1, None)
    inner_shape = source.shape[following]
    dense = dense_strides(inner_shape)
    fits = zip(inner_shape, source.strides[following], dense, strict=True)
    if any(n > 1 and s != d for n, s, d in fits):
        stages, source = _dense(source, area)
    inner = math.prod(inner_shape)
    lanes = lanes_of(source.dtype.real)
    pitches = (source.bytes_of(slice(axis, axis + 1))[0], target.bytes_of(slice(axis, axis + 1))[0])
    recipe = lane_recipe(*call.words(source.dtype.real), pitches, False)
    steps = (lanes * source.dtype.itemsize, lanes * target.dtype.itemsize)
    block = BlockCut(-(-inner // lanes), lanes, inner, *steps)
    outer = slice(0, axis)
    batch = (source.bytes_of(outer), target.bytes_of(outer))
    slots = (source.slot, target.slot)
    grain = -(-call.grain() // lanes)
    return [
        *stages,
        driver_stage(
            recipe.steps, block, source.shape[outer], batch, slots, recipe.nbytes, grain, area
        ),
    ]


def _rows(call: _Call, source: _Line, target: _Line, area: Area) -> list[Stage]:
    """Transforms of rows: axis -1 of both."""
    stages: list[Stage] = []
    if source.shape[-1] > 1 and source.strides[-1] != 1:
        stages, source = _dense(source, area)
    real = source.dtype.real
    batch = source.shape[:-1]
    if call.points > fft_order.LONGEST or (
        not fft_order.is_smooth(call.points)
        and fft_order.smooth_above(2 * call.points - 1) > fft_order.LONGEST
    ):
        lines = [(s.slot, s.bytes_of(slice(0, -1))) for s in (source, target)]
        return [*stages, *long.long_stages(call, real, batch, lines[0], lines[1], area)]
    lanes = lanes_of(real)
    rows = math.prod(batch)
    together = _merged(batch, source.strides[:-1])
    if _turned(call, rows, lanes):
        if together is None:
            more, source = _dense(source, area)
            stages += more
            together = source.shape[-1]
        pitches = (together * source.dtype.itemsize, target.shape[-1] * target.dtype.itemsize)
        recipe = lane_recipe(*call.words(real), pitches, True)
        steps = (pitches[0] * lanes, pitches[1] * lanes)
        block = BlockCut(-(-rows // lanes), lanes, rows, *steps)
        grain = -(-call.grain() // lanes)
        nothing: tuple[tuple[int, ...], ...] = ((), ())
        slots = (source.slot, target.slot)
        stage = driver_stage(recipe.steps, block, (), nothing, slots, recipe.nbytes, grain, area)
        return [*stages, stage]
    recipe = row_recipe(*call.words(real))
    strides = (source.bytes_of(slice(0, -1)), target.bytes_of(slice(0, -1)))
    slots = (source.slot, target.slot)
    return [
        *stages,
        driver_stage(
            recipe.steps, BlockCut(), batch, strides, slots, recipe.nbytes, call.grain(), area
        ),
    ]


def _turned(call: _Call, rows: int, lanes: int) -> bool:
    """Whether rows are done side by side."""
    if not fft_order.is_smooth(call.points):
        return False
    if call.points <= lanes or len(fft_order.radices(call.points)) == 1:
        return True
    return call.points <= _TURNED_POINTS and 2 * rows >= lanes


def _merged(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride with which all rows follow each other, if there is one."""
    dims = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    if not dims:
        return 1
    step = dims[-1][1]
    reach = step
    for n, s in reversed(dims):
        if s != reach:
            return None
        reach *= n
    return step if step > 0 else None
