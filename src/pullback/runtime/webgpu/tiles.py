"""Tiles of products in workgroup memory and registers: how matrices and convolutions walk.

A workgroup makes a tile of one product of `left` (rows, k) and `right` (k, columns); a thread has
side x side elements of it in registers, and the operands of STEP products along k lie in workgroup
memory. Products are added up in the order of k, in chunks whose sums are added up in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.printer import convert, loaded, stored

__all__ = ["STEP", "Tile", "element_code", "product_rounds", "tile_for", "tiles_text"]

STEP = 16  # products between two barriers: the operands of a tile then take 10 of 16 KiB
ENOUGH_GROUPS = 64  # workgroups of large tiles that fill a device; else tiles are small


class Tile(NamedTuple):
    """Threads of a workgroup down and across, 256 of them, and the elements of each both ways."""

    down: int
    across: int
    side: int

    @property
    def rows(self) -> int:
        return self.down * self.side

    @property
    def columns(self) -> int:
        return self.across * self.side

    def cut(self, m: int, n: int) -> tuple[int, int]:
        """Tiles down and across a product of m rows and n columns."""
        return -(-m // self.rows), -(-n // self.columns)


def tile_for(dtype: DType, count: int, m: int, n: int) -> Tile:
    """The tiles of `count` products of m rows and n columns."""
    side = 2 if dtype.is_complex else 4  # a complex sum takes four registers
    if n <= 8 * side:
        large = Tile(32, 8, side)
    elif m <= 8 * side:
        large = Tile(8, 32, side)
    else:
        large = Tile(16, 16, side)
    down, across = large.cut(m, n)
    if min(m, n) > 4 * side and count * down * across >= ENOUGH_GROUPS:
        return large
    return Tile(4, 64, 1) if m <= 4 else Tile(64, 4, 1) if n <= 4 else Tile(16, 16, 1)


def product_rounds(k: int) -> int:
    """What loops of a thread go round, at most: for each of k, and copies for each STEP of them."""
    return k * 8 // 5


@cache
def element_code(dtype: DType) -> str:
    """Types of an operand and of a sum, and what is done with them.

    Of complex numbers a sum has four: the products of each part with each part.
    """
    if dtype.is_complex:
        return """alias Wide = vec2<f32>;
alias Sum = vec4<f32>;
fn pb_wide(x: vec2<u32>) -> Wide { return bitcast<vec2<f32>>(x); }
fn pb_narrow(x: Sum) -> vec2<u32> {
  return bitcast<vec2<u32>>(vec2<f32>(pb_f(x.x - x.w), pb_f(x.y + x.z)));
}
fn pb_sum(a: Sum, b: Sum) -> Sum {
  return Sum(pb_f(a.x + b.x), pb_f(a.y + b.y), pb_f(a.z + b.z), pb_f(a.w + b.w));
}
fn pb_fused(a: Wide, b: Wide, c: Sum) -> Sum {
  return Sum(f32_fma_exact(a.x, b.x, c.x), f32_fma_exact(a.x, b.y, c.y),
             f32_fma_exact(a.y, b.x, c.z), f32_fma_exact(a.y, b.y, c.w));
}"""
    read = convert(loaded("x", dtype), dtype, dt.float32)
    write = stored(convert("x", dt.float32, dtype), dtype)
    return f"""alias Wide = f32;
alias Sum = f32;
fn pb_wide(x: u32) -> Wide {{ return {read}; }}
fn pb_narrow(x: Sum) -> u32 {{ return {write}; }}
fn pb_sum(a: Sum, b: Sum) -> Sum {{ return pb_f(a + b); }}
fn pb_fused(a: Wide, b: Wide, c: Sum) -> Sum {{ return f32_fma_exact(a, b, c); }}"""


def tiles_text(
    t: Tile,
    code: str,
    extent: tuple[str, str, str],
    cut: tuple[str, str, str],
    start: Sequence[str],
    copies: Sequence[str],
    chunk: int | None,
    store: Callable[[str, str, str], str],
) -> str:
    """A kernel over tiles.

    `extent` are rows, columns and k, `cut` tiles across, tiles of a product, products. `copies`
    bring `depth` products from k = `first` on to `left` and `right`, whose rows are STEP; `store`
    writes the sum at a row and a column of the product. Known are `product`, `row` and `column`,
    the first ones of the tile, and `t`, the thread.
    """
    m, n, k = extent
    across, tiles, products = cut
    own = range(t.side)
    pairs = [(i, j) for i in own for j in own]
    lines = [
        code,
        f"var<workgroup> left: array<Wide, {STEP * t.rows}>;",
        f"var<workgroup> right: array<Wide, {STEP * t.columns}>;",
        f"""@compute @workgroup_size({t.down * t.across})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>) {{
  let group = w.x + w.y * n.x;
  let t = l.x;
  let product = group / {tiles};
  if (product >= {products}) {{ return; }}
  let row = group % {tiles} / {across} * {t.rows}u;
  let column = group % {tiles} % {across} * {t.columns}u;
  let x = t % {t.across}u;
  let y = t / {t.across}u;""",
        *start,
        *(f"  var total{i}{j} = Sum();\n  var chunk{i}{j} = Sum();" for i, j in pairs),
        f"  for (var first = 0u; first < {k}; first += {STEP}u) {{",
        f"    let depth = min({k} - first, {STEP}u);",
        *copies,
        "    workgroupBarrier();",
        "    for (var u = 0u; u < depth; u++) {",
        *(f"      let a{i} = left[u * {t.rows}u + y * {t.side}u + {i}u];" for i in own),
        *(f"      let b{j} = right[u * {t.columns}u + x + {j * t.across}u];" for j in own),
        *(f"      chunk{i}{j} = pb_fused(a{i}, b{j}, chunk{i}{j});" for i, j in pairs),
        "    }",
        "    workgroupBarrier();",
        *(_chunk_end(pairs, k, chunk) if chunk else ()),
        "  }",
    ]
    for i, j in pairs:
        r, c = f"row + y * {t.side}u + {i}u", f"column + x + {j * t.across}u"
        sum_ = f"total{i}{j}" if chunk else f"chunk{i}{j}"
        lines += [f"  if ({r} < {m} && {c} < {n}) {{", f"    {store(r, c, sum_)}", "  }"]
    return "\n".join([*lines, "}"])


def _chunk_end(pairs: Sequence[tuple[int, int]], k: str, chunk: int) -> list[str]:
    """Statements that add up the sums of a chunk that has ended."""
    return [
        "    let done = first + depth;",
        f"    if (done % {chunk}u == 0u || done == {k}) {{",
        f"      if (done <= {chunk}u) {{",
        *(f"        total{i}{j} = chunk{i}{j};" for i, j in pairs),
        "      } else {",
        *(f"        total{i}{j} = pb_sum(total{i}{j}, chunk{i}{j});" for i, j in pairs),
        "      }",
        *(f"      chunk{i}{j} = Sum();" for i, j in pairs),
        "    }",
    ]
