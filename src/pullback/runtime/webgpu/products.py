"""Matrix products in the order of `order.product`, as on the CPU.

    tiles   see `tiles`
    chain   one row times a matrix: a thread for each column and chunk of k
    join    adds up the sums of chunks

Products are added up in chunks of k, from 0, and the chunks' sums in sequence; k is never padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.kernel import order
from pullback.compile.program.nest import coalesce
from pullback.compile.program.products import Matrices, Sides, matmul_steps
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place, Strides
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.nests import MAIN, locate, nest_words
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage
from pullback.runtime.webgpu.tiles import (
    STEP,
    THREADS,
    Tile,
    element_code,
    large_tile_for,
    product_rounds,
    put,
    tile_for,
    tiles_text,
)

__all__ = ["join_step", "product_row_stages", "product_stages", "product_steps"]

WORDS = 9  # of `tiles`, before those of the batch's nest


def _side(side: str, t: Tile) -> tuple[list[str], list[str], list[str]]:
    """Statements before the first product, those that read the operands of some of them to
    registers, and those that bring them on to workgroup memory.

    Neighbouring threads read along the axis whose elements lie side by side.
    """
    base, limit, step, deep, array, offset, extent = (
        ("row", "arg(0u)", "arg(3u)", "arg(4u)", 1, "at_a", t.rows)
        if side == "left"
        else ("column", "arg(1u)", "arg(6u)", "arg(5u)", 2, "at_b", t.columns)
    )
    s, down = side[0], f"{side[0]}_down"
    count = -(-STEP * extent // THREADS)
    start = [
        f"  let {s}_along = {deep} == 1u;",
        f"  let {s}_i = select(t % {extent}u, t / {STEP}u, {s}_along);",
        f"  let {s}_u = select(t / {extent}u, t % {STEP}u, {s}_along);",
        f"  let {s}_across = select(0u, {THREADS // STEP}u, {s}_along);",
        f"  let {down} = select({THREADS // extent}u, 0u, {s}_along);",
        f"  let {s}_next = {s}_across * {step} + {down} * {deep};",
        f"  var {s}_at = {offset} + ({base} + {s}_i) * {step} + {s}_u * {deep};",
        *(f"  var {s}{e} = Wide();" for e in range(count)),
    ]
    fetch, put_lines = [], []
    for e in range(count):
        i, u = f"({s}_i + {e}u * {s}_across)", f"({s}_u + {e}u * {down})"
        # fewer operands than threads: products of others are outside
        inside = f"{u} < {STEP}u && {i} < {extent}u && " if STEP * extent < THREADS else ""
        fetch += [
            f"    if ({inside}{base} + {i} < {limit} && first + {u} < arg(2u)) {{",
            f"      {s}{e} = pb_wide(load{array}({s}_at + {e}u * {s}_next));",
            "    }",
        ]
        line = put(t, side, u, i, f"{s}{e}")
        put_lines.append(f"    if ({inside}true) {{ {line} }}" if inside else f"    {line}")
    fetch.append(f"    {s}_at += {STEP}u * {deep};")
    return start, fetch, put_lines


@cache
def _tiles_source(dtype: DType, rank: int, t: Tile) -> str:
    """Words: m, n, k, steps of a along rows and columns, of b, tiles across, tiles of a product,
    products, then the batch's nest. Arrays: output, a, b.
    """
    m, n, k, *_ = words = [f"arg({j}u)" for j in range(WORDS + 1)]

    def store(r: str, c: str, total: str) -> str:
        return f"store0((product * {m} + {r}) * {n} + {c}, pb_narrow({total}));"

    sides = [_side("left", t), _side("right", t)]
    start, fetch, copies = ([line for own in sides for line in own[k]] for k in range(3))
    return tiles_text(
        t,
        element_code(dtype),
        (m, n, k),
        (words[7], words[8], words[9]),
        [locate(rank, ["at_a", "at_b"], WORDS + 1, "product"), *start],
        copies,
        order.CHUNK,
        store,
        fetch,
    )


def _tiled_step(
    dtype: DType,
    batch: Sequence[int],
    sides: Sides,
    a: Matrices,
    b: Matrices,
    out: At,
) -> Dispatch:
    """The dispatch of a batch of products (m, k) @ (k, n)."""
    (m, n, k), count = sides, math.prod(batch)
    (a_at, a_strides), (b_at, b_strides) = a, b
    dense = [math.prod(batch[d + 1 :]) for d in range(len(batch))]
    nest = coalesce(batch, [a_strides[:-2], b_strides[:-2], dense])
    kind = item(dtype)
    arrays = (Binding(out, kind, "write"), Binding(a_at, kind), Binding(b_at, kind))

    def step(t: Tile, large: Dispatch | None, *needs: str) -> Dispatch:
        down, across = t.cut(m, n)
        words = (m, n, k, *a_strides[-2:], *b_strides[-2:], across, across * down, count)
        own, groups = (*words, *nest_words(nest, 2)), count * across * down
        source = _tiles_source(dtype, len(nest.shape), t)
        rounds = product_rounds(k)
        return Dispatch(source, arrays, own, groups, False, rounds, large, needs)

    own = dtype, count, m, n
    return step(tile_for(*own), step(large_tile_for(*own), None, "fma"))


@cache
def _chain_source(dtype: DType, whole: bool) -> str:
    """Words: columns of all chunks, k, columns, steps of a, of b along k, and from column to
    column. Arrays: the output (if `whole`: there is one chunk) or the sums of chunks, a, b.
    """
    end = "pb_narrow(sum)" if whole else "bitcast<u32>(sum)"
    return "\n".join([
        element_code(dtype),
        MAIN,
        f"  let first = i / arg(2u) * {order.CHUNK}u;",
        f"  let end = min(first + {order.CHUNK}u, arg(1u));",
        "  let column = i % arg(2u) * arg(5u);",
        "  var sum = pb_none();",
        "  for (var k = first; k < end; k++) {",
        "    let x = pb_wide(load1(k * arg(3u)));",
        "    sum = pb_fused(x, pb_wide(load2(k * arg(4u) + column)), sum);",
        "  }",
        f"  store0(i, {end});",
        "}",
    ])  # fmt: skip


@cache
def _join_source(dtype: DType) -> str:
    """Words: columns, chunks. Arrays: the output, the sums of chunks."""
    return "\n".join([
        element_code(dtype),
        MAIN,
        "  var sum = bitcast<f32>(load1(i));",
        "  for (var c = 1u; c < arg(1u); c++) {",
        "    sum = pb_sum(sum, bitcast<f32>(load1(c * arg(0u) + i)));",
        "  }",
        "  store0(i, pb_narrow(sum));",
        "}",
    ])  # fmt: skip


def _row_steps(
    dtype: DType, n: int, k: int, a: tuple[At, int], b: tuple[At, int, int], out: At, area: Area
) -> list[Dispatch]:
    """The dispatches of one row of k times a matrix; steps along k, and of columns."""
    chunks, kind = max(1, -(-k // order.CHUNK)), item(dtype)
    (a_at, a_step), (b_at, b_step, b_column) = a, b
    words = (chunks * n, k, n, a_step, b_step, b_column)
    given = (Binding(a_at, kind), Binding(b_at, kind))
    groups = linear_groups(chunks * n, THREADS)
    target = Binding(out, kind, "write")
    if chunks == 1:
        return [Dispatch(_chain_source(dtype, True), (target, *given), words, groups)]
    sums = Binding(At(area(4 * chunks * n)), "u32", "write")
    step = Dispatch(_chain_source(dtype, False), (sums, *given), words, groups)
    return [step, join_step(dtype, out, sums.at, chunks, n)]


def join_step(dtype: DType, out: At, sums: At, chunks: int, size: int) -> Dispatch:
    """The dispatch that adds up the sums of chunks, of so many elements each."""
    arrays = (Binding(out, item(dtype), "write"), Binding(sums, "u32"))
    return Dispatch(_join_source(dtype), arrays, (size, chunks), linear_groups(size, THREADS))


def product_steps(
    dtype: DType,
    batch: Sequence[int],
    sides: Sides,
    a: Matrices,
    b: Matrices,
    out: At,
    area: Area,
) -> list[Dispatch]:
    """The dispatches of products (m, k) @ (k, n); the output is dense."""
    (m, n, k), (left, a_strides), (right, b_strides) = sides, a, b
    if math.prod(batch) == 1 and not dtype.is_complex:
        if m == 1:
            given = (left, a_strides[-1]), (right, b_strides[-2], b_strides[-1])
            return _row_steps(dtype, n, k, *given, out, area)
        if n == 1:
            given = (right, b_strides[-2]), (left, a_strides[-1], a_strides[-2])
            return _row_steps(dtype, m, k, *given, out, area)
    return [_tiled_step(dtype, batch, sides, a, b, out)]


def product_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, _: int
) -> list[Stage]:
    """The stages of a batch of products of matrices."""
    return stage(*matmul_steps(product_steps, operands, result, area))


def product_row_stages(
    dtype: DType,
    sides: tuple[int, int, int],
    a: tuple[int, Strides],
    b: tuple[int, Strides],
    out_slot: int,
    area: Area,
    /,
) -> list[Stage] | None:
    """See `Target.product_rows`: the whole product."""
    left, right = ((At(slot), strides) for slot, strides in (a, b))
    return stage(_tiled_step(dtype, (), sides, left, right, At(out_slot)))
