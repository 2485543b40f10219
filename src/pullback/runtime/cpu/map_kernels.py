"""Map kernels: elementwise bodies over strided operands, as LLVM IR and as stages.

A unit of work is one element, in the order of the merged axes. Code is specialised for the body and
for the innermost step of each array (dense, repeated, anything); shapes and strides are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from pullback.compile.kernel import Map
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, topological
from pullback.runtime.cpu import jit, native
from pullback.runtime.cpu.llvm import Function, Module, Operand, register
from pullback.runtime.cpu.nest import (
    TILE_PARAMETERS,
    Nest,
    Records,
    Streams,
    coalesce,
    each_line,
    step_of,
    walk,
)
from pullback.runtime.cpu.printer import (
    LEAVES,
    convert,
    emit,
    inline_nodes,
    inline_operands,
    vector_width,
)
from pullback.runtime.cpu.tiling import boxes

__all__ = ["GRAIN", "INLINE", "dense_strides", "grain_of", "map_program", "map_stage"]

INLINE = 1 << 16  # elements that one thread does alone
GRAIN = 1 << 15  # elements of a task beyond that

Strides = Sequence[int]


def map_program(
    kernel: Map, out_shape: Sequence[int], input_strides: Sequence[Strides]
) -> Callable[..., Any]:
    """A callable that applies the kernel to buffers; the output is dense and row-major.

    `input_strides` are element strides over `out_shape`: 0 repeats, negative walks backwards.
    """
    size = math.prod(out_shape)
    nest = _nest(kernel, out_shape, dense_strides(out_shape), input_strides)
    slots = range(1 + len(kernel.inputs))
    itemsizes = [kernel.output.itemsize, *(d.itemsize for d in kernel.inputs)]
    stages = [_stage(kernel, n, slots, bases) for n, bases in boxes(nest, itemsizes)]
    nbytes = size * kernel.output.itemsize
    return native.program(len(kernel.inputs), nbytes, (), stages, size > INLINE)


def map_stage(
    kernel: Map,
    shape: Sequence[int],
    out_slot: int,
    out_offset: int,
    out_strides: Strides,
    in_slots: Iterable[int],
    input_strides: Sequence[Strides],
) -> native.Stage:
    """A stage that writes the box `shape` inside the array at `out_slot`.

    Offset and strides are in elements; `index()` counts the elements of the box.
    """
    nest = _nest(kernel, shape, out_strides, input_strides)
    bases = [out_offset * kernel.output.itemsize] + [0] * (len(nest.strides) - 1)
    return _stage(kernel, nest, [out_slot, *in_slots], bases)


def _nest(
    kernel: Map, shape: Sequence[int], out_strides: Strides, input_strides: Sequence[Strides]
) -> Nest:
    """The merged axes; the streams are the output, the inputs and, if it is used, the index."""
    dtypes = (kernel.output, *kernel.inputs)
    strides = [
        tuple(s * d.itemsize for s in own)
        for d, own in zip(dtypes, (out_strides, *input_strides), strict=True)
    ]
    if uses_index(kernel.body):
        strides.append(dense_strides(shape))
    return coalesce(shape, strides)


def _stage(kernel: Map, nest: Nest, slots: Sequence[int], bases: Sequence[int]) -> native.Stage:
    """A stage over the nest; `bases` are offsets of its streams."""
    dtypes = (kernel.output, *kernel.inputs)
    steps = tuple(step_of(nest.inner(s), d.itemsize) for s, d in enumerate(dtypes))
    if steps[0] == "zero":  # a single element: any step is right, and dense code is the quickest
        steps = ("unit", *steps[1:])
    head = Streams(len(dtypes)).header(nest.rank(), slots, bases[: len(dtypes)])
    index = bases[len(dtypes)] if len(bases) > len(dtypes) else 0
    params = tuple([*head, index, *nest.records()])
    return native.Stage(_code(kernel, steps), nest.size, grain_of(nest.size), params)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


def grain_of(size: int) -> int:
    """Elements per task."""
    return max(1, size) if size <= INLINE else GRAIN


def uses_index(roots: Iterable[Expr]) -> bool:
    """Whether any expression reads `index()`."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e.op == "index":
            return True
        if e not in seen:
            seen.add(e)
            stack.extend(e.args)
    return False


@cache
def _code(kernel: Map, steps: tuple[str, ...]) -> int:
    """The address of the kernel for these innermost steps."""
    return jit.compile_ir(source(kernel, steps), ["kernel"])["kernel"]


