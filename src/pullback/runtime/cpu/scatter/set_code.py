"""LLVM IR of setting short rows by index, in order: of several updates of a row the last one stays.

One thread sets all of them. Owners of ranges of rows would each read all indices, which takes as
long as to set them.
"""

from __future__ import annotations

from functools import lru_cache

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import ask, unpacked
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I8, Value, integer
from pullback.runtime.cpu.scatter.numbers import (
    AHEAD,
    BLOCK,
    CheckedNumbers,
    RowNumbers,
    each_block,
)

__all__ = ["MOST_BYTES", "set_rows"]

MOST_BYTES = 16  # of a row that is moved in one piece
TURN = 8  # rows that are moved in a turn
SET = Record("index updates out", "count rows width code")


@lru_cache(jit.KEPT)
def set_rows(index: DType, number: DType, row_bytes: int) -> int:
    """The one unit sets rows of so many bytes. Params: SET."""
    code = kernel(IRModule(), "set_rows")
    row, size = integer(8 * row_bytes), code.int(row_bytes)
    a = SET.unpacked(code)
    numbers = RowNumbers(number)
    checked = CheckedNumbers(code, a, index, number, numbers)
    own = numbers.room(code, BLOCK)

    def block(first: Value, count: int | Value) -> None:
        ahead = first * index.itemsize + AHEAD
        ask(code, code.at(a["index"], ahead, I8), index.itemsize * BLOCK)
        checked.block(first, count, own)
        turn = TURN if isinstance(count, int) else 1
        turns = code.int(count // turn) if isinstance(count, int) else count
        with code.range(0, turns) as k:
            done = k * turn
            for step, to in enumerate(unpacked(code, numbers.word, own, done, turn)):
                source = first + (done + step)
                value = code.read(code.at(a["updates"], source * size, I8), row, 1)
                code.write(value, code.at(a["out"], to * size, I8), 1)

    each_block(code, code.int(0), a["count"], block)
    return address(code, plain_loops=True)
