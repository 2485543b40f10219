"""Few contributions to few rows, in the order of `ordered`, by one launch that sorts nothing."""

from __future__ import annotations

from pullback.compile.kernel.scatter_order import piece_of, slices_of
from pullback.runtime.cuda.scatter.recipes import Case, Recipe, ScatterStep, ceil_div, source_of

__all__ = ["each_row_fits", "each_row_recipe"]

THREADS = 128  # of a block, of which a processor holds 16
MOST_ITEMS = 32  # indices of a thread, which has a bit for each
MOST_ROWS = 2048  # thread blocks that a Hopper holds at a time, roughly
MOST_LOOKS = 1 << 20  # at indices: some 8 us on an H200, where the launches of a sort take 16
MOST_SERIAL = 64  # contributions that a thread adds up, if all go to one row: some 10 us


def each_row_fits(case: Case) -> bool:
    """Whether launches would take longer than to look at every index for each row."""
    if case.places > THREADS or case.n > THREADS * MOST_ITEMS or case.rows > MOST_ROWS:
        return False
    return case.rows * case.n <= MOST_LOOKS and case.n * case.places <= MOST_SERIAL * THREADS


def each_row_recipe(case: Case, fresh: bool) -> Recipe:
    """The launch; with `fresh` it writes every row, as if there were zeros before."""
    per_thread = 1 << (ceil_div(case.n, THREADS) - 1).bit_length()
    definitions = (
        ("THREADS", THREADS),
        ("ITEMS", per_thread),
        ("LANES", case.places),
        ("SPAN", piece_of(case.n, case.width, case.value_bytes)),
        ("SLICES", slices_of(case.width, case.value_bytes)),
    )
    source = source_of(("each_row",), case.value, case.index_dtype, case.fold, definitions)
    arguments = ("index", "value", "out", "slot", case.n, case.rows, case.width, int(fresh))
    step = ScatterStep(source, "each_row", (case.rows, 1), THREADS, 0, arguments)
    return Recipe((step,), writes_all=fresh)
