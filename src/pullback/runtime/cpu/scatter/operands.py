"""The operands of a fold by index, brought to what the strategies read: dense rows and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pullback.compile.kernel.forms import Map, Scatter
from pullback.compile.program.nest import coalesce
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import cast, load
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing import index_code
from pullback.runtime.cpu.loops.map_stages import grain_of, map_stage
from pullback.runtime.cpu.loops.nest import axis_words

__all__ = ["copy_stage", "dense_operand", "is_constant", "leading_axes", "row_numbers", "x_rows"]

Strides = Sequence[int]
Area = Callable[[int], int]


def is_constant(strides: Strides, shape: Sequence[int]) -> bool:
    """Whether an array is the same everywhere along these axes."""
    return all(s == 0 or n == 1 for s, n in zip(strides, shape, strict=True))


def copy_stage(
    source: DType, target: DType, shape: Sequence[int], to: int, slot: int, strides: Strides
) -> native.Stage:
    """The stage that copies an array to row-major order at the slot `to`, in dtype `target`."""
    parts = 2 if source.is_complex else 1
    body = tuple(cast(load(0, source.real, p), target.real) for p in range(parts))
    kernel = Map((source,), target, body)
    return map_stage(kernel, shape, to, 0, dense_strides(shape), [slot], [strides])


def _is_dense(shape: Sequence[int], strides: Strides) -> bool:
    nest = coalesce(shape, [strides])
    return not nest.shape or nest.strides[0] == (1,)


def leading_axes(
    x_shape: Sequence[int], shape: Sequence[int], index_strides: Sequence[Strides]
) -> int | None:
    """The axes of the updates that one dense index array numbers rows of x for, if there is one."""
    if len(index_strides) != 1 or math.prod(shape) == 0:
        return None
    (strides,), lead = index_strides, len(shape) - (len(x_shape) - 1)
    whole = is_constant(strides[lead:], shape[lead:])
    return lead if whole and _is_dense(shape[:lead], strides[:lead]) else None


def dense_operand(
    slot: int,
    shape: Sequence[int],
    strides: Strides,
    dtype: DType,
    wide: DType,
    area: Area,
    stages: list[native.Stage],
) -> int:
    """The slot of an array in row-major order and in dtype `wide`."""
    if wide is dtype and _is_dense(shape, strides):
        return slot
    copied = area(math.prod(shape) * wide.itemsize)
    stages.append(copy_stage(dtype, wide, shape, copied, slot, strides))
    return copied


def x_rows(
    slot: int,
    shape: Sequence[int],
    strides: Strides,
    split: int,
    dtype: DType,
    wide: DType,
    target: int | None,
    area: Area,
    stages: list[native.Stage],
) -> tuple[int, int]:
    """Where the rows of x are (the axes from `split` on), and the step from one to the next.

    A copy goes to `target` if that is given.
    """
    rest = shape[split:]
    if is_constant(strides[:split], shape[:split]):
        return dense_operand(slot, rest, strides[split:], dtype, wide, area, stages), 0
    if wide is not dtype and target is not None:
        stages.append(copy_stage(dtype, wide, shape, target, slot, strides))
        return target, math.prod(rest)
    return dense_operand(slot, shape, strides, dtype, wide, area, stages), math.prod(rest)


def row_numbers(
    kernel: Scatter,
    shape: Sequence[int],
    slots: Sequence[int],
    strides: Sequence[Strides],
    places: Strides,
    indexed: Sequence[tuple[int, int]],
    width: int,
    area: Area,
    first_code: int,
    stages: list[native.Stage],
) -> tuple[DType, int]:
    """dtype and slot of one dense array that numbers the destinations of all rows."""
    if len(slots) == 1 and not any(places) and _is_dense(shape, strides[0]):
        return kernel.indices[0], slots[0]
    count = math.prod(shape)
    slot = area(8 * count)
    scaled = [
        tuple(s * d.itemsize for s in own) for own, d in zip(strides, kernel.indices, strict=True)
    ]
    dense = tuple(8 * s for s in dense_strides(shape))
    nest = coalesce(shape, [dense, *scaled, tuple(places)])
    rows = [(n, s // width) for n, s in indexed]
    own = index_code.indexed(rows, 1, first_code)
    head = index_code.ravel_params(len(slots)).head(nest, (slot, *slots), weight=width, **own)
    params = (*head, *axis_words(nest))
    code = index_code.ravel(tuple(kernel.indices))
    stages.append(native.Stage(code, nest.size, grain_of(nest.size), params))
    return dt.uint64, slot
