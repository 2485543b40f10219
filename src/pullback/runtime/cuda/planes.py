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

from pullback.compile.program.convolution import strides_of
from pullback.compile.program.planes import Pick, PlaneKernels, Put, plane_steps
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, IndexArrays, Place
from pullback.core.dtypes import DType
from pullback.runtime.cuda.indexing import check_steps, head
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.loops import zero_steps
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = ["plane_stages"]

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


class _PlaneKernels:
    """The kernels of this module, and those of indices."""

    def zeros(self, dtype: DType, size: int, slot: int) -> list[Step | Either]:
        return zero_steps(dtype, size, slot)

    def check(self, index: Place, places: int, code: int) -> list[Step]:
        slot, av = index
        indices = IndexArrays([slot], [strides_of(av)], [(places, 0)], code)
        return check_steps((av.dtype,), av.shape, indices, wraps=False)

    def pick(self, given: Pick) -> Step:
        nests = packed(given.elements, 3), packed(given.plane, 1)
        return self._step("pick", given, given.elements.size, nests)

    def put(self, given: Put) -> Step:
        nests = packed(given.planes), packed(given.elements, 2)
        return self._step("place", given, given.planes.size, (*nests, given.places, given.step))

    def _step(self, name: str, given: Pick | Put, threads: int, more: Sequence[Any]) -> Step:
        slots = (At(slot) for slot, _ in given.arrays)
        (_, out), _, (_, index) = given.arrays
        source = _source(name, out.dtype, index.dtype)
        return Step(source, name, (grid_of(threads), 1), THREADS, (*slots, *more))


def plane_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    code: int,
) -> list[Stage]:
    """The stages of an intrinsic; the result is dense."""
    kernels: PlaneKernels[Step | Either] = _PlaneKernels()
    return stage(*plane_steps(kernels, name, operands, static, result, code))
