"""Products of one vector with a large matrix, which read every element once.

They have an order of their own: `order.row_product`.

    rows  columns lie side by side: rows are added to a set of sums for each lane
    dots  k lies side by side: vectors run along k

Both are kernels over tiles of columns. `sum_kernel` adds up chunks that were made one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.compile.kernel.order import ROW_CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.vectors import Arguments, Vectors
from pullback.runtime.cpu.llvm.writer import Function, Module, literal, of_width

__all__ = ["MOST_COLUMNS", "WORDS", "dots_kernel", "rows_kernel", "sum_kernel"]

# Strides are in bytes: of the vector, and of the matrix's rows or columns. The batch comes next;
# item i of it sums min(k, all_k - i k) products.
WORDS = ("a", "b", "out", "n", "k", "all_k", "a_step", "b_step", "width", "tiles")
MOST_COLUMNS = 512  # of a tile: the sums of all lanes stay in the L1 cache
_PITCH = MOST_COLUMNS + 16  # sums of different lanes do not compete for the same lines of a cache
_TOGETHER = 2  # vectors of a row that are read at a time
_COLUMNS = 8  # whose sums do not wait for each other


class _Kernel:
    """A kernel over tiles of columns: `chunk` writes the code for a chunk of one."""

    def __init__(self, dtype: DType):
        self.module = Module()
        self.f = f = Function(self.module, "@kernel")
        self.v = Vectors(f, dtype)
        self.p = p = Arguments(f, WORDS, 3)
        self.prepare()
        a, b, out = p.pointers
        with f.loop("%lo", "%hi") as unit:
            item, tile = f.divmod(unit.i, p["tiles"])
            column = f.mul(tile, p["width"])
            self.columns = f.minimum(p["width"], f.sub(p["n"], column))
            self.k = f.minimum(p["k"], f.sub(p["all_k"], f.mul(item, p["k"])))
            a_at, b_at = p.offsets(item, 2)
            self.a, own = f.offset(a, a_at), f.offset(b, b_at)
            self.out = self.v.at(out, f.add(f.mul(item, p["n"]), column))
            self.b = f.offset(own, f.mul(column, self.column_step()))
            with f.loop("0", self.k, str(ROW_CHUNK)) as chunk:
                end = f.minimum(f.add(chunk.i, str(ROW_CHUNK)), self.k)
                self.chunk(chunk.i, end, f(f"icmp eq i64 {chunk.i}, 0"))
        f.finish()

    def prepare(self) -> None:
        """Code before the tiles."""

    def column_step(self) -> str:
        """Bytes from one column to the next."""
        raise NotImplementedError

    def chunk(self, start: str, end: str, first: str) -> None:
        raise NotImplementedError

    def address(self) -> int:
        return jit.compile_ir(self.module.text(), ["kernel"])["kernel"]

    def put(self, column: str, total: str, first: str) -> None:
        """Add a chunk's sums of some columns to the output, or write them there."""
        f, v = self.f, self.v
        place, rest = v.at(self.out, column), f.sub(self.columns, column)
        full = f(f"icmp sge i64 {rest}, {v.lanes}")
        with f.when(full):
            v.store(self._joined(total, place, None, first), place)
        with f.when(f(f"xor i1 {full}, true")):
            v.store_first(self._joined(total, place, v.mask(rest), first), place, rest)

    def _joined(self, total: str, place: str, mask: str | None, first: str) -> str:
        t = self.v.type
        both = self.v.add(self.v.load(place, mask), total)
        return self.f(f"select i1 {first}, {t} {total}, {t} {both}")

    def tree(self, lanes: Sequence[str]) -> str:
        """The sum of vectors, neighbours first."""
        while len(lanes) > 1:
            lanes = [self.v.add(x, y) for x, y in zip(lanes[::2], lanes[1::2], strict=True)]
        return lanes[0]


class _Rows(_Kernel):
    def prepare(self) -> None:
        self.sums = self.f.array(self.v.scalar, self.v.lanes * _PITCH)

    def column_step(self) -> str:
        return str(self.v.size)

    def chunk(self, start: str, end: str, first: str) -> None:
        f, v = self.f, self.v
        lanes = range(v.lanes)
        with f.loop("0", self.columns, str(v.lanes)) as j:
            for lane in lanes:
                v.store("zeroinitializer", self._sum(str(lane), j.i))
        whole = f.add(start, f(f"and i64 {f.sub(end, start)}, {-v.lanes}"))
        with f.loop(start, whole, str(v.lanes)) as row:
            self._add(row.i, [str(lane) for lane in lanes])
        with f.loop(whole, end) as row:
            self._add(row.i, [f.sub(row.i, whole)])
        with f.loop("0", self.columns, str(v.lanes)) as j:
            own = [v.load(self._sum(str(lane), j.i)) for lane in lanes]
            self.put(j.i, self.tree(own), first)

    def _sum(self, lane: str, column: str) -> str:
        f = self.f
        return self.v.at(self.sums, f.add(f.mul(lane, str(_PITCH)), column))

    def _add(self, row: str, lanes: Sequence[str]) -> None:
        """Add the products of a row for each of the lanes."""
        f, v, step = self.f, self.v, self.p["b_step"]
        numbers = [f.add(row, str(r)) for r in range(len(lanes))]
        lines = [f.offset(self.b, f.mul(r, step)) for r in numbers]
        factors = [v.repeat(f.offset(self.a, f.mul(r, self.p["a_step"]))) for r in numbers]

        def vectors(j: str, count: int, mask: str | None) -> None:
            columns = [f.add(j, str(c * v.lanes)) for c in range(count)]
            for lane, line, factor in zip(lanes, lines, factors, strict=True):
                own = [v.load(v.at(line, c), mask) for c in columns]  # of one line of the cache
                places = [self._sum(lane, c) for c in columns]
                for x, place in zip(own, places, strict=True):
                    v.store(v.fma(factor, x, v.load(place)), place)

        at = "0"
        for count in (_TOGETHER, 1):
            end = f(f"and i64 {self.columns}, {-count * v.lanes}")
            with f.loop(at, end, str(count * v.lanes)) as j:
                vectors(j.i, count, None)
            at = end
        rest = f.sub(self.columns, at)
        with f.when(f(f"icmp ne i64 {rest}, 0")):
            vectors(at, 1, v.mask(rest))


