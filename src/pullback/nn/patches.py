"""The pieces of images that a kernel sees: cut out, added up again, and sampled at offsets."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy, scalar
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating, inexact
from pullback.nn.convolution import batched, unbatched
from pullback.ops.arrangement import stack
from pullback.ops.convolution import Shape, Window, check_extents, per_axis, window_of
from pullback.ops.families import composite
from pullback.ops.indexing import take
from pullback.ops.movement import cut, embed, permute_dims, reshape
from pullback.ops.padding import pad
from pullback.ops.parts import astype
from pullback.ops.products import einsum
from pullback.ops.rounding import floor
from pullback.ops.selection import where

__all__ = ["deform_conv2d", "fold", "unfold"]

LAST = {"layout": "channels_last"}


def _channels_first(x: Any, window: Window) -> Any:
    return permute_dims(x, (0, x._aval.ndim - 1, *range(1, x._aval.ndim - 1))) if window.last else x


def _channels_back(x: Any, window: Window) -> Any:
    return permute_dims(x, (0, *range(2, x._aval.ndim), 1)) if window.last else x


def _window(
    name: str, kernel_size: Any, dilation: Any, padding: Any, stride: Any, layout: str
) -> tuple[Shape, Window]:
    kernel = per_axis(name, "kernel_size", kernel_size, 2, 1)
    pads = per_axis(name, "padding", padding, 2, 0)
    return kernel, window_of(name, 2, stride, pads, dilation, 1, layout)


def _starts(kernel: Shape, window: Window) -> list[Shape]:
    """Where each kernel position begins in the padded image."""
    spans = [range(0, k * d, d) for k, d in zip(kernel, window.dilation, strict=True)]
    return list(product(*spans))


def _unfold_oracle(
    x: np.ndarray, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1,
    layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    if x.ndim == 3:
        return _unfold_oracle(x[None], kernel_size, dilation, padding, stride, layout)[0]
    x = np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        np.broadcast_to(v, 2) for v in (kernel_size, dilation, padding, stride)
    )
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    columns = []
    for i in range(0, x.shape[2] - dh * (kh - 1), sh):
        for j in range(0, x.shape[3] - dw * (kw - 1), sw):
            piece = x[:, :, i : i + dh * (kh - 1) + 1 : dh, j : j + dw * (kw - 1) + 1 : dw]
            columns.append(piece.reshape(x.shape[0], x.shape[1] * kh * kw))
    out = np.stack(columns, -1)
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


def _fold_oracle(
    y: np.ndarray, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    if y.ndim == 2:
        return _fold_oracle(y[None], output_size, kernel_size, dilation, padding, stride, layout)[0]
    y = np.moveaxis(y, -1, 1) if layout == "channels_last" else y
    (h, w), (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        np.broadcast_to(v, 2) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    out = np.zeros((y.shape[0], y.shape[1] // (kh * kw), h + 2 * ph, w + 2 * pw), y.dtype)
    column = 0
    for i in range(0, out.shape[2] - dh * (kh - 1), sh):
        for j in range(0, out.shape[3] - dw * (kw - 1), sw):
            piece = y[..., column].reshape(*out.shape[:2], kh, kw)
            out[:, :, i : i + dh * (kh - 1) + 1 : dh, j : j + dw * (kw - 1) + 1 : dw] += piece
            column += 1
    out = out[:, :, ph : ph + h, pw : pw + w]
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


@composite(
    oracle=_unfold_oracle,
    samples=lambda d: [
        Sample((d.real(1, 2, 3, 4), 2)),
        Sample((d.real(2, 4, 5), (2, 3)), {"dilation": (2, 1), "padding": 1, "stride": (2, 1)}),
        Sample((d.real(1, 3, 3, 2), (2, 1)), {"padding": (1, 0), **LAST}),
        Sample((d.real(0, 2, 3, 4), 2)),
    ],
    errors=lambda d: [
        Bad((d.real(3, 4), 2), {}, ShapeError, "takes 4 dimensions"),
        Bad((d.real(1, 2, 3, 4), 4), {}, ShapeError, "larger than the padded input"),
        Bad((d.real(1, 2, 3, 4), 2), {"stride": 0}, ShapeError, "stride must be at least 1"),
        Bad((d.real(1, 2, 0, 4), 2), {"padding": 2}, ShapeError, "must not be empty"),
    ],
    namespace="nn",
)
def unfold(
    input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1, *,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The elements under each place of a kernel as columns: (batch, channels x kernel, places).

    With `layout="channels_last"` input and output have channels last: (batch, places, channels x
    kernel).

    >>> pb.nn.unfold(pb.tensor([[[[1.0, 2.0, 3.0]]]]), (1, 2))
    tensor([[[1., 2.],
             [2., 3.]]], float32, cpu)
    """
    (input,) = inexact("unfold", input)
    x, had_batch = batched("unfold", input, 2)
    kernel, window = _window("unfold", kernel_size, dilation, padding, stride, layout)
    counts = check_extents("unfold", window, window.spatial(x._aval.shape), kernel)
    x = pad(_channels_first(x, window), ((0, 0), (0, 0), *window.padding))
    batch, channels = x._aval.shape[:2]
    steps = (1, 1, *window.stride)
    shape = (batch, channels, *counts)
    taps = [cut(x, (0, 0, *start), shape, steps) for start in _starts(kernel, window)]
    columns = reshape(stack(taps, axis=2), (batch, channels * prod(kernel), prod(counts)))
    return unbatched(_channels_back(columns, window), had_batch)


