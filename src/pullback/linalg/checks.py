"""What is zero up to rounding, for rules that have a derivative only then."""

from __future__ import annotations

from typing import Any

from pullback.linalg.arguments import detached, largest, spacing
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.logic import logical_not
from pullback.ops.reductions import any as any_

__all__ = ["vanishing"]


def vanishing(bad: Any, scale: Any) -> Any:
    """For each matrix whether all of `bad` are 0 beside the largest element of `scale`.

    The bound is the square root of the spacing of numbers: errors of rounding are far below, and
    what a user means to compute is above. NaN vanish too: they are no news.
    """
    bad = abs_(detached(bad))
    bound = largest(scale, (-2, -1), keepdims=True) * spacing(bad) ** 0.5
    return logical_not(any_(bad > bound, axis=(-2, -1)))