def source(kernel: Map, steps: tuple[str, ...]) -> str:
    """The kernel as LLVM IR."""
    module = Module()
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    dtypes = (kernel.output, *kernel.inputs)
    operands = [Operand(d, s) for d, s in zip(dtypes, steps, strict=True)]
    head = Streams(len(operands))
    indexed = uses_index(kernel.body)
    streams = head.count + indexed
    pointers = head.pointers(f)
    inner = Records("%records", "0", streams).strides(f, 0)
    width = vector_width(kernel.body, dtypes)
    first_index = f.int_at("%params", head.words) if indexed else "0"

    def row(offsets: list[str], _: str) -> None:
        starts = [f.offset(p, o) for p, o in zip(pointers, offsets, strict=False)]
        body = RowBody(
            f, operands, starts, inner, f.add(first_index, offsets[-1]) if indexed else "0"
        )
        body.hoist(kernel.body, width)
        vectors = f(f"and i64 %length, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, "%length")):
            with f.loop(first, last, str(w)) as at:
                values = body.values(kernel.body, w, at.i)
                body.store(kernel.output, kernel.body, values, w, at.i)

    each_line(f, streams, row)
    f.finish()
    f = Function(module, "@kernel")
    walk(f, head.records(f, streams, 1), "%lo", "%hi", "null", "@tile")
    f.finish()
    return module.text()


class RowBody:
    """Bodies along one row: operand 0 is written, the others are read."""

    def __init__(
        self,
        f: Function,
        operands: Sequence[Operand],
        starts: Sequence[str],
        strides: Sequence[str],
        index: str,
    ):
        self.f = f
        self.operands = operands
        self.starts = starts
        self.strides = strides
        self.index = index
        self._known: dict[int, dict[Expr, str]] = {}

    def hoist(self, roots: Sequence[Expr], width: int) -> None:
        """Compute what is the same for the whole row before its loops."""
        f = self.f
        outer = _uniform(roots, self.operands)
        loaded: dict[int, list[str]] = {}
        values = emit(f, outer, 1, lambda e: self._leaf(e, 1, "0", loaded))
        wide = [f.splat(v, register(e.dtype), width) for e, v in zip(outer, values, strict=True)]
        self._known = {
            width: dict(zip(outer, wide, strict=True)),
            1: dict(zip(outer, values, strict=True)),
        }

    def values(self, roots: Sequence[Expr], width: int, i: str) -> list[str]:
        """The values of `roots` at elements `i` to `i + width`."""
        loaded: dict[int, list[str]] = {}
        known = self._known.get(width)
        return emit(self.f, roots, width, lambda e: self._leaf(e, width, i, loaded), known)

    def _leaf(self, e: Expr, width: int, i: str, loaded: dict[int, list[str]]) -> str:
        if e.op == "index":
            return counter(self.f, self.f.add(self.index, self.f.mul(i, self.strides[-1])),
                           self.strides[-1], width)  # fmt: skip
        position, part = e.value  # type: ignore[misc]
        if position not in loaded:
            s = position + 1
            operand, stride = self.operands[s], self.strides[s]
            at = operand.at(self.f, self.starts[s], i, stride)
            loaded[position] = operand.load(self.f, at, stride, width)
        return loaded[position][part]

    def store(
        self, dtype: DType, roots: Sequence[Expr], values: Sequence[str], width: int, i: str
    ) -> None:
        """Write the parts of the output elements `i` to `i + width`."""
        f, operand = self.f, self.operands[0]
        stored = [
            convert(f, v, e.dtype, dtype.real, width) for v, e in zip(values, roots, strict=True)
        ]
        at = operand.at(f, self.starts[0], i, self.strides[0])
        operand.store(f, at, self.strides[0], stored, width)


def _uniform(roots: Sequence[Expr], operands: Sequence[Operand]) -> list[Expr]:
    """The largest expressions that depend on repeated operands and constants only."""
    varying: dict[Expr, bool] = {}
    for e in _in_order(roots):
        if e.op == "load":
            varying[e] = operands[e.value[0] + 1].step != "zero"  # type: ignore[index]
        else:
            varying[e] = e.op in LEAVES or any(varying[a] for a in e.args)
    nodes = inline_nodes(roots)
    used = {a for e in nodes if varying[e] for a in inline_operands(e)}.union(roots)
    return [e for e in nodes if e in used and not varying[e] and e.op != "const"]


def _in_order(roots: Sequence[Expr]) -> list[Expr]:
    """All expressions under `roots`, operands first."""
    done: dict[Expr, int] = {}
    for root in roots:
        done.update((e, 0) for e in topological(root, done))
    return list(done)


def counter(f: Function, first: str, step: str, width: int) -> str:
    """`first, first + step, ...` in the lanes, int64."""
    if width == 1:
        return first
    kind = f"<{width} x i64>"
    lanes = f"<{', '.join(f'i64 {k}' for k in range(width))}>"
    scaled = f(f"mul {kind} {f.splat(step, 'i64', width)}, {lanes}")
    return f(f"add {kind} {f.splat(first, 'i64', width)}, {scaled}")
