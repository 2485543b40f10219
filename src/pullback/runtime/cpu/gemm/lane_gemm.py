"""Products of many small matrices: each lane of a vector has a product of its own.

An element is a chain along k, as `order.product` says; all sizes are constants of the code.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.lanes import Lanes, LaneTile

__all__ = ["product_kernel"]


@functools.cache
def product_kernel(
    dtype: DType, sizes: tuple[int, int, int], a_turned: bool, b_turned: bool
) -> int:
    """a (m x k), b (k x n) -> their product; a turned operand lies column after column."""
    m, n, k = sizes
    lanes = Lanes("product", dtype, 2, max(sizes), turned=(a_turned, b_turned))
    with lanes.groups():
        a, b = lanes.tile(1, m, k), lanes.tile(2, k, n)
        out = LaneTile(lanes, m, n)
        for i in range(m):
            for j in range(n):
                total = lanes.number(0.0)
                for c in range(k):
                    total = lanes.fused(a.get(i, c), b.get(c, j), total)
                out.put(total, i, j)
        lanes.write(out, m, n)
    return address(lanes.code)
