"""What tensor cores multiply, and the sources of their kernels."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pullback.compile.program.nest import Nest
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.precision import HIGHEST
from pullback.runtime.cuda.gemm.endings import End, EndCode
from pullback.runtime.cuda.gemm.sources import add_ended, text_of
from pullback.runtime.cuda.gemm.steps import Operand
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.printer import Source, convert, storage
from pullback.runtime.cuda.stages import VECTOR_BYTES, At

__all__ = ["BFLOAT16", "FLOAT16", "TF32", "Kind", "Problem", "Side", "cores_source", "kind_of"]

Sides = tuple[int, int, int]  # m, n, k


class Kind(NamedTuple):
    """The name in instructions, the dtype, products of an instruction."""

    name: str
    unit: DType
    depth: int

    def words(self) -> tuple[tuple[str, object], ...]:
        """The constants of `kernels/fragments.cu`."""
        name = f'"mma.sync.aligned.m16n8k{self.depth}.row.col.f32.{self.name}.{self.name}.f32"'
        multiply = ("MULTIPLY", name)
        if self.unit.itemsize == 4:
            return (multiply,)
        return multiply, ("PAIR", f'"cvt.rn.{self.name}x2.f32"')


BFLOAT16 = Kind("bf16", dt.bfloat16, 16)
FLOAT16 = Kind("f16", dt.float16, 16)
TF32 = Kind("tf32", dt.float32, 8)


def kind_of(dtype: DType, precision: str) -> Kind | None:
    """What products of a dtype are made of at a precision; None: float32, in the CPU's order."""
    if precision == HIGHEST:
        return None
    if dtype is dt.float32:
        return {"tf32": TF32, "bfloat16": BFLOAT16}.get(precision)
    return {dt.bfloat16: BFLOAT16, dt.float16: FLOAT16}.get(dtype)


class Side(NamedTuple):
    """An operand, the number of its lines, the dtype of what lies there."""

    operand: Operand
    lines: int
    dtype: DType

    def lies(self, k: int, kind: Kind) -> int | None:
        """Whether 16 bytes can be copied at a time: 0, products lie side by side; 1, lines do."""
        x, wide = self.operand, VECTOR_BYTES // kind.unit.itemsize
        if self.dtype is not kind.unit or any(s < 0 or s % wide for s in x.batch):
            return None
        line = wide if self.lines == 1 else x.line
        if x.k == 1 and line > 0 and line % wide == 0:
            return 0
        step = wide if k == 1 else x.k
        return 1 if x.line == 1 and step > 0 and step % wide == 0 else None


class Problem(NamedTuple):
    """A batch of products of `given`, written as `stored`."""

    kind: Kind
    given: DType
    stored: DType
    batch: Nest
    sides: Sides
    a: Operand
    b: Operand
    shape: tuple[int, ...] = ()  # of the batch, all axes
    end: End | None = None

    def end_code(self, aligned: bool) -> EndCode | None:
        """What is printed of the end: threads have 8 neighbours of 16 bits, or 2 others."""
        count = VECTOR_BYTES // 2 if self.stored.itemsize == 2 else 2
        return self.end.code(self.sides[1], count, aligned) if self.end else None

    def end_arguments(self) -> tuple[At | bytes, ...]:
        """What goes to the parameters of the end."""
        return self.end.arguments(self.shape) if self.end else ()

    def anywhere(self, first: int) -> tuple[int, ...]:
        """See `Step.anywhere`, of the end's arguments from `first` on."""
        return self.end.anywhere(first) if self.end else ()

    def tiles(self, bm: int, bn: int) -> int:
        """The tiles of one product."""
        return math.ceil(self.sides[0] / bm) * math.ceil(self.sides[1] / bn)

    def packed(self, tiles: int) -> bytes:
        """The struct Sides of the kernels."""
        (m, n, k), (a, b) = self.sides, (self.a, self.b)
        return struct.pack("<8q", m, n, k, a.line, a.k, b.line, b.k, tiles)


def _head(kind: Kind, given: DType, stored: DType) -> str:
    """The types that kernels are about, and what lies between them."""
    return (
        f"typedef {storage(stored)} Stored;\ntypedef {storage(given)} Given;\n"
        f"typedef {storage(kind.unit)} Unit;\ntypedef float Value;\n"
        f"PB_DEVICE Unit pb_unit(Given x) {{ return {convert('x', given, kind.unit)}; }}\n"
        f"PB_DEVICE float pb_wide(Unit x) {{ return {convert('x', kind.unit, dt.float32)}; }}\n"
        f"PB_DEVICE Stored pb_narrow(float x) {{ return {convert('x', dt.float32, stored)}; }}"
    )


@cache
def cores_source(
    name: str,
    files: Sequence[str],
    kind: Kind,
    given: DType,
    stored: DType,
    words: tuple[tuple[str, object], ...] = (),
    multiply: str = "",
    end: EndCode | None = None,
) -> str:
    """The source of some files, with `words` defined before them; NAME in them is `name`.

    Operands are `given`, results are `stored`. `multiply` comes before the last of the files, which
    may have an end.
    """
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_head", _head(kind, given, stored))
    source.add("pb_words", "\n".join(f"#define {w} {v}" for w, v in (*words, *kind.words())))
    for file in ("copies", "pieces", *files[:-1]):
        source.add(f"pb_{file}", text_of(file))
    if multiply:
        source.add("pb_multiply", multiply)
    add_ended(source, files[-1], name, end)
    return source.text()
