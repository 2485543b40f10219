"""LLVM IR of sums by index into few places: private accumulators for every chunk of the updates.

Row numbers are checked, wrapped and narrowed to 8 or 16 bits first, a block at a time; a plan is
all of them. A turn then adds one update to each of several tables, which the chunk joins at its
end: equal indices in a row must not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I1, I8, I32, I64, PTR, Code, Value, address, kernel
from pullback.runtime.cpu.scatter_rows import (
    LINE,
    Arguments,
    chunk_bounds,
    local_memory,
    prefetch,
    report,
)
from pullback.runtime.cpu.scatter_sums import Sums, Table, each_piece, vector_of

__all__ = ["checked_numbers", "columns", "is_paired", "join_columns", "narrow", "narrow_dtype"]

I16 = ir.IntType(16)
BLOCK = 1024  # row numbers that are narrowed before they are used
TOGETHER = 16  # of which a vector holds
_NUMBERS = (dt.uint8, dt.uint16, dt.uint32, dt.uint64)
PAIRED_ROWS = 24  # whose pairs have accumulators that stay in the first cache
PAIR_TABLES = 3
WORDS = ("count", "chunk", "rows", "width", "code")


def is_paired(sums: Sums, rows: int, width: int) -> bool:
    """Whether updates are added in pairs."""
    return width == 1 and rows <= PAIRED_ROWS and sums.parts == 1


def narrow_dtype(rows: int) -> DType:
    """The least dtype for the numbers of so many rows."""
    return next(d for d in _NUMBERS if rows <= 1 << 8 * d.itemsize)


def checked_numbers(module: ir.Module, index: DType, number: DType) -> Callable[..., None]:
    """Writes the code that narrows the indices from `first` to `stop`; it leaves at a bad one.

    Arguments: code, its arguments (index, rows, width, code), first, stop, where numbers go.
    """
    narrowing, complain = _Narrowing(module, index, number).function, report(module, index)

    def numbers(code: Code, a: Arguments, first: Value, stop: Value, target: Value) -> None:
        b = code.b
        source = code.at(a["index"], first, ir.IntType(8 * index.itemsize))
        bad = b.call(narrowing, (source, b.sub(stop, first), a["rows"], target))
        with b.if_then(bad, likely=False):
            span = (first, stop, a["rows"], a["width"], a["code"], code.args[4])
            b.call(complain, (a["index"], *span))
            b.ret_void()

    return numbers


class _Narrowing:
    """The function (indices, count, rows, numbers) -> whether an index is bad."""

    def __init__(self, module: ir.Module, index: DType, number: DType):
        self.code = code = Code(module, "narrowing", (PTR, I64, I64, PTR), I1)
        self.index, self.number = index, number
        self.word = I64 if index.itemsize == 8 else I32
        self.function = code.function
        self.function.linkage = "internal"
        b, count = code.b, code.args[1]
        vectors = b.udiv(count, code.int(TOGETHER))
        many = ir.VectorType(self.word, TOGETHER)
        seen, rest = code.variable(ir.Constant(many, None)), code.variable(code.int(0, self.word))
        with code.range(0, vectors) as k:
            seen.set(b.or_(seen.get(), self._store(b.mul(k, code.int(TOGETHER)), TOGETHER)))
        with code.range(b.mul(vectors, code.int(TOGETHER)), count) as i:
            rest.set(b.or_(rest.get(), self._store(i, 1)))
        below = b.icmp_signed("<", seen.get(), ir.Constant(many, None))
        some = b.bitcast(below, ir.IntType(TOGETHER))
        bad = b.icmp_signed("<", rest.get(), code.int(0, self.word))
        b.ret(b.or_(bad, b.icmp_unsigned("!=", some, ir.Constant(some.type, 0))))

    def _store(self, at: Value, lanes: int) -> Value:
        """Stores some row numbers; what it returns is below zero where an index is bad."""
        code, b = self.code, self.code.b
        source, _, rows, numbers = code.args
        given, kept = (ir.IntType(8 * d.itemsize) for d in (self.index, self.number))
        place = code.at(source, at, given)
        raw = b.load(place, typ=vector_of(given, lanes), align=self.index.itemsize)
        signed = self.index.kind == "i"
        if given.width < self.word.width:
            raw = (b.sext if signed else b.zext)(raw, vector_of(self.word, lanes))
        row = raw
        if signed:
            below = b.icmp_signed("<", raw, ir.Constant(raw.type, None))
            row = b.select(below, b.add(raw, self._all(rows, lanes)), raw)
        narrow = b.trunc(row, vector_of(kept, lanes))
        b.store(narrow, code.at(numbers, at, kept), align=self.number.itemsize)
        last = self._all(b.sub(rows, code.int(1)), lanes)
        return b.or_(row, b.sub(last, row))

    def _all(self, value: Value, lanes: int) -> Value:
        word = self.code.b.trunc(value, I32) if self.word is I32 else value
        return spread(self.code, word, lanes)


def spread(code: Code, value: Value, lanes: int) -> Value:
    """A value in every lane."""
    if lanes == 1:
        return value
    nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    one = code.b.insert_element(nothing, value, code.int(0, I32))
    return code.b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), None))


def constant(type_: ir.Type, value: int, lanes: int) -> ir.Constant:
    one = ir.Constant(type_, value)
    return one if lanes == 1 else ir.Constant(vector_of(type_, lanes), [one] * lanes)


@cache
def narrow(index: DType, number: DType) -> int:
    """A unit narrows a chunk of row numbers. Pointers: index, numbers. Words: WORDS."""
    module = ir.Module()
    numbers = checked_numbers(module, index, number)
    code = kernel(module, "narrow")
    a = Arguments(code, ("index", "numbers"), WORDS)
    with code.range(code.args[2], code.args[3]) as chunk:
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        target = code.at(a["numbers"], start, ir.IntType(8 * number.itemsize))
        numbers(code, a, start, stop, target)
    return address(code, plain_loops=True)


class _Turns:
    """Adds updates to tables: element k of a turn to table k."""

    def __init__(
        self, code: Code, sums: Sums, number: DType, width: int, capacity: int, copies: int
    ):
        self.code, self.sums, self.number, self.width = code, sums, number, width
        self.copies = copies
        self.ahead: tuple[Value, int] | None = None  # the next block of indices, bytes of one
        # Tables a multiple of 4096 bytes apart would look alike to the store buffer.
        step = capacity + 64 // 8
        memory = local_memory(code, sums.wide, self.copies * sums.parts * step)
        self.tables = [
            Table(code, sums, code.at(memory, code.int(k * sums.parts * step), sums.wide), step)
            for k in range(self.copies)
        ]

    def ask(self, turn: Value, elements: int) -> None:
        """Asks for the indices of the next block while this one is added."""
        if self.ahead is None:
            return
        code, (place, nbytes) = self.code, self.ahead
        step = elements * nbytes
        for line in range(max(1, step // LINE)):
            at = code.b.add(code.b.mul(turn, code.int(step)), code.int(line * LINE))
            prefetch(code, code.at(place, at, I8))

    def run(self, numbers: Value, updates: Value, count: Value) -> None:
        """All turns of `count` updates; what is left over goes to the first table."""
        code, b = self.code, self.code.b
        rounds = b.udiv(count, code.int(self.copies))
        with code.range(0, rounds) as turn:
            first = b.mul(turn, code.int(self.copies))
            self.ask(turn, self.copies)
            if self.width == 1 and self.copies > 1:
                self._together(numbers, updates, first)
            else:
                for k, table in enumerate(self.tables):
                    self._row(table, numbers, updates, b.add(first, code.int(k)))
        with code.range(b.mul(rounds, code.int(self.copies)), count) as i:
            self._row(self.tables[0], numbers, updates, i)

    def _together(self, numbers: Value, updates: Value, first: Value) -> None:
        """A turn of single elements, which are loaded, as their numbers are, in few words."""
        code, b = self.code, self.code.b
        values = self.sums.load(code, updates, first, self.copies)
        bits = 8 * self.number.itemsize
        word = ir.IntType(min(64, bits * self.copies))
        kept = word.width // bits
        place = code.at(numbers, first, ir.IntType(bits))
        words = [
            b.load(code.at(place, code.int(k), word), typ=word, align=1)
            for k in range(self.copies // kept)
        ]
        for k, table in enumerate(self.tables):
            shifted = b.lshr(words[k // kept], ir.Constant(word, bits * (k % kept)))
            number = b.and_(shifted, ir.Constant(word, (1 << bits) - 1))
            number = b.zext(number, I64) if word.width < 64 else number
            table.add(number, b.extract_element(values, code.int(k, I32)))

    def _row(self, table: Table, numbers: Value, updates: Value, i: Value) -> None:
        code, b = self.code, self.code.b
        number = b.zext(code.load(numbers, i, ir.IntType(8 * self.number.itemsize)), I64)
        to, source = (b.mul(v, code.int(self.width)) for v in (number, i))

        def piece(at: Value, lanes: int) -> None:
            value = self.sums.load(code, updates, b.add(source, at), lanes)
            table.add(b.add(to, at), value, lanes)

        each_piece(code, self.sums, self.width, piece)

    def clear(self, elements: Value) -> None:
        def piece(at: Value, lanes: int) -> None:
            for table in self.tables:
                table.store(self.sums.empty(lanes), at)

        each_piece(self.code, self.sums, elements, piece)

    def join(self, target: Table, elements: Value) -> None:
        def piece(at: Value, lanes: int) -> None:
            found = [t.load(at, lanes) for t in self.tables]
            target.store(_tree(self.code, self.sums, found), at)

        each_piece(self.code, self.sums, elements, piece)


class _Pairs(_Turns):
    """The same for pairs of single elements: one addition of two lanes at the cell of both rows.

    With half as many additions to memory, it is for so few rows that their pairs are few.
    """

    def __init__(self, code: Code, sums: Sums, number: DType, rows: Value):
        super().__init__(code, sums, number, 1, 2 * PAIRED_ROWS**2, PAIR_TABLES)
        self.rows = rows
        self.cells = local_memory(code, I16, BLOCK // 2)

    def run(self, numbers: Value, updates: Value, count: Value) -> None:
        code, b = self.code, self.code.b
        blocks = b.udiv(b.add(count, code.int(BLOCK - 1)), code.int(BLOCK))
        with code.range(0, blocks) as block:
            first = b.mul(block, code.int(BLOCK))
            pairs = b.lshr(code.minimum(code.int(BLOCK), b.sub(count, first)), code.int(1))
            self._find_cells(code.at(numbers, first, I8), pairs)
            self._add_pairs(code.at(updates, first, self.sums.memory), pairs)
        last = b.sub(count, code.int(1))
        with b.if_then(b.trunc(count, I1)):
            number = b.zext(code.load(numbers, last, I8), I64)
            cell = b.mul(number, code.int(2))
            self.tables[0].add(cell, self.sums.load(code, updates, last))

    def _find_cells(self, numbers: Value, pairs: Value) -> None:
        code, b = self.code, self.code.b
        narrow = b.trunc(self.rows, I16)

        def find(at: Value, lanes: int) -> None:
            place = code.at(numbers, b.mul(at, code.int(2)), I8)
            both = b.load(place, typ=vector_of(I16, lanes), align=1)
            low = b.and_(both, constant(I16, 255, lanes))
            high = b.lshr(both, constant(I16, 8, lanes))
            cell = b.add(low, b.mul(high, spread(code, narrow, lanes)))
            b.store(cell, code.at(self.cells, at, I16), align=2)

        vectors = b.udiv(pairs, code.int(TOGETHER))
        with code.range(0, vectors) as k:
            find(b.mul(k, code.int(TOGETHER)), TOGETHER)
        with code.range(b.mul(vectors, code.int(TOGETHER)), pairs) as k:
            find(k, 1)

    def _add_pairs(self, updates: Value, pairs: Value) -> None:
        code, b = self.code, self.code.b

        def add(table: Table, k: Value) -> None:
            cell = b.zext(code.load(self.cells, k, I16), I64)
            value = self.sums.load(code, updates, b.mul(k, code.int(2)), 2)
            table.add(b.mul(cell, code.int(2)), value, 2)

        unrolled = 2 * self.copies
        rounds = b.udiv(pairs, code.int(unrolled))
        with code.range(0, rounds) as turn:
            self.ask(turn, 2 * unrolled)
            for k in range(unrolled):
                at = b.add(b.mul(turn, code.int(unrolled)), code.int(k))
                add(self.tables[k % self.copies], at)
        with code.range(b.mul(rounds, code.int(unrolled)), pairs) as k:
            add(self.tables[0], k)

    def clear(self, elements: Value) -> None:
        b = self.code.b
        super().clear(b.mul(b.mul(elements, elements), self.code.int(2)))

    def join(self, target: Table, elements: Value) -> None:
        code, b, sums = self.code, self.code.b, self.sums
        with code.range(0, elements) as row:
            total = [code.variable(sums.empty()[0]) for _ in range(2 * self.copies)]
            with code.range(0, elements) as other:
                even = b.add(row, b.mul(other, elements))
                odd = b.add(other, b.mul(row, elements))
                for k, own in enumerate(total):
                    cell = b.add(b.mul((even, odd)[k % 2], code.int(2)), code.int(k % 2))
                    (found,) = self.tables[k // 2].load(cell)
                    own.set(sums.add(code, [own.get()], found)[0])
            found = [[own.get()] for own in total]
            target.store(_tree(code, sums, found), row)


def _tree(code: Code, sums: Sums, found: list[list[Value]]) -> list[Value]:
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [sums.merge(code, x, y) for x, y in pairs] + found[len(found) // 2 * 2 :]
    return found[0]


@cache
def columns(
    sums: Sums, index: DType | None, number: DType, width: int, capacity: int, paired: bool
) -> int:
    """A unit sums one chunk into tables of `capacity` elements, or `paired`. Words: WORDS.

    Pointers: index, updates, partial. Without a dtype the indices are numbers that a plan has.
    """
    module = ir.Module()
    checked = checked_numbers(module, index, number) if index is not None else None
    code = kernel(module, "columns")
    b, word = code.b, ir.IntType(8 * number.itemsize)
    a = Arguments(code, ("index", "updates", "partial"), WORDS)
    if paired:
        turns: _Turns = _Pairs(code, sums, number, a["rows"])
    else:
        copies = max(1, 8 // (width * sums.parts))
        turns = _Turns(code, sums, number, width, capacity, copies)
    elements = b.mul(a["rows"], code.int(width))

    def add(numbers: Value, first: Value, stop: Value) -> None:
        updates = code.at(a["updates"], b.mul(first, code.int(width)), sums.memory)
        turns.run(numbers, updates, b.sub(stop, first))

    with code.range(code.args[2], code.args[3]) as chunk:
        turns.clear(elements)
        start, stop = chunk_bounds(code, chunk, a["chunk"], a["count"])
        if index is None or checked is None:
            add(code.at(a["index"], start, word), start, stop)
        else:
            own = local_memory(code, word, BLOCK)
            blocks = b.udiv(b.add(b.sub(stop, start), code.int(BLOCK - 1)), code.int(BLOCK))
            with code.range(0, blocks) as k:
                first = b.add(start, b.mul(k, code.int(BLOCK)))
                after = b.add(first, code.int(BLOCK))
                end = code.minimum(after, stop)
                checked(code, a, first, end, own)
                ahead = code.at(a["index"], after, ir.IntType(8 * index.itemsize))
                turns.ahead = (ahead, index.itemsize)
                add(own, first, end)
        place = b.mul(chunk, b.mul(elements, code.int(sums.parts)))
        turns.join(Table(code, sums, code.at(a["partial"], place, sums.wide), elements), elements)
    return address(code, plain_loops=True)


@cache
def join_columns(sums: Sums) -> int:
    """x plus the sums of all chunks; a unit is an element. Words: chunks, elements, x's step."""
    code = kernel(ir.Module(), "join")
    b = code.b
    a = Arguments(code, ("partial", "x", "out"), ("chunks", "elements", "row", "x_row"))
    lo, hi = code.args[2:4]
    step = b.mul(a["elements"], code.int(sums.parts))

    def element(at: Value) -> None:
        row = b.udiv(at, a["row"])
        column = b.sub(at, b.mul(row, a["row"]))
        x = sums.load(code, a["x"], b.add(b.mul(row, a["x_row"]), column))
        total = [code.variable(v) for v in sums.start(x)]
        with code.range(0, a["chunks"]) as chunk:
            start = code.at(a["partial"], b.mul(chunk, step), sums.wide)
            found = Table(code, sums, start, a["elements"]).load(at)
            for variable, value in zip(
                total, sums.merge(code, [t.get() for t in total], found), strict=True
            ):
                variable.set(value)
        sums.store(code, sums.finish(code, [t.get() for t in total]), a["out"], at)

    with code.range(lo, hi) as at:
        element(at)
    return address(code, plain_loops=True)
