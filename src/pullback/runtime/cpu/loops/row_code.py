"""LLVM IR of row kernels: the passes over one row after the other, and what joins their columns.

Folds keep the tree of `tree_code`. A fold from row to row leaves lane `row % LANES` of block
`row // BLOCK` in memory, where a second kernel finds them all; a fold over everything leaves the
accumulators of each row, which have to be a subtree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.compile.schedule.row_kernel import Pass, RowKernel
from pullback.ir.scalar import Expr
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import convert, emit, uniform, vector_width
from pullback.runtime.cpu.llvm.records import NamedParams, Params, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand, register
from pullback.runtime.cpu.loops.tree_code import (
    LEVELS,
    FoldWriter,
    Values,
    positions,
)

__all__ = ["COLUMN", "Lengths", "column_kernel", "params", "row_kernel"]
__tuning__ = ("SHORT",)

# Of a fold over columns, whose accumulators for the lanes of blocks lie `pitch` bytes apart.
COLUMN = Record("out lanes", "pitch rows columns")
SHORT = 64  # elements of rows whose length is compiled in: a few vectors, the last partly filled
_IN_MEMORY = ("unit", "zero")  # kinds of streams
_LANE_BITS, _BLOCK_BITS = LANES.bit_length() - 1, BLOCK.bit_length() - 1


class Lengths(NamedTuple):
    """What code knows of the length of rows: at most a block, a multiple of the lanes; of a few
    elements how many, else 0.
    """

    short: bool
    even: bool
    exact: int

    @staticmethod
    def of(length: int) -> Lengths:
        exact = length if length <= SHORT else 0
        return Lengths(length <= BLOCK, length % LANES == 0, exact)

    @property
    def rest(self) -> int:
        """Lanes of the last vector, if they are known and not all are filled."""
        return self.exact % LANES


@lru_cache(jit.KEPT)
def params(kernel: RowKernel) -> Record:
    """The params of `row_kernel`: `together` is the logarithm of the lanes that a task has, a step
    the bytes from row to row of a stream in memory, a pitch those from one array of accumulators
    of a fold over columns, or over everything, to the next.
    """
    return Record(
        "",
        "rows length together (*stream stream_step)[streams]"
        " (*column column_pitch)[columns] (*whole whole_pitch)[wholes]",
        streams=sum(s.kind in _IN_MEMORY for s in kernel.streams),
        columns=len(kernel.columns),
        wholes=len(kernel.wholes),
    )


@lru_cache(jit.KEPT)
def row_kernel(kernel: RowKernel, lengths: Lengths) -> int:
    """The kernel over rows; a unit is a row, or its place in the order of `_row_of`."""
    module = IRModule()
    f = Function(module, "@kernel")
    writer = _RowWriter(f, kernel, lengths)
    with f.loop("%lo", "%hi") as unit:
        row = writer.row_of(unit.i)
        with f.when(f(f"icmp slt i64 {row}, {writer.rows}")):
            writer.write(row)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _RowWriter:
    """Writes the code for a row."""

    def __init__(self, f: Function, kernel: RowKernel, lengths: Lengths):
        self.f, self.kernel, self.lengths = f, kernel, lengths
        self.p = p = Params(f, params(kernel))
        self.rows, self.length, self.together = p["rows"], p["length"], p["together"]
        if lengths.exact:
            self.length = str(lengths.exact)
        self.pointers: dict[int, tuple[str, str]] = {}
        self.starts: dict[int, str] = {}
        for k, s in enumerate(kernel.streams):
            if s.kind in _IN_MEMORY:
                number = len(self.pointers)
                slot, step = p["stream", number], p["stream_step", number]
                self.pointers[k] = f.pointer_in(slot), step
            elif s.kind == "buffer":
                nbytes = f.mul(self.length, str(s.dtype.itemsize))
                self.starts[k] = f(f"alloca i8, i64 {nbytes}, align 64")
        self.columns = [self._arrays(r, "column", k) for k, r in enumerate(kernel.columns)]
        self.wholes = [self._arrays(r, "whole", k) for k, r in enumerate(kernel.wholes)]
        folds = [
            FoldWriter(r) for p in kernel.passes for r in (*(r for _, r in p.folds), *p.wholes)
        ]
        self.spaces = [(x.arrays(f, LEVELS), x.arrays(f, LANES)) for x in folds]
        self.operands = [
            LoopOperand(s.dtype, "unit" if s.kind in ("unit", "buffer") else "zero")
            for s in kernel.streams
        ]
        self.row = ""
        self.scalars: dict[int, Values] = {}
        self.known: dict[int, dict[Expr, str]] = {}

    def _arrays(self, fold: Reduce, name: str, which: int) -> Values:
        """The accumulators of a fold."""
        f, p = self.f, self.p
        slot, pitch = p[name, which], p[f"{name}_pitch", which]
        first, count = f.pointer_in(slot), len(FoldWriter(fold).dtypes)
        return [f.offset(first, f.mul(pitch, str(k))) for k in range(count)]

    def row_of(self, unit: str) -> str:
        """The row of a unit.

        Folds over columns need the rows of a lane in order, in one task. A task has some lanes of
        a block: the units of a block are those of its first lanes, then of the next ones.
        """
        f = self.f
        if not self.kernel.columns:
            return unit
        bits = str(_BLOCK_BITS - _LANE_BITS)
        block = f(f"and i64 {unit}, {-BLOCK}")
        within = f(f"and i64 {unit}, {BLOCK - 1}")
        group = f(f"lshr i64 {within}, {f.add(self.together, bits)}")
        number = f(f"lshr i64 {within}, {self.together}")
        number = f(f"and i64 {number}, {BLOCK // LANES - 1}")
        mask = f.sub(f(f"shl i64 1, {self.together}"), "1")
        lane = f.add(f(f"shl i64 {group}, {self.together}"), f(f"and i64 {within}, {mask}"))
        return f.add(f.add(block, f(f"shl i64 {number}, {_LANE_BITS}")), lane)

    def write(self, row: str) -> None:
        f = self.f
        self.row, self.scalars = row, {}
        self.known = {width: {} for width in {1, LANES, self.lengths.rest or 1}}
        for k, (pointer, step) in self.pointers.items():
            self.starts[k] = f.offset(pointer, f.mul(row, step))
        columns, wholes, spaces = iter(self.columns), iter(self.wholes), iter(self.spaces)
        for p in self.kernel.passes:
            self._scalars(p)
            folds = [(FoldWriter(r), *next(spaces)) for r in (*(r for _, r in p.folds), *p.wholes)]
            across = [(FoldWriter(r), self._lane(FoldWriter(r), next(columns))) for r in p.columns]
            if p.stores or folds or across:
                writer = _Pass(self, p, folds, across)
                results = writer.write()
                self._finish(p, folds, results, [next(wholes) for _ in p.wholes])
        for scalar, target in self.kernel.kept:
            operand = self.operands[target]
            operand.store(f, self.starts[target], "0", self.scalars[scalar], 1)

    def leaf(self, e: Expr, i: str, width: int, loaded: dict[int, Values]) -> str:
        k, part = e.value  # type: ignore[misc]
        if k in self.scalars:
            return self.scalars[k][part]
        if k not in loaded:
            operand = self.operands[k]
            at = operand.at(self.f, self.starts[k], i, "0")
            loaded[k] = operand.load(self.f, at, "0", width)
        return loaded[k][part]

    def _evaluated(self, roots: Sequence[Expr]) -> Values:
        """Expressions that are the same for the whole row."""
        loaded: dict[int, Values] = {}
        known = self.known[1]
        values = emit(self.f, roots, 1, lambda e: self.leaf(e, "0", 1, loaded), known)
        known.update(zip(roots, values, strict=True))
        return values

    def _scalars(self, p: Pass) -> None:
        for stream, body in p.scalars:
            dtype = self.kernel.streams[stream].dtype.real
            values = self._evaluated(body)
            self.scalars[stream] = [
                convert(self.f, v, e.dtype, dtype, 1) for v, e in zip(values, body, strict=True)
            ]

    def hoist(self, roots: Sequence[Expr]) -> None:
        """Compute what is the same for the whole row before a loop along it."""
        outer = uniform(roots, self.operands)
        values = self._evaluated(outer)
        for width, wide in self.known.items():
            for e, v in zip(outer, values, strict=True):
                if e not in wide:
                    wide[e] = self.f.splat(v, register(e.dtype), width)

    def _lane(self, fold: FoldWriter, arrays: Values) -> Values:
        """The accumulators of this row's lane, one for each column."""
        f = self.f
        block = f(f"lshr i64 {self.row}, {_BLOCK_BITS}")
        lane = f(f"and i64 {self.row}, {LANES - 1}")
        number = f.add(f(f"shl i64 {block}, {_LANE_BITS}"), lane)
        return fold.at(f, arrays, f.mul(number, self.length))

    def _finish(
        self,
        p: Pass,
        folds: Sequence[tuple[FoldWriter, Values, Values]],
        results: Sequence[Values],
        wholes: Sequence[Values],
    ) -> None:
        f = self.f
        for (stream, _), (fold, *_), values in zip(p.folds, folds, results, strict=False):
            self.scalars[stream] = fold.finish(f, values, 1)
        count = len(p.folds)
        for arrays, (fold, *_), values in zip(wholes, folds[count:], results[count:], strict=True):
            fold.store(f, arrays, self.row, values, 1)


