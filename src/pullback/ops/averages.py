"""Weighted means, and the distance from the smallest to the largest element."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.dtypes import default_float, promote
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Sample
from pullback.ops.extrema import max, min, ordered
from pullback.ops.families import composite, normalise_axes
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.reductions import sum
from pullback.ops.statistics import mean

__all__ = ["average", "ptp"]


@composite(
    oracle=lambda x, weights=None, axis=None, keepdims=False: np.average(
        x, axis, weights, keepdims=keepdims
    ),
    samples=lambda d: [
        Sample((d.real(2, 3),)),
        Sample((d.real(2, 3), d.positive(2, 3))),
        Sample((d.real(2, 3), d.positive(3)), {"axis": 1}),
        Sample((d.real(2, 3, 4), d.positive(4, 2)), {"axis": (2, 0), "keepdims": True}),
        Sample((d.real(4), d.positive(4)), {"axis": 0, "keepdims": True}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), np.ones(3)), {}, ShapeError, "weights have the shape"),
        Bad((d.real(2, 3), np.ones(2)), {"axis": 1}, ShapeError, "weights have the shape"),
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
    ],
)
def average(x: Any, /, weights: Any = None, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The mean along `axis` (None: all axes) in which elements count by their weights.

    >>> pb.average(pb.tensor([1.0, 2.0]), pb.tensor([3.0, 1.0]))
    tensor(1.25, float32, cpu)

    Weights have the shape of the array, or that of the axes.
    """
    x = as_array(x, "average")
    x = x if x._aval.dtype.is_inexact else astype(x, default_float())
    axes = normalise_axes("average", axis, x._aval.ndim)
    if weights is None:
        return mean(x, axis=axes, keepdims=keepdims)
    weights = as_array(weights, "average")
    shape = x._aval.shape
    named = [axis] if isinstance(axis, (int, np.integer)) else axis
    order = axes if named is None else tuple(int(a) % len(shape) for a in named)
    if weights._aval.shape != shape:
        wanted = tuple(shape[a] for a in order)
        if axis is None or weights._aval.shape != wanted:
            raise ShapeError(
                f"average: weights have the shape {shape} of the array or {wanted} of the axes,"
                f" got {weights._aval.shape}."
            )
        sorted_axes = tuple(sorted(range(len(order)), key=lambda k: order[k]))
        weights = permute_dims(weights, sorted_axes)
        weights = reshape(weights, tuple(n if d in axes else 1 for d, n in enumerate(shape)))
    dtype = promote(x._aval.dtype, weights._aval.dtype)
    x, weights = astype(x, dtype), astype(weights, dtype)
    total = sum(weights, axis=axes, keepdims=keepdims)
    return sum(x * weights, axis=axes, keepdims=keepdims) / total


@composite(
    oracle=lambda x, axis=None, keepdims=False: np.ptp(x, axis=axis, keepdims=keepdims),
    samples=lambda d: [
        Sample((d.distinct(3, 4),)),
        Sample((d.distinct(3, 4),), {"axis": 1}),
        Sample((d.distinct(2, 3, 4),), {"axis": (0, 2), "keepdims": True}),
        Sample((d.integers(5),)),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(0),), {}, ShapeError, "empty"),
        Bad((np.ones(2, complex),), {}, DTypeError, "no order"),
    ],
)
def ptp(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The largest minus the smallest element along `axis` (None: all axes).

    >>> pb.ptp(pb.tensor([3.0, 1.0, 7.0]))
    tensor(6., float32, cpu)
    """
    x = ordered("ptp", x)
    axes = normalise_axes("ptp", axis, x._aval.ndim)
    if 0 in [x._aval.shape[d] for d in axes]:
        raise ShapeError(f"ptp: an empty axis has no elements, got shape {x._aval.shape}.")
    return max(x, axis=axes, keepdims=keepdims) - min(x, axis=axes, keepdims=keepdims)
