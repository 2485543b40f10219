"""Transposed copies of small matrices: their columns then lie side by side (`direct_gemm`)."""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.vectors import NamedParams, Vectors, squared
from pullback.runtime.cpu.llvm.writer import Function, Module

__all__ = ["TRANSPOSE", "transpose_kernel"]

TRANSPOSE = ("source", "target", "rows", "columns", "stride", "pitch")


@functools.cache
def transpose_kernel(dtype: DType) -> int:
    """A kernel that copies dense columns to rows of whole vectors; params are `TRANSPOSE`.

    A unit is a block of as many rows as a vector has lanes, of a matrix of the batch, which comes
    after the params. The last block of a matrix is filled up with zeros.
    """
    module = Module()
    f = Function(module, "@kernel")
    p = NamedParams(f, TRANSPOSE, 2)
    v = Vectors(f, dtype)
    source, target = p.pointers
    pitch, lanes = p["pitch"], str(v.lanes)
    blocks = f(f"udiv i64 {f.add(p['rows'], str(v.lanes - 1))}, {lanes}")
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, blocks)
        i = f.mul(block, lanes)
        first = v.at(source, f.add(p.offsets(item, 1)[0], i))
        out = v.at(target, f.mul(f.mul(unit.i, lanes), pitch))
        mask = v.mask(f.sub(p["rows"], i))
        with f.loop("0", pitch, lanes) as j:
            for r, row in enumerate(_square(f, v, p, first, j.i, mask)):
                v.store(row, v.at(out, f.add(f.mul(pitch, str(r)), j.i)))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _square(f: Function, v: Vectors, p: NamedParams, first: str, j: str, mask: str) -> list[str]:
    """Columns from j on, as rows; the last column again where there are fewer than lanes."""
    last = f.sub(p["columns"], "1")
    columns = [f.minimum(f.add(j, str(c)), last) for c in range(v.lanes)]
    vectors = [v.load(v.at(first, f.mul(c, p["stride"])), mask) for c in columns]
    return squared(v, vectors)
