"""Convolution on the CPU: its three primitives as stages of the kernels in `convolution_code`.

`conv` and `conv_dx` are one kernel: an output pixel sums input pixels at fixed offsets from it. For
`conv_dx` the roles of input and output change, and with a stride each residue of the output pixel
has its own set of offsets, which makes it a convolution of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cpu import convolution_code as code
from pullback.runtime.cpu import depthwise_code, gemm_code, native, tile_code
from pullback.runtime.cpu.native import Stage

__all__ = [
    "NAMES",
    "Axis",
    "Plan",
    "Side",
    "conv_program",
    "conv_stages",
    "reading_axes",
    "side_of",
]

_TASK_FLOPS = 2_000_000
_TASK_ELEMENTS = 1 << 14
_PIXELS = 512  # of a tile, at most
_PART_PIXELS = 128  # that a part of the output channels leaves room for
_LEAST_PIXELS = 24
_PANEL_BYTES = 20 << 10  # of a panel for one block of channels: it stays in the first cache
_INPUT_BYTES = 160 << 10  # of a tile's input, and
_OUTPUT_BYTES = 128 << 10  # of its output: both stay in the second cache
_STACK_BYTES = 1 << 20
_DEPTH = 64  # channels of a depthwise tile
_UNITS = 16  # enough to share among threads
_CHUNKS = 16  # in which the sums of weights are made
_CHUNK_BYTES = 32 << 20  # of all of them
_CHUNK_FLOPS = 1 << 25  # of one: its sums have to be cleared and added up

Area = Callable[[int], int]
Three = tuple[int, int, int]


class Side(NamedTuple):
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


def conv_program(name: str, avals: Sequence[Aval], static: dict[str, Any], out: Aval) -> Callable:
    """The function of two buffers for one of the primitives."""
    area = native.Scratch(3)
    places = [(1, avals[0]), (2, avals[1])]
    stages = conv_stages(name, places, static, (0, out), area)
    return native.program(2, out.nbytes, area.sizes, stages, out.size > 1 << 12)


def conv_stages(
    name: str,
    operands: Sequence[tuple[int, Aval]],
    static: dict[str, Any],
    result: tuple[int, Aval],
    area: Area,
) -> list[Stage]:
    """The stages of a primitive; operands and result are (slot, aval), the result is dense."""
    if result[1].size == 0:
        return []
    if any(av.size == 0 for _, av in operands):
        return [Stage(gemm_code.zero_kernel(), result[1].nbytes, 1 << 20, (result[0],))]
    return _BUILDERS[name](operands, static["window"], result, area)


def _three(values: Sequence[int], filler: int) -> Three:
    one, two, three = (*[filler] * (3 - len(values)), *values)
    return one, two, three


def _strides(av: Aval) -> tuple[int, ...]:
    return dense_strides(av.shape) if av.strides is None else av.strides


def side_of(place: tuple[int, Aval], window: Any) -> Side:
    """What lies at a (slot, aval)."""
    slot, av = place
    strides = _strides(av)
    return Side(
        slot,
        av.shape[0],
        window.groups,
        window.channels(av.shape) // window.groups,
        _three(window.spatial(av.shape), 1),
        strides[0],
        window.channels(strides),
        _three(window.spatial(strides), 0),
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
    kernels = zip(_three(shape[2:], 1), _three(strides[2:], 0), strict=True)
    return [
        Axis(0, 1, count, step, tuple((k * dilation - pad, k * along) for k in range(size)))
        for (step, pad, dilation), (size, along), count in zip(
            _moves(window), kernels, counts, strict=True
        )
    ]


def _forward(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = _strides(w)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return Plan(w.dtype, source, target, axes, area).forward(weight)


def _input_gradient(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = _strides(w)
    weight = Weight(slot, source.channels * ws[0], ws[1], ws[0])
    residues = [
        [_transposed(r, moves, taps, along, size) for r in range(min(moves[0], size))]
        for moves, taps, along, size in zip(
            _moves(window), _three(w.shape[2:], 1), _three(ws[2:], 0), target.size, strict=True
        )
    ]
    stages = []
    for axes in product(*residues):
        stages += Plan(w.dtype, source, target, axes, area).forward(weight)
    return stages


def _transposed(first: int, moves: Three, taps: int, along: int, size: int) -> Axis:
    """The outputs of one residue: position k reaches input i from output (i + pad - k d) / s."""
    stride, pad, dilation = moves
    found = [(first + pad - k * dilation, k * along) for k in range(taps)]
    reached = sorted((at // stride, place) for at, place in found if at % stride == 0)
    return Axis(first, stride, -(-(size - first) // stride), 1, tuple(reached))


def _weight_gradient(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source, target = (side_of(operand, window) for operand in operands)
    slot, w = result
    ws = dense_strides(w.shape)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return Plan(w.dtype, source, target, axes, area).weight(weight)


_BUILDERS = {"conv": _forward, "conv_dx": _input_gradient, "conv_dw": _weight_gradient}
NAMES = tuple(_BUILDERS)  # of the intrinsics


def _joined(x: Side, y: Side, axes: Sequence[Axis]) -> tuple[Side, Side, list[Axis]]:
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


class Plan:
    """The stages of one convolution: how it is cut into tiles, blocks of channels and panels."""

    def __init__(self, dtype: DType, x: Side, y: Side, axes: Sequence[Axis], area: Area):
        self.dtype, self.area = dtype, area
        x, y, self.axes = _joined(x, y, axes)
        axes = self.axes
        self.depthwise = x.channels == y.channels == 1
        if self.depthwise:
            x, y = (s._replace(groups=1, channels=s.groups) for s in (x, y))
        self.x, self.y = x, y
        lanes = tile_code.lanes_of(dtype)
        self.vectors = 1 if y.channels <= lanes else 2
        self.width = self.vectors * lanes
        self.panels = -(-y.channels // self.width)
        offsets = [[at for at, _ in axis.taps] for axis in axes]
        self.positions = math.prod(map(len, offsets))
        last = offsets[2]
        following = last == list(range(last[0], last[0] + len(last))) if last else False
        self.merged = len(last) if following and not self.depthwise else 1
        self.ins = 1 if self.depthwise else x.channels  # that an output channel reads
        self.block = self._block()

    def _block(self) -> int:
        """Input channels that are worked on at once."""
        if self.depthwise:
            return _even(self.panels, _DEPTH // self.width) * self.width
        fit = _PANEL_BYTES // (self.width * self.dtype.itemsize * max(1, self.positions))
        if fit >= self.x.channels:
            return self.x.channels
        fit = max(8, fit // 8 * 8)
        return min(self.x.channels, fit)

    def tiles(self, part: int, others: int) -> Three:
        """The extents of a tile of output pixels, with `others` more ways to cut the work."""
        size = self.dtype.itemsize
        counts = [axis.places for axis in self.axes]
        pixels = min(_PIXELS, max(_LEAST_PIXELS, _OUTPUT_BYTES // (part * self.width * size)))
        while True:
            left, tile = pixels, [1, 1, 1]
            for d in (2, 1, 0):
                tile[d] = _even(counts[d], max(1, left))
                left //= tile[d]
            units = others * math.prod(-(-n // t) for n, t in zip(counts, tile, strict=True))
            nbytes = math.prod(self._reach(tile)) * self.block * size
            fits = nbytes <= _INPUT_BYTES and units >= _UNITS
            small = pixels * part * self.width * size <= 2 * _OUTPUT_BYTES
            if fits or pixels == 1 or (pixels <= _LEAST_PIXELS and small):
                return _three(tile, 1)
            pixels //= 2

    def _reach(self, tile: Sequence[int]) -> Three:
        one, two, three = (
            (n - 1) * axis.step + axis.span for n, axis in zip(tile, self.axes, strict=True)
        )
        return one, two, three

    def spare(self, tile: Three) -> int:
        """The slot of local memory for a tile's input that a stack has no room for, or -1.

        All tasks share it, so that there may be only one.
        """
        nbytes = (math.prod(self._reach(tile)) * self.block + 64) * self.dtype.itemsize
        return self.area(nbytes) if nbytes > _STACK_BYTES else -1

    def geometry(self, tile: Three, spare: int) -> tuple[int, ...]:
        """The params that `tile_code` calls tiles."""
        axes = self.axes
        return (
            *(-(-a.places // t) for a, t in zip(axes, tile, strict=True)),
            *tile,
            *(a.places for a in axes),
            *self.x.size,
            *(a.step for a in axes),
            *(a.start for a in axes),
            *self._reach(tile),
            *(self.x.groups, self.x.channels, self.y.channels, self.block, self.panels),
            *(self.positions, self.positions // self.merged, self.merged, spare),
        )

    def offsets(self, tile: Three) -> list[int]:
        """Where the runs of kernel positions begin, in pixels of local memory."""
        _, two, three = self._reach(tile)
        taps = [[at - a.start for at, _ in a.taps] for a in self.axes]
        if self.merged > 1:
            taps[2] = taps[2][:1]
        return [(i * two + j) * three + k for i, j, k in product(*taps)]

    def _kernel_places(self) -> list[int]:
        """Where the array of weights has the kernel positions."""
        return [sum(t) for t in product(*[[place for _, place in a.taps] for a in self.axes])]

    def _flops(self) -> int:
        pixels = self.x.batch * self.x.groups * math.prod(a.places for a in self.axes)
        return 2 * pixels * self.ins * self.y.channels * max(1, self.positions)

    def part(self) -> int:
        """Panels of a unit."""
        if self.depthwise:
            return self.block // self.width
        pixels = self.x.batch * self.x.groups * math.prod(a.places for a in self.axes)
        if pixels < _UNITS * _LEAST_PIXELS:
            return _even(self.panels, max(1, self.panels // _UNITS))
        nbytes = _PART_PIXELS * self.width * self.dtype.itemsize
        return _even(self.panels, max(1, _OUTPUT_BYTES // nbytes))

    def forward(self, weight: Weight) -> list[Stage]:
        """The stages that make the output from input and weight."""
        x, y = self.x, self.y
        part = self.part()
        parts = -(-self.panels // part)
        tile = self.tiles(part, x.batch * x.groups * parts)
        packed = self.area(self._packed_size() * self.dtype.itemsize)
        start = sum(a.first * s for a, s in zip(self.axes, y.strides, strict=True))
        steps = [a.every * s for a, s in zip(self.axes, y.strides, strict=True)]
        y_words = y._replace(strides=_three(steps, 0)).words()
        units = x.batch * x.groups * self.tile_count(tile) * parts
        spare = self.spare(tile)
        params = (
            *(x.slot, packed, y.slot, start, parts, part),
            *self.geometry(tile, spare),
            *(*x.words(), *y_words),
            *self.offsets(tile),
        )
        kernels = depthwise_code if self.depthwise else code
        kernel = kernels.forward_kernel(self.dtype, self.vectors)
        return [*self._pack(weight, packed), Stage(kernel, units, self.grain(units, spare), params)]

    def _packed_size(self) -> int:
        """Elements of all panels."""
        return self.x.groups * self.panels * self.ins * self.positions * self.width

    def tile_count(self, tile: Three) -> int:
        return math.prod(-(-a.places // t) for a, t in zip(self.axes, tile, strict=True))

    def grain(self, units: int, spare: int) -> int:
        """The units of a task."""
        if spare >= 0:
            return units
        return max(1, _TASK_FLOPS * units // self._flops())

    def _panel_words(self, weight: Weight) -> tuple[int, ...]:
        """The params of packing and unpacking that say how the array lies."""
        out = weight.group if self.depthwise else weight.out
        return (
            *(self.panels, self.ins, self.y.channels, self.positions),
            *(min(self.block, self.ins), weight.group, out, weight.into),
        )

    def _pack(self, weight: Weight, packed: int) -> list[Stage]:
        if not self.positions:
            return []
        params = (weight.slot, packed, *self._panel_words(weight), *self._kernel_places())
        units = self.x.groups * self.panels * self.ins
        grain = max(1, _TASK_ELEMENTS // (self.width * self.positions))
        return [Stage(code.pack_kernel(self.dtype, self.vectors), units, grain, params)]

    def weight(self, weight: Weight) -> list[Stage]:
        """The stages that make the weight from input and output."""
        x, y = self.x, self.y
        size = self._packed_size()
        nbytes = size * self.dtype.itemsize
        blocks = -(-x.channels // self.block)
        part = self.block // self.width if self.depthwise else self.panels
        tile = self.tiles(part, x.batch * x.groups * blocks)
        every = x.batch * self.tile_count(tile)
        most = min(_CHUNKS, every, _CHUNK_BYTES // nbytes, self._flops() // _CHUNK_FLOPS)
        chunk = -(-every // max(1, most))
        chunks = -(-every // chunk)
        sums = self.area(chunks * nbytes)
        units, spare = chunks * x.groups * blocks, self.spare(tile)
        params = (
            *(x.slot, y.slot, sums, chunks, chunk, every, blocks, size),
            *self.geometry(tile, spare),
            *(*x.words(), *y.words()),
            *self.offsets(tile),
        )
        kernels = depthwise_code if self.depthwise else code
        kernel = kernels.weight_kernel(self.dtype, self.vectors)
        unpacked = (
            *(sums, weight.slot, *self._panel_words(weight), chunks, size),
            *self._kernel_places(),
        )
        grain = max(1, _TASK_ELEMENTS // (self.ins * self.positions * chunks))
        return [
            Stage(kernel, units, self.grain(units, spare), params),
            Stage(
                code.unpack_kernel(self.dtype, self.vectors),
                x.groups * y.channels,
                grain,
                unpacked,
            ),
        ]


def _even(count: int, most: int) -> int:
    """The largest of equal pieces of `count`, of at most `most`."""
    most = min(count, most)
    return -(-count // -(-count // most))
