"""Tables of roots in memory."""

from __future__ import annotations

import functools

import numpy as np

from pullback.compile.kernel.roots import roots
from pullback.compile.kernel.transforms import pass_powers
from pullback.core.dtypes import DType
from pullback.runtime.cpu.native.tables import NumberTable

__all__ = ["NumberTable", "half_roots", "numbers", "pass_roots", "planes", "twist_roots"]


def numbers(values: np.ndarray, dtype: DType) -> NumberTable:
    """Complex numbers as they lie in an array."""
    return NumberTable(values.astype(np.complex64 if dtype.itemsize == 4 else np.complex128))


def planes(values: np.ndarray, dtype: DType, lanes: int) -> NumberTable:
    """Rows of complex numbers as rows of elements: vectors of real, then of imaginary parts."""
    rows, count = values.shape
    full = np.zeros((rows, -(-count // lanes) * lanes), np.complex128)
    full[:, :count] = values
    parts = np.stack([full.real, full.imag], -1).reshape(rows, -1, lanes, 2)
    return NumberTable(parts.transpose(0, 1, 3, 2).astype(dtype.numpy))


@functools.lru_cache(128)
def pass_roots(dtype: DType, n: int, radix: int) -> NumberTable:
    """The roots of a pass over n points: of group p those of p j for j = 1 ... radix - 1."""
    return numbers(roots(n, pass_powers(n, radix)), dtype)


@functools.lru_cache(128)
def twist_roots(dtype: DType, n: int, radix: int, lanes: int) -> NumberTable:
    """The roots between the first pass, of that radix, and the rest of a transform of n points."""
    p = np.arange(n // radix)
    return planes(roots(n, np.arange(radix)[:, None] * p), dtype, lanes)


@functools.lru_cache(16)
def half_roots(dtype: DType, n: int, back: bool) -> NumberTable:
    """The factors of `halves` for a real transform of n points."""
    w = roots(n, np.arange(n // 2 + 1))
    return numbers(1j * w.conj() if back else -0.5j * w, dtype)
