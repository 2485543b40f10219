"""Signals: convolution by Fourier transforms, spectrograms, the analytic signal, windows."""

# Written by tools/stubs.py (`make stubs`).

from pullback.tensor import Tensor, _ArrayLike, _DeviceLike, _DTypeLike

def bartlett(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A triangle with zeros at its ends."""

def blackman(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Three cosines that fall off faster than `hann`."""

def blackmanharris(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Blackman's and Harris' four cosines."""

def boxcar(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A window of ones."""

def cosine(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Half a wave, `sin(pi (k + 1/2) / n)`."""

def czt(
    x: _ArrayLike,
    /,
    m: int | None = None,
    *,
    w: complex | None = None,
    a: complex = 1.0,
    axis: int = -1,
) -> Tensor:
    """The z-transform at m points of a spiral: `sum over j of x[j] z_k**-j` with `z_k = a
    w**-k`.
    """

def fftconvolve(
    x1: _ArrayLike, x2: _ArrayLike, /, mode: str = "full", *, axes: int | None = None
) -> Tensor:
    """The convolution along the axes, all of them by default, by Fourier transforms."""

def flattop(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Five cosines that leave the height of a peak in a spectrum as it is."""

def gaussian(
    n: int,
    std: float,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A bell curve with a standard deviation of `std` elements."""

def hamming(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A raised cosine that ends at 0.08."""

def hann(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A raised cosine, `(1 - cos(2 pi k / (n - 1))) / 2`; without `sym` it has the period n."""

def hilbert(x: _ArrayLike, /, N: int | None = None, axis: int = -1) -> Tensor:
    """The analytic signal: `x` plus i times its Hilbert transform, without negative
    frequencies.
    """

def istft(
    z: _ArrayLike,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: _ArrayLike | None = None,
    *,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose `stft` is nearest to `z`: frames added up, over the sum of squared
    windows.
    """

def kaiser(
    n: int,
    beta: float,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Kaiser's window, `i0(beta sqrt(1 - x^2)) / i0(beta)`; a larger `beta` makes it narrower."""

def nuttall(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """Nuttall's four cosines."""

def oaconvolve(
    x1: _ArrayLike, x2: _ArrayLike, /, mode: str = "full", *, axes: int | None = None
) -> Tensor:
    """`fftconvolve` of a long and a short array, in pieces of the long one that are added up."""

def stft(
    x: _ArrayLike,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: _ArrayLike | None = None,
    *,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Tensor:
    """The Fourier transforms of overlapping frames of the last axis: (..., frequencies,
    frames).
    """

def triang(
    n: int,
    /,
    *,
    sym: bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
) -> Tensor:
    """A triangle without zeros at its ends."""
