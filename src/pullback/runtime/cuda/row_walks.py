"""Row kernels whose thread blocks walk from row to row, so that these read rows only once.

    NAME_passes (stream_0 .., partials_0 .., chains, Rows<M, S> r)

What is folded from row to row has the tree of `order`: row j is in lane j % LANES of block
j // BLOCK, and rows of a lane follow each other. A thread block has such a lane, its teams take the
rows in turn, and when a team has been through a row it adds that to the accumulators of the lane,
which lie in shared memory: in the order of the rows, which each warp waits for. In the end there
are LANES accumulators for each block of the tree; `lanes` of `folds` joins them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.runtime.cuda.fold_kernels import Folds, folds_of
from pullback.runtime.cuda.folds import accumulator_size
from pullback.runtime.cuda.kernels import name_of
from pullback.runtime.cuda.printer import Source, emit, storage
from pullback.runtime.cuda.row_code import RowCode, loads_of
from pullback.runtime.cuda.row_functions import PAD
from pullback.runtime.cuda.row_templates import COLUMNS

__all__ = ["STEP", "LaneLayout", "chain_of", "columns_text", "walk_layout", "walk_words"]

STEP = 64  # bytes of which what lies in shared memory starts at a multiple


class LaneLayout(NamedTuple):
    """Where things lie in the shared memory of a thread block: rows near, accumulators, turns."""

    places: tuple[int, ...]
    end: int


def chain_of(columns: Sequence[Reduce]) -> Folds:
    """What is folded from row to row, with all accumulators side by side."""
    return folds_of((), columns)


def walk_layout(
    begin: int, near: Sequence[DType], columns: Sequence[Reduce], length: int, gaps: int, own: int
) -> LaneLayout:
    """The places from `begin` on; a row that is near has so many bytes of gaps."""
    places = []
    sizes = [length * d.itemsize + gaps for d in near]
    sizes += [length * accumulator_size(r) for r in columns]
    pieces = own // 32 * math.ceil(length / (2 * own))
    for size in (*sizes, 4 * pieces):
        begin = -(-begin // STEP) * STEP
        places.append(begin)
        begin += size
    return LaneLayout(tuple(places), begin)


def walk_words(rows: RowCode) -> dict[str, object]:
    """What the text of a walk says of streams that are near and of folds from row to row."""
    near, columns, areas = rows.near, rows.kernel.columns, len(rows.areas[1])
    lines, sums, values = [], [], []
    for n, k in enumerate(near, areas):
        c = storage(rows.kernel.streams[k].dtype)
        lines.append(f"  {c}* const s{k} = ({c}*)(memory + r.place[{n}]);")
        lines.append(f"  pb_fetch(s{k}, p{k}, length, t, (int)blockDim.x);")
    for m, r in enumerate(columns):
        f, n = name_of(r), areas + len(near) + m
        sums.append(f"  {f}_acc* const sums{m} = ({f}_acc*)(memory + r.place[{n}]);")
        sums.append(f"  for (int i = t; i < length; i += (int)blockDim.x) sums{m}[i] = {f}_init();")
        values += [f"sums{m}[i].x{n}" for n in range(len(r.init))]
    return {
        "near": "\n".join(lines), "sums": "\n".join(sums), "parts": ", ".join(values),
        "turn": areas + len(near) + len(columns), "chain": f"{name_of(chain_of(columns))}_acc",
    }  # fmt: skip


def columns_text(source: Source, rows: RowCode, leaf: Callable[[Expr], str]) -> str:
    """What is folded from row to row: each team adds its row when it is its turn.

    A thread has the same elements of all rows, so warps need not wait for others of a team.
    """
    streams = rows.kernel.streams
    roots = [e for r in rows.kernel.columns for e in r.element]
    read = [k for k in loads_of(roots) if streams[k].kind in ("unit", "buffer")]
    waits = any(k in rows.written for k in read)
    width = max(1, 16 // max((streams[k].dtype.itemsize for k in read), default=4))
    return COLUMNS.format(
        waits="    __syncthreads();" if waits else "", width=width,
        many=_column(source, rows, leaf, read, width), one=_column(source, rows, leaf, read, 1),
    )  # fmt: skip


def _column(
    source: Source, rows: RowCode, leaf: Callable[[Expr], str], read: Sequence[int], width: int
) -> str:
    """The next element of so many folds side by side."""
    streams, kernels, lines = rows.kernel.streams, rows.kernel.columns, []
    for k in read:
        c = storage(streams[k].dtype)
        place = f"x{k} + i"
        lines.append(f"        {c} e{k}[{width}];")
        if k in rows.areas[0] or k in rows.near:
            place = f"s{k} + i + i / {BLOCK} * ({PAD} / (int)sizeof({c}))"
            lines.append(f"        pb_unpack<{width}>(e{k}, {place});")
        else:
            lines.append(f"        for (int u = 0; u < {width}; ++u) e{k}[u] = ({place})[u];")
    for m, r in enumerate(kernels):
        lines.append(f"        {name_of(r)}_acc g{m}[{width}];")
        lines.append(f"        pb_take<{width}>(g{m}, sums{m} + i);")
    lines.append(f"#pragma unroll\n        for (int u = 0; u < {width}; ++u) {{")
    made, names = emit(source, [e for r in kernels for e in r.element], leaf)
    rest = iter(names)
    lines += ["        " + line for line in made]
    for m, r in enumerate(kernels):
        f, values = name_of(r), ", ".join(next(rest) for _ in r.element)
        lines.append(f"          g{m}[u] = {f}_combine(g{m}[u], {f}_acc{{{values}}});")
    lines.append("        }")
    for m in range(len(kernels)):
        lines.append(f"        pb_give<{width}>(sums{m} + i, g{m});")
    return "\n".join(lines)
