"""Gather and Scatter kernels as stages.

Scatter folds in the row-major order of the iteration space for every destination. Tasks share the
work by ownership: each has a range of an axis along which destinations differ, or a range of
destinations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.kernel.forms import Gather, Scatter
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, uint64
from pullback.core.errors import IndexOutOfRange
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing import gather_code, index_code
from pullback.runtime.cpu.loops.map_stages import INLINE, dense_strides, grain_of
from pullback.runtime.cpu.loops.nest import Nest, Streams, coalesce, step_of
from pullback.runtime.cpu.scatter import scatter_stages as scatter_kernels
from pullback.runtime.cpu.scatter import set_code
from pullback.runtime.cpu.scatter.numbers import narrow_dtype
from pullback.runtime.cpu.scatter.operands import copy_stage, dense_operand, leading_axes
from pullback.runtime.cpu.scatter.scatter_stages import PlanSlots, Wanted, narrow_plan

__all__ = [
    "IndexedAxis",
    "gather_program",
    "gather_stages",
    "gather_wants_plan",
    "indexed_axes",
    "scatter_program",
    "scatter_stages",
]

LEAST_COLUMNS = 16  # of a row that a task takes
FAR_BYTES = 1 << 18  # of an array that reads at random find in the cache

Strides = Sequence[int]


class IndexedAxis(NamedTuple):
    """The size of an axis, and the dtype of the indices into it.

    What is read or written has the shape `places`, of whose axes the first `lead` are those of the
    indices. Where these vary along further axes, `lead` is 0, and their position is not told: the
    functions that do so have moved the axes.
    """

    size: int
    dtype: DType
    places: tuple[int, ...]
    lead: int

    def error(self, name: str, position: int, value: int) -> IndexOutOfRange:
        """What the operation `name` says of an index out of range, given as 64 bits."""
        size, value = self.size, value % (1 << 64) if self.dtype is uint64 else value
        found = tuple(int(i) for i in np.unravel_index(position, self.places)[: self.lead])
        where = f", at position {found[0] if len(found) == 1 else found} of the indices"
        return IndexOutOfRange(
            f"{name}: index {value} is out of range for an axis of size {size}"
            f"{where if found else ''}. Valid indices are {-size} to {size - 1}."
        )


def indexed_axes(
    sizes: Sequence[int], indices: Sequence[Aval], places: tuple[int, ...], lead: int
) -> list[IndexedAxis]:
    """The axes that each of some index arrays goes into, for errors; see `IndexedAxis`."""
    if any(n != 1 for i in indices for n in i.shape[lead:]):
        lead = 0
    return [IndexedAxis(n, i.dtype, places, lead) for n, i in zip(sizes, indices, strict=True)]


def gather_program(
    kernel: Gather,
    iteration_shape: Sequence[int],
    x_strides: Strides,
    index_strides: Sequence[Strides],
    indexed: Sequence[tuple[int, int]],
    planned: bool = False,
) -> Callable[..., Any]:
    """A callable `(x, *indices) -> out`, dense over `iteration_shape`.

    `x_strides` and `index_strides` are element strides over the iteration space; `indexed` gives
    size and stride of each indexed axis of x. The position in an error is that of the output.
    `planned`: in place of the indices comes the array of their plan.
    """
    inputs = 1 + len(kernel.indices)
    slots = range(2, 1 + inputs)
    stages = gather_stages(
        kernel, iteration_shape, 1, x_strides, slots, index_strides, indexed, 0,
        plan=slots if planned else None,
    )  # fmt: skip
    size = math.prod(iteration_shape)
    return native.program(inputs, size * kernel.dtype.itemsize, (), stages, size > INLINE)


def gather_stages(
    kernel: Gather,
    iteration_shape: Sequence[int],
    x_slot: int,
    x_strides: Strides,
    index_slots: Sequence[int],
    index_strides: Sequence[Strides],
    indexed: Sequence[tuple[int, int]],
    out_slot: int,
    first_code: int = 1,
    plan: PlanSlots | None = None,
) -> list[native.Stage]:
    """The stages of `gather_program` at the given slots.

    The units are the elements of the output in row-major order. A bad index of array k gives the
    error code `first_code` + k.
    """
    item = kernel.dtype.itemsize
    plain = _plain_gather(iteration_shape, x_strides, index_strides)
    if plain is not None:
        slot = index_slots[0] if plan is None else plan[0]
        slots = (slot, x_slot, out_slot)
        return [_row_stage(kernel, *plain, indexed[0], slots, first_code, plan is not None)]
    strides = [
        _scaled(dense_strides(iteration_shape), item),
        _scaled(x_strides, item),
        *(_scaled(s, d.itemsize) for s, d in zip(index_strides, kernel.indices, strict=True)),
    ]
    nest = coalesce(iteration_shape, strides)
    streams = Streams(2 + len(kernel.indices))
    slots = (out_slot, x_slot, *index_slots)
    head = streams.header(nest.rank(), slots, [0] * streams.count)
    words = [first_code, *(w for size, stride in indexed for w in (size, stride * item))]
    by_rows = all(nest.inner(s) == 0 for s in range(2, streams.count))
    code = index_code.gather(kernel, step_of(nest.inner(1), item), by_rows)
    params = tuple(head + words + nest.records())
    return [native.Stage(code, nest.size, grain_of(nest.size), params)]


def _plain_gather(
    shape: Sequence[int], x_strides: Strides, index_strides: Sequence[Strides]
) -> tuple[int, int] | None:
    """How many rows there are and their width, where one array numbers whole rows in order."""
    if len(index_strides) != 1:
        return None
    nest = coalesce(shape, [dense_strides(shape), x_strides, index_strides[0]])
    if nest.strides[1:] == ((0,), (1,)):
        return nest.shape[0], 1
    if nest.strides[1:] == ((0, 1), (1, 0)):
        count, width = nest.shape
        return count, width
    return None


def _row_stage(
    kernel: Gather,
    count: int,
    width: int,
    indexed: tuple[int, int],
    slots: tuple[int, int, int],
    first_code: int,
    planned: bool,
) -> native.Stage:
    """The stage that moves whole rows; `slots` are those of indices, x and output."""
    item, (size, step) = kernel.dtype.itemsize, indexed
    nbytes = width * item
    short = nbytes if nbytes <= gather_code.MOST_WORD else 0
    far = not short and size * step * item > FAR_BYTES
    index = narrow_dtype(size) if planned else kernel.indices[0]
    code = gather_code.gather_rows(index, short, far, not planned)
    grain = grain_of(count, width) if count * width > INLINE else max(1, count)
    params = (*slots, count, size, width, nbytes, step * item, first_code)
    return native.Stage(code, count, grain, params)


def gather_wants_plan(
    kernel: Gather,
    shape: Sequence[int],
    x_strides: Strides,
    index_strides: Sequence[Strides],
    size: int,
) -> Wanted | None:
    """The plan that is of use to read from `size` rows, if there is one."""
    plain = _plain_gather(shape, x_strides, index_strides)
    if plain is None or plain[1] * kernel.dtype.itemsize > gather_code.MOST_WORD:
        return None
    return narrow_plan(kernel.indices[0], plain[0], size)


def _scaled(strides: Strides, itemsize: int) -> tuple[int, ...]:
    return tuple(s * itemsize for s in strides)


def scatter_program(
    kernel: Scatter,
    x_shape: Sequence[int],
    x_strides: Strides,
    iteration_shape: Sequence[int],
    out_strides: Strides,
    index_strides: Sequence[Strides],
    update_strides: Strides,
    indexed: Sequence[tuple[int, int]],
    arrays: int = 0,
) -> Callable[..., Any]:
    """A callable `(x, *indices, updates) -> out`: a dense copy of x with the updates folded in.

    Strides are in elements; those of out, indices and updates are over the iteration space, and
    `indexed` gives size and stride of each indexed axis of the dense output. float16 and bfloat16
    are folded in float32 and rounded once. The position in an error is the row-major one in the
    iteration space. In place of the indices may come the arrays of their plan.
    """
    inputs = 2 + (arrays or len(kernel.indices))
    area = native.Scratch(1 + inputs)
    stages = scatter_stages(
        kernel,
        (x_shape, 1, x_strides),
        (iteration_shape, inputs, update_strides),
        (0, out_strides),
        range(2, 2 + len(kernel.indices)),
        index_strides,
        indexed,
        area,
        plan=range(2, inputs) if arrays else None,
    )
    size = math.prod(x_shape)
    heavy = size + math.prod(iteration_shape) > INLINE
    return native.program(inputs, size * kernel.dtype.itemsize, area.sizes, stages, heavy)


def scatter_stages(
    kernel: Scatter,
    x: tuple[Sequence[int], int, Strides],
    updates: tuple[Sequence[int], int, Strides],
    out: tuple[int, Strides],
    index_slots: Sequence[int],
    index_strides: Sequence[Strides],
    indexed: Sequence[tuple[int, int]],
    area: Callable[[int], int],
    first_code: int = 1,
    plan: PlanSlots | None = None,
) -> list[native.Stage]:
    """The stages of `scatter_program`; `area` gives scratch memory a slot.

    `x` and `updates` are shape, slot and strides, `out` is slot and strides over the iteration
    space. No copy is made where x is at the slot of the output. A bad index of array k gives the
    error code `first_code` + k.
    """
    if scatter_kernels.is_folded(kernel):
        return scatter_kernels.sum_stages(
            kernel, x, updates, out, index_slots, index_strides, indexed, area, first_code, plan
        )
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
    words = [first_code, *(w for n, s in indexed for w in (n, s * wide.itemsize))]
    span = sum((n - 1) * s * wide.itemsize for n, s in indexed) + 1
    stages.append(_fold_stage(kernel, nest, (slot, update_slot, *index_slots), span, words))
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
    params = (index_slot, update_slot, out_slot, count, x_shape[0], width, first_code)
    return [*stages, native.Stage(code, 1, 1, params)]


def _fold_stage(
    kernel: Scatter, nest: Nest, slots: Sequence[int], span: int, indexed: Sequence[int]
) -> native.Stage:
    """The stage that folds updates in; units run over an axis, or over owners of destinations."""
    count = len(kernel.indices)
    wide = index_code.accumulator(kernel.dtype)
    by_rows = all(nest.inner(2 + k) == 0 for k in range(count))
    axis, units, grain = _share(nest, by_rows)
    head = Streams(2 + count).header(nest.rank(), slots, [0] * (2 + count))
    words = [axis, units if axis < 0 else 0, span, *indexed]
    steps = (
        step_of(nest.inner(0), wide.itemsize),
        step_of(nest.inner(1), kernel.dtype.itemsize),
    )
    code = index_code.scatter(kernel, steps, by_rows)
    return native.Stage(code, units, grain, tuple(head + words + nest.records()))


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
