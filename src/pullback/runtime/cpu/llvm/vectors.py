"""Vectors in kernels that multiply and transpose matrices, over LLVM IR text."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import Function, of_width, register

__all__ = ["Vectors", "lanes_of", "squared"]


def lanes_of(dtype: DType) -> int:
    """Elements of a vector."""
    return jit.host().vector_bits // (8 * dtype.itemsize)


class Vectors:
    """Loads, stores and arithmetic of vectors in one function."""

    def __init__(self, f: Function, dtype: DType, lanes: int | None = None):
        self.f, self.dtype, self.lanes = f, dtype, lanes or lanes_of(dtype)
        self.size, self.scalar = dtype.itemsize, register(dtype)
        self.type = of_width(self.scalar, self.lanes)
        self.suffix = f"v{self.lanes}f{8 * self.size}"

    def at(self, pointer: str, elements: str) -> str:
        return self.f.element(pointer, self.scalar, elements)

    def mask(self, count: str) -> str:
        """The lanes below `count`."""
        numbers = ", ".join(f"i64 {k}" for k in range(self.lanes))
        wide = self.f.splat(count, "i64", self.lanes)
        return self.f(f"icmp sgt <{self.lanes} x i64> {wide}, <{numbers}>")

    def first(self, count: int) -> str:
        """The mask of the first lanes, as a constant."""
        return f"<{', '.join(f'i1 {int(k < count)}' for k in range(self.lanes))}>"

    def fma(self, x: str, y: str, total: str) -> str:
        t = self.type
        function = self.f.module.intrinsic(f"llvm.fmuladd.{self.suffix}", t, t, t, t)
        return self.f(f"call {t} {function}({t} {x}, {t} {y}, {t} {total})")

    def load(self, pointer: str, mask: str | None = None) -> str:
        f, t = self.f, self.type
        if mask is None:
            return f(f"load {t}, ptr {pointer}, align {self.size}")
        bits = f"<{self.lanes} x i1>"
        name = f"llvm.masked.load.{self.suffix}.p0"
        function = f.module.intrinsic(name, t, "ptr", "i32", bits, t)
        passed = f"ptr {pointer}, i32 {self.size}, {bits} {mask}, {t} zeroinitializer"
        return f(f"call {t} {function}({passed})")

    def repeat(self, pointer: str) -> str:
        """The element at `pointer` in every lane."""
        value = self.f(f"load {self.scalar}, ptr {pointer}, align {self.size}")
        return self.f.splat(value, self.scalar, self.lanes)

    def store(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.type} {value}, ptr {pointer}, align {self.size}")

    def store_masked(self, value: str, pointer: str, mask: str) -> None:
        f, t, bits = self.f, self.type, f"<{self.lanes} x i1>"
        name = f"llvm.masked.store.{self.suffix}.p0"
        function = f.module.intrinsic(name, "void", t, "ptr", "i32", bits)
        f.do(f"call void {function}({t} {value}, ptr {pointer}, i32 {self.size}, {bits} {mask})")

    def store_lanes(self, value: str, pointer: str, count: int) -> None:
        """Stores the first `count` lanes one by one: masked stores are slow on some CPUs."""
        f = self.f
        for lane in range(count):
            one = f(f"extractelement {self.type} {value}, i64 {lane}")
            f.do(f"store {self.scalar} {one}, ptr {self.at(pointer, str(lane))}, align {self.size}")

    def store_first(self, value: str, pointer: str, count: str) -> None:
        """The same for a `count` that is known at run time."""
        f = self.f
        for lane in range(self.lanes):
            with f.when(f(f"icmp sgt i64 {count}, {lane}")):
                one = f(f"extractelement {self.type} {value}, i64 {lane}")
                place = self.at(pointer, str(lane))
                f.do(f"store {self.scalar} {one}, ptr {place}, align {self.size}")

    def pick(self, u: str, w: str, lanes: Sequence[int]) -> str:
        """The listed lanes of `u`, and after them of `w`."""
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
        return self.f(f"shufflevector {self.type} {u}, {self.type} {w}, {mask}")

    def unary(self, name: str, x: str) -> str:
        """A function of LLVM's, of every lane."""
        function = self.f.module.intrinsic(f"llvm.{name}.{self.suffix}", self.type, self.type)
        return self.f(f"call {self.type} {function}({self.type} {x})")

    def add(self, x: str, y: str) -> str:
        return self.f(f"fadd {self.type} {x}, {y}")

    def subtract(self, x: str, y: str) -> str:
        return self.f(f"fsub {self.type} {x}, {y}")

    def multiply(self, x: str, y: str) -> str:
        return self.f(f"fmul {self.type} {x}, {y}")

    def divide(self, x: str, y: str) -> str:
        return self.f(f"fdiv {self.type} {x}, {y}")


def squared(v: Vectors, vectors: Sequence[str]) -> list[str]:
    """As many vectors as they have lanes, transposed.

    First inside of 128 bits, where that costs least, and then whole pieces of 128 bits.
    """
    found, piece = list(vectors), 16 // v.size
    found = _turned_inside(v, found)
    rows = [_turned_pieces(v, found[r::piece]) for r in range(piece)]
    return [x for across in zip(*rows, strict=True) for x in across]


def _turned_inside(v: Vectors, vectors: Sequence[str]) -> list[str]:
    """Transposed inside of 128 bits, in groups of as many vectors as these hold elements."""
    found, piece = list(vectors), 16 // v.size
    low = [k for k in range(v.lanes) if k % piece < piece // 2]
    width = 1
    while width < piece:
        blocks = [low[k : k + width] for k in range(0, len(low), width)]
        near = [k for block in blocks for k in (*block, *(v.lanes + b for b in block))]
        pairs = _pairs(found, width)
        found = [v.pick(u, w, [k + far for k in near]) for u, w in pairs for far in (0, piece // 2)]
        width *= 2
    return found


def _turned_pieces(v: Vectors, vectors: Sequence[str]) -> list[str]:
    """As many vectors as they have pieces of 128 bits, transposed piece by piece.

    Of two vectors, the pieces with even and with odd numbers: one instruction for each.
    """
    if len(vectors) == 1:
        return list(vectors)
    piece = 16 // v.size
    halves = []
    for odd in (0, 1):
        chosen = [k for k in range(2 * v.lanes) if k // piece % 2 == odd]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        halves.append(_turned_pieces(v, [v.pick(u, w, chosen) for u, w in pairs]))
    return [x for both in zip(*halves, strict=True) for x in both]


def _pairs(vectors: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Each vector with the one `width` further, in groups of twice as many."""
    firsts = [i for i in range(len(vectors)) if not i & width]
    return [(vectors[i], vectors[i + width]) for i in firsts]
