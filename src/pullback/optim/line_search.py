"""A line search for the strong Wolfe conditions, as one loop that can be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.control import while_loop
from pullback.ir.convert import as_array
from pullback.ops.arithmetic import abs as absolute
from pullback.ops.exponential import sqrt
from pullback.ops.logic import isfinite
from pullback.ops.selection import maximum, minimum, where

__all__ = ["strong_wolfe"]

DECREASE, CURVATURE = 1e-4, 0.9  # of the two Wolfe conditions, the usual ones
EXTRAPOLATION = 2.0  # times the last step, while no bracket is found
MARGIN = 0.1  # of the bracket, that a trial keeps from its ends


def strong_wolfe(
    evaluate: Callable[[Any], tuple[Any, Any]],
    x: Any,
    d: Any,
    value: Any,
    gradient: Any,
    slope: Any,
    length: Any,
    max_evaluations: int = 25,
) -> tuple[Any, Any, Any, Any]:
    """The length t of a step along `d` with sufficient decrease and curvature, with value and
    gradient at `x + t * d`, and the number of evaluations.

    A bracket is found by growing the step, then narrowed by cubic interpolation (Nocedal and
    Wright, Numerical Optimization, algorithms 3.5 and 3.6). Values that are not finite count as too
    large. Where no point fulfils the conditions, it is the best one that decreases.
    """
    zero = slope * 0.0
    start = {
        "t": length + zero,
        "low": (zero, value, slope, gradient),  # the best end of the bracket so far
        "high": (zero, value, slope),
        "bracketed": slope != slope,
        "done": slope != slope,
        "count": as_array(np.int64(0), "strong_wolfe", dev=x._aval.device),
    }

    def unfinished(c: dict[str, Any]) -> Any:
        return ~c["done"] & (c["count"] < max_evaluations)

    def trial(c: dict[str, Any]) -> dict[str, Any]:
        t = c["t"]
        now, g = evaluate(x + t * d)
        rise = (g * d).sum()
        low, high = c["low"], c["high"]
        enough = (now <= value + DECREASE * t * slope) & isfinite(now) & isfinite(rise)
        worse = ~enough | (now >= low[1]) & (c["bracketed"] | (c["count"] > 0))
        flat = ~worse & (absolute(rise) <= -CURVATURE * slope)
        # The bracket closes where the function rises; past the best point if that is behind us.
        turned = ~worse & where(c["bracketed"], rise * (high[0] - low[0]) >= 0.0, rise >= 0.0)
        here = (t, now, rise)
        high = _chosen(worse, here, _chosen(turned, low[:3], high))
        low = (*_chosen(worse, low[:3], here), where(worse, low[3], g))
        bracketed = c["bracketed"] | worse | turned
        following = where(bracketed, _between(low, high), t * EXTRAPOLATION)
        width = absolute(high[0] - low[0]) * absolute(d).max()
        return {
            "t": where(flat, t, following),
            "low": low,
            "high": high,
            "bracketed": bracketed,
            "done": flat | bracketed & (width <= 1e-12 * maximum(absolute(x).max(), 1.0)),
            "count": c["count"] + 1,
        }

    end = while_loop(unfinished, trial, start)
    t, best, _, g = end["low"]
    return t, best, g, end["count"]


def _chosen(condition: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(where(condition, p, q) for p, q in zip(a, b, strict=True))


def _between(low: tuple[Any, ...], high: tuple[Any, ...]) -> Any:
    """The minimum of the cubic through both ends, kept away from them; their middle without one."""
    (a, fa, da), (b, fb, db) = low[:3], high[:3]
    width = where(b == a, 1.0, b - a)
    d1 = da + db - 3.0 * (fb - fa) / width
    square = d1 * d1 - da * db
    real = (square >= 0.0) & isfinite(square)
    root = sqrt(where(real, square, 1.0)) * where(width > 0.0, 1.0, -1.0)
    bottom = db - da + 2.0 * root
    usable = real & (bottom != 0.0)
    t = b - width * (db + root - d1) / where(usable, bottom, 1.0)
    t = where(usable & isfinite(t), t, (a + b) / 2.0)
    left, right = minimum(a, b), maximum(a, b)
    margin = MARGIN * (right - left)
    return minimum(maximum(t, left + margin), right - margin)
