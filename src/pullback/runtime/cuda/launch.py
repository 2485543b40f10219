"""Which functions of a printed kernel to launch for given shapes, and with which arguments.

An argument is the name of a buffer ("out0", "in1", "scratch0"), an int (an int64), or the bytes of
a struct that is passed by value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.kernel.order import BLOCK, LANES, SMALL
from pullback.compile.program.nest import Nest, coalesce
from pullback.core.avals import dense_strides
from pullback.core.errors import ShapeError
from pullback.runtime.cuda.fold_kernels import Fold, results_of, stores_of
from pullback.runtime.cuda.fold_walks import (
    JOINED,
    LANES_SIDE,
    MERGE,
    MERGE_THREADS,
    SMALL_BLOCKS,
    SMALL_THREADS,
    column_threads,
    small_blocks,
    teams,
)
from pullback.runtime.cuda.fold_walks import THREADS as FOLD_THREADS
from pullback.runtime.cuda.folds import accumulator_bytes, lane_width
from pullback.runtime.cuda.kernels import MAX_RANK, name_of, outputs_of, vector_width
from pullback.runtime.cuda.map_walks import SIDE, flight
from pullback.runtime.cuda.map_walks import THREADS as MAP_THREADS

__all__ = [
    "LEAST_COLUMNS",
    "THREADS",
    "Launch",
    "Launches",
    "grid_of",
    "lanes_plan",
    "map_plan",
    "merged",
    "packed",
    "reduce_plan",
]

THREADS = 256  # of a thread block: eight of these fill a processor's 2048
MAX_GRID = 132 * 16  # thread blocks of a kernel that strides over its elements
MOST_TILE_BYTES = 48 << 10  # of shared memory, which every GPU gives a thread block
# Each takes the less outputs for that.
COLUMN_THREADS = 1 << 17  # that sums of columns are to have: 1000 for each of an H200's processors
# Of a sum of columns, from which on they share what counts their elements: each has four registers
# for itself, and with 24 of them a processor held one thread block.
MANY_ARRAYS = 12
LEAST_COLUMNS = 8  # outputs side by side: 32 bytes, which are read from memory at once
# Elements of a reduction from which on a thread block makes all of them before it folds them, while
# there are few such blocks: half of an H200's processors.
LEAST_SMALL, FEW_UNITS = 256, 64
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
    dense = dense_strides(shape)
    strides = [*(output_strides or [dense] * len(outs)), *input_strides]
    # the index counts row-major, so it moves along with dense arrays
    nest = coalesce(shape, [*strides, dense])
    arrays = Nest(nest.shape, nest.strides[:-1])
    if not arrays.shape:
        return _strided_plan(kernel, arrays, buffers)
    inner = [own[-1] for own in arrays.strides]
    if all(s == 1 for s in inner[: len(outs)]) and all(s in (0, 1) for s in inner):
        return _packs_plan(kernel, arrays, aligned, buffers)
    return _tiles_plan(kernel, nest, buffers) or _strided_plan(kernel, arrays, buffers)


def _strided_plan(kernel: Map | MultiMap, nest: Nest, buffers: Sequence[str]) -> Launches:
    """How to walk over any arrays."""
    function = f"{name_of(kernel)}_strided"
    return Launches([Launch(function, grid_of(nest.size), THREADS, (*buffers, packed(nest)))])


def _packs_plan(
    kernel: Map | MultiMap, nest: Nest, aligned: bool, buffers: Sequence[str]
) -> Launches:
    """How to walk over arrays whose neighbours lie together or are the same."""
    width, rows = vector_width(kernel), len(nest.shape) > 1
    while rows and nest.shape[-1] % width:
        width //= 2
    inner = [own[-1] for own in nest.strides]
    kinds = _kinds(inner, [own[:-1] for own in nest.strides], width, aligned)
    walk = f"{name_of(kernel)}_{'packs' if rows else 'dense'}_{kinds}{width}"
    grid = math.ceil(math.ceil(nest.size / width) / (MAP_THREADS * flight(kernel)))
    if not rows:
        return Launches([Launch(walk, grid, MAP_THREADS, (*buffers, nest.size))])
    strides = [(*own[:-1], own[-1] * width) for own in nest.strides]
    packs = Nest((*nest.shape[:-1], nest.shape[-1] // width), tuple(strides))
    return Launches([Launch(walk, grid, MAP_THREADS, (*buffers, packed(packs)))])


def _tiles_plan(kernel: Map | MultiMap, nest: Nest, buffers: Sequence[str]) -> Launches | None:
    """How to walk over tiles of the inner axis and the one along which inputs lie; or None.

    The last stream of the nest is the row-major index.
    """
    outs, dtypes = len(outputs_of(kernel)), kernel.inputs
    arrays = nest.strides[:-1]
    turned = [k for k, own in enumerate(arrays[outs:]) if own[-1] not in (0, 1)]
    size = sum(dtypes[k].itemsize for k in turned) * SIDE * (SIDE + 1)
    if not turned or size > MOST_TILE_BYTES or any(own[-1] != 1 for own in arrays[:outs]):
        return None
    axes = [
        d for d in range(len(nest.shape) - 1)
        if nest.shape[d] >= SIDE // 2 and all(arrays[outs + k][d] == 1 for k in turned)
    ]  # fmt: skip
    if not axes or nest.shape[-1] < SIDE // 2:
        return None
    axis, last = axes[0], len(nest.shape) - 1
    streams = [nest.strides[-1], *arrays]
    rest = [d for d in range(last) if d != axis]
    outer = Nest(
        tuple(nest.shape[d] for d in rest), tuple(tuple(s[d] for d in rest) for s in streams)
    )
    rows, columns = nest.shape[axis], nest.shape[last]
    words = [rows, columns, *(s[axis] for s in streams), *(s[last] for s in streams)]
    tile = struct.pack(f"<{len(words)}q", *words)
    kinds = "u" * outs + "".join("nt"[k in turned] for k in range(len(dtypes)))
    grid = outer.size * math.ceil(rows / SIDE) * math.ceil(columns / SIDE)
    arguments = (*buffers, packed(outer), tile)
    return Launches([Launch(f"{name_of(kernel)}_tiles_{kinds}", grid, MAP_THREADS, arguments)])


def reduce_plan(
    kernel: Fold,
    kept_shape: Sequence[int],
    reduced_shape: Sequence[int],
    input_strides: Sequence[Strides],
    aligned: bool = True,
) -> Launches:
    """How to reduce to a dense array; strides go over the kept axes, then over the reduced ones.

    `aligned`: whether every buffer starts at a multiple of 16 bytes. The strides of arrays that are
    stored beside follow those of the inputs; then at least SMALL elements are reduced, and these or
    the outputs lie together in all arrays.
    """
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
    outs, ins = outs_of(kernel), arrays_of(kernel)
    name = name_of(kernel)
    if reduced.size < SMALL:
        arguments = (*outs, *ins, packed(kept), packed(reduced))
        return Launches([Launch(f"{name}_sequence", grid_of(outputs), THREADS, arguments)])
    if _side_by_side(kept, reduced):
        return _columns_plan(kernel, kept, reduced, aligned)
    if _is_small(kernel, outputs, reduced):
        return _small_plan(kernel, kept, reduced)
    if _is_flat(reduced):
        lanes = lane_width(kernel)
        kinds = _kinds([own[0] for own in reduced.strides], kept.strides, lanes, aligned)
        walk, along = f"wide_{kinds}{lanes}", reduced.size
    else:
        lanes, walk, along = 1, "rows", packed(reduced)
    blocks = math.ceil(reduced.size / BLOCK)
    per_group = min(teams(lanes), 1 << (blocks - 1).bit_length())
    groups = math.ceil(blocks / per_group)
    grid = math.ceil(outputs * groups / (teams(lanes) // per_group))
    partials = "scratch0" if groups > 1 else 0
    arguments = (*outs, partials, *ins, packed(kept), along, groups, per_group)
    launch = Launch(f"{name}_{walk}", grid, FOLD_THREADS, arguments)
    return merged(kernel, [launch], outputs, groups)


def _is_small(kernel: Fold, outputs: int, reduced: Nest) -> bool:
    """Whether so few threads would have lanes that these mostly waited.

    Not if it took a launch more than with lanes.
    """
    if not (kernel.inputs and small_blocks(kernel) and _is_flat(reduced)) or stores_of(kernel):
        return False
    blocks = math.ceil(reduced.size / BLOCK)
    fits = blocks <= SMALL_BLOCKS or blocks > teams(lane_width(kernel))
    units = outputs * math.ceil(blocks / SMALL_BLOCKS)
    return fits and reduced.size >= LEAST_SMALL and units <= FEW_UNITS


def _small_plan(kernel: Fold, kept: Nest, reduced: Nest) -> Launches:
    """How to reduce where thread blocks are few: each makes all of its elements before they are
    folded.
    """
    kinds = _kinds([own[0] for own in reduced.strides], kept.strides, 1, False).replace("s", "u")
    blocks = math.ceil(reduced.size / BLOCK)
    per_group = min(SMALL_BLOCKS, 1 << (blocks - 1).bit_length())
    groups = math.ceil(blocks / per_group)
    partials = "scratch0" if groups > 1 else 0
    arguments = (
        *outs_of(kernel), partials, *arrays_of(kernel), packed(kept), reduced.size, groups,
        per_group,
    )  # fmt: skip
    name = f"{name_of(kernel)}_small_{kinds}"
    launch = Launch(name, kept.size * groups, SMALL_THREADS, arguments)
    return merged(kernel, [launch], kept.size, groups)


def _columns_plan(kernel: Fold, kept: Nest, reduced: Nest, aligned: bool) -> Launches:
    """How to reduce where outputs lie side by side."""
    lanes, blocks, outputs = lane_width(kernel), math.ceil(reduced.size / BLOCK), kept.size
    while kept.shape[-1] % lanes or (
        lanes > 1 and outputs // lanes * blocks * LANES < COLUMN_THREADS
    ):
        lanes //= 2
    steps = [own[0] for own in reduced.strides]
    apart = [(*own[:-1], step) for own, step in zip(kept.strides, steps, strict=True)]
    kinds = _kinds([own[-1] for own in kept.strides], apart, lanes, aligned)
    if len(kinds) >= MANY_ARRAYS:
        kinds = _shared_places(kinds, [*zip(kept.strides, steps, strict=True)])
    wide = column_threads(lanes, outputs)
    across = math.ceil(outputs / (wide * lanes))
    joined = blocks <= JOINED
    by_output, by_block = (1, outputs) if joined else (blocks, 1)
    ins = arrays_of(kernel)
    arguments = (
        *outs_of(kernel), "scratch0" if blocks > 1 else 0, *ins, packed(kept),
        struct.pack(f"<{len(steps)}q", *steps), reduced.size, across, by_output, by_block,
    )  # fmt: skip
    walk = f"{name_of(kernel)}_columns_{kinds}{lanes}"
    launches = [Launch(walk, across * blocks, LANES * wide, arguments)]
    if blocks == 1 or not joined:
        return merged(kernel, launches, outputs, blocks)
    arguments = (*outs_of(kernel), "scratch0", outputs, blocks)
    launches.append(Launch(f"{name_of(kernel)}_join", grid_of(outputs), THREADS, arguments))
    return Launches(launches, (outputs * blocks * accumulator_bytes(kernel),))


def lanes_plan(kernel: Fold, outputs: int, blocks: int) -> Launches:
    """How to join the LANES accumulators of each of so many blocks, of each output."""
    groups = math.ceil(blocks / JOINED)
    joined = groups <= JOINED
    by_output, by_group = (1, outputs) if joined else (groups, 1)
    side = min(JOINED, 1 << (blocks - 1).bit_length())
    arguments = (
        *outs_of(kernel), "scratch0" if groups > 1 else 0, "chains", outputs, blocks,
        by_output, by_group,
    )  # fmt: skip
    grid = math.ceil(outputs / LANES_SIDE) * groups
    launches = [Launch(f"{name_of(kernel)}_lanes", grid, LANES_SIDE * side, arguments)]
    if groups == 1 or not joined:
        return merged(kernel, launches, outputs, groups)
    arguments = (*outs_of(kernel), "scratch0", outputs, groups)
    launches.append(Launch(f"{name_of(kernel)}_join", grid_of(outputs), THREADS, arguments))
    return Launches(launches, (outputs * groups * accumulator_bytes(kernel),))


def outs_of(kernel: Fold) -> list[str]:
    """The names of the outputs of a reduction."""
    return [f"out{k}" for k in range(len(results_of(kernel)))]


def arrays_of(kernel: Fold) -> list[str]:
    """The names of what a reduction reads, and of what it stores beside."""
    stores = [f"store{k}" for k in range(len(stores_of(kernel)))]
    return [*(f"in{k}" for k in range(len(kernel.inputs))), *stores]


def merged(kernel: Fold, launches: list[Launch], outputs: int, groups: int) -> Launches:
    """The launches, and those that join `groups` accumulators of each output."""
    scratch = [outputs * groups] if groups > 1 else []
    while groups > 1:
        last, groups, part = groups, math.ceil(groups / MERGE), f"scratch{len(scratch) - 1}"
        following = f"scratch{len(scratch)}" if groups > 1 else 0
        if groups > 1:
            scratch.append(outputs * groups)
        arguments = (*outs_of(kernel), following, part, last)
        merge = f"{name_of(kernel)}_merge"
        launches.append(Launch(merge, outputs * groups, MERGE_THREADS, arguments))
    return Launches(launches, tuple(n * accumulator_bytes(kernel) for n in scratch))


def _side_by_side(kept: Nest, reduced: Nest) -> bool:
    """Whether outputs, rather than reduced elements, lie side by side in memory."""
    if not kept.shape or kept.shape[-1] < LEAST_COLUMNS or len(reduced.shape) != 1:
        return False
    return all(k[-1] in (0, 1) for k in kept.strides) and any(
        r[-1] not in (0, 1) for r in reduced.strides
    )


def _is_flat(reduced: Nest) -> bool:
    """Whether what is reduced lies side by side in memory, or is one element."""
    return len(reduced.shape) == 1 and all(own[0] in (0, 1) for own in reduced.strides)


def _shared_places(kinds: str, strides: Sequence[tuple[Strides, int]]) -> str:
    """The kinds, in capitals where an array goes as the first one of its kind does."""
    firsts = [strides[kinds.index(kind)] for kind in kinds]
    return "".join(
        kind.upper() if own == first and k > kinds.index(kind) else kind
        for k, (kind, own, first) in enumerate(zip(kinds, strides, firsts, strict=True))
    )


def _kinds(along: Sequence[int], apart: Sequence[Strides], lanes: int, aligned: bool) -> str:
    """How each input is read; it has a stride along neighbours, and others that lead to them."""
    found = ""
    for step, others in zip(along, apart, strict=True):
        together = aligned and not any(s % lanes for s in others)
        found += "z" if not step else "u" if together else "s"
    return found
