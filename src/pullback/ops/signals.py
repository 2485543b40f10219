"""Signals: convolution by Fourier transforms, the analytic signal, the chirp transform."""

from __future__ import annotations

import cmath
import functools
import math
from typing import Any

import numpy as np

from pullback.core.avals import Device
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import moveaxis
from pullback.ops.creation import zeros
from pullback.ops.families import composite, normalise_axes, normalise_axis
from pullback.ops.fourier import complex_of, dft, irdft, operand, points, rdft, resized
from pullback.ops.movement import concat, cut, reshape
from pullback.ops.promotion import same_dtype

__all__ = [
    "czt", "fast_length", "fftconvolve", "framed", "hilbert", "oaconvolve", "overlap_added",
]  # fmt: skip

MODES = ("full", "same", "valid")


# -- frames ----------------------------------------------------------------------------------------


def framed(x: Any, size: int, hop: int) -> Any:
    """Overlapping frames of the last axis: (..., frames, size), `hop` elements from one to the
    next; what is left at the end is dropped.
    """
    shape = x._aval.shape
    count = 1 + (shape[-1] - size) // hop
    pieces = -(-size // hop)
    whole = resized(x, x._aval.ndim - 1, (count + pieces - 1) * hop)
    blocks = reshape(whole, (*shape[:-1], count + pieces - 1, hop))
    rows = [blocks[..., k : k + count, :] for k in range(pieces)]
    return concat(rows, axis=-1)[..., :size]


def overlap_added(frames: Any, hop: int) -> Any:
    """The transpose of `framed`: frames added up where they overlap."""
    *lead, count, size = frames._aval.shape
    pieces = -(-size // hop)
    axis = frames._aval.ndim - 1
    wide = resized(frames, axis, pieces * hop)
    total: Any = None
    for k in range(pieces):
        part = wide[..., k * hop : (k + 1) * hop]
        ends = [
            zeros((*lead, n, hop), dtype=part._aval.dtype, device=part._aval.device)
            for n in (k, pieces - 1 - k)
        ]
        rows = concat([ends[0], part, ends[1]], axis=-2)
        total = rows if total is None else total + rows
    flat = reshape(total, (*lead, (count + pieces - 1) * hop))
    return flat[..., : (count - 1) * hop + size]


# -- convolution -----------------------------------------------------------------------------------


@functools.cache
def fast_length(n: int) -> int:
    """The least even number from n on without prime factors above 7."""
    while True:
        rest = n
        for p in (2, 3, 5, 7):
            while rest % p == 0:
                rest //= p
        if rest == 1 and (n % 2 == 0 or n == 1):
            return n
        n += 1


def _operands(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    x, y = same_dtype(name, x, y)
    real = not x._aval.dtype.is_complex
    x, y = (operand(name, v, real=real) for v in (x, y))
    if x._aval.ndim != y._aval.ndim:
        raise ShapeError(
            f"{name}: operands have the same number of axes, got shapes {x._aval.shape} and"
            f" {y._aval.shape}."
        )
    return x, y


def _checked(name: str, x: Any, y: Any, mode: Any, axes: Any) -> tuple[int, ...]:
    """The axes to convolve."""
    if mode not in MODES:
        raise DTypeError(f"{name}: mode must be one of {', '.join(MODES)}, got {mode!r}.")
    chosen = normalise_axes(name, axes, x._aval.ndim)
    own, other = x._aval.shape, y._aval.shape
    for d, (n, m) in enumerate(zip(own, other, strict=True)):
        if d in chosen and 0 in (n, m):
            raise ShapeError(f"{name}: axis {d} must not be empty, got shapes {own} and {other}.")
        if d not in chosen and n != m and 1 not in (n, m):
            raise ShapeError(
                f"{name}: axis {d} is not convolved and must broadcast, got {own} and {other}."
            )
    if mode == "valid":
        signs = {own[d] > other[d] for d in chosen if own[d] != other[d]}
        if len(signs) > 1:
            raise ShapeError(
                f"{name}: mode 'valid' needs one operand that is no smaller on any axis, got"
                f" shapes {own} and {other}."
            )
    return chosen


def _kept(full: Any, x: Any, y: Any, mode: str, axes: tuple[int, ...]) -> Any:
    """The part of a full convolution that a mode asks for."""
    if mode == "full":
        return full
    shape, starts = list(full._aval.shape), [0] * full._aval.ndim
    for d in axes:
        n, m = x._aval.shape[d], y._aval.shape[d]
        size = n if mode == "same" else max(n, m) - min(n, m) + 1
        starts[d], shape[d] = (shape[d] - size) // 2, size
    return cut(full, tuple(starts), tuple(shape), (1,) * len(shape))


def _by_spectra(x: Any, y: Any, axes: tuple[int, ...]) -> Any:
    """The full convolution, by products of transforms."""
    ends = {d: x._aval.shape[d] + y._aval.shape[d] - 1 for d in axes}
    lengths = {d: fast_length(n) for d, n in ends.items()}
    real = not x._aval.dtype.is_complex
    spectra = []
    for v in (x, y):
        z = v
        for position, d in enumerate(reversed(axes)):
            z = resized(z, d, lengths[d])
            if real and position == 0:
                z = bind(rdft.op, z, axis=d, factor=1.0)
            else:
                z = bind(dft.op, z, axis=d, inverse=False, factor=1.0)
        spectra.append(z)
    z = spectra[0] * spectra[1]
    for position, d in enumerate(axes):
        n = lengths[d]
        if real and position == len(axes) - 1:
            z = bind(irdft.op, z, axis=d, n=n, factor=1.0 / n)
        else:
            z = bind(dft.op, z, axis=d, inverse=True, factor=1.0 / n)
    for d, n in ends.items():
        z = resized(z, d, n)
    return z


def _convolution_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(7), d.real(4))),
        Sample((d.real(7), d.real(4), "same")),
        Sample((d.real(4), d.real(7), "valid")),
        Sample((d.real(3, 6), d.real(2, 4))),
        Sample((d.real(3, 6), d.real(2, 4), "same")),
        Sample((d.real(3, 6), d.real(3, 4)), {"axes": 1}),
        Sample((d.real(3, 6), d.real(1, 4)), {"axes": -1, "mode": "valid"}),
        Sample((d.real(40), d.real(3))),
    ]