class _Pass:
    """Writes the loop of one pass: values are stored, and folded along the row and across rows."""

    def __init__(
        self,
        rows: _RowWriter,
        p: Pass,
        folds: Sequence[tuple[FoldWriter, Values, Values]],  # with levels and lanes
        across: Sequence[tuple[FoldWriter, Values]],
    ):
        self.rows, self.f = rows, rows.f
        self.folds, self.across = folds, across
        self.stores = p.stores
        bodies = [body for _, body in p.stores]
        bodies += [r.element for _, r in p.folds]
        bodies += [r.element for r in (*p.wholes, *p.columns)]
        self.sizes = [len(b) for b in bodies]
        self.roots = [e for b in bodies for e in b]
        rows.hoist(self.roots)
        start = self.f(f"and i64 {rows.row}, {BLOCK - 1}")
        self.is_first = self.f(f"icmp slt i64 {start}, {LANES}") if across else ""

    def write(self) -> list[Values]:
        """The loop; returns the accumulators of the folds along the row."""
        f, length = self.f, self.rows.length
        if not self.folds:
            self._each("0", length, lambda i, w: (self._elements(i, w), None)[1])
            return []
        if self.rows.lengths.short:
            return self._block("0", length)
        with f.loop("0", length, str(BLOCK), carried=[("i64", "0")]) as b:
            count = f.minimum(str(BLOCK), f.sub(length, b.i))
            blocks = self._block(b.i, count)
            number = f(f"udiv i64 {b.i}, {BLOCK}")
            depth = "0"
            for (fold, stack, _), values in zip(self.folds, blocks, strict=True):
                depth = fold.push(f, stack, b.carried[0], number, values)
            b.next = [depth]
        return [fold.collect(f, stack, b.results[0]) for fold, stack, _ in self.folds]

    def _each(self, first: str, last: str, body: Callable[[str, int], None]) -> None:
        f = self.f
        if self.rows.lengths.even:
            with f.loop(first, last, str(LANES)) as at:
                body(at.i, LANES)
            return
        rest = self.rows.lengths.rest
        vectors = f(f"and i64 {last}, {-LANES}")
        for w, start, stop in ((LANES, first, vectors), (rest or 1, vectors, last)):
            with f.loop(start, stop, str(w)) as at:
                body(at.i, w)

    def _elements(self, i: str, w: int) -> list[Values]:
        """Elements `i` to `i + w`: stored, folded across rows; those to fold along the row."""
        f, rows = self.f, self.rows
        loaded: dict[int, Values] = {}

        def leaf(e: Expr) -> str:
            return positions(f, i, w) if e.op == "index" else rows.leaf(e, i, w, loaded)

        found = iter(emit(f, self.roots, w, leaf, rows.known[w]))
        bodies = [[next(found) for _ in range(n)] for n in self.sizes]
        for (stream, body), values in zip(self.stores, bodies, strict=False):
            operand = rows.operands[stream]
            real = operand.dtype.real
            parts = [convert(f, v, e.dtype, real, w) for v, e in zip(values, body, strict=True)]
            operand.store(f, operand.at(f, rows.starts[stream], i, "0"), "0", parts, w)
        first = len(self.stores) + len(self.folds)
        for (fold, lane), values in zip(self.across, bodies[first:], strict=True):
            before = [
                f(f"select i1 {self.is_first}, {t} {a}, {t} {b}")
                for t, a, b in zip(
                    fold.types(w), fold.init(f, w), fold.load(f, lane, i, w), strict=True
                )
            ]
            fold.store(f, lane, i, fold.combine(f, before, values, w), w)
        return bodies[len(self.stores) : first]

    def _block(self, first: str, count: str) -> list[Values]:
        """The accumulators of the elements from `first` on, joined."""
        f = self.f
        even = self.rows.lengths.even
        vectors = count if even else f(f"and i64 {count}, {-LANES}")
        start = [
            pair
            for fold, *_ in self.folds
            for pair in zip(fold.types(LANES), fold.init(f, LANES), strict=True)
        ]
        with f.loop("0", vectors, str(LANES), carried=start) as at:
            values = self._elements(f.add(first, at.i), LANES)
            for (fold, *_), before, new in zip(
                self.folds, self._split(at.carried), values, strict=True
            ):
                at.next += fold.combine(f, before, new, LANES)
        whole = zip(self.folds, self._split(at.results), strict=True)
        if even:
            return [fold.join_lanes(f, values) for (fold, *_), values in whole]
        rest = self.rows.lengths.rest
        if rest:
            new = self._elements(f.add(first, vectors), rest)
            return [
                fold.join_lanes(f, fold.with_rest(f, values, own, rest))
                for ((fold, *_), values), own in zip(whole, new, strict=True)
            ]
        for (fold, _, lanes), values in whole:
            fold.store(f, lanes, "0", values, LANES)
        with f.loop(vectors, count) as tail:
            values = self._elements(f.add(first, tail.i), 1)
            lane = f.sub(tail.i, vectors)
            for (fold, _, lanes), new in zip(self.folds, values, strict=True):
                joined = fold.combine(f, fold.load(f, lanes, lane, 1), new, 1)
                fold.store(f, lanes, lane, joined, 1)
        return [
            fold.join_lanes(f, fold.load(f, lanes, "0", LANES)) for fold, _, lanes in self.folds
        ]

    def _split(self, values: Values) -> list[Values]:
        found, at = [], 0
        for fold, *_ in self.folds:
            found.append(values[at : at + len(fold.dtypes)])
            at += len(fold.dtypes)
        return found


