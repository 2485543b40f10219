"""Gather kernels as stages."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.forms import Gather
from pullback.compile.program.nest import coalesce, step_of
from pullback.compile.program.target import IndexArrays
from pullback.core.avals import dense_strides
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing import gather_code, index_code
from pullback.runtime.cpu.indexing.checked import narrow_dtype
from pullback.runtime.cpu.loops.map_stages import INLINE, grain_of
from pullback.runtime.cpu.loops.nest import axis_words

__all__ = ["gather_stages", "plain_gather"]
__tuning__ = ("FAR_BYTES",)

FAR_BYTES = 1 << 18  # of an array: reads at random from a smaller one find it in the L2 cache

Strides = Sequence[int]


def gather_stages(
    kernel: Gather,
    iteration_shape: Sequence[int],
    x_slot: int,
    x_strides: Strides,
    indices: IndexArrays,
    out_slot: int,
    plan: Sequence[int] | None = None,
) -> list[native.Stage]:
    """See `Target.gather`; the units are the elements of the output in row-major order."""
    index_slots, index_strides, indexed, first_code = indices
    item = kernel.dtype.itemsize
    plain = plain_gather(iteration_shape, x_strides, index_strides)
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
    record, slots = index_code.gather_params(len(kernel.indices)), (out_slot, x_slot, *index_slots)
    head = record.head(nest, slots, **index_code.indexed(indexed, item, first_code))
    by_rows = all(nest.inner(s) == 0 for s in range(2, record.arrays))
    code = index_code.gather(kernel, step_of(nest.inner(1), item), by_rows)
    params = (*head, *axis_words(nest))
    return [native.Stage(code, nest.size, grain_of(nest.size), params)]


def plain_gather(
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
    index_slot, x_slot, out_slot = slots
    params = gather_code.GATHERED.packed(
        index=index_slot, x=x_slot, out=out_slot, count=count, rows=size, width=width,
        row_bytes=nbytes, step=step * item, code=first_code,
    )  # fmt: skip
    return native.Stage(code, count, grain, params)


def _scaled(strides: Strides, itemsize: int) -> tuple[int, ...]:
    return tuple(s * itemsize for s in strides)
