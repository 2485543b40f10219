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
from pullback.runtime.cuda.fold_walks import JOINED, MERGE, MERGE_THREADS, column_threads, teams
from pullback.runtime.cuda.fold_walks import THREADS as FOLD_THREADS
from pullback.runtime.cuda.folds import accumulator_bytes, lane_width
from pullback.runtime.cuda.kernels import MAX_RANK, name_of, outputs_of, vector_width

__all__ = [
    "THREADS",
    "Launch",
    "Launches",
    "grid_of",
    "map_plan",
    "merged",
    "packed",
    "reduce_plan",
    "scan_plan",
]

THREADS = 256  # of a thread block: eight of these fill a processor's 2048
MAX_GRID = 132 * 16  # thread blocks of a kernel that strides over its elements
LEAST_COLUMNS = 8  # outputs side by side: 32 bytes, which are read from memory at once
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
    aligned: bool = True,
) -> Launches:
    """How to reduce to a dense array; strides go over the kept axes, then over the reduced ones.

    `aligned`: whether every buffer starts at a multiple of 16 bytes.
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
    ins = tuple(f"in{k}" for k in range(len(kernel.inputs)))
    name = name_of(kernel)
    if reduced.size < SMALL:
        arguments = ("out0", *ins, packed(kept), packed(reduced))
        return Launches([Launch(f"{name}_sequence", grid_of(outputs), THREADS, arguments)])
    if _side_by_side(kept, reduced):
        return _columns_plan(kernel, kept, reduced, aligned)
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
    arguments = ("out0", partials, *ins, packed(kept), along, groups, per_group)
    launch = Launch(f"{name}_{walk}", grid, FOLD_THREADS, arguments)
    return merged(kernel, [launch], outputs, groups)


def _columns_plan(kernel: Reduce, kept: Nest, reduced: Nest, aligned: bool) -> Launches:
    """How to reduce where outputs lie side by side."""
    lanes = lane_width(kernel)
    while kept.shape[-1] % lanes:
        lanes //= 2
    steps = [own[0] for own in reduced.strides]
    apart = [(*own[:-1], step) for own, step in zip(kept.strides, steps, strict=True)]
    kinds = _kinds([own[-1] for own in kept.strides], apart, lanes, aligned)
    blocks, outputs = math.ceil(reduced.size / BLOCK), kept.size
    wide = column_threads(lanes, outputs)
    across = math.ceil(outputs / (wide * lanes))
    joined = blocks <= JOINED
    by_output, by_block = (1, outputs) if joined else (blocks, 1)
    ins = tuple(f"in{k}" for k in range(len(kernel.inputs)))
    arguments = (
        "out0", "scratch0" if blocks > 1 else 0, *ins, packed(kept),
        struct.pack(f"<{len(steps)}q", *steps), reduced.size, across, by_output, by_block,
    )  # fmt: skip
    walk = f"{name_of(kernel)}_columns_{kinds}{lanes}"
    launches = [Launch(walk, across * blocks, LANES * wide, arguments)]
    if blocks == 1 or not joined:
        return merged(kernel, launches, outputs, blocks)
    arguments = ("out0", "scratch0", outputs, blocks)
    launches.append(Launch(f"{name_of(kernel)}_join", grid_of(outputs), THREADS, arguments))
    return Launches(launches, (outputs * blocks * accumulator_bytes(kernel),))


def merged(kernel: Reduce, launches: list[Launch], outputs: int, groups: int) -> Launches:
    """The launches, and those that join `groups` accumulators of each output."""
    scratch = [outputs * groups] if groups > 1 else []
    while groups > 1:
        last, groups, part = groups, math.ceil(groups / MERGE), f"scratch{len(scratch) - 1}"
        following = f"scratch{len(scratch)}" if groups > 1 else 0
        if groups > 1:
            scratch.append(outputs * groups)
        arguments = ("out0", following, part, last)
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


def _kinds(along: Sequence[int], apart: Sequence[Strides], lanes: int, aligned: bool) -> str:
    """How each input is read; it has a stride along neighbours, and others that lead to them."""
    found = ""
    for step, others in zip(along, apart, strict=True):
        together = aligned and not any(s % lanes for s in others)
        found += "z" if not step else "u" if together else "s"
    return found


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