class _Dots(_Kernel):
    def column_step(self) -> str:
        return self.p["b_step"]

    def chunk(self, start: str, end: str, first: str) -> None:
        f, v = self.f, self.v
        together, last = max(_COLUMNS, v.lanes), f.sub(self.columns, "1")
        with f.loop("0", self.columns, str(together)) as j:
            columns = [f.minimum(f.add(j.i, str(c)), last) for c in range(together)]
            places = [f.offset(self.b, f.mul(c, self.p["b_step"])) for c in columns]
            sums = self._sums(places, start, end)
            for g in range(0, together, v.lanes):
                column = f.add(j.i, str(g))
                with f.when(f(f"icmp slt i64 {column}, {self.columns}")):
                    self.put(column, self._across(sums[g : g + v.lanes]), first)

    def _sums(self, places: Sequence[str], start: str, end: str) -> list[str]:
        """The products with columns, lane by lane."""
        f, v = self.f, self.v
        nothing = f.splat(literal(-0.0, v.dtype), v.scalar, v.lanes)

        def step(k: str, sums: Sequence[str], mask: str | None) -> list[str]:
            factor = v.load(v.at(self.a, k), mask)
            if mask is not None:  # -0.0 * 0.0 leaves a sum as it is, also one that is -0.0
                chosen = f"<{v.lanes} x i1> {mask}, {v.type} {factor}, {v.type} {nothing}"
                factor = f(f"select {chosen}")
            pairs = zip(places, sums, strict=True)
            return [v.fma(factor, v.load(v.at(x, k), mask), total) for x, total in pairs]

        whole = f.add(start, f(f"and i64 {f.sub(end, start)}, {-v.lanes}"))
        zeros = [(v.type, "zeroinitializer")] * len(places)
        with f.loop(start, whole, str(v.lanes), carried=zeros) as k:
            k.next = step(k.i, k.carried, None)
        state = [(v.type, value) for value in k.results]
        with f.loop(whole, end, str(v.lanes), carried=state) as tail:
            tail.next = step(tail.i, tail.carried, v.mask(f.sub(end, tail.i)))
        return tail.results

    def _across(self, vectors: list[str]) -> str:
        """The sums of the lanes of each vector, as one vector; neighbours first."""
        v = self.v
        even, odd = (range(side, 2 * v.lanes, 2) for side in (0, 1))
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [v.add(v.pick(u, w, even), v.pick(u, w, odd)) for u, w in pairs]
        return vectors[0]


@functools.cache
def rows_kernel(dtype: DType) -> int:
    """The kernel for a matrix whose columns lie side by side; params are `WORDS`."""
    return _Rows(dtype).address()


@functools.cache
def dots_kernel(dtype: DType) -> int:
    """The kernel for a vector and a matrix whose k lie side by side; params are `WORDS`."""
    return _Dots(dtype).address()


@functools.cache
def sum_kernel(dtype: DType) -> int:
    """A kernel over elements that adds up arrays in order; params: from, to, how many, bytes apart.

    They are the products of chunks that were made one by one.
    """
    module = Module()
    f = Function(module, "@kernel")
    p = Arguments(f, ("parts", "out", "count", "apart"), 2)
    v = Vectors(f, dtype)
    parts, out = p.pointers
    whole = f.add("%lo", f(f"and i64 {f.sub('%hi', '%lo')}, {-v.lanes}"))
    for first, end, width in (("%lo", whole, v.lanes), (whole, "%hi", 1)):
        kind = of_width(v.scalar, width)
        with f.loop(first, end, str(width)) as e:
            start = v.at(parts, e.i)
            total = f(f"load {kind}, ptr {start}, align {v.size}")
            with f.loop("1", p["count"], carried=[(kind, total)]) as part:
                place = f.offset(start, f.mul(part.i, p["apart"]))
                own = f(f"load {kind}, ptr {place}, align {v.size}")
                part.next = [f(f"fadd {kind} {part.carried[0]}, {own}")]
            f.do(f"store {kind} {part.results[0]}, ptr {v.at(out, e.i)}, align {v.size}")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
