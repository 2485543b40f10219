"""Tiles of products in workgroup memory and registers: how matrices and convolutions walk.

A workgroup makes a tile of one product of `left` (rows, k) and `right` (k, columns); a thread has
high x wide elements of it in registers, and the operands of STEP products along k lie in workgroup
memory. Products are added up in the order of k, in chunks whose sums are added up in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.printer import convert, loaded, stored

__all__ = [
    "STEP", "THREADS", "Tile", "element_code", "large_tile_for", "product_rounds", "put",
    "tile_for", "tiles_text",
]  # fmt: skip

STEP = 16  # products between two barriers: the operands of the largest tile take 17 KiB
THREADS = 256  # of a workgroup, the most that WebGPU promises
ENOUGH_GROUPS = 64  # workgroups of large tiles that fill a device; else tiles are small


class Tile(NamedTuple):
    """Threads of a workgroup down and across, THREADS of them, and the elements of each both ways.

    Where those are fours, workgroup memory is read in vectors of four elements. `each`: so many
    products are written out in the kernel.
    """

    down: int
    across: int
    high: int
    wide: int
    each: int = 1

    @property
    def rows(self) -> int:
        return self.down * self.high

    @property
    def columns(self) -> int:
        return self.across * self.wide

    @property
    def fours(self) -> bool:
        return self.high % 4 == 0 and self.wide % 4 == 0

    def cut(self, m: int, n: int) -> tuple[int, int]:
        """Tiles down and across a product of m rows and n columns."""
        return -(-m // self.rows), -(-n // self.columns)

    def many(self, m: int, n: int) -> int:
        """The tiles of a product."""
        down, across = self.cut(m, n)
        return down * across


def tile_for(dtype: DType, count: int, m: int, n: int) -> Tile:
    """The tiles of `count` products of m rows and n columns."""
    side = 2 if dtype.is_complex else 4  # a complex sum takes four registers
    if n <= 8 * side:
        large = Tile(32, 8, side, side)
    elif m <= 8 * side:
        large = Tile(8, 32, side, side)
    else:
        large = Tile(16, 16, side, side)
    if min(m, n) > 4 * side and count * large.many(m, n) >= ENOUGH_GROUPS:
        return large
    return Tile(4, 64, 1, 1) if m <= 4 else Tile(64, 4, 1, 1) if n <= 4 else Tile(16, 16, 1, 1)


# Tiles of real products where a fused multiply-add is one instruction, and how many workgroups make
# a tile worth it. Elsewhere it is a function of a hundred instructions, which drivers write out in
# every place, so that such kernels would take minutes to compile.
_LARGE = ((Tile(16, 16, 8, 8, 8), 128), (Tile(16, 16, 8, 4, 8), 128))
EACH = 8  # products that are written out in smaller ones


def large_tile_for(dtype: DType, count: int, m: int, n: int) -> Tile:
    """The tiles on such a device."""
    if not dtype.is_complex:
        for tile, enough in _LARGE:
            if 2 * m > tile.rows and 2 * n > tile.columns and count * tile.many(m, n) >= enough:
                return tile
    return tile_for(dtype, count, m, n)._replace(each=EACH)


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
fn pb_none() -> Sum { return Sum(pb_c(0u)); }
fn pb_sum(a: Sum, b: Sum) -> Sum {
  return Sum(pb_f(a.x + b.x), pb_f(a.y + b.y), pb_f(a.z + b.z), pb_f(a.w + b.w));
}
fn pb_fused(a: Wide, b: Wide, c: Sum) -> Sum {
  return Sum(f32_fused_exact(a.x, b.x, c.x), f32_fused_exact(a.x, b.y, c.y),
             f32_fused_exact(a.y, b.x, c.z), f32_fused_exact(a.y, b.y, c.w));
}"""
    read = convert(loaded("x", dtype), dtype, dt.float32)
    write = stored(convert("x", dt.float32, dtype), dtype)
    return f"""alias Wide = f32;
alias Sum = f32;
fn pb_wide(x: u32) -> Wide {{ return {read}; }}
fn pb_narrow(x: Sum) -> u32 {{ return {write}; }}
fn pb_none() -> Sum {{ return pb_c(0u); }}
fn pb_sum(a: Sum, b: Sum) -> Sum {{ return pb_f(a + b); }}
fn pb_fused(a: Wide, b: Wide, c: Sum) -> Sum {{ return f32_fused_exact(a, b, c); }}"""


def _pitch(t: Tile, side: str) -> int:
    """Elements from one product to the next in workgroup memory: four more than there are, so that
    threads that write an element of neighbouring products do not all wait for one bank.
    """
    return (t.rows if side == "left" else t.columns) + 4 * t.fours


