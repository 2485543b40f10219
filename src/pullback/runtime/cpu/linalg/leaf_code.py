"""What the kernels of tiled factorisations are written with.

Vectors have `VECTOR_BYTES` on every processor. An element that has no sum of its own depends on no
lanes; sums along a column have the order of `factor_order`. Offsets and distances are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.compile.kernel.factor_order import SUMS, VECTOR_BYTES
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record
from pullback.runtime.cpu.llvm.vectors import Vectors
from pullback.runtime.cpu.llvm.writer import Function, IRModule, literal

__all__ = ["Leaf"]


class Leaf:
    """A kernel under construction over the matrices of a batch."""

    def __init__(self, dtype: DType, record: Record):
        self.dtype, self.size = dtype, dtype.itemsize
        self.module = IRModule()
        self.f = f = Function(self.module, "@kernel")
        self.p = BatchParams(f, record)
        self.v = Vectors(f, dtype, VECTOR_BYTES // dtype.itemsize)
        self.kind, self.lanes = self.v.scalar, self.v.lanes

    def finish(self) -> int:
        self.f.finish()
        return jit.compile_ir(self.module.text(), ["kernel"])["kernel"]

    def load(self, pointer: str) -> str:
        return self.f(f"load {self.kind}, ptr {pointer}, align {self.size}")

    def store(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.kind} {value}, ptr {pointer}, align {self.size}")

    def at(self, pointer: str, *steps: tuple[str, str]) -> str:
        """The address after so many steps of so many bytes."""
        f = self.f
        for count, nbytes in steps:
            pointer = f.offset(pointer, f.mul(count, nbytes))
        return pointer

    def element(self, pointer: str, i: str) -> str:
        return self.f.element(pointer, self.kind, i)

    def number(self, value: float) -> str:
        return literal(value, self.dtype)

    def unary(self, name: str, x: str) -> str:
        function = self.module.intrinsic(f"llvm.{name}.f{8 * self.size}", self.kind, self.kind)
        return self.f(f"call {self.kind} {function}({self.kind} {x})")

    def scalar(self, operation: str, x: str, y: str) -> str:
        return self.f(f"{operation} {self.kind} {x}, {y}")

    def fma(self, x: str, y: str, z: str) -> str:
        k = self.kind
        function = self.module.intrinsic(f"llvm.fmuladd.f{8 * self.size}", k, k, k, k)
        return self.f(f"call {k} {function}({k} {x}, {k} {y}, {k} {z})")

    def negative(self, x: str) -> str:
        return self.f(f"fneg {self.kind} {x}")

    def splat(self, x: str) -> str:
        return self.f.splat(x, self.kind, self.lanes)

    def select(self, condition: str, x: str, y: str) -> str:
        return self.f(f"select i1 {condition}, {self.kind} {x}, {self.kind} {y}")

    def zeros(self, pointer: str, vectors: str) -> None:
        with self.f.loop("0", vectors) as k:
            place = self.f.offset(pointer, self.f.mul(k.i, str(VECTOR_BYTES)))
            self.v.store("zeroinitializer", place)

    def reduced(self, name: str, x: str) -> str:
        """All lanes as one, by an operation whose order is no matter, or a sum by halves."""
        f, v = self.f, self.v
        if name != "fadd":
            function = f.module.intrinsic(f"llvm.vector.reduce.{name}.{v.suffix}", v.scalar, v.type)
            return f(f"call {v.scalar} {function}({v.type} {x})")
        width = v.lanes
        while width > 1:
            width //= 2
            moved = v.pick(x, x, [k + width if k < width else k for k in range(v.lanes)])
            x = v.add(x, moved)
        return f(f"extractelement {v.type} {x}, i64 0")

    def column(
        self,
        start: str,
        stop: str,
        carried: list[tuple[str, str]],
        body: Callable[[list[str], str | None, list[str]], list[str]],
    ) -> list[str]:
        """Goes through the elements of a column, SUMS vectors at a time: `body` gets where they
        start, a mask for the last and the carried values, and gives the values to carry on.
        """
        f, lanes, step = self.f, self.lanes, SUMS * self.lanes
        count = f.sub(stop, start)
        _, rest = f.divmod(count, str(step))
        whole = f.sub(stop, rest)
        with f.loop(start, whole, str(step), carried=carried) as loop:
            places = [f.add(loop.i, str(g * lanes)) for g in range(SUMS)]
            loop.next = body(places, None, loop.carried)
        carried = [(kind, value) for (kind, _), value in zip(carried, loop.results, strict=True)]
        with f.loop(whole, stop, str(lanes), carried=carried) as loop:
            loop.next = body([loop.i], self.v.mask(f.sub(stop, loop.i)), loop.carried)
        return loop.results

    def put(self, value: str, pointer: str, mask: str | None) -> None:
        if mask is None:
            self.v.store(value, pointer)
        else:
            self.v.store_masked(value, pointer, mask)
