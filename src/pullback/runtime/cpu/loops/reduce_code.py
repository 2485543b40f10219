"""LLVM IR of reductions: one tree, four ways to walk it.

    sequence  few elements per output: vectors run over outputs
    rows      vectors run over lanes, that is along the reduced axis
    columns   vectors run over outputs, a tile of them keeps its lanes in memory (`reduce_columns`)
    merge     joins partial results of groups of blocks

A unit of `rows` is (output, group), of `columns` (outer outputs, tile, group), else an output.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.core.avals import dense_strides
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import vector_width
from pullback.runtime.cpu.llvm.records import NamedParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand
from pullback.runtime.cpu.loops import tiny_code
from pullback.runtime.cpu.loops.nest import (
    TILE_PARAMETERS,
    Axes,
    StreamParams,
    Streams,
    each_line,
    walk,
)
from pullback.runtime.cpu.loops.tree_code import (
    LEVELS,
    ElementExpressions,
    FoldWriter,
    Values,
    positions,
)

__all__ = [
    "MERGED",
    "GroupedReduction",
    "ShortAxes",
    "grouped_params",
    "merge",
    "output_width",
    "rows",
    "sequence",
    "sequence_params",
]

MERGED = Record("", "groups *partials pitch *out")  # `pitch`: bytes from array to array of partials


def output_width(kernel: Reduce) -> int:
    """Outputs per vector."""
    return vector_width((*kernel.element, *kernel.combine, *kernel.finish), kernel.inputs)


@cache
def sequence_params(inputs: int) -> Streams:
    """The params of `sequence`: how many elements, and how many words come before the axes."""
    return Streams(1 + inputs, "length axes_at")


@cache
def grouped_params(inputs: int) -> Streams:
    """The params of `rows` and `columns`: groups of so many elements, the words before the reduced
    axes and their rank, the scratch arrays of groups with the bytes from one to the next, and how
    many columns there are, in tiles of how many.
    """
    own = "length groups per_group reduced_at reduced_rank *partials pitch columns tiles tile"
    return Streams(1 + inputs, own)


@lru_cache(jit.KEPT)
def sequence(kernel: Reduce, steps: tuple[str, ...]) -> int:
    """Folds fewer than SMALL elements, whose offsets in each input follow the params."""
    module, fold, arrays = IRModule(), FoldWriter(kernel), 1 + len(kernel.inputs)
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    p = StreamParams(f, sequence_params(len(kernel.inputs)))
    pointers = p.pointers()
    count = p["length"]
    table = p.rest()
    strides = Axes("%records", "0", arrays).strides(f, 0)
    output = LoopOperand(kernel.output, steps[0])
    elements = ElementExpressions(
        fold, [LoopOperand(d, s) for d, s in zip(kernel.inputs, steps[1:], strict=True)]
    )
    width = output_width(kernel)

    def fold_sequence(starts: Values, i: str, w: int) -> Values:
        init = fold.init(f, w)
        with f.loop("0", count, carried=list(zip(fold.types(w), init, strict=True))) as j:
            entry = f.element(table, "i64", f.mul(j.i, str(len(kernel.inputs))))
            moved = [f.offset(p, f.int_at(entry, s)) for s, p in enumerate(starts[1:])]
            values = elements.values(f, moved, i, strides[1:], f.splat(j.i, "i64", w), w)
            j.next = fold.step(f, j.carried, values, w)
        return j.results

    def row(offsets: list[str], _: str) -> None:
        starts = [f.offset(p, o) for p, o in zip(pointers, offsets, strict=True)]
        vectors = f(f"and i64 %length, {-width}")
        for w, first, last in ((width, "0", vectors), (1, vectors, "%length")):
            with f.loop(first, last, str(w)) as at:
                values = fold.finish(f, fold_sequence(starts, at.i, w), w)
                place = output.at(f, starts[0], at.i, strides[0])
                output.store(f, place, strides[0], values, w)

    each_line(f, arrays, row)
    f.finish()
    f = Function(module, "@kernel")
    p = StreamParams(f, sequence_params(len(kernel.inputs)))
    axes = p.axes(arrays, f.element("%params", "i64", p["axes_at"]))
    walk(f, axes, "%lo", "%hi", "null", "@tile")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class ShortAxes(NamedTuple):
    """The innermost axes of what is reduced, if they are short: strides of each input in bytes."""

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    is_all: bool  # there are no others


class GroupedReduction:
    """What `rows` and `columns` share: params, groups of blocks, partial results."""

    def __init__(self, f: Function, kernel: Reduce):
        self.f, self.kernel, self.fold = f, kernel, FoldWriter(kernel)
        p = StreamParams(f, grouped_params(len(kernel.inputs)))
        self.own = p.own()
        self.pointers = p.pointers()
        self.kept = p.axes(1 + len(kernel.inputs))
        reduced = f.element("%params", "i64", self["reduced_at"])
        self.reduced = Axes(reduced, self["reduced_rank"], len(kernel.inputs))

    def __getitem__(self, name: str) -> str:
        """A number among the params."""
        return self.own[name]

    def bounds(self, group: str) -> tuple[str, str]:
        """The elements of a group."""
        f = self.f
        first = f.mul(group, self["per_group"])
        return first, f.minimum(self["length"], f.add(first, self["per_group"]))

    def partials(self) -> Values:
        """The scratch arrays, one per accumulator."""
        return _arrays(self.f, self["partials"], self["pitch"], len(self.fold.dtypes))

    def several(self) -> str:
        return self.f(f"icmp sgt i64 {self['groups']}, 1")


def _arrays(f: Function, slot: str, pitch: str, count: int) -> Values:
    """The addresses of `count` arrays that lie `pitch` bytes apart."""
    first = f.pointer_in(slot)
    return [f.offset(first, f.mul(pitch, str(k))) for k in range(count)]


@lru_cache(jit.KEPT)
def rows(kernel: Reduce, steps: tuple[str, ...], block: ShortAxes | None = None) -> int:
    """Folds along the reduced axis; a step of "any" packs each block of the tree into a dense copy
    first. Of small `block`s of the innermost axes the places are compiled in.
    """
    module = IRModule()
    f = Function(module, "@kernel")
    g = GroupedReduction(f, kernel)
    fold = g.fold
    output = LoopOperand(kernel.output, "unit")
    packed = [
        LoopOperand(d, "unit" if s == "any" else s)
        for d, s in zip(kernel.inputs, steps, strict=True)
    ]
    elements = ElementExpressions(fold, packed)
    buffers = [
        f.array("i8", BLOCK * d.itemsize) if s == "any" else ""
        for d, s in zip(kernel.inputs, steps, strict=True)
    ]
    stack, lanes = fold.arrays(f, LEVELS), fold.arrays(f, LANES)

    def folded(starts: Values, first: str, count: str) -> Values:
        """The accumulators of a block, joined."""
        places = []
        for k, (d, s, p) in enumerate(zip(kernel.inputs, steps, starts, strict=True)):
            if s == "any":
                _pack_block(g, k, buffers[k], p, first, count, block)
                p = buffers[k]
            elif s == "unit":
                p = f.offset(p, f.mul(first, str(d.itemsize)))
            places.append(p)
        return _fold_block(f, elements, places, first, count, lanes)

    with f.loop("%lo", "%hi") as unit:
        k, group = f.divmod(unit.i, g["groups"])
        offsets = g.kept.offsets(f, k, ["0"] * (1 + len(kernel.inputs)))
        starts = [f.offset(p, o) for p, o in zip(g.pointers, offsets, strict=True)]
        elements.hoist(f, starts[1:], (1, LANES))
        first, last = g.bounds(group)
        with f.loop(first, last, str(BLOCK), carried=[("i64", "0")]) as b:
            count = f.minimum(str(BLOCK), f.sub(last, b.i))
            values = folded(starts[1:], b.i, count)
            number = f(f"udiv i64 {f.sub(b.i, first)}, {BLOCK}")
            b.next = [fold.push(f, stack, b.carried[0], number, values)]
        values = fold.collect(f, stack, b.results[0])
        several = g.several()
        with f.when(several):
            fold.store(f, g.partials(), unit.i, values, 1)
        with f.when(f(f"xor i1 {several}, true")):
            output.store(f, starts[0], "0", fold.finish(f, values, 1), 1)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _fold_block(
    f: Function, elements: ElementExpressions, places: Values, first: str, count: str, lanes: Values
) -> Values:
    """The accumulators of `count` elements from `places` on, numbered from `first` on."""
    fold = elements.fold
    none = ["0"] * len(places)
    vectors = f(f"and i64 {count}, {-LANES}")
    start = list(zip(fold.types(LANES), fold.init(f, LANES), strict=True))
    with f.loop("0", vectors, str(LANES), carried=start) as at:
        index = positions(f, f.add(first, at.i), LANES)
        values = elements.values(f, places, at.i, none, index, LANES)
        at.next = fold.step(f, at.carried, values, LANES)
    fold.store(f, lanes, "0", at.results, LANES)
    with f.loop(vectors, count) as tail:
        lane = f.sub(tail.i, vectors)
        values = elements.values(f, places, tail.i, none, f.add(first, tail.i), 1)
        joined = fold.step(f, fold.load(f, lanes, lane, 1), values, 1)
        fold.store(f, lanes, lane, joined, 1)
    return fold.join_lanes(f, fold.load(f, lanes, "0", LANES))


def _pack_block(
    g: GroupedReduction,
    k: int,
    target: str,
    source: str,
    first: str,
    count: str,
    block: ShortAxes | None,
) -> None:
    """Copy elements `first` to `first + count` of input `k` into a dense array."""
    if block is None:
        _pack_pieces(g, k, target, source, first, "0", count)
        return
    f, dtype, size = g.f, g.kernel.inputs[k], str(math.prod(block.shape))
    item = str(dtype.itemsize)
    own = tuple(s // dtype.itemsize for s in block.strides[k])
    steps = (dense_strides(block.shape), own)
    if block.is_all:
        tiny_code.write_map(f, copy_kernel(dtype), block.shape, steps, [target, source])
        return
    number = f(f"udiv i64 {f.add(first, f.sub(size, '1'))}, {size}")
    lead = f.minimum(f.sub(f.mul(number, size), first), count)
    stop = f(f"udiv i64 {f.add(first, count)}, {size}")
    end = f.sub(f.mul(stop, size), first)
    rest = f(f"select i1 {f(f'icmp slt i64 {end}, {lead}')}, i64 {lead}, i64 {end}")
    _pack_pieces(g, k, target, source, first, "0", lead)
    with f.loop(number, stop) as whole:
        offsets = g.reduced.offsets(f, whole.i, ["0"] * g.reduced.streams, len(block.shape))
        place = f.offset(target, f.mul(f.sub(f.mul(whole.i, size), first), item))
        places = [place, f.offset(source, offsets[k])]
        tiny_code.write_map(f, copy_kernel(dtype), block.shape, steps, places)
    _pack_pieces(g, k, target, source, first, rest, count)


def _pack_pieces(
    g: GroupedReduction, k: int, target: str, source: str, first: str, start: str, stop: str
) -> None:
    """Copy elements from `first + start` to `first + stop`, along the innermost axis."""
    f, dtype = g.f, g.kernel.inputs[k]
    operand = LoopOperand(dtype, "any")
    dense = LoopOperand(dtype, "unit")
    inner = g.reduced.size(f, 0)
    stride = g.reduced.strides(f, 0)[k]
    with f.loop(start, stop) as piece:
        position = f.add(first, piece.i)
        _, column = f.divmod(position, inner)
        offsets = g.reduced.offsets(f, position, ["0"] * g.reduced.streams)
        origin = f.offset(source, offsets[k])
        run = f.minimum(f.sub(inner, column), f.sub(stop, piece.i))
        place = dense.at(f, target, piece.i, "0")
        is_dense = f(f"icmp eq i64 {stride}, {dtype.itemsize}")
        with f.when(is_dense):
            f.copy(place, origin, f.mul(run, str(dtype.itemsize)))
        with f.when(f(f"xor i1 {is_dense}, true")), f.loop("0", run) as i:
            value = operand.load(f, operand.at(f, origin, i.i, stride), stride, 1)
            dense.store(f, dense.at(f, place, i.i, "0"), "0", value, 1)
        piece.step = run


@lru_cache(jit.KEPT)
def merge(kernel: Reduce) -> int:
    """Joins the groups of each output; its params are `MERGED`."""
    module, fold = IRModule(), FoldWriter(kernel)
    f = Function(module, "@kernel")
    p = NamedParams(f, MERGED)
    partials = _arrays(f, p["partials"], p["pitch"], len(fold.dtypes))
    output = LoopOperand(kernel.output, "unit")
    target = p.pointer("out")
    stack = fold.arrays(f, LEVELS)
    with f.loop("%lo", "%hi") as k:
        own = fold.at(f, partials, f.mul(k.i, p["groups"]))
        with f.loop("0", p["groups"], carried=[("i64", "0")]) as group:
            values = fold.load(f, own, group.i, 1)
            group.next = [fold.push(f, stack, group.carried[0], group.i, values)]
        values = fold.collect(f, stack, group.results[0])
        output.store(f, output.at(f, target, k.i, "0"), "0", fold.finish(f, values, 1), 1)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
