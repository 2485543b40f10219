"""LLVM IR of running folds: in sequence along one axis, side by side where outputs are dense."""

from __future__ import annotations

from functools import cache, lru_cache

from pullback.compile.kernel.forms import Accumulate
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import vector_width
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand
from pullback.runtime.cpu.loops.nest import StreamParams, Streams
from pullback.runtime.cpu.loops.tree_code import ElementExpressions, FoldWriter, Values

__all__ = ["TILE", "columns", "params", "rows"]

TILE = 512  # columns of accumulators that are kept in memory


@cache
def params(inputs: int) -> Streams:
    """The params: elements along the folded axis, the first index and the step to the next, the
    stride of each array along that axis, and tiles of so many columns.
    """
    return Streams(1 + inputs, "length first step along[arrays] tiles width")


class _Arguments:
    def __init__(self, f: Function, kernel: Accumulate):
        p, count = StreamParams(f, params(len(kernel.inputs))), 1 + len(kernel.inputs)
        self.own = p.own()
        self.along = [self.own["along", k] for k in range(count)]
        self.pointers = p.pointers()
        self.kept = p.axes(count)
        self.none = ["0"] * count

    def __getitem__(self, name: str) -> str:
        """A number among the params."""
        return self.own[name]


@lru_cache(jit.KEPT)
def rows(kernel: Accumulate) -> int:
    """A unit is one kept element; its accumulators stay in registers."""
    module, fold = IRModule(), FoldWriter(kernel)
    f = Function(module, "@kernel")
    a = _Arguments(f, kernel)
    output = LoopOperand(kernel.output, "unit")
    elements = ElementExpressions(fold, [LoopOperand(d, "unit") for d in kernel.inputs])
    with f.loop("%lo", "%hi") as unit:
        offsets = a.kept.offsets(f, unit.i, a.none)
        start = [("i64", a["first"]), *(("i64", o) for o in offsets)]
        start += zip(fold.types(1), fold.init(f, 1), strict=True)
        with f.loop("0", a["length"], carried=start) as j:
            index, *rest = j.carried
            at, before = rest[: len(offsets)], rest[len(offsets) :]
            places = [f.offset(p, o) for p, o in zip(a.pointers, at, strict=True)]
            values = elements.values(f, places[1:], "0", a.none, index, 1)
            joined = fold.combine(f, before, values, 1)
            output.store(f, places[0], "0", fold.finish(f, joined, 1), 1)
            moved = [f.add(o, s) for o, s in zip(at, a.along, strict=True)]
            j.next = [f.add(index, a["step"]), *moved, *joined]
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@lru_cache(jit.KEPT)
def columns(kernel: Accumulate, steps: tuple[str, ...]) -> int:
    """A unit is a tile of kept elements; their accumulators lie in memory."""
    module, fold = IRModule(), FoldWriter(kernel)
    width = vector_width((*kernel.element, *kernel.combine, *kernel.finish),
                         (kernel.output, *kernel.inputs))  # fmt: skip
    f = Function(module, "@kernel")
    a = _Arguments(f, kernel)
    output = LoopOperand(kernel.output, steps[0])
    elements = ElementExpressions(
        fold, [LoopOperand(d, s) for d, s in zip(kernel.inputs, steps[1:], strict=True)]
    )
    strides, size = a.kept.strides(f, 0), a.kept.size(f, 0)
    running = fold.arrays(f, TILE)

    def line(places: Values, index: str, n: str) -> None:
        vectors = f(f"and i64 {n}, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, n)):
            with f.loop(first, last, str(w)) as at:
                number = f.splat(index, "i64", w)
                values = elements.values(f, places[1:], at.i, strides[1:], number, w)
                joined = fold.combine(f, fold.load(f, running, at.i, w), values, w)
                fold.store(f, running, at.i, joined, w)
                place = output.at(f, places[0], at.i, strides[0])
                output.store(f, place, strides[0], fold.finish(f, joined, w), w)

    with f.loop("%lo", "%hi") as unit:
        outer, tile = f.divmod(unit.i, a["tiles"])
        first = f.mul(tile, a["width"])
        n = f.minimum(a["width"], f.sub(size, first))
        offsets = a.kept.offsets(f, outer, [f.mul(first, s) for s in strides], first=1)
        with f.loop("0", str(TILE), str(width)) as i:
            fold.store(f, running, i.i, fold.init(f, width), width)
        start = [("i64", a["first"]), *(("i64", o) for o in offsets)]
        with f.loop("0", a["length"], carried=start) as j:
            index, *at = j.carried
            line([f.offset(p, o) for p, o in zip(a.pointers, at, strict=True)], index, n)
            j.next = [
                f.add(index, a["step"]),
                *(f.add(o, s) for o, s in zip(at, a.along, strict=True)),
            ]
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
