"""Functions of single elements that are made of others, under NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy, is_number
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.extrema import ordered
from pullback.ops.families import broadcast_shapes, composite
from pullback.ops.indexing import take
from pullback.ops.logic import isnan
from pullback.ops.movement import broadcast_to
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype
from pullback.ops.selection import clip, where
from pullback.ops.special import logaddexp
from pullback.ops.trigonometry import sin

__all__ = [
    "deg2rad", "degrees", "heaviside", "ldexp", "logaddexp2", "masked_fill", "rad2deg", "radians",
    "sinc",
]  # fmt: skip

_LN2 = math.log(2.0)


def _inexact(name: str, x: Any) -> Any:
    x = as_array(x, name)
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


def _samples(d: Draw) -> list[Sample]:
    return [Sample((d.real(3, 4),)), Sample((d.real(),)), Sample((d.real(0, 2),))]


def _errors(d: Draw) -> list[Bad]:
    return [Bad((object(),), {}, DTypeError, "expected an array")]


def _real_errors(d: Draw) -> list[Bad]:
    return [*_errors(d), Bad((np.ones(2, complex),), {}, DTypeError, "no order")]


# -- angles ----------------------------------------------------------------------------------------


def _scaled(name: str, x: Any, factor: float) -> Any:
    return _inexact(name, ordered(name, x)) * factor


def _real_only(samples: Callable[[Draw], list[Sample]]) -> Callable[[Draw], list[Sample]]:
    return lambda d: [] if d.dtype.kind == "c" else samples(d)


@composite(oracle="numpy.deg2rad", samples=_real_only(_samples), errors=_real_errors)
def deg2rad(x: Any, /) -> Any:
    """Degrees as radians: `x pi / 180`.

    >>> pb.deg2rad(pb.tensor([0.0, 180.0]))
    tensor([0.       , 3.1415927], float32, cpu)
    """
    return _scaled("deg2rad", x, math.pi / 180)


@composite(oracle="numpy.radians", samples=_real_only(_samples), errors=_real_errors)
def radians(x: Any, /) -> Any:
    """The same as `deg2rad`.

    >>> pb.radians(pb.tensor(90.0))
    tensor(1.5707964, float32, cpu)
    """
    return _scaled("radians", x, math.pi / 180)


@composite(oracle="numpy.rad2deg", samples=_real_only(_samples), errors=_real_errors)
def rad2deg(x: Any, /) -> Any:
    """Radians as degrees: `180 x / pi`.

    >>> pb.rad2deg(pb.tensor(pb.pi))
    tensor(180., float32, cpu)
    """
    return _scaled("rad2deg", x, 180 / math.pi)


@composite(oracle="numpy.degrees", samples=_real_only(_samples), errors=_real_errors)
def degrees(x: Any, /) -> Any:
    """The same as `rad2deg`.

    >>> pb.degrees(pb.tensor(pb.pi))
    tensor(180., float32, cpu)
    """
    return _scaled("degrees", x, 180 / math.pi)


# -- functions -------------------------------------------------------------------------------------

_NEAR = 0.25  # where the series of sinc is used
# (-1)^k pi^(2 k) / (2 k + 1)!: with 12 terms the rest is below 1e-29, so that derivatives of the
# polynomial are those of sinc, too.
_SERIES = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(12)]


@composite(
    oracle="numpy.sinc",
    samples=lambda d: [
        *_samples(d),
        Sample((np.asarray([0.0, 0.2, -0.24, 0.26, 1.0, 2.0, -3.5]).astype(d.dtype),)),
    ],
    errors=_errors,
)
def sinc(x: Any, /) -> Any:
    """`sin(pi x) / (pi x)`, 1 at 0; its derivatives of every order exist at 0, too.

    >>> pb.sinc(pb.tensor([0.0, 0.5]))
    tensor([1.        , 0.63661975], float32, cpu)
    """
    x = _inexact("sinc", x)
    dtype = x._aval.dtype
    if dtype in (dt.float16, dt.bfloat16):
        return astype(sinc(astype(x, dt.float32)), dtype)
    near = (abs(x) if dtype.is_complex else where(x < 0, -x, x)) < _NEAR
    small = where(near, x, 0.0)
    square = small * small
    series = square * _SERIES[-1]
    for coefficient in reversed(_SERIES[1:-1]):
        series = (series + coefficient) * square
    angle = where(near, 1.0, x) * math.pi
    return where(near, series + _SERIES[0], sin(angle) / angle)


@composite(
    oracle="numpy.logaddexp2",
    samples=_real_only(
        lambda d: [Sample((d.real(3, 4), d.real(4))), Sample((d.real(), d.real(2)))]
    ),
    errors=lambda d: [
        Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((np.ones(2, complex), np.ones(2)), {}, DTypeError, "no order"),
    ],
    tolerance=4.0,  # it goes through natural logarithms
)
def logaddexp2(x1: Any, x2: Any, /) -> Any:
    """The logarithm to base 2 of the sum `2**x1 + 2**x2`, without overflow.

    >>> pb.logaddexp2(pb.tensor(3.0), pb.tensor(3.0))
    tensor(4., float32, cpu)
    """
    x, y = (ordered("logaddexp2", x) for x in same_dtype("logaddexp2", x1, x2))
    broadcast_shapes("logaddexp2", x._aval.shape, y._aval.shape)
    x, y = _inexact("logaddexp2", x), _inexact("logaddexp2", y)
    return logaddexp(x * _LN2, y * _LN2) * (1 / _LN2)


_POWERS = np.ldexp(1.0, np.arange(-400, 401))  # of 2: three of them reach all float64 numbers


@composite(
    oracle="numpy.ldexp",
    samples=_real_only(
        lambda d: [
            Sample((d.real(3, 4), np.array([-3, 0, 2, 5]))),
            Sample((d.real(), np.array([1, -2]))),
            Sample((d.real(2), 3)),
        ]
    ),
    errors=lambda d: [
        Bad((d.real(2), d.real(2)), {}, DTypeError, "exponents must be integers"),
        Bad((d.real(2), np.ones(3, int)), {}, ShapeError, "do not broadcast"),
    ],
)
def ldexp(x1: Any, x2: Any, /) -> Any:
    """`x1 * 2**x2` for integers `x2`, exact unless it leaves the range of the dtype.

    >>> pb.ldexp(pb.tensor([1.0, 3.0]), pb.tensor([4, -1]))
    tensor([16. ,  1.5], float32, cpu)
    """
    x, exponent = _inexact("ldexp", ordered("ldexp", x1)), as_array(x2, "ldexp")
    if not exponent._aval.dtype.is_integer:
        raise DTypeError(f"ldexp: exponents must be integers, got {exponent._aval.dtype.name}.")
    broadcast_shapes("ldexp", x._aval.shape, exponent._aval.shape)
    dtype = x._aval.dtype
    reach = {8: 400, 4: 100, 2: 14}[dtype.itemsize]
    reach = 100 if dtype is dt.bfloat16 else reach
    table = from_numpy(_POWERS[400 - reach : 401 + reach].astype(dtype.numpy), x._aval.device)
    rest = clip(astype(exponent, dt.int64), -6 * reach, 6 * reach)
    for _ in range(6):
        part = clip(rest, -reach, reach)
        x, rest = x * take(table, part + reach), rest - part
    return x


@composite(
    oracle="numpy.heaviside",
    samples=_real_only(
        lambda d: [Sample((d.real(3, 4), d.real(4))), Sample((np.zeros(2), d.real(2)), order=0)]
    ),
    errors=lambda d: [
        Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((np.ones(2, complex), np.ones(2)), {}, DTypeError, "no order"),
    ],
)
def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for negative `x1`, 1 for positive ones, and `x2` at 0.

    >>> pb.heaviside(pb.tensor([-1.0, 0.0, 2.0]), pb.tensor(0.5))
    tensor([0. , 0.5, 1. ], float32, cpu)
    """
    x, middle = (ordered("heaviside", x) for x in same_dtype("heaviside", x1, x2))
    broadcast_shapes("heaviside", x._aval.shape, middle._aval.shape)
    x, middle = _inexact("heaviside", x), _inexact("heaviside", middle)
    step = where(x < 0, 0.0, where(x > 0, 1.0, middle))
    return astype(where(isnan(x), math.nan, step), x._aval.dtype, copy=False)


