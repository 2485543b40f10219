"""LLVM IR of the plain gather: rows that lie side by side, numbered by one dense index array."""

from __future__ import annotations

from functools import lru_cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.indexing.checked import LINE, Indices, OwnParams, prefetch
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import I64, Value, address, kernel

__all__ = ["MOST_WORD", "gather_rows"]
__tuning__ = ("ELEMENTS_AHEAD", "ROWS_AHEAD")

MOST_WORD = 16  # bytes of a row that is moved in one piece
UNROLLED = 8  # short rows of a turn, whose cache misses then overlap
ELEMENTS_AHEAD = 32  # short rows that are asked for before they are needed
ROWS_AHEAD = 8  # long rows that are prefetched before they are needed
PIECE = 64  # bytes of a long row that are moved at once


@lru_cache(jit.KEPT)
def gather_rows(index: DType, row_bytes: int, far: bool, checked: bool) -> int:
    """A unit moves a row: of `row_bytes` bytes, or if that is 0 of as many as an argument says.

    `far`: the rows are spread over more memory than a core's cache holds. `checked`: indices may
    be bad; those of a plan are not. Words: units, rows, elements of a row, its bytes, bytes from
    one row of x to the next, first code.
    """
    code = kernel(ir.Module(), "gather_rows")
    b = code.b
    words = ("count", "rows", "width", "row_bytes", "step", "code")
    a = OwnParams(code, ("index", "x", "out"), words)
    indices = Indices(code, index, a["index"], a["rows"], a["width"])
    byte, last = ir.IntType(8), b.sub(a["count"], code.int(1))
    ahead = ELEMENTS_AHEAD if row_bytes else ROWS_AHEAD

    def ask(i: Value) -> None:
        later = indices.wrapped(indices.given(code.minimum(b.add(i, code.int(ahead)), last)))
        start = code.at(a["x"], b.mul(later, a["step"]), byte)
        if row_bytes:
            prefetch(code, start)
            return
        with code.range(0, b.udiv(b.add(a["row_bytes"], code.int(LINE - 1)), code.int(LINE))) as k:
            prefetch(code, code.at(start, b.mul(k, code.int(LINE)), byte))

    def move(i: Value) -> None:
        if far:
            ask(i)
        given = indices.given(i)
        row = indices.wrapped(given)
        if checked:
            indices.check(row, a["rows"], given, i, a["code"])
        source = code.at(a["x"], b.mul(row, a["step"]), byte)
        if row_bytes:
            word = ir.IntType(8 * row_bytes)
            target = code.at(a["out"], b.mul(i, code.int(row_bytes)), byte)
            b.store(b.load(source, typ=word, align=1), target, align=1)
            return
        target = code.at(a["out"], b.mul(i, a["row_bytes"]), byte)
        vector = ir.VectorType(I64, PIECE // 8)
        pieces = b.udiv(a["row_bytes"], code.int(PIECE))
        with code.range(0, pieces) as k:
            at = b.mul(k, code.int(PIECE))
            value = b.load(code.at(source, at, byte), typ=vector, align=1)
            b.store(value, code.at(target, at, byte), align=1)
        with code.range(b.mul(pieces, code.int(PIECE)), a["row_bytes"]) as k:
            code.store(code.load(source, k, byte), target, k)

    lo, hi = code.args[2:4]
    if not row_bytes:
        with code.range(lo, hi) as i:
            move(i)
        return address(code, plain_loops=True)
    rounds = b.udiv(b.sub(hi, lo), code.int(UNROLLED))
    with code.range(0, rounds) as turn:
        first = b.add(lo, b.mul(turn, code.int(UNROLLED)))
        for k in range(UNROLLED):
            move(b.add(first, code.int(k)))
    with code.range(b.add(lo, b.mul(rounds, code.int(UNROLLED))), hi) as i:
        move(i)
    return address(code, plain_loops=True)
