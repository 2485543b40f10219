"""Kernels around a library's matrix products: its calls, copies it can read, rounding, zeros."""

from __future__ import annotations

import functools

from llvmlite import ir

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.runtime.cpu.gemm import blas
from pullback.runtime.cpu.gemm.blas import Matrix
from pullback.runtime.cpu.llvm.builder import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Value,
    address,
    kernel,
    offsets,
)

__all__ = ["gemm_kernel", "gemv_kernel", "narrow_kernel", "pack_kernel", "zero_kernel"]


@functools.cache
def gemm_kernel(dtype: DType) -> int:
    """Library calls, one for each tile."""
    code = kernel(ir.Module(), "gemm")
    params, ptrs, lo, hi, _ = code.args
    b, size = code.b, ir.ArrayType(I8, dtype.itemsize)
    names = ("a", "b", "out", "tiles", "across", "tile_m", "tile_n", "m", "n", "k")
    names += ("a_transposed", "b_transposed", "lda", "ldb", "a_row", "b_column")
    p = {name: code.load(params, i, I64) for i, name in enumerate(names)}
    x, y, out = (code.load(ptrs, p[name], PTR) for name in ("a", "b", "out"))
    a_transposed, b_transposed = (b.trunc(p[f"{o}_transposed"], I1) for o in "ab")
    with code.range(lo, hi) as unit:
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
            (rows, columns, p["k"]),
            Matrix(code.at(x, x_at, size), p["lda"], a_transposed),
            Matrix(code.at(y, y_at, size), p["ldb"], b_transposed),
            Matrix(code.at(out, out_at, size), p["n"], code.int(0, I1)),
        )
    return address(code)


@functools.cache
def gemv_kernel(dtype: DType) -> int:
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
def pack_kernel(name: str) -> int:
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
def narrow_kernel(name: str) -> int:
    """Rounds float32 to the half dtype `name`, from the slot params[0] to params[1]."""
    code = kernel(ir.Module(), "narrow")
    params, ptrs, lo, hi, _ = code.args
    source, target = (code.load(ptrs, code.load(params, i, I64), PTR) for i in (0, 1))
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
def zero_kernel() -> int:
    """Clears bytes of the slot params[0]."""
    code = kernel(ir.Module(), "zero")
    params, ptrs, lo, hi, _ = code.args
    fill = code.declare("llvm.memset.p0.i64", VOID, (PTR, I8, I64, I1))
    target = code.at(code.load(ptrs, code.load(params, 0, I64), PTR), lo, I8)
    code.b.call(fill, (target, code.int(0, I8), code.b.sub(hi, lo), code.int(0, I1)))
    return address(code)
