"""Few destinations: columns of accumulators in shared memory, and a fixed tree.

Where shared memory has no room for all rows, a thread block folds some of them, and others read the
same contributions for the rest.
"""

from __future__ import annotations

from pullback.compile.kernel.scatter_order import (
    JOIN_LANES,
    JOIN_SLICES,
    StreamShape,
    stream_threads,
    streams_of,
)
from pullback.core.errors import ShapeError
from pullback.runtime.cuda.scatter.recipes import (
    RESERVED,
    SHARED_TOTAL,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    source_of,
    sum_bytes,
)

__all__ = ["few_recipe"]

MERGED_ROWS = 32  # up to here the last thread block also folds the parts of all
MOST_THREADS = 1536  # of all thread blocks of a processor, so that they have registers enough
MERGERS = 32 * JOIN_SLICES  # threads of a block that folds parts, a warp for each slice
IN_FLIGHT = 8  # rows of several elements that a thread reads at a time


def few_recipe(case: Case) -> Recipe:
    """The launches for rows of one or several elements."""
    if stream_threads(case.value, case.fold, case.rows) == 0:
        raise ShapeError(f"scatter_{case.fold}: few rows fit in shared memory, got {case.rows}.")
    streams = streams_of(case.value, case.index_dtype, case.fold, case.n, case.rows, case.width)
    return (_narrow if case.width == 1 else _wide)(case, streams)


def _rows_of_block(case: Case, streams: StreamShape) -> int:
    """How many rows a thread block folds."""
    room = case.shared // (streams.threads * sum_bytes(case.value, case.fold))
    return ceil_div(case.rows, ceil_div(case.rows, room))


def _source(case: Case, streams: StreamShape, shared: int, vector: int, unroll: int) -> str:
    resident = min(MOST_THREADS // streams.threads, SHARED_TOTAL // (shared + RESERVED))
    definitions = (
        ("THREADS", streams.threads),
        ("RESIDENT", max(1, resident)),
        ("VECTOR", vector),
        ("UNROLL", unroll),
        ("CUT", int(_rows_of_block(case, streams) < case.rows)),
        ("JOIN_LANES", JOIN_LANES),
        ("JOIN_SLICES", JOIN_SLICES),
    )
    return source_of(("few",), case.value, case.index_dtype, case.fold, definitions)


def _narrow(case: Case, streams: StreamShape) -> Recipe:
    size, each = sum_bytes(case.value, case.fold), _rows_of_block(case, streams)
    shared, threads, blocks = streams.threads * each * size, streams.threads, streams.blocks
    source = _source(case, streams, shared, streams.run, streams.turn // (threads * streams.run))
    grid = blocks, ceil_div(case.rows, each)
    merging = int(case.rows <= MERGED_ROWS)
    arguments = ("index", "value", "out", "parts", "slot", case.n, case.rows, each)
    arguments = (*arguments, "aligned", merging)
    steps = [ScatterStep(source, "few_narrow", grid, threads, shared, arguments)]
    if not merging:
        grid, merge = (ceil_div(case.rows, MERGERS // 32), 1), ("parts", "out", case.rows, blocks)
        steps.append(ScatterStep(source, "few_merge", grid, MERGERS, 0, merge))
    return Recipe(tuple(steps), (("parts", blocks * case.rows * size),))


def _wide(case: Case, streams: StreamShape) -> Recipe:
    size, each = sum_bytes(case.value, case.fold), _rows_of_block(case, streams)
    shared, threads, blocks = streams.threads * each * size, streams.threads, streams.blocks
    source = _source(case, streams, shared, 1, IN_FLIGHT)
    destinations = case.rows * case.width
    grid = blocks, ceil_div(case.width, threads) * ceil_div(case.rows, each)
    arguments = ("index", "value", "parts", "slot", case.n, case.rows, each, case.width)
    merge = ("parts", "out", destinations, blocks)
    merged = ceil_div(destinations, 32), 1
    return Recipe(
        (
            ScatterStep(source, "few_wide", grid, threads, shared, arguments),
            ScatterStep(source, "few_merge_wide", merged, MERGERS, MERGERS * size, merge),
        ),
        (("parts", blocks * destinations * size),),
    )
