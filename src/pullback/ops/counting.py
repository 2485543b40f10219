"""Counts and weights by bin: `bincount` and `histogram`, differentiable in the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import promote
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.creation import constant
from pullback.ops.families import composite
from pullback.ops.index_plans import as_indices, scatter_plan
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.scattering import scatter_along
from pullback.ops.selection import where
from pullback.ops.sorting import searchsorted

__all__ = ["bin_edges", "bincount", "histogram"]


def _counted(name: str, bins: Any, weights: Any, size: int) -> Any:
    """The weights of each bin added up; without weights, how many there are."""
    dev = bins._aval.device
    if weights is None:
        weights = constant(1, bins._aval.shape, dt.int64, dev)
    start = constant(0, (size,), weights._aval.dtype, dev)
    return scatter_along(name, start, bins, weights, 0, "add")


def _weights(name: str, weights: Any, x: Any) -> Any:
    if weights is None:
        return None
    weights = as_array(weights, name, dev=x._aval.device)
    if weights._aval.shape != x._aval.shape:
        raise ShapeError(
            f"{name}: weights must have the shape of the values, {x._aval.shape},"
            f" got {weights._aval.shape}."
        )
    return weights


def _bincount_oracle(
    x: np.ndarray, weights: Any = None, minlength: int = 0, length: int | None = None
) -> np.ndarray:
    size = max(minlength, int(x.max()) + 1 if x.size else 0) if length is None else length
    weights = np.ones(x.shape, np.int64) if weights is None else weights
    out = np.zeros(size, weights.dtype)
    np.add.at(out, x, weights)
    return out


@composite(
    oracle=_bincount_oracle,
    samples=lambda d: [
        Sample((np.array([1, 1, 3, 0, 1]), d.real(5))),
        Sample((np.array([1, 1, 3], np.uint8),)),
        Sample((np.array([1, 1, 3]), d.real(3)), {"minlength": 6}),
        Sample((np.array([1, 1, 3]), d.real(3)), {"length": 4}),
        Sample((np.zeros(0, np.int32),), {"minlength": 2}),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, DTypeError, "integers"),
        Bad((np.array([[1]]),), {}, ShapeError, "one dimension"),
        Bad((np.array([1, 2]), d.real(3)), {}, ShapeError, "weights"),
        Bad((np.array([1, -1]),), {}, IndexOutOfRange, "negative"),
        Bad((np.array([1, 4]),), {"length": 3}, IndexOutOfRange, "out of range"),
    ],
)
def bincount(
    x: Any, /, weights: Any = None, *, minlength: int = 0, length: int | None = None
) -> Any:
    """How often each number from 0 on occurs in `x`, or the sum of its weights.

    >>> pb.bincount(pb.tensor([1, 1, 3]), pb.tensor([0.5, 1.0, 2.0]))
    tensor([0. , 1.5, 0. , 2. ], float32, cpu)

    The result is long enough for the largest number, and has at least `minlength` elements. With
    `length` it has exactly that many, and `x` may be traced; numbers below zero then count from
    the end.
    """
    name = "bincount"
    device = x.indices._aval.device if isinstance(x, scatter_plan) else None
    size = x.size if isinstance(x, scatter_plan) else length
    bins = as_indices(name, x, device, size)
    if bins._aval.ndim != 1:
        raise ShapeError(f"{name}: numbers come in one dimension, got {bins._aval.shape}.")
    if minlength < 0:
        raise ShapeError(f"{name}: minlength must not be negative, got {minlength}.")
    if size is None:
        size = max(minlength, _largest(name, bins) + 1)
    return _counted(name, bins, _weights(name, weights, bins), int(size))


def _largest(name: str, bins: Any) -> int:
    if bins._aval.is_symbolic:
        raise DTypeError(
            f"{name}: the length of the result depends on values, which a traced array does not"
            " have yet. Give a length."
        )
    values = to_numpy(bins)
    if values.size == 0:
        return -1
    if values.min() < 0:
        position = int(np.argmax(values < 0))
        raise IndexOutOfRange(
            f"{name}: numbers must not be negative, got {int(values[position])} at element"
            f" {position}."
        )
    return int(values.max())


# -- histogram -------------------------------------------------------------------------------------


def _histogram_oracle(
    x: np.ndarray,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: bool = False,
) -> tuple:
    values, edges = np.histogram(x, bins, range, density, weights)
    dtype = np.int64 if weights is None and not density else None
    if dtype is None:
        dtype = weights.dtype if weights is not None else np.float32
    return values.astype(dtype), edges.astype(x.dtype if x.dtype.kind == "f" else np.float32)


def _histogram_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind != "f":
        return []
    x = d.distinct(9)
    edges = np.array([-2.0, -0.3, 0.4, 3.0], x.dtype)
    return [
        Sample((x,), {"bins": 4, "range": (-3.1, 3.3)}, order=0),
        Sample((x, edges), order=0),
    ]


@composite(
    oracle=_histogram_oracle,
    samples=_histogram_samples,
    errors=lambda d: [
        Bad((d.real(3),), {"bins": 0}, ShapeError, "at least one bin"),
        Bad((d.real(3), np.zeros((2, 2))), {}, ShapeError, "edges"),
        Bad((d.real(3),), {"weights": np.ones(2)}, ShapeError, "weights"),
        Bad((np.ones(2, complex),), {}, DTypeError, "no order"),
    ],
)
def histogram(
    x: Any,
    /,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    weights: Any = None,
    density: bool = False,
) -> tuple[Any, Any]:
    """How many elements of `x` fall in each bin, or the sum of their weights; and the bins' edges.

    >>> pb.histogram(pb.tensor([0.1, 0.2, 0.7]), bins=2, range=(0.0, 1.0))
    (tensor([2, 1], int64, cpu), tensor([0. , 0.5, 1. ], float32, cpu))

    `bins` is their number, over `range` (that of `x` if there is none), or an array of edges. A bin
    holds its lower edge, the last one both; what lies outside is left out. With `density` the
    integral is 1. The derivative by the weights exists; that by `x` is zero.
    """
    name = "histogram"
    x = as_array(x, name)
    if x._aval.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no order, got {x._aval.dtype.name}.")
    weights = _weights(name, weights, x)
    flat = reshape(x, (-1,))
    flat = flat if flat._aval.dtype.is_float else astype(flat, dt.default_float())
    edges = bin_edges(name, flat, bins, range)
    count = edges._aval.shape[0] - 1
    place = searchsorted(edges, flat, side="right") - 1
    place = where(flat == edges[-1], count - 1, place)
    inside = (flat >= edges[0]) & (flat <= edges[-1])
    place = where(inside, place, count)  # one bin more, for what lies outside
    own = None if weights is None else reshape(weights, (-1,))
    found = _counted(name, place, own, count + 1)[:-1]
    if density:
        dtype = promote(found._aval.dtype, flat._aval.dtype)
        widths = astype(edges[1:] - edges[:-1], dtype)
        found = astype(found, dtype) / (astype(found, dtype).sum() * widths)
    return found, edges


def bin_edges(name: str, x: Any, bins: Any, range: Any) -> Any:
    """The edges of the bins, as a constant array."""
    dtype, dev = x._aval.dtype, x._aval.device
    if not isinstance(bins, (int, np.integer)):
        edges = as_array(bins, name, dev=dev)
        if edges._aval.ndim != 1 or edges._aval.shape[0] < 2:
            raise ShapeError(
                f"{name}: edges are two numbers or more, in one dimension, got {edges._aval.shape}."
            )
        return astype(edges, dtype)
    if bins < 1:
        raise ShapeError(f"{name}: there must be at least one bin, got {bins}.")
    if range is None:
        if x._aval.is_symbolic:
            raise DTypeError(
                f"{name}: the range depends on values, which a traced array does not have yet."
                " Give a range."
            )
        values = to_numpy(x)
        range = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    low, high = float(range[0]), float(range[1])
    if not low <= high:
        raise ShapeError(f"{name}: a range goes from low to high, got {range}.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return from_numpy(np.linspace(low, high, int(bins) + 1).astype(dtype.numpy), dev)
