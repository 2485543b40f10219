"""Kernels around products of matrices: copies of operands, rounding, zeros."""

from __future__ import annotations

import functools

from llvmlite import ir

from pullback.core import dtypes
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

__all__ = ["narrow_kernel", "pack_kernel", "zero_kernel"]


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
