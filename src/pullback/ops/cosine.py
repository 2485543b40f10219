"""Cosine and sine transforms of types 1 to 4, by real Fourier transforms of the same length."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pullback.core.avals import Device
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import flip, moveaxis
from pullback.ops.creation import zeros
from pullback.ops.families import composite, normalise_axis
from pullback.ops.fourier import NORMS, dft, irdft, operand, points, rdft, resized
from pullback.ops.movement import concat
from pullback.ops.parts import astype, imag, real

__all__ = ["dct", "dst", "idct", "idst"]

INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}  # type of the inverse transform


@functools.lru_cache(16)
def _turns(first: float, step: float, count: int, dtype: DType, dev: Device) -> Any:
    """`exp(-i pi (first + step k))` for k below `count`."""
    angle = np.pi * (first + step * np.arange(count))
    values = np.cos(angle) - 1j * np.sin(angle)
    return from_numpy(values.astype(np.complex64 if dtype.itemsize == 4 else np.complex128), dev)


@functools.lru_cache(16)
def _signs(count: int, dtype: DType, dev: Device) -> Any:
    """1, -1, 1 ..."""
    return from_numpy((1 - 2 * (np.arange(count) % 2)).astype(dtype.numpy), dev)


@functools.lru_cache(16)
def _ends(count: int, places: tuple[int, ...], factor: float, dtype: DType, dev: Device) -> Any:
    """A factor at some places, else 1."""
    values = np.ones(count, dtype.numpy)
    values[list(places)] = factor
    return from_numpy(values, dev)


def _about(x: Any) -> tuple[int, DType, Device]:
    return x._aval.shape[-1], x._aval.dtype, x._aval.device


def _zero(x: Any) -> Any:
    """One zero in each row."""
    return zeros((*x._aval.shape[:-1], 1), dtype=x._aval.dtype, device=x._aval.device)


# -- real arrays, along the last axis, without factors ---------------------------------------------


def _rdft(x: Any) -> Any:
    return bind(rdft.op, x, axis=x._aval.ndim - 1, factor=1.0)


def _cosine1(x: Any) -> Any:
    """`x[0] + (-1)^k x[n - 1] + 2 sum x[j] cos(pi j k / (n - 1))`: of the even extension."""
    if x._aval.shape[-1] == 1:
        raise ShapeError("dct: type 1 needs two points or more, got n = 1.")
    return real(_rdft(concat([x, flip(x[..., 1:-1], axis=-1)], axis=-1)))


def _cosine2(x: Any) -> Any:
    """`2 sum x[j] cos(pi k (2 j + 1) / 2 n)`: the even points, then the odd ones backwards, have
    a transform of which this is a part after a turn (Makhoul).
    """
    n, dtype, dev = _about(x)
    sorted_points = concat([x[..., ::2], flip(x[..., 1::2], axis=-1)], axis=-1)
    z = _rdft(sorted_points) * _turns(0.0, 0.5 / n, n // 2 + 1, dtype, dev)
    rest = n - (n // 2 + 1)
    return 2.0 * concat([real(z), -flip(imag(z)[..., 1 : 1 + rest], axis=-1)], axis=-1)


def _cosine3(x: Any) -> Any:
    """`x[0] + 2 sum over k > 0 of x[k] cos(pi k (2 j + 1) / 2 n)`: type 2 backwards."""
    n, dtype, dev = _about(x)
    half = n // 2 + 1
    mirrored = resized(flip(x[..., 1:], axis=-1)[..., : half - 1], x._aval.ndim - 1, half - 1)
    z = astype(x[..., :half], _complex(dtype)) - concat([_zero(x), mirrored], axis=-1) * 1j
    turned = z * _turns(0.0, -0.5 / n, half, dtype, dev)
    y = bind(irdft.op, turned, axis=x._aval.ndim - 1, n=n, factor=1.0)
    even, odd = y[..., : (n + 1) // 2], flip(y[..., (n + 1) // 2 :], axis=-1)
    return _alternating(even, odd)


def _complex(dtype: DType) -> Any:
    return "complex64" if dtype.itemsize == 4 else "complex128"


def _alternating(even: Any, odd: Any) -> Any:
    """The elements of two arrays in turns; the second one may be shorter by one."""
    axis, count = even._aval.ndim, odd._aval.shape[-1]
    pairs = concat([even[..., :count, None], odd[..., None]], axis=axis)
    flat = pairs.reshape((*odd._aval.shape[:-1], 2 * count))
    return concat([flat, even[..., count:]], axis=axis - 1)


def _cosine4(x: Any) -> Any:
    """`2 sum x[j] cos(pi (2 k + 1) (2 j + 1) / 4 n)`: a turned transform of twice the length."""
    n, dtype, dev = _about(x)
    turned = x * _turns(0.0, 0.5 / n, n, dtype, dev)
    axis = x._aval.ndim - 1
    z = bind(dft.op, resized(turned, axis, 2 * n), axis=axis, inverse=False, factor=1.0)
    return 2.0 * real(z[..., :n] * _turns(0.25 / n, 0.5 / n, n, dtype, dev))


def _sine1(x: Any) -> Any:
    """`2 sum x[j] sin(pi (j + 1) (k + 1) / (n + 1))`: of the odd extension."""
    zero = _zero(x)
    extended = concat([zero, x, zero, -flip(x, axis=-1)], axis=-1)
    return -imag(_rdft(extended))[..., 1:-1]


def _sine2(x: Any) -> Any:
    return flip(_cosine2(x * _signs(*_about(x))), axis=-1)


def _sine3(x: Any) -> Any:
    return _cosine3(flip(x, axis=-1)) * _signs(*_about(x))


def _sine4(x: Any) -> Any:
    return _cosine4(flip(x, axis=-1)) * _signs(*_about(x))


COSINES = {1: _cosine1, 2: _cosine2, 3: _cosine3, 4: _cosine4}
SINES = {1: _sine1, 2: _sine2, 3: _sine3, 4: _sine4}
# What is divided (or for type 3 multiplied) by the root of 2 to make the transform orthogonal.
COSINE_ENDS = {1: (0, -1), 2: (0,), 3: (0,), 4: ()}
SINE_ENDS = {1: (), 2: (-1,), 3: (-1,), 4: ()}


def _transformed(
    name: str, x: Any, type: Any, n: Any, axis: Any, norm: Any, orthogonalize: Any, inverse: bool
) -> Any:
    """A transform of any type with its factors."""
    cosine = name.endswith("ct")
    if type not in INVERSE or isinstance(type, bool):
        raise DTypeError(f"{name}: type must be 1, 2, 3 or 4, got {type!r}.")
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise DTypeError(f"{name}: norm must be one of {', '.join(NORMS)}, got {norm!r}.")
    kind = INVERSE[type] if inverse else type
    x = as_array(x, name)
    if x._aval.dtype.is_complex:
        args = (type, n, axis, norm, orthogonalize, inverse)
        return _transformed(name, real(x), *args) + _transformed(name, imag(x), *args) * 1j
    x = operand(name, x, real=True)
    axis = normalise_axis(name, axis, x._aval.ndim)
    n = points(name, n, x._aval.shape[axis])
    x = moveaxis(resized(x, axis, n), axis, -1)
    if kind == 1 and cosine and n == 1:
        raise ShapeError(f"{name}: type 1 needs at least 2 points, got n = 1.")
    orthogonal = norm == "ortho" if orthogonalize is None else bool(orthogonalize)
    places = (COSINE_ENDS if cosine else SINE_ENDS)[kind] if orthogonal else ()
    _, dtype, dev = _about(x)
    root = math.sqrt(2.0)
    if places and kind in (1, 3):
        x = x * _ends(n, places, root, dtype, dev)
    y = (COSINES if cosine else SINES)[kind](x)
    if places and kind in (1, 2):
        y = y * _ends(n, places, 1 / root, dtype, dev)
    period = 2 * (n - 1 if cosine else n + 1) if kind == 1 else 2 * n
    if norm == "ortho":
        y = y * (1.0 / math.sqrt(period))
    elif (norm == "backward") == inverse:
        y = y * (1.0 / period)
    return moveaxis(y, -1, axis)


# -- the functions ---------------------------------------------------------------------------------


def _samples(d: Draw) -> list[Sample]:
    found = [
        Sample((d.real(3, 7),), {"axis": 0, "norm": "ortho"}),
        Sample((d.real(2, 6),), {"n": 4, "norm": "forward"}),
        Sample((d.real(6),), {"n": 9}),
        Sample((d.real(5),), {"norm": "ortho", "orthogonalize": False}),
    ]
    for kind in INVERSE:
        found += [
            Sample((d.real(8),), {"type": kind}),
            Sample((d.real(2, 5),), {"type": kind, "norm": "ortho"}),
            Sample((d.real(2),), {"type": kind, "norm": "forward"}),
        ]
    return [*found, Sample((d.real(1),), {"type": 2}), Sample((d.real(1),), {"type": 3})]


def _reference(name: str) -> Callable[..., np.ndarray]:
    """SciPy's function, of complex parts apart: SciPy leaves `orthogonalize` out for them."""

    def reference(x: np.ndarray, **static: Any) -> np.ndarray:
        of_real = getattr(import_module("scipy.fft"), name)
        if not np.iscomplexobj(x):
            return of_real(x, **static)
        return of_real(np.real(x), **static) + 1j * of_real(np.imag(x), **static)

    return reference


