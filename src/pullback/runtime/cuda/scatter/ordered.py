"""Contributions in a stable order of their rows: the sort, and folds of sorted contributions."""

from __future__ import annotations

from pullback.runtime.cuda.scatter.recipes import (
    PROCESSORS,
    Case,
    Recipe,
    Step,
    ceil_div,
    source_of,
    sum_bytes,
)

__all__ = [
    "MAX_ORDERED",
    "order_buffers",
    "order_recipe",
    "segment_recipe",
    "sort_definitions",
]

MAX_ORDERED = (1 << 31) - 1  # contributions and rows are counted in 32 bits
SPAN = 64  # sorted places of a piece, about
LONG = 8  # a whole thread block joins a run of more pieces
MIN_BITS, MAX_BITS = 3, 9  # of a digit in the sort
DIGITS = 1 << MAX_BITS
RESIDENT, UNROLL = 3, 5  # thread blocks of a processor that fold, and rows in flight
THREADS, FEW_TILES = 1024, 64  # of the sort


def order_buffers(n: int) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    return {"order": 4 * n, "keys": 4 * n}


def sort_definitions(n: int) -> tuple[tuple[str, int], ...]:
    """What the kernels of the sort are compiled for."""
    # every thread block reads the counts of all: few blocks, until tiles would get too large
    items = next(i for i in (1, 2, 4, 8) if n <= FEW_TILES * THREADS * i or i == 8)
    return ("THREADS", THREADS), ("ITEMS", items)


def order_recipe(index: str, n: int, rows: int) -> Recipe:
    """The launch that sorts indices, with `rows` standing for every one that is out of range."""
    definitions = sort_definitions(n)
    items = dict(definitions)["ITEMS"]
    source = source_of(("sort",), "int32", index, "add", definitions)
    blocks = min(ceil_div(n, THREADS * items), PROCESSORS)
    passes = ceil_div(rows.bit_length(), MAX_BITS)
    bits = max(MIN_BITS, ceil_div(rows.bit_length(), passes))
    last_bits = max(MIN_BITS, rows.bit_length() - (passes - 1) * bits)
    names = ("index", "keys", "order", "other_keys", "other_order", "counts", "slot")
    step = Step(
        source,
        "sort_indices",
        (blocks, 1),
        THREADS,
        max(4 * THREADS * items, THREADS // 32 * 2 * DIGITS) + 4 * (4 * DIGITS + THREADS // 32),
        (*names, n, rows, bits, last_bits, passes),
        together=True,
    )
    scratch = {"other_keys": 4 * n, "other_order": 4 * n, "counts": 4 * (blocks << bits)}
    return Recipe((step,), tuple(scratch.items()))


def segment_recipe(case: Case, planned: bool) -> Recipe:
    """The launches that fold contributions by an order, which they make first without a plan."""
    wide = 16 // case.value_bytes
    vector = next(v for v in (wide, wide // 2, wide // 4, 1) if v and case.width % v == 0)
    vector = vector if case.vectors else 1
    columns = 1
    while columns < 32 and columns * vector < case.width:
        columns *= 2
    definitions = (
        ("VECTOR", vector),
        ("COLUMNS", columns),
        ("UNROLL", UNROLL),
        ("RESIDENT", RESIDENT),
        ("SPAN", SPAN),
        ("LONG", LONG),
    )
    source = source_of(("segments",), case.value, case.index_dtype, case.fold, definitions)
    pieces, chunks = ceil_div(case.n, SPAN), ceil_div(case.width, columns * vector)
    size = sum_bytes(case.value, case.fold)
    arguments = ("value", "out", "parts", "cuts", "order", "keys")
    arguments = (*arguments, case.n, case.rows, pieces, case.width)
    grid = (ceil_div(pieces * columns, 256), chunks)
    steps = [Step(source, "segments", grid, 256, 0, arguments)]
    if pieces > 1:
        short = ceil_div((pieces - 1) * columns, 256)
        grid = (short + (ceil_div(pieces - 1, LONG) if pieces > LONG + 1 else 0), chunks)
        arguments = ("out", "parts", "cuts", short, case.rows, pieces, case.width)
        steps.append(Step(source, "join_parts", grid, 256, 256 * vector * size, arguments))
    scratch = {"parts": 2 * pieces * case.width * size, "cuts": 4 * pieces}
    if planned:
        return Recipe(tuple(steps), tuple(scratch.items()))
    first = order_recipe(case.index_dtype, case.n, case.rows)
    scratch |= order_buffers(case.n) | dict(first.scratch)
    return Recipe((*first.steps, *steps), tuple(scratch.items()))
