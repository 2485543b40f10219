"""Elements at places of planes that indices name: read, or added to zeros.

pick   a thread reads one element
place  a thread takes the elements of one plane in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.program.convolution import strides_of
from pullback.compile.program.planes import Pick, PlaneKernels, Put, plane_steps
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, IndexArrays, Place
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.indexing import axes_words, check_steps, index_functions
from pullback.runtime.webgpu.maps import zero_steps
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["plane_stages"]


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


class _PlaneKernels:
    """The kernels of this module, and those of indices."""

    def zeros(self, dtype: DType, size: int, slot: int) -> list[Dispatch]:
        return zero_steps(dtype, size, slot)

    def check(self, index: Place, places: int, code: int) -> list[Dispatch]:
        slot, av = index
        indices = IndexArrays([slot], [strides_of(av)], [(places, 0)], code)
        return check_steps((av.dtype,), av.shape, indices, wraps=False)

    def pick(self, given: Pick) -> Dispatch:
        elements, plane = given.elements, given.plane
        axis = axes_words([(given.places, 1)], False)
        words = (elements.size, *axis, *nest_words(elements, 3), *nest_words(plane, 1))
        source = _pick_source(given.arrays[2][1].dtype, len(elements.shape), len(plane.shape))
        return Dispatch(source, _arrays(given), words, linear_groups(elements.size, THREADS))

    def put(self, given: Put) -> Dispatch:
        planes, elements, dtype = given.planes, given.elements, given.arrays[0][1].dtype
        axis = axes_words([(given.places, given.step)], False)
        words = (planes.size, *axis, elements.size, *nest_words(planes), *nest_words(elements, 2))
        ranks = len(planes.shape), len(elements.shape)
        source = _place_source(given.arrays[2][1].dtype, dtype.is_complex, *ranks)
        return Dispatch(source, _arrays(given), words, linear_groups(planes.size, THREADS))


def _arrays(given: Pick | Put) -> tuple[Binding, ...]:
    modes = ("write", "read", "read")
    places = zip(given.arrays, modes, strict=True)
    return tuple(Binding(At(slot), item(av.dtype), mode) for (slot, av), mode in places)


def plane_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    code: int,
) -> list[Stage]:
    """The stages of an intrinsic; the result is dense."""
    kernels: PlaneKernels[Dispatch] = _PlaneKernels()
    return stage(*plane_steps(kernels, name, operands, static, result, code))
