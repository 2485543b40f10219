"""What references know: for which operands an operation's oracle has the one right answer.

Bases of equal eigenvalues, factors of singular matrices and positions in arrays that are not sorted
are what an implementation makes them. `knows` says whether a call is free of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["KINKED", "NARROW", "drawable", "knows"]

MOST_BETWEEN = 4_000_000  # elements between operands and result, ten times those of the largest one
APART = 1e-2  # of the largest, by which eigenvalues differ whose vectors are more than rounding

# What depends on the dtype that it is computed in; products and powers overflow on their way.
NARROW = (
    "nextafter", "linalg.matrix_rank", "linalg.pinv", "cumprod", "cumulative_prod", "nancumprod",
    "nn.normalize",
)  # fmt: skip
# At zero, copysign(x, x) has a derivative that the rule for two operands can't know. The vectors of
# spectral_norm are constants, as everywhere: its derivative is that of what they converge to.
KINKED = ("copysign", "nn.spectral_norm")

Known = Callable[..., bool]


def _never(*args: Any, **kwargs: Any) -> bool:
    return False  # uninitialised memory


def _is_rising(x: Any) -> bool:
    x = np.asarray(x)
    return bool(np.all(x[1:] >= x[:-1])) if x.ndim == 1 and x.dtype.kind != "c" else False


def _searches(x1: Any, x2: Any, *, sorter: Any = None, **_: Any) -> bool:
    x1 = np.asarray(x1)
    return _is_rising(x1 if sorter is None else x1[np.asarray(sorter)])


def _terms_are_few(n: Any, x: Any) -> bool:
    """SciPy adds a term for each number between `x` and 0."""
    return bool(np.all(np.asarray(x) > -1e4))


def _interpolates(x: Any, xp: Any, fp: Any, *_: Any, **__: Any) -> bool:
    return _is_rising(xp) and len(np.unique(np.asarray(xp))) == np.asarray(xp).size


def _bags(index: Any, weight: Any, offsets: Any = None, *_: Any, **__: Any) -> bool:
    return offsets is None or _is_rising(offsets)


def _counts(count: Any, *_: Any, **__: Any) -> bool:
    """The oracle has as many numbers as are counted."""
    return bool(np.all(np.abs(np.asarray(count, np.float64)) < 1e4))


def _has_points(x: Any, y: Any, deg: int, **_: Any) -> bool:
    """NumPy divides complex columns by what is not their length: that shows where there are more
    coefficients than points.
    """
    return deg < np.asarray(x).size or np.result_type(x, y).kind != "c"


def _integers_fit(x: Any, dtype: Any, *_: Any, **__: Any) -> bool:
    """Whether a dtype has these numbers: what NumPy makes of others depends on the processor."""
    x = np.asarray(x)
    if not dtype.is_integer or x.dtype.kind in "biu":
        return True
    bounds, x = np.iinfo(dtype.numpy), np.real(x)
    return bool(np.all((x > bounds.min - 1.0) & (x < bounds.max + 1.0)))


def _leads(*polynomials: Any, **_: Any) -> bool:
    """Whether no polynomial begins with a zero, or nearly so."""
    found = [np.atleast_1d(np.asarray(p, np.complex128)) for p in polynomials]
    return all(p.size and abs(p[0]) > APART * np.max(np.abs(p)) for p in found)


def _are_apart(values: np.ndarray) -> bool:
    """Whether no two of the last axis are nearly equal."""
    n = values.shape[-1]
    distance = np.abs(values[..., :, None] - values[..., None, :]) + np.where(np.eye(n), np.inf, 0)
    largest = np.max(np.abs(values), axis=-1, initial=0.0)
    return bool(np.all(np.min(distance, axis=(-2, -1), initial=np.inf) > APART * largest))


def _wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _eigenvalues_are_apart(x: Any, *_: Any, **__: Any) -> bool:
    return _are_apart(np.linalg.eigvals(_wide(x)))


def _hermitian_is_apart(x: Any, *_: Any, **__: Any) -> bool:
    return _are_apart(np.linalg.eigvalsh(_wide(x)))


def _has_full_rank(x: Any, *_: Any, **__: Any) -> bool:
    s = np.linalg.svd(_wide(x), compute_uv=False)
    return bool(s.size and np.all(s[..., -1] > APART * s[..., 0]))


def _singular_are_apart(x: Any, *_: Any, **__: Any) -> bool:
    s = np.linalg.svd(_wide(x), compute_uv=False)
    return _has_full_rank(x) and _are_apart(s)


def _scales_all(x: Any, *_: Any, orthogonalize: Any = None, **__: Any) -> bool:
    """SciPy forgets `orthogonalize` where numbers are complex."""
    return orthogonalize is None or np.asarray(x).dtype.kind != "c"


KNOWN: dict[str, Known] = {
    "astype": _integers_fit,
    "empty": _never,
    "empty_like": _never,
    # LAPACK's routine for two matrices scales, and SciPy's own pivots where ours does not
    "linalg.generalized_eigh": _never,
    "linalg.ldl": _never,
    **{f"fft.{name}": _scales_all for name in ("dct", "idct", "dst", "idst")},
    "searchsorted": _searches,
    "interp": _interpolates,
    "polygamma": _terms_are_few,
    "nn.embedding_bag": _bags,
    "primitive.place_below": _counts,
    "primitive.place_beyond": _counts,
    "roots": _leads,
    "polymul": _leads,
    "polyfit": _has_points,
    "linalg.eig": _eigenvalues_are_apart,
    "linalg.eigvals": _eigenvalues_are_apart,
    "linalg.schur": _eigenvalues_are_apart,
    "linalg.eigh": _hermitian_is_apart,
    "linalg.svd": _singular_are_apart,
    "linalg.polar": _has_full_rank,
}


# How many elements a derivative has in memory where they are many more than operands and results.
BETWEEN: dict[str, Callable[..., int]] = {
    "nn.embedding_bag": lambda index, weight, *_: np.size(index) * math.prod(np.shape(weight)[1:]),
    "nn.multilabel_margin_loss": lambda x, *_: np.size(x) * np.shape(x)[-1],
}


def knows(key: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether the oracle of an operation has the one right answer for these operands."""
    rule = KNOWN.get(key)
    if rule is None:
        return True
    try:
        with np.errstate(all="ignore"):
            return rule(*args, **kwargs)
    except (np.linalg.LinAlgError, ValueError, TypeError, IndexError):
        return False  # of NaN, or of operands that the operation takes in another form


def drawable(key: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call fits into memory, and compiled and eager calls give the same shapes.

    Zeros in front of a polynomial are dropped where they can be seen, which is not in a trace.
    """
    if key in BETWEEN:
        return BETWEEN[key](*args) <= MOST_BETWEEN
    return key != "roots" or knows(key, args, kwargs)
