"""Matrix products on the CPU: operands packed where a library can't read them, work cut in tiles.

A tile is one single-threaded library call. Tiles depend on shapes only, so a product has the same
bits on every run and for any number of threads (it may differ between CPUs and libraries).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pullback.compile.kernel import Reduce
from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.scalar import acc, const, load
from pullback.runtime.cpu import blas, direct_gemm, gemm_code, native, small_gemm, vectors
from pullback.runtime.cpu.blas import Library
from pullback.runtime.cpu.loops import index_params
from pullback.runtime.cpu.reduce_kernels import reduce_stages

__all__ = ["library", "matmul_program", "matmul_row_stages", "matmul_stages"]

_HALVES = (dtypes.float16, dtypes.bfloat16)
_SUPPORTED = (*_HALVES, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)
_TASK_FLOPS = 2_000_000  # 20-50 us: what a task needs to be worth handing to another thread
_TASK_ELEMENTS = 1 << 16
_HEAVY_FLOPS = 200_000
_OWN = (dtypes.float32, dtypes.float64)  # what `small_gemm` multiplies
_LARGEST_B = 1 << 17  # bytes: it reads b again for every few rows
_LARGEST_A = 1 << 16  # bytes of a transposed a, whose lines it reads for every few rows
_FEW_ROWS = 3  # not worth a copy of b
_PART = 512  # a long k is cut in parts like this, where the output is too small to be cut
_SMALL_OUTPUT = 1 << 14
_NO_PARTS = 1 << 62


class Operand(NamedTuple):
    """A stack of matrices: the slot of its pointer, and strides in elements."""

    slot: int
    batch: tuple[int, ...]
    row: int
    column: int


class Product(NamedTuple):
    """batch x (m, k) @ (k, n), the output dense."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Operand
    b: Operand


def library(dtype: DType) -> str:
    """The name and version of the library that multiplies matrices of `dtype`."""
    return blas.choose(_compute_dtype(dtype)).name


def matmul_program(
    dtype: DType,
    batch_shape: Sequence[int],
    m: int,
    n: int,
    k: int,
    a_strides: Sequence[int],
    b_strides: Sequence[int],
) -> Callable:
    """The function (a, b) -> a @ b over buffers; strides count elements, over (batch, row, column).

    Half precision is computed in float32 and rounded once.
    """
    area = native.Scratch(3)
    stages = matmul_stages(dtype, batch_shape, m, n, k, 1, a_strides, 2, b_strides, 0, area)
    elements = math.prod(batch_shape) * m * n
    heavy = elements * k * 2 > _HEAVY_FLOPS
    return native.program(2, elements * dtype.itemsize, area.sizes, stages, heavy)


def matmul_stages(
    dtype: DType,
    batch_shape: Sequence[int],
    m: int,
    n: int,
    k: int,
    a_slot: int,
    a_strides: Sequence[int],
    b_slot: int,
    b_strides: Sequence[int],
    out_slot: int,
    area: Callable[[int], int],
) -> list[native.Stage]:
    """The stages of `matmul_program`; the output is dense, `area` gives scratch memory a slot."""
    compute = _compute_dtype(dtype)
    elements = math.prod(batch_shape) * m * n
    if elements == 0 or k == 0:
        nbytes = elements * dtype.itemsize
        return (
            [native.Stage(gemm_code.zero_kernel(), nbytes, 1 << 20, (out_slot,))]
            if elements
            else []
        )
    chosen = blas.choose(compute)
    a = Operand(a_slot, tuple(a_strides[:-2]), *a_strides[-2:])
    b = Operand(b_slot, tuple(b_strides[:-2]), *b_strides[-2:])
    product = _collapsed(Product(tuple(batch_shape), m, n, k, a, b))
    _check_extents(product, chosen)
    plan = _Plan(compute, chosen, area)
    if dtype is compute:
        plan.multiply(product, out_slot)
    else:
        plan.multiply_halves(product, dtype, elements, out_slot)
    return plan.stages


def matmul_row_stages(
    dtype: DType,
    m: int,
    n: int,
    k: int,
    a_slot: int,
    a_strides: Sequence[int],
    b_slot: int,
    b_strides: Sequence[int],
    out_slot: int,
    area: Callable[[int], int],
) -> list[native.Stage] | None:
    """A product of two matrices whose last stage has one unit per row, for `stages.rows_stage`.

    The stages before it prepare b. None if there is no such kernel for these arguments.
    """
    if dtype not in _OWN or 0 in (m, n, k):
        return None
    a, b = Operand(a_slot, (), *a_strides), Operand(b_slot, (), *b_strides)
    plan = _Plan(dtype, blas.choose(dtype), area, any_rows=True)
    return plan.stages if plan.multiply_rows(Product((), m, n, k, a, b), out_slot) else None