def put(t: Tile, side: str, u: str, i: str, value: str) -> str:
    """The statement that brings to workgroup memory the operand of product `u`, and of row or
    column `i` of the tile.
    """
    if not t.fours:
        return f"{side}[{u} * {_pitch(t, side)}u + {i}] = {value};"
    return f"{side}[{u} * {_pitch(t, side) // 4}u + ({i} >> 2u)][{i} & 3u] = {value};"


def _operands(t: Tile, u: str) -> list[str]:
    """Statements that read the operands a{i} and b{j} of a product."""
    left, right = _pitch(t, "left"), _pitch(t, "right")
    if not t.fours:
        return [
            *(f"let a{i} = left[{u} * {left}u + y * {t.high}u + {i}u];" for i in range(t.high)),
            *(f"let b{j} = right[{u} * {right}u + x + {j * t.across}u];" for j in range(t.wide)),
        ]
    lines = [
        f"let av{v} = left[{u} * {left // 4}u + y * {t.high // 4}u + {v}u];"
        for v in range(t.high // 4)
    ]
    lines += [
        f"let bv{v} = right[{u} * {right // 4}u + x + {v * t.across}u];" for v in range(t.wide // 4)
    ]
    for name, count in (("a", t.high), ("b", t.wide)):
        lines += [f"let {name}{i} = {name}v{i // 4}.{'xyzw'[i % 4]};" for i in range(count)]
    return lines


def tiles_text(
    t: Tile,
    code: str,
    extent: tuple[str, str, str],
    cut: tuple[str, str, str],
    start: Sequence[str],
    copies: Sequence[str],
    chunk: int | None,
    store: Callable[[str, str, str], str],
    fetch: Sequence[str] = (),
) -> str:
    """A kernel over tiles.

    `extent` are rows, columns and k, `cut` tiles across, tiles of a product, products. `copies`
    bring `depth` products from k = `first` on to workgroup memory by `put`, `fetch` reads what they
    need ahead; `store` writes the sum at a row and a column of the product. Known are `product`,
    `row` and `column`, the first ones of the tile, and `t`, the thread.
    """
    m, n, k = extent
    across, tiles, products = cut
    pairs = [(i, j) for i in range(t.high) for j in range(t.wide)]
    kind, per = ("vec4<Wide>", 4) if t.fours else ("Wide", 1)

    def multiply(u: str) -> list[str]:
        sums = [f"chunk{i}{j} = pb_fused(a{i}, b{j}, chunk{i}{j});" for i, j in pairs]
        return ["      {", *("        " + line for line in [*_operands(t, u), *sums]), "      }"]

    # Written out, the places of operands are known when the kernel is compiled.
    together = [
        f"    for (; u + {t.each}u <= depth; u += {t.each}u) {{",
        *(line for e in range(t.each) for line in multiply(f"(u + {e}u)")),
        "    }",
    ]
    lines = [
        code,
        f"var<workgroup> left: array<{kind}, {STEP * _pitch(t, 'left') // per}>;",
        f"var<workgroup> right: array<{kind}, {STEP * _pitch(t, 'right') // per}>;",
        f"""@compute @workgroup_size({THREADS})
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
        *(f"  var chunk{i}{j} = pb_none();" for i, j in pairs),
        *(f"  var total{i}{j} = chunk{i}{j};" for i, j in pairs if chunk),
        "  var first = 0u;",
        *fetch,
        f"  while (first < {k}) {{",
        f"    let depth = min({k} - first, {STEP}u);",
        *copies,
        "    workgroupBarrier();",
        "    let done = first + depth;",
        "    first = done;",
        *fetch,
        "    var u = 0u;",
        *(together if t.each > 1 else ()),
        "    for (; u < depth; u++) {",
        *multiply("u"),
        "    }",
        "    workgroupBarrier();",
        *(_chunk_end(pairs, k, chunk) if chunk else ()),
        "  }",
    ]
    for i, j in pairs:
        r = f"row + y * {t.high}u + {i}u"
        c = f"column + x + {j * t.across}u"
        if t.fours:
            c = f"column + {j // 4 * t.across * 4}u + x * 4u + {j % 4}u"
        sum_ = f"total{i}{j}" if chunk else f"chunk{i}{j}"
        lines += [f"  if ({r} < {m} && {c} < {n}) {{", f"    {store(r, c, sum_)}", "  }"]
    return "\n".join([*lines, "}"])


def _chunk_end(pairs: Sequence[tuple[int, int]], k: str, chunk: int) -> list[str]:
    """Statements that add up the sums of a chunk that has ended."""
    return [
        f"    if (done % {chunk}u == 0u || done == {k}) {{",
        f"      if (done <= {chunk}u) {{",
        *(f"        total{i}{j} = chunk{i}{j};" for i, j in pairs),
        "      } else {",
        *(f"        total{i}{j} = pb_sum(total{i}{j}, chunk{i}{j});" for i, j in pairs),
        "      }",
        *(f"      chunk{i}{j} = pb_none();" for i, j in pairs),
        "    }",
    ]
