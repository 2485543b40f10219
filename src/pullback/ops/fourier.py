"""Discrete Fourier transforms of one axis, and the linear primitives that they are.

With w = exp(-2 pi i / n) the primitives are `dft`: sums of `w**(j k) x[j]`, `rdft`: the first half
of them for real x, and `irdft`, which takes such halves back to real arrays, all times a factor.
The transpose of each is one of them again, so that derivatives of any order are transforms.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval, Device
from pullback.core.dtypes import DType, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy, scalar
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import composite, normalise_axis, primitive
from pullback.ops.movement import cut, embed
from pullback.ops.parts import astype, conj

__all__ = ["dft", "fft", "hfft", "ifft", "ihfft", "irdft", "irfft", "rdft", "rfft"]

NORMS = ("backward", "ortho", "forward")
_COMPLEX = {"float32": dt.complex64, "float64": dt.complex128}


# -- arguments -------------------------------------------------------------------------------------


def complex_of(dtype: DType) -> DType:
    """The complex dtype with parts of this dtype."""
    return dtype if dtype.is_complex else _COMPLEX[dtype.name]


def operand(name: str, x: Any, real: bool = False) -> Any:
    """The array in a dtype of single or double precision: complex, or real where that is asked."""
    x = as_array(x, name)
    dtype = x._aval.dtype
    if real and dtype.is_complex:
        raise DTypeError(f"{name}: expected a real dtype, got {dtype.name}. Use fft or pb.real.")
    if not dtype.is_inexact:
        dtype = default_float()
    if dtype in (dt.float16, dt.bfloat16):
        dtype = dt.float32
    return astype(x, dtype if real else complex_of(dtype), copy=False)


def points(name: str, given: Any, default: int, what: str = "n") -> int:
    """How many points to transform."""
    n = default if given is None else given
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise DTypeError(f"{name}: {what} must be an integer, got {n!r}.")
    if n < 1:
        hint = "The axis is empty; give n." if given is None else "A transform has a point."
        raise ShapeError(f"{name}: {what} must be at least 1, got {n}. {hint}")
    return int(n)


def factor_of(name: str, norm: Any, n: int, inverse: bool) -> float:
    """The factor of a transform of n points."""
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise DTypeError(f"{name}: norm must be one of {', '.join(NORMS)}, got {norm!r}.")
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if (norm == "backward") == inverse else 1.0


def resized(x: Any, axis: int, n: int) -> Any:
    """The first n elements along the axis, with zeros after them where there are fewer."""
    shape = x._aval.shape
    new = (*shape[:axis], n, *shape[axis + 1 :])
    if n < shape[axis]:
        return cut(x, (0,) * len(shape), new, (1,) * len(shape))
    if n == shape[axis]:
        return x
    zero = scalar(0, x._aval.dtype, x._aval.device)
    starts, steps = (0,) * len(shape), (1,) * len(shape)
    return bind(embed.op, zero, x, shape=new, starts=starts, steps=steps)


@functools.lru_cache(16)
def _weights(n: int, axes: int, value: float, dtype: DType, dev: Device) -> Any:
    """`value` for each coefficient that stands for two of a real transform of n points, else 1."""
    weights = np.full((n // 2 + 1, *(1,) * axes), value, dtype.numpy)
    weights[0] = 1.0
    if n % 2 == 0:
        weights[-1] = 1.0
    return from_numpy(weights, dev)


def _weighted(x: Any, axis: int, n: int, value: float) -> Any:
    av = x._aval
    return x * _weights(n, av.ndim - 1 - axis, value, av.dtype.real, av.device)


# -- the primitives --------------------------------------------------------------------------------


def _checked_axis(name: str, x: Any, axis: Any) -> int:
    axis = normalise_axis(name, axis, x._aval.ndim)
    points(name, None, x._aval.shape[axis])
    return axis


def _dft_oracle(
    x: np.ndarray, axis: int = -1, inverse: bool = False, factor: float = 1.0
) -> np.ndarray:
    n = x.shape[axis]
    return (np.fft.ifft(x, axis=axis) * n if inverse else np.fft.fft(x, axis=axis)) * factor


def _dft_vjp(g: Any, axis: int, inverse: bool, factor: float) -> Any:
    return bind(dft.op, g, axis=axis, inverse=not inverse, factor=factor)


def _lines(d: Draw) -> list[tuple[np.ndarray, int]]:
    """Arrays and axes: lengths of each kind, rows and columns, few and many, none."""
    return [
        (d.real(8), -1),
        (d.real(3, 15), 1),
        (d.real(37), 0),
        (d.real(7, 20), 0),
        (d.real(2, 6, 3), 1),
        (d.real(20, 16), -1),
        (d.real(0, 4), -1),
        (d.real(2, 1), -1),
    ]


@primitive(
    "x",
    infer=lambda x, axis, inverse, factor: (x.shape, x.dtype),
    lowering=Intrinsic("fft"),
    batch=lambda op, x, axis, inverse, factor: bind(
        op, x, axis=axis + 1, inverse=inverse, factor=factor
    ),
    vjp={"x": _dft_vjp},
    jvp="linear",
    oracle=_dft_oracle,
    samples=lambda d: [
        *[Sample((x, axis)) for x, axis in _lines(d)],
        Sample((d.real(3, 40),), {"inverse": True, "factor": 0.5}),
    ],
    errors=lambda d: [
        Bad((np.ones(3, complex), 1), {}, ShapeError, "out of range"),
        Bad((np.ones((2, 0), complex),), {}, ShapeError, "at least 1"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ],
    namespace="primitive",
)
def dft(x: Any, /, axis: int = -1, *, inverse: bool = False, factor: float = 1.0) -> Any:
    """The sums of `w**(j k) x[j]` over the axis, times a factor; w is exp(-2 pi i / n), or its
    conjugate if `inverse`.

    >>> pb.primitive.dft(pb.tensor([1.0 + 0j, 2.0, 4.0, 0.0]))
    tensor([ 7.+0.j, -3.-2.j,  3.+0.j, -3.+2.j], complex64, cpu)
    """
    x = operand("dft", x)
    axis = _checked_axis("dft", x, axis)
    return bind(dft.op, x, axis=axis, inverse=bool(inverse), factor=float(factor))


def _rdft_infer(x: Aval, axis: int, factor: float) -> tuple[tuple[int, ...], DType]:
    half = x.shape[axis] // 2 + 1
    return (*x.shape[:axis], half, *x.shape[axis + 1 :]), complex_of(x.dtype)


def _rdft_vjp(g: Any, x_aval: Aval, axis: int, factor: float) -> Any:
    n = x_aval.shape[axis]
    return bind(irdft.op, _weighted(g, axis, n, 0.5), axis=axis, n=n, factor=factor)


@primitive(
    "x",
    infer=_rdft_infer,
    lowering=Intrinsic("rfft"),
    batch=lambda op, x, axis, factor: bind(op, x, axis=axis + 1, factor=factor),
    vjp={"x": _rdft_vjp},
    jvp="linear",
    oracle=lambda x, axis=-1, factor=1.0: np.fft.rfft(x, axis=axis) * factor,
    samples=lambda d: [
        *[Sample((x, axis)) for x, axis in _lines(d)],
        Sample((d.real(3, 40),), {"factor": 0.5}),
    ],
    errors=lambda d: [
        Bad((np.real(d.real(3)), 1), {}, ShapeError, "out of range"),
        Bad((np.ones((2, 0)),), {}, ShapeError, "at least 1"),
        Bad((np.ones(3, complex),), {}, DTypeError, "expected a real dtype"),
    ],
    namespace="primitive",
)
def rdft(x: Any, /, axis: int = -1, *, factor: float = 1.0) -> Any:
    """The first `n // 2 + 1` of the n sums of `w**(j k) x[j]` over the axis of a real array, times
    a factor; the others are their conjugates.

    >>> pb.primitive.rdft(pb.tensor([1.0, 2.0, 4.0, 0.0]))
    tensor([ 7.+0.j, -3.-2.j,  3.+0.j], complex64, cpu)
    """
    x = operand("rdft", x, real=True)
    return bind(rdft.op, x, axis=_checked_axis("rdft", x, axis), factor=float(factor))


def _irdft_infer(x: Aval, axis: int, n: int, factor: float) -> tuple[tuple[int, ...], DType]:
    return (*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype.real


def _irdft_vjp(g: Any, axis: int, n: int, factor: float) -> Any:
    return _weighted(bind(rdft.op, g, axis=axis, factor=factor), axis, n, 2.0)


@primitive(
    "x",
    infer=_irdft_infer,
    lowering=Intrinsic("irfft"),
    batch=lambda op, x, axis, n, factor: bind(op, x, axis=axis + 1, n=n, factor=factor),
    vjp={"x": _irdft_vjp},
    jvp="linear",
    oracle=lambda x, axis=-1, *, n, factor=1.0: np.fft.irfft(x, n, axis=axis) * n * factor,
    samples=lambda d: [
        Sample((d.real(5),), {"n": 8}),
        Sample((d.real(3, 8),), {"n": 15}),
        Sample((d.real(19),), {"n": 37}),
        Sample((d.real(4, 20), 0), {"n": 6, "factor": 0.5}),
        Sample((d.real(4, 20), 0), {"n": 7}),
        Sample((d.real(20, 9),), {"n": 16}),
        Sample((d.real(3, 16),), {"n": 31}),
    ],
    errors=lambda d: [
        Bad((np.ones(3, complex), 1), {"n": 4}, ShapeError, "out of range"),
        Bad((np.ones(3, complex),), {"n": 0}, ShapeError, "at least 1"),
        Bad((np.ones(3, complex),), {"n": 6}, ShapeError, "3 coefficients"),
    ],
    namespace="primitive",
)
def irdft(x: Any, /, axis: int = -1, *, n: int, factor: float = 1.0) -> Any:
    """The n real sums over k of `conj(w)**(j k) x[k]`, where the second half of the coefficients
    are the conjugates of the first, times a factor.

    >>> pb.primitive.irdft(pb.tensor([7.0 + 0j, -3 - 2j, 3.0]), n=4)
    tensor([ 4.,  8., 16.,  0.], float32, cpu)
    """
    x = operand("irdft", x)
    axis, n = normalise_axis("irdft", axis, x._aval.ndim), points("irdft", n, 1)
    if x._aval.shape[axis] != n // 2 + 1:
        raise ShapeError(
            f"irdft: an axis of {x._aval.shape[axis]} coefficients, got n = {n}."
            f" There must be n // 2 + 1."
        )
    return bind(irdft.op, x, axis=axis, n=n, factor=float(factor))


# -- one axis --------------------------------------------------------------------------------------


def transform(name: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    """`fft` or `ifft` of one axis."""
    x = operand(name, x)
    axis = normalise_axis(name, axis, x._aval.ndim)
    n = points(name, n, x._aval.shape[axis])
    factor = factor_of(name, norm, n, inverse)
    return bind(dft.op, resized(x, axis, n), axis=axis, inverse=inverse, factor=factor)


def real_transform(name: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    """`rfft` of one axis; `inverse` concerns the factor alone."""
    x = operand(name, x, real=True)
    axis = normalise_axis(name, axis, x._aval.ndim)
    n = points(name, n, x._aval.shape[axis])
    factor = factor_of(name, norm, n, inverse)
    return bind(rdft.op, resized(x, axis, n), axis=axis, factor=factor)


def back_transform(name: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    """`irfft` of one axis; `inverse` concerns the factor alone."""
    x = operand(name, x)
    axis = normalise_axis(name, axis, x._aval.ndim)
    if n is None and x._aval.shape[axis] < 2:
        raise ShapeError(
            f"{name}: n defaults to 2 (m - 1) for m coefficients, which must be at least 1,"
            f" got m = {x._aval.shape[axis]}. Give n."
        )
    n = points(name, n, 2 * (x._aval.shape[axis] - 1))
    factor = factor_of(name, norm, n, inverse)
    return bind(irdft.op, resized(x, axis, n // 2 + 1), axis=axis, n=n, factor=factor)


def axis_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(9),)),
        Sample((d.real(3, 8),), {"axis": 0, "norm": "ortho"}),
        Sample((d.real(2, 6),), {"n": 4, "norm": "forward"}),
        Sample((d.real(2, 6),), {"n": 11}),
        Sample((d.real(4, 3, 2),), {"axis": -2}),
        Sample((d.real(0, 5),)),
    ]


def _half_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(5),)),
        Sample((d.real(4, 3),), {"axis": 0, "norm": "ortho"}),
        Sample((d.real(2, 6),), {"n": 7, "norm": "forward"}),
        Sample((d.real(2, 3),), {"n": 12}),
        Sample((d.real(4),)),
        Sample((d.real(0, 5),)),
    ]


def _axis_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(3),), {"n": 0}, ShapeError, "at least 1"),
        Bad((d.real(3),), {"n": 2.0}, DTypeError, "an integer"),
        Bad((d.real(2, 0),), {}, ShapeError, "at least 1"),
        Bad((d.real(3),), {"norm": "unitary"}, DTypeError, "norm must be one of"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


def _real_errors(d: Draw) -> list[Bad]:
    return [
        *_axis_errors(d),
        Bad((np.ones(3, np.complex64),), {}, DTypeError, "expected a real dtype"),
    ]


@composite(oracle="numpy.fft.fft", samples=axis_samples, errors=_axis_errors, namespace="fft")
def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The discrete Fourier transform along an axis: `sum over j of x[j] exp(-2 pi i j k / n)`.

    >>> pb.fft.fft(pb.tensor([1.0, 2.0, 4.0, 0.0]))
    tensor([ 7.+0.j, -3.-2.j,  3.+0.j, -3.+2.j], complex64, cpu)

    The axis is cut or filled with zeros to `n` points. `norm`: "backward" divides the inverse by n,
    "forward" this one, "ortho" both by its square root.
    """
    return transform("fft", x, n, axis, norm, False)


