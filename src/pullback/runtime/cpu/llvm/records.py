"""The params of a kernel by name: the host packs what the kernel unpacks, by one list of names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.values import I64, PTR, Value
from pullback.runtime.cpu.llvm.writer import Function

__all__ = ["BatchParams", "NamedParams", "Part", "Record", "Values", "numbers_of"]

Values: TypeAlias = Mapping[str, Value]  # what a kernel has unpacked


class Record:
    """Names of pointers, which are passed by their slots, then of int64 numbers.

    What has no fixed length follows them: the index of a batch, offsets, a table.
    """

    def __init__(self, pointers: str, numbers: str = ""):
        self.pointers, self.numbers = tuple(pointers.split()), tuple(numbers.split())
        self.names = (*self.pointers, *self.numbers)
        assert len(set(self.names)) == len(self.names) > 1
        self._in_order = itemgetter(*self.names)

    def __len__(self) -> int:
        return len(self.names)

    def packed(self, **values: int) -> tuple[int, ...]:
        """The params of a stage; all have to be given, and no others."""
        assert len(values) == len(self), values.keys()
        return self._in_order(values)

    def unpacked(self, code: Code) -> Values:
        """The pointers and numbers of a stage kernel."""
        params, ptrs = code.args[:2]
        found = {
            name: code.load(ptrs, code.load(params, k, I64), PTR)
            for k, name in enumerate(self.pointers)
        }
        for k, name in enumerate(self.numbers, len(self.pointers)):
            found[name] = code.load(params, k, I64)
        return found


class NamedParams:
    """The words of a record in a kernel of the writer; a name of a pointer stands for its slot."""

    def __init__(self, f: Function, record: Record):
        self.f, self.record = f, record
        self.words = {name: f.int_at("%params", i) for i, name in enumerate(record.names)}

    def __getitem__(self, name: str) -> str:
        return self.words[name]

    def rest(self) -> str:
        """Where the words begin that follow the record."""
        return self.f.element("%params", "i64", str(len(self.record)))

    def pointer(self, name: str) -> str:
        return self.f(f"load ptr, ptr {self.f.element('%ptrs', 'ptr', self.words[name])}")


class Part(NamedTuple):
    """Rows of one matrix: `item` of the batch, from `row` on, and offsets of both operands."""

    item: str
    row: str
    rows: str
    a: str
    b: str


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
    def parts(self) -> Iterator[Part]:
        """Code for every part of %lo ... %hi, counted in rows, that lies in one matrix."""
        f = self.f
        with f.loop("%lo", "%hi") as part:
            item, row = f.divmod(part.i, self["m"])
            count = f.minimum(f.sub(self["m"], row), f.sub("%hi", part.i))
            yield Part(item, row, count, *self.offsets(item, 2))
            part.step = count


def numbers_of(f: Function, record: Record) -> Mapping[str, str]:
    """The numbers of a record in a function that a kernel calls with its params."""
    names = enumerate(record.numbers, len(record.pointers))
    return {name: f.int_at("%params", i) for i, name in names}
