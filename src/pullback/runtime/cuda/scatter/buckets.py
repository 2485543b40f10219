"""Exact sums of narrow rows: contributions go into buckets of destinations, tile after tile."""

from __future__ import annotations

from typing import NamedTuple

from pullback.runtime.cuda.scatter.recipes import (
    EXPONENTS,
    PROCESSORS,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    reciprocal_of,
    source_of,
)

__all__ = ["bucket_recipe", "buckets_fit"]

MAX_PITCH = 3  # places of a tile, by its elements
TILE = {1: 8192, 2: 8192, 4: 4096}  # elements of a tile, by the places of an item
THREADS = {1: 256, 2: 512, 4: 512}  # of a thread block that splits
SPLITTERS = 2  # such blocks of a processor: as many as its shared memory holds
ADDERS, SHARERS = 1024, 512
LOOKS = 2  # tiles that a thread looks at at a time
BUCKET, RESTS = 64, 64  # the struct Bucket of the kernels, and values that can wait in a warp
WORDS, BITS = 4, 31  # of a sum in shared memory, and between the units of two words


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
        """The words of all cells of a bucket, and of one more."""
        return 4 * WORDS * (self.cells + 1) * width


def _side_bytes() -> int:
    """What an adding block has in shared memory besides its table."""
    rests, runs = 8 * RESTS * ADDERS // 32, 4 * (2 * LOOKS * ADDERS + 1)
    return BUCKET + rests + 8 * 32 + runs


def _deal(case: Case) -> Deal:
    most = (case.shared - _side_bytes()) // (4 * WORDS * case.width) - 1
    rounds = ceil_div(ceil_div(case.rows, most), PROCESSORS)
    cells = max(2, ceil_div(case.rows, PROCESSORS * rounds))
    buckets = ceil_div(case.rows, cells)
    tile = TILE[case.places]
    pitch = 16 * ceil_div(tile + 4 * (buckets + 2), 16)
    return Deal(cells, buckets, *reciprocal_of(cells), ceil_div(case.n, tile), pitch)


def _split_source(case: Case) -> str:
    threads = THREADS[case.places]
    definitions = (
        ("WIDTH", case.width),
        ("PLACES", case.places),
        ("THREADS", threads),
        ("ITEMS", TILE[case.places] // threads),
        ("SPLITTERS", SPLITTERS),
    )
    return source_of(
        ("exact", "narrow", "bucket_split"), case.value, case.index_dtype, "add", definitions
    )


def _split_bytes(case: Case, deal: Deal) -> int:
    """Shared memory of a block that splits: contributions, their cells, and counts of buckets."""
    warps = THREADS[case.places] // 32
    return deal.pitch * (case.item_bytes + 2) + 4 * (deal.buckets + 1 + warps)


def buckets_fit(case: Case) -> bool:
    """Whether there are few enough buckets for a tile, shared memory, and bits for carries."""
    deal = _deal(case)
    few = deal.pitch <= MAX_PITCH * TILE[case.places] and case.n < 1 << BITS
    return few and _split_bytes(case, deal) <= case.shared


def bucket_recipe(case: Case) -> Recipe:
    """The launches of a scatter."""
    deal = _deal(case)
    destinations, (top, low) = case.rows * case.width, EXPONENTS
    limbs = ceil_div(top - low, BITS) - (WORDS - 1)  # that are not in shared memory
    scratch = {
        "items": deal.tiles * deal.pitch * case.item_bytes,
        "cells": 2 * deal.tiles * deal.pitch,
        "starts": 2 * deal.tiles * (deal.buckets + 1),
        "quads": 4 * deal.buckets,
        "shares": 16 * (deal.shares + 1),
        "deep": 8 * limbs * destinations,
        "flags": 4 * destinations,
        "arrived": 4 * deal.buckets,
        # of buckets with several shares, each of which is more than three quarters of a processor's
        "tables": 2 * PROCESSORS * deal.table_bytes(case.width),
    }
    arguments = ("index", "value", "items", "cells", "starts", "slot", case.n, case.rows)
    arguments = (*arguments, "aligned", *deal.arguments)
    grid = (min(PROCESSORS * SPLITTERS, deal.tiles), 1)
    shared = _split_bytes(case, deal)
    threads = THREADS[case.places]
    split = ScatterStep(_split_source(case), "bucket_split", grid, threads, shared, arguments)
    return Recipe((split, _share(case, deal), _add(case, deal)), tuple(scratch.items()))


def _add_source(case: Case) -> str:
    definitions = (
        ("WIDTH", case.width),
        ("PLACES", case.places),
        ("ADDERS", ADDERS),
        ("LOOKS", LOOKS),
        ("RESTS", RESTS),
        ("SHARERS", SHARERS),
        ("WORDS", WORDS),
        ("BITS", BITS),
    )
    parts = ("exact", "narrow", "bucket_add")
    return source_of(parts, case.value, case.index_dtype, "add", definitions)


def _share(case: Case, deal: Deal) -> ScatterStep:
    """The launch that shares out buckets."""
    # half as much again as a processor would do of all: there are few more shares than buckets
    limit = ceil_div(3 * case.n, 8 * PROCESSORS) + 1
    arguments = ("starts", "quads", "shares", "arrived", "deep", "flags", "slot", deal.tiles)
    arguments = (*arguments, case.rows * case.width, deal.cells, deal.shares, limit)
    grid, shared = (deal.buckets, 1), 4 * (SHARERS // 32 + 1)
    return ScatterStep(_add_source(case), "bucket_share", grid, SHARERS, shared, arguments)


def _add(case: Case, deal: Deal) -> ScatterStep:
    arguments = ("items", "cells", "starts", "shares", "arrived", "tables", "out", "deep", "flags")
    arguments = (*arguments, "slot", deal.tiles, deal.pitch, case.rows * case.width, deal.cells)
    arguments = (*arguments, deal.shares)
    shared = deal.table_bytes(case.width) + _side_bytes()
    return ScatterStep(_add_source(case), "bucket_add", (deal.shares, 1), ADDERS, shared, arguments)
