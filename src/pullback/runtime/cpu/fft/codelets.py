"""Complex numbers in registers, one for each lane, as LLVM IR."""

from __future__ import annotations

from pullback.compile.kernel.codelets import ComplexArithmetic, ComplexPair
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.vectors import Vectors
from pullback.runtime.cpu.llvm.writer import Function, literal

__all__ = ["ComplexLanes"]


class ComplexLanes(Vectors, ComplexArithmetic):
    """Arithmetic of vectors of complex numbers.

    In memory an element is a vector of real parts and one of imaginary parts.
    """

    def __init__(self, f: Function, dtype: DType):
        super().__init__(f, dtype)
        self.nbytes = self.lanes * self.size  # of a vector
        self.element = 2 * self.nbytes

    def number(self, value: float) -> str:
        """A constant in every lane."""
        return f"splat ({self.scalar} {literal(value, self.dtype)})"

    def sub(self, x: str, y: str) -> str:
        return self.f(f"fsub {self.type} {x}, {y}")

    def mul(self, x: str, y: str) -> str:
        return self.f(f"fmul {self.type} {x}, {y}")

    def neg(self, x: str) -> str:
        return self.f(f"fneg {self.type} {x}")

    def fma(self, x: str, y: str, total: str) -> str:
        """`x * y + total`, rounded once on every machine."""
        t = self.type
        function = self.f.module.intrinsic(f"llvm.fma.{self.suffix}", t, t, t, t)
        return self.f(f"call {t} {function}({t} {x}, {t} {y}, {t} {total})")

    def fetch(self, pointer: str) -> ComplexPair:
        """The element at an address."""
        return ComplexPair(self.load(pointer), self.load(self.f.offset(pointer, str(self.nbytes))))

    def keep(self, value: ComplexPair, pointer: str) -> None:
        """Store an element at an address."""
        self.store(value.re, pointer)
        self.store(value.im, self.f.offset(pointer, str(self.nbytes)))

    def spread(self, pointer: str) -> ComplexPair:
        """A complex number in memory, in every lane."""
        return ComplexPair(
            self.repeat(pointer), self.repeat(self.f.offset(pointer, str(self.size)))
        )
