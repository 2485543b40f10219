"""The registry's samples run in several ways, for tests on another device and for their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from generated.matrix import Case, call, directional, jitted

__all__ = ["LEFT_TO_LAPACK", "ON_MATRIX_UNITS", "WAYS", "distance", "same_bits"]

# Operations that the CPU leaves to LAPACK for some matrices, whose bits no other machine has.
LEFT_TO_LAPACK = {
    *("roots", "primitive.known_svdvals"),
    *(
        f"linalg.{name}"
        for name in (
            *("cond", "eig", "eigh", "eigvals", "eigvalsh", "expm", "ldl", "logm", "lstsq"),
            *("matrix_norm", "null_space", "orth", "pinv", "polar", "schur", "solve_lyapunov"),
            *("sqrtm", "svd", "svdvals"),
        )
    ),
}

# Operations whose products of float16 and bfloat16 a GPU makes on matrix units, in their order.
ON_MATRIX_UNITS = {
    *("nn.scaled_dot_product_attention", "nn.multi_head_attention"),
    "nn.multi_head_attention_forward",
}


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


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference relative to the largest element."""
    if x.dtype.kind not in "fc" or not x.size:
        return 0.0 if np.array_equal(x, y) else np.inf
    x, y = (np.asarray(a, np.complex128) for a in (x, y))
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf
    fine = np.isfinite(x) & np.isfinite(y)
    rest = np.abs(np.where(fine, x - y, 0)).max()
    return float(rest / max(np.abs(y[fine]).max(initial=0.0), 1e-3))
