"""Transforms of a few points in registers, one for each lane, as LLVM IR.

All arithmetic is written out, fused products included, so that the bits of a transform depend on
nothing but its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft.roots import roots
from pullback.runtime.cpu.llvm.vectors import Vectors
from pullback.runtime.cpu.llvm.writer import Function, literal

__all__ = ["ComplexLanes", "ComplexRegisters", "transform"]


class ComplexRegisters(NamedTuple):
    """The registers of real and imaginary parts."""

    re: str
    im: str


class ComplexLanes(Vectors):
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

    def plus(self, a: ComplexRegisters, b: ComplexRegisters) -> ComplexRegisters:
        return ComplexRegisters(self.add(a.re, b.re), self.add(a.im, b.im))

    def minus(self, a: ComplexRegisters, b: ComplexRegisters) -> ComplexRegisters:
        return ComplexRegisters(self.sub(a.re, b.re), self.sub(a.im, b.im))

    def times(self, a: ComplexRegisters, w: ComplexRegisters) -> ComplexRegisters:
        """The product of two numbers."""
        re = self.fma(a.re, w.re, self.neg(self.mul(a.im, w.im)))
        return ComplexRegisters(re, self.fma(a.re, w.im, self.mul(a.im, w.re)))

    def turned(self, a: ComplexRegisters, k: int, n: int) -> ComplexRegisters:
        """The product with the root `exp(-2 pi i k / n)`."""
        k, quarter = k % n, n / 4
        if k == 0:
            return a
        if k == quarter:
            return ComplexRegisters(a.im, self.neg(a.re))
        if k == 2 * quarter:
            return ComplexRegisters(self.neg(a.re), self.neg(a.im))
        if k == 3 * quarter:
            return ComplexRegisters(self.neg(a.im), a.re)
        root = complex(roots(n, np.array(k)))
        if 8 * k % n == 0:
            half = self.number(abs(root.real))
            diagonal = ComplexRegisters(
                self.add(a.re, a.im), self.sub(a.im, a.re)
            )  # turned by an eighth
            for _ in range(8 * k // n // 2):
                diagonal = ComplexRegisters(diagonal.im, self.neg(diagonal.re))
            return ComplexRegisters(self.mul(diagonal.re, half), self.mul(diagonal.im, half))
        return self.times(a, ComplexRegisters(self.number(root.real), self.number(root.imag)))

    def fetch(self, pointer: str) -> ComplexRegisters:
        """The element at an address."""
        return ComplexRegisters(
            self.load(pointer), self.load(self.f.offset(pointer, str(self.nbytes)))
        )

    def keep(self, value: ComplexRegisters, pointer: str) -> None:
        """Store an element at an address."""
        self.store(value.re, pointer)
        self.store(value.im, self.f.offset(pointer, str(self.nbytes)))

    def spread(self, pointer: str) -> ComplexRegisters:
        """A complex number in memory, in every lane."""
        return ComplexRegisters(
            self.repeat(pointer), self.repeat(self.f.offset(pointer, str(self.size)))
        )


def transform(v: ComplexLanes, x: Sequence[ComplexRegisters]) -> list[ComplexRegisters]:
    """The discrete Fourier transform of `x`."""
    n = len(x)
    if n == 1:
        return list(x)
    if n == 2:
        return [v.plus(*x), v.minus(*x)]
    if n == 4:
        return _four(v, x)
    factor = next((p for p in range(2, n) if n % p == 0), n)
    if factor == n:
        return _odd_prime(v, x)
    inner = _coprime(n)
    if inner:
        return _prime_factors(v, x, inner, n // inner)
    return _in_rows(v, x, 4 if n % 4 == 0 and n > 8 else factor)


def _four(v: ComplexLanes, x: Sequence[ComplexRegisters]) -> list[ComplexRegisters]:
    a, b = v.plus(x[0], x[2]), v.minus(x[0], x[2])
    c, d = v.plus(x[1], x[3]), v.minus(x[1], x[3])
    one = ComplexRegisters(v.add(b.re, d.im), v.sub(b.im, d.re))
    three = ComplexRegisters(v.sub(b.re, d.im), v.add(b.im, d.re))
    return [v.plus(a, c), one, v.minus(a, c), three]


def _odd_prime(v: ComplexLanes, x: Sequence[ComplexRegisters]) -> list[ComplexRegisters]:
    """Cosines of the sums and sines of the differences of opposite points."""
    n, half = len(x), len(x) // 2
    sums = [v.plus(x[k], x[n - k]) for k in range(1, half + 1)]
    differences = [v.minus(x[k], x[n - k]) for k in range(1, half + 1)]
    first = x[0]
    for s in sums:
        first = v.plus(first, s)
    result = [first] * n
    for j in range(1, half + 1):
        even: ComplexRegisters = x[0]
        odd: ComplexRegisters | None = None
        for k in range(half):
            root = complex(roots(n, np.array(j * (k + 1))))
            cos, sin = v.number(root.real), v.number(-root.imag)
            s, d = sums[k], differences[k]
            even = ComplexRegisters(v.fma(s.re, cos, even.re), v.fma(s.im, cos, even.im))
            if odd is None:
                odd = ComplexRegisters(v.mul(d.re, sin), v.mul(d.im, sin))
            else:
                odd = ComplexRegisters(v.fma(d.re, sin, odd.re), v.fma(d.im, sin, odd.im))
        assert odd is not None
        result[j] = ComplexRegisters(v.add(even.re, odd.im), v.sub(even.im, odd.re))
        result[n - j] = ComplexRegisters(v.sub(even.re, odd.im), v.add(even.im, odd.re))
    return result


def _coprime(n: int) -> int:
    """The power of the first prime in n, if there are others."""
    factor = next(p for p in range(2, n + 1) if n % p == 0)
    power = 1
    while n % (power * factor) == 0:
        power *= factor
    return 0 if power == n else power


def _prime_factors(
    v: ComplexLanes, x: Sequence[ComplexRegisters], a: int, b: int
) -> list[ComplexRegisters]:
    """Rows and columns of coprime lengths need no factors between them (Good and Thomas)."""
    n = a * b
    rows = [transform(v, [x[(b * i + a * j) % n] for i in range(a)]) for j in range(b)]
    result = [x[0]] * n
    back_a, back_b = b * pow(b, -1, a), a * pow(a, -1, b)
    for k in range(a):
        column = transform(v, [row[k] for row in rows])
        for j in range(b):
            result[(k * back_a + j * back_b) % n] = column[j]
    return result


def _in_rows(v: ComplexLanes, x: Sequence[ComplexRegisters], a: int) -> list[ComplexRegisters]:
    """Transforms of every b-th point, turned, and then of their results (Cooley and Tukey)."""
    n = len(x)
    b = n // a
    rows = [transform(v, x[j::b]) for j in range(b)]
    result = [x[0]] * n
    for k in range(a):
        column = transform(v, [v.turned(rows[j][k], j * k, n) for j in range(b)])
        for j in range(b):
            result[k + a * j] = column[j]
    return result