def _compute_dtype(dtype: DType) -> DType:
    if dtype not in _SUPPORTED:
        names = ", ".join(d.name for d in _SUPPORTED)
        raise DTypeError(f"matmul: the library takes {names}, got {dtype.name}.")
    return dtypes.float32 if dtype in _HALVES else dtype


def _check_extents(product: Product, chosen: Library) -> None:
    extent = max(product.n, product.k)
    if extent > chosen.largest:
        raise ShapeError(
            f"matmul: {chosen.name} takes extents up to {chosen.largest}, got {extent}. "
            "Split the matrix."
        )


def _collapsed(p: Product) -> Product:
    """The same product with fewer batch dimensions: folded into m, merged, or dropped."""
    dims = [
        d for d in zip(p.batch, p.a.batch, p.b.batch, strict=True) if d[0] != 1
    ]  # (extent, stride in a, stride in b)
    m, row = p.m, p.a.row
    while dims and dims[-1][2] == 0 and (m == 1 or dims[-1][1] == m * row):
        extent, stride, _ = dims.pop()
        row = stride if m == 1 else row
        m *= extent
    merged: list[tuple[int, int, int]] = []
    for extent, sa, sb in dims:
        if merged and merged[-1][1] == extent * sa and merged[-1][2] == extent * sb:
            extent *= merged.pop()[0]
        merged.append((extent, sa, sb))
    batch, a_batch, b_batch = zip(*merged, strict=True) if merged else ((), (), ())
    a, b = p.a._replace(batch=a_batch, row=row), p.b._replace(batch=b_batch)
    return Product(batch, m, p.n, p.k, a, b)


