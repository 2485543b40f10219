"""Reduce and Accumulate kernels as programs: how to walk the array, and how to share the work.

Whatever is chosen here, the bits are the same: see `fold` for the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.kernel import Accumulate, Reduce
from pullback.runtime.cpu import accumulate_code, native, reduce_code, reduce_columns
from pullback.runtime.cpu.fold import BLOCK, SMALL, Fold
from pullback.runtime.cpu.map_kernels import GRAIN, INLINE, dense_strides
from pullback.runtime.cpu.nest import Nest, Streams, coalesce, step_of

__all__ = ["accumulate_program", "reduce_program"]

GROUP = 64 * BLOCK  # elements of a group, a power of two of blocks
ENOUGH_TASKS = 16
FEW_COLUMNS = 16

Strides = Sequence[int]


def reduce_program(
    kernel: Reduce,
    kept_shape: Sequence[int],
    reduced_shape: Sequence[int],
    input_strides: Sequence[Strides],
) -> Callable[..., Any]:
    """A callable that reduces its buffers to a dense array of shape `kept_shape`.

    `input_strides` are in elements: over the kept axes first, then over the reduced ones.
    """
    count = len(kept_shape)
    in_bytes = [
        tuple(s * d.itemsize for s in own)
        for d, own in zip(kernel.inputs, input_strides, strict=True)
    ]
    out = tuple(s * kernel.output.itemsize for s in dense_strides(kept_shape))
    kept = coalesce(kept_shape, [out, *(s[:count] for s in in_bytes)])
    reduced = coalesce(reduced_shape, [s[count:] for s in in_bytes])
    scratch: list[int] = []
    if reduced.size < SMALL:
        stages = [_sequence(kernel, kept, reduced)]
    else:
        plan = _columns if _prefers_columns(kernel, kept, reduced) else _rows
        stages = [plan(kernel, kept, reduced)]
        groups = stages[0].params[Streams(1 + len(kernel.inputs)).words + 1]
        if groups > 1:
            scratch = [kept.size * groups * d.itemsize for d in Fold(kernel).dtypes]
            params = (groups, 1 + len(kernel.inputs))
            grain = max(1, GRAIN // groups)
            stages.append(native.Stage(reduce_code.merge(kernel), kept.size, grain, params))
    nbytes = kept.size * kernel.output.itemsize
    heavy = kept.size * reduced.size > INLINE
    return native.program(len(kernel.inputs), nbytes, scratch, stages, heavy)


def _head(kernel: Reduce, rank: int) -> list[int]:
    count = 1 + len(kernel.inputs)
    return Streams(count).header(rank, range(count), [0] * count)


def _grain(units: int, work: int) -> int:
    """Units per task, where a unit folds `work` elements."""
    return max(1, units) if units * work <= INLINE else max(1, GRAIN // max(1, work))


def _inner_steps(kernel: Reduce, nest: Nest, first: int) -> tuple[str, ...]:
    return tuple(step_of(nest.inner(first + k), d.itemsize) for k, d in enumerate(kernel.inputs))


def _sequence(kernel: Reduce, kept: Nest, reduced: Nest) -> native.Stage:
    offsets = _offsets(reduced)
    head = _head(kernel, kept.rank())
    after = len(head) + 2 + len(offsets)
    params = tuple([*head, reduced.size, after, *offsets, *kept.records()])
    code = reduce_code.sequence(kernel, ("unit", *_inner_steps(kernel, kept, 1)))
    return native.Stage(code, kept.size, _grain(kept.size, max(1, reduced.size)), params)


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


def _grouped_words(
    kernel: Reduce, reduced: Nest, tasks: int, before: int, columns: int, tiles: int
) -> list[int]:
    """The words that follow the head; see `reduce_code.Grouped`."""
    length = reduced.size
    split = tasks < ENOUGH_TASKS and length > GROUP
    groups = math.ceil(length / GROUP) if split else 1
    per_group = GROUP if split else length
    slot = 1 + len(kernel.inputs)
    return [length, groups, per_group, before, reduced.rank(1), slot, columns, tiles]


def _rows(kernel: Reduce, kept: Nest, reduced: Nest) -> native.Stage:
    head, records = _head(kernel, kept.rank()), kept.records()
    before = len(head) + reduce_code.Grouped.WORDS + len(records)
    words = _grouped_words(kernel, reduced, kept.size, before, 0, 0)
    steps = _inner_steps(kernel, reduced, 0)
    if len(reduced.shape) > 1:
        steps = tuple("any" if any(own) else "zero" for own in reduced.strides)
    params = tuple(head + words + records + reduced.records(1))
    units = kept.size * words[1]
    return native.Stage(reduce_code.rows(kernel, steps), units, _grain(units, words[2]), params)


def _columns(kernel: Reduce, kept: Nest, reduced: Nest) -> native.Stage:
    head, records = _head(kernel, kept.rank()), kept.records()
    before = len(head) + reduce_code.Grouped.WORDS + len(records)
    width, columns = reduce_columns.tile_width(kernel), kept.shape[-1]
    tiles = math.ceil(columns / width)
    tasks = kept.size // columns * tiles if columns else 0
    words = _grouped_words(kernel, reduced, tasks, before, columns, tiles)
    params = tuple(head + words + records + reduced.records(1))
    units = tasks * words[1]
    grain = _grain(units, words[2] * min(width, columns))
    code = reduce_columns.columns(kernel, _inner_steps(kernel, kept, 1))
    return native.Stage(code, units, grain, params)


def accumulate_program(
    kernel: Accumulate,
    kept_shape: Sequence[int],
    length: int,
    input_strides: Sequence[Strides],
    out_strides: Strides,
    reverse: bool,
) -> Callable[..., Any]:
    """A callable that folds along one axis and keeps every step; `reverse` starts at the end.

    Strides are in elements: over the kept axes, then along the folded one. `index()` is the
    position in the array, also where the fold runs backwards.
    """
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
    first = length - 1 if reverse else 0
    words = [length, first, -1 if reverse else 1, *along]
    head = Streams(len(dtypes)).header(kept.rank(), range(len(dtypes)), bases)
    size = kept.size * length
    stages = [stage(kernel, kept, steps, head, words)]
    return native.program(
        len(kernel.inputs), size * kernel.output.itemsize, (), stages, size > INLINE
    )


def _accumulate_rows(
    kernel: Accumulate, kept: Nest, steps: tuple[str, ...], head: list[int], words: list[int]
) -> native.Stage:
    params = tuple(head + words + [0, 0] + kept.records())
    units = kept.size if words[0] else 0
    return native.Stage(accumulate_code.rows(kernel), units, _grain(units, words[0]), params)


def _accumulate_columns(
    kernel: Accumulate, kept: Nest, steps: tuple[str, ...], head: list[int], words: list[int]
) -> native.Stage:
    columns = kept.shape[-1]
    # Long rows at a time please the memory; a narrow tile leaves work for more threads.
    width = accumulate_code.TILE if columns >= 4 * accumulate_code.TILE else 64
    tiles = math.ceil(columns / width)
    params = tuple(head + words + [tiles, width] + kept.records())
    units = kept.size // columns * tiles if words[0] and columns else 0
    grain = _grain(units, words[0] * min(width, columns))
    return native.Stage(accumulate_code.columns(kernel, steps), units, grain, params)
