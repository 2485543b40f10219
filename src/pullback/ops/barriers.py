"""`barrier`: a value that can't be had before another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.convert import as_array
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import broadcast_shapes, primitive

__all__ = ["barrier"]


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(2, 3), d.real())),
        Sample((d.real(), np.asarray(np.nan))),
        Sample((d.real(0, 2), d.mask())),
    ]


@primitive(
    "x after",
    infer=lambda x, after: (broadcast_shapes("barrier", x.shape, after.shape), x.dtype),
    lowering=Elementwise(lambda x, after: x),
    vjp={"x": lambda g: g},
    jvp={"x": lambda t: t},
    batch="elementwise",
    oracle=lambda x, after: x,
    samples=_samples,
    errors=lambda d: [Bad((d.real(2), d.real(2)), {}, ShapeError, "must be 0-d")],
    namespace="primitive",
)
def barrier(x: Any, after: Any, /) -> Any:
    """`x` itself; a compiled function does not have it before the 0-d array `after` is known.

    What is computed of it is not merged with what is computed of `x`.

    >>> pb.primitive.barrier(pb.tensor([1.0, 2.0]), pb.tensor(0))
    tensor([1., 2.], float32, cpu)
    """
    x, after = as_array(x, "barrier"), as_array(after, "barrier")
    if after._aval.ndim:
        raise ShapeError(f"barrier: what comes before must be 0-d, got shape {after._aval.shape}.")
    return bind(barrier.op, x, after)
