"""Few destinations: columns of accumulators in shared memory, and a fixed tree."""

from __future__ import annotations

from pullback.compile.kernel.order import STREAM_UPDATES, STREAMS
from pullback.core.errors import ShapeError
from pullback.runtime.cuda.scatter.recipes import (
    PLAIN_SHARED,
    RESERVED,
    SHARED_TOTAL,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    source_of,
    sum_bytes,
)

__all__ = ["few_pays", "few_recipe"]

MERGED_ROWS = 32  # up to here the last thread block also folds the parts of all
SMALL_ROWS = 64  # up to here a processor has threads enough to read wide rows
SMALL_CALL = 1 << 21  # elements for which one launch more counts


def few_threads(case: Case) -> int:
    """The threads of a block whose columns fit in shared memory; 0 if there are too many rows."""
    column = case.rows * sum_bytes(case.value, case.fold)
    if 256 * column <= PLAIN_SHARED:
        return 256
    return next((t for t in (128, 64) if t * column <= case.shared), 0)


def few_pays(case: Case, exact: bool) -> bool:
    """Whether there are few rows, and nothing else is faster; `exact` if buckets are an option."""
    threads, small = few_threads(case), case.rows <= SMALL_ROWS
    if threads == 0 or case.width == 1:
        return threads > 0
    # from how many elements of a row on a sort is faster, and whatever else there is
    worth_a_sort = 16 if small else 8 if threads > 64 else 3
    worth_others = 2 if exact and not small else worth_a_sort
    if case.width < worth_others:
        return True
    return case.n * case.width <= SMALL_CALL and (small or case.width < worth_a_sort)


def few_recipe(case: Case) -> Recipe:
    """The launches for rows of one or several elements."""
    threads = few_threads(case)
    if threads == 0:
        raise ShapeError(f"scatter_{case.fold}: few rows fit in shared memory, got {case.rows}.")
    shared = threads * case.rows * sum_bytes(case.value, case.fold)
    resident = max(1, min(1536 // threads, SHARED_TOTAL // (shared + RESERVED)))
    return (_narrow if case.width == 1 else _wide)(case, threads, shared, resident)


def _narrow(case: Case, threads: int, shared: int, resident: int) -> Recipe:
    vector = min(4, 16 // max(case.index_bytes, case.value_bytes))
    unroll = max(1, (4 if threads == 256 else 16) // vector)
    definitions = (
        ("THREADS", threads),
        ("RESIDENT", resident),
        ("VECTOR", vector),
        ("UNROLL", unroll),
    )
    source = source_of(("few",), case.value, case.index_dtype, case.fold, definitions)
    # the parts of thread blocks that get little cost more than they help
    most = STREAMS * min(resident, max(1, case.n // (STREAMS * threads * STREAM_UPDATES)))
    blocks = max(1, min(most, ceil_div(case.n, threads * vector * unroll)))
    parts = (("parts", blocks * case.rows * sum_bytes(case.value, case.fold)),)
    merging = int(case.rows <= MERGED_ROWS)
    arguments = ("index", "value", "out", "parts", "slot", case.n, case.rows, "aligned", merging)
    steps = [ScatterStep(source, "few_narrow", (blocks, 1), threads, shared, arguments)]
    if not merging:
        grid = (ceil_div(case.rows, 8), 1)
        steps.append(
            ScatterStep(source, "few_merge", grid, 256, 0, ("parts", "out", case.rows, blocks))
        )
    return Recipe(tuple(steps), parts)


def _wide(case: Case, threads: int, shared: int, resident: int) -> Recipe:
    unroll = 8
    definitions = (
        ("THREADS", threads),
        ("RESIDENT", resident),
        ("VECTOR", 1),
        ("UNROLL", unroll),
    )
    source = source_of(("few",), case.value, case.index_dtype, case.fold, definitions)
    streams, chunks = max(1, threads // case.width), ceil_div(case.width, threads)
    blocks = min(STREAMS * resident // chunks, ceil_div(case.n, streams * unroll))
    # parts are to be little beside the contributions
    blocks = max(1, min(blocks, case.n // (4 * case.rows)))
    size = sum_bytes(case.value, case.fold)
    destinations = case.rows * case.width
    arguments = ("index", "value", "parts", "slot", case.n, case.rows, case.width)
    merge = ("parts", "out", destinations, blocks)
    return Recipe(
        (
            ScatterStep(source, "few_wide", (blocks, chunks), threads, shared, arguments),
            ScatterStep(
                source, "few_merge_wide", (ceil_div(destinations, 32), 1), 256, 256 * size, merge
            ),
        ),
        (("parts", blocks * destinations * size),),
    )
