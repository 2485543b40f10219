"""What the kernels of gather and scatter share: their arguments, checked row numbers, prefetches.

Rows are numbered by one dense array of indices; row i of the updates is `width` real elements that
belong to row `index[i]`. A bad index sets the error word: code, position of the first element of
its row, and the index as given.
"""

from __future__ import annotations

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import Callee, Code, IRModule
from pullback.runtime.cpu.llvm.values import I8, I32, I64, PTR, VOID, Type, Value, constant, integer

__all__ = [
    "LINE",
    "Indices",
    "are_equal",
    "ask",
    "chunk_bounds",
    "local_memory",
    "narrow_dtype",
    "prefetch",
    "report",
    "unpacked",
]

LINE = 64  # bytes of a cache line on x86-64 and most others
_BITS = {dt.uint8: 8, dt.uint16: 16, dt.int32: 31, dt.uint64: 64}


def narrow_dtype(rows: int) -> DType:
    """The least dtype for the numbers of so many rows."""
    return next(d for d, bits in _BITS.items() if rows <= 1 << bits)


class Indices:
    """Reads row numbers, and checks them."""

    def __init__(self, code: Code, dtype: DType, pointer: Value, rows: Value, width: Value):
        self.code, self.dtype, self.pointer = code, dtype, pointer
        self.rows, self.width = rows, width
        self.signed = dtype.kind == "i"
        self.word = integer(8 * dtype.itemsize)

    def given(self, i: Value) -> Value:
        raw = self.code.load(self.pointer, i, self.word)
        if self.word == I64:
            return raw
        return raw.sext(I64) if self.signed else raw.zext(I64)

    def wrapped(self, given: Value) -> Value:
        """With negative ones counted from the end."""
        if not self.signed:
            return given
        code = self.code
        negative = given < 0
        return code.select(negative, given + self.rows, given)

    def check(
        self,
        shifted: Value,
        limit: Value,
        given: Value,
        i: Value,
        first: Value,
        error: Value | None = None,
    ) -> None:
        """Leaves the function with an error unless `shifted` is below `limit`."""
        code = self.code
        with code.when(code.unsigned(">=", shifted, limit), likely=False):
            error = code.args[4] if error is None else error
            code.store(i * self.width, error, 1)
            code.store(given, error, 2)
            code.store(first, error, 0)
            code.leave()


def report(module: IRModule, index: DType) -> Callee:
    """A function that finds the first bad index of a span and sets the error word."""
    types = (PTR, I64, I64, I64, I64, I64, PTR)
    code = Code(module, "report", types, qualifiers="internal ", attributes="noinline")
    pointer, start, stop, rows, width, first, error = code.args
    indices = Indices(code, index, pointer, rows, width)
    with code.range(start, stop) as i:
        given = indices.given(i)
        indices.check(indices.wrapped(given), rows, given, i, first, error)
    return code.finish()


def local_memory(code: Code, type_: Type, count: int | Value) -> Value:
    """Memory on the stack; where `count` is a value, from this point on."""
    if isinstance(count, int):
        return code.local(type_, count, 64)
    return code.memory(type_, count)


def chunk_bounds(code: Code, chunk: Value, size: Value, total: Value) -> tuple[Value, Value]:
    start = chunk * size
    return start, code.minimum(start + size, total)


def prefetch(code: Code, place: Value) -> None:
    """Asks for a line of memory."""
    fetch = code.declare("llvm.prefetch.p0", VOID, (PTR, I32, I32, I32))
    code.call(fetch, [place, *(code.int(word, I32) for word in (0, 3, 1))])


def ask(code: Code, place: Value, nbytes: int) -> None:
    """Asks for the lines of so many bytes."""
    for line in range(0, nbytes, LINE):
        prefetch(code, code.at(place, line, I8))


def unpacked(code: Code, word: Type, pointer: Value, first: Value, count: int) -> list[Value]:
    """`count` small numbers from `first` on, loaded in few words."""
    wide = integer(min(64, word.width * count))
    kept = wide.width // word.width
    place = code.at(pointer, first, word)
    words = [code.read(code.at(place, k, wide), wide, 1) for k in range(count // kept)]
    mask = constant(wide, (1 << word.width) - 1)
    found = []
    for k in range(count):
        shifted = words[k // kept] >> constant(wide, word.width * (k % kept))
        number = shifted & mask
        found.append(number.zext(I64) if wide.width < 64 else number)
    return found


def are_equal(code: Code, word: Type, pointer: Value, first: Value, count: int) -> Value:
    """Whether `count` small numbers from `first` on are all the same."""
    wide = integer(word.width * count)
    found = code.read(code.at(pointer, first, word), wide, 1)
    turned = (found << constant(wide, word.width)) | (
        found >> constant(wide, wide.width - word.width)
    )
    return code.equal(found, turned)
