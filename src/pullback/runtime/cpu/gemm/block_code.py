"""Panels and blocks: how products of large real matrices go through registers.

A block is some rows and two vectors of columns of the output; its sums stay in registers over a
chunk of k. The rows of a and the columns of b that it needs are copied to panels first, as wide as
a block, where elements with the same k come together. `panel_gemm` and `packed_gemm` say when.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.vectors import Vectors, lanes_of, squared
from pullback.runtime.cpu.llvm.writer import Function, IRModule, of_width

__all__ = ["BlockWriter", "Panels", "block_sides", "call", "panel_bytes"]

_LINE = 64  # bytes of a line: between panels, so that they do not compete for the same ones
_VECTORS = 2  # in the width of a block: with its height they fill the registers
_AHEAD = 8  # rows of b, which no prefetcher of the processor follows, are fetched before use
_UNROLLED = 4  # steps of k in a turn, which hide the loop behind the sums
_BLOCK = (
    *(("ptr", "%a"), ("ptr", "%b"), ("i64", "%k"), ("ptr", "%out"), ("i64", "%out_row")),
    *(("ptr", "%ahead"), ("i1", "%first")),
)
_BESIDE = (*_BLOCK, ("i64", "%b_row"))
_COPY = (
    *(("ptr", "%source"), ("i64", "%stride"), ("i64", "%k_stride"), ("i64", "%count")),
    *(("i64", "%k"), ("ptr", "%target")),
)


def block_sides(dtype: DType) -> tuple[int, int]:
    """Rows and columns of a block: its sums fill the registers."""
    return 12 if jit.host().vector_bits == 512 else 6, _VECTORS * lanes_of(dtype)


def panel_bytes(dtype: DType) -> tuple[int, int]:
    """From one panel of a, and of b, to the next."""
    height, width = (CHUNK * side * dtype.itemsize + _LINE for side in block_sides(dtype))
    return height, width


def call(f: Function, name: str, types: Sequence[tuple[str, str]], values: Sequence[str]) -> None:
    """A call of a function of the module."""
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(types, values, strict=True))
    f.do(f"call void {name}({passed})")


class Panels:
    """Writes the function that copies a part of an operand to panels.

    The operand has `count` lines (rows of a, columns of b), `stride` apart, of `k` elements, which
    are `k_stride` apart. A panel has `width` lines, whose elements with the same k come together.
    What is beyond the last line is undefined.
    """

    def __init__(self, module: IRModule, dtype: DType, width: int):
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
            call(f, strips, _COPY, passed)
        with f.when(turn):
            call(f, turned, _COPY, passed)
        _, rest = f.divmod("%count", str(width))
        first = f(f"select i1 {beside}, i64 {f.sub('%count', rest)}, i64 0")
        with f.loop(first, f(f"select i1 {turn}, i64 0, i64 %count"), str(width)) as line:
            count = f.minimum(f.sub("%count", line.i), str(width))
            number = f(f"udiv i64 {line.i}, {width}")
            target = f.offset("%target", f.mul(number, str(self.apart)))
            source = f.offset("%source", f.mul(line.i, "%stride"))
            call(f, spread, _COPY, (source, "%stride", "%k_stride", count, "%k", target))
        f.finish()

    def copy(self, f: Function, *values: str) -> None:
        """Copies lines: source, stride, k_stride, count, k, target."""
        call(f, self.name, _COPY, values)

    def _strips(self) -> str:
        """For lines side by side: copies whole panels, and no others."""
        f = Function(self.module, f"@strips{self.width}", _COPY, qualifiers="internal ")
        kind = of_width(Vectors(f, self.dtype).scalar, self.width)
        panels = f(f"udiv i64 %count, {self.width}")
        ahead = f.mul("%k_stride", str(_AHEAD))
        with f.loop("0", "%k") as k:
            start = [
                ("ptr", f.offset("%source", f.mul(k.i, "%k_stride"))),
                ("ptr", f.offset("%target", f.mul(k.i, str(self.step)))),
            ]
            with f.loop("0", panels, carried=start) as panel:
                source, target = panel.carried
                later = f.offset(source, ahead)
                for at in range(0, self.step, _LINE):
                    f.prefetch(f.offset(later, str(at)))
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
        following = f.mul("%stride", str(self.width))
        with f.loop("0", "%count", str(self.width)) as line:
            number = f(f"udiv i64 {line.i}, {self.width}")
            target = f.offset("%target", f.mul(number, str(self.apart)))
            lines = [f.minimum(f.add(line.i, str(c)), last) for c in range(self.width)]
            starts = [f.offset("%source", f.mul(c, "%stride")) for c in lines]
            with f.loop("0", "%k", str(v.lanes)) as k:
                mask = v.mask(f.sub("%k", k.i))
                place = f.offset(target, f.mul(k.i, str(self.step)))
                for s in starts:
                    f.prefetch(f.offset(v.at(s, k.i), following))
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


class BlockWriter:
    """Writes the function that makes a block, and the loops over the blocks of copied panels.

    With `minus` sums are taken from what is there.
    """

    def __init__(self, module: IRModule, dtype: DType, minus: bool = False):
        self.module, self.dtype, self.size, self.minus = module, dtype, dtype.itemsize, minus
        self.height, self.width = block_sides(dtype)
        self.apart = panel_bytes(dtype)
        self._names: dict[bool, str] = {}

    def edge(self, f: Function) -> str:
        """Memory for a block that reaches beyond the output."""
        return f.array("i8", self.height * self.width * self.size)

    def write(
        self,
        f: Function,
        panels: Sequence[str],
        out: str,
        out_row: str,
        rows: str,
        columns: str,
        k: str,
        first: str,
        edge: str,
        b_row: str | None = None,
    ) -> None:
        """All blocks of some rows and columns, over one chunk of k; `first`: of the first chunk.

        Those at the edges are made aside. With `b_row`, the bytes from row to row, whole blocks of
        columns of b are read where they are instead of from a panel.
        """
        size, types = self.size, _BLOCK if b_row is None else _BESIDE
        name, more = self._block(b_row is not None), () if b_row is None else (b_row,)
        next_panel = str(self.apart[1] if b_row is None else self.width * size)
        with f.loop("0", columns, str(self.width), carried=[("ptr", panels[1])]) as j:
            (b,) = j.carried
            left_columns = f.sub(columns, j.i)
            wide = f(f"icmp sge i64 {left_columns}, {self.width}")
            place = f.offset(out, f.mul(j.i, str(size)))
            with f.loop("0", rows, str(self.height), carried=[("ptr", panels[0])]) as i:
                (a,) = i.carried
                left = f.sub(rows, i.i)
                inside = f(f"and i1 {wide}, {f(f'icmp sge i64 {left}, {self.height}')}")
                target = f.offset(place, f.mul(i.i, out_row))
                number = f(f"udiv i64 {i.i}, {self.height}")
                done = f.mul(number, str(CHUNK // _UNROLLED * _LINE))
                ahead = f.offset(b, f.add(done, str(self.apart[1])))
                with f.when(inside):
                    call(f, name, types, (a, b, k, target, out_row, ahead, first, *more))
                with f.when(f(f"xor i1 {inside}, true")):
                    aside = (edge, str(self.width * size), ahead, "true")
                    call(f, name, types, (a, b, k, *aside, *more))
                    own = (
                        f.minimum(left, str(self.height)),
                        f.minimum(left_columns, str(self.width)),
                    )
                    self._join_edge(f, edge, target, out_row, own, first)
                i.next = [f.offset(a, str(self.apart[0]))]
            j.next = [f.offset(b, next_panel)]

    def _join_edge(
        self, f: Function, edge: str, out: str, out_row: str, own: tuple[str, str], first: str
    ) -> None:
        size = str(self.size)
        kind = Vectors(f, self.dtype).scalar
        with f.loop("0", own[0]) as r:
            source = f.offset(edge, f.mul(r.i, str(self.width * self.size)))
            target = f.offset(out, f.mul(r.i, out_row))
            with f.loop("0", own[1]) as c:
                at = f.mul(c.i, size)
                value = f(f"load {kind}, ptr {f.offset(source, at)}, align {size}")
                place = f.offset(target, at)
                before = f(f"load {kind}, ptr {place}, align {size}")
                total = f(f"{'fsub' if self.minus else 'fadd'} {kind} {before}, {value}")
                joined = f(f"select i1 {first}, {kind} {value}, {kind} {total}")
                f.do(f"store {kind} {joined}, ptr {place}, align {size}")

    def _block(self, beside: bool) -> str:
        """The function that makes a block in registers, from a panel or from b `beside` others."""
        if beside in self._names:
            return self._names[beside]
        name = self._names[beside] = "@beside" if beside else "@block"
        f = Function(self.module, name, _BESIDE if beside else _BLOCK, qualifiers="internal ")
        v = Vectors(f, self.dtype)
        step = "%b_row" if beside else str(self.width * self.size)
        zeros = [(v.type, "zeroinitializer")] * (self.height * _VECTORS)
        whole = f(f"and i64 %k, {-_UNROLLED}")
        sums = [("ptr", "%a"), ("ptr", "%b"), *zeros]
        for r in range(self.height):
            row = f.offset("%out", f.mul("%out_row", str(r)))
            for at in range(0, self.width * self.size, _LINE):
                f.prefetch(f.offset(row, str(at)), written=True)
        for start, stop, times in (("0", whole, _UNROLLED), (whole, "%k", 1)):
            with f.loop(start, stop, str(times), carried=sums) as k:
                if times > 1 and not beside:
                    self._fetch(f, k.carried[0], f.mul(k.i, str(_LINE // _UNROLLED)))
                k.next = self._steps(v, k.carried, times, step)
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
        return name

    def _fetch(self, f: Function, a: str, line: str) -> None:
        """Brings what the next blocks read nearer, while one is made: the next panel of a to the
        first cache, and a line of the next panel of b to the second.
        """
        taken = _UNROLLED * self.height * self.size
        for at in range(0, taken, _LINE):
            f.prefetch(f.offset(a, str(self.apart[0] + at)))
        f.prefetch(f.offset("%ahead", line), near=2)

    def _steps(self, v: Vectors, carried: Sequence[str], times: int, step: str) -> list[str]:
        """Places in a and b, whose rows are `step` bytes apart, and sums, after some more k."""
        a, b, *sums = carried
        for t in range(times):
            columns = [v.load(v.at(b, str(c * v.lanes))) for c in range(_VECTORS)]
            b = v.f.offset(b, step)
            joined = []
            for r in range(self.height):
                factor = v.repeat(v.at(a, str(t * self.height + r)))
                own = sums[r * _VECTORS : (r + 1) * _VECTORS]
                joined += [v.fma(factor, c, s) for c, s in zip(columns, own, strict=True)]
            sums = joined
        return [v.at(a, str(times * self.height)), b, *sums]
