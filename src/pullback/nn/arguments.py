"""What the functions of this package ask of their arguments, and how losses are reduced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core import errors
from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import Array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.fused import fused
from pullback.ops.families import broadcast_shapes, composite
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum
from pullback.ops.selection import where
from pullback.ops.statistics import mean

__all__ = [
    "activation",
    "away_from_kinks",
    "broadcast_check",
    "channel_axis",
    "class_numbers",
    "detached",
    "floating",
    "inexact",
    "numpy_reduced",
    "option",
    "ratio_of_sums",
    "reduced",
    "reported_by",
    "when_large",
    "wide",
]

LAYOUTS = ("channels_first", "channels_last")
REDUCTIONS = ("none", "mean", "sum")


# -- arrays ----------------------------------------------------------------------------------------


def inexact(name: str, *xs: Any) -> list[Any]:
    """The operands as arrays of one floating or complex dtype; None stays None."""
    arrays = same_dtype(name, *xs)
    if next(a for a in arrays if a is not None)._aval.dtype.is_inexact:
        return arrays
    return [a if a is None else astype(a, default_float()) for a in arrays]


def floating(name: str, *xs: Any) -> list[Any]:
    """The operands as arrays of one floating dtype; None stays None."""
    arrays = inexact(name, *xs)
    dtype = next(a for a in arrays if a is not None)._aval.dtype
    if dtype.is_complex:
        raise DTypeError(f"{name}: expected a floating dtype, got {dtype.name}. Cast with astype.")
    return arrays


def detached(x: Any) -> Any:
    """The same values, as a constant in every derivative."""
    return x.detach()


def broadcast_check(name: str, *xs: Any) -> tuple[int, ...]:
    """The shape that the arrays broadcast to; an error is that of the function called."""
    return broadcast_shapes(name, *[x._aval.shape for x in xs if x is not None])


def channel_axis(name: str, x: Any, layout: str, first: int = 1) -> int:
    """The axis of the channels: the last one, or the one that `first` axes come before."""
    option(name, "layout", layout, LAYOUTS)
    if x._aval.ndim <= first:
        raise ShapeError(
            f"{name}: the array has no axis of channels, got shape {x._aval.shape}."
            f" It needs at least {first + 1} dimensions."
        )
    return first if layout == "channels_first" else x._aval.ndim - 1


def option(name: str, what: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse a word that is none of those allowed."""
    if value not in allowed:
        raise DTypeError(f"{name}: {what} is one of {', '.join(allowed)}, got {value!r}.")


def reported_by(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function; an index out of range is reported under the name given."""
    with errors.ReportedBy(name):
        return function(*args, **kwargs)


def class_numbers(
    name: str, target: Any, classes: int, ignore_index: int | None = None
) -> tuple[Any, Any]:
    """Class indices that are safe to read with, and a mask of those that count.

    Here a negative index is an error, not a place counted from the end: it is sent out of range.
    """
    if not target._aval.dtype.is_integer:
        raise DTypeError(f"{name}: class indices are integers, got {target._aval.dtype.name}.")
    target = astype(target, dt.int64)
    known = where(target < 0, classes, target)
    if ignore_index is None:
        return known, None
    counts = target != ignore_index
    return where(counts, known, 0), counts


# -- large arrays ----------------------------------------------------------------------------------

LARGE = 1 << 20  # elements from which a compiled unit pays for its compilation in a few calls


def when_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, as one compiled unit where its first array is large: the bits are the same."""
    compiled = fused(function)
    name = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get(name)
        large = isinstance(first, Array) and first._aval.size >= LARGE
        return (compiled if large else function)(*args, **kwargs)

    return chosen


# -- losses ----------------------------------------------------------------------------------------


def reduced(name: str, loss: Any, reduction: str) -> Any:
    """The losses of the elements, or their mean or sum."""
    option(name, "reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return loss
    return mean(loss) if reduction == "mean" else sum(loss)


def wide(x: Any) -> Any:
    """Half precision as float32: long sums and counts do not fit it."""
    return astype(x, dt.float32) if x._aval.dtype in (dt.float16, dt.bfloat16) else x


def ratio_of_sums(numerators: Any, denominators: Any) -> Any:
    """`sum(numerators) / sum(denominators)` in the dtype of the numerators."""
    quotient = sum(wide(numerators)) / sum(wide(denominators))
    return astype(quotient, numerators._aval.dtype)


def numpy_reduced(loss: np.ndarray, reduction: str) -> np.ndarray:
    """The same for oracles."""
    if reduction == "none":
        return np.asarray(loss)
    return np.asarray(loss.mean() if reduction == "mean" else loss.sum())


# -- records ---------------------------------------------------------------------------------------


def away_from_kinks(d: Draw, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Numbers that keep a distance from every multiple of 0.25 times `scale`."""
    return np.asarray(d.distinct(*shape) * d.dtype.type(scale))


def activation(
    oracle: Callable[..., Any],
    *options: dict[str, Any],
    draw: Callable[..., np.ndarray] = Draw.real,
    bad: Sequence[Bad] = (),
    takes_complex: bool = False,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function of single elements; every one of `options` becomes a sample."""

    def samples(d: Draw) -> list[Sample]:
        first, *more = options or ({},)
        return [
            Sample((draw(d, 3, 5),), first),
            *[Sample((draw(d, 6),), o) for o in more],
            Sample((draw(d),), first),
            Sample((draw(d, 0, 2),), first),
        ]

    def errors(d: Draw) -> list[Bad]:
        own = (options or ({},))[0]
        found = [Bad((object(),), own, DTypeError, "expected an array"), *bad]
        if not takes_complex:
            found.append(Bad((np.ones(3, np.complex64),), own, DTypeError, "got complex64"))
        return found

    declare = composite(oracle=oracle, samples=samples, errors=errors, namespace="nn")
    return lambda function: declare(when_large(function))
