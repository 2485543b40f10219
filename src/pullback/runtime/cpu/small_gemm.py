"""Products of small and middling real matrices in LLVM IR, where a library call does not pay.

Two forms, both over rows of the output, so that any range of rows can be made on its own:

    direct  the columns of b lie side by side: a block of the output stays in registers while k
            runs in order, so the sum of an element does not depend on its neighbours
    dots    k lies side by side in a and b: vectors run along k, and a tree joins their lanes
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.llvm import Function, Module, of_width, register

__all__ = [
    "DIRECT",
    "DOTS",
    "TRANSPOSE",
    "direct_kernel",
    "dots_kernel",
    "lanes_of",
    "layout_of",
    "transpose_kernel",
]

DIRECT = ("a", "b", "out", "m", "n", "k", "a_row", "a_column", "b_row")
DOTS = ("a", "b", "out", "m", "n", "k", "a_row", "b_column")
TRANSPOSE = ("source", "target", "rows", "columns", "stride", "pitch")
_BLOCK = (
    ("ptr", "%a"), ("ptr", "%b"), ("ptr", "%out"), ("i64", "%n"), ("i64", "%k"), ("i64", "%a_row"),
    ("i64", "%a_column"), ("i64", "%b_row"),
)  # fmt: skip
_UNROLL = 4
# Vectors of columns that a block of so many rows takes at once: at least eight sums.
_WIDTHS = {1: (8, 2), 2: (4, 2), 4: (2,), 6: (2,), 8: (2,)}


def lanes_of(dtype: DType) -> int:
    """Elements of a vector."""
    return jit.host().vector_bits // (8 * dtype.itemsize)


def layout_of(a_row: int, a_column: int) -> str:
    """The class of strides of a that code is specialised for."""
    return "rows" if a_column == 1 else "columns" if a_row == 1 else "any"


class _Vectors:
    """Loads, stores and arithmetic of vectors in one function."""

    def __init__(self, f: Function, dtype: DType):
        self.f, self.dtype, self.lanes = f, dtype, lanes_of(dtype)
        self.size, self.scalar = dtype.itemsize, register(dtype)
        self.type = of_width(self.scalar, self.lanes)
        self.suffix = f"v{self.lanes}f{8 * self.size}"

    def at(self, pointer: str, elements: str) -> str:
        return self.f.element(pointer, self.scalar, elements)

    def mask(self, count: str) -> str:
        """The lanes below `count`."""
        numbers = ", ".join(f"i64 {k}" for k in range(self.lanes))
        wide = self.f.splat(count, "i64", self.lanes)
        return self.f(f"icmp sgt <{self.lanes} x i64> {wide}, <{numbers}>")

    def fma(self, x: str, y: str, total: str) -> str:
        t = self.type
        function = self.f.module.intrinsic(f"llvm.fmuladd.{self.suffix}", t, t, t, t)
        return self.f(f"call {t} {function}({t} {x}, {t} {y}, {t} {total})")

    def load(self, pointer: str, mask: str | None = None) -> str:
        f, t = self.f, self.type
        if mask is None:
            return f(f"load {t}, ptr {pointer}, align {self.size}")
        bits = f"<{self.lanes} x i1>"
        name = f"llvm.masked.load.{self.suffix}.p0"
        function = f.module.intrinsic(name, t, "ptr", "i32", bits, t)
        passed = f"ptr {pointer}, i32 {self.size}, {bits} {mask}, {t} zeroinitializer"
        return f(f"call {t} {function}({passed})")

    def repeat(self, pointer: str) -> str:
        """The element at `pointer` in every lane."""
        value = self.f(f"load {self.scalar}, ptr {pointer}, align {self.size}")
        return self.f.splat(value, self.scalar, self.lanes)

    def store(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.type} {value}, ptr {pointer}, align {self.size}")

    def store_first(self, values: Sequence[str], pointers: Sequence[str], count: str) -> None:
        """Stores the first `count` lanes of each value: masked stores are slow on some CPUs."""
        f = self.f
        for lane in range(self.lanes):
            with f.when(f(f"icmp sgt i64 {count}, {lane}")):
                for value, pointer in zip(values, pointers, strict=True):
                    one = f(f"extractelement {self.type} {value}, i64 {lane}")
                    place = self.at(pointer, str(lane))
                    f.do(f"store {self.scalar} {one}, ptr {place}, align {self.size}")

    def pick(self, u: str, w: str, lanes: Sequence[int]) -> str:
        """The listed lanes of `u`, and after them of `w`."""
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
        return self.f(f"shufflevector {self.type} {u}, {self.type} {w}, {mask}")

    def add(self, x: str, y: str) -> str:
        return self.f(f"fadd {self.type} {x}, {y}")


class _Part(NamedTuple):
    """Rows of one matrix of a batch: its number, the first row, how many, offsets of a and b."""

    item: str
    row: str
    rows: str
    a: str
    b: str


class _Arguments:
    """The params of a kernel by name, and the pointers among them."""

    def __init__(self, f: Function, names: Sequence[str], pointers: int):
        self.f, self.first = f, len(names)
        self.words = {name: f.int_at("%params", i) for i, name in enumerate(names)}
        slots = [self.words[name] for name in names[:pointers]]
        self.pointers = [f(f"load ptr, ptr {f.element('%ptrs', 'ptr', s)}") for s in slots]

    def __getitem__(self, name: str) -> str:
        return self.words[name]

    def offsets(self, item: str, operands: int) -> list[str]:
        """Element offsets of matrix `item`; `loops.index_params` come after the params."""
        f = self.f
        start = [("i64", item), *[("i64", "0")] * operands]
        with f.loop("0", f.int_at("%params", self.first), carried=start) as d:
            words = f.mul(d.i, str(operands + 1))
            axis = f.element("%params", "i64", f.add(words, str(self.first + 1)))
            rest, position = f.divmod(d.carried[0], f.int_at(axis, 0))
            moved = [
                f.add(o, f.mul(position, f.int_at(axis, 1 + k)))
                for k, o in enumerate(d.carried[1:])
            ]
            d.next = [rest, *moved]
        return d.results[1:]

    @contextmanager
    def parts(self) -> Iterator[_Part]:
        """Code for every part of %lo ... %hi, counted in rows, that lies in one matrix."""
        f = self.f
        with f.loop("%lo", "%hi") as part:
            item, row = f.divmod(part.i, self["m"])
            count = f.minimum(f.sub(self["m"], row), f.sub("%hi", part.i))
            yield _Part(item, row, count, *self.offsets(item, 2))
            part.step = count


@functools.cache
def direct_kernel(dtype: DType, layout: str) -> int:
    """A kernel over the rows of all matrices of a batch; params are `DIRECT`, then the batch."""
    module = Module()
    heights = (8, 4, 2, 1) if jit.host().vector_bits == 512 else (6, 4, 2, 1)
    for rows in heights:
        _Block(module, dtype, layout, rows)
    f = Function(module, "@kernel")
    p = _Arguments(f, DIRECT, 3)
    v = _Vectors(f, dtype)
    a, b, out = p.pointers
    with p.parts() as part:
        end = f.add(part.row, part.rows)
        columns = v.at(b, part.b)
        with f.loop(part.row, end) as block:
            left = f.sub(end, block.i)
            rows = f.add(f.mul(part.item, p["m"]), block.i)
            places = (
                v.at(a, f.add(part.a, f.mul(block.i, p["a_row"]))),
                columns,
                v.at(out, f.mul(rows, p["n"])),
            )
            sizes = [p[name] for name in ("n", "k", "a_row", "a_column", "b_row")]
            block.step = _call_block(f, heights, left, (*places, *sizes))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _call_block(f: Function, heights: Sequence[int], left: str, values: Sequence[str]) -> str:
    """Calls the block that suits the rows that are left, and returns its height."""
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(_BLOCK, values, strict=True))
    height = "1"
    for rows in sorted(heights)[1:]:
        height = f(f"select i1 {f(f'icmp sge i64 {left}, {rows}')}, i64 {rows}, i64 {height}")
    if 6 in heights:  # two blocks of four, rather than one of six and one of two
        eight = f(f"icmp eq i64 {left}, 8")
        height = f(f"select i1 {eight}, i64 4, i64 {height}")
    for rows in heights:
        with f.when(f(f"icmp eq i64 {height}, {rows}")):
            f.do(f"call void @rows{rows}({passed})")
    return height


class _Block:
    """The function that makes some rows of the output, panel of columns after panel."""

    def __init__(self, module: Module, dtype: DType, layout: str, rows: int):
        f = self.f = Function(module, f"@rows{rows}", _BLOCK, qualifiers="internal ")
        self.v = _Vectors(f, dtype)
        self.rows, self.layout, self.lanes = rows, layout, self.v.lanes
        self.along = str(self.v.size) if layout == "rows" else f.mul("%a_column", str(self.v.size))
        self.line = f.mul("%b_row", str(self.v.size))
        if layout == "columns":
            self.heads = [self.v.at("%a", str(r)) for r in range(rows)]
        else:
            self.heads = [self.v.at("%a", f.mul("%a_row", str(r))) for r in range(rows)]
        column = "0"
        for vectors in _WIDTHS[rows]:
            width = vectors * self.lanes
            stop = f.sub("%n", str(width - 1))
            with f.loop(column, stop, str(width), carried=[("i64", column)]) as panel:
                self._panel(panel.i, vectors, None)
                panel.next = [f.add(panel.i, str(width))]
            column = panel.results[0]
        self._last_panel(column, f.sub("%n", column))
        f.finish()

    def _last_panel(self, j: str, rest: str) -> None:
        """What is left: less than two vectors of columns."""
        f = self.f
        with f.when(f(f"icmp sgt i64 {rest}, {self.lanes}")):
            self._panel(j, 2, f.sub(rest, str(self.lanes)))
        some = f(f"icmp sgt i64 {rest}, 0")
        few = f(f"icmp sle i64 {rest}, {self.lanes}")
        with f.when(f(f"and i1 {some}, {few}")):
            self._panel(j, 1, rest)

    def _panel(self, j: str, vectors: int, count: str | None) -> None:
        """Some vectors of columns from j on; of the last one only `count` columns, if given."""
        f, v = self.f, self.v
        masks = [None] * (vectors - 1) + [None if count is None else v.mask(count)]
        zeros = [(v.type, "zeroinitializer")] * (self.rows * vectors)
        state = [("i64", "0"), ("ptr", v.at("%b", j)), *zeros]
        whole = f(f"and i64 %k, {-_UNROLL}")
        for first, last, steps in (("0", whole, _UNROLL), (whole, "%k", 1)):
            with f.loop(first, last, str(steps), carried=state) as k:
                at, line, *sums = k.carried
                for _ in range(steps):
                    sums = self._step(at, line, sums, masks)
                    at, line = f.add(at, self.along), f.offset(line, self.line)
                k.next = [at, line, *sums]
            state = [(kind, value) for (kind, _), value in zip(state, k.results, strict=True)]
        sums = [value for _, value in state[2:]]
        lines = [v.at("%out", f.add(f.mul("%n", str(r)), j)) for r in range(self.rows)]
        for c, mask in enumerate(masks):
            places = [v.at(line, str(c * self.lanes)) for line in lines]
            values = sums[c::vectors]
            if mask is not None and count is not None:
                v.store_first(values, places, count)
                continue
            for value, place in zip(values, places, strict=True):
                v.store(value, place)

    def _step(
        self, at: str, line: str, sums: Sequence[str], masks: Sequence[str | None]
    ) -> list[str]:
        """The sums after one more k: `at` is the offset of a's elements, `line` b's row."""
        f, v = self.f, self.v
        columns = [v.load(v.at(line, str(c * self.lanes)), m) for c, m in enumerate(masks)]
        joined = []
        for r, head in enumerate(self.heads):
            factor = v.repeat(f.offset(head, at))
            own = sums[r * len(masks) : (r + 1) * len(masks)]
            joined += [v.fma(factor, c, total) for c, total in zip(columns, own, strict=True)]
        return joined


@functools.cache
def dots_kernel(dtype: DType) -> int:
    """A kernel over the rows of all matrices of a batch; params are `DOTS`, then the batch."""
    module = Module()
    f = Function(module, "@kernel")
    p = _Arguments(f, DOTS, 3)
    v = _Vectors(f, dtype)
    a, b, out = p.pointers
    together = max(8, v.lanes)
    with p.parts() as part, f.loop("0", part.rows) as line:
        row = f.add(part.row, line.i)
        head = v.at(a, f.add(part.a, f.mul(row, p["a_row"])))
        target = v.at(out, f.mul(f.add(f.mul(part.item, p["m"]), row), p["n"]))
        with f.loop("0", p["n"], str(together)) as j:
            sums = _dots(f, v, p, head, v.at(b, part.b), j.i, together)
            for first in range(0, together, v.lanes):
                column = f.add(j.i, str(first))
                rest, place = f.sub(p["n"], column), v.at(target, column)
                total = _join(v, sums[first : first + v.lanes])
                full = f(f"icmp sge i64 {rest}, {v.lanes}")
                with f.when(full):
                    v.store(total, place)
                with f.when(f(f"xor i1 {full}, true")):
                    v.store_first([total], [place], rest)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _dots(
    f: Function, v: _Vectors, p: _Arguments, head: str, first: str, j: str, count: int
) -> list[str]:
    """The products of the row at `head` with columns j, j + 1, ..., lane by lane."""
    last = f.sub(p["n"], "1")
    columns = [f.minimum(f.add(j, str(c)), last) for c in range(count)]
    places = [v.at(first, f.mul(c, p["b_column"])) for c in columns]

    def step(at: str, sums: Sequence[str], mask: str | None) -> list[str]:
        factor = v.load(v.at(head, at), mask)
        pairs = zip(places, sums, strict=True)
        return [v.fma(factor, v.load(v.at(place, at), mask), total) for place, total in pairs]

    whole = f(f"and i64 {p['k']}, {-v.lanes}")
    zeros = [(v.type, "zeroinitializer")] * count
    with f.loop("0", whole, str(v.lanes), carried=zeros) as k:
        k.next = step(k.i, k.carried, None)
    state = [(v.type, value) for value in k.results]
    with f.loop(whole, p["k"], str(v.lanes), carried=state) as tail:
        tail.next = step(tail.i, tail.carried, v.mask(f.sub(p["k"], tail.i)))
    return tail.results


def _join(v: _Vectors, vectors: list[str]) -> str:
    """The sums of the lanes of each vector, as one vector."""
    even, odd = (range(side, 2 * v.lanes, 2) for side in (0, 1))
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [v.add(v.pick(u, w, even), v.pick(u, w, odd)) for u, w in pairs]
    return vectors[0]


@functools.cache
def transpose_kernel(dtype: DType) -> int:
    """A kernel that copies dense columns to rows of whole vectors; params are `TRANSPOSE`.

    A unit is a block of rows of a matrix of the batch; the batch comes after the params.
    """
    module = Module()
    f = Function(module, "@kernel")
    p = _Arguments(f, TRANSPOSE, 2)
    v = _Vectors(f, dtype)
    source, target = p.pointers
    pitch, lanes = p["pitch"], str(v.lanes)
    blocks = f(f"udiv i64 {f.add(p['rows'], str(v.lanes - 1))}, {lanes}")
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, blocks)
        i = f.mul(block, lanes)
        first = v.at(source, f.add(p.offsets(item, 1)[0], i))
        out = v.at(target, f.mul(f.add(f.mul(item, p["rows"]), i), pitch))
        height = f.sub(p["rows"], i)
        full = f(f"icmp sge i64 {height}, {lanes}")
        with f.when(full), f.loop("0", pitch, lanes) as j:
            for r, row in enumerate(_square(f, v, p, first, j.i, None)):
                v.store(row, v.at(out, f.add(f.mul(pitch, str(r)), j.i)))
        with f.when(f(f"xor i1 {full}, true")), f.loop("0", pitch, lanes) as j:
            for r, row in enumerate(_square(f, v, p, first, j.i, v.mask(height))):
                with f.when(f(f"icmp sgt i64 {height}, {r}")):
                    v.store(row, v.at(out, f.add(f.mul(pitch, str(r)), j.i)))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _square(
    f: Function, v: _Vectors, p: _Arguments, first: str, j: str, mask: str | None
) -> list[str]:
    """Columns from j on, as rows; the last column again where there are fewer than lanes."""
    last = f.sub(p["columns"], "1")
    columns = [f.minimum(f.add(j, str(c)), last) for c in range(v.lanes)]
    vectors = [v.load(v.at(first, f.mul(c, p["stride"])), mask) for c in columns]
    half = v.lanes // 2
    lower = [k for i in range(half) for k in (i, i + v.lanes)]
    upper = [k + half for k in lower]
    for _ in range(half.bit_length()):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [v.pick(u, w, lanes) for u, w in pairs for lanes in (lower, upper)]
    return vectors
