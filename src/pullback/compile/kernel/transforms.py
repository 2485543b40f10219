"""Fourier transforms in the order of `fft_order`, on arrays: a reference, and what tables need."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.codelets import ComplexArithmetic, ComplexPair, transform
from pullback.compile.kernel.order import Array, fused
from pullback.compile.kernel.roots import roots

__all__ = ["chirp", "convolution", "pass_powers", "spectrum", "transformed"]


class _Arrays(ComplexArithmetic):
    """Arithmetic of arrays."""

    def __init__(self, dtype: Any):
        self._dtype = dtype

    def number(self, value: float) -> Any:
        return self._dtype.type(value)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def neg(self, x: Any) -> Any:
        return -x

    def fma(self, x: Any, y: Any, total: Any) -> Any:
        return fused(x, y, total)


def pass_powers(n: int, radix: int) -> Array:
    """The powers of `exp(-2 pi i / n)` in a pass: of group p those by p j, j = 1 ... radix - 1."""
    return np.arange(n // radix)[:, None] * np.arange(1, radix)


def transformed(values: Any) -> Any:
    """The transform of a row of complex numbers, of a smooth length: pass after pass."""
    v = _Arrays(values.real.dtype)
    n, span = len(values), 1
    for radix in fft_order.radices(len(values)):
        rest = n // radix
        points = values.reshape(radix, rest, span)
        made = transform(v, [ComplexPair(x.real, x.imag) for x in points])
        turns: Any = roots(n, pass_powers(n, radix)).astype(values.dtype)[..., None]
        for j in range(1, radix) if rest > 1 else ():
            root = turns[:, j - 1]
            made[j] = v.times(made[j], ComplexPair(root.real, root.imag))
        values = np.empty((rest, radix, span), values.dtype)
        for j, value in enumerate(made):
            values[:, j].real, values[:, j].imag = value
        n, span = rest, span * radix
    return values.reshape(-1)


def chirp(n: int) -> Array:
    """`exp(-i pi j^2 / n)` for j = 0 ... n - 1."""
    j = np.arange(n)
    return roots(2 * n, j * j)


def convolution(n: int) -> Array:
    """The operand with which a transform of n points is a convolution (Bluestein), as long as
    `fft_order.smooth_above` says.
    """
    longer, factors = fft_order.smooth_above(2 * n - 1), chirp(n)
    other = np.zeros(longer, np.complex128)
    other[:n] = factors.conj()
    other[longer - n + 1 :] = factors[:0:-1].conj()
    return other


@functools.lru_cache(16)
def spectrum(n: int) -> Array:
    """The transform of `convolution(n)` over its length."""
    other = convolution(n)
    return transformed(other) / len(other)
