"""Elements at places of planes that indices name: read, or added to zeros.

pick   a thread reads one element
place  a thread takes the elements of one plane in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.program.convolution import plane_size, strides_of
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.indexing import axes_words, check_steps, index_functions
from pullback.runtime.webgpu.maps import zero_steps
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.stages import Array, At, Dispatch, linear_groups, stage

__all__ = ["NAMES", "plane_stages"]

NAMES = ("pick", "place")  # of the intrinsics


@cache
def _pick_source(index: DType, rank: int, plane: int) -> str:
    """Words: elements, the axis of indices, the nest of elements (output, values, which stand still
    within a plane, index), the nest of a plane.
    """
    own = 4 + 4 * rank
    return "\n".join([
        index_functions([index], 2, 1),
        MAIN,
        locate(rank, ["to", "start", "at"], 4, "i"),
        "  let v = pb_index0(at);",
        "  if (pb_bad0(v)) { return; }",
        locate(plane, ["inner"], own, "v.x"),
        "  store0(to, load1(start + inner));",
        "}",
    ])  # fmt: skip


@cache
def _place_source(index: DType, complex_: bool, rank: int, inner: int) -> str:
    """Words: planes, the axis of indices, whose stride is that of places, elements of a plane, the
    nest of planes (output, values, index), the nest of elements (values, index).
    """
    if complex_:
        total = ("bitcast<vec2<u32>>(vec2<f32>(pb_f(bitcast<f32>(a.x) + bitcast<f32>(b.x)),"
                 " pb_f(bitcast<f32>(a.y) + bitcast<f32>(b.y))))")  # fmt: skip
    else:
        total = "bitcast<u32>(pb_f(bitcast<f32>(a) + bitcast<f32>(b)))"
    return "\n".join([
        index_functions([index], 2, 1),
        MAIN,
        locate(rank, ["to", "start", "first"], 5, "i"),
        "  for (var j = 0u; j < arg(4u); j++) {",
        locate(inner, ["own", "at"], 5 + 4 * rank, "j", "    "),
        "    let v = pb_index0(first + at);",
        "    if (pb_bad0(v)) { continue; }",
        "    let a = load0(to + v.x * arg(3u));",
        "    let b = load1(start + own);",
        f"    store0(to + v.x * arg(3u), {total});",
        "  }",
        "}",
    ])  # fmt: skip


def _split(last: bool, values: Sequence[int]) -> tuple[list[int], list[int]]:
    """What belongs to batch and channels, and to pixels, of the numbers of all axes."""
    own = list(values)
    return ([own[0], own[-1]], own[1:-1]) if last else (own[:2], own[2:])


def plane_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    code: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense. A bad index gives the error code."""
    (values_slot, values), (index_slot, index) = operands
    slot, out = result
    if out.size == 0:
        return []
    if 0 in (values.size, index.size):
        return stage(*zero_steps(out.dtype, out.size, slot))
    last, size = static["last"], plane_size(name, [values, index], static)
    check = check_steps(
        (index.dtype,), index.shape, [index_slot], [strides_of(index)], [(size, 0)], code, False
    )
    kind = item(out.dtype)
    arrays = (
        Array(At(slot), kind, "write"),
        Array(At(values_slot), kind),
        Array(At(index_slot), item(index.dtype)),
    )
    own, given, places = (
        _split(last, strides)
        for strides in (dense_strides(out.shape), strides_of(values), strides_of(index))
    )
    if name == "pick":
        lines, pixels = _split(last, out.shape)
        streams = [(*own[0], *own[1]), (*given[0], *(0 for _ in pixels)), (*places[0], *places[1])]
        nest = coalesce((*lines, *pixels), [*streams, dense_strides((*lines, *pixels))])
        extent = _split(last, values.shape)[1]
        plane = coalesce(extent, [given[1], dense_strides(extent)])
        axis = axes_words([(size, 1)], False)
        words = (out.size, *axis, *nest_words(nest, 3), *nest_words(plane, 1))
        source = _pick_source(index.dtype, len(nest.shape), len(plane.shape))
        groups = linear_groups(out.size, THREADS)
        return stage(*check, Dispatch(source, arrays, words, groups))
    lines, pixels = _split(last, index.shape)
    planes = coalesce(lines, [own[0], given[0], places[0]])
    elements = coalesce(pixels, [given[1], places[1], dense_strides(pixels)])
    axis = axes_words([(size, out.shape[-1] if last else 1)], False)
    words = (planes.size, *axis, elements.size, *nest_words(planes), *nest_words(elements, 2))
    is_pair = out.dtype.is_complex
    source = _place_source(index.dtype, is_pair, len(planes.shape), len(elements.shape))
    put = Dispatch(source, arrays, words, linear_groups(planes.size, THREADS))
    return stage(*check, *zero_steps(out.dtype, out.size, slot), put)
