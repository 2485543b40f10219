"""Exact sums of narrow rows by a plan: units of neighbouring sorted places, one for a block."""

from __future__ import annotations

from typing import NamedTuple

from pullback.compile.fixed_point import limb_bits
from pullback.runtime.cuda.scatter.ordered import order_buffers, order_recipe, sort_definitions
from pullback.runtime.cuda.scatter.recipes import (
    PROCESSORS,
    Case,
    Recipe,
    Step,
    ceil_div,
    source_of,
)

__all__ = ["unit_buffers", "unit_plan_recipe", "unit_recipe", "units_pay"]

THREADS, PLACERS = 512, 2  # of the first move: threads of a block, blocks of a processor
ADDERS, RESIDENT = 768, 2  # of the second
TILE = 16_384  # elements of a tile
MAX_UNITS = 2048  # with more of them, few values of a tile go to the same
_LARGEST = {1: 31, 2: 15}  # places of a thread, by width
_LEAST = 7


class Shape(NamedTuple):
    """Places of a thread, units, tiles, values of a tile, and the most runs of equal indices."""

    chunk: int
    units: int
    tiles: int
    places: int
    runs: int


def _shape(case: Case) -> Shape:
    """Units for a whole number of rounds; odd chunks, whose threads use different banks."""
    slots = PROCESSORS * RESIDENT * ADDERS
    rounds = ceil_div(case.n, slots * _LARGEST[case.width])
    chunk = max(_LEAST, ceil_div(case.n, slots * rounds)) | 1
    places = TILE // case.width
    units, tiles = ceil_div(case.n, chunk * ADDERS), ceil_div(case.n, places)
    return Shape(chunk, units, tiles, places, min(case.n, case.rows))


def units_pay(case: Case) -> bool:
    """Whether a plan is of use: rows of two elements are added as fast without one."""
    shape = _shape(case)
    return case.width == 1 and shape.units <= MAX_UNITS and _shared(case, shape) <= case.shared


def _shared(case: Case, shape: Shape) -> int:
    """Shared memory of a block that adds: items, and the struct Board of the kernels."""
    board = ADDERS // 32 * (16 * case.width + 4) + 8
    return shape.chunk * ADDERS * case.width * case.value_bytes + board


def unit_buffers(case: Case) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    shape = _shape(case)
    return {
        "slots": 2 * shape.tiles * shape.places,
        "ranks": 2 * shape.units * shape.chunk * ADDERS,
        "starts": 2 * shape.tiles * (shape.units + 1),
        "offsets": 2 * shape.tiles * shape.units,
        "meta": 4,
        "ends": 4 * shape.units * ADDERS,
        "run_of": 4 * (shape.units * ADDERS + 1),
        "row_of": 4 * shape.runs,
    }


def unit_plan_recipe(case: Case) -> Recipe:
    """The launches that make a plan."""
    shape, sort = _shape(case), order_recipe(case.index_dtype, case.n, case.rows)
    definitions = (
        *sort_definitions(case.n),
        ("CHUNK", shape.chunk),
        ("ADDERS", ADDERS),
        ("PLACES", shape.places),
    )
    source = source_of(("sort", "unit_plan"), "int32", case.index_dtype, "add", definitions)
    threads = sort.steps[0].block
    blocks, chunks = 2 * PROCESSORS, shape.units * ADDERS
    arguments = ("order", "keys", "place", "meta", case.n, case.rows)
    places = Step(source, "unit_places", (8 * blocks, 1), 256, 0, arguments)
    arguments = ("keys", "ends", "counts", case.n, case.rows, chunks)
    shared = 4 * threads // 32
    ends = Step(source, "unit_ends", (blocks, 1), threads, shared, arguments)
    arguments = ("keys", "ends", "counts", "run_of", "row_of", chunks)
    runs = Step(source, "unit_runs", (blocks, 1), threads, shared, arguments)
    arguments = ("place", "slots", "ranks_of_slots", "starts", case.n, shape.units)
    shared, grid = 4 * (shape.units + 1 + threads // 32), (min(blocks, shape.tiles), 1)
    tiles = Step(source, "unit_tiles", grid, threads, shared, arguments)
    arguments = ("starts", "offsets", case.n, shape.units)
    offsets = Step(source, "unit_offsets", (ceil_div(shape.units, 32), 1), 32, 0, arguments)
    arguments = ("ranks_of_slots", "starts", "offsets", "ranks", case.n, shape.units)
    ranks = Step(source, "unit_ranks", grid, threads, 0, arguments)
    scratch = dict(sort.scratch) | order_buffers(case.n) | {"place": 4 * case.n}
    scratch["ranks_of_slots"] = 2 * shape.tiles * shape.places
    scratch["counts"] = max(scratch["counts"], 4 * blocks)
    steps = (*sort.steps, places, ends, runs, tiles, offsets, ranks)
    return Recipe(steps, tuple(scratch.items()))


def unit_recipe(case: Case) -> Recipe:
    """The launches of a scatter by a plan."""
    shape, bits = _shape(case), limb_bits(case.n + 1)
    definitions = (
        ("WIDTH", case.width),
        ("THREADS", THREADS),
        ("PLACERS", PLACERS),
        ("PLACES", shape.places),
        ("CHUNK", shape.chunk),
        ("ADDERS", ADDERS),
        ("RESIDENT", RESIDENT),
    )
    source = source_of(("exact", "units"), case.value, case.index_dtype, "add", definitions)
    item, limbs = case.width * case.value_bytes, ceil_div(128 + 149, bits)
    runs = ("meta", "ends", "run_of", "row_of", "limbs", "flags", shape.runs, shape.units)
    arguments = ("value", "out", "slots", "starts", "offsets", "items", "slot", case.n, case.rows)
    arguments = (*arguments, "aligned", limbs)
    grid = (min(PROCESSORS * PLACERS, shape.tiles), 1)
    shared = shape.places * item
    first = Step(source, "unit_place", grid, THREADS, shared, (*arguments, *runs))
    arguments = ("items", "ranks", "out", "slot", bits, *runs)
    second = Step(source, "unit_add", (shape.units, 1), ADDERS, _shared(case, shape), arguments)
    scratch = {
        "items": shape.units * shape.chunk * ADDERS * item,
        "limbs": 8 * limbs * shape.runs * case.width,
        "flags": 4 * shape.runs * case.width,
    }
    return Recipe((first, second), tuple(scratch.items()))
