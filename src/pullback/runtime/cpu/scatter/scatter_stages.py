"""Scatter kernels as stages.

Scatter folds in the row-major order of the iteration space for every destination. Tasks share the
work by ownership: each has a range of an axis along which destinations differ, or a range of
destinations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.kernel.forms import Scatter
from pullback.compile.program.nest import Nest, coalesce, step_of
from pullback.compile.program.target import IndexArrays
from pullback.core.avals import dense_strides
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing import index_code
from pullback.runtime.cpu.indexing.checked import narrow_dtype
from pullback.runtime.cpu.loops.map_stages import INLINE
from pullback.runtime.cpu.loops.nest import axis_words
from pullback.runtime.cpu.scatter import set_code, strategies
from pullback.runtime.cpu.scatter.operands import copy_stage, dense_operand, leading_axes
from pullback.runtime.cpu.scatter.strategies import PlanSlots

__all__ = [
    "scatter_stages",
]
__tuning__ = ("LEAST_COLUMNS",)

LEAST_COLUMNS = 16  # of a row that a task takes

Strides = Sequence[int]


def _scaled(strides: Strides, itemsize: int) -> tuple[int, ...]:
    return tuple(s * itemsize for s in strides)


def scatter_stages(
    kernel: Scatter,
    x: tuple[Sequence[int], int, Strides],
    updates: tuple[Sequence[int], int, Strides],
    out: tuple[int, Strides],
    indices: IndexArrays,
    area: Callable[[int], int],
    plan: PlanSlots | None = None,
) -> list[native.Stage]:
    """See `Target.scatter`; `out` is slot and strides over the iteration space."""
    if strategies.is_folded(kernel):
        return strategies.sum_stages(kernel, x, updates, out, indices, area, plan)
    index_slots, index_strides, indexed, first_code = indices
    (x_shape, x_slot, x_strides), (shape, update_slot, update_strides) = x, updates
    if _sets_short_rows(kernel, x_shape, shape, index_strides):
        return _set_stages(kernel, x, updates, out[0], index_slots[0], area, first_code)
    wide = index_code.accumulator(kernel.dtype)
    narrow = wide is not kernel.dtype
    slot = area(math.prod(x_shape) * wide.itemsize) if narrow else out[0]
    stages = []
    if x_slot != slot:
        stages.append(copy_stage(kernel.dtype, wide, x_shape, slot, x_slot, x_strides))
    strides = [
        _scaled(out[1], wide.itemsize),
        _scaled(update_strides, kernel.dtype.itemsize),
        *(_scaled(s, d.itemsize) for s, d in zip(index_strides, kernel.indices, strict=True)),
        dense_strides(shape),
    ]
    nest = coalesce(shape, strides)
    own = index_code.indexed(indexed, wide.itemsize, first_code)
    span = sum((n - 1) * s * wide.itemsize for n, s in indexed) + 1
    stages.append(_fold_stage(kernel, nest, (slot, update_slot, *index_slots), span, own))
    if narrow:
        dense = dense_strides(x_shape)
        stages.append(copy_stage(wide, kernel.dtype, x_shape, out[0], slot, dense))
    return stages


def _sets_short_rows(
    kernel: Scatter,
    x_shape: Sequence[int],
    shape: Sequence[int],
    index_strides: Sequence[Strides],
) -> bool:
    """Whether one dense index array says which rows, of few bytes, are set."""
    replaces = all(e.value == ("b", part) for part, e in enumerate(kernel.combine))
    lead = leading_axes(x_shape, shape, index_strides)
    if not replaces or lead is None:
        return False
    return math.prod(shape[lead:]) * kernel.dtype.itemsize <= set_code.MOST_BYTES


def _set_stages(
    kernel: Scatter,
    x: tuple[Sequence[int], int, Strides],
    updates: tuple[Sequence[int], int, Strides],
    out_slot: int,
    index_slot: int,
    area: Callable[[int], int],
    first_code: int,
) -> list[native.Stage]:
    """The stages that set short rows, one after the other."""
    (x_shape, x_slot, x_strides), (shape, update_slot, update_strides) = x, updates
    dtype, stages = kernel.dtype, []
    if x_slot != out_slot:
        stages = [copy_stage(dtype, dtype, x_shape, out_slot, x_slot, x_strides)]
    update_slot = dense_operand(update_slot, shape, update_strides, dtype, dtype, area, stages)
    width = math.prod(x_shape[1:])
    count = math.prod(shape) // width
    number = narrow_dtype(x_shape[0])
    code = set_code.set_rows(kernel.indices[0], number, width * dtype.itemsize)
    params = set_code.SET.packed(
        index=index_slot, updates=update_slot, out=out_slot, count=count, rows=x_shape[0],
        width=width, code=first_code,
    )  # fmt: skip
    return [*stages, native.Stage(code, 1, 1, params)]


def _fold_stage(
    kernel: Scatter, nest: Nest, slots: Sequence[int], span: int, indexed: dict[str, Any]
) -> native.Stage:
    """The stage that folds updates in; units run over an axis, or over owners of destinations."""
    count = len(kernel.indices)
    wide = index_code.accumulator(kernel.dtype)
    by_rows = all(nest.inner(2 + k) == 0 for k in range(count))
    axis, units, grain = _share(nest, by_rows)
    head = index_code.scatter_params(count).head(
        nest, slots, axis=axis, owners=units if axis < 0 else 0, span=span, **indexed
    )
    steps = (
        step_of(nest.inner(0), wide.itemsize),
        step_of(nest.inner(1), kernel.dtype.itemsize),
    )
    code = index_code.scatter(kernel, steps, by_rows)
    return native.Stage(code, units, grain, (*head, *axis_words(nest)))


def _share(nest: Nest, by_rows: bool) -> tuple[int, int, int]:
    """The axis to cut (from the innermost; -1: cut destinations), units and grain."""
    threads = native.get_threads()
    if nest.size <= INLINE or threads == 1:
        return -1, min(1, nest.size), 1
    tasks = 4 * threads
    for d, n in enumerate(nest.shape):
        inner = d == len(nest.shape) - 1
        least = LEAST_COLUMNS if inner and by_rows else 1
        if nest.strides[0][d] != 0 and n >= 2 * least:
            grain = max(least, math.ceil(n / (threads if inner and by_rows else tasks)))
            return len(nest.shape) - 1 - d, n, grain
    return -1, threads, 1
