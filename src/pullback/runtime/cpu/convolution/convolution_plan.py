"""How a convolution is cut into tiles, blocks of channels and panels, and its stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

from pullback.compile.kernel import order
from pullback.compile.program.convolution import (
    Axis,
    Convolution,
    Pixels,
    Three,
    Weight,
    triple,
)
from pullback.core.dtypes import DType
from pullback.runtime.cpu.convolution import convolution_code as code
from pullback.runtime.cpu.convolution import depthwise_code, panel_code
from pullback.runtime.cpu.convolution.tile_code import by_axis
from pullback.runtime.cpu.gemm import copy_code, matmul
from pullback.runtime.cpu.llvm import elements as element_code
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.native import Stage

__all__ = ["Area", "TiledConvolution"]
__tuning__ = (
    "_TASK_FLOPS", "_TASK_ELEMENTS", "_PIXELS", "_PART_PIXELS", "_LEAST_PIXELS", "_INPUT_BYTES",
    "_OUTPUT_BYTES", "_FRESH_BYTES", "_SPAN_BYTES", "_UNITS", "_SUM_BYTES", "_PRODUCT_PIXELS",
)  # fmt: skip

_TASK_FLOPS = 2_000_000  # 20 to 50 us: what a task needs to be worth handing over
_TASK_ELEMENTS = 1 << 14  # of weights that a task packs, which takes some microseconds
_PIXELS = 512  # of a tile of the output, at most
_PART_PIXELS = 128  # that a part of the output channels leaves room for
_LEAST_PIXELS = 24  # of a tile: with fewer, packed weights are read too often
_INPUT_BYTES = 160 << 10  # of the input of a tile, and
_OUTPUT_BYTES = 128 << 10  # of its output: both stay in the second cache
_STACK_BYTES = 1 << 20  # of local memory: a thread has a stack of 8 MB
_FRESH_BYTES = 64 << 10  # of a block that a unit packs for itself
_SPAN_BYTES = 32 << 10  # of weights that are turned at once
_UNITS = 16  # of work at least, so that a few threads share it evenly
_SUM_BYTES = 160 << 10  # of the sums of a unit
_PRODUCT_PIXELS = 100  # of an image, from which on a product of matrices is sooner than tiles

Area = Callable[[int], int]


class TiledConvolution(Convolution):
    """The stages of one convolution: how it is cut into tiles, blocks of channels and panels."""

    def __init__(self, dtype: DType, x: Pixels, y: Pixels, axes: Sequence[Axis], area: Area):
        super().__init__(dtype, x, y, axes)
        self.area = area
        lanes = element_code.lanes_of(dtype)
        self.vectors = 1 if self.y.channels <= lanes else 2
        self.width = self.vectors * lanes
        self.panels = -(-self.y.channels // self.width)
        self.block = self.order.block
        # Pixels that are a multiple of a cache's size apart would share few of its places.
        self.gap = 0 if self.depthwise or self.merged > 1 else lanes

    def tiles(self, part: int, others: int) -> Three:
        """The extents of a tile of output pixels, with `others` more ways to cut the work."""
        size = self.dtype.itemsize
        output, pixel = part * self.width * size, (self.block + self.gap) * size
        limits = (_LEAST_PIXELS, _OUTPUT_BYTES, _INPUT_BYTES, _UNITS)
        return order.tile_of(self.order.lines, output, pixel, others, _PIXELS, limits)

    def _reach(self, tile: Three) -> Three:
        return order.reach(self.order.lines, tile)

    def spare(self, tile: Three) -> int:
        """The slot of local memory for a tile's input that a stack has no room for, or -1.

        All tasks share it, so that there may be only one.
        """
        elements = math.prod(self._reach(tile)) * (self.block + self.gap)
        nbytes = (elements + 64) * self.dtype.itemsize
        return self.area(nbytes) if nbytes > _STACK_BYTES else -1

    def pixels(self, tile: Three, spare: int, y_words: Sequence[int] = ()) -> dict[str, int]:
        """The params `tile_code.PIXELS`; `y_words` are strides of y in place of its own."""
        axes, x, y = self.axes, self.x, self.y
        return {
            **by_axis("tiles", [-(-a.places // t) for a, t in zip(axes, tile, strict=True)]),
            **by_axis("tile", tile),
            **by_axis("places", [a.places for a in axes]),
            **by_axis("size", x.size),
            **by_axis("step", [a.step for a in axes]),
            **by_axis("start", [a.start for a in axes]),
            **by_axis("reach", self._reach(tile)),
            **{"groups": x.groups, "ins": x.channels, "outs": y.channels, "block": self.block},
            **{"panels": self.panels, "positions": self.positions},
            **{"outer": self.positions // self.merged, "run": self.merged},
            **{"gap": self.gap, "spare": spare},
            **_strides("x", x.words()),
            **_strides("y", y_words or y.words()),
        }

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

    def part(self) -> int:
        """Panels of a unit."""
        if self.depthwise:
            return self.block // self.width
        pixels = self.x.batch * self.x.groups * math.prod(a.places for a in self.axes)
        if pixels < _UNITS * _LEAST_PIXELS:
            return order.even(self.panels, max(1, self.panels // _UNITS))
        nbytes = _PART_PIXELS * self.width * self.dtype.itemsize
        return order.even(self.panels, max(1, _OUTPUT_BYTES // nbytes))

    def forward(self, weight: Weight) -> list[Stage]:
        """The stages that make the output from input and weight."""
        x, y = self.x, self.y
        if self.is_product and (self._is_sooner() or x.channels > order.CHUNK):
            return self._product(weight)
        part = self.part()
        parts = -(-self.panels // part)
        tile = self.tiles(part, x.batch * x.groups * parts)
        start = sum(a.first * s for a, s in zip(self.axes, y.strides, strict=True))
        steps = [a.every * s for a, s in zip(self.axes, y.strides, strict=True)]
        y_words = y._replace(strides=triple(steps, 0)).words()
        images = x.batch * order.tile_count(self.order.lines, tile)
        units = images * x.groups * parts
        fresh = images == 1 and not self.depthwise and self._block_bytes() <= _FRESH_BYTES
        packed = weight.slot if fresh else self.area(self._packed_size() * self.dtype.itemsize)
        spare = self.spare(tile)
        record = code.FORWARD.packed(
            x=x.slot, weight=packed, y=y.slot, y_start=start, parts=parts, part=part,
            fresh=int(fresh), w_group=weight.group, w_out=weight.out, w_in=weight.into,
            **self.pixels(tile, spare, y_words),
        )  # fmt: skip
        params = (*record, *self.offsets(tile), *self._kernel_places())
        kernels = depthwise_code if self.depthwise else code
        kernel = kernels.forward_kernel(self.dtype, self.vectors)
        packing = [] if fresh else self._pack(weight, packed)
        return [*packing, Stage(kernel, units, self.grain(units, spare), params)]

    def _is_sooner(self) -> bool:
        """Whether a product is sooner than tiles, whose order is the same up to a chunk."""
        if not self.is_direct():
            return False
        many = self.x.batch == 1 or self.y.size[2] >= _PRODUCT_PIXELS
        return many or self.y.channel_stride == 1

    def _product(self, weight: Weight) -> list[Stage]:
        x, y, stages = self.x, self.y, list[Stage]()
        if not self.plain:
            x = self._dense(stages)
        m, n = y.channels, math.prod(y.size)
        place, pixel = (x.batch_stride, x.channels * x.channel_stride), x.strides[2]
        a = (weight.slot, (0, weight.group, weight.out, weight.into))
        b = (x.slot, (*place, x.channel_stride, pixel))
        last = y.channel_stride == 1 and n > 1
        if last:  # the transpose of it
            m, n = n, m
            a = (x.slot, (*place, pixel, x.channel_stride))
            b = (weight.slot, (0, weight.group, weight.into, weight.out))
        apart = last and x.groups > 1  # channels of different groups are neighbours
        out = self.area(x.batch * x.groups * m * n * self.dtype.itemsize) if apart else y.slot
        stages += matmul.matmul_stages(
            self.dtype, (x.batch, x.groups), m, n, x.channels, *a, *b, out, self.area
        )
        if apart:
            rows, steps = (x.batch, m, x.groups), (x.groups * m * n, n, m * n)
            stages.append(self._copy(out, y.slot, rows, steps, n, 1))
        return stages

    def _dense(self, stages: list[Stage]) -> Pixels:
        """A copy of the input whose pixels follow each other."""
        x = self.x
        count = math.prod(x.size)
        slot = self.area(x.batch * x.groups * x.channels * count * self.dtype.itemsize)
        rows = (x.batch, x.groups, x.channels, *x.size[:2])
        steps = (x.batch_stride, x.channels * x.channel_stride, x.channel_stride, *x.strides[:2])
        stages.append(self._copy(x.slot, slot, rows, steps, x.size[2], x.strides[2]))
        return x._replace(
            slot=slot, size=(1, 1, count), strides=(0, 0, 1),
            batch_stride=x.groups * x.channels * count, channel_stride=count,
        )  # fmt: skip

    def _copy(
        self, source: int, target: int, rows: Sequence[int], steps: Sequence[int], n: int, step: int
    ) -> Stage:
        """Copies rows of n elements to where they follow each other."""
        record = copy_code.PACKED.packed(source=source, target=target, length=n, stride=step)
        params = (*record, *index_params(rows, steps))
        kernel = copy_code.pack_kernel(self.dtype.name)
        return Stage(kernel, math.prod(rows), max(1, _TASK_ELEMENTS // n), params)

    def _block_bytes(self) -> int:
        """Of one block of a panel."""
        return self.block * self.positions * self.width * self.dtype.itemsize

    def _packed_size(self) -> int:
        """Elements of all panels."""
        return self.x.groups * self.panels * self.ins * self.positions * self.width

    def grain(self, units: int, spare: int) -> int:
        """The units of a task."""
        if spare >= 0:
            return units
        return max(1, _TASK_FLOPS * units // self.order.work())

    def _panel_words(self) -> dict[str, int]:
        """The params of packing and unpacking that say how panels lie."""
        sizes = {"panels": self.panels, "ins": self.ins, "outs": self.y.channels}
        return {**sizes, "positions": self.positions, "block": min(self.block, self.ins)}

    def _panel_units(self) -> tuple[int, int]:
        """The units of packing and unpacking, and how many elements one has."""
        block = min(self.block, self.ins)
        units = self.x.groups * self.panels * -(-self.ins // block)
        return units, block * self.positions * self.width

    def _pack(self, weight: Weight, packed: int) -> list[Stage]:
        if not self.positions:
            return []
        out = weight.group if self.depthwise else weight.out
        record = panel_code.PACK.packed(
            source=weight.slot, target=packed, **self._panel_words(),
            group=weight.group, out=out, into=weight.into,
        )  # fmt: skip
        params = (*record, *self._kernel_places())
        units, elements = self._panel_units()
        grain = max(1, _TASK_ELEMENTS // elements)
        return [Stage(panel_code.pack_kernel(self.dtype, self.vectors), units, grain, params)]

    def _unpack(self, sums: int, chunks: int, weight: Weight, span: int) -> list[Stage]:
        """The stage that adds chunks and writes the array of weights, which is dense."""
        units, elements = self._panel_units()
        params = panel_code.UNPACK.packed(
            source=sums, target=weight.slot, **self._panel_words(),
            chunks=chunks, size=self._packed_size(), span=span,
        )  # fmt: skip
        grain = max(1, _TASK_ELEMENTS // (elements * chunks))
        return [Stage(panel_code.unpack_kernel(self.dtype, self.vectors), units, grain, params)]

    def _weight_part(self) -> int:
        """Panels whose sums a unit makes: those of a block stay in the second cache."""
        if self.depthwise:
            return self.block // self.width
        return order.even(self.panels, max(1, _SUM_BYTES // self._block_bytes()))

    def weight(self, weight: Weight) -> list[Stage]:
        """The stages that make the weight from input and output."""
        x, y = self.x, self.y
        size = self._packed_size()
        nbytes = size * self.dtype.itemsize
        blocks = -(-x.channels // self.block)
        part = self._weight_part()
        parts = 1 if self.depthwise else -(-self.panels // part)
        others = x.groups * blocks * parts
        tile = self.order.weight_tile()
        chunk = self.order.weight_chunk(tile)
        every = x.batch * order.tile_count(self.order.lines, tile)
        chunks = -(-every // chunk)
        direct = chunks == 1 and not self.depthwise and part * self._block_bytes() <= _SUM_BYTES
        sums = -1 if direct else self.area(chunks * nbytes)
        lane = min(self.block, self.ins) * self.width * self.dtype.itemsize
        span = max(1, min(self.positions, _SPAN_BYTES // lane))
        units, spare = chunks * others, self.spare(tile)
        record = code.WEIGHT.packed(
            sums=sums, weight=weight.slot, x=x.slot, y=y.slot, span=span, chunks=chunks,
            chunk=chunk, all_tiles=every, blocks=blocks, size=size, parts=parts, part=part,
            **self.pixels(tile, spare),
        )  # fmt: skip
        params = (*record, *self.offsets(tile))
        kernels = depthwise_code if self.depthwise else code
        kernel = kernels.weight_kernel(self.dtype, self.vectors)
        unpacking = [] if direct else self._unpack(sums, chunks, weight, span)
        return [Stage(kernel, units, self.grain(units, spare), params), *unpacking]


def _strides(array: str, words: Sequence[int]) -> dict[str, int]:
    batch, group, channel, *axes = words
    names = {"batch": batch, "group": group, "channel": channel, **by_axis("", axes)}
    return {f"{array}_{name}": stride for name, stride in names.items()}
