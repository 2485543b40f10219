"""Errors that depend on values, in compiled functions too: an array that passes if a condition
holds everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, LinAlgError, ShapeError
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
    op: Any, x: Any, flags: Any, caller: str, fact: str, error: str, examples: int
) -> Any:
    operands = repeated(x, examples), repeated(flags, examples)
    return bind(op, *operands, caller=caller, fact=fact, error=error)


@primitive(
    "x flags",
    infer=lambda x, flags, caller, fact, error: (x.shape, x.dtype),
    lowering=Intrinsic("require", raises=True),
    vjp={"x": lambda g: g},
    jvp={"x": lambda t: t},
    batch=_require_batch,
    oracle=lambda x, flags, caller, fact: x,
    samples=_samples,
    errors=lambda d: [
        Bad((d.real(2), np.array([True, False]), "require", "is wrong."), {}, LinAlgError, "at 1"),
        Bad(
            (d.real(2), np.array([True, False]), "require", "place {place}.", "ShapeError"), {},
            ShapeError, "require: place 1",
        ),
        Bad((d.real(2), d.real(2), "require", "is wrong."), {}, DTypeError, "booleans"),
        Bad((d.real(2), d.mask(2), "require", "", "KeyError"), {}, DTypeError, "got 'KeyError'"),
    ],
    namespace="primitive",
)  # fmt: skip
def require(x: Any, flags: Any, /, caller: str, fact: str, error: str = "LinAlgError") -> Any:
    """The array as it is, if all flags are set; else a `LinAlgError` that `caller` raises about the
    matrix at the first place that is not, or a `ShapeError` whose `fact` may name the `{place}`.

    >>> pb.primitive.require(pb.tensor([1.0]), pb.tensor([True]), "svd", "is wrong.")
    tensor([1.], float32, cpu)
    """
    if flags._aval.dtype is not dt.bool_:
        raise DTypeError(f"require: flags are booleans, got {flags._aval.dtype.name}.")
    if error not in ("LinAlgError", "ShapeError"):
        raise DTypeError(f"require: an error is a LinAlgError or a ShapeError, got {error!r}.")
    flags = flags.detach() if flags._node is not None else flags
    return bind(require.op, x, flags, caller=caller, fact=fact, error=error)


def within(name: str, what: str, x: Any, low: int, high: int) -> Any:
    """The array, if all its elements lie between two bounds; else the error says which does not."""
    if x._aval.is_symbolic:
        flags = (x >= low) & (x <= high)
        fact = f"{what} must lie between {low} and {high}, got another at {{place}}."
        return require(x, flags, name, fact, "ShapeError")
    values = to_numpy(x)
    wrong = values[~((values >= low) & (values <= high))]
    if wrong.size:
        raise ShapeError(f"{name}: {what} must lie between {low} and {high}, got {wrong[0]}.")
    return x
