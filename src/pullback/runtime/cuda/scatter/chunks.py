"""Exact sums of narrow rows by a plan: chunks of contributions to neighbouring rows.

A chunk fits in shared memory, whatever the indices are; the plan says which lane adds up what.
"""

from __future__ import annotations

from typing import NamedTuple

from pullback.compile.kernel.fixed_point import limb_bits, limb_count
from pullback.runtime.cuda.scatter.ordered import order_buffers, order_recipe
from pullback.runtime.cuda.scatter.recipes import (
    EXPONENTS,
    PROCESSORS,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    source_of,
)

__all__ = ["chunk_buffers", "chunk_plan_recipe", "chunk_recipe", "chunks_fit"]

MOST = 1 << 25  # contributions: with more, a chunk would have too little of a tile
LEAST = 4096  # elements of a tile, and of a chunk, if there are as many
STRIP = 64  # the most contributions that a lane adds up
PLACERS, RESIDENT = 1, 2  # thread blocks of a processor that move values, and that add them up
THREADS, ADDERS, PLANNERS = 1024, 512, 512
ADDER = 48  # of the struct Adder of the kernels


class Chunking(NamedTuple):
    """How contributions are cut: `tile` as they come, `size` in the order of their rows."""

    word: int  # items in 16 bytes
    tile: int
    tiles: int
    size: int
    chunks: int
    splits: int  # numbers for rows of several strips
    strips: int  # more than there are
    by_rows: bool  # whether that is known from the rows

    @property
    def pitch(self) -> int:
        """Places of a tile, in which every chunk begins at a word."""
        return 64 * ceil_div(self.tile + (self.word - 1) * self.chunks, 64)

    @property
    def capacity(self) -> int:
        """Places of a chunk, in which every tile begins at a word."""
        places = self.size + STRIP + (self.word - 1) * self.tiles
        return self.word * ceil_div(places, self.word)

    @property
    def room(self) -> int:
        """Shared memory for a chunk and its entries, of which a lane has a place in every row."""
        rows = STRIP + ceil_div(self.size + STRIP, 32)
        return (self.capacity + self.word) * 16 // self.word + 64 * rows


