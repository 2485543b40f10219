"""Products of large real matrices: blocks of both operands are copied to where registers want them.

Every element of a product is made in the order of `order.product`, whatever the layout of the
operands, the tile it lies in and the number of threads. `direct_gemm` keeps it too.

A tile of the output is made by one thread. For each chunk of k it copies its columns of b to panels
as wide as a block, then some of a's rows at a time, and goes through the blocks of these. The
copies are on the stack: they stay in the second-level cache. Few rows read b where it is, if its
columns lie side by side: to copy it would take as long as the products.
"""

from __future__ import annotations

import functools

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.gemm.block_code import BlockWriter, Panels, block_sides, call
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record, numbers_of
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["PLACED", "WHOLE", "panel_kernel", "placed_kernel"]
__tuning__ = ("_FEW",)

_COPIED = 1 << 18  # bytes of b that are copied at a time: part of an L2 cache
_ROWS = 96  # of a that are copied at a time
_FEW = 48  # rows that read b where it is

# Strides are in bytes; matrix i of the batch sums min(k, all_k - i k) products.
_TILES = "m n k all_k a_row a_column b_row b_column tile_m tile_n tiles across"
WHOLE = Record("a b out", _TILES)
# Of parts of larger matrices: where they begin in the memory of a matrix of the batch, and if
# `lower` is set, only tiles that reach the diagonal or below.
PLACED = Record("a b out", f"{_TILES} out_row a_at b_at out_at lower")
_TILE = (
    *(("ptr", "%a"), ("ptr", "%b"), ("ptr", "%out"), ("i64", "%rows"), ("i64", "%columns")),
    *(("i64", "%k"), ("ptr", "%params")),
)


@functools.cache
def panel_kernel(dtype: DType) -> int:
    """A kernel over tiles of the matrices of a batch; params are `WHOLE`, then the batch."""
    module = IRModule()
    tile = _TileWriter(module, dtype).name
    f = Function(module, "@kernel")
    p = BatchParams(f, WHOLE)
    size = str(dtype.itemsize)
    a, b, out = p.pointers
    with f.loop("%lo", "%hi") as unit:
        item, i, j, rows, columns = p.tile(unit.i)
        a_at, b_at = p.offsets(item, 2)
        own_a = f.offset(a, f.add(a_at, f.mul(i, p["a_row"])))
        own_b = f.offset(b, f.add(b_at, f.mul(j, p["b_column"])))
        place = f.add(f.mul(f.add(f.mul(item, p["m"]), i), p["n"]), j)
        k = f.minimum(p["k"], f.sub(p["all_k"], f.mul(item, p["k"])))
        target = f.offset(out, f.mul(place, size))
        call(f, tile, _TILE, (own_a, own_b, target, rows, columns, k, "%params"))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@functools.cache
def placed_kernel(dtype: DType, minus: bool) -> int:
    """The same between parts of matrices: out = a b, or `minus` out -= a b, chunk by chunk of k;
    params are `PLACED`, then the batch with strides of a, b and out.
    """
    module = IRModule()
    tile = _TileWriter(module, dtype, PLACED, minus).name
    f = Function(module, "@kernel")
    p = BatchParams(f, PLACED)
    a, b, out = p.pointers
    with f.loop("%lo", "%hi") as unit:
        item, i, j, rows, columns = p.tile(unit.i)
        above = f(f"icmp sge i64 {j}, {f.add(i, rows)}")
        lower = f(f"icmp ne i64 {p['lower']}, 0")
        left_out = f(f"and i1 {above}, {lower}")
        with f.when(f(f"xor i1 {left_out}, true")):
            a_at, b_at, out_at = p.offsets(item, 3)
            own_a = f.offset(a, f.add(f.add(a_at, p["a_at"]), f.mul(i, p["a_row"])))
            own_b = f.offset(b, f.add(f.add(b_at, p["b_at"]), f.mul(j, p["b_column"])))
            place = f.add(f.mul(i, p["out_row"]), f.mul(j, str(dtype.itemsize)))
            target = f.offset(out, f.add(f.add(out_at, p["out_at"]), place))
            call(f, tile, _TILE, (own_a, own_b, target, rows, columns, p["k"], "%params"))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _TileWriter:
    """Writes the function that makes a tile, and those that it calls."""

    def __init__(self, module: IRModule, dtype: DType, params: Record = WHOLE, minus: bool = False):
        size = dtype.itemsize
        height, width = block_sides(dtype)
        blocks = BlockWriter(module, dtype, minus)
        a_side, b_side = Panels(module, dtype, height), Panels(module, dtype, width)
        self.name = "@tile"
        f = Function(module, self.name, _TILE, qualifiers="internal ")
        words = numbers_of(f, params)
        a_row, a_column, b_row, b_column = (
            words[name] for name in ("a_row", "a_column", "b_row", "b_column")
        )
        out_row = words.get("out_row") or f.mul(words["n"], str(size))
        most = _COPIED // (CHUNK * size)
        b_area = f.array("i8", most // width * b_side.apart)
        a_area = f.array("i8", _ROWS // height * a_side.apart)
        edge = blocks.edge(f)
        few = f(f"icmp sle i64 %rows, {_FEW}")
        beside = f(f"and i1 {few}, {f(f'icmp eq i64 {b_column}, {size}')}")
        there = f(f"select i1 {beside}, i64 {f(f'and i64 %columns, {-width}')}, i64 0")
        copied, past = f.sub("%columns", there), f.mul(there, str(size))
        with f.loop("0", "%k", str(CHUNK)) as chunk:
            k = f.minimum(f.sub("%k", chunk.i), str(CHUNK))
            b = f.offset("%b", f.mul(chunk.i, b_row))
            b_side.copy(f, f.offset(b, past), b_column, b_row, copied, k, b_area)
            source = f.offset("%a", f.mul(chunk.i, a_column))
            first = "false" if minus else f(f"icmp eq i64 {chunk.i}, 0")
            with f.loop("0", "%rows", str(_ROWS)) as group:
                rows = f.minimum(f.sub("%rows", group.i), str(_ROWS))
                own = f.offset(source, f.mul(group.i, a_row))
                a_side.copy(f, own, a_row, a_column, rows, k, a_area)
                out = f.offset("%out", f.mul(group.i, out_row))
                chunks = (k, first, edge)
                blocks.write(f, (a_area, b), out, out_row, rows, there, *chunks, b_row)
                out = f.offset(out, past)
                blocks.write(f, (a_area, b_area), out, out_row, rows, copied, *chunks)
        f.finish()
