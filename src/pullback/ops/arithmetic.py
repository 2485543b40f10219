"""Arithmetic on elements: sums, products, quotients, remainders, magnitudes and signs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.ir import mathfun, scalar
from pullback.ir.samples import Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value, select
from pullback.ir.series import remaining
from pullback.ops.families import elementwise
from pullback.ops.parts import astype, cc, conj, real
from pullback.ops.rounding import trunc
from pullback.ops.selection import where

__all__ = [
    "abs",
    "add",
    "copysign",
    "divide",
    "floor_divide",
    "fmod",
    "hypot",
    "multiply",
    "negative",
    "positive",
    "reciprocal",
    "remainder",
    "sign",
    "square",
    "subtract",
]


@elementwise(
    "x y",
    body=lambda x, y: x | y if _is_bool(x) else x + y,
    accepts="biufc",
    vjp={"x": lambda g: g, "y": lambda g: g},
    oracle=np.add,
    methods=("__add__", "__radd__"),
)
def add(x, y, /):
    """`x + y`; for booleans the logical or.

    >>> pb.add(pb.tensor([1.0, 2.0]), 0.5)
    tensor([1.5, 2.5], float32, cpu)
    """


def _is_bool(x: Value) -> bool:
    return isinstance(x, Expr) and x.dtype is dt.bool_


@elementwise(
    "x y",
    body=lambda x, y: x - y,
    vjp={"x": lambda g: g, "y": lambda g: -g},
    oracle=np.subtract,
    methods=("__sub__", "__rsub__"),
)
def subtract(x, y, /):
    """`x - y`.

    >>> pb.subtract(pb.tensor([1.0, 2.0]), 0.5)
    tensor([0.5, 1.5], float32, cpu)
    """


@elementwise(
    "x y",
    body=lambda x, y: x & y if _is_bool(x) else x * y,
    accepts="biufc",
    vjp={"x": lambda g, y: g * cc(y), "y": lambda g, x: g * cc(x)},
    jvp="multilinear",
    oracle=np.multiply,
    methods=("__mul__", "__rmul__"),
)
def multiply(x, y, /):
    """`x * y`; for booleans the logical and.

    >>> pb.multiply(pb.tensor([1.0, 2.0]), 3.0)
    tensor([3., 6.], float32, cpu)
    """


def _quotient_series(n: int, out: list[Any], x: list[Any], y: list[Any]) -> Any:
    """From `y * out = x`."""
    rest = remaining(n, x, y, out, multiply)
    return None if rest is None else rest / y[0]


@elementwise(
    "x y",
    body=lambda x, y: x / y,
    accepts="fc",
    vjp={"x": lambda g, y: g / cc(y), "y": lambda g, out, y: -g * cc(out / y)},
    series=_quotient_series,
    domain=((-2.0, 2.0), (0.5, 2.0)),
    oracle=np.divide,
    methods=("__truediv__", "__rtruediv__"),
)
def divide(x, y, /):
    """`x / y`; integers are divided as floats.

    >>> pb.divide(pb.tensor([1.0, 2.0]), 4.0)
    tensor([0.25, 0.5 ], float32, cpu)
    """


@elementwise(
    "x",
    body=lambda x: -x,
    vjp={"x": lambda g: -g},
    oracle=np.negative,
    methods=("__neg__",),
)
def negative(x, /):
    """`-x`.

    >>> pb.negative(pb.tensor([1.0, -2.0]))
    tensor([-1.,  2.], float32, cpu)
    """


@elementwise(
    "x",
    body=lambda x: x,
    vjp={"x": lambda g: g},
    oracle=np.positive,
    methods=("__pos__",),
)
def positive(x, /):
    """`x` itself, as a new array.

    >>> pb.positive(pb.tensor([1.0, -2.0]))
    tensor([ 1., -2.], float32, cpu)
    """


@elementwise(
    "x",
    body=lambda x: x * x,
    vjp={"x": lambda g, x: g * cc(x) * 2.0},
    oracle=np.square,
    methods=("square",),
)
def square(x, /):
    """`x * x`.

    >>> pb.square(pb.tensor([3.0, -2.0]))
    tensor([9., 4.], float32, cpu)
    """


def inverse(x: Value) -> Value:
    """1 / x as an expression."""
    if isinstance(x, Complex):
        return Complex.of(1.0, x) / x
    return scalar.const(1.0, x.dtype) / x


@elementwise(
    "x",
    body=inverse,
    accepts="fc",
    vjp={"x": lambda g, out: -g * cc(out * out)},
    domain=(0.3, 3.0),
    oracle=lambda x: np.ones_like(x) / x,
)
def reciprocal(x, /):
    """`1 / x`.

    >>> pb.reciprocal(pb.tensor([4.0, -2.0]))
    tensor([ 0.25, -0.5 ], float32, cpu)
    """


# -- magnitude and sign ----------------------------------------------------------------------------


def _magnitude(x: Value) -> Expr:
    if isinstance(x, Complex):
        return mathfun.hypot(x.re, x.im)
    return scalar.abs_(x)


@elementwise(
    "x",
    body=_magnitude,
    result="real",
    vjp={"x": lambda g, x: g * sign(x)},
    jvp={"x": lambda t, x: real(t * conj(sign(x))) if x._aval.dtype.is_complex else t * sign(x)},
    oracle=np.abs,
    methods=("__abs__", "abs"),
)
def abs(x, /):
    """The absolute value, or the modulus of a complex number; its derivative at 0 is 0.

    >>> pb.abs(pb.tensor([-3.0, 2.0]))
    tensor([3., 2.], float32, cpu)
    """


def _sign(x: Value) -> Value:
    if isinstance(x, Complex):
        r = mathfun.hypot(x.re, x.im)
        zero = r == 0.0
        safe = select(zero, 1.0, r)
        return Complex(select(zero, r, x.re / safe), select(zero, r, x.im / safe))
    if x.dtype.kind == "u":
        return scalar.cast(x != 0, x.dtype)
    one, zero = scalar.const(1, x.dtype), scalar.const(0, x.dtype)
    signed = select(x > 0, one, select(x < 0, -one, zero))
    return signed if x.dtype.kind == "i" else select(x == x, signed, x)


def _turned(t: Any, x: Any, out: Any) -> Any:
    """A complex sign turns with the angle, d sign(z) = i sign(z) d angle(z); a real one is rigid.

    This map is symmetric, so it is the rule of both modes.
    """
    if not x._aval.dtype.is_complex:
        return None
    modulus = abs(x)
    safe = where(modulus == 0.0, 1.0, modulus)
    across = out * 1j
    return astype(real(t * conj(across)) / safe, x._aval.dtype) * across


@elementwise(
    "x",
    body=_sign,
    vjp={"x": lambda g, x, out: _turned(g, x, out)},
    jvp={"x": lambda t, x, out: _turned(t, x, out)},
    oracle=np.sign,
)
def sign(x, /):
    """-1, 0 or 1 by the sign of x; `x / abs(x)` for complex numbers, and 0 at 0.

    >>> pb.sign(pb.tensor([-3.0, 0.0, 2.0]))
    tensor([-1.,  0.,  1.], float32, cpu)
    """


@elementwise(
    "x y",
    body=scalar.copysign,
    accepts="f",
    vjp={"x": lambda g, x, y: g * sign(x) * copysign(1.0, y), "y": lambda g: None},
    domain=((0.3, 2.0), (-2.0, 2.0)),
    oracle=np.copysign,
)
def copysign(x, y, /):
    """The magnitude of x with the sign bit of y; the derivative at x = 0 is 0.

    >>> pb.copysign(pb.tensor([1.0, -2.0]), -5.0)
    tensor([-1., -2.], float32, cpu)
    """


def _along(g: Any, part: Any, out: Any) -> Any:
    """g times part / out, and 0 at the origin, where part is 0 too."""
    return g * (part / where(out == 0.0, 1.0, out))


@elementwise(
    "x y",
    body=mathfun.hypot,
    accepts="f",
    vjp={
        "x": lambda g, x, out: _along(g, x, out),
        "y": lambda g, y, out: _along(g, y, out),
    },
    domain=(0.3, 2.0),
    oracle=np.hypot,
)
def hypot(x, y, /):
    """`sqrt(x**2 + y**2)` without overflow on the way; its derivative at the origin is 0.

    >>> pb.hypot(pb.tensor([3.0]), 4.0)
    tensor([5.], float32, cpu)
    """


# -- quotients and remainders ----------------------------------------------------------------------

# Quotients below this are integers that the float dtype holds exactly.
_EXACT = {dt.float32: 2.0**23, dt.float64: 2.0**52}


def _truncated(x: Expr, y: Expr) -> Expr:
    """The remainder of truncating division, exact as the IEEE standard wants it."""
    if x.dtype.kind != "f":
        return scalar.rem(x, y)
    q = scalar.trunc(x / y)
    r = select(q == 0.0, x, scalar.fma(-q, y, x))
    fast = _with_sign_of(x, r, y)
    return scalar.rare(scalar.abs_(q) >= _EXACT[x.dtype], _long_division(x, y), fast)


def _with_sign_of(x: Expr, r: Expr, y: Expr) -> Expr:
    """The remainder r of x by y moved by one divisor if its sign is not that of x."""
    wrong = (r < 0.0) & (x > 0.0) | (r > 0.0) & (x < 0.0)
    return scalar.copysign(select(wrong, scalar.abs_(r) - scalar.abs_(y), r), x)


def _long_division(x: Expr, y: Expr) -> Expr:
    """As `_truncated` for any size of the quotient, about 52 bits of it at a time."""
    if x.dtype is dt.float32:  # no quotient of float32 numbers overflows float64
        r, divisor = scalar.cast(x, dt.float64), scalar.cast(y, dt.float64)
        for _ in range(6):
            r = _reduced(r, divisor)
        return _with_sign_of(x, scalar.cast(r, dt.float32), y)
    r = x
    for scale, steps in ((2.0**1000 * y * 2.0**1000, 3), (2.0**1000 * y, 20), (y, 21)):
        for _ in range(steps):
            r = _reduced(r, scale)
    return _with_sign_of(x, r, y)


def _reduced(r: Expr, y: Expr) -> Expr:
    """r less the rounded quotient r / y times y: this difference is exact."""
    q = scalar.rint(r / y)
    return select(q == 0.0, r, scalar.fma(-q, y, r))


def _remainder(x: Expr, y: Expr) -> Expr:
    """The remainder with the sign of the divisor."""
    r = _truncated(x, y)
    if x.dtype.kind == "u":
        return r
    moved = select((r < 0) != (y < 0), r + y, r)
    if x.dtype.kind == "i":
        return select(r == 0, r, moved)
    return select(r == 0.0, scalar.copysign(r, y), moved)


def _floor_quotient(x: Expr, y: Expr) -> Expr:
    if x.dtype.kind == "u":
        return scalar.quot(x, y)
    r = _truncated(x, y)
    below = (r != 0) & ((r < 0) != (y < 0))
    if x.dtype.kind == "i":
        q = scalar.quot(x, y)
        return select(below, q - 1, q)
    q = (x - r) / y
    q = scalar.rint(select(below, q - 1.0, q))
    # With an infinity the standard gives what division does, where Python has NaN and -1.
    infinite = (scalar.abs_(x) == np.inf) | (scalar.abs_(y) == np.inf)
    q = select(q == 0.0, scalar.copysign(q, x / y), q)
    return select((y == 0.0) | infinite, x / y, q)


def _infinities() -> np.ndarray:
    return np.array([2.0, 3.0, -np.inf, -np.inf, -np.inf, np.inf])


def _division_samples(d: Draw) -> list[Sample]:
    x, y = d.real(3, 4, low=0.1, high=0.9), d.integers(3, 4, low=-3, high=4)
    wide = d.real(3, 4, low=1.0, high=1.2)
    small = d.integers(29, low=-9, high=10)
    return [
        Sample(((x + y.astype(x.dtype)) * wide, wide)),
        Sample(((x + y.astype(x.dtype)) * wide, -wide[0])),
        Sample((d.real(low=2.1, high=2.9), 1.0)),
        Sample((d.real(0, 2), d.real(0, 2))),
        Sample((small, d.integers(29, low=-4, high=5))),
        Sample((d.integers(9, dtype=np.uint8), d.integers(9, low=1, high=4, dtype=np.uint8))),
        Sample((np.array([7.0, -7.0, 1.0, 1e300]), np.array([-2.0, np.inf, 0.1, 3e-7])), order=0),
        Sample((np.array([np.inf, -np.inf, 7.0, -7.0, np.inf, 0.0]), _infinities()), order=0),
    ]


def _floor_oracle(x: Any, y: Any) -> Any:
    """NumPy's, which with infinities does what Python does; then the standard's."""
    whole = _quietly(np.floor_divide, x, y)
    infinite = np.isinf(x) | np.isinf(y)
    return np.where(infinite, _quietly(np.divide, x, y), whole).astype(whole.dtype)


@elementwise(
    "x y",
    body=_floor_quotient,
    accepts="iuf",
    vjp={"x": lambda g: None, "y": lambda g: None},
    zero_gradient=True,
    samples=_division_samples,
    oracle=_floor_oracle,
    methods=("__floordiv__", "__rfloordiv__"),
)
def floor_divide(x, y, /):
    """`x // y`, the quotient rounded down; an integer divided by 0 gives 0, as in NumPy.

    With an infinite operand it is `x / y`: `inf // 2` is infinite and `1 // -inf` is -0, as the
    Array API standard says, where Python has NaN and -1.

    >>> pb.floor_divide(pb.tensor([7.0, -7.0]), 2.0)
    tensor([ 3., -4.], float32, cpu)
    """


def _remainder_by_divisor(g: Any, x: Any, y: Any) -> Any:
    """Minus how often y was taken from x: an infinite y of the other sign was added once."""
    added = (abs(y) == np.inf) & (x * y < 0.0)
    return -g * where(added, -1.0, floor_divide(x, y))


@elementwise(
    "x y",
    body=_remainder,
    accepts="iuf",
    vjp={"x": lambda g: g, "y": _remainder_by_divisor},
    samples=_division_samples,
    oracle=lambda x, y: _quietly(np.remainder, x, y),
    methods=("__mod__", "__rmod__"),
)
def remainder(x, y, /):
    """`x % y`, with the sign of y; an integer modulo 0 gives 0, as in NumPy.

    >>> pb.remainder(pb.tensor([7.0, -7.0]), 4.0)
    tensor([3., 1.], float32, cpu)
    """


@elementwise(
    "x y",
    body=_truncated,
    accepts="iuf",
    vjp={"x": lambda g: g, "y": lambda g, x, y: -g * trunc(x / y)},
    samples=_division_samples,
    oracle=lambda x, y: _quietly(np.fmod, x, y),
)
def fmod(x, y, /):
    """The remainder of the division rounded towards zero, with the sign of x, as C's fmod.

    >>> pb.fmod(pb.tensor([7.0, -7.0]), 4.0)
    tensor([ 3., -3.], float32, cpu)
    """


def _quietly(reference: Any, x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return reference(x, y)