def _fold_errors(d: Draw) -> list[Bad]:
    y = d.real(1, 8, 6)
    return [
        Bad((d.real(2), (3, 4), 2), {}, ShapeError, "takes 3 dimensions"),
        Bad((y, (3, 3), 2), {}, ShapeError, "has (2, 2) places"),
        Bad((d.real(1, 7, 6), (3, 4), 2), {}, ShapeError, "4 elements of the kernel"),
        Bad((y, (3, 4), 5), {}, ShapeError, "larger than the padded input"),
        Bad((y, 0, 2), {}, ShapeError, "output_size must be at least 1"),
    ]


@composite(
    oracle=_fold_oracle,
    samples=lambda d: [
        Sample((d.real(1, 8, 6), (3, 4), 2)),
        Sample(
            (d.real(6, 10), (4, 5), (2, 3)),
            {"dilation": (2, 1), "padding": 1, "stride": (2, 1)},
        ),
        Sample((d.real(1, 12, 4), (3, 3), (2, 1)), {"padding": (1, 0), **LAST}),
        Sample((d.real(0, 8, 6), (3, 4), 2)),
    ],
    errors=_fold_errors,
    namespace="nn",
)
def fold(
    input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The transpose of `unfold`: columns added up in an image of `output_size`.

    >>> pb.nn.fold(pb.ones((1, 2, 2)), (1, 3), (1, 2))
    tensor([[[[1., 2., 1.]]]], float32, cpu)
    """
    (input,) = inexact("fold", input)
    y, had_batch = batched("fold", input, 1)
    size = per_axis("fold", "output_size", output_size, 2, 1)
    kernel, window = _window("fold", kernel_size, dilation, padding, stride, layout)
    counts = check_extents("fold", window, size, kernel)
    batch, rows, places = _channels_first(y, window)._aval.shape
    if places != prod(counts):
        raise ShapeError(
            f"fold: a kernel of {kernel} has {counts} places on an image of {size}, got {places}"
            " columns."
        )
    if rows % prod(kernel):
        raise ShapeError(
            f"fold: columns have {prod(kernel)} elements of the kernel for each channel, got"
            f" {rows}."
        )
    channels = rows // prod(kernel)
    parts = reshape(_channels_first(y, window), (batch, channels, prod(kernel), *counts))
    padded = tuple(n + sum(p) for n, p in zip(size, window.padding, strict=True))
    zero = scalar(0, y._aval.dtype, y._aval.device)
    total = None
    for k, start in enumerate(_starts(kernel, window)):
        image = bind(
            embed.op, zero, parts[:, :, k], shape=(batch, channels, *padded),
            starts=(0, 0, *start), steps=(1, 1, *window.stride),
        )  # fmt: skip
        total = image if total is None else total + image
    corner = (0, 0, *[before for before, _ in window.padding])
    image = cut(total, corner, (batch, channels, *size), (1, 1, 1, 1))
    return unbatched(_channels_back(image, window), had_batch)


# -- deformable convolution ------------------------------------------------------------------------


def _bilinear(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """The value of all channels at a point; zero outside."""
    total = np.zeros(image.shape[0], image.dtype)
    for i in (int(np.floor(y)), int(np.floor(y)) + 1):
        for j in (int(np.floor(x)), int(np.floor(x)) + 1):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                total += image[:, i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


def _deform_oracle(
    image: np.ndarray, offset: np.ndarray, weight: np.ndarray, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, mask: Any = None, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    if layout == "channels_last":
        image, offset = (np.moveaxis(a, -1, 1) for a in (image, offset))
        mask = None if mask is None else np.moveaxis(mask, -1, 1)
    s, p, d = (np.broadcast_to(v, 2) for v in (stride, padding, dilation))
    n, c = image.shape[:2]
    outs, ins, kh, kw = weight.shape
    parts = offset.shape[1] // (2 * kh * kw)
    oh, ow = offset.shape[2:]
    out = np.zeros((n, outs, oh, ow), np.result_type(image, weight))
    columns = np.zeros((n, c, kh, kw, oh, ow), image.dtype)
    for b, g, i, j, y, x in product(*map(range, (n, parts, kh, kw, oh, ow))):
        k = (g * kh + i) * kw + j
        at = (y * s[0] - p[0] + i * d[0] + offset[b, 2 * k, y, x],
              x * s[1] - p[1] + j * d[1] + offset[b, 2 * k + 1, y, x])  # fmt: skip
        own = slice(g * c // parts, (g + 1) * c // parts)
        value = _bilinear(image[b, own], *at)
        columns[b, own, i, j, y, x] = value if mask is None else value * mask[b, k, y, x]
    groups = c // ins
    for o in range(outs):
        first = o // (outs // groups) * ins
        out[:, o] = np.einsum("ncijyx,cij->nyx", columns[:, first : first + ins], weight[o])
    if bias is not None:
        out = out + bias.reshape(-1, 1, 1)
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


def _deform_samples(d: Draw) -> list[Sample]:
    def offsets(*shape: int) -> np.ndarray:
        """Away from whole numbers, where the second derivative does not exist."""
        whole = d.rng.integers(-1, 2, shape)
        return (whole + d.rng.uniform(0.2, 0.8, shape)).astype(d.dtype)

    x, w = d.real(1, 2, 3, 4), d.real(2, 2, 2, 2)
    options = {"stride": (1, 2), "padding": 1, "dilation": (2, 1)}
    return [
        Sample((x, offsets(1, 8, 2, 3), w, d.real(2)), {"mask": d.positive(1, 4, 2, 3)}),
        Sample((x, offsets(1, 16, 3, 3), d.real(2, 1, 2, 2)), options),
        Sample(
            (d.real(1, 3, 4, 2), offsets(1, 2, 3, 16), w),
            {"mask": d.positive(1, 2, 3, 8), **LAST},
        ),
        Sample((d.real(0, 2, 3, 4), offsets(0, 8, 2, 3), w)),
        Sample((d.real(1, 2, 3, 3), np.full((1, 8, 2, 2), 9.5), w), order=1),
    ]


def _deform_errors(d: Draw) -> list[Bad]:
    x, offset, w = d.real(1, 2, 3, 4), d.real(1, 8, 2, 3), d.real(2, 2, 2, 2)
    return [
        Bad((d.real(2, 3, 4), offset, w), {}, ShapeError, "takes 4 dimensions"),
        Bad((x, offset, d.real(2, 2, 2)), {}, ShapeError, "takes 4 dimensions"),
        Bad((x, d.real(1, 6, 2, 3), w), {}, ShapeError, "2 x 4 numbers for each group"),
        Bad((x, d.real(1, 8, 2, 2), w), {}, ShapeError, "places (2, 3)"),
        Bad((x, d.real(1, 24, 2, 3), w), {}, ShapeError, "offset groups must divide"),
        Bad((x, offset, w), {"mask": d.real(1, 8, 2, 3)}, ShapeError, "half as many channels"),
        Bad((x, offset, d.real(2, 3, 2, 2)), {}, ShapeError, "does not divide the channels"),
        Bad((x, offset, w, d.real(3)), {}, ShapeError, "bias has one element"),
        Bad((x, offset, w), {"stride": 0}, ShapeError, "stride must be at least 1"),
        Bad((x + 0j, offset, w), {}, DTypeError, "expected a floating dtype"),
    ]


@composite(oracle=_deform_oracle, samples=_deform_samples, errors=_deform_errors, namespace="nn")
def deform_conv2d(
    input: Any, offset: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, mask: Any = None, *, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """A 2-D convolution whose kernel positions are moved by `offset` at every place.

    `offset` has (y, x) for each kernel position and group of channels that shares it: (batch,
    groups x kernel x 2, *places); `mask` scales the samples: (batch, groups x kernel, *places).
    Between pixels values are bilinear; outside of the image they are zero.

    >>> x, w = pb.tensor([[[[1.0, 2.0, 4.0]]]]), pb.ones((1, 1, 1, 1))
    >>> half = pb.tensor([[[[0.0, 0.0, 0.0]], [[0.5, 0.5, 0.5]]]])
    >>> pb.nn.deform_conv2d(x, half, w)
    tensor([[[[1.5, 3. , 2. ]]]], float32, cpu)
    """
    name = "deform_conv2d"
    input, offset, weight, bias, mask = floating(name, input, offset, weight, bias, mask)
    for a in (input, offset, weight, mask):
        if a is not None and a._aval.ndim != 4:
            raise ShapeError(f"{name}: takes 4 dimensions, got shape {a._aval.shape}.")
    pads = per_axis(name, "padding", padding, 2, 0)
    window = window_of(name, 2, stride, pads, dilation, 1, layout)
    x, offset = _channels_first(input, window), _channels_first(offset, window)
    mask = None if mask is None else _channels_first(mask, window)
    counts = _check_deformed(name, x, offset, weight, bias, mask, window)
    columns = _sampled(x, offset, mask, weight._aval.shape[2:], window, counts)
    outs, ins = weight._aval.shape[:2]
    batch, channels = x._aval.shape[:2]
    groups, kernel = channels // ins, prod(weight._aval.shape[2:])
    columns = reshape(columns, (batch, prod(counts), groups, ins * kernel))
    out = einsum("npgk,gok->ngop", columns, reshape(weight, (groups, outs // groups, ins * kernel)))
    out = reshape(out, (batch, outs, *counts))
    out = out if bias is None else out + reshape(bias, (outs, 1, 1))
    return _channels_back(out, window)


def _check_deformed(
    name: str, x: Any, offset: Any, weight: Any, bias: Any, mask: Any, window: Window
) -> Shape:
    """The places of the kernel, if the shapes fit."""
    outs, ins, *kernel = weight._aval.shape
    batch, channels, *size = x._aval.shape
    counts = check_extents(name, window, tuple(size), tuple(kernel))
    numbers, rows = prod(kernel), offset._aval.shape[1]
    if rows == 0 or rows % (2 * numbers):
        raise ShapeError(f"{name}: offset has 2 x {numbers} numbers for each group, got {rows}.")
    parts = rows // (2 * numbers)
    if channels % parts:
        raise ShapeError(
            f"{name}: offset groups must divide the channels, got {parts} for {channels}."
        )
    if offset._aval.shape != (batch, rows, *counts):
        raise ShapeError(
            f"{name}: offset needs a batch of {batch} and places {counts}, got shape"
            f" {offset._aval.shape}."
        )
    if mask is not None and mask._aval.shape != (batch, rows // 2, *counts):
        raise ShapeError(
            f"{name}: mask has half as many channels as offset, {rows // 2}, and the same other"
            f" axes, got shape {mask._aval.shape}."
        )
    if ins == 0 or channels % ins or outs % (channels // ins):
        raise ShapeError(
            f"{name}: a weight of shape {weight._aval.shape} does not divide the channels into"
            f" groups, got {channels} channels."
        )
    if bias is not None and bias._aval.shape != (outs,):
        raise ShapeError(
            f"{name}: bias has one element for each of {outs} output channels, got shape"
            f" {bias._aval.shape}."
        )
    return counts


def _points(offset: Any, axis: int, kernel: Shape, window: Window, counts: Shape) -> Any:
    """The coordinate along one axis of every sample: (batch, groups, kernel, *places)."""
    stride, pads, dilation = window.stride, window.padding, window.dilation
    taps = np.indices(kernel)[axis].reshape(-1, 1, 1) * dilation[axis]
    places = np.indices(counts)[axis] * stride[axis] - pads[axis][0]
    base = (taps + places).astype(offset._aval.dtype.numpy)
    return offset[:, :, :, axis] + from_numpy(base, offset._aval.device, copy=False)


def _sampled(x: Any, offset: Any, mask: Any, kernel: Shape, window: Window, counts: Shape) -> Any:
    """The samples of every place: (batch, places, channels, kernel)."""
    batch, channels, *size = x._aval.shape
    numbers = prod(kernel)
    parts = offset._aval.shape[1] // (2 * numbers)
    offset = reshape(offset, (batch, parts, numbers, 2, *counts))
    corners = [
        _corners(_points(offset, axis, kernel, window, counts), n) for axis, n in enumerate(size)
    ]
    depth = channels // parts
    rows = reshape(x, (batch * parts, depth, prod(size)))
    rows = reshape(permute_dims(rows, (0, 2, 1)), (batch * parts * prod(size), depth))
    first = np.arange(batch * parts).reshape(batch, parts, 1, 1, 1) * prod(size)
    start = from_numpy(first, x._aval.device, copy=False)
    total = None
    for (i, u), (j, v) in product(*corners):
        index = start + i * size[1] + j
        factor = u * v
        factor = factor if mask is None else factor * reshape(mask, factor._aval.shape)
        part = take(rows, index, 0) * reshape(factor, (*factor._aval.shape, 1))
        total = part if total is None else total + part
    # (batch, parts, kernel, y, x, depth) -> (batch, y, x, parts, depth, kernel)
    total = permute_dims(total, (0, 3, 4, 1, 5, 2))
    return reshape(total, (batch, prod(counts), channels, numbers))


def _corners(at: Any, size: int) -> list[tuple[Any, Any]]:
    """The two pixels beside each coordinate, and how much each counts: nothing outside."""
    inside = (at > -1) & (at < size)
    at = where(inside, at, 0)
    low = floor(at)
    share = at - low
    found = []
    for pixel, weight in ((low, 1 - share), (low + 1, share)):
        valid = inside & (pixel >= 0) & (pixel < size)
        found.append((astype(where(valid, pixel, 0), dt.int64), where(valid, weight, 0)))
    return found
