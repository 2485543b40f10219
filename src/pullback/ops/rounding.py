"""Rounding to integers: piecewise constant, so every derivative is zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value
from pullback.ops.families import composite, elementwise

__all__ = ["ceil", "floor", "round", "trunc"]


def _of_floats(rounded: Callable[[Expr], Expr]) -> Callable[[Value], Value]:
    """The body that rounds floats, the parts of complex numbers, and leaves integers alone."""

    def body(x: Value) -> Value:
        if isinstance(x, Complex):
            return Complex(rounded(x.re), rounded(x.im))
        return rounded(x) if x.dtype.kind == "f" else x

    return body


def _samples(d: Draw) -> list[Sample]:
    x = d.integers(3, 5, low=-3, high=3).astype(d.dtype) + d.real(3, 5, low=0.1, high=0.4)
    special = np.array([0.5, 1.5, 2.5, -0.5, -0.0, np.inf, -np.inf, np.nan, 1e300])
    return [
        Sample((x,)),
        Sample((d.real(low=1.1, high=1.4),)),
        Sample((d.real(0, 2),)),
        Sample((d.integers(19, low=-5),)),
        Sample((special,), order=0),
    ]


@elementwise(
    "x",
    body=_of_floats(scalar.floor),
    accepts="iuf",
    vjp={"x": lambda g: None},
    zero_gradient=True,
    samples=_samples,
    oracle=np.floor,
    methods=("floor",),
)
def floor(x, /):
    """The largest integer that is not above x.

    >>> pb.floor(pb.tensor([1.7, -1.7]))
    tensor([ 1., -2.], float32, cpu)
    """


@elementwise(
    "x",
    body=_of_floats(scalar.ceil),
    accepts="iuf",
    vjp={"x": lambda g: None},
    zero_gradient=True,
    samples=_samples,
    oracle=np.ceil,
    methods=("ceil",),
)
def ceil(x, /):
    """The smallest integer that is not below x.

    >>> pb.ceil(pb.tensor([1.7, -1.7]))
    tensor([ 2., -1.], float32, cpu)
    """


@elementwise(
    "x",
    body=_of_floats(scalar.trunc),
    accepts="iuf",
    vjp={"x": lambda g: None},
    zero_gradient=True,
    samples=_samples,
    oracle=np.trunc,
    methods=("trunc",),
)
def trunc(x, /):
    """x rounded towards zero.

    >>> pb.trunc(pb.tensor([1.7, -1.7]))
    tensor([ 1., -1.], float32, cpu)
    """


@elementwise(
    "x",
    body=_of_floats(scalar.rint),
    vjp={"x": lambda g: None},
    zero_gradient=True,
    samples=_samples,
    oracle=np.round,
    namespace="primitive",
)
def rint(x, /):
    """The nearest integer, the even one of two; complex numbers are rounded by parts.

    >>> pb.primitive.rint(pb.tensor([0.5, 1.5, 2.4]))
    tensor([0., 2., 2.], float32, cpu)
    """


@composite(
    oracle=np.round,
    samples=lambda d: [
        *_samples(d),
        Sample((d.real(3, 5), 2), order=0),
        Sample((d.real(3, 5, low=-500.0, high=500.0),), {"decimals": -2}, order=0),
    ],
    errors=lambda d: [
        Bad((d.real(2), 0.5), {}, DTypeError, "decimals must be an integer"),
        Bad((d.integers(2), -1), {}, DTypeError, "got int64"),
        Bad((d.mask(2),), {}, DTypeError, "got bool"),
    ],
    methods=("round",),
)
def round(x: Any, /, decimals: int = 0) -> Any:
    """x rounded to a number of decimals, half to even.

    >>> pb.round(pb.tensor([0.5, 1.5, 2.4]))
    tensor([0., 2., 2.], float32, cpu)
    """
    x = as_array(x, "round")
    if isinstance(decimals, bool) or not isinstance(decimals, (int, np.integer)):
        raise DTypeError(f"round: decimals must be an integer, got {decimals!r}.")
    dtype = x._aval.dtype
    if dtype.kind == "b" or (dtype.is_integer and decimals < 0):
        raise DTypeError(f"round: expected a floating dtype, got {dtype.name}. Cast with astype.")
    if decimals == 0 or dtype.is_integer:
        return rint(x)
    scale = 10.0 ** abs(int(decimals))
    return rint(x * scale) / scale if decimals > 0 else rint(x / scale) * scale