@composite(oracle="numpy.fft.ifft", samples=axis_samples, errors=_axis_errors, namespace="fft")
def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `fft`: `sum over k of x[k] exp(2 pi i j k / n) / n`.

    >>> pb.fft.ifft(pb.tensor([7.0 + 0j, -3 - 2j, 3, -3 + 2j]))
    tensor([1.+0.j, 2.+0.j, 4.+0.j, 0.+0.j], complex64, cpu)
    """
    return transform("ifft", x, n, axis, norm, True)


@composite(oracle="numpy.fft.rfft", samples=axis_samples, errors=_real_errors, namespace="fft")
def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The first `n // 2 + 1` coefficients of `fft` of a real array; the others are conjugates.

    >>> pb.fft.rfft(pb.tensor([1.0, 2.0, 4.0, 0.0]))
    tensor([ 7.+0.j, -3.-2.j,  3.+0.j], complex64, cpu)
    """
    return real_transform("rfft", x, n, axis, norm, False)


@composite(oracle="numpy.fft.irfft", samples=_half_samples, errors=_axis_errors, namespace="fft")
def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `rfft`: a real array of `n` elements, 2 (m - 1) for m coefficients by default.

    >>> pb.fft.irfft(pb.tensor([7.0 + 0j, -3 - 2j, 3]))
    tensor([1., 2., 4., 0.], float32, cpu)

    The imaginary parts of the first coefficient, and for even n of the last one, count as zero.
    """
    return back_transform("irfft", x, n, axis, norm, True)


@composite(oracle="numpy.fft.hfft", samples=_half_samples, errors=_axis_errors, namespace="fft")
def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The real `fft` of an array with the symmetry `x[-j] = conj(x[j])`, given its first half.

    >>> pb.fft.hfft(pb.tensor([1.0, 2.0, 4.0]))
    tensor([ 9., -3.,  1., -3.], float32, cpu)
    """
    return back_transform("hfft", conj(operand("hfft", x)), n, axis, norm, False)


@composite(oracle="numpy.fft.ihfft", samples=axis_samples, errors=_real_errors, namespace="fft")
def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    """The inverse of `hfft`: the first half of `ifft` of a real array.

    >>> pb.fft.ihfft(pb.tensor([9.0, -3.0, 1.0, -3.0]))
    tensor([1.-0.j, 2.-0.j, 4.-0.j], complex64, cpu)
    """
    return conj(real_transform("ihfft", x, n, axis, norm, True))
