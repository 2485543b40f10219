"""The params of a kernel by name: the host packs what the kernel unpacks, by one list of names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.values import I64, PTR, Value
from pullback.runtime.cpu.llvm.writer import Function

__all__ = [
    "BatchParams",
    "NamedParams",
    "Params",
    "Part",
    "Record",
    "TilePart",
    "Values",
    "Word",
    "batch_offsets",
    "numbers_of",
]

# The name of a word; of a repeated one also which.
Word: TypeAlias = str | tuple[str, int]
Values: TypeAlias = Mapping[Word, Value]  # what a kernel has unpacked

# One name, or several in brackets; then what says how often, if they are repeated.
_FIELD = re.compile(r"(?:\(([^()]*)\)|(\S+?))(?:\[(\w+)\])?(?:\s+|$)")


class Record:
    """Names of pointers, which are passed by their slots, then of int64 numbers; a star marks a
    pointer among the numbers.

    `name[k]` stands k times, `(one other)[k]` k times in turns; `counts` says what k is. What has
    no fixed length follows: the axes of a nest, the index of a batch, offsets, a table.
    """

    def __init__(self, pointers: str, numbers: str = "", **counts: int):
        fields = [*_fields(pointers, counts, True), *_fields(numbers, counts, False)]
        marked = [word for field in fields for word in field.words()]
        self.words = tuple(word for word, _ in marked)
        self.pointers = tuple(word for word, is_pointer in marked if is_pointer)
        self.numbers = tuple(word for word, is_pointer in marked if not is_pointer)
        self.places = {word: place for place, word in enumerate(self.words)}
        assert self.words and len(self.places) == len(self.words)
        self._single = [(word, k) for word, k in self.places.items() if isinstance(word, str)]
        self._repeated = list(_repeated(fields))
        # The usual record repeats nothing; then what is given has only to be put in order.
        plain = not self._repeated and len(self.words) > 1
        self._in_order = itemgetter(*self.words) if plain else None

    def __len__(self) -> int:
        return len(self.words)

    def packed(self, **values: Any) -> tuple[SupportsIndex, ...]:
        """The params of a stage, a sequence for each repeated name; all have to be given, and no
        others.
        """
        assert len(values) == len(self._single) + len(self._repeated), values.keys()
        if self._in_order is not None:
            return self._in_order(values)
        found: list[SupportsIndex] = [0] * len(self.words)
        for name, place in self._single:
            found[place] = values[name]
        for name, count, span in self._repeated:
            given = values[name]
            assert len(given) == count, (name, count, given)
            found[span] = given
        return tuple(found)

    def loaded(self, code: Code, word: Word) -> Value:
        """A word in a stage kernel, where it is asked for."""
        return code.load(code.args[0], self.places[word], I64)

    def unpacked(self, code: Code) -> Values:
        """All pointers and numbers of a stage kernel."""
        params, ptrs = code.args[:2]
        found: dict[Word, Value] = {}
        for place, word in enumerate(self.words):
            number = code.load(params, place, I64)
            found[word] = code.load(ptrs, number, PTR) if word in self.pointers else number
        return found


class _Field(NamedTuple):
    """Names of a record and whether they are pointers; they may be repeated together."""

    names: tuple[str, ...]
    pointers: tuple[bool, ...]
    times: int | None

    def words(self) -> Iterator[tuple[Word, bool]]:
        """The words in order, and whether they are pointers."""
        for k in [None] if self.times is None else range(self.times):
            for name, is_pointer in zip(self.names, self.pointers, strict=True):
                yield name if k is None else (name, k), is_pointer


def _fields(text: str, counts: Mapping[str, int], pointers: bool) -> Iterator[_Field]:
    """The fields that a text declares; all names are `pointers`, or those with a star."""
    # Most texts repeat nothing, and are made when a module is imported.
    found = _FIELD.findall(text) if "[" in text else [(text, "", "")]
    for group, name, times in found:
        marked = (group or name).split()
        names = tuple([n.removeprefix("*") for n in marked])
        slots = tuple([pointers or n[0] == "*" for n in marked])
        yield _Field(names, slots, counts[times] if times else None)


def _repeated(fields: Sequence[_Field]) -> Iterator[tuple[str, int, slice]]:
    """Each name that is repeated, how often, and where its words are."""
    start = 0
    for names, _, count in fields:
        size = len(names) * (1 if count is None else count)
        if count is not None:
            for k, name in enumerate(names):
                yield name, count, slice(start + k, start + size, len(names))
        start += size


class Params:
    """The words of a record in a kernel of the writer, each loaded where it is asked for; a name of
    a pointer stands for its slot. They are the params, or lie at another address.
    """

    def __init__(self, f: Function, record: Record, at: str = "%params"):
        self.f, self.record, self.at = f, record, at

    def __getitem__(self, word: Word) -> str:
        return self.f.int_at(self.at, self.record.places[word])

    def rest(self) -> str:
        """Where the words begin that follow the record."""
        return self.f.element(self.at, "i64", str(len(self.record)))

    def pointer(self, word: Word) -> str:
        return self.f.pointer_in(self[word])

    def address(self, word: Word) -> str:
        """The pointer that a word is itself, as of memory that a param brings with it."""
        return self.f(f"load ptr, ptr {self.place(word)}")

    def place(self, word: Word) -> str:
        """Where a word is."""
        return self.f.element(self.at, "i64", str(self.record.places[word]))


class NamedParams(Params):
    """The words of a record, all loaded at the start."""

    def __init__(self, f: Function, record: Record):
        super().__init__(f, record)
        self.words = {word: f.int_at(self.at, place) for word, place in record.places.items()}

    def __getitem__(self, word: Word) -> str:
        return self.words[word]


class Part(NamedTuple):
    """Rows of one matrix: `item` of the batch, from `row` on, and offsets of both operands."""

    item: str
    row: str
    rows: str
    a: str
    b: str


class TilePart(NamedTuple):
    """A tile of a product: rows from `i` on and columns from `j` on, of `item` of the batch."""

    item: str
    i: str
    j: str
    rows: str
    columns: str


class BatchParams(NamedParams):
    """The words of a record in a kernel over matrices, and all pointers.

    The batch, as `builder.index_params`, comes after the record and `skip` more words.
    """

    def __init__(self, f: Function, record: Record, skip: int = 0):
        super().__init__(f, record)
        self.first = len(record) + skip
        self.pointers = [self.pointer(name) for name in record.pointers]

    def offsets(self, item: str, operands: int) -> list[str]:
        """Offsets of matrix `item`, in the unit of the batch's strides."""
        return batch_offsets(self.f, self.first, item, operands)

    @contextmanager
    def parts(self) -> Iterator[Part]:
        """Code for every part of %lo ... %hi, counted in rows, that lies in one matrix."""
        f = self.f
        with f.loop("%lo", "%hi") as part:
            item, row = f.divmod(part.i, self["m"])
            count = f.minimum(f.sub(self["m"], row), f.sub("%hi", part.i))
            yield Part(item, row, count, *self.offsets(item, 2))
            part.step = count

    def tile(self, unit: str) -> TilePart:
        """The tile of a unit, where all matrices have so many `tiles`, `across` in a row."""
        f = self.f
        item, number = f.divmod(unit, self["tiles"])
        down, right = f.divmod(number, self["across"])
        i, j = f.mul(down, self["tile_m"]), f.mul(right, self["tile_n"])
        rows = f.minimum(self["tile_m"], f.sub(self["m"], i))
        columns = f.minimum(self["tile_n"], f.sub(self["n"], j))
        return TilePart(item, i, j, rows, columns)


def batch_offsets(f: Function, first: int, item: str, operands: int) -> list[str]:
    """Offsets of `item` of a batch in each operand; `builder.index_params` are from `first` on."""
    start = [("i64", item), *[("i64", "0")] * operands]
    with f.loop("0", f.int_at("%params", first), carried=start) as d:
        words = f.mul(d.i, str(operands + 1))
        axis = f.element("%params", "i64", f.add(words, str(first + 1)))
        rest, position = f.divmod(d.carried[0], f.int_at(axis, 0))
        moved = [
            f.add(o, f.mul(position, f.int_at(axis, 1 + k))) for k, o in enumerate(d.carried[1:])
        ]
        d.next = [rest, *moved]
    return d.results[1:]


def numbers_of(f: Function, record: Record) -> Mapping[Word, str]:
    """The numbers of a record in a function that a kernel calls with its params."""
    params = Params(f, record)
    return {word: params[word] for word in record.numbers}
