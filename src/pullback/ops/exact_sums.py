"""The sum by index whose bits depend on nothing but the values: exact, and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.ir.lowering import ScatterRows
from pullback.ir.op import bind
from pullback.ops import gather_scatter
from pullback.ops.families import primitive

__all__ = ["scatter_add_exact"]


@primitive(
    "x updates *indices",
    infer=gather_scatter.scatter_infer,
    lowering=ScatterRows(gather_scatter.add, sums=True, exact=True),
    vjp={
        "x": lambda g: g,
        "updates": lambda g, indices: bind(gather_scatter.gather.op, g, *indices),
    },
    jvp="linear",
    oracle=gather_scatter.scatter_oracle(np.add),
    samples=gather_scatter.scatter_samples(3),
    errors=gather_scatter.scatter_errors,
    namespace="primitive",
)
def scatter_add_exact(x: Any, updates: Any, /, *indices: Any) -> Any:
    """`scatter_add` whose sums are exact before they are rounded: no order can change their bits.

    >>> big = pb.tensor([1e30, 1.0, -1e30])
    >>> pb.primitive.scatter_add_exact(pb.zeros(2), big, pb.tensor([0, 0, 0]))
    tensor([1., 0.], float32, cpu)

    Every runtime gives the same bits. float64 and complex128 are summed in twice their precision.
    """
    return gather_scatter.scattered(scatter_add_exact.op, x, updates, indices)
