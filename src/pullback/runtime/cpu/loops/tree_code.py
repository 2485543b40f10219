"""Code that all folds share: accumulators in registers and in memory, the tree over blocks.

The tree is that of `order.tree`. Blocks are joined by a binary counter, so that parts can be made
apart and joined later. Lanes interleave elements, hence `combine` has to be commutative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import LANES
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.runtime.cpu.llvm.printer import convert, counter, emit, uniform
from pullback.runtime.cpu.llvm.writer import (
    Function,
    IRModule,
    LoopOperand,
    memory_type,
    of_width,
    register,
)

__all__ = ["LEVELS", "ElementExpressions", "FoldWriter", "positions", "trailing_zeros"]

LEVELS = 34  # of the binary counter: enough for 2**33 blocks

Values = list[str]


class FoldWriter:
    """Writes the four expressions of a Reduce or Accumulate kernel."""

    def __init__(self, kernel: Reduce):
        self.kernel = kernel
        self.dtypes: tuple[DType, ...] = tuple(e.dtype for e in kernel.init)
        self.nbytes = sum(d.itemsize for d in self.dtypes)
        self._memory = [LoopOperand(d, "unit") for d in self.dtypes]

    def types(self, width: int) -> list[str]:
        return [of_width(register(d), width) for d in self.dtypes]

    def init(self, f: Function, width: int) -> Values:
        return emit(f, self.kernel.init, width, _no_leaf)

    def combine(self, f: Function, a: Values, b: Values, width: int) -> Values:
        """The accumulators `a` (earlier) and `b` joined."""

        return self._joined(f, self.kernel.combine, a, b, width)

    def step(self, f: Function, a: Values, element: Values, width: int) -> Values:
        """The accumulators `a` joined with an element after all of theirs."""
        return self._joined(f, self.kernel.step or self.kernel.combine, a, element, width)

    def _joined(
        self, f: Function, roots: Sequence[Expr], a: Values, b: Values, width: int
    ) -> Values:
        def leaf(e: Expr) -> str:
            side, position = e.value  # type: ignore[misc]
            return (a if side == "a" else b)[position]

        return emit(f, roots, width, leaf)

    def finish(self, f: Function, values: Values, width: int) -> Values:
        """The parts of the output, in its dtype."""
        parts = emit(f, self.kernel.finish, width, lambda e: values[e.value[1]])  # type: ignore[index]
        target = self.kernel.output.real
        return [
            convert(f, v, e.dtype, target, width)
            for v, e in zip(parts, self.kernel.finish, strict=True)
        ]

    # Accumulators in memory lie in one array each.
    def arrays(self, f: Function, count: int) -> Values:
        return [f.array(memory_type(d), count) for d in self.dtypes]

    def at(self, f: Function, arrays: Values, i: str) -> Values:
        return [f.element(p, memory_type(d), i) for p, d in zip(arrays, self.dtypes, strict=True)]

    def load(self, f: Function, arrays: Values, i: str, width: int) -> Values:
        places = self.at(f, arrays, i)
        return [m.load(f, p, "0", width)[0] for m, p in zip(self._memory, places, strict=True)]

    def store(self, f: Function, arrays: Values, i: str, values: Values, width: int) -> None:
        for m, p, v in zip(self._memory, self.at(f, arrays, i), values, strict=True):
            m.store(f, p, "0", [v], width)

    def join_lanes(self, f: Function, values: Values) -> Values:
        """The lanes of vector accumulators as one, by halves."""
        width = LANES
        while width > 1:
            half = width // 2
            low, high = (self._lanes(f, values, width, range(s, s + half)) for s in (0, half))
            values = self.combine(f, low, high, half)
            width = half
        return values

    def with_rest(self, f: Function, values: Values, new: Values, count: int) -> Values:
        """Vector accumulators, with new elements in the first `count` lanes."""
        before = self._lanes(f, values, LANES, range(count))
        joined = self.step(f, before, new, count)
        found = []
        for kind, part, own, v in zip(
            self.types(count), self.types(LANES), joined, values, strict=True
        ):
            if count == 1:
                found.append(f(f"insertelement {part} {v}, {kind} {own}, i64 0"))
                continue
            widened = _mask([k if k < count else None for k in range(LANES)])
            wide = f(f"shufflevector {kind} {own}, {kind} poison, {widened}")
            order = _mask([k if k < count else LANES + k for k in range(LANES)])
            found.append(f(f"shufflevector {part} {wide}, {part} {v}, {order}"))
        return found

    def _lanes(self, f: Function, values: Values, width: int, lanes: range) -> Values:
        found = []
        for kind, v in zip(self.types(width), values, strict=True):
            if len(lanes) == 1:
                found.append(f(f"extractelement {kind} {v}, i64 {lanes[0]}"))
            else:
                mask = ", ".join(f"i32 {k}" for k in lanes)
                found.append(
                    f(f"shufflevector {kind} {v}, {kind} poison, <{len(lanes)} x i32> <{mask}>")
                )
        return found

    def push(
        self, f: Function, stack: Values, depth: str, number: str, values: Values, width: int = 1
    ) -> str:
        """Add block `number` (from 0) to the binary counter; the new depth.

        A level of the counter has `width` accumulators side by side.
        """
        merges = trailing_zeros(f, f.add(number, "1"))
        start = list(zip(self.types(width), values, strict=True))
        with f.loop("0", merges, carried=start) as level:
            below = f.mul(f.sub(f.sub(depth, level.i), "1"), str(width))
            present = self.load(f, stack, below, width)
            level.next = self.combine(f, present, level.carried, width)
        top = f.sub(depth, merges)
        self.store(f, stack, f.mul(top, str(width)), level.results, width)
        return f.add(top, "1")

    def collect(self, f: Function, stack: Values, depth: str, width: int = 1) -> Values:
        """What the binary counter holds, joined from the smallest part to the largest."""
        last = f.sub(depth, "1")
        top = self.load(f, stack, f.mul(last, str(width)), width)
        start = list(zip(self.types(width), top, strict=True))
        with f.loop("0", last, carried=start) as level:
            below = f.mul(f.sub(f.sub(last, level.i), "1"), str(width))
            present = self.load(f, stack, below, width)
            level.next = self.combine(f, present, level.carried, width)
        return level.results

    def join_function(self, module: IRModule, width: int) -> str:
        """A function of arrays of accumulators and a count: target = combine(a, b)."""
        count = len(self.dtypes)
        groups = [[f"%{g}{k}" for k in range(count)] for g in "tab"]
        parameters = [("ptr", name) for g in groups for name in g] + [("i64", "%n")]
        f = Function(module, "@join", parameters, qualifiers="internal ")
        target, a, b = groups
        vectors = f(f"and i64 %n, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, "%n")):
            with f.loop(first, last, str(w)) as at:
                left, right = self.load(f, a, at.i, w), self.load(f, b, at.i, w)
                self.store(f, target, at.i, self.combine(f, left, right, w), w)
        f.finish()
        return "@join"


class ElementExpressions:
    """The element expressions of a kernel, read from operands."""

    def __init__(self, fold: FoldWriter, operands: Sequence[LoopOperand]):
        self.fold = fold
        self.operands = operands
        self._known: dict[int, dict[Expr, str]] = {}

    def hoist(self, f: Function, starts: Values, widths: Sequence[int]) -> None:
        """Compute what repeated operands alone decide, for the elements that follow."""
        outer = uniform(self.fold.kernel.element, self.operands)
        values = emit(f, outer, 1, self._leaf(f, starts, "0", ["0"] * len(starts), "0", 1))
        for width in widths:
            wide = (
                f.splat(v, register(e.dtype), width) for e, v in zip(outer, values, strict=True)
            )
            self._known[width] = dict(zip(outer, wide, strict=True))

    def values(
        self, f: Function, starts: Values, i: str, strides: Values, index: str, width: int
    ) -> Values:
        """Elements `i` to `i + width` from `starts` on; `index` has that width."""
        leaf = self._leaf(f, starts, i, strides, index, width)
        return emit(f, self.fold.kernel.element, width, leaf, self._known.get(width))

    def _leaf(
        self, f: Function, starts: Values, i: str, strides: Values, index: str, width: int
    ) -> Callable[[Expr], str]:
        loaded: dict[int, list[str]] = {}

        def leaf(e: Expr) -> str:
            if e.op == "index":
                return index
            k, part = e.value  # type: ignore[misc]
            if k not in loaded:
                operand = self.operands[k]
                at = operand.at(f, starts[k], i, strides[k])
                loaded[k] = operand.load(f, at, strides[k], width)
            return loaded[k][part]

        return leaf


def _mask(lanes: Sequence[int | None]) -> str:
    """The mask of a shuffle; None may be any lane."""
    order = ", ".join("i32 poison" if k is None else f"i32 {k}" for k in lanes)
    return f"<{len(lanes)} x i32> <{order}>"


def positions(f: Function, first: str, width: int) -> str:
    """`first`, `first + 1`, ... in the lanes."""
    return counter(f, first, "1", width)


def trailing_zeros(f: Function, n: str) -> str:
    """How often 2 divides `n`: the merges that block `n` causes in a binary counter."""
    callee = f.module.intrinsic("llvm.cttz.i64", "i64", "i64", "i1")
    return f(f"call i64 {callee}(i64 {n}, i1 true)")


def _no_leaf(e: Expr) -> str:
    raise AssertionError(f"the identity of a fold can't read {e.op}")
