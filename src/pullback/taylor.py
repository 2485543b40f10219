"""Taylor mode: derivatives of high order along a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pullback.autodiff.recorded import Recorded
from pullback.core import pytrees
from pullback.core.errors import DTypeError, ShapeError, briefly
from pullback.ir.op import REGISTRY

__all__ = ["jet"]


@briefly
def jet(
    f: Callable[[Any], Any],
    x: Any,
    order: int | None = None,
    direction: Any = None,
    series: Sequence[Any] | None = None,
) -> list[Any]:
    """The derivatives of `f(x + t * direction)` by t at 0, from order 0, the value, to `order`.

    Without a direction every element of `x` moves at speed 1: of a function of elements these are
    then its derivatives at each. The time grows with the square of the order, not as `2**order`.

    >>> pb.jet(pb.sin, pb.tensor(0.0), order=3)[3]
    tensor(-1., float32, cpu)

    `series` instead of a direction holds the derivatives of a curve through `x`, from the first
    one; what is missing up to `order` is zero. Results are those of f along the curve.

    >>> pb.jet(pb.exp, pb.tensor(0.0), series=[pb.tensor(1.0), pb.tensor(2.0)])
    [tensor(1., float32, cpu), tensor(1., float32, cpu), tensor(3., float32, cpu)]
    """
    given = _curve(x, direction, series)
    count = _order(order, len(given))
    recorded = Recorded("jet", f, (x,), directions=(given[0],) if given else None)
    if not given:
        recorded.seeds = [_ones(v) for v in recorded.variables]
    curve = [recorded.seeds]
    curve += [recorded.primals.directions("jet", (tree,)) for tree in given[1:]]
    terms = [
        [_divided(t, i + 1) for i, t in enumerate(column)] for column in zip(*curve, strict=True)
    ]
    found = recorded.expanded([column + [None] * (count - len(column)) for column in terms])
    derivatives = [
        pytrees.map_tree(lambda t, i=i: t if i < 2 else t * float(math.factorial(i)), tree)
        for i, tree in enumerate(found, 1)
    ]
    return [recorded.value, *derivatives]


def _curve(x: Any, direction: Any, series: Sequence[Any] | None) -> list[Any]:
    """The derivatives of the curve, none for that of speed 1."""
    if series is None:
        return [] if direction is None else [direction]
    if direction is not None:
        raise DTypeError(
            "jet: a curve is given by a direction or by a series, got both. A direction is the"
            " first term of a series."
        )
    if not isinstance(series, (list, tuple)) or not series:
        raise DTypeError(
            "jet: series is a list of derivatives of the curve, from the first one, got"
            f" {series!r}."
        )
    return list(series)


def _order(order: Any, terms: int) -> int:
    if order is None and terms:
        return terms
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise DTypeError(f"jet: order is a positive number of derivatives, got {order!r}.")
    if order < terms:
        raise ShapeError(
            f"jet: the series has {terms} terms, got order {order}. Leave out those that aren't"
            " used, or raise the order."
        )
    return order


def _ones(x: Any) -> Any:
    av = x._aval
    return REGISTRY["ones"].function(av.shape, dtype=av.dtype, device=av.device)


def _divided(x: Any, order: int) -> Any:
    """A coefficient of the Taylor series, from the derivative of that order."""
    return x if order < 2 else x * (1.0 / math.factorial(order))
