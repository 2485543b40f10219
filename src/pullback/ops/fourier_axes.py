"""Fourier transforms of several axes, and the frequencies and orders that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import device as as_device
from pullback.core.dtypes import as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, default_device, from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import roll
from pullback.ops.families import composite, normalise_axes, normalise_axis
from pullback.ops.fourier import back_transform, operand, points, real_transform, transform

__all__ = [
    "fft2", "fftfreq", "fftn", "fftshift", "ifft2", "ifftn", "ifftshift", "irfft2", "irfftn",
    "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Pairs = list[tuple[int, int | None]]  # axes and points; None for as many as there are


def _axes(name: str, x: Any, s: Any, axes: Any) -> Pairs:
    """The axes to transform in their order, and how many points of each."""
    ndim = x._aval.ndim
    sizes: Sequence[Any] | None = None if s is None else tuple(s)
    if axes is None:
        count = ndim if sizes is None else len(sizes)
        if count > ndim:
            raise ShapeError(f"{name}: s has more sizes than there are axes, got {s} for {ndim}.")
        chosen = tuple(range(ndim - count, ndim))
    else:
        given = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
        chosen = tuple(normalise_axis(name, a, ndim) for a in given)
    if sizes is None:
        return [(axis, None) for axis in chosen]
    if len(sizes) != len(chosen):
        raise ShapeError(f"{name}: s needs a size for each axis, got {s} for {len(chosen)} axes.")
    # -1 is the standard's word for "all points"
    return [(axis, None if n == -1 else n) for axis, n in zip(chosen, sizes, strict=True)]


def _each(name: str, x: Any, pairs: Pairs, norm: Any, inverse: bool) -> Any:
    for axis, n in reversed(pairs):
        x = transform(name, x, n, axis, norm, inverse)
    return x


def _complex_axes(name: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Any:
    x = operand(name, x)
    return _each(name, x, _axes(name, x, s, axes), norm, inverse)


def _real_axes(name: str, x: Any, s: Any, axes: Any, norm: Any) -> Any:
    x = operand(name, x, real=True)
    pairs = _axes(name, x, s, axes)
    if not pairs:
        raise ShapeError(f"{name}: at least one axis must be transformed, got none.")
    axis, n = pairs[-1]
    return _each(name, real_transform(name, x, n, axis, norm, False), pairs[:-1], norm, False)


def _back_axes(name: str, x: Any, s: Any, axes: Any, norm: Any) -> Any:
    x = operand(name, x)
    pairs = _axes(name, x, s, axes)
    if not pairs:
        raise ShapeError(f"{name}: at least one axis must be transformed, got none.")
    axis, n = pairs[-1]
    return back_transform(name, _each(name, x, pairs[:-1], norm, True), n, axis, norm, True)


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(4, 6),)),
        Sample((d.real(3, 2, 4),), {"norm": "ortho"}),
        Sample((d.real(3, 2, 4),), {"axes": (0, 2)}),
        Sample((d.real(3, 5),), {"s": (4, 3), "axes": (1, 0)}),
        Sample((d.real(3, 4),), {"s": (2, 6), "axes": (0, 1), "norm": "forward"}),
        Sample((d.real(0, 4),), {"axes": (1,)}),
    ]


def _two_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(4, 6),)),
        Sample((d.real(3, 2, 4),), {"norm": "ortho"}),
        Sample((d.real(3, 4),), {"s": (2, 6)}),
        Sample((d.real(3, 4, 5),), {"axes": (0, 1)}),
    ]


def _errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3, 3),), {"axes": (0, 2)}, ShapeError, "out of range"),
        Bad((d.real(3, 3),), {"s": (2,), "axes": (0, 1)}, ShapeError, "a size for each axis"),
        Bad((d.real(3),), {"s": (2, 2)}, ShapeError, "more sizes"),
        Bad((d.real(3, 3),), {"s": (0, 1)}, ShapeError, "at least 1"),
        Bad((d.real(3, 3),), {"norm": "unitary"}, DTypeError, "norm must be one of"),
    ]


def _two_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {}, ShapeError, "out of range"),
        Bad((d.real(3, 3),), {"axes": (0, 1, 1)}, ShapeError, "two axes"),
        Bad((d.real(3, 3),), {"s": (0, 1)}, ShapeError, "at least 1"),
    ]


def _two(name: str, axes: Any) -> Any:
    if not isinstance(axes, (tuple, list)) or len(axes) != 2:
        raise ShapeError(f"{name}: takes two axes, got {axes!r}.")
    return tuple(axes)


@composite(oracle="numpy.fft.fftn", samples=_samples, errors=_errors, namespace="fft")
def fftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
    """The discrete Fourier transform along several axes, all of them by default.

    >>> pb.fft.fftn(pb.tensor([[1.0, 2.0], [4.0, 0.0]]))
    tensor([[ 7.+0.j,  3.+0.j],
            [-1.+0.j, -5.+0.j]], complex64, cpu)

    `s` has the points of each axis, -1 for all; without `axes` it is about the last ones.
    """
    return _complex_axes("fftn", x, s, axes, norm, False)


@composite(oracle="numpy.fft.ifftn", samples=_samples, errors=_errors, namespace="fft")
def ifftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
    """The inverse of `fftn`.

    >>> pb.fft.ifftn(pb.tensor([[7.0, 3.0], [-1.0, -5.0]]))
    tensor([[1.+0.j, 2.+0.j],
            [4.+0.j, 0.+0.j]], complex64, cpu)
    """
    return _complex_axes("ifftn", x, s, axes, norm, True)


@composite(oracle="numpy.fft.rfftn", samples=_samples, errors=_errors, namespace="fft")
def rfftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
    """The coefficients of `fftn` of a real array, but for the conjugate half along the last axis.

    >>> pb.fft.rfftn(pb.tensor([[1.0, 2.0], [4.0, 0.0]]))
    tensor([[ 7.+0.j,  3.+0.j],
            [-1.+0.j, -5.+0.j]], complex64, cpu)
    """
    return _real_axes("rfftn", x, s, axes, norm)


@composite(oracle="numpy.fft.irfftn", samples=_samples, errors=_errors, namespace="fft")
def irfftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
    """The inverse of `rfftn`: a real array with 2 (m - 1) elements along the last axis for m
    coefficients, or as many as `s` says.

    >>> pb.fft.irfftn(pb.tensor([[7.0, 3.0], [-1.0, -5.0]]))
    tensor([[1., 2.],
            [4., 0.]], float32, cpu)
    """
    return _back_axes("irfftn", x, s, axes, norm)


@composite(oracle="numpy.fft.fft2", samples=_two_samples, errors=_two_errors, namespace="fft")
def fft2(x: Any, /, *, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Any:
    """`fftn` of two axes.

    >>> pb.fft.fft2(pb.tensor([[1.0, 2.0], [4.0, 0.0]]))
    tensor([[ 7.+0.j,  3.+0.j],
            [-1.+0.j, -5.+0.j]], complex64, cpu)
    """
    return _complex_axes("fft2", x, s, _two("fft2", axes), norm, False)


@composite(oracle="numpy.fft.ifft2", samples=_two_samples, errors=_two_errors, namespace="fft")
def ifft2(x: Any, /, *, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Any:
    """`ifftn` of two axes.

    >>> pb.fft.ifft2(pb.tensor([[7.0, 3.0], [-1.0, -5.0]]))
    tensor([[1.+0.j, 2.+0.j],
            [4.+0.j, 0.+0.j]], complex64, cpu)
    """
    return _complex_axes("ifft2", x, s, _two("ifft2", axes), norm, True)


@composite(oracle="numpy.fft.rfft2", samples=_two_samples, errors=_two_errors, namespace="fft")
def rfft2(x: Any, /, *, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Any:
    """`rfftn` of two axes.

    >>> pb.fft.rfft2(pb.tensor([[1.0, 2.0], [4.0, 0.0]]))
    tensor([[ 7.+0.j,  3.+0.j],
            [-1.+0.j, -5.+0.j]], complex64, cpu)
    """
    return _real_axes("rfft2", x, s, _two("rfft2", axes), norm)


@composite(oracle="numpy.fft.irfft2", samples=_two_samples, errors=_two_errors, namespace="fft")
def irfft2(x: Any, /, *, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Any:
    """`irfftn` of two axes.

    >>> pb.fft.irfft2(pb.tensor([[7.0, 3.0], [-1.0, -5.0]]))
    tensor([[1., 2.],
            [4., 0.]], float32, cpu)
    """
    return _back_axes("irfft2", x, s, _two("irfft2", axes), norm)


# -- frequencies -----------------------------------------------------------------------------------


def _frequencies(name: str, n: Any, d: Any, dtype: Any, where: Any, half: bool) -> Any:
    n = points(name, n, 1)
    if isinstance(d, bool) or not isinstance(d, (int, float, np.floating, np.integer)) or d == 0:
        raise DTypeError(f"{name}: d must be a number other than 0, got {d!r}.")
    chosen = default_float() if dtype is None else as_dtype(dtype, name)
    if not chosen.is_float:
        raise DTypeError(f"{name}: expected a floating dtype, got {chosen.name}.")
    values = np.fft.rfftfreq(n, d) if half else np.fft.fftfreq(n, d)
    dev = default_device() if where is None else as_device(where)
    return from_numpy(values.astype(chosen.numpy), dev)


def _frequency_samples(d: Draw) -> list[Sample]:
    return [
        Sample((8,), {"dtype": dt.float64}),
        Sample((9,), {"d": 0.1, "dtype": dt.float64}),
        Sample((1,)),
    ]


def _frequency_errors(d: Draw) -> list[Bad]:
    return [
        Bad((0,), {}, ShapeError, "at least 1"),
        Bad((4,), {"d": 0.0}, DTypeError, "other than 0"),
        Bad((4,), {"dtype": dt.int32}, DTypeError, "floating"),
    ]


def _ramp(n: int, d: float, first: int, count: int, dtype: Any) -> np.ndarray:
    """Frequencies by their definition, for the tests."""
    found = [(k if k < (n + 1) // 2 or first == 0 else k - n) / (n * d) for k in range(count)]
    return np.array(found, np.float32 if dtype is None else dtype.numpy)


@composite(
    oracle=lambda n, d=1.0, dtype=None: _ramp(n, d, 1, n, dtype),
    samples=_frequency_samples,
    errors=_frequency_errors,
    namespace="fft",
    differentiable=False,
)
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the coefficients of `fft` for samples `d` apart: k / (n d), k < n / 2, and
    then the negative ones.

    >>> pb.fft.fftfreq(4)
    tensor([ 0.  ,  0.25, -0.5 , -0.25], float32, cpu)
    """
    return _frequencies("fftfreq", n, d, dtype, device, False)


