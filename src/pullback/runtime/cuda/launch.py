"""Which functions of a printed kernel to launch for given shapes, and with which arguments.

An argument is the name of a buffer ("out0", "in1", "scratch0"), an int (an int64), or the bytes of
a struct that is passed by value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.forms import Accumulate, Map, MultiMap, Reduce
from pullback.compile.kernel.order import BLOCK, LANES, SMALL
from pullback.compile.program.nest import Nest, coalesce
from pullback.core.avals import dense_strides
from pullback.core.errors import ShapeError
from pullback.runtime.cuda.folds import (
    MAX_GROUP,
    MAX_TALL,
    MERGE,
    THREADS,
    WIDTH,
    accumulator_bytes,
    has_columns,
)
from pullback.runtime.cuda.kernels import MAX_RANK, name_of, outputs_of, vector_width

__all__ = [
    "THREADS",
    "Launch",
    "Launches",
    "grid_of",
    "map_plan",
    "packed",
    "reduce_plan",
    "scan_plan",
]

MAX_GRID = 132 * 16  # thread blocks of a kernel that strides over its elements
ENOUGH_GRID = 1024  # thread blocks that fill a device
Strides = Sequence[int]


class Launch(NamedTuple):
    """One kernel launch: a function, thread blocks, threads of each, arguments."""

    function: str
    grid: int
    block: int
    arguments: tuple[str | int | bytes, ...]


class Launches(NamedTuple):
    """Launches in order, and the bytes of the scratch buffers that they need."""

    launches: list[Launch]
    scratch: tuple[int, ...] = ()


def packed(nest: Nest, streams: int | None = None) -> bytes:
    """The struct `Nest` of the kernels, of all streams or the first ones."""
    rank = len(nest.shape)
    if rank > MAX_RANK:
        raise ShapeError(f"cuda: at most {MAX_RANK} axes that can't be merged, got {rank}.")
    fill = [0] * (MAX_RANK - rank)
    words = [nest.size, rank, *nest.shape, *fill]
    for own in nest.strides[:streams]:
        words += [*own, *fill]
    return struct.pack(f"<{len(words)}q", *words)


def grid_of(threads: int) -> int:
    """The thread blocks of a kernel that strides over so many elements."""
    return max(1, min(MAX_GRID, math.ceil(threads / THREADS)))


def map_plan(
    kernel: Map | MultiMap,
    shape: Sequence[int],
    input_strides: Sequence[Strides],
    output_strides: Sequence[Strides] | None = None,
    aligned: bool = True,
) -> Launches:
    """How to apply a kernel over `shape`; strides are in elements, outputs dense unless given.

    `aligned`: whether every buffer starts at a multiple of 16 bytes.
    """
    size = math.prod(shape)
    if size == 0:
        return Launches([])
    outs = [f"out{k}" for k in range(len(outputs_of(kernel)))]
    buffers = (*outs, *(f"in{k}" for k in range(len(kernel.inputs))))
    name, dense = name_of(kernel), dense_strides(shape)
    strides = [*(output_strides or [dense] * len(outs)), *input_strides]
    # the index counts row-major, so it moves along with dense arrays
    nest = coalesce(shape, [*strides, dense])
    if aligned and all(own in ((), (1,)) for own in nest.strides):
        grid = grid_of(math.ceil(size / vector_width(kernel)))
        return Launches([Launch(f"{name}_dense", grid, THREADS, (*buffers, size))])
    own = packed(Nest(nest.shape, nest.strides[:-1]))
    return Launches([Launch(f"{name}_strided", grid_of(size), THREADS, (*buffers, own))])


def reduce_plan(
    kernel: Reduce,
    kept_shape: Sequence[int],
    reduced_shape: Sequence[int],
    input_strides: Sequence[Strides],
) -> Launches:
    """How to reduce to a dense array; strides go over the kept axes, then over the reduced ones."""
    count = len(kept_shape)
    outputs = math.prod(kept_shape)
    if outputs == 0:
        return Launches([])
    # the output is dense: its axes merge only where it allows that
    kept = coalesce(kept_shape, [dense_strides(kept_shape), *(s[:count] for s in input_strides)])
    kept = Nest(kept.shape, kept.strides[1:])
    dense = dense_strides(reduced_shape)
    reduced = coalesce(reduced_shape, [dense, *(s[count:] for s in input_strides)])
    reduced = Nest(reduced.shape, reduced.strides[1:])
    ins = tuple(f"in{k}" for k in range(len(kernel.inputs)))
    name = name_of(kernel)
    nests = (packed(kept), packed(reduced))
    if reduced.size < SMALL:
        launch = Launch(f"{name}_sequence", grid_of(outputs), THREADS, ("out0", *ins, *nests))
        return Launches([launch])
    tall = has_columns(kernel) and _side_by_side(kept, reduced)
    outlook = math.ceil(outputs / WIDTH) if tall else outputs
    least, most = (1, MAX_TALL) if tall else (THREADS // LANES, MAX_GROUP)
    per_group, groups = _groups(outlook, reduced.size, least, most)
    units = outputs * groups
    grid = math.ceil(units / max(1, THREADS // LANES // per_group))
    grid = outlook * groups if tall else grid
    arguments = ("out0", "scratch0" if groups > 1 else 0, *ins, *nests, groups, per_group)
    walk = "columns" if tall else "rows"
    launches = [Launch(f"{name}_{walk}", grid, THREADS, arguments)]
    scratch = [units] if groups > 1 else []
    while groups > 1:
        last, groups, part = groups, math.ceil(groups / MERGE), f"scratch{len(scratch) - 1}"
        scratch.append(outputs * groups)
        arguments = ("out0", f"scratch{len(scratch) - 1}", part, last)
        launches.append(Launch(f"{name}_merge", outputs * groups, THREADS, arguments))
    return Launches(launches, tuple(n * accumulator_bytes(kernel) for n in scratch))


def _side_by_side(kept: Nest, reduced: Nest) -> bool:
    """Whether outputs, rather than reduced elements, lie side by side in memory."""
    if not kept.shape or kept.shape[-1] < WIDTH // 2:
        return False
    return all(k[-1] in (0, 1) for k in kept.strides) and any(r[-1] > 1 for r in reduced.strides)


def _groups(tasks: int, length: int, least: int, most: int) -> tuple[int, int]:
    """Blocks of the tree per group, a power of two, and groups: the bits are the same for any.

    Groups get smaller, down to `least`, until there are enough of them for `tasks` at a time.
    """
    blocks = math.ceil(length / BLOCK)
    per_group = 1
    while per_group < min(blocks, most):
        per_group *= 2
    while per_group > least and tasks * math.ceil(blocks / per_group) < ENOUGH_GRID:
        per_group //= 2
    return per_group, math.ceil(blocks / per_group)


def scan_plan(
    kernel: Accumulate,
    kept_shape: Sequence[int],
    length: int,
    input_strides: Sequence[Strides],
    output_strides: Strides,
    reverse: bool,
) -> Launches:
    """How to fold along one axis, keeping every step; strides go over the kept axes, then it."""
    if math.prod(kept_shape) * length == 0:
        return Launches([])
    strides = [output_strides, *input_strides]
    kept = coalesce(kept_shape, [s[:-1] for s in strides])
    along = [s[-1] for s in strides]
    offsets = [(length - 1) * s if reverse else 0 for s in along]
    steps = [-s if reverse else s for s in along]
    words = [length, length - 1 if reverse else 0, -1 if reverse else 1, *offsets, *steps]
    line = struct.pack(f"<{len(words)}q", *words)
    buffers = ("out0", *(f"in{k}" for k in range(len(kernel.inputs))))
    launch = Launch(
        f"{name_of(kernel)}_scan", grid_of(kept.size), THREADS, (*buffers, packed(kept), line)
    )
    return Launches([launch])
