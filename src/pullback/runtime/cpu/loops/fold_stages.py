"""Reduce and Accumulate kernels as stages: how to walk the array, and how to share the work.

Whatever is chosen here, the bits are the same: see `tree_code` for the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import SupportsIndex

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.order import BLOCK, SMALL
from pullback.compile.program.nest import Nest, coalesce, step_of
from pullback.core.avals import dense_strides
from pullback.runtime.cpu import native
from pullback.runtime.cpu.loops import (
    accumulate_code,
    block_code,
    reduce_code,
    reduce_columns,
    reduce_strips,
    tiny_code,
)
from pullback.runtime.cpu.loops.map_stages import GRAIN, INLINE, weight
from pullback.runtime.cpu.loops.nest import axis_words, rank_of

__all__ = ["accumulate_stages", "reduce_stages"]
__tuning__ = ("ENOUGH_TASKS", "FEW_COLUMNS", "LEAST_TILE", "CACHED")

GROUP = 64 * BLOCK  # elements of a group, a power of two of blocks
ENOUGH_TASKS = 16  # so that a few threads share the work evenly
FEW_COLUMNS = 16  # outputs side by side, below which vectors would be half empty
LEAST_TILE = 128  # columns: narrower tiles read rows in pieces too short to prefetch
CACHED = 1 << 18  # bytes that fit in a second-level cache

Strides = Sequence[int]
Area = Callable[[int], int]
Head = Callable[
    ..., tuple[SupportsIndex, ...]
]  # the params before the axes, given the last of them


def reduce_stages(
    kernel: Reduce,
    kept_shape: Sequence[int],
    reduced_shape: Sequence[int],
    in_slots: Sequence[int],
    input_strides: Sequence[Strides],
    out_slot: int,
    area: Area,
    by_rows: bool = False,
    piece: int = 0,
    shared: bool = False,
) -> list[native.Stage]:
    """Stages that reduce to the dense array at `out_slot`; `area` gives scratch memory a slot.

    For `stages.rows_stage`: with `by_rows` it is one stage whose units are, as many for each, those
    of the positions along the first kept axis. With `piece` a unit is so many elements (a power of
    two of blocks) of an array that is reduced as a whole, and the second stage joins the pieces.
    The code of a small array is made for its shape and strides, unless it is to be `shared`.
    """
    count = len(kept_shape)
    in_bytes = [
        tuple(s * d.itemsize for s in own)
        for d, own in zip(kernel.inputs, input_strides, strict=True)
    ]
    out = tuple(s * kernel.output.itemsize for s in dense_strides(kept_shape))
    kept = coalesce(kept_shape, [out, *(s[:count] for s in in_bytes)])
    reduced = coalesce(reduced_shape, [s[count:] for s in in_bytes])
    slots = (out_slot, *in_slots)
    if reduced.size < SMALL:
        fixed = not (by_rows or shared) and tiny_code.reduce_suits(kernel, kept.size, reduced.size)
        if fixed:
            whole = (kept_shape, reduced_shape, slots, input_strides)
            return [tiny_code.reduce_stage(kernel, *whole)]
        return [_sequence(kernel, kept, reduced, slots)]
    if piece:
        return _rows(kernel, kept, reduced, slots, piece, area, shared)
    across = not by_rows and _prefers_columns(kernel, kept, reduced)
    nbytes = kept.size * reduced.size * max(d.itemsize for d in kernel.inputs)
    if across and nbytes <= CACHED and len(reduced.shape) == 1:
        return [_strips(kernel, kept, reduced, slots)]
    if across:
        return _columns(kernel, kept, reduced, slots, area)
    split = kept.size < ENOUGH_TASKS and reduced.size > GROUP and not by_rows
    return _rows(kernel, kept, reduced, slots, GROUP if split else reduced.size, area, shared)


def _grain(kernel: Reduce, units: int, elements: int) -> int:
    """Units per task, where a unit folds so many elements."""
    work = max(1, elements) * weight((*kernel.element, *kernel.combine))
    return max(1, units) if units * work <= INLINE else max(1, GRAIN // work)


def _inner_steps(kernel: Reduce, nest: Nest, first: int) -> tuple[str, ...]:
    return tuple(step_of(nest.inner(first + k), d.itemsize) for k, d in enumerate(kernel.inputs))


def _sequence(kernel: Reduce, kept: Nest, reduced: Nest, slots: Sequence[int]) -> native.Stage:
    offsets = _offsets(reduced)
    record = reduce_code.sequence_params(len(kernel.inputs))
    head = record.head(kept, slots, length=reduced.size, axes_at=len(record) + len(offsets))
    params = (*head, *offsets, *axis_words(kept))
    code = reduce_code.sequence(kernel, ("unit", *_inner_steps(kernel, kept, 1)))
    return native.Stage(code, kept.size, _grain(kernel, kept.size, max(1, reduced.size)), params)


def _offsets(nest: Nest) -> list[int]:
    """The byte offsets of all positions, stream after stream for each."""
    found: list[tuple[int, ...]] = [(0,) * len(nest.strides)] if nest.size else []
    for d, n in enumerate(nest.shape):
        found = [
            tuple(o + i * s[d] for o, s in zip(at, nest.strides, strict=True))
            for at in found
            for i in range(n)
        ]
    return [o for at in found for o in at]


def _prefers_columns(kernel: Reduce, kept: Nest, reduced: Nest) -> bool:
    """Whether outputs, rather than reduced elements, lie side by side in memory."""
    across = _inner_steps(kernel, kept, 1)
    if not kept.shape or kept.shape[-1] < FEW_COLUMNS or "any" in across or "unit" not in across:
        return False
    along = _inner_steps(kernel, reduced, 0)
    return len(reduced.shape) > 1 or "any" in along


def _partials(kernel: Reduce, kept: Nest, groups: int, area: Area) -> tuple[int, int]:
    """Slot of the scratch area for the results of groups, and bytes from array to array in it."""
    if groups == 1:
        return 0, 0
    widest = max(e.dtype.itemsize for e in kernel.init)
    pitch = -(-kept.size * groups * widest // 64) * 64
    return area(pitch * len(kernel.init)), pitch


def _grouped(
    kernel: Reduce,
    kept: Nest,
    reduced: Nest,
    slots: Sequence[int],
    group: int,
    partials: tuple[int, int],
    columns: int = 0,
    tiles: int = 0,
    tile: int = 0,
) -> tuple[SupportsIndex, ...]:
    """The params of a reduction by groups."""
    record, axes = reduce_code.grouped_params(len(kernel.inputs)), axis_words(kept)
    slot, pitch = partials
    head = record.head(
        kept, slots, length=reduced.size, groups=math.ceil(reduced.size / group), per_group=group,
        reduced_at=len(record) + len(axes), reduced_rank=rank_of(reduced, 1), partials=slot,
        pitch=pitch, columns=columns, tiles=tiles, tile=tile,
    )  # fmt: skip
    return (*head, *axes, *axis_words(reduced, 1))


def _rows(
    kernel: Reduce,
    kept: Nest,
    reduced: Nest,
    slots: Sequence[int],
    group: int,
    area: Area,
    shared: bool,
) -> list[native.Stage]:
    groups = math.ceil(reduced.size / group)
    partials = _partials(kernel, kept, groups, area)
    steps = _inner_steps(kernel, reduced, 0)
    block = None
    if len(reduced.shape) > 1:
        steps = tuple("any" if any(own) else "zero" for own in reduced.strides)
        inner = 0 if shared else block_code.short_axes(reduced, kept.size)
        if inner:
            own = tuple(s[-inner:] for s in reduced.strides)
            block = reduce_code.ShortAxes(reduced.shape[-inner:], own, inner == len(reduced.shape))
    params = _grouped(kernel, kept, reduced, slots, group, partials)
    units = kept.size * groups
    stage = native.Stage(
        reduce_code.rows(kernel, steps, block), units, _grain(kernel, units, group), params
    )
    return [stage, *_merge(kernel, kept, slots[0], groups, partials)]


def _columns(
    kernel: Reduce, kept: Nest, reduced: Nest, slots: Sequence[int], area: Area
) -> list[native.Stage]:
    columns = kept.shape[-1]
    group, tile = _parts(kernel, kept.size // columns, columns, reduced.size)
    groups = math.ceil(reduced.size / group)
    partials = _partials(kernel, kept, groups, area)
    tiles = math.ceil(columns / tile)
    params = _grouped(kernel, kept, reduced, slots, group, partials, columns, tiles, tile)
    units = kept.size // columns * tiles * groups
    grain = _grain(kernel, units, group * min(tile, columns))
    code = reduce_columns.columns(kernel, _inner_steps(kernel, kept, 1))
    stage = native.Stage(code, units, grain, params)
    return [stage, *_merge(kernel, kept, slots[0], groups, partials)]


def _parts(kernel: Reduce, outer: int, columns: int, length: int) -> tuple[int, int]:
    """Elements of a group and columns of a tile, so that there is work for several threads.

    Groups are a power of two of blocks; tiles are not too narrow, because rows are read in pieces.
    """
    group, tile = BLOCK, reduce_columns.tile_width(kernel)
    while group < length and outer * math.ceil(columns / tile) * (length // group) > ENOUGH_TASKS:
        group *= 2
    while tile > LEAST_TILE and outer * math.ceil(columns / tile) * length < ENOUGH_TASKS * group:
        tile //= 2
    return min(group, length), tile


def _strips(kernel: Reduce, kept: Nest, reduced: Nest, slots: Sequence[int]) -> native.Stage:
    columns = kept.shape[-1]
    tiles = math.ceil(columns / reduce_strips.TILE)
    params = _grouped(kernel, kept, reduced, slots, 1, (0, 0), columns, tiles)
    units = kept.size // columns * tiles
    grain = _grain(kernel, units, reduced.size * min(reduce_strips.TILE, columns))
    code = reduce_strips.strips(kernel, _inner_steps(kernel, kept, 1))
    return native.Stage(code, units, grain, params)


def _merge(
    kernel: Reduce, kept: Nest, out_slot: int, groups: int, partials: tuple[int, int]
) -> list[native.Stage]:
    """The stage that joins the results of groups, if there are several."""
    if groups == 1:
        return []
    slot, pitch = partials
    params = reduce_code.MERGED.packed(groups=groups, partials=slot, pitch=pitch, out=out_slot)
    grain = max(1, GRAIN // groups)
    return [native.Stage(reduce_code.merge(kernel), kept.size, grain, params)]


def accumulate_stages(
    kernel: Accumulate,
    kept_shape: Sequence[int],
    length: int,
    in_slots: Sequence[int],
    input_strides: Sequence[Strides],
    out_slot: int,
    out_strides: Strides,
    reverse: bool,
) -> list[native.Stage]:
    """The stages of `accumulate_program`, which reads and writes at the given slots."""
    dtypes = (kernel.output, *kernel.inputs)
    strides = [
        tuple(s * d.itemsize for s in own)
        for d, own in zip(dtypes, (out_strides, *input_strides), strict=True)
    ]
    kept = coalesce(kept_shape, [s[:-1] for s in strides])
    along = [s[-1] for s in strides]
    bases = [0] * len(dtypes)
    if reverse:
        bases = [max(0, length - 1) * s for s in along]
        along = [-s for s in along]
    steps = tuple(step_of(kept.inner(s), d.itemsize) for s, d in enumerate(dtypes))
    side_by_side = kept.shape and kept.shape[-1] >= 8 and steps[0] == "unit"
    stage = _accumulate_columns if side_by_side else _accumulate_rows
    head = partial(
        accumulate_code.params(len(kernel.inputs)).head, kept, (out_slot, *in_slots), bases,
        length=length, first=length - 1 if reverse else 0, step=-1 if reverse else 1, along=along,
    )  # fmt: skip
    return [stage(kernel, kept, steps, length, head)]


def _accumulate_rows(
    kernel: Accumulate, kept: Nest, steps: tuple[str, ...], length: int, head: Head
) -> native.Stage:
    params = (*head(tiles=0, width=0), *axis_words(kept))
    units = kept.size if length else 0
    return native.Stage(accumulate_code.rows(kernel), units, _grain(kernel, units, length), params)


def _accumulate_columns(
    kernel: Accumulate, kept: Nest, steps: tuple[str, ...], length: int, head: Head
) -> native.Stage:
    columns = kept.shape[-1]
    # Long rows at a time please the memory; a narrow tile leaves work for more threads.
    width = accumulate_code.TILE if columns >= 4 * accumulate_code.TILE else 64
    tiles = math.ceil(columns / width)
    params = (*head(tiles=tiles, width=width), *axis_words(kept))
    units = kept.size // columns * tiles if length and columns else 0
    grain = _grain(kernel, units, length * min(width, columns))
    return native.Stage(accumulate_code.columns(kernel, steps), units, grain, params)