class _Plan:
    """The stages of a product, in the order they are found to be needed."""

    def __init__(
        self, dtype: DType, chosen: Library, area: Callable[[int], int], any_rows: bool = False
    ):
        self.dtype, self.library, self.area = dtype, chosen, area
        self.any_rows = any_rows  # whether stages may be run for any range of their rows
        self.stages: list[native.Stage] = []

    def multiply(self, p: Product, out: int) -> None:
        if self.dtype in _OWN and self.multiply_rows(_upright(p), out):
            return
        small = p.m * p.n <= _SMALL_OUTPUT and not p.batch and self.dtype in _OWN
        if 1 in (p.m, p.n) and self.library.name.startswith("OpenBLAS"):
            self._gemv(p, out)
        elif small and p.k >= 2 * _PART and self._is_readable(p):
            self._parts(p, out)
        else:
            self._gemm(p, out)

    def _is_readable(self, p: Product) -> bool:
        most = self.library.largest
        layouts = (_layout(p.a, p.m, p.k, most), _layout(p.b, p.k, p.n, most))
        return None not in layouts

    def multiply_halves(self, p: Product, half: DType, elements: int, out: int) -> None:
        """The product of dense float32 copies, rounded once."""
        a = self._pack(p.a, p.batch, p.m, p.k, half)
        b = self._pack(p.b, p.batch, p.k, p.n, half)
        wide = self._area(elements)
        self.multiply(p._replace(a=a, b=b), wide)
        code = gemm_code.narrow_kernel(half.name)
        self.stages.append(native.Stage(code, elements, _TASK_ELEMENTS, (wide, out)))

    def multiply_rows(self, p: Product, out: int) -> bool:
        """Whether a kernel of `small_gemm` makes the product: then its stages are there."""
        side_by_side = p.b.column == 1 or p.n == 1
        across = p.a.column * p.k * self.dtype.itemsize if p.m > 1 and p.a.column != 1 else 0
        if p.n * p.k * self.dtype.itemsize > _LARGEST_B or across > _LARGEST_A:
            return False
        if p.m < _FEW_ROWS and not side_by_side:
            if p.k > 1 and (p.b.row, p.a.column) != (1, 1):
                return False
            self._dots(p, out)
            return True
        if not side_by_side:
            if p.b.row != 1 and p.k > 1:
                return False
            p = p._replace(b=self._transposed(p))
        self._direct(p, out)
        return True

    def _parts(self, p: Product, out: int) -> None:
        """Cuts k in parts and adds their products in order."""
        part = -(-p.k // (p.k // _PART))
        count, size = -(-p.k // part), p.m * p.n
        a = p.a._replace(batch=(part * p.a.column,))
        b = p.b._replace(batch=(part * p.b.row,))
        products = self._area(count * size)
        self._gemm(Product((count,), p.m, p.n, part, a, b), products, p.k)
        total, strides = _total(self.dtype), [(1, size)]
        self.stages += reduce_stages(
            total, (size,), (count,), [products], strides, out, self.area, shared=True
        )

    def _direct(self, p: Product, out: int) -> None:
        rows = math.prod(p.batch) * p.m
        grain = direct_gemm.task_rows(rows, _grain(2 * p.n * p.k))
        bytes_ = [[s * self.dtype.itemsize for s in x.batch] for x in (p.a, p.b)]
        params = direct_gemm.direct_params(
            self.dtype,
            (p.a.slot, p.b.slot, out),
            (p.m, p.n, p.k),
            (p.a.row, p.a.column, p.b.row),
            index_params(p.batch, *bytes_),
            () if self.any_rows else direct_gemm.part_lengths(p.m, rows, grain),
        )
        self.stages.append(native.Stage(direct_gemm.direct_kernel(), rows, grain, params))

    def _dots(self, p: Product, out: int) -> None:
        params = (
            *(p.a.slot, p.b.slot, out, p.m, p.n, p.k, p.a.row, p.b.column),
            *index_params(p.batch, p.a.batch, p.b.batch),
        )
        rows = math.prod(p.batch) * p.m
        grain = min(rows, _grain(2 * p.n * p.k))
        code = small_gemm.dots_kernel(self.dtype)
        self.stages.append(native.Stage(code, rows, grain, params))

    def _transposed(self, p: Product) -> Operand:
        """A copy of b whose columns lie side by side."""
        dims = [(e, s) for e, s in zip(p.batch, p.b.batch, strict=True) if s != 0]
        count = math.prod(e for e, _ in dims)
        lanes = vectors.lanes_of(self.dtype)
        pitch, height = (-(-extent // lanes) * lanes for extent in (p.n, p.k))
        slot = self._area(count * height * pitch)
        extents, strides = zip(*dims, strict=True) if dims else ((), ())
        params = (p.b.slot, slot, p.k, p.n, p.b.column, pitch, *index_params(extents, strides))
        blocks = -(-p.k // lanes)
        grain = max(1, _TASK_ELEMENTS // (pitch * lanes))
        code = small_gemm.transpose_kernel(self.dtype)
        self.stages.append(native.Stage(code, count * blocks, grain, params))
        return Operand(slot, _packed_strides(p.batch, p.b.batch, height * pitch), pitch, 1)

    def _gemm(self, p: Product, out: int, all_k: int = _NO_PARTS) -> None:
        a, a_transposed, lda = self._readable(p.a, p.batch, p.m, p.k)
        b, b_transposed, ldb = self._readable(p.b, p.batch, p.k, p.n)
        count = math.prod(p.batch)
        tile_m, tile_n = _tile(p.m, p.n, p.k, count)
        across = -(-p.n // tile_n)
        tiles = -(-p.m // tile_m) * across
        params = (
            *(a.slot, b.slot, out, tiles, across, tile_m, tile_n, p.m, p.n, p.k, all_k),
            *(a_transposed, b_transposed, lda, ldb, a.row, b.column),
            *index_params(p.batch, a.batch, b.batch),
        )
        grain = _grain(2 * tile_m * tile_n * p.k)
        code = gemm_code.gemm_kernel(self.dtype, self.library)
        self.stages.append(native.Stage(code, count * tiles, grain, params))

    def _gemv(self, p: Product, out: int) -> None:
        """A product with a vector, as y = op(matrix) vector."""
        if p.n == 1:
            matrix, long = p.a, p.m
            vector, step = p.b, p.b.row
        else:
            matrix, long = p.b._replace(row=p.b.column, column=p.b.row), p.n
            vector, step = p.a, p.a.column
        matrix, transposed, leading = self._readable(matrix, p.batch, long, p.k)
        step = 1 if p.k == 1 else step
        if not 0 < step <= self.library.largest:
            vector = self._pack(vector._replace(row=0, column=step), p.batch, 1, p.k, self.dtype)
            step = 1
        count = math.prod(p.batch)
        # A transposed matrix is read across: tiles that are narrow would jump from row to row.
        tile = max(512 if transposed else 64, -(-max(_TASK_FLOPS // 8, long * p.k // 32) // p.k))
        tiles = -(-long // tile)
        params = (
            *(matrix.slot, vector.slot, out, tiles, tile, long, p.k),
            *(transposed, leading, matrix.row, step),
            *index_params(p.batch, matrix.batch, vector.batch),
        )
        grain = _grain(8 * min(tile, long) * p.k)
        self.stages.append(
            native.Stage(gemm_code.gemv_kernel(self.dtype), count * tiles, grain, params)
        )

    def _readable(
        self, x: Operand, batch: tuple[int, ...], rows: int, columns: int
    ) -> tuple[Operand, int, int]:
        """The operand (packed if it must be), whether it is transposed, its leading dimension."""
        found = _layout(x, rows, columns, self.library.largest)
        if found is None:
            x = self._pack(x, batch, rows, columns, self.dtype)
            found = _layout(x, rows, columns, self.library.largest)
        if found is None:
            raise ShapeError(
                f"matmul: {self.library.name} takes extents up to {self.library.largest}, "
                f"got a matrix of {rows}x{columns}. Split it."
            )
        return (x, *found)

    def _pack(
        self, x: Operand, batch: tuple[int, ...], rows: int, columns: int, stored: DType
    ) -> Operand:
        """A dense copy in the dtype of the computation, broadcast dimensions left out."""
        by_rows = columns == 1 or (rows > 1 and 0 < abs(x.row) < abs(x.column))
        outer, inner = (columns, rows) if by_rows else (rows, columns)
        steps = (x.column, x.row) if by_rows else (x.row, x.column)
        dims = [(e, s) for e, s in zip(batch, x.batch, strict=True) if s != 0]
        units = math.prod(e for e, _ in dims) * outer
        slot = self._area(units * inner)
        extents, strides = zip(*dims, (outer, steps[0]), strict=True)
        params = (x.slot, slot, inner, steps[1], *index_params(extents, strides))
        grain = max(1, _TASK_ELEMENTS // inner)
        code = gemm_code.pack_kernel(stored.name)
        self.stages.append(native.Stage(code, units, grain, params))
        row, column = (1, inner) if by_rows else (inner, 1)
        return Operand(slot, _packed_strides(batch, x.batch, outer * inner), row, column)

    def _area(self, elements: int) -> int:
        """The slot of a new scratch area."""
        return self.area(elements * self.dtype.itemsize)


@functools.cache
def _total(dtype: DType) -> Reduce:
    zero, x = const(0.0, dtype), acc("a", 0, dtype)
    return Reduce((dtype,), dtype, (zero,), (load(0, dtype),), (x + acc("b", 0, dtype),), (x,))


def _packed_strides(
    batch: tuple[int, ...], strides: tuple[int, ...], matrix: int
) -> tuple[int, ...]:
    """The batch strides of a dense copy, broadcast dimensions left out."""
    found, dense = [], matrix
    for extent, stride in zip(reversed(batch), reversed(strides), strict=True):
        found.append(dense if stride else 0)
        dense *= extent if stride else 1
    return tuple(reversed(found))


def _upright(p: Product) -> Product:
    """The same product with the vector, if there is one, on the left."""
    if p.n > 1 or p.m == 1:
        return p
    a = p.b._replace(row=0, column=p.b.row)
    return p._replace(m=1, n=p.m, a=a, b=p.a._replace(row=p.a.column, column=p.a.row))


def _layout(x: Operand, rows: int, columns: int, largest: int) -> tuple[int, int] | None:
    """(transposed, leading dimension) with which a library reads the matrix, None if it can't."""
    if (x.column == 1 or columns == 1) and (rows == 1 or columns <= x.row <= largest):
        return 0, x.row if rows > 1 else columns
    if (x.row == 1 or rows == 1) and (columns == 1 or rows <= x.column <= largest):
        return 1, x.column if columns > 1 else rows
    return None


def _tile(m: int, n: int, k: int, count: int) -> tuple[int, int]:
    """The extents of a tile: few, large ones, because each packs its operands again.

    Measured on one Zen 3 core (float32): 256x256 tiles of a 1024x1024 product ran at 0.93 of the
    speed of one call, 128x128 tiles of a 512x512 product at 0.85.
    """
    tile_m, tile_n = m, n
    for enough, side in ((2, 64), (4, 128), (16, 256), (64, 1024)):
        while True:
            units = count * -(-m // tile_m) * -(-n // tile_n)
            longest = max(tile_m, tile_n)
            half = -(-longest // 64) * 32
            if units >= enough or half < side or tile_m * tile_n * k < _TASK_FLOPS:
                break
            tile_m, tile_n = (half, tile_n) if tile_m == longest else (tile_m, half)
    return tile_m, tile_n


def _grain(flops: int) -> int:
    """How many units of `flops` make a task."""
    return max(1, _TASK_FLOPS // max(1, flops))
