"""Convolutions as targets see them: two sides of pixels and channels, axes, and weights.

An output pixel sums input pixels at fixed offsets from it. So does `conv_dx`: the roles of input
and output change, and with a stride each residue of the output pixel has its own set of offsets,
which makes it a convolution of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from pullback.compile.kernel import order
from pullback.compile.program.indexing import indexed_axes
from pullback.compile.program.target import Fault
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType

__all__ = [
    "Axis",
    "Convolution",
    "Pixels",
    "Three",
    "Weight",
    "bad_places",
    "plane_size",
    "reading_axes",
    "residue_axes",
    "side_of",
    "strides_of",
    "triple",
]

Three: TypeAlias = tuple[int, int, int]


class Pixels(NamedTuple):
    """An array of pixels and channels: slot, extents and strides in elements."""

    slot: int
    batch: int
    groups: int
    channels: int  # of a group
    size: Three
    batch_stride: int
    channel_stride: int
    strides: Three

    def words(self) -> tuple[int, ...]:
        channel = self.channel_stride if self.channels > 1 else 0
        return (self.batch_stride, self.channels * self.channel_stride, channel, *self.strides)


class Axis(NamedTuple):
    """One spatial axis: the outputs `first + i * every` read inputs `i * step + offset`, one for
    each of the kernel's positions that `taps` lists as (offset, place in the array of weights).
    """

    first: int
    every: int
    places: int
    step: int
    taps: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.taps[0][0] if self.taps else 0

    @property
    def span(self) -> int:
        return self.taps[-1][0] - self.start + 1 if self.taps else 1

    @property
    def plain(self) -> bool:
        """Whether output i reads input i alone."""
        return self[:2] == (0, 1) and self.step == 1 and [at for at, _ in self.taps] == [0]


class Weight(NamedTuple):
    """Strides of a weight as seen from an output and an input channel."""

    slot: int
    group: int
    out: int
    into: int


def triple(values: Sequence[int], filler: int) -> Three:
    """The values of three axes, with a filler for those that are not there."""
    one, two, last = (*[filler] * (3 - len(values)), *values)
    return one, two, last


def strides_of(av: Aval) -> tuple[int, ...]:
    """The strides of an array; of one that has no memory yet, the dense ones."""
    return dense_strides(av.shape) if av.strides is None else av.strides


def side_of(place: tuple[int, Aval], window: Any) -> Pixels:
    """What lies at a (slot, aval)."""
    slot, av = place
    strides = strides_of(av)
    return Pixels(
        slot,
        av.shape[0],
        window.groups,
        window.channels(av.shape) // window.groups,
        triple(window.spatial(av.shape), 1),
        strides[0],
        window.channels(strides),
        triple(window.spatial(strides), 0),
    )


def _moves(window: Any) -> list[tuple[int, int, int]]:
    """(stride, padding before, dilation) of each of three axes."""
    pads = [before for before, _ in window.padding]
    rows = zip(window.stride, pads, window.dilation, strict=True)
    return [(1, 0, 1)] * (3 - len(pads)) + list(rows)


def reading_axes(
    window: Any, shape: Sequence[int], strides: Sequence[int], counts: Three
) -> list[Axis]:
    """The axes of `conv`, given shape and strides of the weight."""
    kernels = zip(triple(shape[2:], 1), triple(strides[2:], 0), strict=True)
    return [
        Axis(0, 1, count, step, tuple((k * dilation - pad, k * along) for k in range(size)))
        for (step, pad, dilation), (size, along), count in zip(
            _moves(window), kernels, counts, strict=True
        )
    ]


def residue_axes(
    window: Any, shape: Sequence[int], strides: Sequence[int], sizes: Three
) -> list[tuple[Axis, ...]]:
    """The axes of each convolution that `conv_dx` is made of, given shape and strides of the
    weight; a pixel that none of them reaches is 0.
    """
    kernels = zip(triple(shape[2:], 1), triple(strides[2:], 0), strict=True)
    residues = [
        [_transposed(r, moves, taps, along, size) for r in range(min(moves[0], size))]
        for moves, (taps, along), size in zip(_moves(window), kernels, sizes, strict=True)
    ]
    return list(product(*residues))


def _transposed(first: int, moves: Three, taps: int, along: int, size: int) -> Axis:
    """The outputs of one residue: position k reaches input i from output (i + pad - k d) / s."""
    stride, pad, dilation = moves
    found = [(first + pad - k * dilation, k * along) for k in range(taps)]
    reached = sorted((at // stride, place) for at, place in found if at % stride == 0)
    return Axis(first, stride, -(-(size - first) // stride), 1, tuple(reached))


def _joined(x: Pixels, y: Pixels, axes: Sequence[Axis]) -> tuple[Pixels, Pixels, list[Axis]]:
    """The same with plain axes that follow each other as one long axis, the last one."""
    axes = list(axes)
    for _ in range(2):
        one, two, three = axes
        both = [
            s.size[1] == two.places
            and s.size[2] == three.places
            and s.strides[1] == s.size[2] * s.strides[2]
            for s in (x, y)
        ]
        if not (two.plain and three.plain and all(both)) or two.places == 1:
            break
        count = two.places * three.places
        axes = [one._replace(places=1, taps=((0, 0),)), one, three._replace(places=count)]
        x, y = (
            s._replace(size=(1, s.size[0], count), strides=(0, s.strides[0], s.strides[2]))
            for s in (x, y)
        )
    return x, y, axes


class Convolution:
    """One convolution, and what decides the order of its sums."""

    def __init__(self, dtype: DType, x: Pixels, y: Pixels, axes: Sequence[Axis]):
        self.dtype = dtype
        x, y, self.axes = _joined(x, y, axes)
        self.plain = all(axis.plain for axis in self.axes) and x.size[:2] == (1, 1)
        self.depthwise = x.channels == y.channels == 1
        # Whether the output has the order of a product of matrices, whatever the layout.
        self.is_product = not self.depthwise and all(axis.plain for axis in self.axes)
        if self.depthwise:
            x, y = (s._replace(groups=1, channels=s.groups) for s in (x, y))
        self.x, self.y = x, y
        offsets = [[at for at, _ in axis.taps] for axis in self.axes]
        self.positions = math.prod(map(len, offsets))
        last = offsets[2]
        following = last == list(range(last[0], last[0] + len(last))) if last else False
        self.merged = len(last) if following and not self.depthwise else 1
        self.ins = 1 if self.depthwise else x.channels  # that an output channel reads
        one, two, three = (order.Line(a.places, a.step, a.span) for a in self.axes)
        self.order = order.ConvolutionOrder(
            dtype.itemsize,
            x.batch,
            x.groups,
            x.channels,
            y.channels,
            self.positions,
            self.merged,
            (one, two, three),
            self.depthwise,
        )

    def is_direct(self) -> bool:
        """Whether a product of matrices can read input and output where they are."""
        return self.plain and (self.y.channel_stride != 1 or self.x.groups == 1)


def plane_size(name: str, avals: Sequence[Aval], static: Mapping[str, Any]) -> int:
    """How many places an index of "pick" or "place" may name."""
    shape = avals[0].shape
    spatial = shape[1:-1] if static["last"] else shape[2:]
    return math.prod(static["size"] if name == "place" else spatial)


def bad_places(
    name: str, avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What the error code of "pick" or "place" stands for: an index that names no place."""
    index = avals[-1]
    size = plane_size(name, avals, static)
    return [(name, axis) for axis in indexed_axes([size], [index], index.shape, index.ndim)]
