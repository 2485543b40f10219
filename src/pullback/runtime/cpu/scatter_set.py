"""LLVM IR of setting rows by index: of several updates of a row the last one stays.

A unit owns a range of rows. It reads all indices, and puts what belongs to other units aside: that
takes no branch, which nobody could foresee.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.loops import I8, Value, address, kernel
from pullback.runtime.cpu.scatter_numbers import (
    AHEAD,
    BLOCK,
    CheckedNumbers,
    Numbers,
    each_block,
)
from pullback.runtime.cpu.scatter_rows import Arguments, ask, local_memory, prefetch, unpacked

__all__ = ["MOST_BYTES", "set_rows"]

MOST_BYTES = 16  # of a row that is moved in one piece
TURN = 8  # rows that are moved in a turn
WORDS = ("count", "rows", "width", "code", "owners")


@cache
def set_rows(index: DType, number: DType, row_bytes: int, far: bool) -> int:
    """A unit sets the rows that it owns, of so many bytes each; `far`: all don't fit in a cache.

    Pointers: index, updates, out. Words: WORDS.
    """
    code = kernel(ir.Module(), "set_rows")
    b, row, size = code.b, ir.IntType(8 * row_bytes), code.int(row_bytes)
    a = Arguments(code, ("index", "updates", "out"), WORDS)
    numbers = Numbers(number)
    checked = CheckedNumbers(code, a, index, number, numbers)
    own, aside = numbers.room(code, BLOCK), local_memory(code, row, 1)

    def block(low: Value, owned: Value, first: Value, count: int | Value) -> None:
        ahead = b.add(b.mul(first, code.int(index.itemsize)), code.int(AHEAD))
        ask(code, code.at(a["index"], ahead, I8), index.itemsize * BLOCK)
        checked.block(first, count, own)
        turn = TURN if isinstance(count, int) else 1
        turns = code.int(count // turn) if isinstance(count, int) else count

        def places(done: Value) -> list[Value]:
            found = unpacked(code, numbers.word, own, done, turn)
            mine = [b.icmp_unsigned("<", b.sub(to, low), owned) for to in found]
            rows = [code.at(a["out"], b.mul(to, size), I8) for to in found]
            return [b.select(m, place, aside) for m, place in zip(mine, rows, strict=True)]

        if far:  # stores wait for each other's lines
            with code.range(0, turns) as k:
                for place in places(b.mul(k, code.int(turn))):
                    prefetch(code, place, write=True)
        with code.range(0, turns) as k:
            done = b.mul(k, code.int(turn))
            for step, place in enumerate(places(done)):
                source = b.add(first, b.add(done, code.int(step)))
                value = b.load(code.at(a["updates"], b.mul(source, size), I8), typ=row, align=1)
                b.store(value, place, align=1)

    with code.range(code.args[2], code.args[3]) as unit:
        low, high = (
            b.udiv(b.mul(k, a["rows"]), a["owners"]) for k in (unit, b.add(unit, code.int(1)))
        )
        owned = b.sub(high, low)
        each_block(
            code, code.int(0), a["count"], lambda first, count: block(low, owned, first, count)
        )
    return address(code, plain_loops=True)
