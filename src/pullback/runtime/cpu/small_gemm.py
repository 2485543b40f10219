"""Products of small real matrices in LLVM IR: for them a library call costs more than the work.

A block of the output is held in registers while k runs in order, so the sum of an element does not
depend on its neighbours. A block is eight rows by one vector of columns, or four by two.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.loops import I32, I64, PTR, Code, Value, address, kernel, offsets

__all__ = ["PARAMS", "pays", "small_kernel"]

PARAMS = ("a", "b", "out", "m", "n", "k", "a_row", "a_column", "b_row")
_LARGEST = 16**3  # multiplications; from about here on the libraries are as quick


def pays(dtype: DType, m: int, n: int, k: int) -> bool:
    """Whether `small_kernel` does this product, and is quicker than a library."""
    if dtype not in (dtypes.float32, dtypes.float64):
        return False
    return m * n * k <= _LARGEST and m > 1 and n % _lanes(dtype) == 0


def _lanes(dtype: DType) -> int:
    return jit.host().vector_bits // (8 * dtype.itemsize)


def small_kernel(dtype: DType, n: int) -> int:
    """A kernel over the matrices of a batch; params are `PARAMS`, then the batch.

    The columns of b must be next to each other, in whole vectors; a may have any strides.
    """
    lanes = _lanes(dtype)
    return _kernel(dtype, lanes, 1 if n % (2 * lanes) else 2)


@functools.cache
def _kernel(dtype: DType, lanes: int, vectors: int) -> int:
    code = kernel(ir.Module(), "small_gemm")
    params, ptrs, lo, hi, _ = code.args
    b, real = code.b, ir.FloatType() if dtype is dtypes.float32 else ir.DoubleType()
    p = {name: code.load(params, i, I64) for i, name in enumerate(PARAMS)}
    x, y, out = (code.load(ptrs, p[name], PTR) for name in ("a", "b", "out"))
    block = _Block(code, real, lanes, vectors, p)
    across = b.udiv(p["n"], code.int(lanes * vectors))
    down = b.udiv(b.add(p["m"], code.int(block.rows - 1)), code.int(block.rows))
    with code.range(lo, hi) as item:
        x_at, y_at = offsets(code, len(PARAMS), item, 2)
        target = code.at(out, b.mul(item, b.mul(p["m"], p["n"])), real)
        matrices = (code.at(x, x_at, real), code.at(y, y_at, real), target)
        with code.range(0, across) as j, code.range(0, down) as i:
            start = b.mul(j, code.int(lanes * vectors))
            block.emit(*matrices, b.mul(i, code.int(block.rows)), start)
    return address(code)


class _Block:
    """Code for one block of the output."""

    def __init__(self, code: Code, real: ir.Type, lanes: int, vectors: int, p: dict[str, Value]):
        self.code, self.real, self.lanes, self.vectors, self.p = code, real, lanes, vectors, p
        self.rows = 8 // vectors  # eight sums hide the latency of a multiply-add
        self.vector = ir.VectorType(real, lanes)
        bits = 32 if real == ir.FloatType() else 64
        self.align = bits // 8
        self.fma = code.declare(f"llvm.fmuladd.v{lanes}f{bits}", self.vector, [self.vector] * 3)

    def emit(self, x: Value, y: Value, out: Value, i: Value, j: Value) -> None:
        """Rows from i on (the last one again where there are fewer) by columns from j on."""
        code, b, p = self.code, self.code.b, self.p
        last = b.sub(p["m"], code.int(1))
        rows = [code.minimum(b.add(i, code.int(r)), last) for r in range(self.rows)]
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        sums = [[code.variable(zero) for _ in range(self.vectors)] for _ in rows]
        heads = [code.at(x, b.mul(row, p["a_row"]), self.real) for row in rows]
        with code.range(0, p["k"]) as k:
            line = code.at(y, b.add(b.mul(k, p["b_row"]), j), self.real)
            columns = [code.load(line, v, self.vector, self.align) for v in range(self.vectors)]
            for head, row in zip(heads, sums, strict=True):
                factor = self._splat(code.load(head, b.mul(k, p["a_column"]), self.real))
                for total, column in zip(row, columns, strict=True):
                    total.set(b.call(self.fma, (factor, column, total.get())))
        for index, row in zip(rows, sums, strict=True):
            line = code.at(out, b.add(b.mul(index, p["n"]), j), self.real)
            for v, total in enumerate(row):
                at = code.at(line, code.int(v), self.vector)
                b.store(total.get(), at, align=self.align)

    def _splat(self, value: Value) -> Value:
        b = self.code.b
        none = ir.Constant(self.vector, ir.Undefined)
        one = b.insert_element(none, value, self.code.int(0, I32))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return b.shuffle_vector(one, none, zeros)
