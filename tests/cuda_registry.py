"""The registry's samples run in several ways, for tests on another device and for their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from generated.matrix import Case, arrays_of, call, determined, directional, jitted
from pullback.compile.kernel.factor_order import JACOBI
from pullback.core import pytrees

__all__ = [
    "ON_MATRIX_UNITS",
    "WAYS",
    "determined_of",
    "distance",
    "is_left_to_lapack",
    "same_bits",
]

# Operations that the CPU leaves to LAPACK, whose bits no other machine has: they, or derivatives
# of theirs, need eigenvalues of matrices that are not symmetric, functions of matrices, or singular
# values of tall ones.
_LEFT = {
    "polyfit",
    *("roots", "linalg.eig", "linalg.eigvals", "linalg.expm", "linalg.ldl", "linalg.logm"),
    *("linalg.polar", "linalg.schur", "linalg.solve_lyapunov", "linalg.solve_sylvester"),
    "linalg.sqrtm",
}
# Those made of eigh and svd, for which it has a method of its own where matrices are small.
_SPECTRAL = {
    *("primitive.known_svdvals", "linalg.cond", "linalg.eigh", "linalg.eigvalsh", "linalg.lstsq"),
    *("linalg.matrix_norm", "linalg.null_space", "linalg.orth", "linalg.pinv", "linalg.svd"),
    "linalg.svdvals",
}


def is_left_to_lapack(case: Case) -> bool:
    """Whether the CPU calls LAPACK for a sample or its derivatives."""
    if case.key not in _SPECTRAL:
        return case.key in _LEFT
    leaves = pytrees.leaves((case.sample.args, case.sample.kwargs))
    matrices = [a for a in leaves if isinstance(a, np.ndarray) and a.ndim > 1]
    return any(
        a.dtype.kind == "c" or a.shape[-2] != a.shape[-1] or a.shape[-1] > JACOBI for a in matrices
    )


def determined_of(case: Case, result: Any) -> list[Any]:
    """What does not depend on signs, phases and orders in the result of an operation."""
    return determined(case.entry, pb, arrays_of(result))


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
    if x.dtype.kind not in "fcV" or not x.size:  # V: bfloat16
        return 0.0 if np.array_equal(x, y) else np.inf
    x, y = (np.asarray(a, np.complex128) for a in (x, y))
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf
    fine = np.isfinite(x) & np.isfinite(y)
    rest = np.abs(np.where(fine, x - y, 0)).max()
    return float(rest / max(np.abs(y[fine]).max(initial=0.0), 1e-3))
