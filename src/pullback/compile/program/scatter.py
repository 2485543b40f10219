"""Folds by index as kernels of a target: what is launched, for targets without float atomics.

Updates are sorted by their destinations, and each destination takes its own in their order. Into
few destinations every chunk of the updates has accumulators of its own, in lanes: see
`order.scattered_by_lanes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from pullback.compile.kernel import order
from pullback.compile.kernel.fixed_point import FORMATS
from pullback.compile.kernel.forms import Scatter
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.target import Area, IndexArrays, Layout, Shape, Strides
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType

__all__ = [
    "FoldLanes",
    "ScatterKernels",
    "Updates",
    "is_exact",
    "is_folded",
    "neutral",
    "scatter_steps",
]

S_co = TypeVar("S_co", covariant=True)  # a step of the target


class Updates(NamedTuple):
    """`rows` updates of `width` elements each: slot, and the walk over all their elements."""

    slot: int
    rows: int
    width: int
    nest: Nest


class FoldLanes(NamedTuple):
    """How updates into few rows are folded; `columns` are the real elements of a row."""

    updates: int
    chunk: int  # updates
    chunks: int
    copies: int  # lanes of a chunk
    rows: int
    columns: int
    parts: int  # of an accumulator
    paired: bool


class ScatterKernels(Protocol[S_co]):
    """The kernels that a target has; the output is dense, and holds x when updates come."""

    number_bytes: int  # of the place of a row

    def copy(
        self, dtype: DType, shape: Shape, slot: int, x_slot: int, x_strides: Strides
    ) -> Sequence[S_co]:
        """Copies x to the output."""
        ...

    def check(
        self, dtypes: tuple[DType, ...], shape: Shape, indices: IndexArrays
    ) -> Sequence[S_co]:
        """Looks whether indices are good; positions are those in `shape`."""
        ...

    def rows(
        self,
        dtypes: tuple[DType, ...],
        shape: Shape,
        places: Strides,
        indices: IndexArrays,
        numbers: int,
    ) -> Sequence[S_co]:
        """Writes the places in the output where updates go."""
        ...

    def fold(
        self, kernel: Scatter, slot: int, updates: Updates, numbers: int, area: Area
    ) -> Sequence[S_co]:
        """Sorts places, and folds what each of them gets, after what it holds."""
        ...

    def lanes(
        self,
        kernel: Scatter,
        slot: int,
        updates: Updates,
        numbers: int,
        lanes: FoldLanes,
        area: Area,
    ) -> Sequence[S_co]:
        """Folds in lanes."""
        ...


def is_folded(kernel: Scatter) -> bool:
    """Whether real numbers are folded in a wider type."""
    return kernel.sums or (bool(kernel.fold) and not kernel.dtype.is_complex)


def is_exact(kernel: Scatter) -> bool:
    """Whether sums are to be exact, and are not so by themselves."""
    return kernel.exact and kernel.dtype.real in FORMATS


def neutral(dtype: DType, fold: str) -> float | int:
    """What a fold leaves as it is."""
    if dtype.is_float:
        return {"add": -0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[fold]
    if dtype is dt.bool_ or fold in ("add", "mul"):
        return int(fold in ("mul", "min"))
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if fold == "max" else limits.max)


def _lanes(kernel: Scatter, count: int, rows: int, width: int) -> FoldLanes | None:
    """The lanes of a fold, if the order has some."""
    if not is_folded(kernel) or is_exact(kernel):
        return None
    columns = width * (2 if kernel.dtype.is_complex else 1)
    parts = 2 if kernel.dtype.real is dt.float64 and not kernel.fold else 1
    if not order.has_lanes(count, rows, columns, parts):
        return None
    chunk = order.chunk_of_updates(count)
    copies = order.lanes_of(columns, parts)
    paired = order.is_paired(rows, columns, parts)
    return FoldLanes(count, chunk, -(-count // chunk), copies, rows, columns, parts, paired)


def scatter_steps(
    kernels: ScatterKernels[S_co],
    kernel: Scatter,
    x: Layout,
    updates: Layout,
    out: tuple[int, Strides],
    indices: IndexArrays,
    area: Area,
) -> list[S_co]:
    """What `Target.scatter` launches."""
    (x_shape, x_slot, x_strides), (shape, slot, strides) = x, updates
    out_slot, out_strides = out
    steps: list[S_co] = []
    if x_slot != out_slot:
        steps += kernels.copy(kernel.dtype, x_shape, out_slot, x_slot, x_strides)
    if math.prod(shape) == 0:
        return steps
    check = kernels.check(kernel.indices, shape, indices)
    if math.prod(x_shape) == 0:  # every index is bad
        return [*check]
    taken = _indexed_axes(shape, len(shape) - (len(x_shape) - len(indices.axes)), indices.strides)
    count, width = math.prod(shape[:taken]), math.prod(shape[taken:])
    numbers = area(kernels.number_bytes * count)
    own = indices._replace(strides=[s[:taken] for s in indices.strides])
    rows = kernels.rows(kernel.indices, shape[:taken], out_strides[:taken], own, numbers)
    # places count row-major
    nest = coalesce(shape, [strides, dense_strides(shape)])
    walk = Updates(slot, count, width, Nest(nest.shape, nest.strides[:1]))
    lanes = _lanes(kernel, count, math.prod(x_shape) // width, width)
    if lanes is not None:
        folds = kernels.lanes(kernel, out_slot, walk, numbers, lanes, area)
    else:
        folds = kernels.fold(kernel, out_slot, walk, numbers, area)
    return [*check, *steps, *rows, *folds]


def _indexed_axes(shape: Shape, lead: int, index_strides: Sequence[Strides]) -> int:
    """The first axes of the updates, on which their places depend; all, if a row is not whole."""
    whole = all(
        s == 0 or n == 1
        for own in index_strides
        for s, n in zip(own[lead:], shape[lead:], strict=True)
    )
    return lead if whole else len(shape)
