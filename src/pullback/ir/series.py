"""Taylor coefficients of quotients: of what is defined by an equation that is linear in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["remaining"]


def remaining(
    n: int,
    right: Sequence[Any],
    factor: Sequence[Any],
    out: Sequence[Any],
    product: Callable[[Any, Any], Any],
) -> Any:
    """What `factor[0] * out[n]` must be for `factor * out = right` to hold at order n; None for
    zero.
    """
    rest = right[n]
    for i in range(1, n + 1):
        if factor[i] is None or out[n - i] is None:
            continue
        known = product(factor[i], out[n - i])
        rest = -known if rest is None else rest - known
    return rest
