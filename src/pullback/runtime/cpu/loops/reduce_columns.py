"""LLVM IR of reductions of outputs that lie side by side: tiles of columns, row after row.

The lanes of a tile and the levels of its binary counter are arrays of accumulators on the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand
from pullback.runtime.cpu.loops.reduce_code import GroupedReduction, output_width
from pullback.runtime.cpu.loops.tree_code import (
    LEVELS,
    ElementExpressions,
    FoldWriter,
    Values,
    trailing_zeros,
)

__all__ = ["columns", "tile_width"]
__tuning__ = ("TILE_BYTES",)

TILE_BYTES = 1 << 16  # of accumulators: long pieces of rows, lanes in the second-level cache
FAN = 4  # reduced elements taken at once, so that lanes are read and written less often


def tile_width(kernel: Reduce) -> int:
    """Most columns of a tile: a power of two, and at least a vector."""
    widest = TILE_BYTES // (LANES * FoldWriter(kernel).nbytes)
    return max(32, 1 << (widest.bit_length() - 1))


@lru_cache(jit.KEPT)
def columns(kernel: Reduce, steps: tuple[str, ...]) -> int:
    """The kernel for innermost steps of the inputs along the outputs."""
    module = IRModule()
    join = FoldWriter(kernel).join_function(module, output_width(kernel))
    f = Function(module, "@kernel")
    tile = _ColumnTile(f, kernel, steps, join)
    with f.loop("%lo", "%hi") as unit:
        tile.reduce(unit.i)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _ColumnTile:
    """Writes the code for one unit: outer outputs, tile of columns, group of blocks."""

    def __init__(self, f: Function, kernel: Reduce, steps: tuple[str, ...], join: str):
        self.f, self.kernel, self.join = f, kernel, join
        self.g = GroupedReduction(f, kernel)
        self.fold = self.g.fold
        operands = [LoopOperand(d, s) for d, s in zip(kernel.inputs, steps, strict=True)]
        self.elements = ElementExpressions(self.fold, operands)
        self.width, self.columns = output_width(kernel), tile_width(kernel)
        self.strides = self.g.kept.strides(f, 0)
        self.stack = self.fold.arrays(f, LEVELS * self.columns)
        self.lanes = self.fold.arrays(f, LANES * self.columns)
        self.count = "0"  # columns of this tile

    def reduce(self, unit: str) -> None:
        """Reduce a unit and store its outputs or partial results."""
        f, g = self.f, self.g
        rest, group = f.divmod(unit, g["groups"])
        outer, number = f.divmod(rest, g["tiles"])
        column = f.mul(number, g["tile"])
        self.count = f.minimum(g["tile"], f.sub(g["columns"], column))
        offsets = g.kept.offsets(f, outer, [f.mul(column, s) for s in self.strides], first=1)
        starts = [f.offset(p, o) for p, o in zip(g.pointers, offsets, strict=True)]
        first, last = g.bounds(group)
        with f.loop(first, last, str(BLOCK), carried=[("i64", "0")]) as b:
            self._block(starts[1:], b.i, f.minimum(str(BLOCK), f.sub(last, b.i)))
            blocks = f(f"udiv i64 {f.sub(b.i, first)}, {BLOCK}")
            b.next = [self._push(b.carried[0], blocks)]
        # Lane 0 still holds the top of the counter: join the larger parts to it.
        self._join_levels(b.results[0], f.sub(b.results[0], "1"), first=1)
        self._store(starts[0], f.add(f.mul(outer, g["columns"]), column), group)

    def _each(self, body: Callable[[str, int], None]) -> None:
        """All columns of the tile, in vectors and then one by one."""
        f = self.f
        vectors = f(f"and i64 {self.count}, {-self.width}")
        for w, first, last in ((self.width, "0", vectors), (1, vectors, self.count)):
            with f.loop(first, last, str(w)) as at:
                body(at.i, w)

    def _call_join(self, target: Values, a: Values, b: Values) -> None:
        arguments = [f"ptr {p}" for p in (*target, *a, *b)] + [f"i64 {self.count}"]
        self.f.do(f"call void {self.join}({', '.join(arguments)})")

    def _block(self, starts: Values, first: str, count: str) -> None:
        """Leave the accumulators of a block in lane 0."""
        f, fold = self.f, self.fold
        with f.loop("0", str(LANES)) as lane:
            own = fold.at(f, self.lanes, f.mul(lane.i, str(self.columns)))
            with f.loop("0", self.count, str(self.width)) as i:
                fold.store(f, own, i.i, fold.init(f, self.width), self.width)
        whole = f(f"and i64 {count}, {-LANES * FAN}")
        with f.loop("0", whole, str(LANES * FAN)) as chunk, f.loop("0", str(LANES)) as lane:
            start = f.add(f.add(first, chunk.i), lane.i)
            self._lines(starts, [f.add(start, str(r * LANES)) for r in range(FAN)], lane.i)
        with f.loop(whole, count) as j:
            self._lines(starts, [f.add(first, j.i)], f(f"and i64 {j.i}, {LANES - 1}"))
        half = LANES // 2
        while half:
            with f.loop("0", str(half)) as lane:
                low = fold.at(f, self.lanes, f.mul(lane.i, str(self.columns)))
                self._call_join(low, low, fold.at(f, low, str(half * self.columns)))
            half //= 2

    def _lines(self, starts: Values, numbers: Values, lane: str) -> None:
        """Fold some reduced elements of every column into a lane, in sequence."""
        f, fold, reduced = self.f, self.fold, self.g.reduced
        places = []
        for number in numbers:
            offsets = reduced.offsets(f, number, ["0"] * reduced.streams)
            places.append([f.offset(p, o) for p, o in zip(starts, offsets, strict=True)])
        own = fold.at(f, self.lanes, f.mul(lane, str(self.columns)))

        def body(i: str, w: int) -> None:
            joined = fold.load(f, own, i, w)
            for number, place in zip(numbers, places, strict=True):
                index = f.splat(number, "i64", w)
                values = self.elements.values(f, place, i, self.strides[1:], index, w)
                joined = fold.step(f, joined, values, w)
            fold.store(f, own, i, joined, w)

        self._each(body)

    def _push(self, depth: str, number: str) -> str:
        """Add the block in lane 0, which has that number, to the binary counter; the new depth."""
        f, fold = self.f, self.fold
        merges = trailing_zeros(f, f.add(number, "1"))
        self._join_levels(depth, merges, first=0)
        top = f.sub(depth, merges)
        place = fold.at(f, self.stack, f.mul(top, str(self.columns)))
        for to, source, d in zip(place, self.lanes, fold.dtypes, strict=True):
            f.copy(to, source, f.mul(self.count, str(d.itemsize)))
        return f.add(top, "1")

    def _join_levels(self, depth: str, levels: str, first: int) -> None:
        """Join `levels` of the counter to lane 0, from level `first` below its top on."""
        f = self.f
        with f.loop("0", levels) as level:
            below = f.sub(f.sub(depth, level.i), str(1 + first))
            at = self.fold.at(f, self.stack, f.mul(below, str(self.columns)))
            self._call_join(self.lanes, at, self.lanes)

    def _store(self, start: str, position: str, group: str) -> None:
        f, fold, g = self.f, self.fold, self.g
        output = LoopOperand(self.kernel.output, "unit")
        several = g.several()
        with f.when(several):
            partials = g.partials()
            with f.loop("0", self.count) as i:
                at = f.add(f.mul(f.add(position, i.i), g["groups"]), group)
                fold.store(f, partials, at, fold.load(f, self.lanes, i.i, 1), 1)
        with f.when(f(f"xor i1 {several}, true")):

            def body(i: str, w: int) -> None:
                values = fold.finish(f, fold.load(f, self.lanes, i, w), w)
                output.store(f, output.at(f, start, i, "0"), "0", values, w)

            self._each(body)