def _errors(name: str) -> Callable[[Draw], list[Bad]]:
    def errors(d: Draw) -> list[Bad]:
        found = [
            Bad((d.real(3),), {"type": 5}, DTypeError, "type must be 1, 2, 3 or 4"),
            Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
            Bad((d.real(3),), {"n": 0}, ShapeError, "at least 1"),
            Bad((d.real(3),), {"norm": "unitary"}, DTypeError, "norm must be one of"),
        ]
        if name.endswith("ct"):
            found.append(Bad((d.real(1),), {"type": 1}, ShapeError, "at least 2 points"))
        return found

    return errors


@composite(oracle=_reference("dct"), samples=_samples, errors=_errors("dct"), namespace="fft")
def dct(
    x: Any,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Any:
    """The discrete cosine transform; of type 2 `2 sum over j of x[j] cos(pi k (2 j + 1) / 2 n)`.

    >>> pb.fft.dct(pb.tensor([1.0, 0.0]))
    tensor([2.       , 1.4142135], float32, cpu)

    Types 1 to 4 and factors are those of `scipy.fft.dct`: with norm "ortho" the transform is
    orthogonal, unless `orthogonalize` is false.
    """
    return _transformed("dct", x, type, n, axis, norm, orthogonalize, False)


@composite(oracle=_reference("idct"), samples=_samples, errors=_errors("idct"), namespace="fft")
def idct(
    x: Any,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dct` of that type.

    >>> pb.fft.idct(pb.tensor([8.0, 0.0, 0.0, 0.0]))
    tensor([1., 1., 1., 1.], float32, cpu)
    """
    return _transformed("idct", x, type, n, axis, norm, orthogonalize, True)


@composite(oracle=_reference("dst"), samples=_samples, errors=_errors("dst"), namespace="fft")
def dst(
    x: Any,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Any:
    """The discrete sine transform; of type 2 `2 sum x[j] sin(pi (k + 1) (2 j + 1) / 2 n)`.

    >>> pb.fft.dst(pb.tensor([1.0, 1.0, 1.0]))
    tensor([4., 0., 2.], float32, cpu)

    Types 1 to 4 and factors are those of `scipy.fft.dst`.
    """
    return _transformed("dst", x, type, n, axis, norm, orthogonalize, False)


@composite(oracle=_reference("idst"), samples=_samples, errors=_errors("idst"), namespace="fft")
def idst(
    x: Any,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dst` of that type.

    >>> pb.fft.idst(pb.tensor([4.0, 0.0, 2.0]))
    tensor([1., 1., 1.], float32, cpu)
    """
    return _transformed("idst", x, type, n, axis, norm, orthogonalize, True)
