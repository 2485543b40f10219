"""Matrix products on the CPU: operands packed where a library can't read them, work cut in tiles.

A tile is one single-threaded library call. Tiles depend on shapes only, so a product has the same
bits on every run and for any number of threads (it may differ between CPUs and libraries).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cpu import blas, native, small_gemm
from pullback.runtime.cpu.blas import Library, Matrix
from pullback.runtime.cpu.loops import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Value,
    address,
    index_params,
    kernel,
    offsets,
)

__all__ = ["library", "matmul_program"]

_HALVES = (dtypes.float16, dtypes.bfloat16)
_SUPPORTED = (*_HALVES, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)
_OUT, _A, _B, _SCRATCH = 0, 1, 2, 3  # slots of the pointers that a kernel gets
_TASK_FLOPS = 2_000_000  # 20-50 us: what a task needs to be worth handing to another thread
_TASK_ELEMENTS = 1 << 16
_HEAVY_FLOPS = 200_000


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
    compute = _compute_dtype(dtype)
    elements = math.prod(batch_shape) * m * n
    nbytes = elements * dtype.itemsize
    if elements == 0 or k == 0:
        stages = [native.Stage(_zero_kernel(), nbytes, 1 << 20, ())] if elements else []
        return native.program(2, nbytes, (), stages, False)
    chosen = blas.choose(compute)
    a = Operand(_A, tuple(a_strides[:-2]), *a_strides[-2:])
    b = Operand(_B, tuple(b_strides[:-2]), *b_strides[-2:])
    product = _collapsed(Product(tuple(batch_shape), m, n, k, a, b))
    _check_extents(product, chosen)
    plan = _Plan(dtype, compute, chosen)
    plan.multiply(product, elements)
    heavy = elements * k * 2 > _HEAVY_FLOPS
    return native.program(2, nbytes, tuple(plan.scratch), tuple(plan.stages), heavy)


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
    """Stages and scratch areas of a program, in the order they are found to be needed."""

    def __init__(self, dtype: DType, compute: DType, chosen: Library):
        self.dtype, self.compute, self.library = dtype, compute, chosen
        self.scratch: list[int] = []
        self.stages: list[native.Stage] = []

    def multiply(self, p: Product, elements: int) -> None:
        out = _OUT
        if self.dtype is not self.compute:
            out = self._area(elements)
        if p.b.column == 1 and small_gemm.pays(self.dtype, p.m, p.n, p.k):
            self._small(p)
        elif 1 in (p.m, p.n) and self.library.name.startswith("OpenBLAS"):
            self._gemv(p, out)
        else:
            self._gemm(p, out)
        if out != _OUT:
            convert = _narrow_kernel(self.dtype.name)
            self.stages.append(native.Stage(convert, elements, _TASK_ELEMENTS, (out,)))

    def _small(self, p: Product) -> None:
        params = (
            *(p.a.slot, p.b.slot, _OUT, p.m, p.n, p.k, p.a.row, p.a.column, p.b.row),
            *index_params(p.batch, p.a.batch, p.b.batch),
        )
        code, grain = small_gemm.small_kernel(self.dtype, p.n), _grain(2 * p.m * p.n * p.k)
        self.stages.append(native.Stage(code, math.prod(p.batch), grain, params))

    def _gemm(self, p: Product, out: int) -> None:
        a, a_transposed, lda = self._readable(p.a, p.batch, p.m, p.k)
        b, b_transposed, ldb = self._readable(p.b, p.batch, p.k, p.n)
        count = math.prod(p.batch)
        tile_m, tile_n = _tile(p.m, p.n, p.k, count)
        across = -(-p.n // tile_n)
        tiles = -(-p.m // tile_m) * across
        params = (
            *(a.slot, b.slot, out, tiles, across, tile_m, tile_n, p.m, p.n, p.k),
            *(a_transposed, b_transposed, lda, ldb, a.row, b.column),
            *index_params(p.batch, a.batch, b.batch),
        )
        grain = _grain(2 * tile_m * tile_n * p.k)
        code = _gemm_kernel(self.compute, self.library)
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
        if not 0 < step <= self.library.largest or self.dtype is not self.compute:
            vector = self._pack(vector._replace(row=0, column=step), p.batch, 1, p.k)
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
        self.stages.append(native.Stage(_gemv_kernel(self.compute), count * tiles, grain, params))

    def _readable(
        self, x: Operand, batch: tuple[int, ...], rows: int, columns: int
    ) -> tuple[Operand, int, int]:
        """The operand (packed if it must be), whether it is transposed, its leading dimension."""
        found = _layout(x, rows, columns, self.library.largest)
        if found is None or self.dtype is not self.compute:
            x = self._pack(x, batch, rows, columns)
            found = _layout(x, rows, columns, self.library.largest)
        if found is None:
            raise ShapeError(
                f"matmul: {self.library.name} takes extents up to {self.library.largest}, "
                f"got a matrix of {rows}x{columns}. Split it."
            )
        return (x, *found)

    def _pack(self, x: Operand, batch: tuple[int, ...], rows: int, columns: int) -> Operand:
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
        code = _pack_kernel(self.dtype.name)
        self.stages.append(native.Stage(code, units, grain, params))
        dense, strides = outer * inner, []
        for extent, stride in zip(reversed(batch), reversed(x.batch), strict=True):
            strides.append(dense if stride else 0)
            dense *= extent if stride else 1
        row, column = (1, inner) if by_rows else (inner, 1)
        return Operand(slot, tuple(reversed(strides)), row, column)

    def _area(self, elements: int) -> int:
        """The slot of a new scratch area."""
        self.scratch.append(elements * self.compute.itemsize)
        return _SCRATCH + len(self.scratch) - 1


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


@functools.cache
def _gemm_kernel(dtype: DType, chosen: Library) -> int:
    code = kernel(ir.Module(), "gemm")
    params, ptrs, lo, hi, _ = code.args
    b, size = code.b, ir.ArrayType(I8, dtype.itemsize)
    names = ("a", "b", "out", "tiles", "across", "tile_m", "tile_n", "m", "n", "k")
    names += ("a_transposed", "b_transposed", "lda", "ldb", "a_row", "b_column")
    p = {name: code.load(params, i, I64) for i, name in enumerate(names)}
    x, y, out = (code.load(ptrs, p[name], PTR) for name in ("a", "b", "out"))
    a_transposed, b_transposed = (b.trunc(p[f"{o}_transposed"], I1) for o in "ab")
    with blas.single_threaded(code, chosen), code.range(lo, hi) as unit:
        item, tile = b.udiv(unit, p["tiles"]), b.urem(unit, p["tiles"])
        i = b.mul(b.udiv(tile, p["across"]), p["tile_m"])
        j = b.mul(b.urem(tile, p["across"]), p["tile_n"])
        rows = code.minimum(p["tile_m"], b.sub(p["m"], i))
        columns = code.minimum(p["tile_n"], b.sub(p["n"], j))
        x_at, y_at = offsets(code, len(names), item, 2)
        x_at, y_at = b.add(x_at, b.mul(i, p["a_row"])), b.add(y_at, b.mul(j, p["b_column"]))
        out_at = b.add(b.mul(b.add(b.mul(item, p["m"]), i), p["n"]), j)
        blas.emit_gemm(
            code,
            dtype,
            chosen,
            (rows, columns, p["k"]),
            Matrix(code.at(x, x_at, size), p["lda"], a_transposed),
            Matrix(code.at(y, y_at, size), p["ldb"], b_transposed),
            Matrix(code.at(out, out_at, size), p["n"], code.int(0, I1)),
        )
    return address(code)


@functools.cache
def _gemv_kernel(dtype: DType) -> int:
    code = kernel(ir.Module(), "gemv")
    params, ptrs, lo, hi, _ = code.args
    b, size = code.b, ir.ArrayType(I8, dtype.itemsize)
    names = ("a", "x", "out", "tiles", "tile", "long", "k", "transposed", "lda", "row", "step")
    p = {name: code.load(params, i, I64) for i, name in enumerate(names)}
    matrix, vector, out = (code.load(ptrs, p[name], PTR) for name in ("a", "x", "out"))
    transposed = b.trunc(p["transposed"], I1)
    fill = code.declare("llvm.memset.p0.i64", VOID, (PTR, I8, I64, I1))
    with code.range(lo, hi) as unit:
        item = b.udiv(unit, p["tiles"])
        i = b.mul(b.urem(unit, p["tiles"]), p["tile"])
        rows = code.minimum(p["tile"], b.sub(p["long"], i))
        a_at, x_at = offsets(code, len(names), item, 2)
        target = code.at(out, b.add(b.mul(item, p["long"]), i), size)
        # Some gemv kernels scale y by beta = 0, which would keep a NaN of the memory's past.
        nbytes = b.mul(rows, code.int(dtype.itemsize))
        b.call(fill, (target, code.int(0, I8), nbytes, code.int(0, I1)))
        a = Matrix(code.at(matrix, b.add(a_at, b.mul(i, p["row"])), size), p["lda"], transposed)
        x = (code.at(vector, x_at, size), p["step"])
        blas.emit_gemv(code, dtype, (rows, p["k"]), a, x, target)
    return address(code)


@functools.cache
def _pack_kernel(name: str) -> int:
    """Copies rows: params are source, target, length, stride, then extents and strides of rows."""
    code = kernel(ir.Module(), "pack")
    params, ptrs, lo, hi, _ = code.args
    b = code.b
    dtype = dtypes.as_dtype(name)
    loaded = ir.HalfType() if name == "float16" else ir.IntType(8 * dtype.itemsize)
    source, target = (code.load(ptrs, code.load(params, i, I64), PTR) for i in (0, 1))
    length, stride = (code.load(params, i, I64) for i in (2, 3))
    with code.range(lo, hi) as unit:
        row = code.at(source, offsets(code, 4, unit, 1)[0], loaded)
        start = b.mul(unit, length)
        with code.range(0, length) as i:
            value = code.load(row, b.mul(i, stride), loaded, min(dtype.itemsize, 8))
            value = _widened(code, name, value)
            code.store(value, target, b.add(start, i))
    return address(code)


def _widened(code: Code, name: str, value: Value) -> Value:
    """A half as float32; any other value as it is."""
    b = code.b
    if name == "float16":
        return b.fpext(value, ir.FloatType())
    if name == "bfloat16":
        bits = b.shl(b.zext(value, I32), code.int(16, I32))
        return b.bitcast(bits, ir.FloatType())
    return value


@functools.cache
def _narrow_kernel(name: str) -> int:
    """Rounds float32 to the half dtype `name`, from the slot params[0] to the output."""
    code = kernel(ir.Module(), "narrow")
    params, ptrs, lo, hi, _ = code.args
    source = code.load(ptrs, code.load(params, 0, I64), PTR)
    target = code.load(ptrs, _OUT, PTR)
    with code.range(lo, hi) as i:
        value = code.load(source, i, ir.FloatType())
        narrow = code.b.fptrunc(value, ir.HalfType()) if name == "float16" else _bfloat(code, value)
        code.store(narrow, target, i)
    return address(code)


def _bfloat(code: Code, value: Value) -> Value:
    """The upper half of a float32, rounded to nearest even; NaN stays NaN."""
    b = code.b
    bits = b.bitcast(value, I32)
    upper = b.lshr(bits, code.int(16, I32))
    odd = b.and_(upper, code.int(1, I32))
    rounded = b.lshr(b.add(bits, b.add(odd, code.int(0x7FFF, I32))), code.int(16, I32))
    quiet = b.or_(upper, code.int(0x40, I32))
    result = b.select(b.fcmp_unordered("uno", value, value), quiet, rounded)
    return b.trunc(result, ir.IntType(16))


@functools.cache
def _zero_kernel() -> int:
    """Clears bytes of the output."""
    code = kernel(ir.Module(), "zero")
    _, ptrs, lo, hi, _ = code.args
    fill = code.declare("llvm.memset.p0.i64", VOID, (PTR, I8, I64, I1))
    target = code.at(code.load(ptrs, _OUT, PTR), lo, I8)
    code.b.call(fill, (target, code.int(0, I8), code.b.sub(hi, lo), code.int(0, I1)))
    return address(code)