@composite(
    oracle=lambda n, d=1.0, dtype=None: _ramp(n, d, 0, n // 2 + 1, dtype),
    samples=_frequency_samples,
    errors=_frequency_errors,
    namespace="fft",
    differentiable=False,
)
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the coefficients of `rfft`: k / (n d) for k = 0 ... n // 2.

    >>> pb.fft.rfftfreq(4)
    tensor([0.  , 0.25, 0.5 ], float32, cpu)
    """
    return _frequencies("rfftfreq", n, d, dtype, device, True)


def _shifted(name: str, x: Any, axes: Any, sign: int) -> Any:
    x = as_array(x, name)
    chosen = normalise_axes(name, axes, x._aval.ndim)
    shape = x._aval.shape
    shifts = tuple(shape[a] // 2 if sign > 0 else -(shape[a] // 2) for a in chosen)
    return roll(x, shifts, axis=chosen)


def _shift_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(5),)),
        Sample((d.real(3, 4),)),
        Sample((d.real(3, 4),), {"axes": 0}),
        Sample((d.real(3, 4, 5),), {"axes": (0, -1)}),
        Sample((d.integers(6),)),
        Sample((d.real(0, 3),)),
    ]


def _shift_errors(d: Draw) -> list[Bad]:
    return [Bad((d.real(3),), {"axes": 1}, ShapeError, "out of range")]


@composite(
    oracle="numpy.fft.fftshift", samples=_shift_samples, errors=_shift_errors, namespace="fft"
)
def fftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The array with frequency 0 moved to the middle of each axis, or of those that are given.

    >>> pb.fft.fftshift(pb.fft.fftfreq(5, d=0.2))
    tensor([-2., -1.,  0.,  1.,  2.], float32, cpu)
    """
    return _shifted("fftshift", x, axes, 1)


@composite(
    oracle="numpy.fft.ifftshift", samples=_shift_samples, errors=_shift_errors, namespace="fft"
)
def ifftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The inverse of `fftshift`.

    >>> pb.fft.ifftshift(pb.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]))
    tensor([ 0.,  1.,  2., -2., -1.], float32, cpu)
    """
    return _shifted("ifftshift", x, axes, -1)
