"""Maxima over windows at random places, so that an axis shrinks by any factor."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating
from pullback.nn.convolution import batched, unbatched
from pullback.ops.convolution import Shape, per_axis
from pullback.ops.extrema import argmax
from pullback.ops.families import composite
from pullback.ops.indexing import take_along_axis
from pullback.ops.movement import broadcast_to, reshape
from pullback.ops.parts import astype
from pullback.ops.philox import drawn, key_words, sample_key, uniform_oracle, unit_uniform
from pullback.ops.rounding import floor
from pullback.ops.selection import where

__all__ = ["fractional_max_pool2d", "fractional_max_pool3d"]


def _sizes(
    name: str, axes: int, spatial: Shape, kernel_size: Any, output_size: Any, output_ratio: Any
) -> tuple[Shape, Shape]:
    """The extents of windows and of the result."""
    kernel = per_axis(name, "kernel_size", kernel_size, axes, 1)
    if (output_size is None) == (output_ratio is None):
        raise ShapeError(f"{name}: give output_size or output_ratio, got both or neither.")
    if output_size is not None:
        size = per_axis(name, "output_size", output_size, axes, 1)
    else:
        given = output_ratio if isinstance(output_ratio, (tuple, list)) else [output_ratio] * axes
        if len(given) != axes or not all(0 < r < 1 for r in given):
            raise ShapeError(f"{name}: output_ratio lies between 0 and 1, got {output_ratio!r}.")
        size = tuple(int(n * r) for n, r in zip(spatial, given, strict=True))
    for n, k, m in zip(spatial, kernel, size, strict=True):
        if m < 1 or m + k - 1 > n:
            raise ShapeError(
                f"{name}: {m} windows of {k} do not fit an axis of {n}; there must be at least"
                " 1, and one more element than that for each further window."
            )
    return kernel, size


def _starts(u: Any, n: int, k: int, m: int) -> Any:
    """Where windows begin: (batch, channels, m) for random numbers (batch, channels)."""
    av = u._aval
    u = reshape(u, (*av.shape, 1))
    if m == 1:
        last = from_numpy(np.array([n - k]), av.device)
        return broadcast_to(reshape(last, (1, 1, 1)), (*av.shape, 1))
    alpha = from_numpy(np.asarray((n - k) / (m - 1), av.dtype.numpy), av.device)
    i = from_numpy(np.arange(m).astype(av.dtype.numpy), av.device)
    found = astype(floor((u + i) * alpha) - floor(u * alpha), dt.int64)
    ends = from_numpy(np.arange(m) == m - 1, av.device)
    return where(ends, n - k, found)


def _pool(
    axes: int, input: Any, kernel_size: Any, output_size: Any, output_ratio: Any,
    return_indices: bool, key: Any, random_samples: Any,
) -> Any:  # fmt: skip
    name = f"fractional_max_pool{axes}d"
    (x,) = floating(name, input)
    x, had_batch = batched(name, x, axes)
    batch, channels, *rest = x._aval.shape
    spatial = tuple(rest)
    kernel, size = _sizes(name, axes, spatial, kernel_size, output_size, output_ratio)
    wanted = (batch, channels, axes)
    if random_samples is not None:
        samples = as_array(random_samples, name)
        if samples._aval.shape != wanted:
            raise ShapeError(f"{name}: needs {wanted} samples, got {samples._aval.shape}.")
    elif key is None:
        raise DTypeError(f"{name}: needs a key, got None. Pass key=random.key(seed).")
    else:
        samples = drawn(unit_uniform, *key_words(name, key), wanted, dt.float32)
    # The samples of an image are those of width and height, those of a volume in the axes' order.
    order = range(axes)[::-1] if axes == 2 else range(axes)
    place: Any = None  # in the flat image, of every element of every window
    for d, s in enumerate(order):
        n, k, m = spatial[d], kernel[d], size[d]
        start = _starts(samples[..., s], n, k, m)
        taps = from_numpy(np.arange(k), x._aval.device)
        at = reshape(start, (batch, channels, m, 1)) + taps
        shape = [1] * (2 * axes)
        shape[d], shape[axes + d] = m, k
        at = reshape(at, (batch, channels, *shape))
        place = at if place is None else place * n + at
    count = prod(size)
    place = broadcast_to(place, (batch, channels, *size, *kernel))
    place = reshape(place, (batch, channels, count, prod(kernel)))
    flat = reshape(x, (batch, channels, prod(spatial)))
    values = take_along_axis(flat, reshape(place, (batch, channels, count * prod(kernel))), axis=-1)
    values = reshape(values, place._aval.shape)
    best = argmax(values.detach(), axis=-1, keepdims=True)
    out = reshape(take_along_axis(values, best, axis=-1), (batch, channels, *size))
    if not return_indices:
        return unbatched(out, had_batch)
    index = reshape(take_along_axis(place, best, axis=-1), (batch, channels, *size))
    return unbatched(out, had_batch), unbatched(index, had_batch)


def _oracle(
    x: np.ndarray,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    *,
    key: Any = None,
    _random_samples: Any = None,
    axes: int = 2,
) -> Any:
    if x.ndim == axes + 1:
        found = _oracle(x[None], kernel_size, output_size, output_ratio, return_indices, key=key,
                        _random_samples=_random_samples, axes=axes)  # fmt: skip
        return tuple(f[0] for f in found) if return_indices else found[0]
    kernel = np.broadcast_to(kernel_size, axes)
    if output_size is None:
        ratio = np.broadcast_to(output_ratio, axes)
        size = [int(n * r) for n, r in zip(x.shape[2:], ratio, strict=True)]
    else:
        size = list(np.broadcast_to(output_size, axes))
    u = _random_samples
    if u is None:
        u = uniform_oracle(key, (*x.shape[:2], axes), dtype=dt.float32)
    out = np.zeros((*x.shape[:2], *size), x.dtype)
    index = np.zeros(out.shape, np.int64)
    for place in np.ndindex(*out.shape):
        window = []
        for d in range(axes):
            n, k, m = x.shape[2 + d], int(kernel[d]), size[d]
            own = u[(*place[:2], axes - 1 - d if axes == 2 else d)]
            i = place[2 + d]
            alpha = own.dtype.type((n - k) / (m - 1)) if m > 1 else own.dtype.type(0)
            start = n - k if i == m - 1 else int((i + own) * alpha) - int(own * alpha)
            window.append(range(start, start + k))
        best = None
        for at in np.stack(np.meshgrid(*window, indexing="ij"), -1).reshape(-1, axes):
            value = x[(*place[:2], *at)]
            if best is None or value > best:
                best = value
                index[place] = np.ravel_multi_index(tuple(at), x.shape[2:])
        out[place] = best
    return (out, index) if return_indices else out


def _oracle3(*args: Any, **kwargs: Any) -> Any:
    return _oracle(*args, axes=3, **kwargs)


@composite(
    oracle=_oracle,
    samples=lambda d: [
        Sample((d.distinct(2, 2, 6, 7), 2, (3, 4)), {"key": sample_key(d)}),
        Sample((d.distinct(2, 5, 5), (2, 3)), {"output_ratio": 0.5, "key": sample_key(d)}),
        Sample((d.distinct(1, 2, 5, 6), 2, 1), {"key": sample_key(d)}),
        Sample(
            (d.distinct(1, 2, 7, 6), 2, (4, 3)),
            {"_random_samples": np.array([[[0.1, 0.7], [0.9, 0.4]]], np.float32)},
            order=0,
        ),
    ],
    errors=lambda d: [
        Bad((d.real(1, 1, 4, 4), 2, 2), {}, DTypeError, "needs a key"),
        Bad((d.real(1, 1, 4, 4), 2), {}, ShapeError, "output_size or output_ratio"),
        Bad((d.real(1, 1, 4, 4), 2, 4), {"key": np.zeros(2, np.uint32)}, ShapeError, "do not fit"),
        Bad((d.real(1, 1, 4, 4), 2), {"output_ratio": 1.5}, ShapeError, "between 0 and 1"),
        Bad((d.real(1, 4, 4), 2, 2), {"_random_samples": np.ones(2)}, ShapeError, "samples, got"),
    ],
    namespace="nn",
)
def fractional_max_pool2d(
    input: Any,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    *,
    key: Any = None,
    _random_samples: Any = None,
) -> Any:
    """The largest element under windows that begin at random places, (batch, channels, height,
    width): as many as `output_size`, or `output_ratio` times the size of the image.

    >>> x = pb.reshape(pb.arange(16.0), (1, 4, 4))
    >>> pb.nn.fractional_max_pool2d(x, 2, 2, key=pb.random.key(0)).shape
    (1, 2, 2)

    With `return_indices` the positions come too. A derivative goes to the first of equals.
    """
    return _pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, key, _random_samples
    )


def _volumes(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(1, 2, 4, 5, 4), 2, (2, 3, 2)), {"key": sample_key(d)}),
        Sample((d.distinct(2, 4, 4, 5), 2), {"output_ratio": 0.5, "key": sample_key(d)}),
    ]


@composite(
    oracle=_oracle3,
    samples=_volumes,
    errors=lambda d: [
        Bad((d.real(1, 1, 4, 4, 4), 2, 2), {}, DTypeError, "needs a key"),
        Bad((d.real(1, 1, 4, 4, 4), 2), {}, ShapeError, "output_size or output_ratio"),
    ],
    namespace="nn",
)
def fractional_max_pool3d(
    input: Any,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    *,
    key: Any = None,
    _random_samples: Any = None,
) -> Any:
    """`fractional_max_pool2d` of volumes (batch, channels, depth, height, width).

    >>> x = pb.ones((1, 4, 4, 4))
    >>> pb.nn.fractional_max_pool3d(x, 2, 2, key=pb.random.key(0)).shape
    (1, 2, 2, 2)
    """
    return _pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, key, _random_samples
    )
