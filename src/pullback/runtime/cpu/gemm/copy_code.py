"""Kernels around products of matrices: copies of operands, rounding, zeros."""

from __future__ import annotations

import functools

from pullback.core import dtypes
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, kernel, offsets
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import (
    FLOAT,
    HALF,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    VOID,
    Value,
    integer,
)
from pullback.runtime.cpu.native import Stage

__all__ = ["NARROWED", "PACKED", "narrow_kernel", "pack_kernel", "zero_stage"]
__tuning__ = ("_CLEARED_BYTES",)

PACKED = Record("source target", "length stride")  # of rows, elements apart in the source
NARROWED = Record("source target")
CLEARED = Record("target")
_CLEARED_BYTES = 1 << 20  # of a task: some tens of microseconds


@functools.cache
def pack_kernel(name: str) -> int:
    """Copies rows: params are `PACKED`, then extents and strides of rows."""
    code = kernel(IRModule(), "pack")
    _, _, lo, hi, _ = code.args
    dtype = dtypes.as_dtype(name)
    loaded = HALF if name == "float16" else integer(8 * dtype.itemsize)
    a = PACKED.unpacked(code)
    with code.range(lo, hi) as unit:
        row = code.at(a["source"], offsets(code, len(PACKED), unit, 1)[0], loaded)
        start = unit * a["length"]
        with code.range(0, a["length"]) as i:
            value = code.load(row, i * a["stride"], loaded, min(dtype.itemsize, 8))
            value = _widened(code, name, value)
            code.store(value, a["target"], start + i)
    return address(code)


def _widened(code: Code, name: str, value: Value) -> Value:
    """A half as float32; any other value as it is."""
    if name == "float16":
        return value.fpext(FLOAT)
    if name == "bfloat16":
        bits = value.zext(I32) << 16
        return bits.bitcast(FLOAT)
    return value


@functools.cache
def narrow_kernel(name: str) -> int:
    """Rounds float32 to the half dtype `name`; params are `NARROWED`."""
    code = kernel(IRModule(), "narrow")
    _, _, lo, hi, _ = code.args
    a = NARROWED.unpacked(code)
    with code.range(lo, hi) as i:
        value = code.load(a["source"], i, FLOAT)
        narrow = value.fptrunc(HALF) if name == "float16" else _bfloat(code, value)
        code.store(narrow, a["target"], i)
    return address(code)


def _bfloat(code: Code, value: Value) -> Value:
    """The upper half of a float32, rounded to nearest even; NaN stays NaN."""
    bits = value.bitcast(I32)
    upper = bits >> 16
    odd = upper & 1
    rounded = (bits + (odd + 0x7FFF)) >> 16
    quiet = upper | 0x40
    result = code.select(code.is_nan(value), quiet, rounded)
    return result.trunc(I16)


def zero_stage(slot: int, nbytes: int) -> Stage:
    """The stage that clears an array."""
    return Stage(_zero_kernel(), nbytes, _CLEARED_BYTES, CLEARED.packed(target=slot))


@functools.cache
def _zero_kernel() -> int:
    """Clears bytes; params are `CLEARED`."""
    code = kernel(IRModule(), "zero")
    _, ptrs, lo, hi, _ = code.args
    fill = code.declare("llvm.memset.p0.i64", VOID, (PTR, I8, I64, I1))
    target = code.at(code.load(ptrs, CLEARED.loaded(code, "target"), PTR), lo, I8)
    code.call(fill, (target, code.int(0, I8), hi - lo, code.int(0, I1)))
    return address(code)
