"""Contributions in a stable order of their rows: the sort, and folds of sorted contributions."""

from __future__ import annotations

from typing import NamedTuple

from pullback.compile.kernel.scatter_order import (
    PIECE_BYTES,
    piece_of,
    piece_shape,
    slices_of,
)
from pullback.runtime.cuda.scatter.recipes import (
    PROCESSORS,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    reciprocal_of,
    source_of,
    sum_bytes,
)

__all__ = ["MAX_ORDERED", "order_buffers", "order_recipe", "segment_recipe"]

MAX_ORDERED = (1 << 31) - 1  # contributions and rows are counted in 32 bits
LONG = 8  # a whole thread block joins a run of more pieces
THREADS_OF_FOLD = 256  # of a thread block that folds pieces
RESIDENT, UNROLL = 4, 3  # thread blocks of a processor that fold, and rows in flight
# The sort:
THREADS = 1024  # of a thread block that sorts, the most that CUDA allows
MIN_BITS, MAX_BITS = 3, 10  # of a digit
ITEMS, ROUNDS = 8, 16  # of a thread, at most, in a tile and in a range of keys
FEW_TILES, SMALL_RANGE = 64, 256


def order_buffers(n: int) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    return {"order": 4 * n, "keys": 4 * n}


class Sort(NamedTuple):
    """What the kernel of the sort is compiled for, and its grid; no ranges if they do not fit."""

    items: int  # of a thread in a tile
    bits: int  # of a digit, at most
    rounds: int  # items of a thread in a range
    blocks: int
    ranges: int

    @property
    def shared_bytes(self) -> int:
        """The size of the struct Shared of the kernel."""
        warps, digits, places = THREADS // 32, 1 << self.bits, THREADS * self.rounds
        table = max(2 * warps * digits, 4 * THREADS * self.items, 4 * (places // 16 + THREADS))
        return table + max(12 * digits, 8 * places) + 8 * warps + 4 * (digits + warps)

    @property
    def definitions(self) -> tuple[tuple[str, int], ...]:
        names = "THREADS", "ITEMS", "DIGITS", "ROUNDS", "SHARED"
        values = THREADS, self.items, 1 << self.bits, self.rounds, self.shared_bytes
        return tuple(zip(names, values, strict=True))

    def tiles(self, n: int) -> int:
        return ceil_div(n, THREADS * self.items)


def _keys_of_range(rows: int, ranges: int) -> int:
    return max(2, ceil_div(rows + 1, ranges))


def _sort(n: int, rows: int, shared: int) -> Sort:
    # a table of 16 bits for a digit of each warp takes at most half of the shared memory
    bits = next(b for b in (MAX_BITS, 9) if 1 << b <= min(THREADS, shared // (THREADS // 8)))
    one_pass = rows.bit_length() <= bits
    # by digits, every block reads the counts of all: few blocks, until tiles would get too large
    tiles = FEW_TILES if one_pass else PROCESSORS
    items = next(i for i in (1, 2, 4, ITEMS) if n <= tiles * THREADS * i or i == ITEMS)
    sort = Sort(items, bits, ROUNDS, min(ceil_div(n, THREADS * items), PROCESSORS), 0)
    while sort.shared_bytes > shared:
        sort = sort._replace(rounds=sort.rounds - 1)
    blocks = min(ceil_div(n, SMALL_RANGE), PROCESSORS)
    # keys that are spread evenly fill at most three quarters of what a range can have
    ranges = blocks * ceil_div(4 * n, blocks * 3 * THREADS * sort.rounds)
    fits = ranges < 1 << bits and _keys_of_range(rows, ranges) <= 1 << 16
    if one_pass or not fits or sort.tiles(n) > THREADS:
        return sort
    return sort._replace(blocks=blocks, ranges=ranges)


def order_recipe(index: str, n: int, rows: int, shared: int) -> Recipe:
    """The launch that sorts indices, with `rows` standing for every one that is out of range."""
    sort, all_bits = _sort(n, rows, shared), rows.bit_length()
    passes = ceil_div(all_bits, sort.bits)
    bits = max(MIN_BITS, ceil_div(all_bits, passes))
    digits = bits, max(MIN_BITS, all_bits - (passes - 1) * bits), passes
    ranges, counts = (0,) * 6, 4 * (sort.blocks << bits)
    if sort.ranges:
        width = _keys_of_range(rows, sort.ranges)
        key_bits = (width - 1).bit_length()
        digit_bits = ceil_div(key_bits, ceil_div(key_bits, sort.bits))
        ranges = sort.ranges, width, *reciprocal_of(width), key_bits, digit_bits
        counts = max(counts, 2 * (sort.ranges + 1) * sort.tiles(n))
    source = source_of(("ranks", "ranges", "sort"), "int32", index, "add", sort.definitions)
    names = ("index", "keys", "order", "other_keys", "other_order", "counts", "slot")
    arguments = (*names, n, rows, *digits, *ranges)
    grid, size = (sort.blocks, 1), sort.shared_bytes
    step = ScatterStep(source, "sort_indices", grid, THREADS, size, arguments, together=True)
    scratch = {"other_keys": 4 * n, "other_order": 4 * n, "counts": counts}
    return Recipe((step,), tuple(scratch.items()))


def segment_recipe(case: Case, planned: bool) -> Recipe:
    """The launches that fold contributions by an order, which they make first without a plan."""
    shape = piece_shape(case.width, case.value_bytes)
    slices = slices_of(case.width, case.value_bytes)
    # what is not aligned is read by elements, in the same order
    vector, columns = shape if case.vectors else piece_shape(case.width, PIECE_BYTES)
    chunks = ceil_div(case.width, columns * vector)
    span = piece_of(case.n, case.width, case.value_bytes)
    definitions = (
        ("VECTOR", vector),
        ("COLUMNS", columns),
        ("UNROLL", UNROLL),
        ("RESIDENT", RESIDENT),
        ("SPAN", span),
        ("LONG", min(LONG, slices)),  # runs of more pieces are joined in slices
        ("SLICES", slices),
    )
    source = source_of(("segments",), case.value, case.index_dtype, case.fold, definitions)
    pieces = ceil_div(case.n, span)
    size = sum_bytes(case.value, case.fold)
    arguments = ("value", "out", "parts", "cuts", "order", "keys")
    arguments = (*arguments, case.n, case.rows, pieces, case.width)
    grid = (ceil_div(pieces * columns, THREADS_OF_FOLD), chunks)
    steps = [ScatterStep(source, "segments", grid, THREADS_OF_FOLD, 0, arguments)]
    if pieces > 1:
        # few thread blocks, unless most of them would have nothing to look at
        each = min(256, max(256 // columns, ceil_div(pieces * chunks, 2 * PROCESSORS)))
        arguments = ("out", "parts", "cuts", each, case.rows, pieces, case.width)
        grid, shared = (
            (ceil_div(pieces - 1, each), chunks),
            slices * columns * vector * size + 256 * 4 + 4 * 8,
        )
        steps.append(ScatterStep(source, "join_parts", grid, 256, shared, arguments))
    scratch = {"parts": 2 * pieces * case.width * size, "cuts": 4 * pieces}
    if planned:
        return Recipe(tuple(steps), tuple(scratch.items()))
    first = order_recipe(case.index_dtype, case.n, case.rows, case.shared)
    scratch |= order_buffers(case.n) | dict(first.scratch)
    return Recipe((*first.steps, *steps), tuple(scratch.items()))
