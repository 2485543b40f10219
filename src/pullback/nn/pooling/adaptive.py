"""Pooling to a size that is asked for, and over all of the spatial axes."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import detached
from pullback.nn.convolution import unbatched
from pullback.nn.pooling.maxima import largest
from pullback.nn.pooling.windows import pooled
from pullback.ops.convolution import Shape, Window
from pullback.ops.extrema import argmax
from pullback.ops.families import composite
from pullback.ops.indexing import take
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.products import matmul
from pullback.ops.statistics import mean
from pullback.ops.windows import pick

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "global_avg_pool",
    "global_max_pool",
]

LAST = {"layout": "channels_last"}


def _wanted(name: str, size: Shape, output_size: Any) -> Shape:
    """The sizes asked for; None keeps an axis as it is."""
    axes = len(size)
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    if len(given) == 1:
        given *= axes
    wanted = tuple(n if want is None else want for n, want in zip(size, given, strict=False))
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in wanted)
    if len(given) != axes or not whole or min(wanted) < 1:
        raise ShapeError(
            f"{name}: output_size is an integer from 1 on, or one (or None) for each of {axes}"
            f" axes, got {output_size!r}."
        )
    return tuple(int(n) for n in wanted)


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Begin and end of each window: the floor and the ceil of equal parts."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _averaged(x: Any, axis: int, count: int) -> Any:
    """The means of windows along one axis."""
    shape = x._aval.shape
    before, size, after = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    result = (*shape[:axis], count, *shape[axis + 1 :])
    if size % count == 0:
        parts = reshape(x, (before, count, size // count, after))
        return reshape(mean(parts, axis=2), result)
    matrix = np.zeros((count, size))
    for row, (begin, end) in zip(matrix, _bounds(size, count), strict=True):
        row[begin:end] = 1 / (end - begin)
    weights = from_numpy(matrix.astype(x._aval.dtype.numpy), x._aval.device, copy=False)
    return reshape(matmul(weights, reshape(x, (before, size, after))), result)


def _adaptive_average(axes: int, input: Any, output_size: Any, layout: str) -> Any:
    name = f"adaptive_avg_pool{axes}d"
    x, had_batch, window = pooled(name, axes, input, layout, False)
    size = window.spatial(x._aval.shape)
    for axis, count in enumerate(_wanted(name, size, output_size), 1 if window.last else 2):
        if count != x._aval.shape[axis]:
            x = _averaged(x, axis, count)
    return unbatched(x, had_batch)


def _table(size: Shape, counts: Shape) -> np.ndarray:
    """The indices under each window, in order; shorter windows repeat their last one."""
    lines = []
    for n, count in zip(size, counts, strict=True):
        bounds = _bounds(n, count)
        longest = max(end - begin for begin, end in bounds)
        lines.append([np.minimum(np.arange(b, b + longest), e - 1) for b, e in bounds])
    rows = []
    for parts in product(*lines):
        grid = np.meshgrid(*parts, indexing="ij")
        rows.append(np.ravel_multi_index([g.reshape(-1) for g in grid], size))
    return np.stack(rows)


def _uneven_index(x: Any, window: Window, counts: Shape) -> Any:
    """The index of the largest element of each window, where windows differ in size."""
    shape = x._aval.shape
    channels, device = window.channels(shape), x._aval.device
    table = _table(window.spatial(shape), counts)
    lines = reshape(detached(x), window.shape(shape[0], channels, (prod(window.spatial(shape)),)))
    axis = 1 if window.last else 2
    under = take(lines, from_numpy(table.reshape(-1), device, copy=False), axis)
    under = reshape(under, window.shape(shape[0], channels, table.shape))
    best = argmax(under, axis=axis + 1)
    first = np.arange(table.shape[0]).reshape((-1, 1) if window.last else (-1,)) * table.shape[1]
    at = best + from_numpy(first, device, copy=False)
    index = take(from_numpy(table.reshape(-1), device, copy=False), at)
    return reshape(index, window.shape(shape[0], channels, counts))


def _of_all(x: Any, window: Window, return_indices: bool) -> Any:
    """The largest element of each channel: `largest` with one window over everything."""
    shape = x._aval.shape
    size, channels = window.spatial(shape), window.channels(shape)
    axis = 1 if window.last else 2
    lines = reshape(detached(x), window.shape(shape[0], channels, (prod(size),)))
    index = argmax(lines, axis=axis, keepdims=True)
    index = reshape(index, window.shape(shape[0], channels, (1,) * len(size)))
    out = pick(x, index, layout="channels_last" if window.last else "channels_first")
    return (out, index) if return_indices else out


def _adaptive_maximum(
    axes: int, input: Any, output_size: Any, return_indices: bool, layout: str
) -> Any:
    name = f"adaptive_max_pool{axes}d"
    x, had_batch, window = pooled(name, axes, input, layout, True)
    size = window.spatial(x._aval.shape)
    counts = _wanted(name, size, output_size)
    if prod(counts) == 1:
        out = _of_all(x, window, return_indices)
    elif all(n % count == 0 for n, count in zip(size, counts, strict=True)):
        kernel = tuple(n // count for n, count in zip(size, counts, strict=True))
        out = largest(x, kernel, window._replace(stride=kernel), return_indices)
    else:
        index = _uneven_index(x, window, counts)
        out = pick(x, index, layout=layout)
        out = (out, astype(index, dt.int64)) if return_indices else out
    if return_indices:
        return tuple(unbatched(a, had_batch) for a in out)
    return unbatched(out, had_batch)


# -- oracles and samples ---------------------------------------------------------------------------


def _parts(size: tuple[int, ...], counts: Any) -> Any:
    """Each output, and the input positions that it covers."""
    lines = []
    for n, count in zip(size, counts, strict=True):
        count = n if count is None else count
        bounds = [
            (int(np.floor(i * n / count)), int(np.ceil((i + 1) * n / count))) for i in range(count)
        ]
        lines.append([range(*b) for b in bounds])
    for q in product(*[range(len(line)) for line in lines]):
        yield q, list(product(*[line[i] for line, i in zip(lines, q, strict=True)]))


def _oracle(x: np.ndarray, output_size: Any, layout: str, best: bool) -> Any:
    axes = len(output_size)
    axis = -1 if layout == "channels_last" else x.ndim - axes - 1
    x = np.moveaxis(x, axis, 0)
    size = x.shape[x.ndim - axes :]
    windows = list(_parts(size, output_size))
    lead = x.shape[: x.ndim - axes]
    out = np.zeros((*lead, *[n + 1 for n in windows[-1][0]]), x.dtype)
    index = np.zeros(out.shape, np.int64)
    for q, inside in windows:
        values = np.stack([x[(..., *i)] for i in inside], -1)
        flat = np.asarray([np.ravel_multi_index(i, size) for i in inside])
        if best:
            out[(..., *q)] = values.max(-1)
            index[(..., *q)] = flat[values.argmax(-1)]
        else:
            out[(..., *q)] = values.mean(-1)
    return np.moveaxis(out, 0, axis), np.moveaxis(index, 0, axis)


def _average_oracle(x: np.ndarray, output_size: Any, layout: str = "channels_first") -> np.ndarray:
    return _oracle(x, output_size, layout, False)[0]


def _maximum_oracle(
    x: np.ndarray, output_size: Any, return_indices: bool = False, layout: str = "channels_first"
) -> Any:
    found = _oracle(x, output_size, layout, True)
    return found if return_indices else found[0]


def _samples(axes: int, best: bool) -> Any:
    def samples(d: Draw) -> list[Sample]:
        size = {1: (7,), 2: (5, 4), 3: (3, 2, 3)}[axes]
        draw = d.distinct if best else d.real
        uneven, even = {1: ((3,), (7,)), 2: ((3, 2), (1, 2)), 3: ((2, 1, 2), (1, 1, 3))}[axes]
        found = [
            Sample((draw(1, 2, *size), uneven)),
            Sample((draw(2, *size), even)),
            Sample((draw(1, *size, 2), uneven), LAST),
            Sample((draw(0, 2, *size), uneven)),
        ]
        if axes == 2:
            found.append(Sample((draw(1, 1, *size), (None, 3))))
        if best:
            found += [
                Sample((draw(1, 1, *size), uneven), {"return_indices": True}),
                Sample((draw(1, *size, 1), even), {"return_indices": True, **LAST}),
            ]
        return found

    return samples


def _errors(axes: int, best: bool) -> Any:
    def errors(d: Draw) -> list[Bad]:
        x = d.real(1, 2, *[4] * axes)
        found = [
            Bad((d.real(4), 2), {}, ShapeError, f"takes {axes + 2} dimensions"),
            Bad((x, 0), {}, ShapeError, "an integer from 1 on"),
            Bad((x, (2,) * (axes + 1)), {}, ShapeError, "an integer from 1 on"),
            Bad((d.real(1, 2, *[0] * axes), 2), {}, ShapeError, "must not be empty"),
        ]
        if best:
            z = np.ones((1, 1, *[3] * axes), np.complex64)
            found.append(Bad((z, 2), {}, DTypeError, "got complex64"))
        return found

    return errors


@composite(
    oracle=_average_oracle, samples=_samples(1, False), errors=_errors(1, False), namespace="nn"
)
def adaptive_avg_pool1d(input: Any, output_size: Any, *, layout: str = "channels_first") -> Any:
    """The means of `output_size` windows that cover (batch, channels, length) evenly.

    Window i goes from floor(i n / m) to ceil((i + 1) n / m), so that windows may overlap.

    >>> pb.nn.adaptive_avg_pool1d(pb.tensor([[[1.0, 2.0, 4.0]]]), 2)
    tensor([[[1.5, 3. ]]], float32, cpu)
    """
    return _adaptive_average(1, input, output_size, layout)


@composite(
    oracle=_average_oracle, samples=_samples(2, False), errors=_errors(2, False), namespace="nn"
)
def adaptive_avg_pool2d(input: Any, output_size: Any, *, layout: str = "channels_first") -> Any:
    """The means of windows that cover (batch, channels, height, width); see `adaptive_avg_pool1d`.

    >>> pb.nn.adaptive_avg_pool2d(pb.ones((1, 1, 3, 4)), (2, None)).shape
    (1, 1, 2, 4)
    """
    return _adaptive_average(2, input, output_size, layout)


@composite(
    oracle=_average_oracle, samples=_samples(3, False), errors=_errors(3, False), namespace="nn"
)
def adaptive_avg_pool3d(input: Any, output_size: Any, *, layout: str = "channels_first") -> Any:
    """The means of windows that cover (batch, channels, depth, height, width); see
    `adaptive_avg_pool1d`.

    >>> pb.nn.adaptive_avg_pool3d(pb.ones((1, 1, 3, 4, 5)), 2).shape
    (1, 1, 2, 2, 2)
    """
    return _adaptive_average(3, input, output_size, layout)


@composite(
    oracle=_maximum_oracle, samples=_samples(1, True), errors=_errors(1, True), namespace="nn"
)
def adaptive_max_pool1d(
    input: Any, output_size: Any, return_indices: bool = False, *, layout: str = "channels_first"
) -> Any:
    """The largest elements of the windows of `adaptive_avg_pool1d`, optionally with their indices.

    >>> pb.nn.adaptive_max_pool1d(pb.tensor([[[1.0, 2.0, 4.0]]]), 2)
    tensor([[[2., 4.]]], float32, cpu)
    """
    return _adaptive_maximum(1, input, output_size, return_indices, layout)


@composite(
    oracle=_maximum_oracle, samples=_samples(2, True), errors=_errors(2, True), namespace="nn"
)
def adaptive_max_pool2d(
    input: Any, output_size: Any, return_indices: bool = False, *, layout: str = "channels_first"
) -> Any:
    """The largest elements of the windows of `adaptive_avg_pool2d`, optionally with their indices.

    >>> pb.nn.adaptive_max_pool2d(pb.ones((1, 1, 3, 4)), 2).shape
    (1, 1, 2, 2)
    """
    return _adaptive_maximum(2, input, output_size, return_indices, layout)


@composite(
    oracle=_maximum_oracle, samples=_samples(3, True), errors=_errors(3, True), namespace="nn"
)
def adaptive_max_pool3d(
    input: Any, output_size: Any, return_indices: bool = False, *, layout: str = "channels_first"
) -> Any:
    """The largest elements of the windows of `adaptive_avg_pool3d`, optionally with their indices.

    >>> pb.nn.adaptive_max_pool3d(pb.ones((1, 1, 3, 4, 5)), 2).shape
    (1, 1, 2, 2, 2)
    """
    return _adaptive_maximum(3, input, output_size, return_indices, layout)


# -- global ----------------------------------------------------------------------------------------


def _global(name: str, input: Any, layout: str, order: bool) -> tuple[Any, Window]:
    axes = getattr(input, "ndim", 0) - 2
    if not 1 <= axes <= 3:
        shape = getattr(input, "shape", ())
        raise ShapeError(
            f"{name}: takes a batch, channels and 1 to 3 spatial axes, got shape {shape}."
        )
    x, _, window = pooled(name, axes, input, layout, order)
    return x, window


def _global_samples(best: bool) -> Any:
    def samples(d: Draw) -> list[Sample]:
        draw = d.distinct if best else d.real
        return [
            Sample((draw(2, 2, 5),)),
            Sample((draw(1, 3, 2, 2),), LAST),
            Sample((draw(1, 2, 2, 1, 3),)),
            Sample((draw(0, 2, 3),)),
        ]

    return samples


def _global_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {}, ShapeError, "1 to 3 spatial axes"),
        Bad((d.real(1, 2, 0),), {}, ShapeError, "must not be empty"),
        Bad((d.real(1, 2, 3),), {"layout": "NHWC"}, DTypeError, "layout is one of"),
    ]


def _spatial_axes(x: Any, layout: str) -> tuple[int, ...]:
    return tuple(range(1, x.ndim - 1) if layout == "channels_last" else range(2, x.ndim))


@composite(
    oracle=lambda x, layout="channels_first": np.mean(
        x, axis=_spatial_axes(x, layout), keepdims=True
    ),
    samples=_global_samples(False),
    errors=_global_errors,
    namespace="nn",
)
def global_avg_pool(input: Any, *, layout: str = "channels_first") -> Any:
    """The mean of each channel over all spatial axes, which stay with size 1.

    >>> pb.nn.global_avg_pool(pb.tensor([[[1.0, 2.0, 6.0]]]))
    tensor([[[3.]]], float32, cpu)
    """
    x, window = _global("global_avg_pool", input, layout, False)
    axes = range(1, x._aval.ndim - 1) if window.last else range(2, x._aval.ndim)
    return mean(x, axis=tuple(axes), keepdims=True)


@composite(
    oracle=lambda x, layout="channels_first": np.max(
        x, axis=_spatial_axes(x, layout), keepdims=True
    ),
    samples=_global_samples(True),
    errors=_global_errors,
    namespace="nn",
)
def global_max_pool(input: Any, *, layout: str = "channels_first") -> Any:
    """The largest element of each channel over all spatial axes, which stay with size 1.

    The derivative goes to the first of equals, as in the other maxima over windows.

    >>> pb.nn.global_max_pool(pb.tensor([[[1.0, 2.0, 6.0]]]))
    tensor([[[6.]]], float32, cpu)
    """
    x, window = _global("global_max_pool", input, layout, True)
    return _of_all(x, window, False)