def _cut(case: Case) -> Chunking:
    item, tile = case.item_bytes, _tile(case)
    word, tiles = 16 // item, ceil_div(case.n, tile)
    size = max(LEAST, _even(case.n, RESIDENT, _most_of_a_chunk(case)))
    chunks = ceil_div(case.n, size)
    by_rows = case.rows + case.n // STRIP < case.n
    strips = (case.rows + case.n // STRIP if by_rows else case.n) + 2 * (chunks + 1)
    return Chunking(word, tile, tiles, size, chunks, case.n // STRIP + 1, strips, by_rows)


def _tile(case: Case) -> int:
    most = min(case.shared_of(PLACERS) // case.item_bytes, 1 << 15) // 64 * 64
    return min(most, max(LEAST, 64 * ceil_div(_even(case.n, PLACERS, most), 64)))


def _most_of_a_chunk(case: Case) -> int:
    """How many items there is room for, with two bytes for each."""
    item, tiles = case.item_bytes, ceil_div(case.n, _tile(case))
    fixed = ADDER + item * (STRIP + 32 // item) + 66 * (STRIP + 2)
    fixed += (16 - item) * tiles  # what may be left over of words
    return min((case.shared_of(RESIDENT) - fixed) // (item + 2), 1 << 15)


def _even(n: int, blocks: int, most: int) -> int:
    """Equal parts of at most `most`, such that every processor gets as many."""
    rounds = ceil_div(n, PROCESSORS * blocks * most)
    return ceil_div(n, PROCESSORS * blocks * rounds)


def chunks_fit(case: Case) -> bool:
    """Whether there is enough shared memory, and not too much to do."""
    return case.n <= MOST and _most_of_a_chunk(case) >= LEAST


def chunk_buffers(case: Case) -> dict[str, int]:
    """The bytes of what a plan keeps, by name."""
    cut = _cut(case)
    return {
        "sources": 2 * cut.tiles * cut.pitch,
        "sizes": 4 * cut.tiles,
        "runs": 8 * cut.chunks * (cut.tiles + 1),
        "chunks": 16 * (cut.chunks + 1),
        "groups": 2 * (cut.strips // 32 + 3 * (cut.chunks + 1)),
        "entries": 64 * (case.n // 32 + (STRIP + 2) * (cut.chunks + 1)),
        "targets": 4 * cut.strips,
        "split_rows": 4 * cut.splits,
    }


def chunk_plan_recipe(case: Case) -> Recipe:
    """The launches that make a plan."""
    cut, first = _cut(case), order_recipe(case.index_dtype, case.n, case.rows, case.shared)
    definitions = (("STRIP", STRIP), ("WORD", cut.word), ("THREADS", PLANNERS))
    source = source_of(("chunks", "chunk_plan"), "int32", case.index_dtype, "add", definitions)

    def step(name: str, blocks: int, shared: int, *arguments: str | int) -> ScatterStep:
        return ScatterStep(source, name, (blocks, 1), PLANNERS, shared, arguments)

    warps = 4 * PLANNERS // 32
    steps = (
        step(
            "chunk_cut",
            ceil_div(max(cut.chunks + 1, cut.splits), PLANNERS),
            0,
            *("keys", "chunks", "split_rows"),
            *(case.n, case.rows, cut.size, cut.chunks, int(cut.by_rows), cut.splits),
        ),
        step(
            "chunk_mark",
            cut.chunks + 1,
            0,
            *("order", "chunks", "chunk_of"),
            *(case.n, cut.chunks),
        ),
        step(
            "chunk_tile",
            cut.tiles,
            4 * cut.chunks + warps,
            *("chunk_of", "places", "sources", "sizes", "runs"),
            *(case.n, cut.chunks, cut.tiles, cut.tile, cut.pitch),
        ),
        step(
            "chunk_strips",
            cut.chunks,
            8 * (STRIP + 1) + warps + 2 * (cut.size + STRIP),
            *("keys", "order", "places", "runs", "chunks", "groups", "entries", "targets"),
            *("split_rows", case.n, cut.tiles, cut.tile, cut.pitch, cut.capacity),
        ),
    )
    scratch = dict(first.scratch) | order_buffers(case.n)
    scratch |= {"chunk_of": 2 * case.n, "places": 2 * case.n}
    return Recipe((*first.steps, *steps), tuple(scratch.items()))


def chunk_recipe(case: Case) -> Recipe:
    """The launches of a scatter by a plan."""
    cut, item, bits = _cut(case), case.item_bytes, limb_bits(case.n + 1)
    limbs = limb_count(case.n + 1, *EXPONENTS)
    definitions = (
        ("WIDTH", case.width),
        ("PLACES", case.places),
        ("STRIP", STRIP),
        ("WORD", cut.word),
        ("THREADS", THREADS),
        ("PLACERS", PLACERS),
        ("ADDERS", ADDERS),
        ("RESIDENT", RESIDENT),
    )
    parts = ("exact", "narrow", "chunks", "chunk_sum")
    source = source_of(parts, case.value, case.index_dtype, "add", definitions)

    def step(
        name: str, blocks: int, threads: int, shared: int, *arguments: str | int
    ) -> ScatterStep:
        return ScatterStep(source, name, (blocks, 1), threads, shared, arguments)

    steps = (
        step(
            "chunk_place",
            min(PROCESSORS * PLACERS, cut.tiles),
            THREADS,
            cut.tile * item,
            *("sources", "sizes", "value", "items", "split_rows", "sums", "flags", "slot"),
            *(case.n, "aligned", cut.tile, cut.pitch, cut.splits, limbs),
        ),
        step(
            "chunk_add",
            cut.chunks,
            ADDERS,
            ADDER + cut.room,
            *("items", "runs", "chunks", "groups", "entries", "targets", "out", "sums", "flags"),
            *("slot", cut.tiles, cut.capacity, cut.splits, bits),
        ),
        step(
            "chunk_settle",
            ceil_div(cut.splits, THREADS),
            THREADS,
            0,
            *("split_rows", "sums", "flags", "out", "slot", cut.splits, bits),
        ),
    )
    scratch = {
        "items": cut.tiles * cut.pitch * item,
        "sums": 8 * limbs * cut.splits * case.width,
        "flags": 4 * cut.splits * case.width,
    }
    return Recipe(steps, tuple(scratch.items()))
