"""Norms of vectors and matrices; rank and condition number come from singular values."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Sample
from pullback.linalg.arguments import floats, matrices, matrix_errors, square
from pullback.linalg.lu import inv
from pullback.linalg.singular import spread_values, svdvals
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arrangement import expand_dims
from pullback.ops.extrema import max, min
from pullback.ops.families import composite, normalise_axes
from pullback.ops.parts import astype, conj, real
from pullback.ops.reductions import axis_errors, sum
from pullback.ops.selection import where
from pullback.ops.statistics import count_nonzero, powers, safe_sqrt

__all__ = ["cond", "matrix_norm", "vector_norm"]


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
        *[Sample((np.asarray([0.0, 3.0, 1.0]),), {"ord": p}, order=0) for p in (0.5, -1)],
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
    total = sum(powers(size, ord), axis=axes, keepdims=keepdims)
    if ord < 0:
        return total ** (1.0 / ord)
    zero = total == 0.0
    return where(zero, 0.0, where(zero, 1.0, total) ** (1.0 / ord))


def _matrix_norm_oracle(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return floats(np.linalg.matrix_norm)(x, keepdims=keepdims, ord=ord)


@composite(
    oracle=_matrix_norm_oracle,
    samples=lambda d: [
        Sample((d.real(3, 4),)),
        Sample((d.real(2, 3, 4),), {"keepdims": True}),
        *[Sample((spread_values(d, 3, 4),), {"ord": p}) for p in ("nuc", 2, -2)],
        *[Sample((d.distinct(3, 3),), {"ord": p}) for p in (1, -1, inf, -inf)],
        Sample((np.zeros((2, 2), d.dtype),), order=0),
        Sample((d.integers(2, 3),)),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "at least two dimensions"),
        Bad((d.real(2, 2),), {"ord": 3}, DTypeError, "ord is one of"),
        *[Bad((d.real(0, 3),), {"ord": o}, ShapeError, "without elements") for o in (2, inf)],
    ],
    namespace="linalg",
    tolerance=16,
)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of matrices: "fro" the root of the sum of squares, "nuc" the sum of the singular
    values, 2 and -2 the largest and smallest singular value, 1 and -1 the largest and smallest sum
    of a column, inf and -inf of a row.

    >>> pb.linalg.matrix_norm(pb.tensor([[3.0, 0.0], [4.0, 0.0]]))
    tensor(5., float32, cpu)
    """
    x = _floating("matrix_norm", x)
    if x._aval.ndim < 2:
        raise ShapeError(
            f"matrix_norm: a matrix has at least two dimensions, got shape {x._aval.shape}."
        )
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        if ord != "nuc":
            _expect_some("matrix_norm", values, x)
        reduce = {"nuc": sum, 2: max, -2: min}[ord]
        found = reduce(values, axis=-1, keepdims=keepdims)
        return expand_dims(found, axis=-1) if keepdims else found
    if ord not in (1, -1, inf, -inf):
        raise DTypeError(
            f"matrix_norm: ord is one of 'fro', 'nuc', 1, -1, 2, -2, inf and -inf, got {ord!r}."
        )
    added, other = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = sum(abs_(x), axis=added, keepdims=True)
    _expect_some("matrix_norm", sums, x)
    found = (max if ord > 0 else min)(sums, axis=other, keepdims=True)
    return found if keepdims else found[..., 0, 0]


def _expect_some(name: str, values: Any, x: Any) -> None:
    """Raise where there is no largest and no smallest value in the matrices `x`."""
    if 0 in values._aval.shape[-2:] and 0 in x._aval.shape[-2:]:
        raise ShapeError(
            f"{name}: matrices without elements have no largest value, got shape {x._aval.shape}."
        )


def _cond_oracle(x: Any, *, p: Any = None) -> Any:
    return np.linalg.cond(x, p).astype(np.real(x).dtype)


@composite(
    oracle=_cond_oracle,
    samples=lambda d: [
        Sample((spread_values(d, 3, 4),)),
        Sample((spread_values(d, 2, 3, 3),), {"p": "fro"}),
        *[Sample((d.distinct(3, 3) + 4 * np.eye(3, dtype=d.dtype),), {"p": p}) for p in (1, -inf)],
        Sample((spread_values(d, 3, 3),), {"p": -2}),
    ],
    errors=lambda d: [
        *matrix_errors(d),
        Bad((d.real(2, 3),), {"p": 1}, ShapeError, "square matrix"),
        Bad((d.real(2, 2),), {"p": 3}, DTypeError, "p is one of"),
        Bad((d.real(0, 3),), {}, ShapeError, "without elements"),
    ],
    namespace="linalg",
    tolerance=16,
)
def cond(x: Any, /, *, p: Any = None) -> Any:
    """The condition number of matrices: the quotient of the largest and the smallest singular value
    (p None or 2), its inverse (-2), or the product of the norms of the matrix and its inverse.

    A singular matrix has the condition number infinity by singular values; by its inverse it has
    none: that raises.

    >>> pb.linalg.cond(pb.tensor([[4.0, 0.0], [0.0, 2.0]]))
    tensor(2., float32, cpu)
    """
    if p not in (None, "fro", "nuc", 1, -1, 2, -2, inf, -inf):
        raise DTypeError(f"cond: p is one of 'fro', 'nuc', 1, -1, 2, -2, inf and -inf, got {p!r}.")
    x = matrices("cond", x)
    if p in (None, 2, -2):
        values = svdvals(x)
        _expect_some("cond", values, x)
        first, last = values[..., 0], values[..., -1]
        return last / first if p == -2 else first / last
    x = square("cond", x)
    return matrix_norm(x, ord=p) * matrix_norm(inv(x), ord=p)
