"""Windows that fall off towards the ends of a signal, by SciPy's names and by NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pullback.core.avals import device as as_device
from pullback.core.dtypes import as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import default_device, from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import composite

__all__ = [
    "bartlett", "blackman", "blackmanharris", "boxcar", "cosine", "flattop", "gaussian", "hamming",
    "hann", "kaiser", "nuttall", "triang",
]  # fmt: skip

Shape = Callable[[np.ndarray], np.ndarray]  # of places from -1 to 1


def _made(name: str, n: Any, shape: Shape, sym: Any, dtype: Any, where: Any, room: int = 0) -> Any:
    """A window of n elements; without `sym` it is one period of a longer one.

    There is `room` for so many more between the ends and -1 and 1, half of them on each side.
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise DTypeError(f"{name}: the number of elements must be an integer, got {n!r}.")
    if n < 0:
        raise ShapeError(f"{name}: the number of elements must not be negative, got {n}.")
    chosen = default_float() if dtype is None else as_dtype(dtype, name)
    if not chosen.is_float:
        raise DTypeError(f"{name}: expected a floating dtype, got {chosen.name}.")
    count = n if sym else n + 1
    places = (2 * np.arange(n) - (count - 1)) / max(count - 1 + room, 1)
    values = np.ones(n) if n < 2 else shape(places)
    dev = default_device() if where is None else as_device(where)
    return from_numpy(values.astype(chosen.numpy), dev)


def _sum_of_cosines(*weights: float) -> Shape:
    def shape(x: np.ndarray) -> np.ndarray:
        total = np.zeros_like(x)
        for k, weight in enumerate(weights):
            total += weight * np.cos(k * np.pi * x)
        return total

    return shape


def _samples(*more: Any) -> Callable[[Draw], list[Sample]]:
    def samples(d: Draw) -> list[Sample]:
        found = [Sample((n, *more), {"sym": sym}) for n in (0, 1, 2, 7, 8) for sym in (True, False)]
        return [*found, Sample((6, *more))]

    return samples


def _errors(*more: Any) -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((-1, *more), {}, ShapeError, "negative"),
        Bad((2.5, *more), {}, DTypeError, "an integer"),
        Bad((4, *more), {"dtype": "int32"}, DTypeError, "floating dtype"),
    ]


def _oracle(name: str) -> Callable[..., np.ndarray]:
    def oracle(*args: Any, sym: bool = True) -> np.ndarray:
        windows = import_module("scipy.signal.windows")
        return getattr(windows, name)(*args, sym=sym).astype(np.float32)

    return oracle


def _window(name: str, *more: Any, tolerance: float = 1.0) -> Callable[..., Any]:
    return composite(
        oracle=_oracle(name),
        samples=_samples(*more),
        errors=_errors(*more),
        namespace="signal",
        differentiable=False,
        tolerance=tolerance,
    )


@_window("boxcar")
def boxcar(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """A window of ones.

    >>> pb.signal.boxcar(3)
    tensor([1., 1., 1.], float32, cpu)
    """
    return _made("boxcar", n, np.ones_like, sym, dtype, device)


@_window("bartlett")
def bartlett(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """A triangle with zeros at its ends.

    >>> pb.signal.bartlett(5)
    tensor([0. , 0.5, 1. , 0.5, 0. ], float32, cpu)
    """
    return _made("bartlett", n, lambda x: 1 - np.abs(x), sym, dtype, device)


@_window("triang")
def triang(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """A triangle without zeros at its ends.

    >>> pb.signal.triang(3)
    tensor([0.5, 1. , 0.5], float32, cpu)
    """
    odd = isinstance(n, int) and (n % 2 == 1) == bool(sym)
    return _made("triang", n, lambda x: 1 - np.abs(x), sym, dtype, device, 2 if odd else 1)


@_window("hann")
def hann(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """A raised cosine, `(1 - cos(2 pi k / (n - 1))) / 2`; without `sym` it has the period n.

    >>> pb.signal.hann(5)
    tensor([0. , 0.5, 1. , 0.5, 0. ], float32, cpu)
    """
    return _made("hann", n, _sum_of_cosines(0.5, 0.5), sym, dtype, device)


@_window("hamming")
def hamming(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """A raised cosine that ends at 0.08.

    >>> pb.signal.hamming(3)
    tensor([0.08, 1.  , 0.08], float32, cpu)
    """
    return _made("hamming", n, _sum_of_cosines(0.54, 0.46), sym, dtype, device)


@_window("blackman")
def blackman(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """Three cosines that fall off faster than `hann`.

    >>> pb.round(pb.signal.blackman(5), decimals=2)
    tensor([-0.  ,  0.34,  1.  ,  0.34, -0.  ], float32, cpu)
    """
    return _made("blackman", n, _sum_of_cosines(0.42, 0.5, 0.08), sym, dtype, device)


@_window("nuttall")
def nuttall(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """Nuttall's four cosines.

    >>> pb.signal.nuttall(1)
    tensor([1.], float32, cpu)
    """
    shape = _sum_of_cosines(0.3635819, 0.4891775, 0.1365995, 0.0106411)
    return _made("nuttall", n, shape, sym, dtype, device)


@_window("blackmanharris")
def blackmanharris(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """Blackman's and Harris' four cosines.

    >>> pb.signal.blackmanharris(1)
    tensor([1.], float32, cpu)
    """
    shape = _sum_of_cosines(0.35875, 0.48829, 0.14128, 0.01168)
    return _made("blackmanharris", n, shape, sym, dtype, device)


@_window("flattop")
def flattop(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """Five cosines that leave the height of a peak in a spectrum as it is.

    >>> pb.signal.flattop(1)
    tensor([1.], float32, cpu)
    """
    shape = _sum_of_cosines(0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368)
    return _made("flattop", n, shape, sym, dtype, device)


@_window("cosine")
def cosine(n: int, /, *, sym: bool = True, dtype: Any = None, device: Any = None) -> Any:
    """Half a wave, `sin(pi (k + 1/2) / n)`.

    >>> pb.round(pb.signal.cosine(3), decimals=2)
    tensor([0.5, 1. , 0.5], float32, cpu)
    """
    return _made("cosine", n, lambda x: np.cos(np.pi / 2 * x), sym, dtype, device, 1)


@_window("gaussian", 1.5)
def gaussian(
    n: int, std: float, /, *, sym: bool = True, dtype: Any = None, device: Any = None
) -> Any:
    """A bell curve with a standard deviation of `std` elements.

    >>> pb.round(pb.signal.gaussian(3, 1.0), decimals=2)
    tensor([0.61, 1.  , 0.61], float32, cpu)
    """
    middle = ((n if sym else n + 1) - 1) / 2 if isinstance(n, int) else 0.0
    return _made(
        "gaussian", n, lambda x: np.exp(-0.5 * (x * middle / std) ** 2), sym, dtype, device
    )


@_window("kaiser", 8.6)
def kaiser(
    n: int, beta: float, /, *, sym: bool = True, dtype: Any = None, device: Any = None
) -> Any:
    """Kaiser's window, `i0(beta sqrt(1 - x^2)) / i0(beta)`; a larger `beta` makes it narrower.

    >>> pb.round(pb.signal.kaiser(3, 2.0), decimals=2)
    tensor([0.44, 1.  , 0.44], float32, cpu)
    """

    def shape(x: np.ndarray) -> np.ndarray:
        return np.i0(beta * np.sqrt(np.maximum(1 - x * x, 0.0))) / np.i0(beta)

    return _made("kaiser", n, shape, sym, dtype, device)
