"""Elements at places of planes that indices name: read, or added to zeros.

    pick   (out, values, index, Nest<3> elements, Nest<1> plane)
    place  (out, values, index, Nest<3> planes, Nest<2> elements, out step)

The streams of `elements` of `pick` are output, values and index, where values stand still within a
plane; `place` has one thread for a plane, which takes its elements in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.program.convolution import plane_size, strides_of
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cuda.indexing import check_steps, head
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.loops import zero_steps
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.stages import At, Step, stage

__all__ = ["NAMES", "plane_stages"]

NAMES = ("pick", "place")  # of the intrinsics

_PICK = """
extern "C" __global__ void pick({value}* __restrict__ out, const {value}* __restrict__ values,
    const {index}* __restrict__ index, const Nest<3> nest, const Nest<1> plane) {{
  for (long long i = pb_first(); i < nest.size; i += pb_step()) {{
    long long at[3] = {{}}, from[1] = {{}};
    pb_locate(nest, i, at);
    const {index} k = index[at[2]];
    if (pb_is_bad(k, 0, plane.size)) continue;
    pb_locate(plane, (long long)k, from);
    out[at[0]] = values[at[1] + from[0]];
  }}
}}"""

_PLACE = """
extern "C" __global__ void place({value}* __restrict__ out, const {value}* __restrict__ values,
    const {index}* __restrict__ index, const Nest<3> planes, const Nest<2> elements,
    const long long size, const long long step) {{
  for (long long i = pb_first(); i < planes.size; i += pb_step()) {{
    long long start[3] = {{}};
    pb_locate(planes, i, start);
    for (long long j = 0; j < elements.size; ++j) {{
      long long at[2] = {{start[1], start[2]}};
      pb_locate(elements, j, at);
      const {index} k = index[at[1]];
      if (pb_is_bad(k, 0, size)) continue;
      {value}& target = out[start[0] + (long long)k * step];
      target = {total};
    }}
  }}
}}"""


@cache
def _source(name: str, dtype: DType, index: DType) -> str:
    source, value = Source(), storage(dtype)
    head(source)
    total = "target + values[at[0]]"
    if dtype.is_complex:
        total = f"{value}{{target.x + values[at[0]].x, target.y + values[at[0]].y}}"
    body = _PICK if name == "pick" else _PLACE
    source.add(name, body.format(value=value, index=storage(index), total=total))
    return source.text()


def _split(av: Aval, last: bool, values: Sequence[int]) -> tuple[list[int], list[int]]:
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
    slots = (At(slot), At(values_slot), At(index_slot))
    source = _source(name, out.dtype, index.dtype)
    own, given, places = (
        _split(av, last, strides)
        for av, strides in (
            (out, dense_strides(out.shape)),
            (values, strides_of(values)),
            (index, strides_of(index)),
        )
    )
    if name == "pick":
        lines, pixels = _split(out, last, out.shape)
        streams = [(*own[0], *own[1]), (*given[0], *(0 for _ in pixels)), (*places[0], *places[1])]
        plane = coalesce(
            _split(values, last, values.shape)[1],
            [given[1], dense_strides(_split(values, last, values.shape)[1])],
        )
        arguments = (*slots, packed(coalesce((*lines, *pixels), streams)), packed(plane, 1))
        return stage(*check, Step(source, name, (grid_of(out.size), 1), THREADS, arguments))
    lines, pixels = _split(index, last, index.shape)
    planes = coalesce(lines, [own[0], given[0], places[0]])
    elements = coalesce(pixels, [given[1], places[1], dense_strides(pixels)])
    step = out.shape[-1] if last else 1
    arguments = (*slots, packed(planes), packed(elements, 2), size, step)
    put = Step(source, name, (grid_of(planes.size), 1), THREADS, arguments)
    return stage(*check, *zero_steps(out.dtype, out.size, slot), put)
