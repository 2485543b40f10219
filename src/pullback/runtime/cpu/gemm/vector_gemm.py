"""Products of one row, or of two, with a large matrix, which read every element of it once.

They keep `order.product`: lanes of a vector belong to different elements of the output, or to
chunks of k that are added up afterwards, and never to one sum.

    rows    columns lie side by side: a vector has neighbouring columns
    dots    k lies side by side: some of k of as many columns are transposed in registers
    chunks  few columns: a vector has the same column of several products, which are chunks of a
            long k that are made one by one, or a batch

A matrix may have several `parts`, which lie side by side and take turns: the parts of a complex
number, or the columns of a narrow matrix. There is a sum for each row and each part.
`sum_kernel` adds up chunks that were made one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pullback.compile.kernel.order import CHUNK
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record
from pullback.runtime.cpu.llvm.vectors import Vectors, squared
from pullback.runtime.cpu.llvm.writer import Function, IRModule, literal, of_width

__all__ = [
    "CHUNKS",
    "MOST_SUM_BYTES",
    "SUMMED",
    "TILES",
    "chunks_kernel",
    "dots_kernel",
    "rows_kernel",
    "sum_kernel",
]

# Steps are in bytes: of a's rows and its k, of the matrix's rows or columns, from the sums of one
# row and part to the next, from item to item. Item i of a batch sums min(k, all_k - i k) products.
TILES = Record("a b out", "n k all_k a_row a_step b_step plane item width tiles")  # then the batch
CHUNKS = Record("a b out", "n k all_k count b_step a_item b_item")
SUMMED = Record(
    "parts out", "count apart"
)  # arrays that are added up, and bytes from one to another
MOST_SUM_BYTES = 1 << 13  # of a tile: they stay in the L1 cache beside the lines that are read

# Given a number k, how many are left in each lane; None if there are enough.
_Left: TypeAlias = Callable[[str], list[str] | None]


class _Kernel:
    """A kernel over tiles of columns."""

    def __init__(self, dtype: DType, rows: int, parts: int = 1):
        self.rows, self.parts = rows, parts
        self.module = IRModule()
        self.f = f = Function(self.module, "@kernel")
        self.v = Vectors(f, dtype)
        self.p = p = BatchParams(f, TILES)
        self.prepare()
        a, b, out = p.pointers
        with f.loop("%lo", "%hi") as unit:
            item, tile = f.divmod(unit.i, p["tiles"])
            column = f.mul(tile, p["width"])
            self.columns = f.minimum(p["width"], f.sub(p["n"], column))
            self.k = f.minimum(p["k"], f.sub(p["all_k"], f.mul(item, p["k"])))
            a_at, b_at = p.offsets(item, 2)
            head, own = f.offset(a, a_at), f.offset(b, b_at)
            self.heads = [f.offset(head, f.mul(p["a_row"], str(r))) for r in range(rows)]
            self.b = f.offset(own, f.mul(column, self.column_step()))
            place = self.v.at(f.offset(out, f.mul(item, p["item"])), column)
            self.planes = [f.offset(place, f.mul(p["plane"], str(i))) for i in range(rows * parts)]
            self.tile()
        f.finish()

    def prepare(self) -> None:
        """Code before the tiles."""

    def column_step(self) -> str:
        """Bytes from one column to the next."""
        raise NotImplementedError

    def tile(self) -> None:
        """Code for the columns of a tile."""
        raise NotImplementedError

    def address(self) -> int:
        return jit.compile_ir(self.module.text(), ["kernel"])["kernel"]


class _RowsKernel(_Kernel):
    def prepare(self) -> None:
        count = MOST_SUM_BYTES // (self.v.size * self.rows)
        self.sums = [self.f.array(self.v.scalar, count) for _ in range(self.rows)]
        registers = 16 if jit.host().vector_bits == 512 else 8
        self.together = max(4, registers // self.rows)  # rows of the matrix, a factor for each

    def column_step(self) -> str:
        return str(self.v.size)

    def tile(self) -> None:
        f = self.f
        with f.loop("0", self.k, str(CHUNK)) as chunk:
            end = f.minimum(f.add(chunk.i, str(CHUNK)), self.k)
            self._chunk(chunk.i, end, f(f"icmp eq i64 {chunk.i}, 0"))

    def _chunk(self, start: str, end: str, first: str) -> None:
        f, v = self.f, self.v
        with f.loop("0", self.columns, str(v.lanes)) as j:
            for sums in self.sums:
                v.store("zeroinitializer", v.at(sums, j.i))
        whole = f.add(start, f(f"and i64 {f.sub(end, start)}, {-self.together}"))
        for at, stop, count in ((start, whole, self.together), (whole, end, 1)):
            with f.loop(at, stop, str(count)) as k:
                self._add(k.i, count)
        with f.loop("0", self.columns, str(v.lanes)) as j:
            for plane, sums in zip(self.planes, self.sums, strict=True):
                self._put(plane, j.i, v.load(v.at(sums, j.i)), first)

    def _put(self, plane: str, column: str, total: str, first: str) -> None:
        """Add a chunk's sums of some columns to the output, or write them there."""
        f, v = self.f, self.v
        place, rest = v.at(plane, column), f.sub(self.columns, column)
        full = f(f"icmp sge i64 {rest}, {v.lanes}")
        with f.when(full):
            v.store(self._joined(total, place, None, first), place)
        with f.when(f(f"xor i1 {full}, true")):
            v.store_first(self._joined(total, place, v.mask(rest), first), place, rest)

    def _joined(self, total: str, place: str, mask: str | None, first: str) -> str:
        t = self.v.type
        both = self.v.add(self.v.load(place, mask), total)
        return self.f(f"select i1 {first}, {t} {total}, {t} {both}")

    def _add(self, k: str, count: int) -> None:
        """Add the products of some k to the sums."""
        f, v, p = self.f, self.v, self.p
        numbers = [f.add(k, str(c)) for c in range(count)]
        lines = [f.offset(self.b, f.mul(c, p["b_step"])) for c in numbers]
        factors = [
            [v.repeat(f.offset(head, f.mul(c, p["a_step"]))) for head in self.heads]
            for c in numbers
        ]

        def vectors(j: str, mask: str | None) -> None:
            places = [v.at(sums, j) for sums in self.sums]
            totals = [v.load(place) for place in places]
            for line, own in zip(lines, factors, strict=True):
                x = v.load(v.at(line, j), mask)
                totals = [v.fma(factor, x, t) for factor, t in zip(own, totals, strict=True)]
            for total, place in zip(totals, places, strict=True):
                v.store(total, place)

        end = f(f"and i64 {self.columns}, {-v.lanes}")
        with f.loop("0", end, str(v.lanes)) as j:
            vectors(j.i, None)
        rest = f.sub(self.columns, end)
        with f.when(f(f"icmp ne i64 {rest}, 0")):
            vectors(end, v.mask(rest))


