"""Products of large real matrices, shared by threads: both operands are copied to panels once, and
then tiles of the output are made from the panels.

The copies of all threads are done before the first tile: two stages, or two for each piece of k
where the copies would take too much memory. Elements are made in the order of `order.product`, as
in `panel_gemm`, whose panels and blocks these are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.gemm.block_code import BlockWriter, Panels, block_sides, panel_bytes
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["COPY", "TILES", "PackedLines", "copy_kernel", "sides_of", "tile_kernel"]
__tuning__ = ("_COPY_LINES",)

# Strides and places are in bytes; `a_units` are those that copy a, which come after those of b.
# The batch comes after the words; an operand that all matrices share is copied once.
COPY = Record("a b a_to b_to", "m n k a_row a_column b_row b_column a_at b_at b_units")
# `a_item` and `b_item` are the bytes of a matrix's panels, 0 where all share them; unless `first`
# is set, sums are added to what is there.
TILES = Record("a b out", "m n k tile_m tile_n tiles across a_item b_item first")
_COPY_LINES = 96  # lines of a chunk that are copied at a time: 16 K elements or more, about 5 us


class PackedLines(NamedTuple):
    """The panels of an operand: lines of each, and bytes from one to the next."""

    width: int
    nbytes: int

    def panels(self, lines: int) -> int:
        return -(-lines // self.width)

    def groups(self, lines: int) -> int:
        """How many parts the lines are copied in."""
        return -(-lines // self.most)

    @property
    def most(self) -> int:
        """The lines that are copied at a time: whole panels."""
        return max(1, _COPY_LINES // self.width) * self.width


def sides_of(dtype: DType) -> tuple[PackedLines, PackedLines]:
    """The panels of a and of b."""
    a, b = map(PackedLines, block_sides(dtype), panel_bytes(dtype))
    return a, b


@functools.cache
def copy_kernel(dtype: DType) -> int:
    """A kernel that copies chunks of k of b and a to panels; params are `COPY`, then the batch."""
    module = IRModule()
    height, width = block_sides(dtype)
    sides = {"a": Panels(module, dtype, height), "b": Panels(module, dtype, width)}
    f = Function(module, "@kernel")
    p = BatchParams(f, COPY)
    a, b, a_to, b_to = p.pointers
    chunks = f(f"udiv i64 {f.add(p['k'], str(CHUNK - 1))}, {CHUNK}")
    with f.loop("%lo", "%hi") as unit:
        ours = f(f"icmp sge i64 {unit.i}, {p['b_units']}")
        with f.when(ours):
            at = f.sub(unit.i, p["b_units"])
            _copy(f, p, sides["a"], (a, a_to), at, chunks, ("m", "a_row", "a_column", "a_at"), 0)
        with f.when(f(f"xor i1 {ours}, true")):
            names = ("n", "b_column", "b_row", "b_at")
            _copy(f, p, sides["b"], (b, b_to), unit.i, chunks, names, 1)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _copy(
    f: Function,
    p: BatchParams,
    side: Panels,
    places: tuple[str, str],
    unit: str,
    chunks: str,
    names: tuple[str, str, str, str],
    operand: int,
) -> None:
    """Some lines of one chunk of one matrix."""
    count, stride, k_stride, start = (p[name] for name in names)
    most = PackedLines(side.width, side.apart).most
    groups = f(f"udiv i64 {f.add(count, str(most - 1))}, {most}")
    panels = f(f"udiv i64 {f.add(count, str(side.width - 1))}, {side.width}")
    chunk_of_all, group = f.divmod(unit, groups)
    item, chunk = f.divmod(chunk_of_all, chunks)
    line, k = f.mul(group, str(most)), f.mul(chunk, str(CHUNK))
    own = f.add(p.offsets(item, 2)[operand], start)
    own = f.add(own, f.add(f.mul(line, stride), f.mul(k, k_stride)))
    panel = f.add(f.mul(chunk_of_all, panels), f(f"udiv i64 {line}, {side.width}"))
    side.copy(
        f,
        f.offset(places[0], own),
        stride,
        k_stride,
        f.minimum(f.sub(count, line), str(most)),
        f.minimum(f.sub(p["k"], k), str(CHUNK)),
        f.offset(places[1], f.mul(panel, str(side.apart))),
    )


@functools.cache
def tile_kernel(dtype: DType) -> int:
    """A kernel over tiles of the matrices of a batch, from panels; params are `TILES`."""
    module = IRModule()
    blocks = BlockWriter(module, dtype)
    height, width = block_sides(dtype)
    f = Function(module, "@kernel")
    p = BatchParams(f, TILES)
    a, b, out = p.pointers
    size, edge = dtype.itemsize, blocks.edge(f)
    out_row = f.mul(p["n"], str(size))
    lower, upper = (f(f"udiv i64 {f.add(p[x], str(s - 1))}, {s}") for x, s in
                    (("m", height), ("n", width)))  # fmt: skip
    a_chunk, b_chunk = (f.mul(count, str(apart)) for count, apart in
                        zip((lower, upper), panel_bytes(dtype), strict=True))  # fmt: skip
    unset = f(f"icmp ne i64 {p['first']}, 0")
    with f.loop("%lo", "%hi") as unit:
        item, i, j, rows, columns = p.tile(unit.i)
        place = f.add(f.mul(f.add(f.mul(item, p["m"]), i), p["n"]), j)
        target = f.offset(out, f.mul(place, str(size)))
        starts = [
            f.offset(x, f.add(f.mul(item, p[step]), f.mul(f(f"udiv i64 {at}, {side}"), str(apart))))
            for x, step, at, side, apart in (
                (a, "a_item", i, height, panel_bytes(dtype)[0]),
                (b, "b_item", j, width, panel_bytes(dtype)[1]),
            )
        ]
        with f.loop("0", p["k"], str(CHUNK), carried=[("ptr", s) for s in starts]) as chunk:
            k = f.minimum(f.sub(p["k"], chunk.i), str(CHUNK))
            first = f(f"and i1 {unset}, {f(f'icmp eq i64 {chunk.i}, 0')}")
            blocks.write(f, chunk.carried, target, out_row, rows, columns, k, first, edge)
            chunk.next = [
                f.offset(x, step) for x, step in zip(chunk.carried, (a_chunk, b_chunk), strict=True)
            ]
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
