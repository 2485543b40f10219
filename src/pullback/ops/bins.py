"""Bins: which one a value falls in, and histograms in several dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float, promote
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import flip
from pullback.ops.counting import bin_edges, bincount
from pullback.ops.extrema import ordered
from pullback.ops.families import composite
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import all as all_
from pullback.ops.requirements import require
from pullback.ops.selection import where
from pullback.ops.sorting import searchsorted

__all__ = ["digitize", "histogram2d", "histogramdd"]


@composite(
    oracle="numpy.digitize",
    samples=lambda d: [
        Sample((d.real(2, 3), np.array([-1.0, 0.0, 1.0]))),
        Sample((np.array([-1.0, 0.0, 0.5, 1.0]), np.array([-1.0, 0.0, 1.0]), True)),
        Sample((d.integers(6), np.array([7, 3, 1]))),
        Sample((d.integers(6), np.array([7, 3, 1])), {"right": True}),
    ],
    errors=lambda d: [
        Bad((d.real(3), np.array([1.0, 3.0, 2.0])), {}, ShapeError, "in order"),
        Bad((d.real(3), np.ones((2, 2))), {}, ShapeError, "1-D"),
        Bad((np.ones(2, complex), np.ones(2)), {}, DTypeError, "no order"),
    ],
    differentiable=False,
)
def digitize(x: Any, bins: Any, /, right: bool = False) -> Any:
    """The number of the bin of each value: i where `bins[i - 1] <= x < bins[i]`.

    >>> pb.digitize(pb.tensor([0.2, 6.4]), pb.tensor([0.0, 1.0, 10.0]))
    tensor([1, 2], int64, cpu)

    With `right` a bin holds its upper edge. Edges may also decrease.
    """
    x, bins = ordered("digitize", x), ordered("digitize", bins)
    if bins._aval.ndim != 1:
        raise ShapeError(f"digitize: edges are 1-D, got shape {bins._aval.shape}.")
    x, bins = same_dtype("digitize", x, bins)
    n = bins._aval.shape[0]
    rising = searchsorted(bins, x, side="left" if right else "right")
    if n < 2:
        return rising
    falling = n - searchsorted(flip(bins), x, side="left" if right else "right")
    rises, falls = all_(bins[1:] >= bins[:-1]), all_(bins[1:] <= bins[:-1])
    fact = "must be in order, rising or falling, got neither."
    rises = require(rises, rises | falls, "digitize", fact, "the edges", "ShapeError")
    return where(rises, rising, falling)


# -- histograms ------------------------------------------------------------------------------------


def _histogramdd_oracle(sample: Any, bins: Any = 10, range: Any = None, weights: Any = None,
                        density: bool = False) -> list[np.ndarray]:  # fmt: skip
    values, edges = np.histogramdd(sample, bins, range, density, weights)
    whole = weights is None and not density
    counts = values.astype(np.int64 if whole else sample.dtype)
    return [counts, *[e.astype(sample.dtype) for e in edges]]


def _points(d: Draw, *shape: int) -> np.ndarray:
    return d.distinct(*shape)


def _dd_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind != "f":
        return []
    span = [(-3.0, 3.0), (-3.0, 3.0)]
    edges = [np.array([-2.0, 0.1, 2.0], d.dtype), np.array([-1.0, 1.0], d.dtype)]
    return [
        Sample((_points(d, 9, 2), 4), {"range": span}, order=0),
        Sample((_points(d, 9, 2), (3, 2)), {"range": span}, order=0),
        Sample((_points(d, 9, 2), edges), order=0),
    ]


def _dd_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {}, ShapeError, "one point in each row"),
        Bad((d.real(3, 2), (2, 2, 2)), {}, ShapeError, "bins for each of 2"),
        Bad((d.real(3, 2), 0), {}, ShapeError, "at least one bin"),
        Bad((d.real(3, 2),), {"weights": np.ones(2)}, ShapeError, "a weight for each"),
        Bad((np.ones((3, 2), complex),), {}, DTypeError, "no order"),
    ]


@composite(oracle=_histogramdd_oracle, samples=_dd_samples, errors=_dd_errors)
def histogramdd(
    sample: Any,
    /,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: bool = False,
) -> tuple[Any, list[Any]]:
    """How many points, one in each row, fall in each bin of a grid; and the edges on each axis.

    >>> points = pb.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.1]])
    >>> pb.histogramdd(points, 2, range=[(0.0, 1.0), (0.0, 1.0)])[0]
    tensor([[0, 2],
            [1, 0]], int64, cpu)

    `bins` and `range` are those of `histogram`, for all axes or one for each. The derivative by the
    weights exists; that by the points is zero.
    """
    return _histogram("histogramdd", sample, bins, range, weights, density)


def _histogram(
    name: str, sample: Any, bins: Any, range: Any, weights: Any, density: bool
) -> tuple[Any, list[Any]]:
    sample = ordered(name, sample)
    if sample._aval.ndim != 2:
        raise ShapeError(f"{name}: takes one point in each row, got shape {sample._aval.shape}.")
    if not sample._aval.dtype.is_float:
        sample = astype(sample, default_float())
    count, axes = sample._aval.shape
    each: Sequence[Any] = [bins] * axes if isinstance(bins, (int, np.integer)) else list(bins)
    if len(each) != axes:
        raise ShapeError(f"{name}: needs bins for each of {axes} axes, got {len(each)}.")
    spans = [None] * axes if range is None else list(range)
    if len(spans) != axes:
        raise ShapeError(f"{name}: needs a range for each of {axes} axes, got {len(spans)}.")
    if weights is not None:
        weights = as_array(weights, name)
        if weights._aval.shape != (count,):
            raise ShapeError(
                f"{name}: needs a weight for each of {count} points, got {weights._aval.shape}."
            )
    place: Any = None
    inside: Any = None
    edges, sizes = [], []
    for axis, (own, span) in enumerate(zip(each, spans, strict=True)):
        x = sample[:, axis]
        ends = bin_edges(name, x, own, span)
        number = ends._aval.shape[0] - 1
        found = searchsorted(ends, x, side="right") - 1
        found = where(x == ends[-1], number - 1, found)
        here = (x >= ends[0]) & (x <= ends[-1])
        place = found if place is None else place * number + found
        inside = here if inside is None else inside & here
        edges.append(ends)
        sizes.append(number)
    total = int(np.prod(sizes))
    place = where(inside, place, total)  # one bin more, for what lies outside
    found = reshape(bincount(place, weights, length=total + 1)[:-1], tuple(sizes))
    if density:
        found = _density(found, edges, sample._aval.dtype)
    return found, edges


def _density(found: Any, edges: list[Any], dtype: Any) -> Any:
    """Counts over their sum and the volumes of the bins."""
    dtype = promote(found._aval.dtype, dtype) if found._aval.dtype.is_inexact else dtype
    found = astype(found, dtype)
    found = found / found.sum()
    for axis, ends in enumerate(edges):
        widths = astype(ends[1:] - ends[:-1], dtype)
        shape = [1] * len(edges)
        shape[axis] = widths._aval.shape[0]
        found = found / reshape(widths, tuple(shape))
    return found


def _two_samples(d: Draw) -> list[Sample]:
    if d.dtype.kind != "f":
        return []
    span = [(-3.0, 3.0), (-3.0, 3.0)]
    return [Sample((_points(d, 9), _points(d, 9), 3), {"range": span}, order=0)]


@composite(
    oracle=lambda x, y, bins=10, range=None: _histogramdd_oracle(np.stack([x, y], 1), bins, range),
    samples=_two_samples,
    errors=lambda d: [
        Bad((d.real(3), d.real(2)), {}, ShapeError, "as many"),
        Bad((np.ones(2, complex), np.ones(2)), {}, DTypeError, "no order"),
    ],
)
def histogram2d(
    x: Any, y: Any, /, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Any, Any, Any]:
    """`histogramdd` of points with coordinates `x` and `y`: the counts, and the edges of both.

    >>> x, y = pb.tensor([0.1, 0.2, 0.7]), pb.tensor([0.9, 0.8, 0.1])
    >>> pb.histogram2d(x, y, 2, range=[(0.0, 1.0), (0.0, 1.0)])[0]
    tensor([[0, 2],
            [1, 0]], int64, cpu)
    """
    name = "histogram2d"
    x, y = (ordered(name, v) for v in same_dtype(name, x, y))
    if x._aval.ndim != 1 or x._aval.shape != y._aval.shape:
        raise ShapeError(
            f"{name}: takes as many x as y, both 1-D, got {x._aval.shape} and {y._aval.shape}."
        )
    sample = reshape(x, (-1, 1)), reshape(y, (-1, 1))
    found, edges = _histogram(name, concat(sample, axis=1), bins, range, weights, density)
    return found, edges[0], edges[1]
