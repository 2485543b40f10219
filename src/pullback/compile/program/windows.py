"""Convolutions and extrema under windows as kernels of a target: what is launched, on which words.

A target has kernels of five kinds; which of them a primitive takes, and in which order they add,
is decided here for all that have no better plan of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pullback.compile.kernel import order
from pullback.compile.program.convolution import (
    Axis,
    Convolution,
    Pixels,
    Weight,
    reading_axes,
    residue_axes,
    side_of,
    strides_of,
)
from pullback.compile.program.products import ProductKernels
from pullback.compile.program.stages import At
from pullback.compile.program.target import Area, Place
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType

__all__ = [
    "AXIS",
    "CONVOLUTIONS",
    "EXTREMA",
    "WINDOW",
    "ExtremumKernels",
    "WeightSums",
    "WindowKernels",
    "convolution_steps",
    "extremum_steps",
    "outputs_of",
    "window_words",
]

EXTREMA = {"window_max": "largest", "window_argmax": "where"}  # intrinsics, and what they give

S_co = TypeVar("S_co", covariant=True)  # a step of the target

# The numbers that a kernel gets, by name: of the whole, then of each of three axes. `block` are the
# input channels that are added up before the next ones, `apart` whether their sums are joined
# afterwards, `last` whether channels come last in the output.
WINDOW = (  # separated by blanks
    "batch groups outs ins block apart last x_batch x_group x_channel x_out "
    "y_batch y_group y_channel w_group w_out w_in"
)
# Outputs, inputs, the inputs from one output to the next; positions of the kernel, where the first
# reads, the next, the place of its weight, and of the next; strides; a tile's outputs; dilation.
AXIS = "places size step taps offset offset_step place place_step x y tile dilation"


class WeightSums(NamedTuple):
    """How the sums of weights are cut: tiles of pixels, and so many of them in a chunk."""

    tile: tuple[int, int, int]
    chunks: int
    chunk: int
    tiles: int


class ExtremumKernels(Protocol[S_co]):
    """The kernels for extrema that a target has."""

    def zeros(self, dtype: DType, size: int, slot: int) -> Sequence[S_co]:
        """Writes so many zeros."""
        ...

    def largest(
        self, end: str, x: Place, result: Place, outputs: int, words: Sequence[int]
    ) -> S_co:
        """Finds "largest" elements, or "where" they are; the words are those of `window_words`."""
        ...


class WindowKernels(Protocol[S_co]):
    """The kernels for convolutions that a target has."""

    def zeros(self, dtype: DType, size: int, slot: int) -> Sequence[S_co]:
        """Writes so many zeros."""
        ...

    @property
    def product(self) -> ProductKernels[S_co]:
        """Products of matrices."""
        ...

    def forward(self, c: Convolution, weight: Weight, start: int) -> Sequence[S_co]:
        """The output, from its element `start` on."""
        ...

    def sums(self, c: Convolution, weight: Weight, sums: WeightSums, slot: int) -> Sequence[S_co]:
        """The sums of weights of every chunk, one after the other."""
        ...

    def join(
        self, dtype: DType, slot: int, partials: int, chunks: int, size: int
    ) -> Sequence[S_co]:
        """The chunks' sums added up in sequence."""
        ...


def _axis_words(axis: Axis, x: Pixels, y: Pixels, d: int, tile: int, dilation: int) -> list[int]:
    """The numbers of an axis; the positions of a kernel are evenly spaced."""
    (offset, place), *more = axis.taps
    steps = [(b[0] - offset, b[1] - place) for b in more[:1]] or [(0, 0)]
    ((offset_step, place_step),) = steps
    return [
        *(axis.places, x.size[d], axis.step, len(axis.taps)),
        *(offset, offset_step, place, place_step),
        *(x.strides[d], y.strides[d] * axis.every, tile, dilation),
    ]


def window_words(
    c: Convolution,
    weight: Weight,
    tile: Sequence[int] = (1, 1, 1),
    dilation: Sequence[int] = (1, 1, 1),
) -> list[int]:
    """The numbers of WINDOW, then those of AXIS for each of three axes."""
    x, y = c.x, c.y
    x_batch, x_group, x_channel, *_ = x.words()
    y_batch, y_group, y_channel, *_ = y.words()
    out = weight.group if c.depthwise else weight.out
    words = [
        *(x.batch, x.groups, y.channels, c.ins),
        order.CHUNK if c.is_product else max(1, c.order.block),
        *(int(c.is_product), int(y.channel_stride == 1)),
        *(x_batch, x_group, 0 if c.depthwise else x_channel, x_channel if c.depthwise else 0),
        *(y_batch, y_group, y_channel, weight.group, out, weight.into),
    ]
    for d, axis in enumerate(c.axes):
        words += _axis_words(axis, x, y, d, tile[d], dilation[d])
    return words


