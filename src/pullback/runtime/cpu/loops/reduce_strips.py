"""LLVM IR of reductions of outputs that lie side by side, for arrays that fit in a cache.

A strip is one vector of outputs. Its lanes are folded in registers, some at a time, so rows are
visited in jumps: too far ones in a large array, where `reduce_columns` does better.
"""

from __future__ import annotations

from functools import lru_cache

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand
from pullback.runtime.cpu.loops.reduce_code import GroupedReduction, output_width
from pullback.runtime.cpu.loops.tree_code import (
    LEVELS,
    ElementExpressions,
    Values,
)

__all__ = ["TILE", "strips"]

TILE = 64  # columns of a unit: a few vectors, whose sums stay in registers
TOGETHER = 4  # lanes in registers at a time, of which there are 16 to 32


@lru_cache(jit.KEPT)
def strips(kernel: Reduce, steps: tuple[str, ...]) -> int:
    """The kernel for innermost steps of the inputs along the outputs, and one reduced axis."""
    module = IRModule()
    f = Function(module, "@kernel")
    g = GroupedReduction(f, kernel)
    strides = g.kept.strides(f, 0)
    strip = _Strip(f, g, steps, strides)
    with f.loop("%lo", "%hi") as unit:
        outer, number = f.divmod(unit.i, g["tiles"])
        column = f.mul(number, str(TILE))
        count = f.minimum(str(TILE), f.sub(g["columns"], column))
        offsets = g.kept.offsets(f, outer, [f.mul(column, s) for s in strides], first=1)
        starts = [f.offset(p, o) for p, o in zip(g.pointers, offsets, strict=True)]
        width = output_width(kernel)
        vectors = f(f"and i64 {count}, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, count)):
            with f.loop(first, last, str(w)) as at:
                strip.reduce(starts, at.i, w)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _Strip:
    """Writes the code for some outputs side by side."""

    def __init__(self, f: Function, g: GroupedReduction, steps: tuple[str, ...], strides: Values):
        self.f, self.g, self.fold, self.strides = f, g, g.fold, strides
        operands = [LoopOperand(d, s) for d, s in zip(g.kernel.inputs, steps, strict=True)]
        self.elements = ElementExpressions(g.fold, operands)
        width = output_width(g.kernel)
        self.stack = g.fold.arrays(f, LEVELS * width)
        self.lanes = g.fold.arrays(f, LANES * width)
        self.along = g.reduced.strides(f, 0)

    def reduce(self, starts: Values, i: str, w: int) -> None:
        """Fold the outputs `i` to `i + w` and store them."""
        f, g, fold = self.f, self.g, self.fold
        with f.loop("0", g["length"], str(BLOCK), carried=[("i64", "0")]) as b:
            values = self._block(
                starts[1:], i, b.i, f.minimum(str(BLOCK), f.sub(g["length"], b.i)), w
            )
            number = f(f"udiv i64 {b.i}, {BLOCK}")
            b.next = [fold.push(f, self.stack, b.carried[0], number, values, w)]
        values = fold.finish(f, fold.collect(f, self.stack, b.results[0], w), w)
        output = LoopOperand(g.kernel.output, "unit")
        output.store(f, output.at(f, starts[0], i, "0"), "0", values, w)

    def _element(self, starts: Values, i: str, number: str, w: int) -> Values:
        f = self.f
        places = [f.offset(p, f.mul(number, s)) for p, s in zip(starts, self.along, strict=True)]
        index = f.splat(number, "i64", w)
        return self.elements.values(f, places, i, self.strides[1:], index, w)

    def _block(self, starts: Values, i: str, first: str, count: str, w: int) -> Values:
        """The accumulators of a block, joined."""
        f, fold = self.f, self.fold
        whole = f.add(first, f(f"and i64 {count}, {-LANES}"))
        each = len(fold.dtypes)
        start = list(zip(fold.types(w), fold.init(f, w), strict=True)) * TOGETHER
        with f.loop("0", str(LANES), str(TOGETHER)) as group:
            with f.loop(f.add(first, group.i), whole, str(LANES), carried=start) as j:
                for lane in range(TOGETHER):
                    before = j.carried[lane * each : (lane + 1) * each]
                    values = self._element(starts, i, f.add(j.i, str(lane)), w)
                    j.next += fold.combine(f, before, values, w)
            for lane in range(TOGETHER):
                own = j.results[lane * each : (lane + 1) * each]
                at = f.mul(f.add(group.i, str(lane)), str(w))
                fold.store(f, self.lanes, at, own, w)
        with f.loop(whole, f.add(first, count)) as tail:
            at = f.mul(f.sub(tail.i, whole), str(w))
            values = self._element(starts, i, tail.i, w)
            joined = fold.combine(f, fold.load(f, self.lanes, at, w), values, w)
            fold.store(f, self.lanes, at, joined, w)
        half = LANES // 2
        while half:
            with f.loop("0", str(half * w), str(w)) as lane:
                low = fold.load(f, self.lanes, lane.i, w)
                high = fold.load(f, self.lanes, f.add(lane.i, str(half * w)), w)
                fold.store(f, self.lanes, lane.i, fold.combine(f, low, high, w), w)
            half //= 2
        return fold.load(f, self.lanes, "0", w)
