"""Map kernels: elementwise bodies over strided operands, as LLVM IR and as stages.

The streams of a kernel are its outputs, then its inputs.

A unit of work is one element, in the order of the merged axes. Code is specialised for the body and
for the innermost step of each array (dense, repeated, anything); shapes and strides are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, SupportsIndex

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.program.nest import Nest, coalesce, step_of
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir import cost
from pullback.ir.scalar import Expr
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import (
    convert,
    counter,
    emit,
    uniform,
    vector_width,
)
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand, register
from pullback.runtime.cpu.loops import block_code, tiny_code
from pullback.runtime.cpu.loops.nest import (
    TILE_PARAMETERS,
    Axes,
    StreamParams,
    Streams,
    axis_words,
    each_line,
    walk,
)
from pullback.runtime.cpu.loops.tiling import boxes

__all__ = [
    "GRAIN",
    "INLINE",
    "grain_of",
    "map_stage",
    "map_stages",
    "weight",
]
__tuning__ = ("INLINE", "GRAIN", "IN_PASSING", "MOST_TASKS")

INLINE = 1 << 16  # elements that one thread does alone
GRAIN = 1 << 15  # elements of a task beyond that
IN_PASSING = 8  # instructions on an element in the time that reading and writing it takes
MOST_TASKS = 256  # long stretches of memory please the prefetcher

Strides = Sequence[int]


def map_stages(
    kernel: Map | MultiMap,
    shape: Sequence[int],
    out_slots: Sequence[int],
    out_strides: Sequence[Strides],
    in_slots: Sequence[int],
    input_strides: Sequence[Strides],
    rows: int = 0,
    shared: bool = False,
) -> list[native.Stage]:
    """Stages that write one array per output of the kernel; strides are in elements over `shape`.

    The code of a small array is made for its shape and strides, unless it is to be `shared`.
    `rows`: one stage with as many units for each of so many rows, for `stages.Blocks`.
    """
    slots = (*out_slots, *in_slots)
    if shared:
        flat = _flat_stage(kernel, shape, slots, (*out_strides, *input_strides))
        if flat is not None:
            return [flat]
    nest = _nest(kernel, shape, out_strides, input_strides)
    if not (rows or shared) and tiny_code.map_suits(kernel, shape):
        strides = (*out_strides, *input_strides)
        return [tiny_code.map_stage(kernel, shape, slots, strides)]
    inner = 0 if shared or _facts(kernel).indexed else block_code.inner_axes(kernel, nest)
    if inner and not (rows and prod(nest.shape[:-inner]) % rows):
        return [_block_stage(kernel, nest, slots, inner)]
    if rows:
        return [_stage(kernel, nest, slots, (0,) * len(nest.strides))]
    return _boxed(kernel, nest, slots)


def _boxed(kernel: Map | MultiMap, nest: Nest, slots: Sequence[int]) -> list[native.Stage]:
    """The stages of a map, in tiles where they pay."""
    facts = _facts(kernel)
    parts = boxes(nest, facts.itemsizes, facts.outputs)
    return [_stage(kernel, n, slots, bases) for n, bases in parts]


def _block_stage(
    kernel: Map | MultiMap, nest: Nest, slots: Sequence[int], inner: int
) -> native.Stage:
    """The stage whose units are blocks of the innermost axes."""
    facts = _facts(kernel)
    outer = Nest(nest.shape[:-inner], tuple(s[:-inner] for s in nest.strides))
    block = nest.shape[-inner:]
    made = block_code.code(kernel, facts.dtypes, block, tuple(s[-inner:] for s in nest.strides))
    head = block_code.params(len(slots)).head(outer, slots)
    grain = grain_of(outer.size, facts.weight * prod(block))
    return native.Stage(made, outer.size, grain, (*head, *axis_words(outer)))


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
    nest = _nest(kernel, shape, [out_strides], input_strides)
    bases = [out_offset * kernel.output.itemsize] + [0] * (len(nest.strides) - 1)
    return _stage(kernel, nest, [out_slot, *in_slots], bases)


class _MapFacts(NamedTuple):
    """What the stages of a kernel need to know of it."""

    dtypes: tuple[DType, ...]  # of the outputs, then of the inputs
    itemsizes: tuple[int, ...]
    outputs: int
    bodies: tuple[tuple[Expr, ...], ...]
    roots: tuple[Expr, ...]
    indexed: bool  # whether any expression reads `index()`
    weight: int
    params: Streams  # `index` is that of the first element


@lru_cache(jit.KEPT)
def _facts(kernel: Map | MultiMap) -> _MapFacts:
    several = isinstance(kernel, MultiMap)
    outputs = kernel.outputs if several else (kernel.output,)
    bodies = kernel.bodies if several else (kernel.body,)
    dtypes = (*outputs, *kernel.inputs)
    roots = tuple(e for body in bodies for e in body)
    return _MapFacts(
        dtypes,
        tuple(d.itemsize for d in dtypes),
        len(outputs),
        bodies,
        roots,
        uses_index(roots),
        weight(roots),
        Streams(len(dtypes), "index"),
    )


def _nest(
    kernel: Map | MultiMap,
    shape: Sequence[int],
    out_strides: Sequence[Strides],
    input_strides: Sequence[Strides],
) -> Nest:
    """The merged axes; the streams are outputs, inputs and, if it is used, the index."""
    facts = _facts(kernel)
    strides = [
        tuple([s * size for s in own])
        for size, own in zip(facts.itemsizes, (*out_strides, *input_strides), strict=True)
    ]
    if facts.indexed:
        strides.append(dense_strides(shape))
    return coalesce(shape, strides)


def _stage(
    kernel: Map | MultiMap, nest: Nest, slots: Sequence[int], bases: Sequence[int]
) -> native.Stage:
    """A stage over the nest; `bases` are offsets of its streams."""
    facts = _facts(kernel)
    count, streams = facts.outputs, len(facts.dtypes)
    steps = [step_of(nest.inner(s), size) for s, size in enumerate(facts.itemsizes)]
    # A single element: any step is right, and dense code is the quickest.
    steps[:count] = ["unit" if step == "zero" else step for step in steps[:count]]
    index = bases[streams] if len(bases) > streams else 0
    head = facts.params.head(nest, slots, bases[:streams], index=index)
    params = (*head, *axis_words(nest))
    grain = grain_of(nest.size, facts.weight)
    return native.Stage(_code(kernel, tuple(steps)), nest.size, grain, params)


def grain_of(size: int, weight: int = 1) -> int:
    """Elements per task, each of which is the work of `weight` simple ones."""
    return max(1, size) if size * weight <= INLINE else max(GRAIN // weight, size // MOST_TASKS, 1)


def weight(roots: Iterable[Expr]) -> int:
    """How much longer the expressions take than reading and writing an element does."""
    return max(1, cost.instructions(roots) // IN_PASSING)


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


def _flat_stage(
    kernel: Map | MultiMap, shape: Sequence[int], slots: Sequence[int], strides: Sequence[Strides]
) -> native.Stage | None:
    """The stage over arrays that are all dense, or one element repeated; None for any other.

    It is what `_stage` makes, without a nest for every new shape.
    """
    size, dense = prod(shape), dense_strides(shape)
    repeated = tuple([own != dense for own in strides])
    if size < 2 or repeated[0]:
        return None
    for own, again in zip(strides, repeated, strict=True):
        if again and any(own):
            return None
    code, head, steps, weight = _flat(kernel, tuple(slots), repeated)
    return native.Stage(code, size, grain_of(size, weight), (*head, size, *steps))


def flat_program(kernel: Map, repeated: tuple[bool, ...]) -> Callable[[int], Callable[..., Any]]:
    """What makes the program of the flat stage of so many elements, by writing them into a copy."""
    inputs, itemsize = len(repeated), kernel.output.itemsize
    code, head, steps, weight = _flat(kernel, tuple(range(1 + inputs)), (False, *repeated))
    sample = native.Stage(code, 1, 1, (*head, 1, *steps))
    words = native.single_words(inputs, 1, sample, False)
    at = len(words) - len(steps) - 1  # where the size is an argument of the stage

    def made(size: int) -> Callable[..., Any]:
        grain, own = grain_of(size, weight), words[:]
        own[native.OUT_BYTES], own[native.UNITS], own[native.GRAIN], own[at] = (
            itemsize * size, size, grain, size,
        )  # fmt: skip
        own[native.HEAVY] = size > INLINE or size > grain
        return native.run_array(own, sample)

    return made


@lru_cache(jit.KEPT)
def _flat(
    kernel: Map | MultiMap, slots: tuple[int, ...], repeated: tuple[bool, ...]
) -> tuple[SupportsIndex, tuple[SupportsIndex, ...], tuple[SupportsIndex, ...], int]:
    """The code, the arguments before and after the size, and the weight of a flat stage."""
    shape = (3,)  # stands for any: only its place among the arguments is known
    strides = [(0,) if again else (1,) for again in repeated]
    outputs = _facts(kernel).outputs
    nest = _nest(kernel, shape, strides[:outputs], strides[outputs:])
    stage = _stage(kernel, nest, slots, (0,) * len(nest.strides))
    facts = _facts(kernel)
    at = len(facts.params)  # the only axis follows, its size first
    return stage.code, stage.params[:at], stage.params[at + 1 :], facts.weight


@lru_cache(jit.KEPT)
def _code(kernel: Map | MultiMap, steps: tuple[str, ...]) -> int:
    """The address of the kernel for these innermost steps."""
    return jit.compile_ir(source(kernel, steps), ["kernel"])["kernel"]


def source(kernel: Map | MultiMap, steps: tuple[str, ...]) -> str:
    """The kernel as LLVM IR."""
    module = IRModule()
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    facts = _facts(kernel)
    dtypes, roots = facts.dtypes, facts.roots
    operands = [LoopOperand(d, s) for d, s in zip(dtypes, steps, strict=True)]
    p = StreamParams(f, facts.params)
    indexed, outputs = facts.indexed, facts.outputs
    streams = len(operands) + indexed
    pointers = p.pointers()
    inner = Axes("%records", "0", streams).strides(f, 0)
    width = vector_width(roots, dtypes)
    first_index = p["index"] if indexed else "0"

    def row(offsets: list[str], _: str) -> None:
        starts = [f.offset(p, o) for p, o in zip(pointers, offsets, strict=False)]
        index = f.add(first_index, offsets[-1]) if indexed else "0"
        body = RowBody(f, operands, outputs, starts, inner, index)
        body.hoist(roots, width)
        vectors = f(f"and i64 %length, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, "%length")):
            with f.loop(first, last, str(w)) as at:
                values = iter(body.values(roots, w, at.i))
                for s, own in enumerate(facts.bodies):
                    body.store(s, own, [next(values) for _ in own], w, at.i)

    each_line(f, streams, row)
    f.finish()
    f = Function(module, "@kernel")
    walk(f, StreamParams(f, facts.params).axes(streams), "%lo", "%hi", "null", "@tile")
    f.finish()
    return module.text()


class RowBody:
    """Bodies along one row: the first `outputs` operands are written, the others are read."""

    def __init__(
        self,
        f: Function,
        operands: Sequence[LoopOperand],
        outputs: int,
        starts: Sequence[str],
        strides: Sequence[str],
        index: str,
    ):
        self.f = f
        self.operands = operands
        self.outputs = outputs
        self.starts = starts
        self.strides = strides
        self.index = index
        self._known: dict[int, dict[Expr, str]] = {}

    def hoist(self, roots: Sequence[Expr], width: int) -> None:
        """Compute what is the same for the whole row before its loops."""
        f = self.f
        outer = uniform(roots, self.operands[self.outputs :])
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
            s = position + self.outputs
            operand, stride = self.operands[s], self.strides[s]
            at = operand.at(self.f, self.starts[s], i, stride)
            loaded[position] = operand.load(self.f, at, stride, width)
        return loaded[position][part]

    def store(
        self, s: int, roots: Sequence[Expr], values: Sequence[str], width: int, i: str
    ) -> None:
        """Write the parts of the elements `i` to `i + width` of output `s`."""
        f, operand, stride = self.f, self.operands[s], self.strides[s]
        real = operand.dtype.real
        stored = [convert(f, v, e.dtype, real, width) for v, e in zip(values, roots, strict=True)]
        operand.store(f, operand.at(f, self.starts[s], i, stride), stride, stored, width)
