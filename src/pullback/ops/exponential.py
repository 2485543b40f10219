"""Exponentials, logarithms, roots and powers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import mathfun, scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value, select
from pullback.ops.arithmetic import inverse, square
from pullback.ops.families import broadcast_shapes, composite, elementwise, primitive
from pullback.ops.parts import cc, real
from pullback.ops.promotion import is_operand
from pullback.ops.selection import where

__all__ = [
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "pow",
    "rsqrt",
    "sqrt",
]

LN2 = math.log(2.0)
LN10 = math.log(10.0)


@elementwise(
    "x",
    body=mathfun.exp,
    accepts="fc",
    vjp={"x": lambda g, out: g * cc(out)},
    oracle=np.exp,
    methods=("exp",),
)
def exp(x, /):
    """e to the power of x.

    >>> pb.exp(pb.tensor([0.0, 1.0]))
    tensor([1.       , 2.7182817], float32, cpu)
    """


def _exp2(x: Value) -> Value:
    return mathfun.exp(x * LN2) if isinstance(x, Complex) else mathfun.exp2(x)


@elementwise(
    "x",
    body=_exp2,
    accepts="fc",
    vjp={"x": lambda g, out: g * (cc(out) * LN2)},
    oracle=np.exp2,
)
def exp2(x, /):
    """2 to the power of x.

    >>> pb.exp2(pb.tensor([0.0, 3.0]))
    tensor([1., 8.], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.expm1,
    accepts="fc",
    vjp={"x": lambda g, out: g * (cc(out) + 1.0)},
    oracle=np.expm1,
)
def expm1(x, /):
    """`exp(x) - 1`, accurate for small x.

    >>> pb.expm1(pb.tensor([0.0, 1e-10]))
    tensor([0.e+00, 1.e-10], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.log,
    accepts="fc",
    vjp={"x": lambda g, x: g / cc(x)},
    domain=(0.3, 3.0),
    oracle=np.log,
    methods=("log",),
)
def log(x, /):
    """The natural logarithm; of complex numbers the principal one.

    >>> pb.log(pb.tensor([1.0, 2.0]))
    tensor([0.       , 0.6931472], float32, cpu)
    """


def _to_base(real_log: Callable[[Expr], Expr], scale: float) -> Callable[[Value], Value]:
    """The body of a logarithm to another base, whose natural logarithm is `scale`."""

    def body(x: Value) -> Value:
        return mathfun.log(x) * (1.0 / scale) if isinstance(x, Complex) else real_log(x)

    return body


@elementwise(
    "x",
    body=_to_base(mathfun.log2, LN2),
    accepts="fc",
    vjp={"x": lambda g, x: g / (cc(x) * LN2)},
    domain=(0.3, 3.0),
    oracle=np.log2,
)
def log2(x, /):
    """The logarithm to base 2.

    >>> pb.log2(pb.tensor([1.0, 8.0]))
    tensor([0., 3.], float32, cpu)
    """


@elementwise(
    "x",
    body=_to_base(mathfun.log10, LN10),
    accepts="fc",
    vjp={"x": lambda g, x: g / (cc(x) * LN10)},
    domain=(0.3, 3.0),
    oracle=np.log10,
)
def log10(x, /):
    """The logarithm to base 10.

    >>> pb.log10(pb.tensor([1.0, 1000.0]))
    tensor([0., 3.], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.log1p,
    accepts="fc",
    vjp={"x": lambda g, x: g / (cc(x) + 1.0)},
    domain=(-0.7, 2.0),
    oracle=np.log1p,
)
def log1p(x, /):
    """`log(1 + x)`, accurate for small x.

    >>> pb.log1p(pb.tensor([0.0, 1e-10]))
    tensor([0.e+00, 1.e-10], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.sqrt,
    accepts="fc",
    vjp={"x": lambda g, out: g / (cc(out) * 2.0)},
    domain=(0.3, 3.0),
    oracle=np.sqrt,
    methods=("sqrt",),
)
def sqrt(x, /):
    """The square root; its derivative at 0 is infinite.

    >>> pb.sqrt(pb.tensor([4.0, 9.0]))
    tensor([2., 3.], float32, cpu)
    """


def _rsqrt(x: Value) -> Value:
    return inverse(mathfun.sqrt(x)) if isinstance(x, Complex) else mathfun.rsqrt(x)


@elementwise(
    "x",
    body=_rsqrt,
    accepts="fc",
    vjp={"x": lambda g, x, out: g * cc(out / x) * -0.5},
    domain=(0.3, 3.0),
    oracle=lambda x: np.ones_like(x) / np.sqrt(x),
    methods=("rsqrt",),
)
def rsqrt(x, /):
    """`1 / sqrt(x)`.

    >>> pb.rsqrt(pb.tensor([4.0, 16.0]))
    tensor([0.5 , 0.25], float32, cpu)
    """


@elementwise(
    "x",
    body=mathfun.cbrt,
    accepts="f",
    vjp={"x": lambda g, out: g / (out * out * 3.0)},
    domain=(0.3, 3.0),
    oracle=np.cbrt,
)
def cbrt(x, /):
    """The real cube root, negative for negative x.

    >>> pb.cbrt(pb.tensor([8.0, -27.0]))
    tensor([ 2., -3.], float32, cpu)
    """


# -- powers ----------------------------------------------------------------------------------------

# Beyond this, multiplications err by more than the general power, which is rounded nearly once.
_FEW = 8


def _repeated_product(x: Value, n: int) -> Value:
    """`x**n` by repeated squaring, the same products in the same order everywhere."""
    if n < 0:
        return inverse(_repeated_product(x, -n))
    if n == 0:
        return Complex.of(1.0, x) if isinstance(x, Complex) else scalar.const(1, x.dtype)
    result: Value | None = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    assert result is not None
    return result


def _integer_power_vjp(g: Any, x: Any, n: int) -> Any:
    if n in (0, 1):
        return g if n else None
    slope = x if n == 2 else integer_power(x, n - 1)
    return g * (cc(slope) * float(n))


@primitive(
    "x",
    infer=lambda x, n: (x.shape, x.dtype),
    lowering=Elementwise(_repeated_product),
    batch="elementwise",
    vjp={"x": _integer_power_vjp},
    jvp="elementwise",
    oracle=lambda x, n: x**n,
    samples=lambda d: [
        *[Sample((d.positive(3, 4), n)) for n in (0, 1, 2, 3, 5, -1, -2)],
        Sample((np.zeros(3), 2)),
        Sample((d.real(0, 2), 3)),
        Sample((d.integers(4, low=-4), 3)),
    ],
    errors=lambda d: [
        Bad((d.real(2), 0.5), {}, DTypeError, "n must be an integer"),
        Bad((d.integers(2), -1), {}, DTypeError, "got int64"),
        Bad((d.mask(2), 2), {}, DTypeError, "got bool"),
    ],
    namespace="primitive",
)
def integer_power(x: Any, n: int, /) -> Any:
    """`x**n` for a Python integer n, by repeated multiplication.

    >>> pb.primitive.integer_power(pb.tensor([2.0, -3.0]), 3)
    tensor([  8., -27.], float32, cpu)
    """
    x = as_array(x, "integer_power")
    if isinstance(n, bool) or not isinstance(n, int):
        raise DTypeError(f"integer_power: n must be an integer, got {n!r}.")
    dtype = x._aval.dtype
    if not dtype.is_inexact and (n < 0 or dtype is dt.bool_):
        raise DTypeError(f"integer_power: no power {n} of integers or bools, got {dtype.name}.")
    return bind(integer_power.op, x, n=n)


def _general_power(x: Any, y: Any) -> Value:
    if isinstance(x, Complex) or x.dtype.kind == "f":
        return mathfun.pow_(x, y)
    return _integer_array_power(x, y)


def _integer_array_power(x: Expr, y: Expr) -> Expr:
    """`x**y` in wrapping integers; a negative y gives the quotient `1 / x**-y` rounded to zero."""
    bits = 8 * x.dtype.itemsize
    powered = _by_bits(x, y, 6)
    powered = scalar.rare(y > 63, _by_bits(x, y, bits), powered)
    if x.dtype.kind == "u":
        return powered
    one, zero = scalar.const(1, x.dtype), scalar.const(0, x.dtype)
    alternating = select((y & 1) != 0, x, one)
    return select(y < 0, select((x == 1) | (x == -1), alternating, zero), powered)


def _by_bits(x: Expr, y: Expr, bits: int) -> Expr:
    """`x**y` for a nonnegative y of so many bits."""
    result = scalar.const(1, x.dtype)
    for k in range(bits):
        result = select((y & 1) != 0, result * x, result)
        if k < bits - 1:
            x, y = x * x, y >> 1
    return result


def _power_vjp_base(g: Any, x: Any, y: Any) -> Any:
    # 0**0 is kept away from the exponent -1, whose 0 * inf would spoil this and further derivatives
    constant = (x == 0.0) & (y == 0.0)
    return g * cc(y * power(x, where(constant, 1.0, y) - 1.0))


def _power_vjp_exponent(g: Any, x: Any, y: Any, out: Any) -> Any:
    size = real(y) if y._aval.dtype.is_complex else y
    constant = (x == 0.0) & (size >= 0.0)  # 0**y is 0 for all y > 0
    return g * cc(where(constant, 0.0, out * log(where(constant, 1.0, x))))


def _power_samples(d: Draw) -> list[Sample]:
    def pair(a: tuple[int, ...], b: tuple[int, ...]) -> Sample:
        return Sample((d.positive(*a), d.real(*b)))

    special = np.array([0.0, -2.0, -2.0, -0.5, np.inf, 0.0, 1.0, np.nan, -8.0])
    exponents = np.array([0.0, 3.0, -2.0, 2.0, 0.5, 2.0, np.nan, 0.0, 1.0 / 3.0])
    return [
        pair((3, 5), (3, 5)),
        pair((), ()),
        pair((0, 2), (0, 2)),
        pair((4, 1, 3), (2, 3)),
        Sample((d.integers(19, low=-5, high=6), d.integers(19, high=9))),
        Sample((special, exponents), order=0),
    ]


@elementwise(
    "x y",
    body=_general_power,
    vjp={"x": _power_vjp_base, "y": _power_vjp_exponent},
    samples=_power_samples,
    oracle=lambda x, y: _quiet_power(x, y),
    namespace="primitive",
)
def power(x, y, /):
    """`x**y` elementwise for arrays of one dtype.

    >>> pb.primitive.power(pb.tensor([2.0, 3.0]), pb.tensor([-1.0, 2.0]))
    tensor([0.5, 9. ], float32, cpu)
    """


def _quiet_power(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(x, y)


@composite(
    oracle=_quiet_power,
    samples=lambda d: [
        *_power_samples(d),
        *[Sample((d.real(3, 4), n)) for n in (0, 1, 2, 3, 2.0, 4.0, 11)],
        *[Sample((d.positive(3, 4), n)) for n in (-1, -2, -1.0, 0.5, -0.5, 1.7)],
        Sample((2.5, d.real(3, 4))),
        Sample((np.zeros(3), 2)),
        Sample((d.integers(19, low=-5, high=6), 3)),
        Sample((2, d.integers(19, high=9))),
    ],
    errors=lambda d: [
        Bad((object(), 2), {}, DTypeError, "expected an array"),
        Bad((d.positive(2), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((d.integers(2), -1), {}, DTypeError, "negative power"),
        Bad((d.mask(2), d.mask(2)), {}, DTypeError, "got bool"),
    ],
    methods=("__pow__", "__rpow__", "pow"),
)
def pow(x: Any, y: Any, /) -> Any:
    """`x**y`, with `0**0 = 1`; integers stay integers, and their overflow wraps.

    A Python number as exponent takes the shortest way: a few products, or a square root. An array
    of integers refuses a negative one; negative elements of an exponent array round the
    quotient towards zero.

    >>> pb.pow(pb.tensor([2.0, -3.0]), 2)
    tensor([4., 9.], float32, cpu)
    """
    if y.__class__ in (int, float):
        return _number_power(as_array(x, "pow"), y)
    arrays = [as_array(a, "pow") for a in (x, y)]
    broadcast_shapes("pow", *[a._aval.shape for a in arrays])
    if all(a._aval.dtype is dt.bool_ for a in arrays):
        raise DTypeError("pow: expected a number dtype, got bool. Cast with astype.")
    return power(x, y)


def _power_operator(x: Any, y: Any, /) -> Any:
    return pow(x, y) if is_operand("pow", x) and is_operand("pow", y) else NotImplemented


pow.operator = _power_operator  # type: ignore[attr-defined]


def _number_power(x: Any, n: int | float) -> Any:
    """`x**n` for a Python number n."""
    dtype = x._aval.dtype
    if dtype.is_integer and n < 0 and isinstance(n, int):
        raise DTypeError(f"pow: integers have no negative power, got {n} beside {dtype.name}.")
    if not dtype.is_inexact and (dtype is dt.bool_ or isinstance(n, float)):
        return power(x, n)
    if abs(n) == 0.5:
        return sqrt(x) if n > 0.0 else rsqrt(x)
    if n == 2:
        return square(x)
    if n != n // 1:  # not an integer, infinite or NaN
        return power(x, n)
    if dtype in (dt.float32, dt.float64) and abs(n) > _FEW:
        return power(x, float(n))
    return integer_power(x, int(n))
