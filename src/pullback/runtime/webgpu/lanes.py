"""Folds into few destinations: every chunk of the updates has accumulators of its own, in lanes.

The order is that of `order.scattered_by_lanes`, and for pairs of updates that of the CPU.

    lanes   a thread is one lane of a chunk and one column
    pairs   a thread is one lane of a chunk, whose table has two accumulators for each pair of rows
    cells   joins the tables of a chunk
    sums    joins the cells of each row
    join    adds chunks to the output
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel import order
from pullback.compile.program.nest import Nest
from pullback.compile.program.scatter import FoldLanes
from pullback.compile.program.target import Area
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups

__all__ = ["lane_steps"]

_COUNT, _CHUNK, _CHUNKS, _COPIES, _ROWS, _COLUMNS = (f"arg({k}u)" for k in range(1, 7))
NEST = 7  # the first word of the nest of updates

_SPAN = f"""  let start = chunk * {_CHUNK};
  let stop = min({_COUNT}, start + {_CHUNK});
  let whole = start + (stop - start) / {order.UPDATE_BLOCK}u * {order.UPDATE_BLOCK}u;"""


@cache
def _lanes_source(code: str, parts: int, rank: int) -> str:
    """Arrays: tables, updates, numbers."""
    return "\n".join([
        code,
        MAIN,
        f"""  let column = i % {_COLUMNS};
  let own = i / {_COLUMNS};
  let lane = own % {_COPIES};
  let chunk = own / {_COPIES};
{_SPAN}
  let elements = {_ROWS} * {_COLUMNS};
  let table = own * elements + column;
  for (var e = 0u; e < elements; e += {_COLUMNS}) {{ store0(table + e, pb_saved(pb_empty())); }}
  let end = select(whole, stop, lane == 0u);
  var j = start + lane;
  while (j < end) {{
    let element = j * ({_COLUMNS} / {parts}u) + column / {parts}u;""",
        locate(rank, ["at"], NEST, "element", "    "),
        f"""    let to = table + load2(j) * {parts}u;
    let sum = pb_opened(load0(to));
    store0(to, pb_saved(pb_take(sum, load1(at * {parts}u + column % {parts}u))));
    if (j + {_COPIES} < whole) {{ j += {_COPIES}; }}
    else if (j < whole) {{ j = whole; }}
    else {{ j += 1u; }}
  }}
}}""",
    ])  # fmt: skip


@cache
def _join_source(code: str, faults: int) -> str:
    """Arrays: output, tables, the words of errors."""
    bad = " | ".join(f"load{2 + k}(0u)" for k in range(faults))
    return "\n".join([
        code,
        MAIN,
        f"""  if (({bad}) != 0u) {{ return; }}
  var a = pb_start(load0(i));
  for (var c = 0u; c < {_CHUNKS}; c++) {{
    var own: array<Sum, {order.UPDATE_LANES}>;
    for (var k = 0u; k < {_COPIES}; k++) {{
      own[k] = pb_opened(load1((c * {_COPIES} + k) * arg(0u) + i));
    }}
    for (var h = {_COPIES} / 2u; h > 0u; h /= 2u) {{
      for (var k = 0u; k < h; k++) {{ own[k] = pb_merge(own[2u * k], own[2u * k + 1u]); }}
    }}
    a = pb_merge(a, own[0]);
  }}
  store0(i, pb_end(a));
}}""",
    ])  # fmt: skip


# Of each eight updates of a block, k and k + 4 are a pair; in a rest that is no block, neighbours.
@cache
def _pairs_source(code: str, rank: int) -> str:
    """Arrays: tables, updates, numbers."""
    pairs = order.PAIR_LANES
    return "\n".join([
        code,
        MAIN,
        f"""  let lane = i % {pairs}u;
  let chunk = i / {pairs}u;
{_SPAN}
  let size = 2u * {_ROWS} * {_ROWS};
  let table = i * size;
  for (var e = 0u; e < size; e++) {{ store0(table + e, pb_saved(pb_empty())); }}
  let end = select(whole, stop, lane == 0u);
  var b = start;
  while (b < end) {{
    let inside = b < whole;
    let one = select(b, b + lane, inside);
    let two = select(b + 1u, one + {pairs}u, inside);
    let both = two < stop;
    var other = 0u;
    if (both) {{ other = load2(two); }}
    let cell = table + 2u * (load2(one) + {_ROWS} * other);""",
        "    {",
        locate(rank, ["at"], NEST, "one", "      "),
        "      store0(cell, pb_saved(pb_take(pb_opened(load0(cell)), load1(at))));",
        "    }",
        "    if (both) {",
        locate(rank, ["at"], NEST, "two", "      "),
        "      let sum = pb_opened(load0(cell + 1u));",
        "      store0(cell + 1u, pb_saved(pb_take(sum, load1(at))));",
        "    }",
        f"    b += select(2u, {2 * pairs}u, inside);",
        "  }",
        "}",
    ])  # fmt: skip


@cache
def _cells_source(code: str) -> str:
    """The array is that of tables."""
    pairs = order.PAIR_LANES
    return "\n".join([
        code,
        MAIN,
        f"""  let cells = 2u * {_ROWS} * {_ROWS};
  let own = i / cells * {pairs}u * cells + i % cells;
  for (var by = 1u; by < {pairs}u; by *= 2u) {{
    for (var k = 0u; k < {pairs}u; k += 2u * by) {{
      let to = own + k * cells;
      let sum = pb_merge(pb_opened(load0(to)), pb_opened(load0(to + by * cells)));
      store0(to, pb_saved(sum));
    }}
  }}
}}""",
    ])  # fmt: skip


@cache
def _sums_source(code: str) -> str:
    """Arrays: sums of rows, tables."""
    return "\n".join([
        code,
        MAIN,
        f"""  let row = i % {_ROWS};
  let own = i / {_ROWS} * {2 * order.PAIR_LANES}u * {_ROWS} * {_ROWS};
  var first = pb_empty();
  var second = pb_empty();
  for (var k = 0u; k < {_ROWS}; k++) {{
    first = pb_merge(first, pb_opened(load1(own + 2u * (row + {_ROWS} * k))));
  }}
  for (var k = 0u; k < {_ROWS}; k++) {{
    second = pb_merge(second, pb_opened(load1(own + 2u * (k + {_ROWS} * row) + 1u)));
  }}
  store0(i, pb_saved(pb_merge(first, second)));
}}""",
    ])  # fmt: skip


def lane_steps(
    code: str,
    kind: str,
    parts: int,
    lanes: FoldLanes,
    nest: Nest,
    out: Binding,
    updates: Binding,
    numbers: Binding,
    area: Area,
    faults: Sequence[Binding],
) -> list[Dispatch]:
    """The dispatches; `code` are the functions of accumulators, which are items of a kind."""
    rank, nbytes = len(nest.shape), int(kind[1:]) // 8
    copies = 1 if lanes.paired else lanes.copies

    def step(source: str, threads: int, *arrays: Binding) -> Dispatch:
        own = (lanes.updates, lanes.chunk, lanes.chunks, copies, lanes.rows, lanes.columns)
        words = (threads, *own, *nest_words(nest))
        return Dispatch(source, arrays, words, linear_groups(threads, THREADS))

    def array(count: int) -> Binding:
        return Binding(At(area(count * nbytes)), kind, "write")

    size = lanes.rows * lanes.columns
    join = _join_source(code, len(faults))
    if not lanes.paired:
        threads = lanes.chunks * copies * lanes.columns
        tables = array(lanes.chunks * copies * size)
        return [
            step(_lanes_source(code, parts, rank), threads, tables, updates, numbers),
            step(join, size, out, tables._replace(mode="read"), *faults),
        ]
    cells = 2 * lanes.rows * lanes.rows
    tables = array(lanes.chunks * order.PAIR_LANES * cells)
    sums = array(lanes.chunks * lanes.rows)
    fill = _pairs_source(code, rank)
    return [
        step(fill, lanes.chunks * order.PAIR_LANES, tables, updates, numbers),
        step(_cells_source(code), lanes.chunks * cells, tables),
        step(_sums_source(code), lanes.chunks * lanes.rows, sums, tables._replace(mode="read")),
        step(join, size, out, sums._replace(mode="read"), *faults),
    ]
