"""Errors that depend on values: an array that passes if a condition holds for every matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, LinAlgError
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.linalg.arguments import detached, largest, spacing
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.families import primitive
from pullback.ops.logic import logical_not
from pullback.ops.movement import repeated
from pullback.ops.reductions import any as any_

__all__ = ["require", "vanishing"]


def _samples(d: Any) -> list[Sample]:
    return [
        Sample((d.real(2, 3), np.ones(2, np.bool_), "none", "is wrong.")),
        Sample((d.real(3), np.ones((), np.bool_), "none", "is wrong.")),
    ]


def _require_batch(op: Any, x: Any, flags: Any, caller: str, fact: str, examples: int) -> Any:
    operands = repeated(x, examples), repeated(flags, examples)
    return bind(op, *operands, caller=caller, fact=fact)


@primitive(
    "x flags",
    infer=lambda x, flags, caller, fact: (x.shape, x.dtype),
    lowering=Intrinsic("require", raises=True),
    vjp={"x": lambda g: g},
    jvp={"x": lambda t: t},
    batch=_require_batch,
    oracle=lambda x, flags, caller, fact: x,
    samples=_samples,
    errors=lambda d: [
        Bad((d.real(2), np.array([True, False]), "require", "is wrong."), {}, LinAlgError, "at 1"),
        Bad((d.real(2), d.real(2), "require", "is wrong."), {}, DTypeError, "booleans"),
    ],
    namespace="primitive",
)
def require(x: Any, flags: Any, /, caller: str, fact: str) -> Any:
    """The array as it is, if all flags are set; else a `LinAlgError` that `caller` raises.

    >>> pb.primitive.require(pb.tensor([1.0]), pb.tensor([True]), "svd", "is wrong.")
    tensor([1.], float32, cpu)
    """
    if flags._aval.dtype is not dt.bool_:
        raise DTypeError(f"require: flags are booleans, got {flags._aval.dtype.name}.")
    return bind(require.op, x, detached(flags), caller=caller, fact=fact)


def vanishing(bad: Any, scale: Any) -> Any:
    """For each matrix whether all of `bad` are 0 beside the largest element of `scale`.

    The bound is the square root of the spacing of numbers: errors of rounding are far below, and
    what a user means to compute is above. NaN vanish too: they are no news.
    """
    bad = abs_(detached(bad))
    bound = largest(scale, (-2, -1), keepdims=True) * spacing(bad) ** 0.5
    return logical_not(any_(bad > bound, axis=(-2, -1)))
