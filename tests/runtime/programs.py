"""Programs of one kernel, for the tests of kernels: stages at the first slots, and a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.kernel.forms import Accumulate, Gather, Map, Reduce, Scatter
from pullback.compile.program.stages import Scratch
from pullback.compile.program.target import IndexArrays
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.indexing import gather_stages
from pullback.runtime.cpu.loops import fold_stages, map_stages
from pullback.runtime.cpu.scatter import scatter_stages
from pullback.runtime.cpu.sort import sort_stages

Run = Callable[..., Any]
Strides = Sequence[int]


def arena_program(
    n_inputs: int,
    out_nbytes: int,
    arena_nbytes: int,
    pointers: Sequence[tuple[int, int]],
    stages: Sequence[native.Stage],
) -> Run:
    """A program with one arena for all temporaries, and any part of any buffer as a slot.

    Slots: 0 is the output, then the inputs, then the arena, then `pointers`: each is the slot of a
    base, which comes before it, and an offset in bytes.
    """
    return native.make_program(n_inputs, out_nbytes, (arena_nbytes,), pointers, stages, False)


def map_program(kernel: Map, shape: Sequence[int], strides: Sequence[Strides]) -> Run:
    """Applies the kernel; strides are over `shape`, the output is dense."""
    slots, own = range(1, 1 + len(strides)), dense_strides(tuple(shape))
    stages = map_stages.map_stages(kernel, shape, [0], [own], slots, strides, shared=True)
    return native.program(len(strides), math.prod(shape) * kernel.output.itemsize, (), stages)


def reduce_program(
    kernel: Reduce, kept: Sequence[int], reduced: Sequence[int], strides: Sequence[Strides]
) -> Run:
    """Reduces to a dense array; strides are over the kept axes, then over the reduced ones."""
    area, slots = Scratch(1 + len(strides)), range(1, 1 + len(strides))
    stages = fold_stages.reduce_stages(kernel, kept, reduced, slots, strides, 0, area, shared=True)
    nbytes = math.prod(kept) * kernel.output.itemsize
    return native.program(len(strides), nbytes, area.sizes, stages)


def accumulate_program(
    kernel: Accumulate,
    kept: Sequence[int],
    length: int,
    strides: Sequence[Strides],
    out_strides: Strides,
    reverse: bool,
) -> Run:
    """Folds along one axis, whose strides come last, and keeps every step."""
    slots = range(1, 1 + len(strides))
    stages = fold_stages.accumulate_stages(
        kernel, kept, length, slots, strides, 0, out_strides, reverse
    )
    nbytes = math.prod(kept) * length * kernel.output.itemsize
    return native.program(len(strides), nbytes, (), stages)


def gather_program(
    kernel: Gather,
    shape: Sequence[int],
    x_strides: Strides,
    index_strides: Sequence[Strides],
    indexed: Sequence[tuple[int, int]],
) -> Run:
    """The function (x, *indices) -> out."""
    slots = range(2, 2 + len(kernel.indices))
    arrays = IndexArrays(slots, index_strides, indexed)
    stages = gather_stages.gather_stages(kernel, shape, 1, x_strides, arrays, 0)
    nbytes = math.prod(shape) * kernel.dtype.itemsize
    return native.program(1 + len(kernel.indices), nbytes, (), stages)


def scatter_program(
    kernel: Scatter,
    x_shape: Sequence[int],
    x_strides: Strides,
    shape: Sequence[int],
    out_strides: Strides,
    index_strides: Sequence[Strides],
    update_strides: Strides,
    indexed: Sequence[tuple[int, int]],
) -> Run:
    """The function (x, *indices, updates) -> out."""
    inputs = 2 + len(kernel.indices)
    area = Scratch(1 + inputs)
    stages = scatter_stages.scatter_stages(
        kernel,
        (x_shape, 1, x_strides),
        (shape, inputs, update_strides),
        (0, out_strides),
        IndexArrays(range(2, inputs), index_strides, indexed),
        area,
    )
    return native.program(inputs, math.prod(x_shape) * kernel.dtype.itemsize, area.sizes, stages)


def matmul_program(
    dtype: DType,
    batch: Sequence[int],
    m: int,
    n: int,
    k: int,
    a_strides: Strides,
    b_strides: Strides,
) -> Run:
    """The function (a, b) -> a @ b; strides are over (batch, row, column)."""
    area = Scratch(3)
    stages = matmul.matmul_stages(dtype, batch, m, n, k, 1, a_strides, 2, b_strides, 0, area)
    return native.program(2, math.prod(batch) * m * n * dtype.itemsize, area.sizes, stages)


def argsort_program(
    dtype: DType,
    outer: Sequence[int],
    outer_strides: Strides,
    length: int,
    stride: int,
    descending: bool = False,
) -> Run:
    """The function x -> indices that sort each row."""
    area = Scratch(2)
    stages = sort_stages.argsort_stages(
        dtype, outer, outer_strides, length, stride, descending, 1, 0, area
    )
    return native.program(1, math.prod(outer) * length * 8, area.sizes, stages)


def searchsorted_program(
    dtype: DType,
    length: int,
    stride: int,
    shape: Sequence[int],
    strides: Strides,
    side: str = "left",
) -> Run:
    """The function (sorted, values) -> positions."""
    stages = sort_stages.searchsorted_stages(dtype, length, stride, shape, strides, side, 1, 2, 0)
    return native.program(2, math.prod(shape) * 8, (), stages)
