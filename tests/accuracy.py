"""What each function of `mathfun` promises, the points to check it at, and the measure.

Errors are in ulps of the exact result, from mpmath at 60 digits; in the subnormals an ulp is the
spacing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

from pullback.core import dtypes as dt
from pullback.ir import mathfun
from pullback.ir.scalar import load
from scalar_evaluator import evaluate

Array = np.ndarray
Real = Any  # a number of mpmath, whose types are made at run time
Points = Callable[[np.random.Generator], list[Array]]
PI = float(np.pi)
DENSITY = 2  # times the counts below: what mpmath does in a few seconds

# function -> (float32, float64): the largest error in ulps
BOUNDS = {
    "exp": (1.1, 1.1),
    "exp2": (1.1, 1.2),
    "expm1": (1.3, 1.1),
    "sigmoid": (0.9, 0.7),
    "log": (0.9, 0.7),
    "log1p": (1.5, 0.8),
    "log2": (0.51, 0.8),
    "log10": (0.51, 0.8),
    "sin": (0.8, 0.9),
    "cos": (0.8, 0.9),
    "tan": (0.51, 1.2),
    "asin": (0.51, 0.7),
    "acos": (0.51, 0.7),
    "atan": (0.51, 0.7),
    "atan2": (0.51, 1.2),
    "sinh": (0.51, 1.1),
    "cosh": (0.51, 1.0),
    "tanh": (1.4, 0.9),
    "asinh": (0.51, 1.1),
    "acosh": (0.51, 1.1),
    "atanh": (0.51, 0.9),
    "erf": (1.2, 1.2),
    "erfc": (0.51, 4.0),
    "erfinv": (0.51, 4.0),
    "lgamma": (0.51, 7.0),
    "digamma": (0.51, 3.0),
    "pow_": (0.51, 1.5),
    "cbrt": (0.51, 0.6),
    "hypot": (0.51, 1.0),
    "rsqrt": (1.5, 1.5),
}
# polygamma by order; the gamma functions left of 0, relative to 1 + |f(x)| + |f(-x)| there
POLYGAMMA_BOUNDS = {1: 4.0, 2: 5.0, 3: 8.0, 5: 13.0}
LEFT_BOUNDS = {"lgamma": 3.0, "digamma": 6.0}

with mp.workdps(80):
    EXACT: dict[str, Callable[..., Real]] = {
        "exp": mp.exp, "exp2": lambda x: mp.mpf(2) ** x, "expm1": mp.expm1,
        "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "log": mp.log, "log1p": mp.log1p,
        "log2": lambda x: mp.log(x, 2), "log10": mp.log10, "sin": mp.sin, "cos": mp.cos,
        "tan": mp.tan, "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "atan2": mp.atan2,
        "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "asinh": mp.asinh, "acosh": mp.acosh,
        "atanh": mp.atanh, "erf": mp.erf, "erfc": mp.erfc, "erfinv": lambda x: exact_erfinv(x),
        "lgamma": lambda x: mp.log(abs(mp.gamma(x))) if x < 0 else mp.loggamma(x),
        "digamma": mp.digamma, "pow_": mp.power, "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
        "hypot": mp.hypot, "rsqrt": lambda x: 1 / mp.sqrt(x),
    }  # fmt: skip


def exact_erfinv(x: Real) -> Real:
    """erfinv by Halley's method on erfc, from a few digits: mpmath's own is slow near 1."""
    size = abs(x)
    w = -mp.log((1 - size) * (1 + size))
    y = mp.sqrt(w * mp.mpf("0.7854")) if w < 2 else mp.sqrt(w - mp.log(w * mp.pi) / 2)
    for _ in range(60):
        gap = mp.erf(y) - size if size < 0.5 else 1 - size - mp.erfc(y)
        step = gap * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        step = step / (1 + y * step)
        y -= step
        if abs(step) < abs(y) * mp.mpf(10) ** -25:
            break
    return mp.sign(x) * y


def log_scale(low: float, high: float, count: int, signed: bool = True) -> Points:
    """Magnitudes spread evenly over the exponents."""

    def draw(rng: np.random.Generator) -> list[Array]:
        x = np.exp(rng.uniform(np.log(low), np.log(high), count * DENSITY))
        return [x * rng.choice([-1.0, 1.0], len(x)) if signed else x]

    return draw


def uniform(low: float, high: float, count: int) -> Points:
    return lambda rng: [rng.uniform(low, high, count * DENSITY)]


def next_to(*values: float, count: int = 40) -> Points:
    """Points that crowd around each value, from a few ulps away on."""

    def draw(rng: np.random.Generator) -> list[Array]:
        gaps = np.exp(rng.uniform(np.log(1e-16), np.log(0.1), count)) * rng.choice([-1, 1], count)
        return [np.concatenate([v * (1 + gaps) if v else gaps for v in values])]

    return draw


def quarter_turns(rng: np.random.Generator) -> list[Array]:
    """Floats next to multiples of pi/2, the last one nearer than any other float64."""
    k = np.floor(np.exp(rng.uniform(0, np.log(1e15), 600)))
    return [np.append(k * (PI / 2) * rng.choice([-1, 1], 600), 6381956970095103 * 2.0**797)]


def pairs(first: Points, second: Points) -> Points:
    return lambda rng: [first(rng)[0], second(rng)[0]]


def powers(rng: np.random.Generator) -> list[Array]:
    """Bases and exponents whose power is anywhere between underflow and overflow."""
    x = np.concatenate([np.exp(rng.uniform(-20, 20, 900)), 1 + rng.uniform(-0.3, 0.3, 900)])
    return [x, rng.uniform(-1, 1, len(x)) * 740 / np.log(x)]


def negative_bases(rng: np.random.Generator) -> list[Array]:
    return [-np.exp(rng.uniform(-3, 3, 100)), np.floor(rng.uniform(-30, 30, 100))]


_WIDE = log_scale(1e-12, 1e3, 400)
_POSITIVE = log_scale(1e-320, 1e308, 300, False)
_UNIT = (log_scale(1e-9, 1, 200), uniform(-1, 1, 300), next_to(0.5, -0.5, 0.9999))
_TURNS = (log_scale(1e-9, 1e300, 300), uniform(-10, 10, 300), quarter_turns)
_CURVE = (log_scale(1e-12, 1e3, 200), uniform(-3, 3, 300))
_GAMMA = (log_scale(1e-300, 1e300, 150, False), uniform(0, 12, 400))
POINTS: dict[str, tuple[Points, ...]] = {
    "exp": (_WIDE, uniform(-110, 95, 200), uniform(-750, 712, 200), uniform(-1, 1, 200)),
    "exp2": (_WIDE, uniform(-160, 130, 200), uniform(-1080, 1030, 200), uniform(-1, 1, 200)),
    "expm1": (_WIDE, uniform(-3, 3, 300), uniform(-750, 712, 200)),
    "sigmoid": (_WIDE, uniform(-110, 110, 200), uniform(-750, 50, 200), uniform(-3, 3, 300)),
    "log": (_POSITIVE, uniform(0.4, 2.2, 300), next_to(1.0)),
    "log1p": (log_scale(1e-30, 1, 200), uniform(-1, 3, 300), log_scale(1, 1e300, 100, False)),
    "log2": (_POSITIVE, uniform(0.4, 2.2, 300), next_to(1.0)),
    "log10": (_POSITIVE, uniform(0.4, 2.2, 300), next_to(1.0)),
    "sin": _TURNS,
    "cos": _TURNS,
    "tan": _TURNS,
    "asin": _UNIT,
    "acos": _UNIT,
    "atan": (log_scale(1e-12, 1e12, 200), uniform(-3, 3, 300), next_to(0.41421356, 2.41421356)),
    "atan2": (
        pairs(log_scale(1e-3, 1e3, 300), log_scale(1e-3, 1e3, 300)),
        pairs(log_scale(1e-300, 1e300, 200), log_scale(1e-300, 1e300, 200)),
    ),
    "sinh": (*_CURVE, uniform(-90, 90, 100), uniform(-712, 712, 100)),
    "cosh": (*_CURVE, uniform(-90, 90, 100), uniform(-712, 712, 100)),
    "tanh": (*_CURVE, uniform(-20, 20, 200)),
    "asinh": (*_CURVE, log_scale(1e3, 1e300, 100)),
    "acosh": (log_scale(1, 1e300, 200, False), uniform(1, 3, 300), next_to(1.0)),
    "atanh": (*_UNIT, next_to(1.0)),
    "erf": (*_CURVE, uniform(-6, 6, 200)),
    "erfc": (*_CURVE, uniform(-6, 28, 300)),
    "erfinv": (log_scale(1e-9, 1, 60), uniform(-1, 1, 150), next_to(1.0, -1.0, 0.997, count=60)),
    "lgamma": (*_GAMMA, next_to(1.0, 2.0)),
    "digamma": (*_GAMMA, next_to(1.4616321449683623)),
    "pow_": (powers, negative_bases),
    "cbrt": (log_scale(1e-320, 1e308, 300), uniform(-8, 8, 200)),
    "hypot": (
        pairs(log_scale(1e-3, 1e3, 300), log_scale(1e-3, 1e3, 300)),
        pairs(log_scale(1e-300, 1e300, 100), log_scale(1e-300, 1e300, 100)),
    ),
    "rsqrt": (_POSITIVE, uniform(0.5, 4, 300)),
}


@dataclass
class Measured:
    """The largest error found, and where."""

    ulps: float
    at: tuple[float, ...]


def points(name: str, dtype: str) -> list[Array]:
    """The arguments to check a function at, finite and in its domain."""
    rng = np.random.default_rng(20240501)
    columns = [draw(rng) for draw in POINTS[name]]
    with np.errstate(all="ignore"):
        xs = [np.concatenate(column).astype(dtype) for column in zip(*columns, strict=True)]
    keep = np.all([np.isfinite(x) & (x != 0) for x in xs], axis=0)
    if name in ("asin", "acos"):
        keep &= np.abs(xs[0]) <= 1
    elif name in ("atanh", "erfinv"):
        keep &= np.abs(xs[0]) < 1
    elif name == "acosh":
        keep &= xs[0] > 1
    elif name == "log1p":
        keep &= xs[0] > -1
    return [x[keep] for x in xs]


def values(name: str, xs: list[Array]) -> Array:
    """The function of `mathfun` at the points, by the evaluator."""
    dtype = dt.as_dtype(xs[0].dtype)
    body = getattr(mathfun, name)(*(load(i, dtype) for i in range(len(xs))))
    return evaluate([body], xs)[0]


def ulps(got: float, exact: Real, dtype: str) -> float:
    """|got - exact| in units of the last place of `exact`; 0 where both overflow."""
    info = np.finfo(dtype)
    if np.isnan(got):
        return float("inf")
    limit = mp.mpf(float(info.max)) * (1 + mp.mpf(float(info.eps)) / 4)
    if np.isinf(got) or abs(exact) >= limit:
        same = np.isinf(got) and abs(exact) >= limit and (got > 0) == (exact > 0)
        return 0.0 if same else float("inf")
    exponent = max(mp.frexp(exact)[1] - 1, info.minexp) if exact else info.minexp
    return float(abs(mp.mpf(float(got)) - exact) / mp.mpf(2) ** (int(exponent) - info.nmant))


def largest(got: Array, xs: list[Array], exact: Callable[..., Real], dtype: str) -> Measured:
    """The largest error of `got` at the points."""
    worst = Measured(0.0, ())
    with mp.workdps(60):
        for y, *arguments in zip(got, *xs, strict=True):
            found = ulps(float(y), exact(*(mp.mpf(float(a)) for a in arguments)), dtype)
            if found > worst.ulps:
                worst = Measured(found, tuple(float(a) for a in arguments))
    return worst


def measure(name: str, dtype: str) -> Measured:
    """The largest error of one function over its points."""
    xs = points(name, dtype)
    return largest(values(name, xs), xs, EXACT[name], dtype)
