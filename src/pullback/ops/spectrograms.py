"""Fourier transforms of overlapping parts of a signal, and the way back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.ops.creation import ones
from pullback.ops.families import composite
from pullback.ops.fourier import dft, irdft, operand, points, rdft, resized
from pullback.ops.movement import broadcast_to
from pullback.ops.padding import pad
from pullback.ops.parts import astype
from pullback.ops.reductions import all as all_
from pullback.ops.requirements import require
from pullback.ops.signals import framed, overlap_added

__all__ = ["istft", "stft"]

_LEAST = 1e-11  # that the windows must add up to, for a signal to be found again


def _window(name: str, window: Any, win_length: Any, n_fft: int, x: Any) -> Any:
    """The window with n_fft elements: with zeros on both sides if it is shorter."""
    size = points(name, win_length, n_fft, "win_length")
    if size > n_fft:
        raise ShapeError(f"{name}: win_length must be at most n_fft = {n_fft}, got {size}.")
    dtype = x._aval.dtype.real
    if window is None:
        window = ones(size, dtype=dtype, device=x._aval.device)
    window = as_array(window, name)
    if window._aval.shape != (size,):
        raise ShapeError(f"{name}: the window has shape ({size},), got {window._aval.shape}.")
    if window._aval.dtype.is_complex:
        raise DTypeError(f"{name}: the window must be real, got {window._aval.dtype.name}.")
    before = (n_fft - size) // 2
    return pad(astype(window, dtype), (before, n_fft - size - before))


def _numpy_window(window: Any, size: int, n_fft: int) -> np.ndarray:
    before = (n_fft - size) // 2
    full = np.ones(size) if window is None else window
    return np.pad(full, (before, n_fft - size - before))


def _stft_oracle(
    x: np.ndarray,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: Any = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> np.ndarray:
    hop = n_fft // 4 if hop_length is None else hop_length
    taper = _numpy_window(window, win_length or n_fft, n_fft)
    if center:
        x = np.pad(x, [*[(0, 0)] * (x.ndim - 1), (n_fft // 2, n_fft // 2)], pad_mode)
    starts = range(0, x.shape[-1] - n_fft + 1, hop)
    frames = np.stack([x[..., s : s + n_fft] * taper for s in starts], axis=-1)
    z = np.fft.fft(frames, axis=-2)
    if onesided if onesided is not None else x.dtype.kind != "c":
        z = z[..., : n_fft // 2 + 1, :]
    return z / np.sqrt(n_fft) if normalized else z


def _istft_oracle(z: np.ndarray, n_fft: int, **options: Any) -> np.ndarray:
    """The signal of least squares, by the matrix of the transform."""
    hop = options.get("hop_length", n_fft // 4)
    count = z.shape[-1]
    taper = _numpy_window(options.get("window"), options.get("win_length", n_fft), n_fft)
    if options.get("normalized"):
        z = z * np.sqrt(n_fft)
    two_sided = options.get("onesided") is False
    frames = np.fft.ifft(z, axis=-2) if two_sided else np.fft.irfft(z, n_fft, axis=-2)
    frames = frames if options.get("return_complex") else frames.real
    size = (count - 1) * hop + n_fft
    out = np.zeros((*z.shape[:-2], size), frames.dtype)
    weight = np.zeros(size)
    for t in range(count):
        out[..., t * hop : t * hop + n_fft] += frames[..., t] * taper
        weight[t * hop : t * hop + n_fft] += taper**2
    start = n_fft // 2 if options.get("center", True) else 0
    length = options.get("length")
    end = size - start if length is None else min(start + length, size)
    out = out[..., start:end] / weight[start:end]
    missing = 0 if length is None else length - out.shape[-1]
    return np.pad(out, [*[(0, 0)] * (out.ndim - 1), (0, missing)])


@composite(
    oracle=_stft_oracle,
    samples=lambda d: [
        Sample((d.real(20), 8)),
        Sample((d.real(2, 21), 6), {"hop_length": 4, "window": d.positive(6)}),
        Sample((d.real(17), 8), {"win_length": 5, "window": d.positive(5), "center": False}),
        Sample((d.real(15), 5), {"hop_length": 7, "normalized": True}),
        Sample((d.real(12), 4), {"onesided": False, "pad_mode": "constant"}),
    ],
    errors=lambda d: [
        Bad((d.real(9), 0), {}, ShapeError, "n_fft must be at least 1"),
        Bad((d.real(), 4), {}, ShapeError, "a signal has an axis"),
        Bad((d.real(3), 8), {"center": False}, ShapeError, "shorter than a frame"),
        Bad((d.real(9), 4), {"hop_length": 0}, ShapeError, "hop_length must be at least 1"),
        Bad((d.real(9), 4), {"win_length": 5}, ShapeError, "at most n_fft"),
        Bad((d.real(9), 4), {"window": np.ones(3)}, ShapeError, "the window has shape"),
        Bad((np.ones(9, np.complex64), 4), {"onesided": True}, DTypeError, "onesided"),
    ],
    namespace="signal",
)
def stft(
    x: Any,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Any:
    """The Fourier transforms of overlapping frames of the last axis: (..., frequencies, frames).

    >>> pb.signal.stft(pb.tensor([1.0, 2.0, 3.0, 4.0]), 2, 2, center=False)
    tensor([[ 3.+0.j,  7.+0.j],
            [-1.+0.j, -1.+0.j]], complex64, cpu)

    Arguments are those of `torch.stft`: `hop_length` elements from frame to frame (a quarter of
    `n_fft`), a `window` of `win_length`, and with `center` half a frame of padding at both ends.
    Real signals give the first half of the frequencies, unless `onesided` is false.
    """
    complex_input = as_array(x, "stft")._aval.dtype.is_complex
    x = operand("stft", x, real=not complex_input)
    if x._aval.ndim < 1:
        raise ShapeError("stft: a signal has an axis, got a 0-d array.")
    n_fft = points("stft", n_fft, 1, "n_fft")
    hop = points("stft", hop_length, max(1, n_fft // 4), "hop_length")
    taper = _window("stft", window, win_length, n_fft, x)
    if complex_input and onesided:
        raise DTypeError("stft: onesided needs a real signal, got a complex one.")
    if center:
        widths = [*[(0, 0)] * (x._aval.ndim - 1), (n_fft // 2, n_fft // 2)]
        x = pad(x, widths, mode=pad_mode)
    if x._aval.shape[-1] < n_fft:
        raise ShapeError(
            f"stft: the signal is shorter than a frame, got {x._aval.shape[-1]} < {n_fft}."
        )
    frames = framed(x, n_fft, hop) * taper
    factor = 1.0 / math.sqrt(n_fft) if normalized else 1.0
    axis = frames._aval.ndim - 1
    if not complex_input and onesided is not False:
        z = bind(rdft.op, frames, axis=axis, factor=factor)
    else:
        z = bind(dft.op, operand("stft", frames), axis=axis, inverse=False, factor=factor)
    return z.mT


@composite(
    oracle=_istft_oracle,
    samples=lambda d: [
        Sample((d.real(5, 6), 8)),
        Sample((d.real(2, 4, 5), 6), {"hop_length": 2, "window": d.positive(6)}),
        Sample((d.real(4, 4), 6), {"hop_length": 6, "center": False, "length": 20}),
        Sample((d.real(5, 6), 8), {"win_length": 6, "window": d.positive(6), "length": 9}),
        Sample((d.real(3, 4), 4), {"normalized": True, "hop_length": 3}),
        Sample((d.real(5, 4), 5), {"onesided": False, "hop_length": 2}),
    ],
    errors=lambda d: [
        Bad((d.real(5), 8), {}, ShapeError, "frequencies and frames"),
        Bad((d.real(4, 3), 8), {}, ShapeError, "has 5 frequencies"),
        Bad((d.real(5, 3), 8), {"window": np.zeros(8)}, ShapeError, "the windows add up to 0"),
        Bad((d.real(5, 3), 8), {"hop_length": 9, "center": False}, ShapeError, "add up to 0"),
        Bad((d.real(5, 0), 8), {}, ShapeError, "frequencies and frames"),
    ],
    namespace="signal",
)
def istft(
    z: Any,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signal whose `stft` is nearest to `z`: frames added up, over the sum of squared windows.

    >>> z = pb.signal.stft(pb.tensor([1.0, 2.0, 3.0, 4.0]), 2, 2, center=False)
    >>> pb.signal.istft(z, 2, 2, center=False)
    tensor([1., 2., 3., 4.], float32, cpu)

    `length` is that of the signal, where the frames do not say it.
    """
    z = operand("istft", z)
    n_fft = points("istft", n_fft, 1, "n_fft")
    if z._aval.ndim < 2 or z._aval.shape[-1] == 0:
        raise ShapeError(f"istft: takes (..., frequencies and frames), got {z._aval.shape}.")
    hop = points("istft", hop_length, max(1, n_fft // 4), "hop_length")
    two_sided = onesided is False or return_complex
    wanted = n_fft if two_sided else n_fft // 2 + 1
    if z._aval.shape[-2] != wanted:
        raise ShapeError(
            f"istft: a frame of {n_fft} has {wanted} frequencies, got {z._aval.shape[-2]}."
        )
    taper = _window("istft", window, win_length, n_fft, z)
    factor = 1.0 / math.sqrt(n_fft) if normalized else 1.0 / n_fft
    rows = z.mT
    axis = rows._aval.ndim - 1
    if two_sided:
        frames = bind(dft.op, rows, axis=axis, inverse=True, factor=factor)
        frames = frames if return_complex else astype(frames, z._aval.dtype.real)
    else:
        frames = bind(irdft.op, rows, axis=axis, n=n_fft, factor=factor)
    squares = broadcast_to(taper * taper, (z._aval.shape[-1], n_fft))
    total, weight = overlap_added(frames * taper, hop), overlap_added(squares, hop)
    start = n_fft // 2 if center else 0
    size = total._aval.shape[-1]
    end = (
        size - start if length is None else min(start + points("istft", length, 1, "length"), size)
    )
    weight = weight[start:end]
    fact = (
        "add up to 0 at some places, where the signal can't be found. Take a smaller hop_length, or"
        " a window without zeros."
    )
    found = all_(weight >= _LEAST)
    weight = require(weight, found, "istft", fact, "the windows", "ShapeError")
    found = total[..., start:end] / weight
    if length is not None and length > end - start:
        found = resized(found, found._aval.ndim - 1, length)
    return found
