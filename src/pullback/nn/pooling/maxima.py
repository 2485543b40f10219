"""Maxima over windows, and their inverse."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating, reported_by
from pullback.nn.convolution import batched, unbatched
from pullback.nn.pooling.windows import numpy_windows, pooled, pooling_errors, pooling_window
from pullback.ops.convolution import Shape, Window, per_axis, window_of
from pullback.ops.creation import zeros
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.scattering import put_along_axis
from pullback.ops.selection import where
from pullback.ops.windows import widest, window_argmax, window_max

__all__ = ["max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d"]

LAST = {"layout": "channels_last"}


def largest(x: Any, kernel: Shape, window: Window, return_indices: bool) -> Any:
    """The maxima of windows, with their indices where these are wanted."""
    wide = widest(x)
    out = astype(bind(window_max.op, wide, kernel=kernel, window=window), x._aval.dtype)
    if not return_indices:
        return out
    index = bind(window_argmax.op, wide, kernel=kernel, window=window)
    return out, astype(index, dt.int64)


def _max_pool(
    axes: int, input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, return_indices: bool, layout: str,
) -> Any:  # fmt: skip
    name = f"max_pool{axes}d"
    x, had_batch, window = pooled(name, axes, input, layout, True)
    kernel, window = pooling_window(
        name, window, window.spatial(x._aval.shape), kernel_size, stride, padding, dilation,
        ceil_mode,
    )  # fmt: skip
    out = largest(x, kernel, window, return_indices)
    if return_indices:
        return tuple(unbatched(a, had_batch) for a in out)
    return unbatched(out, had_batch)


def _max_oracle(
    x: np.ndarray, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, layout: str = "channels_first",
) -> Any:  # fmt: skip
    axes = len(kernel_size)
    axis = -1 if layout == "channels_last" else x.ndim - axes - 1
    x = np.moveaxis(x, axis, 0)
    batch = x.shape[1:2] if x.ndim == axes + 2 else ()
    size = x.shape[1 + len(batch) :]
    windows = list(numpy_windows(size, kernel_size, stride, padding, dilation, ceil_mode))
    counts = tuple(n + 1 for n in windows[-1][0])
    out = np.zeros((x.shape[0], *batch, *counts), x.dtype)
    index = np.zeros(out.shape, np.int64)
    for q, inside, _ in windows:
        for lead in np.ndindex(*x.shape[: 1 + len(batch)]):
            values = [x[(*lead, *i)] for i in inside]
            best = int(np.argmax(values))
            out[(*lead, *q)] = values[best]
            index[(*lead, *q)] = np.ravel_multi_index(inside[best], size)
    out, index = (np.moveaxis(a, 0, axis) for a in (out, index))
    return (out, index) if return_indices else out


def _max_samples(axes: int) -> Any:
    def samples(d: Draw) -> list[Sample]:
        small = {1: (6,), 2: (4, 5), 3: (3, 2, 3)}[axes]
        two = (2,) * axes
        found = [
            Sample((d.distinct(1, 2, *small), two)),
            Sample((d.distinct(2, *small), (3, 2, 2)[:axes], 2, 1)),
            Sample((d.distinct(1, *small, 2), two, 2), {"ceil_mode": True, **LAST}),
            Sample((d.distinct(1, 1, *small), two, 1), {"return_indices": True}),
            Sample((d.distinct(0, 2, *small), two)),
        ]
        if axes < 3:
            found.append(Sample((d.distinct(1, 1, *small), two, 1), {"dilation": 2}))
            found.append(Sample((d.with_nan(1, 1, *small), two), order=0))
        return found

    return samples


def _max_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        z = np.ones((1, 1, *[3] * axes), np.complex64)
        return [*pooling_errors(axes)(d), Bad((z, 2), {}, DTypeError, "got complex64")]

    return errors


@composite(oracle=_max_oracle, samples=_max_samples(1), errors=_max_errors(1), namespace="nn")
def max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The largest element under each window of (batch, channels, length); NaN if there is one.

    `stride` is the kernel's size unless given. With `ceil_mode` a last window may reach over the
    end. With `return_indices` the positions come too. A derivative goes to the first of equals.

    >>> pb.nn.max_pool1d(pb.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    tensor([[[3., 2.]]], float32, cpu)
    """
    return _max_pool(
        1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, layout
    )


