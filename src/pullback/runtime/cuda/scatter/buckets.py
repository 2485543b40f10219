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

__all__ = ["EXACT", "MAX_BUCKET_ROWS", "bucket_recipe"]

EXACT = ("float16", "bfloat16", "float32")
MAX_BUCKET_ROWS = 1 << 24
THREADS, ITEMS, ADDERS = 512, 16, 1024
TILE = THREADS * ITEMS
SPLITTERS = 2  # thread blocks of a processor
_ADD_BYTES = 4 * (4096 + 4) + 1024  # shared memory of an adding block besides its cells


class Deal(NamedTuple):
    """How rows are dealt out: rows of a bucket, buckets, and the quotient as product and shift."""

    cells: int
    buckets: int
    reciprocal: int
    shift: int


def _deal(case: Case) -> Deal:
    most = (case.shared - _ADD_BYTES) // (16 * case.width)
    rounds = ceil_div(ceil_div(case.rows, most), PROCESSORS)
    cells = max(2, ceil_div(case.rows, PROCESSORS * rounds))
    digits = (cells - 1).bit_length()
    # exact for rows below 2**24, since the reciprocal is too large by less than cells / 2**digits
    reciprocal = ceil_div(1 << (31 + digits), cells)
    return Deal(cells, ceil_div(case.rows, cells), reciprocal, digits - 1)


def _source(case: Case) -> str:
    definitions = (
        ("WIDTH", case.width),
        ("THREADS", THREADS),
        ("ITEMS", ITEMS),
        ("ADDERS", ADDERS),
    )
    return source_of(("exact", "buckets"), case.value, case.index_dtype, "add", definitions)


def bucket_recipe(case: Case) -> Recipe:
    """The launches of a scatter."""
    source, deal = _source(case), _deal(case)
    tiles, bits = ceil_div(case.n, TILE), limb_bits(case.n + 1)
    item = case.width * case.value_bytes
    destinations = case.rows * case.width
    scratch = {
        "items": tiles * TILE * item,
        "cells": 2 * tiles * TILE,
        "starts": 2 * tiles * (deal.buckets + 1),
        "deep": 8 * (ceil_div(128 + 149, bits) - 2) * destinations,
        "flags": 4 * destinations,
    }
    arguments = ("index", "value", "out", "items", "cells", "starts", "slot", case.n)
    arguments = (*arguments, case.rows, deal.cells, deal.reciprocal, deal.shift, deal.buckets)
    shared = TILE * (item + 2) + 4 * (deal.buckets + 1 + THREADS // 32)
    grid = (min(PROCESSORS * SPLITTERS, tiles), 1)
    first = Step(source, "bucket_split", grid, THREADS, shared, (*arguments, "aligned"))
    arguments = ("items", "cells", "starts", "out", "deep", "flags", "slot", case.n, case.rows)
    shared = 16 * deal.cells * case.width + _ADD_BYTES - 1024
    arguments = (*arguments, deal.cells, bits)
    second = Step(source, "bucket_add", (deal.buckets, 1), ADDERS, shared, arguments)
    return Recipe((first, second), tuple(scratch.items()))
