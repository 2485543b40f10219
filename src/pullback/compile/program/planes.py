"""Elements at places of planes that indices name, as kernels of a target: read, or added to zeros.

"pick" reads one element of a plane for each index, "place" adds the elements of each plane in their
order at the places that its indices name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pullback.compile.program.convolution import plane_size, strides_of
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.target import Place
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType

__all__ = ["NAMES", "Pick", "PlaneKernels", "Put", "plane_steps"]

NAMES = ("pick", "place")  # of the intrinsics

S_co = TypeVar("S_co", covariant=True)  # a step of the target


class Pick(NamedTuple):
    """`elements` are walked over in output, values (which stand still within a plane), indices and
    row-major; `plane` is the walk over a plane of `places`.
    """

    arrays: Sequence[Place]  # output, values, indices
    elements: Nest
    plane: Nest
    places: int


class Put(NamedTuple):
    """`planes` are walked over in output, values and indices, `elements` of a plane in values,
    indices and row-major; its `places` are `step` apart in the output.
    """

    arrays: Sequence[Place]  # output, values, indices
    planes: Nest
    elements: Nest
    places: int
    step: int


class PlaneKernels(Protocol[S_co]):
    """The kernels that a target has."""

    def zeros(self, dtype: DType, size: int, slot: int) -> Sequence[S_co]:
        """Writes so many zeros."""
        ...

    def check(self, index: Place, places: int, code: int) -> Sequence[S_co]:
        """Looks whether indices name one of so many places; negative ones do not."""
        ...

    def pick(self, given: Pick) -> S_co:
        """Reads elements."""
        ...

    def put(self, given: Put) -> S_co:
        """Adds elements to the output."""
        ...


def plane_steps(
    kernels: PlaneKernels[S_co],
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    code: int,
) -> list[S_co]:
    """What an intrinsic launches; the result is dense. A bad index gives the error code."""
    values, index = (av for _, av in operands)
    slot, out = result
    if out.size == 0:
        return []
    if 0 in (values.size, index.size):
        return [*kernels.zeros(out.dtype, out.size, slot)]
    arrays = [result, *operands]
    last, places = static["last"], plane_size(name, [values, index], static)
    check = kernels.check(operands[1], places, code)
    own, given, at = (
        _split(last, strides)
        for strides in (dense_strides(out.shape), strides_of(values), strides_of(index))
    )
    if name == "pick":
        lines, pixels = _split(last, out.shape)
        shape = (*lines, *pixels)
        streams = [(*own[0], *own[1]), (*given[0], *(0 for _ in pixels)), (*at[0], *at[1])]
        extent = _split(last, values.shape)[1]
        plane = coalesce(extent, [given[1], dense_strides(extent)])
        elements = coalesce(shape, [*streams, dense_strides(shape)])
        return [*check, kernels.pick(Pick(arrays, elements, plane, places))]
    lines, pixels = _split(last, index.shape)
    planes = coalesce(lines, [own[0], given[0], at[0]])
    elements = coalesce(pixels, [given[1], at[1], dense_strides(pixels)])
    step = out.shape[-1] if last else 1
    put = kernels.put(Put(arrays, planes, elements, places, step))
    return [*check, *kernels.zeros(out.dtype, out.size, slot), put]


def _split(last: bool, values: Sequence[int]) -> tuple[list[int], list[int]]:
    """What belongs to batch and channels, and to pixels, of the numbers of all axes."""
    own = list(values)
    return ([own[0], own[-1]], own[1:-1]) if last else (own[:2], own[2:])
