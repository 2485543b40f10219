"""Convolutions as products of matrices that nobody writes down, in tiles: see `tiles`.

    output     (pixels, k) @ (k, channels out): k goes over blocks of channels in, in each over the
               positions of the kernel, in each over the block's channels
    weights    (channels in and positions, k) @ (k, channels out): k goes over the pixels of a
               chunk, tile by tile

What a row reads is at the sum of a number of the row and a number of k, if on each axis the sum of
a place of the row and one of k is inside. The numbers of STEP products along k lie in workgroup
memory: those of the next step are made while operands are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel import order
from pullback.compile.program.convolution import Convolution, Weight
from pullback.compile.program.windows import WeightSums, window_words
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.stages import At, Binding, Dispatch
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
from pullback.runtime.webgpu.window_words import OWN, split_index, sum_of, word

__all__ = ["is_wide_enough", "output_step", "weight_step"]

LEAST_CHANNELS = 8  # of a group's output, for which tiles are worth it

_X, _Y = "vec4<u32>", "u32"  # numbers of k: an offset and three places; an offset of the other side
_NONE = "0xffffffffu"  # an offset where there is no product


def is_wide_enough(c: Convolution) -> bool:
    """Whether tiles are mostly full."""
    return not c.depthwise and c.y.channels >= LEAST_CHANNELS


def own_word(k: int) -> str:
    """A word after those of the window."""
    return f"arg({OWN + k}u)"


_CUT = (own_word(0), own_word(1), own_word(2))  # tiles across, tiles of a product, products


def _reached(places: Sequence[str]) -> list[str]:
    """The input on each axis that a window starts at, for outputs at these places."""
    return [f"({p} * {word('step', d)} + {word('offset', d)})" for d, p in enumerate(places)]


def _moved(taps: Sequence[str]) -> list[str]:
    """How far on each axis positions of the kernel are from its start."""
    return [f"{t} * {word('offset_step', d)}" for d, t in enumerate(taps)]


def _offset(places: Sequence[str]) -> str:
    """The offset in x of places on the axes."""
    return " + ".join(f"({p}) * {word('x', d)}" for d, p in enumerate(places))


def _copies(t: Tile, m: str, n: str, masked: bool) -> list[str]:
    """Statements that read operands; where there is no product, they are -0 and 0."""
    inside = " && ".join(f"own.{a} + k.{a} < {word('size', d)}" for d, a in enumerate("yzw"))
    skip = f"if (pb_second[at] == {_NONE}) {{ value = Wide(pb_c(0x80000000u)); }}"
    i, j = f"t % {t.rows}u", f"t % {t.columns}u"
    read = f"value = pb_wide(load2(other + pb_second[{STEP}u * turn + u]));"
    if masked:
        read = f"if (pb_second[{STEP}u * turn + u] != {_NONE}) {{ {read} }}"
    return [
        f"    let turn = first / {STEP}u % 2u;",
        f"    for (var p = t; p < {STEP * t.rows}u; p += {THREADS}u) {{",
        f"      let u = p / {t.rows}u;",
        f"      if (u < depth && row + {i} < {m}) {{",
        f"        let at = {STEP}u * turn + u;",
        "        let k = pb_first[at];",
        "        var value = Wide();",
        f"        if ({inside}) {{ value = pb_wide(load1(own.x + k.x)); }}",
        f"        {skip if masked else ''}",
        f"        {put(t, 'left', 'u', f'({i})', 'value')}",
        "      }",
        "    }",
        f"    for (var p = t; p < {STEP * t.columns}u; p += {THREADS}u) {{",
        f"      let u = p / {t.columns}u;",
        f"      if (u < depth && column + {j} < {n}) {{",
        "        var value = Wide();",
        f"        {read}",
        f"        {put(t, 'right', 'u', f'({j})', 'value')}",
        "      }",
        "    }",
        f"    if (t < {STEP}u) {{",
        f"      pb_fill(first + {STEP}u + t, {STEP}u * (1u - turn) + t, product);",
        "    }",
    ]


def _text(
    dtype: DType,
    t: Tile,
    extent: tuple[str, str, str],
    fill: Sequence[str],
    rows: Sequence[str],
    columns: str,
    chunk: int | None,
    target: str,
    masked: bool,
) -> str:
    """A kernel: `fill` lets `x`, `a`, `b`, `c` and `y` be the numbers of product `k`, `rows` the
    first four those of row `i`; `columns` is the offset of column `i`, `target` that of a sum.
    """
    m, n, k = extent
    code = "\n".join([
        element_code(dtype),
        f"var<workgroup> pb_first: array<{_X}, {2 * STEP}>;",
        f"var<workgroup> pb_second: array<{_Y}, {2 * STEP}>;",
        "fn pb_fill(k: u32, to: u32, product: u32) {",
        f"  if (k >= {k}) {{ return; }}",
        *(f"  {line}" for line in fill),
        "  pb_first[to] = vec4<u32>(x, a, b, c);",
        "  pb_second[to] = y;",
        "}",
        "fn pb_row(i: u32, product: u32) -> vec4<u32> {",
        *(f"  {line}" for line in rows),
        "  return vec4<u32>(x, a, b, c);",
        "}",
        f"fn pb_column(i: u32, product: u32) -> u32 {{ return {columns}; }}",
    ])  # fmt: skip
    start = [
        f"  let own = pb_row(row + t % {t.rows}u, product);",
        f"  let other = pb_column(column + t % {t.columns}u, product);",
        f"  if (t < {STEP}u) {{ pb_fill(t, t, product); }}",
        "  workgroupBarrier();",
    ]

    def store(r: str, c: str, total: str) -> str:
        return f"let i = {r}; let channel = {c}; store0({target}, pb_narrow({total}));"

    return tiles_text(t, code, extent, _CUT, start, _copies(t, m, n, masked), chunk, store)


_PLACES = [word("places", d) for d in range(3)]
_TAPS = [word("taps", d) for d in range(3)]
_PIXEL = [*split_index("i", ["", *_PLACES], ["batch", "p0", "p1", "p2"])]


@cache
def _output_source(dtype: DType, chunk: int | None, t: Tile) -> str:
    """Words after those of the window: tiles across, tiles of a group, groups, pixels, k.

    Arrays: output, x, weights.
    """
    moved, reached = _moved("qrs"), _reached(("p0", "p1", "p2"))
    block, taps = word("block"), " * ".join(_TAPS)
    fill = [
        f"let full = {block} * {taps};",
        f"let start = k / full * {block};",
        f"let size = min({block}, {word('ins')} - start);",
        "let into = start + k % full % size;",
        *split_index("k % full / size", _TAPS, ["q", "r", "s"]),
        *(f"let {name} = {m};" for name, m in zip("abc", moved, strict=True)),
        f"let x = {_offset('abc')} + into * {word('x_channel')};",
        f"let y = {sum_of('place_step', 'qrs')} + into * {word('w_in')};",
    ]
    rows = [
        *_PIXEL,
        *(f"let {name} = {r};" for name, r in zip("abc", reached, strict=True)),
        f"let x = batch * {word('x_batch')} + product * {word('x_group')} + {_offset('abc')};",
    ]
    first = " + ".join(word("place", d) for d in range(3))
    columns = f"product * {word('w_group')} + i * {word('w_out')} + {first}"
    target = f"pb_target(i) + product * {word('y_group')} + channel * {word('y_channel')}"
    to = "\n".join([
        "fn pb_target(i: u32) -> u32 {",
        *_PIXEL,
        f"  return batch * {word('y_batch')} + {sum_of('y', ('p0', 'p1', 'p2'))};",
        "}",
    ])  # fmt: skip
    extent = own_word(3), word("outs"), own_word(4)
    return f"{to}\n{_text(dtype, t, extent, fill, rows, columns, chunk, target, False)}"


def output_step(c: Convolution, weight: Weight, start: int) -> Dispatch:
    """The dispatch that makes the output, from its element `start` on."""
    pixels, groups = c.x.batch * math.prod(a.places for a in c.axes), c.x.groups
    k = c.ins * math.prod(len(a.taps) for a in c.axes)
    kind = item(c.dtype)
    arrays = (
        Binding(At(c.y.slot, start * c.dtype.itemsize), kind, "write"),
        Binding(At(c.x.slot), kind),
        Binding(At(weight.slot), kind),
    )

    def step(t: Tile, large: Dispatch | None, *needs: str) -> Dispatch:
        down, across = t.cut(pixels, c.y.channels)
        words = (*window_words(c, weight), across, down * across, groups, pixels, k)
        source = _output_source(c.dtype, order.CHUNK if c.is_product else None, t)
        tiles = groups * down * across
        return Dispatch(source, arrays, words, tiles, faster=large, needs=needs)

    sides = c.dtype, groups, pixels, c.y.channels
    return step(tile_for(*sides), step(large_tile_for(*sides), None, "fma"))


@cache
def _weight_source(dtype: DType, t: Tile) -> str:
    """Words after those of the window: tiles across, tiles of a product, products (chunks of
    groups), rows, k, weights, tiles of pixels in a chunk, tiles in all.

    Arrays: sums, x, the other side.
    """
    tiles = [word("tile", d) for d in range(3)]
    across = [f"(({p} + {n} - 1u) / {n})" for p, n in zip(_PLACES, tiles, strict=True)]
    names = ("p0", "p1", "p2")
    outside = " || ".join(f"{p} >= {n}" for p, n in zip(names, _PLACES, strict=True))
    fill = [
        f"let size = {' * '.join(tiles)};",
        f"let tile = product / {word('groups')} * {own_word(6)} + k / size;",
        *split_index("tile", ["", *across], ["batch", "t0", "t1", "t2"]),
        "rest = k % size;",
        f"let p2 = t2 * {tiles[2]} + rest % {tiles[2]};",
        f"rest /= {tiles[2]};",
        f"let p1 = t1 * {tiles[1]} + rest % {tiles[1]};",
        f"let p0 = t0 * {tiles[0]} + rest / {tiles[1]};",
        *(f"let {name} = {r};" for name, r in zip("abc", _reached(names), strict=True)),
        f"let x = batch * {word('x_batch')} + {_offset('abc')};",
        f"var y = batch * {word('y_batch')} + {sum_of('y', names)};",
        f"let last = min((product / {word('groups')} + 1u) * {own_word(6)}, {own_word(7)});",
        f"if (tile >= last || {outside}) {{ y = {_NONE}; }}",
    ]
    taps = split_index("i", ["", *_TAPS], ["into", "q", "r", "s"])
    group = f"product % {word('groups')}"
    rows = [
        *taps,
        *(f"let {name} = {m};" for name, m in zip("abc", _moved("qrs"), strict=True)),
        f"let x = {group} * {word('x_group')} + into * {word('x_channel')} + {_offset('abc')};",
    ]
    columns = f"{group} * {word('y_group')} + i * {word('y_channel')}"
    first = " + ".join(word("place", d) for d in range(3))
    to = "\n".join([
        "fn pb_target(i: u32) -> u32 {",
        *taps,
        f"  return into * {word('w_in')} + {sum_of('place_step', 'qrs')} + {first};",
        "}",
    ])  # fmt: skip
    target = (
        f"product / {word('groups')} * {own_word(5)} + {group} * {word('w_group')}"
        f" + channel * {word('w_out')} + pb_target(i)"
    )
    extent = own_word(3), word("outs"), own_word(4)
    return f"{to}\n{_text(dtype, t, extent, fill, rows, columns, None, target, True)}"


def weight_step(c: Convolution, weight: Weight, sums: WeightSums, slot: int) -> Dispatch:
    """The dispatch that makes the sums of weights of every chunk."""
    rows = c.ins * math.prod(len(a.taps) for a in c.axes)
    products, k = sums.chunks * c.x.groups, sums.chunk * math.prod(sums.tile)
    size = c.x.groups * c.y.channels * c.ins * c.positions
    kind = item(c.dtype)
    arrays = (
        Binding(At(slot), kind, "write"),
        Binding(At(c.x.slot), kind),
        Binding(At(c.y.slot), kind),
    )

    def step(t: Tile, large: Dispatch | None, *needs: str) -> Dispatch:
        down, across = t.cut(rows, c.y.channels)
        own = (across, down * across, products, rows, k, size, sums.chunk, sums.tiles)
        words = (*window_words(c, weight, sums.tile), *own)
        groups, rounds = products * down * across, product_rounds(k)
        source = _weight_source(c.dtype, t)
        return Dispatch(source, arrays, words, groups, rounds=rounds, faster=large, needs=needs)

    sides = c.dtype, products, rows, c.y.channels
    return step(tile_for(*sides), step(large_tile_for(*sides), None, "fma"))