def outputs_of(c: Convolution) -> int:
    """The outputs of a convolution."""
    return c.x.batch * c.x.groups * c.y.channels * math.prod(a.places for a in c.axes)


def _forward_steps(
    kernels: WindowKernels[S_co], c: Convolution, weight: Weight, area: Area
) -> Sequence[S_co]:
    """The launches that make the output from input and weight."""
    if c.is_product and c.is_direct():
        return _product(kernels, c, weight, area)
    return kernels.forward(
        c, weight, sum(a.first * s for a, s in zip(c.axes, c.y.strides, strict=True))
    )


def _product(
    kernels: WindowKernels[S_co], c: Convolution, weight: Weight, area: Area
) -> Sequence[S_co]:
    """A kernel of one position is a product of matrices."""
    x, y = c.x, c.y
    m, n = y.channels, y.size[2]
    places, pixel = (x.batch_stride, x.channels * x.channel_stride), x.strides[2]
    a = At(weight.slot), (0, weight.group, weight.out, weight.into)
    b = At(x.slot), (*places, x.channel_stride, pixel)
    if y.channel_stride == 1:  # the transpose of it
        m, n = n, m
        a = At(x.slot), (*places, pixel, x.channel_stride)
        b = At(weight.slot), (0, weight.group, weight.into, weight.out)
    sides = (m, n, x.channels)
    return kernels.product(c.dtype, (x.batch, x.groups), sides, a, b, At(y.slot), area)


def _forward(
    kernels: WindowKernels[S_co], operands: Sequence[Place], window: Any, result: Place, area: Area
) -> Sequence[S_co]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = strides_of(w)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return _forward_steps(kernels, Convolution(w.dtype, source, target, axes), weight, area)


def _input_gradient(
    kernels: WindowKernels[S_co], operands: Sequence[Place], window: Any, result: Place, area: Area
) -> Sequence[S_co]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = strides_of(w)
    weight = Weight(slot, source.channels * ws[0], ws[1], ws[0])
    every = residue_axes(window, w.shape, ws, target.size)
    reached = [axes for axes in every if all(axis.taps for axis in axes)]
    steps: list[S_co] = []
    if len(reached) < len(every):
        steps += kernels.zeros(result[1].dtype, result[1].size, result[0])
    for axes in reached:
        c = Convolution(w.dtype, source, target, axes)
        steps += _forward_steps(kernels, c, weight, area)
    return steps


def _weight_gradient(
    kernels: WindowKernels[S_co], operands: Sequence[Place], window: Any, result: Place, area: Area
) -> Sequence[S_co]:
    source, target = (side_of(operand, window) for operand in operands)
    slot, w = result
    ws = dense_strides(w.shape)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    c = Convolution(w.dtype, source, target, axes)
    tile = c.order.weight_tile()
    chunk = c.order.weight_chunk(tile)
    tiles = c.x.batch * order.tile_count(c.order.lines, tile)
    chunks = -(-tiles // chunk)
    sums = WeightSums(tile, chunks, chunk, tiles)
    if chunks == 1:
        return kernels.sums(c, weight, sums, slot)
    partials = area(chunks * w.nbytes)
    made = kernels.sums(c, weight, sums, partials)
    return [*made, *kernels.join(w.dtype, slot, partials, chunks, w.size)]


_STEPS = {"conv": _forward, "conv_dx": _input_gradient, "conv_dw": _weight_gradient}
CONVOLUTIONS = tuple(_STEPS)  # of the intrinsics


def convolution_steps(
    kernels: WindowKernels[S_co],
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
) -> Sequence[S_co]:
    """What a primitive launches; the result is dense."""
    slot, out = result
    if any(av.size == 0 for _, av in operands):
        return kernels.zeros(out.dtype, out.size, slot)
    if out.size == 0:
        return []
    return _STEPS[name](kernels, operands, static["window"], result, area)


def extremum_steps(
    kernels: ExtremumKernels[S_co],
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
) -> Sequence[S_co]:
    """The largest element under each window, or its index, as a convolution of one channel."""
    ((slot, x),), out = operands, result[1]
    if out.size == 0:
        return []
    if x.size == 0:
        return kernels.zeros(out.dtype, out.size, result[0])
    window, kernel = static["window"], static["kernel"]
    window = window._replace(groups=window.channels(x.shape))
    source, target = side_of((slot, x), window), side_of(result, window)
    shape = (1, 1, *kernel)
    axes = reading_axes(window, shape, dense_strides(shape), target.size)
    c = Convolution(x.dtype, source, target, axes)
    dilation = (*(1,) * (3 - len(window.dilation)), *window.dilation)
    words = window_words(c, Weight(0, 0, 0, 0), dilation=dilation)
    return [kernels.largest(EXTREMA[name], (slot, x), result, outputs_of(c), words)]
