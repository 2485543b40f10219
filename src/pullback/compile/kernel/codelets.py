"""Transforms of a few points, written with the operations of an arithmetic: registers of a CPU,
names in a kernel's source, or arrays.

All of it is written out, fused products included, so that the bits of a transform depend on
nothing but its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.kernel.roots import roots

__all__ = ["ComplexArithmetic", "ComplexPair", "transform"]


class ComplexPair(NamedTuple):
    """Real and imaginary parts."""

    re: Any
    im: Any


class ComplexArithmetic(ABC):
    """Operations on real parts, and what they make of complex numbers."""

    @abstractmethod
    def number(self, value: float) -> Any:
        """A constant."""

    @abstractmethod
    def add(self, x: Any, y: Any) -> Any:
        """`x + y`."""

    @abstractmethod
    def sub(self, x: Any, y: Any) -> Any:
        """`x - y`."""

    @abstractmethod
    def mul(self, x: Any, y: Any) -> Any:
        """`x * y`."""

    @abstractmethod
    def neg(self, x: Any) -> Any:
        """`-x`."""

    @abstractmethod
    def fma(self, x: Any, y: Any, total: Any) -> Any:
        """`x * y + total`, rounded once."""

    def plus(self, a: ComplexPair, b: ComplexPair) -> ComplexPair:
        return ComplexPair(self.add(a.re, b.re), self.add(a.im, b.im))

    def minus(self, a: ComplexPair, b: ComplexPair) -> ComplexPair:
        return ComplexPair(self.sub(a.re, b.re), self.sub(a.im, b.im))

    def times(self, a: ComplexPair, w: ComplexPair) -> ComplexPair:
        """The product of two numbers."""
        re = self.fma(a.re, w.re, self.neg(self.mul(a.im, w.im)))
        return ComplexPair(re, self.fma(a.re, w.im, self.mul(a.im, w.re)))

    def turned(self, a: ComplexPair, k: int, n: int) -> ComplexPair:
        """The product with the root `exp(-2 pi i k / n)`."""
        k, quarter = k % n, n / 4
        if k == 0:
            return a
        if k == quarter:
            return ComplexPair(a.im, self.neg(a.re))
        if k == 2 * quarter:
            return ComplexPair(self.neg(a.re), self.neg(a.im))
        if k == 3 * quarter:
            return ComplexPair(self.neg(a.im), a.re)
        root = complex(roots(n, np.array(k)))
        if 8 * k % n == 0:
            half = self.number(abs(root.real))
            diagonal = ComplexPair(
                self.add(a.re, a.im), self.sub(a.im, a.re)
            )  # turned by an eighth
            for _ in range(8 * k // n // 2):
                diagonal = ComplexPair(diagonal.im, self.neg(diagonal.re))
            return ComplexPair(self.mul(diagonal.re, half), self.mul(diagonal.im, half))
        return self.times(a, ComplexPair(self.number(root.real), self.number(root.imag)))


class NamedRegisters(ComplexArithmetic):
    """Arithmetic of registers with names: `lines` declare them, one after the other."""

    declaration = ""  # of a {name} with its {text}

    def __init__(self):
        self.lines: list[str] = []

    def kept(self, text: str) -> str:
        """The name of a new register."""
        name = f"v{len(self.lines)}"
        self.lines.append(self.declaration.format(name=name, text=text))
        return name


def transform(v: ComplexArithmetic, x: Sequence[ComplexPair]) -> list[ComplexPair]:
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


def _four(v: ComplexArithmetic, x: Sequence[ComplexPair]) -> list[ComplexPair]:
    a, b = v.plus(x[0], x[2]), v.minus(x[0], x[2])
    c, d = v.plus(x[1], x[3]), v.minus(x[1], x[3])
    one = ComplexPair(v.add(b.re, d.im), v.sub(b.im, d.re))
    three = ComplexPair(v.sub(b.re, d.im), v.add(b.im, d.re))
    return [v.plus(a, c), one, v.minus(a, c), three]


def _odd_prime(v: ComplexArithmetic, x: Sequence[ComplexPair]) -> list[ComplexPair]:
    """Cosines of the sums and sines of the differences of opposite points."""
    n, half = len(x), len(x) // 2
    sums = [v.plus(x[k], x[n - k]) for k in range(1, half + 1)]
    differences = [v.minus(x[k], x[n - k]) for k in range(1, half + 1)]
    first = x[0]
    for s in sums:
        first = v.plus(first, s)
    result = [first] * n
    for j in range(1, half + 1):
        even: ComplexPair = x[0]
        odd: ComplexPair | None = None
        for k in range(half):
            root = complex(roots(n, np.array(j * (k + 1))))
            cos, sin = v.number(root.real), v.number(-root.imag)
            s, d = sums[k], differences[k]
            even = ComplexPair(v.fma(s.re, cos, even.re), v.fma(s.im, cos, even.im))
            if odd is None:
                odd = ComplexPair(v.mul(d.re, sin), v.mul(d.im, sin))
            else:
                odd = ComplexPair(v.fma(d.re, sin, odd.re), v.fma(d.im, sin, odd.im))
        assert odd is not None
        result[j] = ComplexPair(v.add(even.re, odd.im), v.sub(even.im, odd.re))
        result[n - j] = ComplexPair(v.sub(even.re, odd.im), v.add(even.im, odd.re))
    return result


def _coprime(n: int) -> int:
    """The power of the first prime in n, if there are others."""
    factor = next(p for p in range(2, n + 1) if n % p == 0)
    power = 1
    while n % (power * factor) == 0:
        power *= factor
    return 0 if power == n else power


def _prime_factors(
    v: ComplexArithmetic, x: Sequence[ComplexPair], a: int, b: int
) -> list[ComplexPair]:
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


def _in_rows(v: ComplexArithmetic, x: Sequence[ComplexPair], a: int) -> list[ComplexPair]:
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
