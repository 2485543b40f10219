"""Errors that depend on values, in compiled functions too: an array that passes if a condition
holds for every member of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, LinAlgError, ShapeError
from pullback.ir.array import make
from pullback.ir.convert import to_numpy
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.ops.families import primitive
from pullback.ops.movement import repeated

__all__ = ["require", "within"]


def _samples(d: Any) -> list[Sample]:
    return [
        Sample((d.real(2, 3), np.ones(2, np.bool_), "none", "is wrong.")),
        Sample((d.real(3), np.ones((), np.bool_), "none", "is wrong.")),
    ]


def _require_batch(
    op: Any, x: Any, flags: Any, caller: str, fact: str, subject: str, error: str, examples: int
) -> Any:
    operands = repeated(x, examples), repeated(flags, examples)
    return bind(op, *operands, caller=caller, fact=fact, subject=subject, error=error)


@primitive(
    "x flags",
    infer=lambda x, flags, caller, fact, subject, error: (x.shape, x.dtype),
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
def require(
    x: Any,
    flags: Any,
    /,
    caller: str,
    fact: str,
    subject: str = "the matrix",
    error: str = "LinAlgError",
) -> Any:
    """The array as it is, if all flags are set; else an error that `caller` raises, of the subject
    at the place of the flag.

    >>> pb.primitive.require(pb.tensor([1.0]), pb.tensor([True]), "svd", "is wrong.")
    tensor([1.], float32, cpu)
    """
    if flags._aval.dtype is not dt.bool_:
        raise DTypeError(f"require: flags are booleans, got {flags._aval.dtype.name}.")
    flags = make(flags._buf, flags._aval)
    return bind(require.op, x, flags, caller=caller, fact=fact, subject=subject, error=error)


def within(name: str, what: str, x: Any, low: int, high: int) -> Any:
    """The array, if all its elements lie between two bounds; else the error says which does not."""
    fact = f"must lie between {low} and {high}"
    if x._aval.is_symbolic:
        flags = (x >= low) & (x <= high)
        return require(x, flags, name, f"{fact}.", f"the {what}", "ShapeError")
    values = to_numpy(x)
    wrong = values[~((values >= low) & (values <= high))]
    if wrong.size:
        raise ShapeError(f"{name}: the {what} {fact}, got {wrong[0]}.")
    return x
