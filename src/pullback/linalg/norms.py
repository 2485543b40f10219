"""Norms of vectors and matrices; rank and condition number come from singular values."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Sample
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.extrema import max, min
from pullback.ops.families import composite, normalise_axes
from pullback.ops.parts import astype, conj, real
from pullback.ops.reductions import axis_errors, sum
from pullback.ops.selection import where
from pullback.ops.statistics import count_nonzero, safe_sqrt

__all__ = ["vector_norm"]


def _floating(name: str, x: Any) -> Any:
    x = as_array(x, name)
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


def _norm_oracle(x: Any, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    size = np.abs(x if x.dtype.kind in "fcV" else x.astype(default_float().numpy))
    if ord == 0:
        return np.sum(x != 0, axis=axis, keepdims=keepdims).astype(size.dtype)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    return np.sum(size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


@composite(
    oracle=_norm_oracle,
    samples=lambda d: [
        Sample((d.real(3, 4),)),
        Sample((d.real(2, 3, 4),), {"axis": (0, -1)}),
        Sample((d.real(2, 3),), {"axis": -1, "keepdims": True}),
        Sample((d.real(5),), {"axis": 0}),
        *[Sample((d.positive(3, 4),), {"ord": p, "axis": 1}) for p in (1, 3, 0.5, -1)],
        Sample((d.distinct(3, 4) + d.dtype.type(2.5),), {"ord": inf}),
        Sample((d.distinct(3, 4) + d.dtype.type(2.5),), {"ord": -inf, "axis": 0, "keepdims": True}),
        Sample((d.integers(7, high=3),), {"ord": 0}),
        Sample((np.zeros(3),), order=0),
    ],
    errors=lambda d: [
        *axis_errors(d),
        Bad((d.real(2),), {"ord": "fro"}, DTypeError, "ord must be a number"),
    ],
    namespace="linalg",
)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    """The norm `sum(abs(x)**ord) ** (1/ord)` along `axis` (None: all axes), with derivative 0 at 0.

    `ord` may be infinite (the largest or smallest modulus) or 0 (how many elements are not 0).

    >>> pb.linalg.vector_norm(pb.tensor([3.0, 4.0]))
    tensor(5., float32, cpu)
    """
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise DTypeError(f"vector_norm: ord must be a number, got {ord!r}.")
    x = _floating("vector_norm", x)
    axes = normalise_axes("vector_norm", axis, x._aval.ndim)
    if ord == 2:
        squares = real(x * conj(x)) if x._aval.dtype.is_complex else x * x
        return safe_sqrt(sum(squares, axis=axes, keepdims=keepdims))
    if ord == 0:
        return astype(count_nonzero(x, axis=axes, keepdims=keepdims), x._aval.dtype.real)
    size = abs_(x)
    if ord in (inf, -inf):
        return (max if ord > 0 else min)(size, axis=axes, keepdims=keepdims)
    if ord == 1:
        return sum(size, axis=axes, keepdims=keepdims)
    total = sum(size ** float(ord), axis=axes, keepdims=keepdims)
    zero = total == 0.0
    return where(zero, 0.0, where(zero, 1.0, total) ** (1.0 / ord))
