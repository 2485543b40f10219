"""Rows by index."""

from __future__ import annotations

from pullback.runtime.cuda.scatter.recipes import (
    PROCESSORS,
    Recipe,
    ScatterStep,
    ceil_div,
    source_of,
)

__all__ = ["gather_recipe"]

_UNITS = {
    16: "Pack<unsigned, 4>",
    8: "unsigned long long",
    4: "unsigned",
    2: "unsigned short",
    1: "unsigned char",
}
THREADS = 256  # of a thread block: eight of these fill a processor's 2048


def gather_recipe(row_bytes: int, index: str, n: int, rows: int, alignment: int) -> Recipe:
    """The launch; `alignment` divides the addresses of x and of the result."""
    unit = next(u for u in _UNITS if row_bytes % u == 0 and u <= alignment)
    units = row_bytes // unit
    columns = 1
    while columns < 32 and columns < units:
        columns *= 2
    unroll = 4
    definitions = (("UNIT", _UNITS[unit]), ("COLUMNS", columns), ("UNROLL", unroll))
    source = source_of(("gather",), "int32", index, "add", definitions)
    grid = min(PROCESSORS * 32, ceil_div(n * columns, THREADS * unroll))
    arguments = ("value", "index", "out", "slot", n, rows, units)
    return Recipe((ScatterStep(source, "gather_rows", (grid, 1), THREADS, 0, arguments),))
