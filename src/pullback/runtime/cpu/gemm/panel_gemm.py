"""Products of large real matrices: blocks of both operands are copied to where registers want them.

Every element of a product is made in the order of `order.product`, whatever the layout of the
operands, the tile it lies in and the number of threads. `direct_gemm` keeps it too.

A tile of the output is made by one thread. For each chunk of k it copies its columns of b to panels
as wide as a block, then some of a's rows at a time, and goes through the blocks of these. The
copies are on the stack: they stay in the second-level cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.vectors import NamedParams, Vectors, lanes_of, squared
from pullback.runtime.cpu.llvm.writer import Function, Module, of_width

__all__ = ["PLACED", "WORDS", "columns_of_tile", "panel_kernel", "placed_kernel"]

_COPIED = 1 << 18  # bytes of b that are copied at a time: part of an L2 cache
_ROWS = 96  # of a that are copied at a time
_LINE = 64  # bytes between panels, so that they do not compete for the same lines of a cache
_VECTORS = 2  # in the width of a block: with its height they fill the registers

# Strides are in bytes; matrix i of the batch sums min(k, all_k - i k) products.
WORDS = (
    *("a", "b", "out", "m", "n", "k", "all_k", "a_row", "a_column", "b_row", "b_column"),
    *("tile_m", "tile_n", "tiles", "across"),
)
# Of parts of larger matrices: where they begin in the memory of a matrix of the batch, and if
# `lower` is set, only tiles that reach the diagonal or below.
PLACED = (*WORDS, "out_row", "a_at", "b_at", "out_at", "lower")
_TILE = (
    *(("ptr", "%a"), ("ptr", "%b"), ("ptr", "%out"), ("i64", "%rows"), ("i64", "%columns")),
    *(("i64", "%k"), ("ptr", "%params")),
)
_BLOCK = (
    *(("ptr", "%a"), ("ptr", "%b"), ("i64", "%k"), ("ptr", "%out"), ("i64", "%out_row")),
    ("i1", "%first"),
)
_COPY = (
    *(("ptr", "%source"), ("i64", "%stride"), ("i64", "%k_stride"), ("i64", "%count")),
    *(("i64", "%k"), ("ptr", "%target")),
)
_UNROLLED = 4  # steps of k in a turn, which hide the loop behind the sums


def _height() -> int:
    """Rows of a block: its sums fill the registers."""
    return 12 if jit.host().vector_bits == 512 else 6


def columns_of_tile(dtype: DType, n: int) -> int:
    """The columns of a tile: as many as are copied at a time, in tiles of about one width."""
    width = _VECTORS * lanes_of(dtype)
    most = _COPIED // (CHUNK * dtype.itemsize)
    tiles = -(-n // most)
    return -(-n // (tiles * width)) * width


@functools.cache
def panel_kernel(dtype: DType) -> int:
    """A kernel over tiles of the matrices of a batch; params are `WORDS`, then the batch."""
    module = Module()
    tile = _TileWriter(module, dtype).name
    f = Function(module, "@kernel")
    p = NamedParams(f, WORDS, 3)
    size = str(dtype.itemsize)
    a, b, out = p.pointers
    with f.loop("%lo", "%hi") as unit:
        item, number = f.divmod(unit.i, p["tiles"])
        down, right = f.divmod(number, p["across"])
        i, j = f.mul(down, p["tile_m"]), f.mul(right, p["tile_n"])
        rows = f.minimum(p["tile_m"], f.sub(p["m"], i))
        columns = f.minimum(p["tile_n"], f.sub(p["n"], j))
        a_at, b_at = p.offsets(item, 2)
        own_a = f.offset(a, f.add(a_at, f.mul(i, p["a_row"])))
        own_b = f.offset(b, f.add(b_at, f.mul(j, p["b_column"])))
        place = f.add(f.mul(f.add(f.mul(item, p["m"]), i), p["n"]), j)
        k = f.minimum(p["k"], f.sub(p["all_k"], f.mul(item, p["k"])))
        target = f.offset(out, f.mul(place, size))
        _call(f, tile, _TILE, (own_a, own_b, target, rows, columns, k, "%params"))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@functools.cache
def placed_kernel(dtype: DType, minus: bool) -> int:
    """The same between parts of matrices: out = a b, or `minus` out -= a b, chunk by chunk of k;
    params are `PLACED`, then the batch with strides of a, b and out.
    """
    module = Module()
    tile = _TileWriter(module, dtype, PLACED, minus).name
    f = Function(module, "@kernel")
    p = NamedParams(f, PLACED, 3)
    a, b, out = p.pointers
    with f.loop("%lo", "%hi") as unit:
        item, number = f.divmod(unit.i, p["tiles"])
        down, right = f.divmod(number, p["across"])
        i, j = f.mul(down, p["tile_m"]), f.mul(right, p["tile_n"])
        rows = f.minimum(p["tile_m"], f.sub(p["m"], i))
        columns = f.minimum(p["tile_n"], f.sub(p["n"], j))
        above = f(f"icmp sge i64 {j}, {f.add(i, rows)}")
        lower = f(f"icmp ne i64 {p['lower']}, 0")
        left_out = f(f"and i1 {above}, {lower}")
        with f.when(f(f"xor i1 {left_out}, true")):
            a_at, b_at, out_at = p.offsets(item, 3)
            own_a = f.offset(a, f.add(f.add(a_at, p["a_at"]), f.mul(i, p["a_row"])))
            own_b = f.offset(b, f.add(f.add(b_at, p["b_at"]), f.mul(j, p["b_column"])))
            place = f.add(f.mul(i, p["out_row"]), f.mul(j, str(dtype.itemsize)))
            target = f.offset(out, f.add(f.add(out_at, p["out_at"]), place))
            _call(f, tile, _TILE, (own_a, own_b, target, rows, columns, p["k"], "%params"))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _call(f: Function, name: str, types: Sequence[tuple[str, str]], values: Sequence[str]) -> None:
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(types, values, strict=True))
    f.do(f"call void {name}({passed})")


class _Panels:
    """Writes the function that copies a part of an operand to panels.

    The operand has `count` lines (rows of a, columns of b), `stride` apart, of `k` elements, which
    are `k_stride` apart. A panel has `width` lines, whose elements with the same k come together.
    What is beyond the last line is undefined.
    """

    def __init__(self, module: Module, dtype: DType, width: int):
        self.module, self.dtype, self.size, self.width = module, dtype, dtype.itemsize, width
        self.step = width * self.size  # bytes from one k to the next
        self.apart = CHUNK * self.step + _LINE
        strips, turned, spread = self._strips(), self._turned(), self._spread()
        self.name = f"@panels{width}"
        f = Function(module, self.name, _COPY, qualifiers="internal ")
        beside = f(f"icmp eq i64 %stride, {self.size}")
        dense = f(f"icmp eq i64 %k_stride, {self.size}")
        turn = f(f"icmp ugt i1 {dense}, {beside}")
        whole = f(f"and i1 {beside}, {f(f'icmp sge i64 %count, {width}')}")
        passed = [name for _, name in _COPY]
        with f.when(whole):
            _call(f, strips, _COPY, passed)
        with f.when(turn):
            _call(f, turned, _COPY, passed)
        _, rest = f.divmod("%count", str(width))
        first = f(f"select i1 {beside}, i64 {f.sub('%count', rest)}, i64 0")
        with f.loop(first, f(f"select i1 {turn}, i64 0, i64 %count"), str(width)) as line:
            count = f.minimum(f.sub("%count", line.i), str(width))
            number = f(f"udiv i64 {line.i}, {width}")
            target = f.offset("%target", f.mul(number, str(self.apart)))
            source = f.offset("%source", f.mul(line.i, "%stride"))
            _call(f, spread, _COPY, (source, "%stride", "%k_stride", count, "%k", target))
        f.finish()

    def _strips(self) -> str:
        """For lines side by side: copies whole panels, and no others."""
        f = Function(self.module, f"@strips{self.width}", _COPY, qualifiers="internal ")
        kind = of_width(Vectors(f, self.dtype).scalar, self.width)
        panels = f(f"udiv i64 %count, {self.width}")
        with f.loop("0", "%k") as k:
            start = [
                ("ptr", f.offset("%source", f.mul(k.i, "%k_stride"))),
                ("ptr", f.offset("%target", f.mul(k.i, str(self.step)))),
            ]
            with f.loop("0", panels, carried=start) as panel:
                source, target = panel.carried
                value = f(f"load {kind}, ptr {source}, align {self.size}")
                f.do(f"store {kind} {value}, ptr {target}, align {self.size}")
                panel.next = [f.offset(source, str(self.step)), f.offset(target, str(self.apart))]
        f.finish()
        return f.name

    def _turned(self) -> str:
        """For dense lines: transposes in registers, the last line again where there are too few.

        A store may reach beyond its k: the next one, or the space between panels, comes later.
        """
        f = Function(self.module, f"@turned{self.width}", _COPY, qualifiers="internal ")
        v = Vectors(f, self.dtype)
        last = f.sub("%count", "1")
        groups = range(0, self.width, v.lanes)
        with f.loop("0", "%count", str(self.width)) as line:
            number = f(f"udiv i64 {line.i}, {self.width}")
            target = f.offset("%target", f.mul(number, str(self.apart)))
            lines = [f.minimum(f.add(line.i, str(c)), last) for c in range(self.width)]
            starts = [f.offset("%source", f.mul(c, "%stride")) for c in lines]
            with f.loop("0", "%k", str(v.lanes)) as k:
                mask = v.mask(f.sub("%k", k.i))
                place = f.offset(target, f.mul(k.i, str(self.step)))
                loaded = [v.load(v.at(s, k.i), mask) for s in starts]
                loaded += loaded[-1:] * (len(groups) * v.lanes - self.width)
                squares = [squared(v, loaded[g : g + v.lanes]) for g in groups]
                for r, row in enumerate(zip(*squares, strict=True)):
                    for g, vector in zip(groups, row, strict=True):
                        v.store(vector, f.offset(place, str(r * self.step + g * self.size)))
        f.finish()
        return f.name

    def _spread(self) -> str:
        """For any lines of one panel: element by element."""
        f = Function(self.module, f"@spread{self.width}", _COPY, qualifiers="internal ")
        kind = Vectors(f, self.dtype).scalar
        with f.loop("0", "%k") as k:
            source = f.offset("%source", f.mul(k.i, "%k_stride"))
            target = f.offset("%target", f.mul(k.i, str(self.step)))
            with f.loop("0", "%count") as line:
                place = f.offset(source, f.mul(line.i, "%stride"))
                value = f(f"load {kind}, ptr {place}, align {self.size}")
                place = f.offset(target, f.mul(line.i, str(self.size)))
                f.do(f"store {kind} {value}, ptr {place}, align {self.size}")
        f.finish()
        return f.name


class _TileWriter:
    """Writes the function that makes a tile, and those that it calls."""

    def __init__(
        self, module: Module, dtype: DType, names: Sequence[str] = WORDS, minus: bool = False
    ):
        self.module, self.dtype, self.size, self.minus = module, dtype, dtype.itemsize, minus
        self.height, self.width = _height(), _VECTORS * lanes_of(dtype)
        self.block = self._block()
        self.a = _Panels(module, dtype, self.height)
        self.b = _Panels(module, dtype, self.width)
        self.name = "@tile"
        self.f = f = Function(module, self.name, _TILE, qualifiers="internal ")
        words = {name: f.int_at("%params", i) for i, name in enumerate(names) if i > 2}
        a_row, a_column, b_row, b_column = (
            words[name] for name in ("a_row", "a_column", "b_row", "b_column")
        )
        self.out_row = words.get("out_row") or f.mul(words["n"], str(self.size))
        most = _COPIED // (CHUNK * self.size)
        self.b_area = f.array("i8", most // self.width * self.b.apart)
        self.a_area = f.array("i8", _ROWS // self.height * self.a.apart)
        self.edge = f.array("i8", self.height * self.width * self.size)
        with f.loop("0", "%k", str(CHUNK)) as chunk:
            k = f.minimum(f.sub("%k", chunk.i), str(CHUNK))
            source = f.offset("%b", f.mul(chunk.i, b_row))
            _call(f, self.b.name, _COPY, (source, b_column, b_row, "%columns", k, self.b_area))
            source = f.offset("%a", f.mul(chunk.i, a_column))
            first = "false" if minus else f(f"icmp eq i64 {chunk.i}, 0")
            with f.loop("0", "%rows", str(_ROWS)) as group:
                rows = f.minimum(f.sub("%rows", group.i), str(_ROWS))
                own = f.offset(source, f.mul(group.i, a_row))
                _call(f, self.a.name, _COPY, (own, a_row, a_column, rows, k, self.a_area))
                out = f.offset("%out", f.mul(group.i, self.out_row))
                self._blocks(out, rows, k, first)
        f.finish()

    def _blocks(self, out: str, rows: str, k: str, first: str) -> None:
        """All blocks of the rows that have been copied; those at the edges are made aside."""
        f, size = self.f, self.size
        start = [("ptr", self.b_area)]
        with f.loop("0", "%columns", str(self.width), carried=start) as j:
            (b,) = j.carried
            columns = f.sub("%columns", j.i)
            wide = f(f"icmp sge i64 {columns}, {self.width}")
            place = f.offset(out, f.mul(j.i, str(size)))
            with f.loop("0", rows, str(self.height), carried=[("ptr", self.a_area)]) as i:
                (a,) = i.carried
                left = f.sub(rows, i.i)
                inside = f(f"and i1 {wide}, {f(f'icmp sge i64 {left}, {self.height}')}")
                target = f.offset(place, f.mul(i.i, self.out_row))
                with f.when(inside):
                    _call(f, self.block, _BLOCK, (a, b, k, target, self.out_row, first))
                with f.when(f(f"xor i1 {inside}, true")):
                    aside = (self.edge, str(self.width * size), "true")
                    _call(f, self.block, _BLOCK, (a, b, k, *aside))
                    own = f.minimum(left, str(self.height)), f.minimum(columns, str(self.width))
                    self._join_edge(target, *own, first)
                i.next = [f.offset(a, str(self.a.apart))]
            j.next = [f.offset(b, str(self.b.apart))]

    def _join_edge(self, out: str, rows: str, columns: str, first: str) -> None:
        f, size = self.f, str(self.size)
        kind = Vectors(f, self.dtype).scalar
        with f.loop("0", rows) as r:
            own = f.offset(self.edge, f.mul(r.i, str(self.width * self.size)))
            target = f.offset(out, f.mul(r.i, self.out_row))
            with f.loop("0", columns) as c:
                at = f.mul(c.i, size)
                value = f(f"load {kind}, ptr {f.offset(own, at)}, align {size}")
                place = f.offset(target, at)
                before = f(f"load {kind}, ptr {place}, align {size}")
                total = f(f"{'fsub' if self.minus else 'fadd'} {kind} {before}, {value}")
                joined = f(f"select i1 {first}, {kind} {value}, {kind} {total}")
                f.do(f"store {kind} {joined}, ptr {place}, align {size}")

    def _block(self) -> str:
        """The function that makes a block in registers."""
        f = Function(self.module, "@block", _BLOCK, qualifiers="internal ")
        v = Vectors(f, self.dtype)
        zeros = [(v.type, "zeroinitializer")] * (self.height * _VECTORS)
        whole = f(f"and i64 %k, {-_UNROLLED}")
        sums = [("ptr", "%a"), ("ptr", "%b"), *zeros]
        for start, stop, times in (("0", whole, _UNROLLED), (whole, "%k", 1)):
            with f.loop(start, stop, str(times), carried=sums) as k:
                k.next = self._steps(v, k.carried, times)
            sums = [(kind, name) for (kind, _), name in zip(sums, k.results, strict=True)]
        values = [name for _, name in sums[2:]]
        places = [
            v.at(f.offset("%out", f.mul("%out_row", str(r))), str(c * v.lanes))
            for r in range(self.height)
            for c in range(_VECTORS)
        ]
        with f.when("%first"):
            for place, value in zip(places, values, strict=True):
                v.store(value, place)
        with f.when(f("xor i1 %first, true")):
            join = v.subtract if self.minus else v.add
            for place, value in zip(places, values, strict=True):
                v.store(join(v.load(place), value), place)
        f.finish()
        return f.name

    def _steps(self, v: Vectors, carried: Sequence[str], times: int) -> list[str]:
        """Places in a and b, and sums, after some more k."""
        a, b, *sums = carried
        for t in range(times):
            line = t * _VECTORS
            columns = [v.load(v.at(b, str((line + c) * v.lanes))) for c in range(_VECTORS)]
            joined = []
            for r in range(self.height):
                factor = v.repeat(v.at(a, str(t * self.height + r)))
                own = sums[r * _VECTORS : (r + 1) * _VECTORS]
                joined += [v.fma(factor, c, s) for c, s in zip(columns, own, strict=True)]
            sums = joined
        step = times * self.height, times * self.width
        return [*(v.at(x, str(n)) for x, n in zip((a, b), step, strict=True)), *sums]
