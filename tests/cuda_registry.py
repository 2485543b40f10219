"""The registry's samples run in several ways, for tests on another device and for their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from generated.matrix import Case, call, directional, jitted

__all__ = ["WAYS", "same_bits"]


WAYS: dict[str, Callable[[Case], Any]] = {
    "eager": lambda case: call(case.entry, case.sample),
    "jit": jitted,
    "first": lambda case: directional(case, 1, False),
    "second, jit": lambda case: directional(case, 2, True),
}


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays are equal to the bit, but for the bits of NaN."""
    if x.dtype.kind == "c":
        return all(same_bits(*pair) for pair in ((x.real, y.real), (x.imag, y.imag)))
    if x.dtype.kind not in "fV":
        return np.array_equal(x, y)
    nan = np.isnan(x.astype(np.float64))
    raw = [np.frombuffer(a.tobytes(), f"u{a.dtype.itemsize}").reshape(a.shape) for a in (x, y)]
    return bool(np.all((raw[0] == raw[1]) | (nan & np.isnan(y.astype(np.float64)))))
