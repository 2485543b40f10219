"""LLVM IR of the plain gather: rows that lie side by side, numbered by one dense index array."""

from __future__ import annotations

from functools import lru_cache

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import LINE, Indices, prefetch
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I8, I64, Value, integer, vector

__all__ = ["MOST_WORD", "gather_rows"]
__tuning__ = ("ELEMENTS_AHEAD", "ROWS_AHEAD")

GATHERED = Record("index x out", "count rows width row_bytes step code")
MOST_WORD = 16  # bytes of a row that is moved in one piece
UNROLLED = 8  # short rows of a turn, whose cache misses then overlap
ELEMENTS_AHEAD = 32  # short rows that are asked for before they are needed
ROWS_AHEAD = 8  # long rows that are prefetched before they are needed
PIECE = 64  # bytes of a long row that are moved at once


@lru_cache(jit.KEPT)
def gather_rows(index: DType, row_bytes: int, far: bool, checked: bool) -> int:
    """A unit moves a row: of `row_bytes` bytes, or if that is 0 of as many as an argument says.

    `far`: the rows are spread over more memory than a core's cache holds. `checked`: indices may
    be bad; those of a plan are not. Params: GATHERED; `width` counts elements,
    `step` bytes from one row of x to the next.
    """
    code = kernel(IRModule(), "gather_rows")
    a = GATHERED.unpacked(code)
    indices = Indices(code, index, a["index"], a["rows"], a["width"])
    byte, last = I8, a["count"] - 1
    ahead = ELEMENTS_AHEAD if row_bytes else ROWS_AHEAD

    def ask(i: Value) -> None:
        later = indices.wrapped(indices.given(code.minimum(i + ahead, last)))
        start = code.at(a["x"], later * a["step"], byte)
        if row_bytes:
            prefetch(code, start)
            return
        with code.range(0, (a["row_bytes"] + (LINE - 1)) // LINE) as k:
            prefetch(code, code.at(start, k * LINE, byte))

    def move(i: Value) -> None:
        if far:
            ask(i)
        given = indices.given(i)
        row = indices.wrapped(given)
        if checked:
            indices.check(row, a["rows"], given, i, a["code"])
        source = code.at(a["x"], row * a["step"], byte)
        if row_bytes:
            word = integer(8 * row_bytes)
            target = code.at(a["out"], i * row_bytes, byte)
            code.write(code.read(source, word, 1), target, 1)
            return
        target = code.at(a["out"], i * a["row_bytes"], byte)
        piece = vector(I64, PIECE // 8)
        pieces = a["row_bytes"] // PIECE
        with code.range(0, pieces) as k:
            at = k * PIECE
            value = code.read(code.at(source, at, byte), piece, 1)
            code.write(value, code.at(target, at, byte), 1)
        with code.range(pieces * PIECE, a["row_bytes"]) as k:
            code.store(code.load(source, k, byte), target, k)

    lo, hi = code.args[2:4]
    if not row_bytes:
        with code.range(lo, hi) as i:
            move(i)
        return address(code, plain_loops=True)
    rounds = (hi - lo) // UNROLLED
    with code.range(0, rounds) as turn:
        first = lo + turn * UNROLLED
        for k in range(UNROLLED):
            move(first + k)
    with code.range(lo + rounds * UNROLLED, hi) as i:
        move(i)
    return address(code, plain_loops=True)