@composite(oracle=_max_oracle, samples=_max_samples(2), errors=_max_errors(2), namespace="nn")
def max_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The largest element under each window of (batch, channels, height, width); see `max_pool1d`.

    >>> pb.nn.max_pool2d(pb.tensor([[[[1.0, 3.0], [2.0, 0.0]]]]), 2)
    tensor([[[[3.]]]], float32, cpu)
    """
    return _max_pool(
        2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, layout
    )


@composite(oracle=_max_oracle, samples=_max_samples(3), errors=_max_errors(3), namespace="nn")
def max_pool3d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The largest element under each window of (batch, channels, depth, height, width); see
    `max_pool1d`.

    >>> pb.nn.max_pool3d(pb.ones((1, 1, 2, 2, 2)), 2).shape
    (1, 1, 1, 1, 1)
    """
    return _max_pool(
        3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, layout
    )


# -- back to where the maxima came from ------------------------------------------------------------


def _unpooled_size(
    name: str, counts: Shape, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Shape:
    axes = len(counts)
    kernel = per_axis(name, "kernel_size", kernel_size, axes, 1)
    steps = kernel if stride is None else per_axis(name, "stride", stride, axes, 1)
    pads = per_axis(name, "padding", padding, axes, 0)
    rows = zip(counts, kernel, steps, pads, strict=True)
    usual = tuple((n - 1) * s - 2 * p + k for n, k, s, p in rows)
    if output_size is None:
        size = usual
    else:
        given = tuple(output_size) if isinstance(output_size, (tuple, list)) else output_size
        if isinstance(given, tuple):
            given = given[-axes:]
        size = per_axis(name, "output_size", given, axes, 1)
        for n, want, s in zip(size, usual, steps, strict=True):
            if not want - s < n < want + s:
                raise ShapeError(
                    f"{name}: output_size is within a stride of {usual}, got {output_size}."
                )
    if min(size) < 1:
        raise ShapeError(f"{name}: padding leaves no output, got a size of {size}.")
    return size


def _max_unpool(
    axes: int, input: Any, indices: Any, kernel_size: Any, stride: Any, padding: Any,
    output_size: Any, layout: str,
) -> Any:  # fmt: skip
    name = f"max_unpool{axes}d"
    (x,) = floating(name, input)
    index = as_array(indices, name)
    if not index._aval.dtype.is_integer:
        raise DTypeError(f"{name}: indices must be integers, got {index._aval.dtype.name}.")
    if index._aval.shape != x._aval.shape:
        raise ShapeError(
            f"{name}: takes one index for each element, got shapes {x._aval.shape} and"
            f" {index._aval.shape}."
        )
    window = window_of(name, axes, 1, 0, 1, 1, layout)
    (x, had_batch), (index, _) = (batched(name, a, axes) for a in (x, index))
    shape = x._aval.shape
    counts, channels = window.spatial(shape), window.channels(shape)
    size = _unpooled_size(name, counts, kernel_size, stride, padding, output_size)
    index = where(index < 0, prod(size), index)  # else they would count from the end
    lines = window.shape(shape[0], channels, (prod(counts),))
    blank = zeros(window.shape(shape[0], channels, (prod(size),)), dtype=x._aval.dtype)
    axis = 1 if window.last else 2
    x, index = reshape(x, lines), reshape(index, lines)
    out = reported_by(name, put_along_axis, blank, index, x, axis=axis)
    return unbatched(reshape(out, window.shape(shape[0], channels, size)), had_batch)


def _unpool_oracle(
    x: np.ndarray, indices: np.ndarray, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    axes = len(kernel_size)
    axis = -1 if layout == "channels_last" else x.ndim - axes - 1
    x, indices = (np.moveaxis(a, axis, -axes - 1) for a in (x, indices))
    steps = kernel_size if stride is None else np.broadcast_to(stride, axes)
    rows = zip(x.shape[-axes:], kernel_size, steps, np.broadcast_to(padding, axes), strict=True)
    size = tuple(output_size or [(n - 1) * s - 2 * p + k for n, k, s, p in rows])
    out = np.zeros((*x.shape[:-axes], prod(size)), x.dtype)
    for at in np.ndindex(*x.shape):
        out[(*at[:-axes], indices[at])] = x[at]
    return np.moveaxis(out.reshape(*x.shape[:-axes], *size), -axes - 1, axis)


def _unpool_samples(axes: int) -> Any:
    def samples(d: Draw) -> list[Sample]:
        small = {1: (3,), 2: (2, 2), 3: (2, 1, 2)}[axes]
        two, places, count = (2,) * axes, 2**axes * prod(small), prod(small)
        first = d.rng.permuted(np.tile(np.arange(places), (2, 1)), axis=1)[:, :count]
        first = first.reshape(1, 2, *small)
        wide = tuple(2 * n + 1 for n in small)
        found = [
            Sample((d.real(1, 2, *small), first, two)),
            Sample((d.real(2, *small), first[0], two), {"output_size": wide}),
            Sample((d.real(1, *small, 2), np.moveaxis(first, 1, -1), two), LAST),
            Sample((d.real(0, 2, *small), first[:0], two)),
        ]
        if axes == 1:
            found.append(Sample((d.real(1, 2, 3), first % 4, (2,), 2, 1), order=1))
        return found[: 5 if axes < 3 else 3]

    return samples


def _unpool_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        x = d.real(1, 1, *[2] * axes)
        index = np.arange(2**axes).reshape(x.shape)
        return [
            Bad((x, index + 4**axes, 2), {}, IndexOutOfRange, "out of range"),
            Bad((x, index - 1, 2), {}, IndexOutOfRange, "out of range"),
            Bad((x, index * 1.0, 2), {}, DTypeError, "indices must be integers"),
            Bad((x, index[:, :, :1], 2), {}, ShapeError, "one index for each element"),
            Bad((x, index, 2), {"output_size": (9,) * axes}, ShapeError, "within a stride"),
            Bad((x, index, 1), {"padding": 2}, ShapeError, "leaves no output"),
            Bad((d.real(2), np.arange(2), 2), {}, ShapeError, f"takes {axes + 2} dimensions"),
        ]

    return errors


@composite(
    oracle=_unpool_oracle, samples=_unpool_samples(1), errors=_unpool_errors(1), namespace="nn"
)
def max_unpool1d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """Zeros, and the elements of `input` at the places that `max_pool1d` returned as `indices`.

    Of several elements for one place the last one stays.

    >>> x = pb.tensor([[[5.0, 7.0]]])
    >>> pb.nn.max_unpool1d(x, pb.tensor([[[1, 2]]]), 2)
    tensor([[[0., 5., 7., 0.]]], float32, cpu)
    """
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size, layout)


@composite(
    oracle=_unpool_oracle, samples=_unpool_samples(2), errors=_unpool_errors(2), namespace="nn"
)
def max_unpool2d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """Zeros, and the elements of `input` at the places that `max_pool2d` returned as `indices`.

    >>> pb.nn.max_unpool2d(pb.ones((1, 1, 1, 1)), pb.tensor([[[[2]]]]), 2)
    tensor([[[[0., 0.],
              [1., 0.]]]], float32, cpu)
    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size, layout)


@composite(
    oracle=_unpool_oracle, samples=_unpool_samples(3), errors=_unpool_errors(3), namespace="nn"
)
def max_unpool3d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """Zeros, and the elements of `input` at the places that `max_pool3d` returned as `indices`.

    >>> x, where = pb.ones((1, 1, 1, 1, 1)), pb.zeros((1, 1, 1, 1, 1), dtype="int64")
    >>> pb.nn.max_unpool3d(x, where, 2).shape
    (1, 1, 2, 2, 2)
    """
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size, layout)
