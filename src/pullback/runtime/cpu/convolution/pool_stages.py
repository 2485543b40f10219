"""Pooling on the CPU: windows over pixels, and elements at places, as stages of `window_code`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

from pullback.compile.kernel import order
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.convolution import reading_axes, side_of
from pullback.core.avals import Aval, aval, dense_strides
from pullback.runtime.cpu.convolution import window_code
from pullback.runtime.cpu.convolution.convolution_plan import TiledConvolution
from pullback.runtime.cpu.convolution.tile_code import by_axis
from pullback.runtime.cpu.gemm import copy_code
from pullback.runtime.cpu.loops import map_stages
from pullback.runtime.cpu.native import Stage

__all__ = ["INDEXED", "NAMES", "pooling_stages"]
__tuning__ = ("_PLANE_BYTES", "_TASK_ELEMENTS")

_PLANE_BYTES = 1 << 16  # of the planes that a unit works on, while there are several
_TASK_ELEMENTS = 1 << 15  # of a task: some tens of microseconds
INDEXED = ("pick", "place")
NAMES = ("window_max", "window_argmax", *INDEXED)  # of the intrinsics

Area = Callable[[int], int]
Place = tuple[int, Aval]  # a slot, and what is there


def pooling_stages(
    name: str,
    operands: Sequence[Place],
    static: dict[str, Any],
    result: Place,
    area: Area,
    error_code: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense. An index outside gives the error code."""
    slot, av = result
    if av.size == 0:
        return []
    if any(operand.size == 0 for _, operand in operands):
        return [copy_code.zero_stage(slot, av.nbytes)]
    if name in ("window_max", "window_argmax"):
        return extremum_stages(name == "window_argmax", operands[0], static, result, area)
    return _plane_stages(name == "place", operands, static["last"], result, area, error_code)


def extremum_stages(
    indices: bool, operand: Place, static: dict[str, Any], result: Place, area: Area
) -> list[Stage]:
    """The largest element under each window, or its index in the spatial axes."""
    window, kernel = static["window"], static["kernel"]
    window = window._replace(groups=window.channels(operand[1].shape))
    source, target = side_of(operand, window), side_of(result, window)
    shape = (1, 1, *kernel)
    axes = reading_axes(window, shape, dense_strides(shape), target.size)
    plan = TiledConvolution(operand[1].dtype, source, target, axes, area)
    part = plan.part()
    parts = -(-plan.panels // part)
    tile = plan.tiles(part, plan.x.batch * parts)
    units = plan.x.batch * order.tile_count(plan.order.lines, tile) * parts
    spare = plan.spare(tile)
    _, two, three = plan.x.size
    taps = [[at - a.start for at, _ in a.taps] for a in plan.axes]
    steps = [(i * two + j) * three + k for i, j, k in product(*taps)]
    dilation = (*(1,) * (3 - len(window.dilation)), *window.dilation)
    record = window_code.EXTREMUM.packed(
        x=plan.x.slot, y=plan.y.slot, y_start=0, parts=parts, part=part,
        **by_axis("dilation", dilation), **plan.pixels(tile, spare),
    )  # fmt: skip
    params = (*record, *plan.offsets(tile), *steps)
    code = window_code.extremum_kernel(plan.dtype, plan.vectors, indices)
    return [Stage(code, units, plan.grain(units, spare), params)]


def _plane_stages(
    adds: bool, operands: Sequence[Place], last: bool, result: Place, area: Area, error_code: int
) -> list[Stage]:
    stages: list[Stage] = []
    places = []
    for operand in operands:
        more, place = _dense_planes(operand, last, area)
        stages += more
        places.append(place)
    (_, values), (_, index) = places
    near, far = (values, result[1]) if adds else (index, values)
    size, count = (prod(_spatial(a.shape, last)) for a in (far, near))
    batch, channels = result[1].shape[0], result[1].shape[-1 if last else 1]
    itemsize = result[1].dtype.itemsize
    block = channels if last else max(1, min(channels, _PLANE_BYTES // (size * itemsize)))
    blocks = -(-channels // block)
    arrays = {"values": places[0], "index": places[1], "out": result}
    params = window_code.PLANES.packed(
        **{name: slot for name, (slot, _) in arrays.items()}, code=error_code, size=size,
        count=count, channels=channels, block=block, blocks=blocks, inner=int(last),
        **{
            f"{name}_{step}": stride
            for name, (_, a) in arrays.items()
            for step, stride in _plane_strides(a, last).items()
        },
    )  # fmt: skip
    code = window_code.planes_kernel(result[1].dtype, index.dtype, adds)
    grain = max(1, _TASK_ELEMENTS // (block * max(size if adds else 0, count)))
    return [*stages, Stage(code, batch * blocks, grain, params)]


def _spatial(shape: Sequence[int], last: bool) -> Sequence[int]:
    return shape[1:-1] if last else shape[2:]


def _plane_strides(av: Aval, last: bool) -> dict[str, int]:
    """Strides of batch, channels and pixels, counted through the plane."""
    strides = dense_strides(av.shape) if av.strides is None else av.strides
    channel = strides[-1] if last else strides[1]
    step = _flat_step(_spatial(av.shape, last), _spatial(strides, last)) or 0
    return {"batch": strides[0], "channel": channel, "step": step}


def _flat_step(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride with which a plane is one line; None if it is none."""
    dims = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    for (_, outer), (n, inner) in pairwise(dims):
        if outer != n * inner:
            return None
    return dims[-1][1] if dims else 1


def _dense_planes(place: Place, last: bool, area: Area) -> tuple[list[Stage], Place]:
    """The operand, copied if its planes are no lines."""
    slot, av = place
    strides = dense_strides(av.shape) if av.strides is None else av.strides
    if _flat_step(_spatial(av.shape, last), _spatial(strides, last)) is not None:
        return [], place
    copy = area(av.nbytes)
    dense = aval(av.shape, av.dtype, av.device)
    stages = map_stages.map_stages(
        copy_kernel(av.dtype), av.shape, [copy], [dense_strides(av.shape)], [slot], [strides]
    )
    return stages, (copy, dense)
