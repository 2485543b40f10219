"""LLVM IR of setting short rows by index, in order: of several updates of a row the last one stays.

One thread sets all of them. Owners of ranges of rows would each read all indices, which takes as
long as to set them.
"""

from __future__ import annotations

from functools import lru_cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import OwnParams, ask, unpacked
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import I8, Value, address, kernel
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
WORDS = ("count", "rows", "width", "code")


@lru_cache(jit.KEPT)
def set_rows(index: DType, number: DType, row_bytes: int) -> int:
    """The one unit sets rows of so many bytes. Pointers: index, updates, out. Words: WORDS."""
    code = kernel(ir.Module(), "set_rows")
    b, row, size = code.b, ir.IntType(8 * row_bytes), code.int(row_bytes)
    a = OwnParams(code, ("index", "updates", "out"), WORDS)
    numbers = RowNumbers(number)
    checked = CheckedNumbers(code, a, index, number, numbers)
    own = numbers.room(code, BLOCK)

    def block(first: Value, count: int | Value) -> None:
        ahead = b.add(b.mul(first, code.int(index.itemsize)), code.int(AHEAD))
        ask(code, code.at(a["index"], ahead, I8), index.itemsize * BLOCK)
        checked.block(first, count, own)
        turn = TURN if isinstance(count, int) else 1
        turns = code.int(count // turn) if isinstance(count, int) else count
        with code.range(0, turns) as k:
            done = b.mul(k, code.int(turn))
            for step, to in enumerate(unpacked(code, numbers.word, own, done, turn)):
                source = b.add(first, b.add(done, code.int(step)))
                value = b.load(code.at(a["updates"], b.mul(source, size), I8), typ=row, align=1)
                b.store(value, code.at(a["out"], b.mul(to, size), I8), align=1)

    each_block(code, code.int(0), a["count"], block)
    return address(code, plain_loops=True)
