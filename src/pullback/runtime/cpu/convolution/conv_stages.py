"""Convolution on the CPU: its three primitives as stages of the kernels in `convolution_code`.

`conv` and `conv_dx` are one kernel: an output pixel sums input pixels at fixed offsets from it. For
`conv_dx` the roles of input and output change, and with a stride each residue of the output pixel
has its own set of offsets, which makes it a convolution of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from pullback.core.avals import Aval, dense_strides
from pullback.runtime.cpu.convolution.convolution_plan import (
    Area,
    Axis,
    Side,
    Three,
    TiledConvolution,
    Weight,
    triple,
)
from pullback.runtime.cpu.gemm import copy_code
from pullback.runtime.cpu.native import Stage

__all__ = ["NAMES", "conv_stages", "reading_axes", "side_of"]


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
        return [_zeros(result)]
    return _BUILDERS[name](operands, static["window"], result, area)


def _zeros(result: tuple[int, Aval]) -> Stage:
    slot, av = result
    return Stage(copy_code.zero_kernel(), av.nbytes, 1 << 20, (slot,))


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


def _forward(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = _strides(w)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return TiledConvolution(w.dtype, source, target, axes, area).forward(weight)


def _input_gradient(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = _strides(w)
    weight = Weight(slot, source.channels * ws[0], ws[1], ws[0])
    residues = [
        [_transposed(r, moves, taps, along, size) for r in range(min(moves[0], size))]
        for moves, taps, along, size in zip(
            _moves(window), triple(w.shape[2:], 1), triple(ws[2:], 0), target.size, strict=True
        )
    ]
    reached = [axes for axes in product(*residues) if all(axis.taps for axis in axes)]
    stages = []
    if len(reached) < math.prod(map(len, residues)):
        stages.append(_zeros(result))
    for axes in reached:
        stages += TiledConvolution(w.dtype, source, target, axes, area).forward(weight)
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
    return TiledConvolution(w.dtype, source, target, axes, area).weight(weight)


_BUILDERS = {"conv": _forward, "conv_dx": _input_gradient, "conv_dw": _weight_gradient}
NAMES = tuple(_BUILDERS)  # of the intrinsics