@lru_cache(jit.KEPT)
def column_kernel(kernel: Reduce) -> int:
    """Joins what `row_kernel` leaves of a fold over columns; a unit is a column."""
    module, fold = IRModule(), FoldWriter(kernel)
    f = Function(module, "@kernel")
    p = NamedParams(f, COLUMN)
    rows, columns, target, first = p["rows"], p["columns"], p.pointer("out"), p.pointer("lanes")
    arrays = [f.offset(first, f.mul(p["pitch"], str(k))) for k in range(len(fold.dtypes))]
    width = vector_width((*kernel.combine, *kernel.finish), (kernel.output,))
    stack = fold.arrays(f, LEVELS * width)
    output = LoopOperand(kernel.output, "unit")

    def reduce(i: str, w: int) -> None:
        with f.loop("0", rows, str(BLOCK), carried=[("i64", "0")]) as b:
            number = f(f"lshr i64 {b.i}, {_BLOCK_BITS}")
            lanes = []
            for lane in range(LANES):
                line = f.add(f.mul(number, str(LANES)), str(lane))
                there = fold.load(f, arrays, f.add(f.mul(line, columns), i), w)
                used = f(f"icmp slt i64 {f.add(b.i, str(lane))}, {rows}")
                pairs = zip(fold.types(w), there, fold.init(f, w), strict=True)
                lanes.append([f(f"select i1 {used}, {t} {x}, {t} {y}") for t, x, y in pairs])
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [
                    fold.combine(f, low, high, w)
                    for low, high in zip(lanes[:half], lanes[half:], strict=True)
                ]
            b.next = [fold.push(f, stack, b.carried[0], number, lanes[0], w)]
        values = fold.finish(f, fold.collect(f, stack, b.results[0], w), w)
        output.store(f, output.at(f, target, i, "0"), "0", values, w)

    vectors = f.sub("%hi", str(width - 1))
    with f.loop("%lo", vectors, str(width), carried=[("i64", "%lo")]) as at:
        reduce(at.i, width)
        at.next = [f.add(at.i, str(width))]
    with f.loop(at.results[0], "%hi") as one:
        reduce(one.i, 1)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
