"""Folds into few destinations: every chunk of the updates has accumulators of its own, in lanes.

The order is that of `order.scattered_by_lanes`, and for pairs of updates that of the CPU.

    NAME_lanes (tables, updates, keys, Nest<1> updates, Lanes l)
    NAME_join  (out, tables, Lanes l)
    NAME_pairs (tables, updates, keys, Nest<1> updates, Lanes l)
    NAME_cells (tables, Lanes l), NAME_rows (sums, tables, Lanes l)

`keys` are the places of rows in the output. A thread of `lanes` is one lane of a chunk and one
column; of `pairs`, one lane of a chunk, whose table has two accumulators for each pair of rows.
`cells` joins the tables of a chunk, `rows` the cells of each row; `join` adds chunks to the output.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pullback.compile.kernel import order
from pullback.runtime.cuda.launch import THREADS, grid_of
from pullback.runtime.cuda.stages import At, Step

__all__ = ["LANES", "lane_steps"]

LANES = """
struct Lanes {{ long long count, chunk, chunks, copies, rows, columns; }};
#define BLOCK {block}
extern "C" __global__ void {name}_lanes(Sum* __restrict__ tables,
    const Value* __restrict__ updates, const unsigned long long* __restrict__ keys,
    const Nest<1> nest, const Lanes l) {{
  const long long elements = l.rows * l.columns;
  for (long long i = pb_first(); i < l.chunks * l.copies * l.columns; i += pb_step()) {{
    const long long column = i % l.columns, own = i / l.columns;
    const long long lane = own % l.copies, start = own / l.copies * l.chunk;
    const long long stop = l.count - start < l.chunk ? l.count : start + l.chunk;
    const long long whole = start + (stop - start) / BLOCK * BLOCK;
    Sum* const table = tables + own * elements + column;
    for (long long e = 0; e < elements; e += l.columns) table[e] = pb_empty();
    for (long long j = start + lane; j < (lane ? whole : stop);
         j = j + l.copies < whole ? j + l.copies : j < whole ? whole : j + 1) {{
      long long at[1] = {{}};
      pb_locate(nest, j * (l.columns / {parts}) + column / {parts}, at);
      pb_take(table[keys[j] * {parts}], updates[at[0] * {parts} + column % {parts}]);
    }}
  }}
}}
extern "C" __global__ void {name}_join(Value* __restrict__ out, const Sum* __restrict__ tables,
    const Lanes l) {{
  const long long elements = l.rows * l.columns;
  for (long long i = pb_first(); i < elements; i += pb_step()) {{
    Sum a = pb_start(out[i]);
    for (long long c = 0; c < l.chunks; ++c) {{
      Sum own[{most}];
      for (int k = 0; k < (int)l.copies; ++k) own[k] = tables[(c * l.copies + k) * elements + i];
      for (int n = (int)l.copies / 2; n; n /= 2)
        for (int k = 0; k < n; ++k) {{
          own[k] = own[2 * k];
          pb_merge(own[k], own[2 * k + 1]);
        }}
      pb_merge(a, own[0]);
    }}
    out[i] = pb_end(a);
  }}
}}
#define PAIRS {pairs}
// Of each eight updates of a block, k and k + 4 are a pair; in a rest that is no block, neighbours.
extern "C" __global__ void {name}_pairs(Sum* __restrict__ tables,
    const Value* __restrict__ updates, const unsigned long long* __restrict__ keys,
    const Nest<1> nest, const Lanes l) {{
  for (long long i = pb_first(); i < l.chunks * PAIRS; i += pb_step()) {{
    const long long lane = i % PAIRS, start = i / PAIRS * l.chunk;
    const long long stop = l.count - start < l.chunk ? l.count : start + l.chunk;
    const long long whole = start + (stop - start) / BLOCK * BLOCK;
    Sum* const table = tables + i * 2 * l.rows * l.rows;
    for (long long e = 0; e < 2 * l.rows * l.rows; ++e) table[e] = pb_empty();
    for (long long b = start; b < (lane ? whole : stop); b += b < whole ? 2 * PAIRS : 2) {{
      const long long one = b < whole ? b + lane : b, two = b < whole ? one + PAIRS : b + 1;
      const bool both = two < stop;
      Sum* const cell = table + 2 * (keys[one] + l.rows * (both ? keys[two] : 0));
      long long at[1] = {{}}, other[1] = {{}};
      pb_locate(nest, one, at);
      pb_take(cell[0], updates[at[0]]);
      if (!both) continue;
      pb_locate(nest, two, other);
      pb_take(cell[1], updates[other[0]]);
    }}
  }}
}}
extern "C" __global__ void {name}_cells(Sum* __restrict__ tables, const Lanes l) {{
  const long long cells = 2 * l.rows * l.rows;
  for (long long i = pb_first(); i < l.chunks * cells; i += pb_step()) {{
    Sum* const own = tables + i / cells * PAIRS * cells + i % cells;
    for (int by = 1; by < PAIRS; by *= 2)
      for (int k = 0; k < PAIRS; k += 2 * by) pb_merge(own[k * cells], own[(k + by) * cells]);
  }}
}}
extern "C" __global__ void {name}_rows(Sum* __restrict__ sums, const Sum* __restrict__ tables,
    const Lanes l) {{
  for (long long i = pb_first(); i < l.chunks * l.rows; i += pb_step()) {{
    const long long row = i % l.rows;
    const Sum* const own = tables + i / l.rows * PAIRS * 2 * l.rows * l.rows;
    Sum first = pb_empty(), second = pb_empty();
    for (long long k = 0; k < l.rows; ++k) pb_merge(first, own[2 * (row + l.rows * k)]);
    for (long long k = 0; k < l.rows; ++k) pb_merge(second, own[2 * (k + l.rows * row) + 1]);
    pb_merge(first, second);
    sums[i] = first;
  }}
}}"""


def lane_steps(
    name: str,
    source: str,
    count: int,
    rows: int,
    columns: int,
    parts: int,
    nbytes: int,
    nest: bytes,
    out: At,
    updates: At,
    keys: At,
    area: Callable[[int], int],
) -> list[Step]:
    """The launches; `columns` are real elements of a row, `parts` those of an accumulator, which
    has so many bytes. What x holds is in the output already.
    """
    chunk = order.chunk_of_updates(count)
    chunks = -(-count // chunk)

    def step(end: str, threads: int, *arguments: At | int | bytes) -> Step:
        return Step(source, f"{name}_{end}", (grid_of(threads), 1), THREADS, arguments)

    def words(copies: int) -> bytes:
        return struct.pack("<6q", count, chunk, chunks, copies, rows, columns)

    if order.is_paired(rows, columns, parts):
        cells = 2 * rows * rows
        tables = At(area(chunks * order.PAIR_LANES * cells * nbytes))
        sums, one = At(area(chunks * rows * nbytes)), words(1)
        return [
            step("pairs", chunks * order.PAIR_LANES, tables, updates, keys, nest, one),
            step("cells", chunks * cells, tables, one),
            step("rows", chunks * rows, sums, tables, one),
            step("join", rows, out, sums, one),
        ]
    copies = order.lanes_of(columns, parts)
    tables = At(area(chunks * copies * rows * columns * nbytes))
    lanes = chunks * copies * columns
    return [
        step("lanes", lanes, tables, updates, keys, nest, words(copies)),
        step("join", rows * columns, out, tables, words(copies)),
    ]