def _convolution_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3), d.real(2)), {"mode": "most"}, DTypeError, "mode must be one of"),
        Bad((d.real(3), d.real(2, 2)), {}, ShapeError, "same number of axes"),
        Bad((d.real(3, 2), d.real(2, 2)), {"axes": 1}, ShapeError, "must broadcast"),
        Bad((d.real(3, 2), d.real(2, 3)), {"mode": "valid"}, ShapeError, "'valid' needs"),
        Bad((d.real(0), d.real(2)), {}, ShapeError, "must not be empty"),
        Bad((d.real(3), d.real(3)), {"axes": 1}, ShapeError, "out of range"),
    ]


@composite(
    oracle="scipy.signal.fftconvolve",
    samples=_convolution_samples,
    errors=_convolution_errors,
    namespace="signal",
)
def fftconvolve(x1: Any, x2: Any, /, mode: str = "full", *, axes: Any = None) -> Any:
    """The convolution along the axes, all of them by default, by Fourier transforms.

    >>> pb.signal.fftconvolve(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 0.0, 3.0]))
    tensor([1., 2., 3., 6.], float32, cpu)

    `mode`: "full", "same" (as large as `x1`, in the middle) or "valid" (where they overlap wholly).
    The error is relative to the largest element of the result.
    """
    x, y = _operands("fftconvolve", x1, x2)
    chosen = _checked("fftconvolve", x, y, mode, axes)
    if not chosen:
        return x * y
    return _kept(_by_spectra(x, y, chosen), x, y, mode, chosen)


