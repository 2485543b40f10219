"""Exact sums of narrow rows: contributions go into buckets of destinations, tile after tile."""

from __future__ import annotations

from typing import NamedTuple

from pullback.compile.fixed_point import limb_bits
from pullback.runtime.cuda.scatter.recipes import (
    PROCESSORS,
    Case,
    Recipe,
    Step,
    ceil_div,
    source_of,
)

__all__ = [
    "EXACT",
    "MAX_BUCKET_ROWS",
    "bucket_buffers",
    "bucket_plan_recipe",
    "bucket_recipe",
    "buckets_fit",
]

EXACT = ("float16", "bfloat16", "float32")
MAX_BUCKET_ROWS = 1 << 24
TILE = 8192  # elements of a tile
THREADS = {1: 256, 2: 512}  # of a thread block that splits, by width
SPLITTERS = 2  # such blocks of a processor
PLACERS = {1: 3, 2: 2}  # and that go by a plan, by width
ADDERS, SHARERS = 1024, 512


class Deal(NamedTuple):
    """How rows are dealt out: rows of a bucket, buckets, and the quotient as product and shift.

    A tile has `pitch` places, more than elements, since buckets begin at multiples of four.
    """

    cells: int
    buckets: int
    reciprocal: int
    shift: int
    tiles: int
    pitch: int

    @property
    def arguments(self) -> tuple[int, ...]:
        return self.pitch, self.cells, self.reciprocal, self.shift, self.buckets

    @property
    def shares(self) -> int:
        """More than there are shares of buckets."""
        return self.buckets + PROCESSORS

    def table_bytes(self, width: int) -> int:
        """Two limbs of all cells of a bucket, and of one more."""
        return 16 * (self.cells + 1) * width


def _batch_bytes() -> int:
    """What an adding block has in shared memory besides its table."""
    return 4 * (2 * 2 * ADDERS + 1 + 32)


def _deal(case: Case) -> Deal:
    most = (case.shared - _batch_bytes()) // (16 * case.width) - 1
    rounds = ceil_div(ceil_div(case.rows, most), PROCESSORS)
    cells = max(2, ceil_div(case.rows, PROCESSORS * rounds))
    digits = (cells - 1).bit_length()
    # exact for rows up to 2**24, since the reciprocal is too large by less than cells / 2**digits
    reciprocal = ceil_div(1 << (31 + digits), cells)
    buckets = ceil_div(case.rows, cells)
    pitch = 16 * ceil_div(TILE + 4 * (buckets + 2), 16)
    return Deal(cells, buckets, reciprocal, digits - 1, ceil_div(case.n, TILE), pitch)


