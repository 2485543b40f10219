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

__all__ = ["MAX_ORDERED", "order_buffers", "order_recipe", "segment_recipe"]

MAX_ORDERED = (1 << 31) - 1  # contributions and rows are counted in 32 bits
SPAN = 128  # sorted places after which a run of equal indices is cut
LONG = 8  # a whole thread block joins a run of more spans
MAX_BITS = 9  # of a digit
RESIDENT = 5  # thread blocks of a processor that fold
THREADS = 512


def _tasks(n: int, rows: int) -> int:
    return min(n, rows + 1 + ceil_div(n, SPAN))


def order_buffers(n: int, rows: int) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    return {
        "order": 4 * n,
        "task_start": 4 * (_tasks(n, rows) + 1),
        "task_row": 4 * _tasks(n, rows),
        "task_count": 4,
        "edge_first": 4 * ceil_div(n, SPAN),
        "edge_last": 4 * ceil_div(n, SPAN),
    }


def order_recipe(index: str, n: int, rows: int) -> Recipe:
    """The launch that sorts indices, with `rows` standing for every one that is out of range."""
    # small tiles as long as there are no more of them than thread blocks
    items = 2 if n <= 2 * PROCESSORS * THREADS * 2 else 8
    definitions = (("THREADS", THREADS), ("ITEMS", items), ("SPAN", SPAN))
    source = source_of(("sort",), "int32", index, "add", definitions)
    tiles = ceil_div(n, THREADS * items)
    passes = ceil_div(rows.bit_length(), MAX_BITS)
    bits = ceil_div(rows.bit_length(), passes)
    names = ("index", "keys", "order", "other_keys", "other_order", "counts", "totals")
    names = (*names, "task_start", "task_row", "task_count", "edge_first", "edge_last", "slot")
    step = Step(
        source,
        "sort_indices",
        (min(tiles, 2 * PROCESSORS), 1),
        THREADS,
        8 * THREADS * items + 2 * THREADS // 32 * 512 + 4 * (2 * 512 + THREADS // 32),
        (*names, n, rows, bits, passes),
        together=True,
    )
    scratch = {name: 4 * n for name in ("keys", "other_keys", "other_order")}
    scratch |= {"counts": 4 * max(tiles << bits, 2 * PROCESSORS), "totals": 4 << bits}
    return Recipe((step,), tuple(scratch.items()))


def segment_recipe(case: Case) -> Recipe:
    """The launches that fold contributions by an order."""
    wide = 16 // case.value_bytes
    vector = next(v for v in (wide, wide // 2, wide // 4, 1) if v and case.width % v == 0)
    vector = vector if case.vectors else 1
    columns = 1
    while columns < 32 and columns * vector < case.width:
        columns *= 2
    lanes = _lanes(case, columns * vector)
    definitions = (
        ("VECTOR", vector),
        ("COLUMNS", columns),
        ("LANES", lanes),
        ("UNROLL", 4),
        ("RESIDENT", RESIDENT),
        ("SPAN", SPAN),
        ("LONG", LONG),
    )
    source = source_of(("segments",), case.value, case.index_dtype, case.fold, definitions)
    spans, chunks = ceil_div(case.n, SPAN), ceil_div(case.width, columns * vector)
    names = ("order", "task_start", "task_row", "task_count", "edge_first", "edge_last")
    tail = (*names, case.n, case.rows, spans, case.width)
    size = sum_bytes(case.value, case.fold)
    groups = ceil_div(_tasks(case.n, case.rows) * columns * lanes, 256)
    # blocks for all tasks that there could be would mostly find nothing to do
    groups = min(groups, max(1, ceil_div(PROCESSORS * RESIDENT * 4, chunks)))
    steps = [Step(source, "segments", (groups, chunks), 256, 0, ("value", "out", "parts", *tail))]
    if spans > 1:
        short = ceil_div((spans - 1) * columns, 256)
        grid = (short + (ceil_div(spans - 1, LONG) if spans > LONG + 1 else 0), chunks)
        arguments = ("out", "parts", short, *tail)
        steps.append(Step(source, "join_parts", grid, 256, 256 * size, arguments))
    return Recipe(tuple(steps), (("parts", 2 * spans * case.width * size),))


def _lanes(case: Case, across: int) -> int:
    """Lanes along a task: by the contributions of a row on average, never by what they hold."""
    if case.fold == "set" or across >= 16:
        return 1
    average = min(SPAN, case.n // case.rows)
    lanes = 1
    while lanes < 32 // (2 * across) and lanes * 4 < average:
        lanes *= 2
    return lanes