@composite(
    oracle=lambda x, mask, value: np.where(mask, value, x).astype(x.dtype),
    samples=lambda d: [
        Sample((d.real(3, 4), d.mask(3, 4), 2.0)),
        Sample((d.real(3, 4), d.mask(4), d.real())),
        Sample((d.integers(3), d.mask(3), 7)),
    ],
    errors=lambda d: [
        Bad((d.real(3), d.real(3), 0.0), {}, DTypeError, "the mask must be bool"),
        Bad((d.real(3), d.mask(2), 0.0), {}, ShapeError, "do not broadcast"),
        Bad((d.real(3), d.mask(2, 3), 0.0), {}, ShapeError, "larger than the array"),
        Bad((d.real(3), d.mask(3), d.real(3)), {}, ShapeError, "0-d"),
    ],
    methods=("masked_fill",),
)
def masked_fill(x: Any, mask: Any, value: Any, /) -> Any:
    """The array with `value` where the mask is true; the mask broadcasts to its shape.

    >>> pb.masked_fill(pb.tensor([1.0, 2.0]), pb.tensor([True, False]), 9.0)
    tensor([9., 2.], float32, cpu)
    """
    x, mask = as_array(x, "masked_fill"), as_array(mask, "masked_fill")
    if mask._aval.dtype is not dt.bool_:
        raise DTypeError(f"masked_fill: the mask must be bool, got {mask._aval.dtype.name}.")
    shape = broadcast_shapes("masked_fill", x._aval.shape, mask._aval.shape)
    if shape != x._aval.shape:
        raise ShapeError(
            f"masked_fill: the mask is larger than the array, got shapes {mask._aval.shape} and"
            f" {x._aval.shape}."
        )
    if not is_number(value):
        value = as_array(value, "masked_fill")
        if value._aval.ndim:
            raise ShapeError(f"masked_fill: the value must be 0-d, got {value._aval.shape}.")
        value = astype(value, x._aval.dtype)
    return astype(where(broadcast_to(mask, shape), value, x), x._aval.dtype, copy=False)