class _Dots(_Kernel):
    def column_step(self) -> str:
        return self.p["b_step"]

    def tile(self) -> None:
        f, v = self.f, self.v
        last = f.sub(self.columns, "1")
        with f.loop("0", self.columns, str(v.lanes)) as j:
            columns = [f.minimum(f.add(j.i, str(c)), last) for c in range(v.lanes)]
            places = [f.offset(self.b, f.mul(c, self.p["b_step"])) for c in columns]
            totals = [(v.type, _nothing(v))] * len(self.planes)  # x + -0.0 is x, also for 0.0
            with f.loop("0", self.k, str(CHUNK), carried=totals) as chunk:
                end = f.minimum(f.add(chunk.i, str(CHUNK)), self.k)
                own = self._sums(places, chunk.i, end)
                chunk.next = [v.add(t, x) for t, x in zip(chunk.carried, own, strict=True)]
            rest = f.sub(self.columns, j.i)
            full = f(f"icmp sge i64 {rest}, {v.lanes}")
            for plane, total in zip(self.planes, chunk.results, strict=True):
                with f.when(full):
                    v.store(total, v.at(plane, j.i))
                with f.when(f(f"xor i1 {full}, true")):
                    v.store_first(total, v.at(plane, j.i), rest)

    def _sums(self, places: Sequence[str], start: str, end: str) -> list[str]:
        """The sums of a chunk, row after row and part after part."""
        f, v = self.f, self.v
        step = v.lanes // self.parts  # of k, in a vector
        whole = f.add(start, f(f"and i64 {f.sub(end, start)}, {-step}"))
        state = [(v.type, "zeroinitializer")] * len(self.planes)
        for at, stop, masked in ((start, whole, False), (whole, end, True)):
            with f.loop(at, stop, str(step), carried=state) as k:
                left = f.sub(end, k.i) if masked else None
                k.next = self._products(places, k.i, step, left, k.carried)
            state = [(v.type, total) for total in k.results]
        return [total for _, total in state]

    def _products(
        self, places: Sequence[str], k: str, step: int, left: str | None, sums: Sequence[str]
    ) -> list[str]:
        """The sums after `step` more products, of which there are only `left`."""
        f, v = self.f, self.v
        first = f.mul(k, str(self.parts))
        mask = None if left is None else v.mask(f.mul(left, str(self.parts)))
        factors = [[self._factor(head, k, c, left) for head in self.heads] for c in range(step)]
        found = list(sums)
        for t, x in enumerate(squared(v, [v.load(v.at(place, first), mask) for place in places])):
            for r, factor in enumerate(factors[t // self.parts]):
                i = r * self.parts + t % self.parts
                found[i] = v.fma(factor, x, found[i])
        return found

    def _factor(self, head: str, k: str, c: int, left: str | None) -> str:
        """An element of a in every lane; beyond the last one, what leaves sums as they are."""
        f, v = self.f, self.v
        if left is None:
            return v.repeat(f.offset(head, f.mul(f.add(k, str(c)), self.p["a_step"])))
        beyond = f(f"icmp sle i64 {left}, {c}")
        number = f(f"select i1 {beyond}, i64 {k}, i64 {f.add(k, str(c))}")
        value = v.repeat(f.offset(head, f.mul(number, self.p["a_step"])))
        return f(f"select i1 {beyond}, {v.type} {_nothing(v)}, {v.type} {value}")


def _nothing(v: Vectors) -> str:
    """-0.0 in every lane: times 0.0, it leaves a sum as it is, also one that is -0.0."""
    return v.f.splat(literal(-0.0, v.dtype), v.scalar, v.lanes)


class _Chunks:
    """A kernel over groups of as many items as a vector has lanes.

    The rows of a take turns along k, as the parts of b do. Sums of a column lie apart, row after
    row, part after part. A chunk of a is transposed once for all columns.
    """

    def __init__(self, dtype: DType, rows: int, parts: int):
        self.rows, self.parts = rows, parts
        self.module = IRModule()
        self.f = f = Function(self.module, "@kernel")
        self.v = v = Vectors(f, dtype)
        self.p = p = BatchParams(f, CHUNKS)
        a, b, out = p.pointers
        self.factors = f.array(v.scalar, CHUNK * rows * v.lanes)
        last = f.sub(p["count"], "1")
        with f.loop("%lo", "%hi") as unit:
            first = f.mul(unit.i, str(v.lanes))
            items = [f.add(first, str(lane)) for lane in range(v.lanes)]
            known = [f.minimum(item, last) for item in items]
            heads = [f.offset(a, f.mul(item, p["a_item"])) for item in known]
            own = [f.offset(b, f.mul(item, p["b_item"])) for item in known]
            lengths = [f.minimum(p["k"], f.sub(p["all_k"], f.mul(i, p["k"]))) for i in known]
            with f.loop("0", lengths[0], str(CHUNK)) as chunk:
                ends = [f.minimum(f.add(chunk.i, str(CHUNK)), length) for length in lengths]
                for at, stop, left in self._steps(chunk.i, ends):
                    with f.loop(at, stop, str(v.lanes)) as k:
                        beyond = self._turned(heads, rows, k.i, left(k.i), _nothing(v))
                        place = v.at(self.factors, self._line(f.sub(k.i, chunk.i)))
                        for i, x in enumerate(beyond):
                            v.store(x, v.at(place, str(i * v.lanes)))
                with f.loop("0", p["n"]) as column:
                    step = f.mul(column.i, p["b_step"])
                    places = [f.offset(x, step) for x in own]
                    sums = self._sums(places, chunk.i, ends)
                    target = v.at(out, column.i)
                    self._put(sums, target, items, f(f"icmp eq i64 {chunk.i}, 0"))
        f.finish()

    def address(self) -> int:
        return jit.compile_ir(self.module.text(), ["kernel"])["kernel"]

    def _line(self, k: str) -> str:
        """Where the factors of k are."""
        return self.f.mul(k, str(self.rows * self.v.lanes))

    def _steps(self, start: str, ends: Sequence[str]) -> list[tuple[str, str, _Left]]:
        """Where vectors of k are whole in all lanes, then the rest, and how many k are left.

        The last lane, which is never the longest, may end early.
        """
        f, v = self.f, self.v
        whole = f.add(start, f(f"and i64 {f.sub(ends[-1], start)}, {-v.lanes}"))
        return [
            (start, whole, lambda _: None),
            (whole, ends[0], lambda k: [f.sub(end, k) for end in ends]),
        ]

    def _sums(self, places: Sequence[str], start: str, ends: Sequence[str]) -> list[str]:
        """The sums of a chunk for a column."""
        f, v = self.f, self.v
        state = [(v.type, "zeroinitializer")] * (self.rows * self.parts)
        for at, stop, left in self._steps(start, ends):
            with f.loop(at, stop, str(v.lanes), carried=state) as k:
                line = v.at(self.factors, self._line(f.sub(k.i, start)))
                found = list(k.carried)
                for t, y in enumerate(self._turned(places, self.parts, k.i, left(k.i), None)):
                    c, part = divmod(t, self.parts)
                    for r in range(self.rows):
                        x = v.load(v.at(line, str((c * self.rows + r) * v.lanes)))
                        own = r * self.parts + part
                        found[own] = v.fma(x, y, found[own])
                k.next = found
            state = [(v.type, total) for total in k.results]
        return [total for _, total in state]

    def _turned(
        self,
        places: Sequence[str],
        parts: int,
        k: str,
        left: Sequence[str] | None,
        beyond: str | None,
    ) -> list[str]:
        """The parts of each k, one after the other, of all lanes."""
        f, v, found = self.f, self.v, []
        for c in range(parts):
            at = f.add(f.mul(k, str(parts)), str(c * v.lanes))
            vectors = []
            for lane, place in enumerate(places):
                mask = None
                if left is not None:
                    mask = v.mask(f.sub(f.mul(left[lane], str(parts)), str(c * v.lanes)))
                x = v.load(v.at(place, at), mask)
                if mask is not None and beyond is not None:
                    chosen = f"<{v.lanes} x i1> {mask}, {v.type} {x}, {v.type} {beyond}"
                    x = f(f"select {chosen}")
                vectors.append(x)
            found += squared(v, vectors)
        return found

    def _put(self, sums: Sequence[str], target: str, items: Sequence[str], first: str) -> None:
        """Add sums of a column to those of each item, or write them there."""
        f, v = self.f, self.v
        t = v.scalar
        for lane, item in enumerate(items):
            with f.when(f(f"icmp slt i64 {item}, {self.p['count']}")):
                for i, total in enumerate(sums):
                    line = f.add(f.mul(item, str(len(sums))), str(i))
                    place = v.at(target, f.mul(line, self.p["n"]))
                    value = f(f"extractelement {v.type} {total}, i64 {lane}")
                    before = f(f"load {t}, ptr {place}, align {v.size}")
                    both = f(f"fadd {t} {before}, {value}")
                    joined = f(f"select i1 {first}, {t} {value}, {t} {both}")
                    f.do(f"store {t} {joined}, ptr {place}, align {v.size}")


@functools.cache
def rows_kernel(dtype: DType, rows: int) -> int:
    """The kernel for a matrix whose columns lie side by side; params are `TILES`."""
    return _RowsKernel(dtype, rows).address()


@functools.cache
def dots_kernel(dtype: DType, rows: int, parts: int) -> int:
    """The kernel for a matrix whose k lie side by side; params are `TILES`."""
    return _Dots(dtype, rows, parts).address()


@functools.cache
def chunks_kernel(dtype: DType, rows: int, parts: int) -> int:
    """The kernel for items whose k, with their parts, lie side by side; params: `CHUNKS`."""
    return _Chunks(dtype, rows, parts).address()


@functools.cache
def sum_kernel(dtype: DType) -> int:
    """A kernel over elements that adds up arrays in order; params are `SUMMED`.

    They are the products of chunks that were made one by one.
    """
    module = IRModule()
    f = Function(module, "@kernel")
    p = BatchParams(f, SUMMED)
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
