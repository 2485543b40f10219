"""LLVM IR of Gather and Scatter: rows where the indices stand still, single elements otherwise.

Every index is checked. One out of range sets the error word and ends the task: the first code plus
k for index array k, the row-major position in the iteration space, and the index as given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from pullback.compile.kernel.forms import Gather, Scatter
from pullback.core.dtypes import DType, float32
from pullback.ir.scalar import Expr
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import convert, emit, vector_width
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand, register
from pullback.runtime.cpu.loops.nest import (
    TILE_PARAMETERS,
    Axes,
    StreamParams,
    Streams,
    each_line,
    walk,
)

__all__ = [
    "MAX_AXES",
    "accumulator",
    "gather",
    "gather_params",
    "indexed",
    "ravel",
    "ravel_params",
    "scatter",
    "scatter_params",
]
__tuning__ = ("CHUNK",)

MAX_AXES = 64  # of a nest: arrays have 64 axes at most, as in NumPy
CHUNK = 1024  # elements whose destinations are worked out before they are combined


def accumulator(dtype: DType) -> DType:
    """The dtype that a scatter combines in."""
    return float32 if dtype.is_float and dtype.itemsize == 2 else dtype


# The first error code, and of each axis that is indexed its size and stride in bytes, or elements.
_INDEXED = "code (size stride)[indices]"


@cache
def gather_params(indices: int) -> Streams:
    """The params of `gather`; the arrays are the output, x and the indices."""
    return Streams(2 + indices, _INDEXED, indices=indices)


@cache
def ravel_params(indices: int) -> Streams:
    """The params of `ravel`: `weight` is the elements of the iteration space for each place."""
    return Streams(1 + indices, f"weight {_INDEXED}", indices=indices)


@cache
def scatter_params(indices: int) -> Streams:
    """The params of `scatter`: the axis that units run over (-1 if none), the number of owners if
    units are owners of destinations (else 0), the span of destinations.
    """
    return Streams(2 + indices, f"axis owners span {_INDEXED}", indices=indices)


def indexed(axes: Sequence[tuple[int, int]], item: int, first_code: int) -> dict[str, Any]:
    """The params about axes of some size and stride in elements of so many bytes."""
    return {
        "code": first_code,
        "size": [size for size, _ in axes],
        "stride": [stride * item for _, stride in axes],
    }


class _Indices:
    """The index arrays of a kernel: reads, wraps and checks them; its params end in `_INDEXED`."""

    def __init__(self, f: Function, dtypes: Sequence[DType], p: StreamParams):
        self.f = f
        self.operands = [LoopOperand(d, "any") for d in dtypes]
        self.first_code = p["code"]
        axes = [(p["size", k], p["stride", k]) for k in range(len(dtypes))]
        self.sizes, self.strides = [n for n, _ in axes], [s for _, s in axes]

    def offset(self, starts: Sequence[str], steps: Sequence[str], i: str, position: str) -> str:
        """The offset that the indices of element `i` ask for; a bad one ends the function."""
        f, total = self.f, "0"
        for k, operand in enumerate(self.operands):
            place = operand.at(f, starts[k], i, steps[k])
            (raw,) = operand.load(f, place, "0", 1)
            given = self._wide(raw, operand.dtype)
            index = given
            if operand.dtype.kind == "i":
                wrapped = f.add(given, self.sizes[k])
                index = f(f"select i1 {f(f'icmp slt i64 {given}, 0')}, i64 {wrapped}, i64 {given}")
            self._check(f(f"icmp ult i64 {index}, {self.sizes[k]}"), k, position, given)
            total = f.add(total, f.mul(index, self.strides[k]))
        return total

    def _wide(self, raw: str, dtype: DType) -> str:
        if dtype.itemsize == 8:
            return raw
        extend = "sext" if dtype.kind == "i" else "zext"
        return self.f(f"{extend} {register(dtype)} {raw} to i64")

    def _check(self, good: str, k: int, position: str, given: str) -> None:
        f = self.f
        bad, on = f.label(), f.label()
        f.do(f"br i1 {good}, label %{on}, label %{bad}")
        f.block(bad)
        code = f.add(self.first_code, str(k))
        for word, value in ((1, position), (2, given), (0, code)):
            f.do(f"store i64 {value}, ptr {f.element('%error', 'i64', str(word))}")
        f.do("ret void")
        f.block(on)


def _vectors_then_rest(f: Function, width: int, body: Callable[[str, int], None]) -> None:
    vectors = f(f"and i64 %length, {-width}")
    for w, first, last in ((width, "0", vectors), (1, vectors, "%length")):
        with f.loop(first, last, str(w)) as at:
            body(at.i, w)


@lru_cache(jit.KEPT)
def gather(kernel: Gather, step: str, by_rows: bool) -> int:
    """The elements of x that indices name.

    `step` is the innermost step of x; `by_rows`: no index changes along the innermost axis.
    """
    module = IRModule()
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    streams = gather_params(len(kernel.indices))
    p = StreamParams(f, streams)
    indices = _Indices(f, kernel.indices, p)
    pointers = p.pointers()
    strides = Axes("%records", "0", streams.arrays).strides(f, 0)
    # Elements are moved as they are, whatever they mean.
    raw = DType(f"raw{kernel.dtype.itemsize}", "u", kernel.dtype.itemsize, 0)
    source, target = LoopOperand(raw, step), LoopOperand(raw, "unit")

    def row(offsets: list[str], position: str) -> None:
        out, x, *own = [f.offset(p, o) for p, o in zip(pointers, offsets, strict=True)]

        def copy(start: str, i: str, w: int) -> None:
            values = source.load(f, source.at(f, start, i, strides[1]), strides[1], w)
            target.store(f, target.at(f, out, i, "0"), "0", values, w)

        if by_rows:
            start = f.offset(x, indices.offset(own, strides[2:], "0", position))
            width = max(4, 32 // raw.itemsize)
            _vectors_then_rest(f, width, lambda i, w: copy(start, i, w))
            return
        with f.loop("0", "%length") as at:
            where = indices.offset(own, strides[2:], at.i, f.add(position, at.i))
            copy(f.offset(x, where), at.i, 1)

    each_line(f, streams.arrays, row)
    f.finish()
    f = Function(module, "@kernel")
    walk(f, StreamParams(f, streams).axes(streams.arrays), "%lo", "%hi", "null", "@tile")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@cache
def ravel(dtypes: tuple[DType, ...]) -> int:
    """The places that indices of these dtypes give, as one dense int64 array.

    The arrays are the output and the indices; a stream more is the place to which that of the
    indices is added.
    """
    module = IRModule()
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    params, streams = ravel_params(len(dtypes)), 2 + len(dtypes)
    p = StreamParams(f, params)
    weight = p["weight"]
    indices = _Indices(f, dtypes, p)
    pointers = p.pointers()
    strides = Axes("%records", "0", streams).strides(f, 0)

    def row(offsets: list[str], position: str) -> None:
        out, *own = (f.offset(p, o) for p, o in zip(pointers, offsets[:-1], strict=True))
        with f.loop("0", "%length") as at:
            number = f.mul(f.add(position, at.i), weight)
            where = indices.offset(own, strides[1:], at.i, number)
            place = f.add(where, f.add(offsets[-1], f.mul(at.i, strides[-1])))
            f.do(f"store i64 {place}, ptr {f.element(out, 'i64', at.i)}")

    each_line(f, streams, row)
    f.finish()
    f = Function(module, "@kernel")
    walk(f, StreamParams(f, params).axes(streams), "%lo", "%hi", "null", "@tile")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@lru_cache(jit.KEPT)
def scatter(kernel: Scatter, steps: tuple[str, str], by_rows: bool) -> int:
    """Folds updates into the elements of the output that indices name.

    The arrays are the output, the updates and the indices; a stream more is the position in the
    iteration space. `steps` are the innermost ones of output and updates.
    """
    module = IRModule()
    _scatter_tile(module, kernel, steps, by_rows)
    f = Function(module, "@kernel")
    params = scatter_params(len(kernel.indices))
    p = StreamParams(f, params)
    axis, owners, span = p["axis"], p["owners"], p["span"]
    axes, first, total = _part_of_axis(f, p.axes(params.arrays + 1), axis)
    context = f.array("i64", 2 + len(first))
    for k, value in enumerate((*_destinations(f, owners, span), *first)):
        f.do(f"store i64 {value}, ptr {f.element(context, 'i64', str(k))}")
    walk(f, axes, "0", total, context, "@tile")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _scatter_tile(module: IRModule, kernel: Scatter, steps: tuple[str, str], by_rows: bool) -> None:
    """The function that folds a tile; its context: first destination, how many, offsets."""
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    params = scatter_params(len(kernel.indices))
    p, streams = StreamParams(f, params), params.arrays + 1
    indices = _Indices(f, kernel.indices, p)
    pointers = p.pointers()
    low, owned, *first = (f.int_at("%context", k) for k in range(2 + streams))
    strides = Axes("%records", "0", streams).strides(f, 0)
    combine = _Combine(f, kernel, steps, strides)
    places = "" if by_rows else f.array("i64", 2 * CHUNK)

    def row(offsets: list[str], _: str) -> None:
        *moved, position = (f.add(o, b) for o, b in zip(offsets, first, strict=True))
        out, update, *own = (f.offset(p, o) for p, o in zip(pointers, moved, strict=True))
        if by_rows:
            where = indices.offset(own, strides[2:], "0", position)
            with f.when(f(f"icmp ult i64 {f.sub(where, low)}, {owned}")):
                combine.row(f.offset(out, where), update)
            return
        with f.loop("0", "%length", str(CHUNK)) as chunk:
            end = f.minimum("%length", f.add(chunk.i, str(CHUNK)))
            # First the destinations of this task, without a branch that depends on them.
            with f.loop(chunk.i, end, carried=[("i64", "0")]) as at:
                number = f.add(position, f.mul(at.i, strides[-1]))
                where = indices.offset(own, strides[2:], at.i, number)
                mine = f(f"icmp ult i64 {f.sub(where, low)}, {owned}")
                place = f.element(places, "i64", f.mul(at.carried[0], "2"))
                f.do(f"store i64 {f.add(where, f.mul(at.i, strides[0]))}, ptr {place}")
                f.do(f"store i64 {f.mul(at.i, strides[1])}, ptr {f.element(place, 'i64', '1')}")
                at.next = [f.add(at.carried[0], f(f"zext i1 {mine} to i64"))]
            with f.loop("0", at.results[0]) as found:
                place = f.element(places, "i64", f.mul(found.i, "2"))
                to, source = f.int_at(place, 0), f.int_at(place, 1)
                combine.elements(f.offset(out, to), f.offset(update, source), "0", 1)

    each_line(f, streams, row)
    f.finish()


def _part_of_axis(f: Function, given: Axes, axis: str) -> tuple[Axes, list[str], str]:
    """The axes with one cut down to %lo ... %hi, the offsets of its start, the elements left."""
    words = given.streams + 1
    own = Axes(f.array("i64", MAX_AXES * words), given.rank, given.streams)
    with f.loop("0", f.mul(given.rank, str(words))) as k:
        value = f.int_at(given.address, k.i)
        f.do(f"store i64 {value}, ptr {f.element(own.address, 'i64', k.i)}")
    cut = f(f"icmp sge i64 {axis}, 0")
    # Without a cut the code below rewrites axis 0 as it is.
    d = f(f"select i1 {cut}, i64 {axis}, i64 0")
    start = f(f"select i1 {cut}, i64 %lo, i64 0")
    record = own.axis(f, d)
    size = f(f"select i1 {cut}, i64 {f.sub('%hi', '%lo')}, i64 {f.int_at(record, 0)}")
    f.do(f"store i64 {size}, ptr {record}")
    first = [f.mul(start, f.int_at(record, 1 + s)) for s in range(given.streams)]
    with f.loop("0", given.rank, carried=[("i64", "1")]) as a:
        a.next = [f.mul(a.carried[0], f.int_at(own.axis(f, a.i), 0))]
    return own, first, a.results[0]


def _destinations(f: Function, owners: str, span: str) -> tuple[str, str]:
    """The first destination of this task and how many it owns, in bytes; without owners: all."""
    several = f(f"icmp sgt i64 {owners}, 0")
    parts = f(f"select i1 {several}, i64 {owners}, i64 1")
    low, high = (f(f"udiv i64 {f.mul(u, span)}, {parts}") for u in ("%lo", "%hi"))
    low = f(f"select i1 {several}, i64 {low}, i64 0")
    high = f(f"select i1 {several}, i64 {high}, i64 {span}")
    return low, f.sub(high, low)


class _Combine:
    """Folds updates into destinations."""

    def __init__(
        self, f: Function, kernel: Scatter, steps: tuple[str, str], strides: Sequence[str]
    ):
        self.f = f
        self.kernel = kernel
        self.strides = strides
        self.target = LoopOperand(accumulator(kernel.dtype), steps[0])
        self.source = LoopOperand(kernel.dtype, steps[1])

    def row(self, out: str, update: str) -> None:
        """Updates along the innermost axis; in vectors where destinations lie side by side."""
        width = vector_width(self.kernel.combine, [self.target.dtype])
        if self.target.step == "unit":
            _vectors_then_rest(self.f, width, lambda i, w: self.elements(out, update, i, w))
            return
        with self.f.loop("0", "%length") as at:
            self.elements(out, update, at.i, 1)

    def elements(self, out: str, update: str, i: str, width: int) -> None:
        f = self.f
        to = self.target.at(f, out, i, self.strides[0])
        source = self.source.at(f, update, i, self.strides[1])
        present = self.target.load(f, to, self.strides[0], width)
        real, wide = self.source.dtype.real, self.target.dtype.real
        loaded = self.source.load(f, source, self.strides[1], width)
        given = [convert(f, v, real, wide, width) for v in loaded]

        def leaf(e: Expr) -> str:
            side, part = e.value  # type: ignore[misc]
            return (present if side == "a" else given)[part]

        self.target.store(f, to, self.strides[0], emit(f, self.kernel.combine, width, leaf), width)
