"""Diagonals and triangles of matrices, over any number of leading axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, scalar
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import moveaxis, part
from pullback.ops.creation import diagonal_span
from pullback.ops.families import composite, normalise_axis
from pullback.ops.movement import embed, reshape
from pullback.ops.ranges import positions
from pullback.ops.selection import where

__all__ = ["diag", "diagonal", "tril", "triu"]


def _matrices(name: str, x: Any) -> Any:
    x = as_array(x, name)
    if x._aval.ndim < 2:
        raise ShapeError(f"{name}: takes matrices, got shape {x._aval.shape}.")
    return x


def _triangle_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 3),)),
        Sample((d.real(3, 4),), {"k": 1}),
        Sample((d.real(2, 4, 3),), {"k": -1}),
        Sample((d.real(0, 3),)),
    ]


def _triangle_errors(d: Draw) -> list[Bad]:
    return [Bad((d.real(3),), {}, ShapeError, "matrices")]


def _kept_where(x: Any, k: int, lower: bool) -> Any:
    """The elements on one side of the k-th diagonal, zeros on the other."""
    rows, columns = x._aval.shape[-2:]
    row = reshape(positions(rows, x._aval.device), (rows, 1)) + int(k)
    column = positions(columns, x._aval.device)
    zero = scalar(0, x._aval.dtype, x._aval.device)
    return where(column <= row if lower else column >= row, x, zero)


@composite(
    oracle=lambda x, k=0: np.tril(x, k),
    samples=_triangle_samples,
    errors=_triangle_errors,
    methods=("tril",),
)
def tril(x: Any, /, *, k: int = 0) -> Any:
    """The lower triangle of matrices: zeros above the k-th diagonal.

    >>> pb.tril(pb.tensor([[1, 2], [3, 4]]))
    tensor([[1, 0],
            [3, 4]], int64, cpu)
    """
    return _kept_where(_matrices("tril", x), k, lower=True)


@composite(
    oracle=lambda x, k=0: np.triu(x, k),
    samples=_triangle_samples,
    errors=_triangle_errors,
    methods=("triu",),
)
def triu(x: Any, /, *, k: int = 0) -> Any:
    """The upper triangle of matrices: zeros below the k-th diagonal.

    >>> pb.triu(pb.tensor([[1, 2], [3, 4]]))
    tensor([[1, 2],
            [0, 4]], int64, cpu)
    """
    return _kept_where(_matrices("triu", x), k, lower=False)


@composite(
    oracle=np.diagonal,
    samples=lambda d: [
        Sample((d.real(3, 3),)),
        Sample((d.real(3, 4), 1)),
        Sample((d.real(2, 3, 4), -1), {"axis1": 1, "axis2": 2}),
        Sample((d.real(2, 3, 4), 1, 2, 0)),
        Sample((d.real(2, 2), 5)),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "out of range"),
        Bad((d.real(3, 3), 0, 1, 1), {}, ShapeError, "two axes"),
    ],
    methods=("diagonal",),
)
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonal of the matrices that two axes span, as the last axis of the result.

    >>> pb.diagonal(pb.tensor([[1, 2], [3, 4]]))
    tensor([1, 4], int64, cpu)
    """
    x = as_array(x, "diagonal")
    axes = tuple(normalise_axis("diagonal", a, x._aval.ndim) for a in (axis1, axis2))
    if axes[0] == axes[1]:
        raise ShapeError(f"diagonal: needs two axes, got {axis1} and {axis2}.")
    x = moveaxis(x, axes, (-2, -1))
    *lead, rows, columns = x._aval.shape
    first, count = diagonal_span(rows, columns, int(offset))
    flat = bind(reshape.op, x, shape=(*lead, rows * columns))
    return part(flat, len(lead), first if count else 0, count, columns + 1)


@composite(
    oracle=np.diag,
    samples=lambda d: [
        Sample((d.real(3),)),
        Sample((d.real(2), 1)),
        Sample((d.real(2), -2)),
        Sample((d.real(0), 1)),
        Sample((d.real(3, 4), 1)),
    ],
    errors=lambda d: [Bad((d.real(2, 2, 2),), {}, ShapeError, "1-D or 2-D")],
)
def diag(x: Any, /, k: int = 0) -> Any:
    """The matrix with a 1-D array on its k-th diagonal, or the k-th diagonal of a matrix.

    >>> pb.diag(pb.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]], int64, cpu)
    """
    x = as_array(x, "diag")
    if x._aval.ndim == 2:
        return diagonal(x, k)
    if x._aval.ndim != 1:
        raise ShapeError(f"diag: takes a 1-D or 2-D array, got shape {x._aval.shape}.")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise DTypeError(f"diag: k must be an integer, got {k!r}.")
    size = x._aval.size + abs(int(k))
    first, _ = diagonal_span(size, size, int(k))
    zero = scalar(0, x._aval.dtype, x._aval.device)
    return reshape(embed(zero, x, (size * size,), (first,), (size + 1,)), (size, size))
