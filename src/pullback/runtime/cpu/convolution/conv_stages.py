"""Convolution on the CPU: its three primitives as stages of the kernels in `convolution_code`.

`conv` and `conv_dx` are one kernel, as `compile.program.convolution` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.compile.program.convolution import (
    Weight,
    reading_axes,
    residue_axes,
    side_of,
    strides_of,
)
from pullback.core.avals import Aval, dense_strides
from pullback.runtime.cpu.convolution.convolution_plan import Area, TiledConvolution
from pullback.runtime.cpu.gemm import copy_code
from pullback.runtime.cpu.native import Stage

__all__ = ["NAMES", "conv_stages"]


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
    return copy_code.zero_stage(slot, av.nbytes)


def _forward(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = strides_of(w)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return TiledConvolution(w.dtype, source, target, axes, area).forward(weight)


def _input_gradient(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source_place, (slot, w) = operands
    source, target = side_of(source_place, window), side_of(result, window)
    ws = strides_of(w)
    weight = Weight(slot, source.channels * ws[0], ws[1], ws[0])
    every = residue_axes(window, w.shape, ws, target.size)
    reached = [axes for axes in every if all(axis.taps for axis in axes)]
    stages = []
    if len(reached) < len(every):
        stages.append(_zeros(result))
    for axes in reached:
        stages += TiledConvolution(w.dtype, source, target, axes, area).forward(weight)
    return stages


def _weight_gradient(operands: Any, window: Any, result: Any, area: Area) -> list[Stage]:
    source, target = (side_of(operand, window) for operand in operands)
    slot, w = result
    ws = dense_strides(w.shape)
    weight = Weight(slot, target.channels * ws[0], ws[0], ws[1])
    axes = reading_axes(window, w.shape, ws, target.size)
    return TiledConvolution(w.dtype, source, target, axes, area).weight(weight)


_BUILDERS = {"conv": _forward, "conv_dx": _input_gradient, "conv_dw": _weight_gradient}
NAMES = tuple(_BUILDERS)  # of the intrinsics
