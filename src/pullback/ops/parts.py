"""Casts and the parts of complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Elementwise
from pullback.ir.mathfun import angle as angle_of
from pullback.ir.op import another, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Value
from pullback.ops.families import elementwise, primitive
from pullback.ops.selection import truth, where

__all__ = ["angle", "astype", "cc", "conj", "imag", "real"]


def cc(x: Any) -> Any:
    """The conjugate in a rule: nothing happens to real arrays."""
    return conj(x) if x._aval.dtype.is_complex else x


def _converted(x: Value, dtype: DType) -> Value:
    part = dtype.real
    if isinstance(x, Complex):
        if dtype.is_complex:
            return Complex(scalar.cast(x.re, part), scalar.cast(x.im, part))
        return truth(x) if dtype is dt.bool_ else scalar.cast(x.re, part)
    if dtype.is_complex:
        return Complex(scalar.cast(x, part), scalar.const(0.0, part))
    return scalar.cast(x, part)


def _cast_by_numpy(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is dt.bool_:
        return x != 0
    return (x if dtype.is_complex else np.real(x)).astype(dtype.numpy)


def _cast_back(g: Any, x_aval: Aval) -> Any:
    return astype(g, x_aval.dtype)


@primitive(
    "x",
    infer=lambda x, dtype: (x.shape, dtype),
    lowering=Elementwise(_converted),
    batch="elementwise",
    vjp={"x": _cast_back},
    jvp="linear",
    oracle=lambda x, dtype, copy=True: _cast_by_numpy(x, dtype),
    samples=lambda d: [
        Sample((d.real(3, 5), dt.complex128)),
        Sample((d.real(3, 5), dt.float64)),
        Sample((d.real(3, 5), dt.float64), {"copy": False}),
        Sample((d.real(4), dt.int32)),
        Sample((d.integers(4, low=-5), dt.float32)),
        Sample((d.integers(4, low=0, high=2), dt.bool_)),
    ],
    errors=lambda d: [Bad((d.real(2), "float31"), {}, DTypeError, "unknown dtype")],
    methods=("astype",),
    returns_argument=True,
)
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The array with its elements converted to `dtype`; complex to real keeps the real part.

    Without `copy`, an array that has the dtype already is returned as it is. With a `device`, the
    array is moved there first.

    >>> pb.astype(pb.tensor([1.7, -1.7]), pb.int32)
    tensor([ 1, -1], int32, cpu)
    """
    x = as_array(x, "astype")
    x = x if device is None else x.to_device(device)
    dtype = as_dtype(dtype, "astype")
    if x._aval.dtype is dtype:
        return another(x) if copy else x
    return bind(astype.op, x, dtype=dtype)


@elementwise(
    "x",
    body=lambda x: x.conj() if isinstance(x, Complex) else x,
    vjp={"x": lambda g: cc(g)},
    jvp={"x": lambda t: cc(t)},
    oracle=np.conj,
    methods=("conj",),
)
def conj(x, /):
    """The complex conjugate; real arrays are unchanged.

    >>> pb.conj(pb.tensor([1 + 2j]))
    tensor([1.-2.j], complex64, cpu)
    """


def _complex_samples(d: Draw) -> list[Sample]:
    z = [d.real(*s) + 1j * d.real(*s) for s in ((3, 5), (), (0, 2))]
    return [Sample((x,)) for x in z]


def _complex_only(d: Draw) -> list[Bad]:
    return [
        Bad((np.real(d.real(3)),), {}, DTypeError, "expected a complex dtype"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


@elementwise(
    "x",
    body=lambda x: x.re,
    accepts="c",
    result="real",
    vjp={"x": lambda g, x_aval: astype(g, x_aval.dtype)},
    jvp={"x": lambda t: real(t)},
    oracle=np.real,
    samples=_complex_samples,
    errors=_complex_only,
)
def real(x, /):
    """The real part of a complex array.

    >>> pb.real(pb.tensor([1 + 2j]))
    tensor([1.], float32, cpu)
    """


@elementwise(
    "x",
    body=lambda x: x.im,
    accepts="c",
    result="real",
    vjp={"x": lambda g, x_aval: astype(g, x_aval.dtype) * 1j},
    jvp={"x": lambda t: imag(t)},
    oracle=np.imag,
    samples=_complex_samples,
    errors=_complex_only,
)
def imag(x, /):
    """The imaginary part of a complex array.

    >>> pb.imag(pb.tensor([1 + 2j]))
    tensor([2.], float32, cpu)
    """


def _squared_modulus(x: Any) -> Any:
    """`|x|**2`, or 1 at 0: d angle(z) = Im(conj(z) dz) / |z|**2 is then 0 there."""
    square = real(x * conj(x))
    return where(square == 0.0, 1.0, square)


@elementwise(
    "x",
    body=angle_of,
    accepts="c",
    result="real",
    vjp={"x": lambda g, x: x * 1j * (g / _squared_modulus(x))},
    jvp={"x": lambda t, x: imag(conj(x) * t) / _squared_modulus(x)},
    oracle=np.angle,
    samples=_complex_samples,
    errors=_complex_only,
)
def angle(x, /):
    """The argument of a complex array, in (-pi, pi]; its derivative at 0 is 0.

    >>> pb.angle(pb.tensor([1j]))
    tensor([1.5707964], float32, cpu)
    """
