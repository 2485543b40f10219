"""Loop nests in kernels: axes are merged by then, sizes and strides are arguments.

A nest has streams (the arrays it walks, in bytes) and axes. Among the params of a kernel an axis is
its size, then its stride in each stream; the innermost comes first, and there are two at least.
These words have no names: a kernel learns how many axes there are when it runs, and loops over
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, SupportsIndex

from pullback.compile.program.nest import Nest
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import Params, Record, Word
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = [
    "TILE_PARAMETERS",
    "Axes",
    "StreamParams",
    "Streams",
    "axis_words",
    "each_line",
    "rank_of",
    "walk",
]


def rank_of(nest: Nest, least: int = 2) -> int:
    """The axes of a nest as a kernel sees it: `least` at least."""
    return max(least, len(nest.shape))


def axis_words(nest: Nest, least: int = 2) -> list[int]:
    """The axes as arguments of a kernel, filled up to `least` axes."""
    words: list[int] = []
    for d in reversed(range(len(nest.shape))):
        words += [nest.shape[d], *(s[d] for s in nest.strides)]
    missing = max(0, least - len(nest.shape))
    return words + ([1] + [0] * len(nest.strides)) * missing


@dataclass(frozen=True)
class Axes:
    """Where generated code finds the axes of a nest: `address`, how many, and streams per axis."""

    address: str
    rank: str
    streams: int

    def axis(self, f: Function, d: str | int) -> str:
        """The address of the words of axis `d`, counted from the innermost."""
        words = self.streams + 1
        at = str(d * words) if isinstance(d, int) else f.mul(d, str(words))
        return f.element(self.address, "i64", at)

    def size(self, f: Function, d: int) -> str:
        return f.int_at(self.axis(f, d), 0)

    def strides(self, f: Function, d: int) -> list[str]:
        axis = self.axis(f, d)
        return [f.int_at(axis, 1 + s) for s in range(self.streams)]

    def offsets(
        self, f: Function, position: str, offsets: Sequence[str], first: int = 0
    ) -> list[str]:
        """`offsets` advanced to a linear position over the axes from `first` on."""

        def advanced(axis: str, coordinate: str, values: Sequence[str]) -> list[str]:
            steps = (f.int_at(axis, 1 + s) for s in range(self.streams))
            return [
                f.add(v, f.mul(coordinate, step)) for v, step in zip(values, steps, strict=True)
            ]

        start = [("i64", position), *(("i64", o) for o in offsets)]
        outermost = f.sub(self.rank, "1")  # needs no division
        with f.loop(str(first), outermost, carried=start) as d:
            axis = self.axis(f, d.i)
            rest, coordinate = f.divmod(d.carried[0], f.int_at(axis, 0))
            d.next = [rest, *advanced(axis, coordinate, d.carried[1:])]
        rest, *values = d.results
        return advanced(self.axis(f, outermost), rest, values)


TILE_PARAMETERS = (
    ("ptr", "%params"), ("ptr", "%ptrs"), ("ptr", "%error"), ("ptr", "%records"),
    ("ptr", "%offsets"), ("i64", "%lines"), ("i64", "%length"), ("i64", "%position"),
    ("ptr", "%context"),
)  # fmt: skip
_WALK_PARAMETERS = (
    ("ptr", "%params"), ("ptr", "%ptrs"), ("i64", "%lo"), ("i64", "%hi"), ("ptr", "%error"),
    ("ptr", "%records"), ("i64", "%rank"), ("i64", "%streams"), ("ptr", "%context"),
    ("ptr", "%tile"),
)  # fmt: skip


def walk(f: Function, axes: Axes, lo: str, hi: str, context: str, tile: str) -> None:
    """Visit the row-major positions `lo` to `hi` of a nest, as pieces of its two innermost axes.

    The function `tile` (TILE_PARAMETERS) gets the offsets of its first element; see `each_line`.
    """
    types = ", ".join(t for t, _ in _WALK_PARAMETERS)
    walk_function = f.module.intrinsic(_load_walk(), "void", types)
    values = ("%params", "%ptrs", lo, hi, "%error", axes.address, axes.rank,
              str(axes.streams), context, tile)  # fmt: skip
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(_WALK_PARAMETERS, values, strict=True))
    f.do(f"call void {walk_function}({passed})")


def each_line(f: Function, streams: int, row: Callable[[list[str], str], None]) -> None:
    """The body of a tile: `row(offsets, position)` writes the code for one line of %length."""
    steps = Axes("%records", "0", streams).strides(f, 1)
    carried = [("i64", "%position"), *(("i64", f.int_at("%offsets", s)) for s in range(streams))]
    with f.loop("0", "%lines", carried=carried) as line:
        position, *at = line.carried
        row(at, position)
        line.next = [
            f.add(position, "%length"),
            *(f.add(o, s) for o, s in zip(at, steps, strict=True)),
        ]


@cache
def _load_walk() -> str:
    """The symbol of the walk over axes, compiled once for all kernels: they differ in their tiles.

    The symbol names the version, so that no kernel from a cache meets a walk it was not made for.
    """
    text = _walk_source()
    symbol = f"pullback_walk_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    jit.add_symbol(symbol, jit.compile_ir(text, ["walk"])["walk"])
    return symbol


def _walk_source() -> str:
    module = IRModule()
    f = Function(module, "@walk", _WALK_PARAMETERS)
    words = f.add("%streams", "1")
    offsets = f("alloca i64, i64 %streams")
    outer = f.element("%records", "i64", words)
    inner, middle = f.int_at("%records", 0), f.int_at(outer, 0)

    # The whole of a nest of two axes, as most small arrays are, needs no division.
    both = f.mul(inner, middle)
    at_start = f("icmp eq i64 %lo, 0")
    all_of_it = f(f"and i1 {at_start}, {f(f'icmp eq i64 %hi, {both}')}")
    with f.when(f(f"and i1 {all_of_it}, {f('icmp eq i64 %rank, 2')}")):
        with f.loop("0", "%streams") as s:
            f.do(f"store i64 0, ptr {f.element(offsets, 'i64', s.i)}")
        _call_tile(f, offsets, middle, inner, "0")
        f.do("ret void")
        f.block(f.label())

    def advance(axis: str, coordinate: str, stream: str) -> str:
        return f.mul(coordinate, f.int_at(axis, f.add(stream, "1")))

    with f.loop("%lo", "%hi") as piece:
        rest, column = f.divmod(piece.i, inner)
        rest, line = f.divmod(rest, middle)
        with f.loop("0", "%streams") as s:
            at = f.add(advance("%records", column, s.i), advance(outer, line, s.i))
            f.do(f"store i64 {at}, ptr {f.element(offsets, 'i64', s.i)}")
        with f.loop("2", "%rank", carried=[("i64", rest)]) as d:
            axis = f.element("%records", "i64", f.mul(d.i, words))
            rest, coordinate = f.divmod(d.carried[0], f.int_at(axis, 0))
            with f.loop("0", "%streams") as s:
                place = f.element(offsets, "i64", s.i)
                at = f.add(f.int_at(place, 0), advance(axis, coordinate, s.i))
                f.do(f"store i64 {at}, ptr {place}")
            d.next = [rest]
        left = f.sub("%hi", piece.i)
        whole = f(f"and i1 {f(f'icmp eq i64 {column}, 0')}, {f(f'icmp sge i64 {left}, {inner}')}")
        lines = f.minimum(f.sub(middle, line), f(f"udiv i64 {left}, {inner}"))
        lines = f(f"select i1 {whole}, i64 {lines}, i64 1")
        partial = f.minimum(f.sub(inner, column), left)
        length = f(f"select i1 {whole}, i64 {inner}, i64 {partial}")
        _call_tile(f, offsets, lines, length, piece.i)
        with f.when(f(f"icmp ne i64 {f.int_at('%error', 0)}, 0")):
            f.do("ret void")
            f.block(f.label())
        piece.step = f.mul(lines, length)
    f.finish()
    return module.text()


def _call_tile(f: Function, offsets: str, lines: str, length: str, position: str) -> None:
    values = ("%params", "%ptrs", "%error", "%records", offsets, lines, length, position,
              "%context")  # fmt: skip
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(TILE_PARAMETERS, values, strict=True))
    f.do(f"call void %tile({passed})")


class Streams(Record):
    """The params of a kernel over a nest: its rank, slot and offset in bytes of each array, then
    numbers of the kernel's own, named as in a record. The axes follow.
    """

    def __init__(self, arrays: int, own: str = "", **counts: int):
        super().__init__("", f"rank (*array base)[arrays] {own}", arrays=arrays, **counts)
        self.arrays = arrays
        self.own = self.words[1 + 2 * arrays :]
        self._at_slots = (0,) * arrays

    def head(
        self, nest: Nest, slots: Sequence[int], bases: Sequence[int] = (), **own: Any
    ) -> tuple[SupportsIndex, ...]:
        """All but the axes; without `bases` the arrays begin where their slots point."""
        return self.packed(rank=rank_of(nest), array=slots, base=bases or self._at_slots, **own)


class StreamParams(Params):
    """The params of a kernel over a nest."""

    def __init__(self, f: Function, streams: Streams):
        super().__init__(f, streams)
        self.streams = streams

    def pointers(self) -> list[str]:
        """The addresses of the first elements."""
        found = []
        for s in range(self.streams.arrays):
            slot, base = self["array", s], self["base", s]
            found.append(self.f.offset(self.f.pointer_in(slot), base))
        return found

    def own(self) -> dict[Word, str]:
        """The numbers of the kernel's own."""
        return {word: self[word] for word in self.streams.own}

    def axes(self, streams: int, at: str = "") -> Axes:
        """The axes, which follow the numbers or lie `at` another address."""
        return Axes(at or self.rest(), self["rank"], streams)