@composite(
    oracle="scipy.signal.oaconvolve",
    samples=_convolution_samples,
    errors=_convolution_errors,
    namespace="signal",
)
def oaconvolve(x1: Any, x2: Any, /, mode: str = "full", *, axes: Any = None) -> Any:
    """`fftconvolve` of a long and a short array, in pieces of the long one that are added up.

    >>> pb.signal.oaconvolve(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 0.0, 3.0]))
    tensor([1., 2., 3., 6.], float32, cpu)
    """
    x, y = _operands("oaconvolve", x1, x2)
    chosen = _checked("oaconvolve", x, y, mode, axes)
    if not chosen:
        return x * y
    return _kept(_in_pieces(x, y, chosen), x, y, mode, chosen)


def _in_pieces(x: Any, y: Any, axes: tuple[int, ...]) -> Any:
    """The full convolution, cut along the axis where one operand is longest beside the other."""

    def ratio(d: int) -> float:
        sizes = x._aval.shape[d], y._aval.shape[d]
        return max(sizes) / min(sizes)

    axis = max(axes, key=ratio)
    longer, shorter = (x, y) if x._aval.shape[axis] >= y._aval.shape[axis] else (y, x)
    n, m = longer._aval.shape[axis], shorter._aval.shape[axis]
    piece = fast_length(8 * m) - m + 1  # most of a transform is new points
    if piece >= n:
        return _by_spectra(x, y, axes)
    ndim = x._aval.ndim
    count = -(-n // piece)
    rows = moveaxis(resized(longer, axis, count * piece), axis, -1)
    rows = reshape(rows, (*rows._aval.shape[:-1], count, piece))
    kernel = moveaxis(shorter, axis, -1)
    kernel = reshape(kernel, (*kernel._aval.shape[:-1], 1, m))
    others = tuple(d - (d > axis) for d in axes if d != axis)
    found = _by_spectra(rows, kernel, (*others, ndim))
    return moveaxis(resized(overlap_added(found, piece), ndim - 1, n + m - 1), -1, axis)


# -- the analytic signal ---------------------------------------------------------------------------


@functools.lru_cache(16)
def _positive(n: int, axes: int, dtype: DType, dev: Device) -> Any:
    """What the first half of the coefficients of an analytic signal is multiplied by."""
    weights = np.full((n // 2 + 1, *(1,) * axes), 2.0, dtype.numpy)
    weights[0] = 1.0
    if n % 2 == 0:
        weights[-1] = 1.0
    return from_numpy(weights, dev)


@composite(
    oracle=lambda x, N=None, axis=-1: _hilbert_oracle(x, N, axis),
    samples=lambda d: [
        Sample((d.real(8),)),
        Sample((d.real(3, 7),)),
        Sample((d.real(5, 2),), {"axis": 0}),
        Sample((d.real(6),), {"N": 9}),
    ],
    errors=lambda d: [
        Bad((np.ones(3, np.complex64),), {}, DTypeError, "expected a real dtype"),
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(3),), {"N": 0}, ShapeError, "at least 1"),
    ],
    namespace="signal",
)
def hilbert(x: Any, /, N: int | None = None, axis: int = -1) -> Any:
    """The analytic signal: `x` plus i times its Hilbert transform, without negative frequencies.

    >>> pb.signal.hilbert(pb.tensor([1.0, 0.0, -1.0, 0.0]))
    tensor([ 1.+0.j,  0.+1.j, -1.+0.j,  0.-1.j], complex64, cpu)
    """
    x = operand("hilbert", x, real=True)
    axis = normalise_axis("hilbert", axis, x._aval.ndim)
    n = points("hilbert", N, x._aval.shape[axis], "N")
    z = bind(rdft.op, resized(x, axis, n), axis=axis, factor=1.0)
    av = x._aval
    z = z * _positive(n, av.ndim - 1 - axis, av.dtype, av.device)
    return bind(dft.op, resized(z, axis, n), axis=axis, inverse=True, factor=1.0 / n)


def _hilbert_oracle(x: np.ndarray, N: int | None, axis: int) -> np.ndarray:
    n = x.shape[axis] if N is None else N
    spectrum = np.moveaxis(np.fft.fft(x, n, axis=axis), axis, -1)
    frequencies = np.fft.fftfreq(n)
    weights = np.where(frequencies > 0, 2.0, 0.0)
    weights[0] = 1.0
    if n % 2 == 0:
        weights[n // 2] = 1.0
    return np.moveaxis(np.fft.ifft(spectrum * weights), -1, axis)


# -- the chirp transform ---------------------------------------------------------------------------


def _powers(base: complex, exponents: np.ndarray) -> np.ndarray:
    """Powers through the logarithm, so that large exponents lose nothing of the modulus."""
    log = cmath.log(base)
    return np.exp(log.real * exponents) * np.exp(1j * (log.imag * exponents))


@composite(
    oracle="scipy.signal.czt",
    samples=lambda d: [
        Sample((d.real(6),)),
        Sample((d.real(2, 5), 7)),
        Sample((d.real(5, 2), 4), {"axis": 0, "w": cmath.exp(-0.1j), "a": cmath.exp(0.3j)}),
        Sample((d.real(6), 5), {"w": 0.98 * cmath.exp(-0.2j), "a": 1.02}),
    ],
    errors=lambda d: [
        Bad((d.real(3), 0), {}, ShapeError, "at least 1"),
        Bad((d.real(3),), {"axis": 1}, ShapeError, "out of range"),
        Bad((d.real(3),), {"w": 0.0}, DTypeError, "other than 0"),
        Bad((d.real(0),), {}, ShapeError, "at least 1"),
    ],
    namespace="signal",
)
def czt(
    x: Any,
    /,
    m: int | None = None,
    *,
    w: complex | None = None,
    a: complex = 1.0,
    axis: int = -1,
) -> Any:
    """The z-transform at m points of a spiral: `sum over j of x[j] z_k**-j` with `z_k = a w**-k`.

    >>> pb.round(pb.real(pb.signal.czt(pb.tensor([1.0, 2.0, 4.0]), 2, w=-1.0)))
    tensor([7., 3.], float32, cpu)

    `w` is `exp(-2 pi i / m)` by default; together with `a` it is a number, not differentiated by.
    """
    x = operand("czt", x)
    axis = normalise_axis("czt", axis, x._aval.ndim)
    n = points("czt", None, x._aval.shape[axis])
    m = points("czt", m, n, "m")
    base = cmath.exp(-2j * math.pi / m) if w is None else complex(w)
    start = complex(a)
    if base == 0 or start == 0:
        raise DTypeError(f"czt: w and a must be numbers other than 0, got {w!r} and {a!r}.")
    j = np.arange(max(n, m), dtype=np.float64)
    chirp = _powers(base, j * j / 2)
    if w is None:  # the exponents are exact modulo 2 m
        chirp = np.exp(-1j * np.pi / m * ((np.arange(max(n, m)) ** 2) % (2 * m)))
    length = fast_length(n + m - 1)
    kernel = np.zeros(length, np.complex128)
    kernel[:m] = 1 / chirp[:m]
    kernel[length - n + 1 :] = 1 / chirp[n - 1 : 0 : -1]

    def constant(values: np.ndarray) -> Any:
        dtype = complex_of(x._aval.dtype)
        return from_numpy(values.astype(dtype.numpy), x._aval.device)

    rows = moveaxis(x, axis, -1) * constant(_powers(start, -j[:n]) * chirp[:n])
    last = x._aval.ndim - 1
    z = bind(dft.op, resized(rows, last, length), axis=last, inverse=False, factor=1.0)
    z = z * constant(np.fft.fft(kernel))
    z = bind(dft.op, z, axis=last, inverse=True, factor=1.0 / length)
    return moveaxis(z[..., :m] * constant(chirp[:m]), -1, axis)
