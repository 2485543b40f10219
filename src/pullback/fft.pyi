"""Discrete Fourier transforms: the standard's `fft` extension and what is made of it."""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence

from pullback.tensor import Tensor, _ArrayLike, _DeviceLike, _DTypeLike

def dct(
    x: _ArrayLike,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Tensor:
    """The discrete cosine transform; of type 2 `2 sum over j of x[j] cos(pi k (2 j + 1) / 2
    n)`.
    """

def dst(
    x: _ArrayLike,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Tensor:
    """The discrete sine transform; of type 2 `2 sum x[j] sin(pi (k + 1) (2 j + 1) / 2 n)`."""

def fft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The discrete Fourier transform along an axis: `sum over j of x[j] exp(-2 pi i j k / n)`."""

def fft2(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] = ...,
    norm: str = "backward",
) -> Tensor:
    """`fftn` of two axes."""

def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: _DTypeLike | None = None, device: _DeviceLike | None = None
) -> Tensor:
    """The frequencies of the coefficients of `fft` for samples `d` apart: k / (n d), k < n / 2,
    and then the negative ones.
    """

def fftn(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The discrete Fourier transform along several axes, all of them by default."""

def fftshift(x: _ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The array with frequency 0 moved to the middle of each axis, or of those that are given."""

def hfft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The real `fft` of an array with the symmetry `x[-j] = conj(x[j])`, given its first half."""

def idct(
    x: _ArrayLike,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dct` of that type."""

def idst(
    x: _ArrayLike,
    /,
    *,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    orthogonalize: bool | None = None,
) -> Tensor:
    """The inverse of `dst` of that type."""

def ifft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `fft`: `sum over k of x[k] exp(2 pi i j k / n) / n`."""

def ifft2(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] = ...,
    norm: str = "backward",
) -> Tensor:
    """`ifftn` of two axes."""

def ifftn(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The inverse of `fftn`."""

def ifftshift(x: _ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`."""

def ihfft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft`: the first half of `ifft` of a real array."""

def irfft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`: a real array of `n` elements, 2 (m - 1) for m coefficients by
    default.
    """

def irfft2(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] = ...,
    norm: str = "backward",
) -> Tensor:
    """`irfftn` of two axes."""

def irfftn(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The inverse of `rfftn`: a real array with 2 (m - 1) elements along the last axis for m
    coefficients, or as many as `s` says.
    """

def rfft(
    x: _ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The first `n // 2 + 1` coefficients of `fft` of a real array; the others are conjugates."""

def rfft2(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] = ...,
    norm: str = "backward",
) -> Tensor:
    """`rfftn` of two axes."""

def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: _DTypeLike | None = None, device: _DeviceLike | None = None
) -> Tensor:
    """The frequencies of the coefficients of `rfft`: k / (n d) for k = 0 ... n // 2."""

def rfftn(
    x: _ArrayLike,
    /,
    *,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The coefficients of `fftn` of a real array, but for the conjugate half along the last
    axis.
    """
