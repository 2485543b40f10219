"""Matrix products on the CPU: which kernels make them, and how the work is cut.

All keep `order.product`: bits depend on shapes and values, not on layouts. A complex product is
four real ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import index
from typing import NamedTuple

from pullback.compile.kernel import order
from pullback.compile.schedule.product_rows import MOST_FACTOR_BYTES
from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import (
    complex_gemm,
    copy_code,
    direct_gemm,
    lane_gemm,
    packed_gemm,
    panel_gemm,
    transpose_code,
    vector_gemm,
)
from pullback.runtime.cpu.gemm.cut import cut_of, task_tiles
from pullback.runtime.cpu.llvm import vectors
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.llvm.lanes import LANES, lane_params

__all__ = ["grain_of", "matmul_row_stages", "matmul_stages"]
__tuning__ = (
    "_TASK_FLOPS", "_TASK_ELEMENTS", "_LARGEST_B", "_MOST_B", "_MANY_ROWS", "_LARGEST_A",
    "_SMALL_OUTPUT", "_MANY_CHUNKS", "_VECTOR_COST", "_COLUMNS", "_MANY_COLUMNS", "_SHARED_SIDE",
    "_SHARED_FLOPS", "_MOST_COPIED", "_THIN",
    "_SMALL_SIDE", "_MANY_SMALL", "_LANE_COST",
)  # fmt: skip

_HALVES = (dtypes.float16, dtypes.bfloat16)
_SUPPORTED = (*_HALVES, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)
_TASK_FLOPS = 2_000_000  # 20-50 us: what a task needs to be worth handing to another thread
_TASK_ELEMENTS = 1 << 16  # that a task copies or adds: some tens of microseconds
_OWN = (dtypes.float32, dtypes.float64)  # products of these are made without a library
_LARGEST_B = 1 << 16  # bytes: `direct_gemm` reads b again for every few rows
_MOST_B = 1 << 18  # likewise, of many dense rows: it stays in the L2 cache, and neither is copied
_MANY_ROWS = 48  # of a thread: two of its tasks
_LARGEST_A = 1 << 16  # bytes of a transposed a, whose lines it reads for every few rows
_SMALL_OUTPUT = 1 << 14  # elements: it can't be cut, but a long k can
_MANY_CHUNKS = 4  # of k, from which on it pays to share them out
_ALL = 1 << 62  # more than any k: the product is not cut along it
_LINE = 16  # columns of a tile are a multiple
_VECTOR_COST = 8  # of a multiplication with an element that is used once
_COLUMNS = 32  # whose k lie side by side, of a tile
_MANY_COLUMNS = 512  # of a row, from which on all of k is read at a time where it lies side by side
_SHARED_SIDE = 128  # rows and columns from which on copies of operands are worth sharing
# Each thread reads what all others have written, which comes slowly, and the copies take a stage of
# their own.
_SHARED_FLOPS = 10_000_000  # likewise, times the square of the number of threads
_MOST_COPIED = 1 << 25  # bytes of the copies of both operands: of longer k pieces are made in turn
_SMALL_SIDE = 6  # rows and columns of products that are made side by side: all is unrolled
_MANY_SMALL = 64  # of them, from which on code for one size pays
_LANE_COST = 8  # of an element that is turned
_THIN = 2  # rows of a product that reads its matrix where it is


class MatrixOperand(NamedTuple):
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
    a: MatrixOperand
    b: MatrixOperand


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
        return [copy_code.zero_stage(out_slot, nbytes)] if elements else []
    a = MatrixOperand(a_slot, tuple(a_strides[:-2]), *a_strides[-2:])
    b = MatrixOperand(b_slot, tuple(b_strides[:-2]), *b_strides[-2:])
    product = _collapsed(Product(tuple(batch_shape), m, n, k, a, b))
    plan = _Plan(compute, area)
    if dtype is compute:
        plan.multiply(product, out_slot)
    else:
        plan.multiply_halves(product, dtype, elements, out_slot)
    return plan.stages


def matmul_row_stages(
    dtype: DType,
    sides: tuple[int, int, int],
    a: tuple[int, Sequence[int]],
    b: tuple[int, Sequence[int]],
    out_slot: int,
    area: Callable[[int], int],
) -> list[native.Stage] | None:
    """A product of two matrices whose last stage has one unit per row, for `stages.rows_stage`.

    The stages before it prepare b. None if there is no such kernel for these arguments.
    """
    if dtype not in _OWN or 0 in sides:
        return None
    left, right = (MatrixOperand(slot, (), *strides) for slot, strides in (a, b))
    plan = _Plan(dtype, area, any_rows=True)
    return plan.stages if plan.multiply_rows(Product((), *sides, left, right), out_slot) else None


def _compute_dtype(dtype: DType) -> DType:
    if dtype not in _SUPPORTED:
        names = ", ".join(d.name for d in _SUPPORTED)
        raise DTypeError(f"matmul: the library takes {names}, got {dtype.name}.")
    return dtypes.float32 if dtype in _HALVES else dtype


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
        self,
        dtype: DType,
        area: Callable[[int], int],
        any_rows: bool = False,
    ):
        self.dtype, self.area = dtype, area
        self.any_rows = any_rows  # whether stages may be run for any range of their rows
        self.stages: list[native.Stage] = []

    def multiply(self, p: Product, out: int) -> None:
        if self.dtype.is_complex:
            self._multiply_complex(_upright(p), out)
        else:
            self._multiply_real(_upright(p), out)

    def _multiply_complex(self, p: Product, out: int) -> None:
        """The products of the parts, and then what joins them."""
        elements = math.prod(p.batch) * p.m * p.n
        products = self._area(2 * elements)
        if not _is_beside(p) and (p.m > 1 or (p.b.row != 1 and p.k > 1)):
            b = self._pack(p.b, p.batch, p.k, p.n, self.dtype, by_rows=p.m == 1)
            p = p._replace(b=b)
        real = _Plan(self.dtype.real, self.area)
        real.stages = self.stages
        # Strides of elements that are half as large.
        a, b = (MatrixOperand(x.slot, tuple(2 * s for s in x.batch), 2 * x.row, 2 * x.column)
                for x in (p.a, p.b))  # fmt: skip
        count, turns = p.n, _is_beside(p)
        if p.m > 1:
            count = elements
            a, b = (x._replace(batch=(s, *x.batch)) for x, s in ((a, 1), (b, 0)))
            b = b._replace(column=1)
            real.multiply(Product((2, *p.batch), p.m, 2 * p.n, p.k, a, b), products)
        elif turns:
            wide = p._replace(m=2, n=2 * p.n, a=a._replace(row=1), b=b._replace(column=1))
            real.multiply(wide, products)
        else:
            both = p._replace(m=2, a=a._replace(row=1), b=b._replace(row=2))
            real.multiply_parts(both, products)
        code = complex_gemm.join_kernel(real.dtype, turns)
        params = complex_gemm.JOINED.packed(parts=products, out=out, count=count)
        self.stages.append(native.Stage(code, elements, _TASK_ELEMENTS, params))

    def _multiply_real(self, p: Product, out: int) -> None:
        if _suits_lanes(p) and not self.any_rows:
            self._side_by_side(p, out)
        elif _is_thin(p, self.dtype):
            self._multiply_thin(p, out)
        elif not self.multiply_rows(p, out):
            self._in_chunks(p, out, p.m * p.n, self._large)

    def _side_by_side(self, p: Product, out: int) -> None:
        """Small products, each in a lane of its own."""
        (count,), sizes = p.batch, (p.m, p.n, p.k)
        turned = not _is_dense(p.a, p.m, p.k), not _is_dense(p.b, p.k, p.n)
        code = lane_gemm.product_kernel(self.dtype, sizes, *turned)
        steps = p.m * p.n, p.a.batch[0], p.b.batch[0]
        arrays = out, p.a.slot, p.b.slot
        params = lane_params(2).packed(array=arrays, count=count, code=0, step=steps)
        grain = grain_of(_LANE_COST * LANES * (p.m * p.k + p.k * p.n + p.m * p.n))
        self.stages.append(native.Stage(code, -(-count // LANES), grain, params))

    def _multiply_thin(self, p: Product, out: int) -> None:
        """A product whose left operand has one row or two."""
        if not _is_beside(p) and p.b.row != 1:
            p = p._replace(b=self._pack(p.b, p.batch, p.k, p.n, self.dtype))
        self.multiply_parts(p, out, 1)

    def multiply_parts(self, p: Product, out: int, parts: int = 2) -> None:
        """The same, where columns of b may have `parts` that take turns along k.

        There is a row of sums for each row of a, and each part.
        """
        make = functools.partial(self._vector, parts)
        if not _is_beside(p) and p.n >= _MANY_COLUMNS:
            make(p, out)
        else:
            self._in_chunks(p, out, p.m * p.n * parts, make)

    def multiply_halves(self, p: Product, half: DType, elements: int, out: int) -> None:
        """The product of dense float32 copies, rounded once."""
        a = self._pack(p.a, p.batch, p.m, p.k, half)
        b = self._pack(p.b, p.batch, p.k, p.n, half)
        wide = self._area(elements)
        self.multiply(p._replace(a=a, b=b), wide)
        code = copy_code.narrow_kernel(half.name)
        params = copy_code.NARROWED.packed(source=wide, target=out)
        self.stages.append(native.Stage(code, elements, _TASK_ELEMENTS, params))

    def multiply_rows(self, p: Product, out: int) -> bool:
        """Whether `direct_gemm` makes the product: then its stages are there."""
        side_by_side = p.b.column == 1 or p.n == 1
        across = p.a.column * p.k * self.dtype.itemsize if p.m > 1 and p.a.column != 1 else 0
        most = MOST_FACTOR_BYTES if self.any_rows else _LARGEST_B
        many = math.prod(p.batch) * p.m >= _MANY_ROWS * native.get_threads()
        if many and not across and (side_by_side or not any(p.b.batch)):
            most = _MOST_B
        if p.n * p.k * self.dtype.itemsize > most or across > _LARGEST_A:
            return False
        if not side_by_side:
            if p.b.row != 1 and p.k > 1:
                return False
            if any(p.b.batch) and not self.any_rows:
                self._direct(p, out, turn=True)
                return True
            p = p._replace(b=self._transposed(p))
        self._direct(p, out)
        return True

    def _in_chunks(self, p: Product, out: int, size: int, make: Callable[..., None]) -> None:
        """Lets threads share k, if it is long and the output too small to be shared.

        The products of chunks of k are made one by one and added up in order; `size` elements each.
        """
        count = -(-p.k // order.CHUNK)
        light = 3 * count * size <= (p.m + p.n) * p.k  # beside the operands
        if count < _MANY_CHUNKS or size > _SMALL_OUTPUT or p.batch or not light:
            make(p, out)
            return
        a = p.a._replace(batch=(order.CHUNK * p.a.column,))
        b = p.b._replace(batch=(order.CHUNK * p.b.row,))
        products = self._area(count * size)
        make(Product((count,), p.m, p.n, order.CHUNK, a, b), products, p.k)
        apart = size * self.dtype.itemsize
        params = vector_gemm.SUMMED.packed(parts=products, out=out, count=count, apart=apart)
        code = vector_gemm.sum_kernel(self.dtype)
        self.stages.append(native.Stage(code, size, _TASK_ELEMENTS, params))

    def _direct(self, p: Product, out: int, turn: bool = False) -> None:
        rows = math.prod(p.batch) * p.m
        b_row, kernel = p.b.row, direct_gemm.direct_kernel
        if turn:
            b_row, by_vectors = direct_gemm.turned_pitch(self.dtype, p.n, p.k)
            kernel = functools.partial(kernel, self.dtype, by_vectors)
        tasks = 2 * rows * p.n * p.k // _TASK_FLOPS
        grain = direct_gemm.task_rows(rows, tasks, native.get_threads())
        params = direct_gemm.direct_params(
            self.dtype,
            (p.a.slot, p.b.slot, out),
            (p.m, p.n, p.k),
            (p.a.row, p.a.column, b_row, p.b.column),
            index_params(p.batch, *self._bytes(p)),
            () if self.any_rows else direct_gemm.part_lengths(p.m, rows, grain),
        )
        self.stages.append(native.Stage(kernel(), rows, grain, params))

    def _vector(self, parts: int, p: Product, out: int, all_k: int = _ALL) -> None:
        size, items = self.dtype.itemsize, math.prod(p.batch)
        beside = _is_beside(p)
        slots = {"a": p.a.slot, "b": p.b.slot, "out": out}
        if self._is_many(p, parts):
            lanes = vectors.lanes_of(self.dtype)
            columns, turns = (1, index(p.n)) if beside else (p.n, parts)
            params = vector_gemm.CHUNKS.packed(
                **slots, n=columns, k=p.k, all_k=all_k, count=items, b_step=p.b.column * size,
                a_item=p.a.batch[0] * size, b_item=p.b.batch[0] * size,
            )  # fmt: skip
            units, work = -(-items // lanes), lanes * p.n * parts * p.k
            code = vector_gemm.chunks_kernel(self.dtype, index(p.m), turns)
        else:
            most = vector_gemm.MOST_SUM_BYTES // (size * p.m) if beside else _COLUMNS
            tiles = -(-p.n // most)
            width = -(-p.n // (tiles * _LINE)) * _LINE
            b_step = p.b.row if beside else p.b.column
            record = vector_gemm.TILES.packed(
                **slots, n=p.n, k=p.k, all_k=all_k, a_row=p.a.row * size, a_step=p.a.column * size,
                b_step=b_step * size, plane=p.n * size, item=p.m * parts * p.n * size,
                width=width, tiles=tiles,
            )  # fmt: skip
            params = (*record, *index_params(p.batch, *self._bytes(p)))
            units, work = items * tiles, min(width, p.n) * parts * p.k
            if beside:
                code = vector_gemm.rows_kernel(self.dtype, index(p.m))
            else:
                code = vector_gemm.dots_kernel(self.dtype, index(p.m), parts)
        self.stages.append(native.Stage(code, units, grain_of(_VECTOR_COST * work), params))

    def _is_many(self, p: Product, parts: int) -> bool:
        """Whether there are many products of few columns, whose k lie side by side."""
        lanes = vectors.lanes_of(self.dtype)
        dense = p.a.column == p.m and (p.m == 1 or p.a.row == 1)
        dense = dense and (not _is_beside(p) or p.b.row == p.n)
        return dense and len(p.batch) == 1 and 2 * p.n * parts <= lanes <= 2 * p.batch[0]

    def _large(self, p: Product, out: int, all_k: int = _ALL) -> None:
        work = 2 * math.prod(p.batch) * p.m * p.n * p.k
        long = work >= _SHARED_FLOPS * native.get_threads() ** 2
        if all_k == _ALL and min(p.m, p.n) >= _SHARED_SIDE and long:
            self._packed(p, out)
        else:
            self._panels(p, out, all_k)

    def _packed(self, p: Product, out: int) -> None:
        """Both operands are copied before the first tile, in pieces of whole chunks of k."""
        count, sides = math.prod(p.batch), packed_gemm.sides_of(self.dtype)
        items = [count if any(x.batch) else 1 for x in (p.a, p.b)]
        lines = p.m, p.n
        shape = {"m": p.m, "n": p.n}
        nbytes = [i * s.panels(x) * s.nbytes for i, s, x in zip(items, sides, lines, strict=True)]
        chunks = -(-p.k // order.CHUNK)
        piece = min(chunks, max(1, _MOST_COPIED // sum(nbytes)))
        a_to, b_to = (self.area(piece * n) for n in nbytes)
        size, threads = self.dtype.itemsize, native.get_threads()
        rows, columns = cut_of(self.dtype, p.m, p.n, p.k, count, threads, copied=True)
        across = -(-p.n // columns)
        tiles = -(-p.m // rows) * across
        batch = index_params(p.batch, *self._bytes(p))
        for first in range(0, chunks, piece):
            at = first * order.CHUNK
            k = min(p.k - at, piece * order.CHUNK)
            now = -(-k // order.CHUNK)
            units = [i * now * s.groups(x) for i, s, x in zip(items, sides, lines, strict=True)]
            params = packed_gemm.COPY.packed(
                a=p.a.slot, b=p.b.slot, a_to=a_to, b_to=b_to, **shape, k=k, **self._steps(p),
                a_at=at * p.a.column * size, b_at=at * p.b.row * size, b_units=units[1],
            )  # fmt: skip
            code = packed_gemm.copy_kernel(self.dtype)
            self.stages.append(native.Stage(code, sum(units), 1, (*params, *batch)))
            own = [now * n // i if i > 1 else 0 for n, i in zip(nbytes, items, strict=True)]
            params = packed_gemm.TILES.packed(
                a=a_to, b=b_to, out=out, **shape, k=k, tile_m=rows, tile_n=columns, tiles=tiles,
                across=across, a_item=own[0], b_item=own[1], first=int(first == 0),
            )  # fmt: skip
            code = packed_gemm.tile_kernel(self.dtype)
            self.stages.append(native.Stage(code, count * tiles, 1, params))

    def _panels(self, p: Product, out: int, all_k: int = _ALL) -> None:
        count, threads = math.prod(p.batch), native.get_threads()
        cut = cut_of(self.dtype, p.m, p.n, p.k, count, threads)
        across, tiles = -(-p.n // cut.columns), cut.tiles(p.m, p.n)
        record = panel_gemm.WHOLE.packed(
            a=p.a.slot, b=p.b.slot, out=out, m=p.m, n=p.n, k=p.k, all_k=all_k, **self._steps(p),
            tile_m=cut.rows, tile_n=cut.columns, tiles=tiles, across=across,
        )  # fmt: skip
        params = (*record, *index_params(p.batch, *self._bytes(p)))
        grain = task_tiles(cut, p.k, count * tiles, threads)
        self.stages.append(
            native.Stage(panel_gemm.panel_kernel(self.dtype), count * tiles, grain, params)
        )

    def _steps(self, p: Product) -> dict[str, int]:
        """The strides of matrices in bytes, by the names that params have for them."""
        steps = {"a_row": p.a.row, "a_column": p.a.column, "b_row": p.b.row, "b_column": p.b.column}
        return {name: step * self.dtype.itemsize for name, step in steps.items()}

    def _bytes(self, p: Product) -> list[list[int]]:
        """The strides of a batch in bytes, of a and of b."""
        return [[s * self.dtype.itemsize for s in x.batch] for x in (p.a, p.b)]

    def _transposed(self, p: Product) -> MatrixOperand:
        """A copy of b whose columns lie side by side."""
        dims = [(e, s) for e, s in zip(p.batch, p.b.batch, strict=True) if s != 0]
        count = math.prod(e for e, _ in dims)
        lanes = vectors.lanes_of(self.dtype)
        pitch, height = (-(-extent // lanes) * lanes for extent in (p.n, p.k))
        slot = self._area(count * height * pitch)
        extents, strides = zip(*dims, strict=True) if dims else ((), ())
        record = transpose_code.TRANSPOSE.packed(
            source=p.b.slot, target=slot, rows=p.k, columns=p.n, stride=p.b.column, pitch=pitch
        )
        params = (*record, *index_params(extents, strides))
        blocks = -(-p.k // lanes)
        grain = max(1, _TASK_ELEMENTS // (pitch * lanes))
        code = transpose_code.transpose_kernel(self.dtype)
        self.stages.append(native.Stage(code, count * blocks, grain, params))
        return MatrixOperand(slot, _packed_strides(p.batch, p.b.batch, height * pitch), pitch, 1)

    def _pack(
        self,
        x: MatrixOperand,
        batch: tuple[int, ...],
        rows: int,
        columns: int,
        stored: DType,
        by_rows: bool | None = None,
    ) -> MatrixOperand:
        """A dense copy in the dtype of the computation, broadcast dimensions left out.

        Rows lie side by side if they do nearly, or as `by_rows` says.
        """
        if by_rows is None:
            by_rows = columns == 1 or (rows > 1 and 0 < abs(x.row) < abs(x.column))
        outer, inner = (columns, rows) if by_rows else (rows, columns)
        steps = (x.column, x.row) if by_rows else (x.row, x.column)
        dims = [(e, s) for e, s in zip(batch, x.batch, strict=True) if s != 0]
        units = math.prod(e for e, _ in dims) * outer
        slot = self._area(units * inner)
        extents, strides = zip(*dims, (outer, steps[0]), strict=True)
        record = copy_code.PACKED.packed(source=x.slot, target=slot, length=inner, stride=steps[1])
        params = (*record, *index_params(extents, strides))
        grain = max(1, _TASK_ELEMENTS // inner)
        code = copy_code.pack_kernel(stored.name)
        self.stages.append(native.Stage(code, units, grain, params))
        row, column = (1, inner) if by_rows else (inner, 1)
        return MatrixOperand(slot, _packed_strides(batch, x.batch, outer * inner), row, column)

    def _area(self, elements: int) -> int:
        """The slot of a new scratch area."""
        return self.area(elements * self.dtype.itemsize)


def _packed_strides(
    batch: tuple[int, ...], strides: tuple[int, ...], matrix: int
) -> tuple[int, ...]:
    """The batch strides of a dense copy, broadcast dimensions left out."""
    found, dense = [], matrix
    for extent, stride in zip(reversed(batch), reversed(strides), strict=True):
        found.append(dense if stride else 0)
        dense *= extent if stride else 1
    return tuple(reversed(found))


def _suits_lanes(p: Product) -> bool:
    """Whether there are many products of small matrices that lie dense, turned or not."""
    if len(p.batch) != 1 or p.batch[0] < _MANY_SMALL or max(p.m, p.n, p.k) > _SMALL_SIDE:
        return False
    sides = (p.a, p.m, p.k), (p.b, p.k, p.n)
    return all(_is_dense(*side) or _is_dense(*_turned(*side)) for side in sides)


def _turned(x: MatrixOperand, rows: int, columns: int) -> tuple[MatrixOperand, int, int]:
    return x._replace(row=x.column, column=x.row), columns, rows


def _is_dense(x: MatrixOperand, rows: int, columns: int) -> bool:
    """Whether the rows of each matrix lie one after the other."""
    return (columns == 1 or x.column == 1) and (rows == 1 or x.row == columns)


def _is_thin(p: Product, dtype: DType) -> bool:
    """Whether the matrix is best read once: it is large, or a column is long."""
    if p.m > _THIN:
        return False
    few = 2 * p.n <= vectors.lanes_of(dtype) and p.k >= _MANY_CHUNKS * order.CHUNK
    return p.n * p.k * dtype.itemsize > _LARGEST_B or few


def _is_beside(p: Product) -> bool:
    """Whether the columns of b lie side by side."""
    return p.b.column == 1 and p.n > 1


def _upright(p: Product) -> Product:
    """The same product with the vector, if there is one, on the left."""
    if p.n > 1 or p.m == 1:
        return p
    a = p.b._replace(row=0, column=p.b.row)
    return p._replace(m=1, n=p.m, a=a, b=p.a._replace(row=p.a.column, column=p.a.row))


def grain_of(flops: int) -> int:
    """How many units of `flops` make a task."""
    return max(1, _TASK_FLOPS // max(1, flops))
