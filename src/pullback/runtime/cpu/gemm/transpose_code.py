"""Transposed copies of small matrices: their columns then lie side by side (`direct_gemm`)."""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record
from pullback.runtime.cpu.llvm.vectors import Vectors, squared
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["TRANSPOSE", "transpose_kernel", "turned"]

TRANSPOSE = Record("source target", "rows columns stride pitch")


@functools.cache
def transpose_kernel(dtype: DType) -> int:
    """A kernel that copies dense columns to rows of whole vectors; params are `TRANSPOSE`.

    A unit is a block of as many rows as a vector has lanes, of a matrix of the batch, which comes
    after the params. The last block of a matrix is filled up with zeros.
    """
    module = IRModule()
    f = Function(module, "@kernel")
    p = BatchParams(f, TRANSPOSE)
    v = Vectors(f, dtype)
    source, target = p.pointers
    pitch, lanes = p["pitch"], str(v.lanes)
    blocks = f(f"udiv i64 {f.add(p['rows'], str(v.lanes - 1))}, {lanes}")
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, blocks)
        i = f.mul(block, lanes)
        first = v.at(source, f.add(p.offsets(item, 1)[0], i))
        out = v.at(target, f.mul(f.mul(unit.i, lanes), pitch))
        _rows(v, first, out, f.sub(p["rows"], i), p["columns"], p["stride"], pitch)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def turned(
    v: Vectors, source: str, target: str, rows: str, columns: str, stride: str, pitch: str
) -> None:
    """Code that copies the dense columns of a matrix to rows of whole vectors."""
    f = v.f
    with f.loop("0", rows, str(v.lanes)) as block:
        first, out = v.at(source, block.i), v.at(target, f.mul(block.i, pitch))
        _rows(v, first, out, f.sub(rows, block.i), columns, stride, pitch)


def _rows(
    v: Vectors, first: str, out: str, rows: str, columns: str, stride: str, pitch: str
) -> None:
    """As many rows as a vector has lanes; zeros where fewer are left."""
    f, mask = v.f, v.mask(rows)
    last = f.sub(columns, "1")
    with f.loop("0", pitch, str(v.lanes)) as j:
        # The last column again where there are fewer than lanes.
        chosen = [f.minimum(f.add(j.i, str(c)), last) for c in range(v.lanes)]
        vectors = [v.load(v.at(first, f.mul(c, stride)), mask) for c in chosen]
        for r, row in enumerate(squared(v, vectors)):
            v.store(row, v.at(out, f.add(f.mul(pitch, str(r)), j.i)))