def _split_source(case: Case) -> str:
    definitions = (
        ("WIDTH", case.width),
        ("THREADS", THREADS[case.width]),
        ("ITEMS", TILE // THREADS[case.width]),
        ("SPLITTERS", SPLITTERS),
        ("PLACERS", PLACERS[case.width]),
    )
    return source_of(
        ("exact", "buckets", "bucket_split"), case.value, case.index_dtype, "add", definitions
    )


def bucket_buffers(case: Case) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    deal = _deal(case)
    return {
        "places": 2 * deal.tiles * TILE,
        "cells": 2 * deal.tiles * deal.pitch,
        "starts": 2 * deal.tiles * (deal.buckets + 1),
        "shares": 16 * (deal.shares + 1),
    }


def _sorting_bytes(case: Case, deal: Deal) -> int:
    """Shared memory for the cells of a tile, and for counts of buckets."""
    return 2 * deal.pitch + 4 * (deal.buckets + 1 + THREADS[case.width] // 32)


def _split_bytes(case: Case, deal: Deal) -> int:
    """Shared memory of a block that splits."""
    return deal.pitch * case.width * case.value_bytes + _sorting_bytes(case, deal)


def buckets_fit(case: Case) -> bool:
    """Whether there is enough shared memory, and 16 bits for the places of a tile."""
    deal = _deal(case)
    return _split_bytes(case, deal) <= case.shared and deal.pitch < 1 << 16


def bucket_plan_recipe(case: Case) -> Recipe:
    """The launches that make a plan."""
    deal = _deal(case)
    arguments = ("index", "places", "cells", "starts", "slot", case.n, case.rows, "aligned")
    grid = (min(PROCESSORS * SPLITTERS, deal.tiles), 1)
    arguments = (*arguments, *deal.arguments)
    source, shared = _split_source(case), _sorting_bytes(case, deal)
    first = Step(source, "bucket_plan", grid, THREADS[case.width], shared, arguments)
    return Recipe((first, _share(case, deal, calls=False)), (("quads", 4 * deal.buckets),))


def bucket_recipe(case: Case, planned: bool) -> Recipe:
    """The launches of a scatter."""
    deal, item = _deal(case), case.width * case.value_bytes
    destinations, limbs = case.rows * case.width, ceil_div(128 + 149, limb_bits(case.n + 1))
    scratch = {
        "items": deal.tiles * deal.pitch * item,
        "deep": 8 * max(0, limbs - 2) * destinations,
        "flags": 4 * destinations,
        "arrived": 4 * deal.buckets,
        # of buckets with several shares, each of which is more than three quarters of a processor's
        "tables": 2 * PROCESSORS * deal.table_bytes(case.width),
    }
    source, add = _split_source(case), _add(case, deal)
    if planned:
        arguments = ("places", "value", "out", "items", "starts", "slot", "shares", "arrived")
        arguments = (*arguments, "deep", "flags", case.n, case.rows, "aligned", deal.pitch)
        arguments = (*arguments, deal.cells, deal.buckets, deal.shares, limbs)
        grid = (min(PROCESSORS * PLACERS[case.width], deal.tiles), 1)
        shared = deal.pitch * item
        place = Step(source, "bucket_place", grid, THREADS[case.width], shared, arguments)
        return Recipe((place, add), tuple(scratch.items()))
    kept = bucket_buffers(case)
    scratch |= {name: kept[name] for name in ("cells", "starts", "shares")}
    scratch["quads"] = 4 * deal.buckets
    arguments = ("index", "value", "out", "items", "cells", "starts", "slot", case.n, case.rows)
    arguments = (*arguments, "aligned", *deal.arguments)
    grid = (min(PROCESSORS * SPLITTERS, deal.tiles), 1)
    shared = _split_bytes(case, deal)
    split = Step(source, "bucket_split", grid, THREADS[case.width], shared, arguments)
    return Recipe((split, _share(case, deal, calls=True), add), tuple(scratch.items()))


def _add_source(case: Case) -> str:
    definitions = (("WIDTH", case.width), ("ADDERS", ADDERS), ("SHARERS", SHARERS))
    parts = ("exact", "buckets", "bucket_add")
    return source_of(parts, case.value, case.index_dtype, "add", definitions)


def _share(case: Case, deal: Deal, calls: bool) -> Step:
    """The launch that shares out buckets: before every call, or once for a plan."""
    common = ("arrived", "deep", "flags") if calls else (0, 0, 0)
    # half as much again as a processor would do of all: there are few more shares than buckets
    limit = ceil_div(3 * case.n, 8 * PROCESSORS) + 1
    arguments = ("starts", "quads", "shares", *common, "slot", deal.tiles, case.rows * case.width)
    arguments = (*arguments, deal.cells, deal.shares, limit, limb_bits(case.n + 1), int(calls))
    grid, shared = (deal.buckets, 1), 4 * (SHARERS // 32 + 1)
    return Step(_add_source(case), "bucket_share", grid, SHARERS, shared, arguments)


def _add(case: Case, deal: Deal) -> Step:
    arguments = ("items", "cells", "starts", "shares", "arrived", "tables", "out", "deep", "flags")
    arguments = (*arguments, "slot", deal.tiles, deal.pitch, case.rows * case.width, deal.cells)
    arguments = (*arguments, deal.shares, limb_bits(case.n + 1))
    shared = deal.table_bytes(case.width) + _batch_bytes()
    return Step(_add_source(case), "bucket_add", (deal.shares, 1), ADDERS, shared, arguments)
