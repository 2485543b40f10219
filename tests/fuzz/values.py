"""Random arrays: dtypes, sizes at the thresholds of the code, special values, layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import pullback as pb
from pullback.core import dtypes as dt

__all__ = ["LAYOUTS", "array", "dtype", "fitting", "shape", "sprinkle"]

# Around widths of vectors, blocks of reductions (32, 1024), tiles, and the 182 x 182 elements from
# which row kernels differ; then primes.
SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129),
    *(181, 182, 183, 255, 256, 257, 1023, 1024, 1025, 11, 37, 101, 211, 997, 2053),
)
SMALL = tuple(n for n in SIZES if n <= 17)
LONG = (16_384, 65_537, 131_101, 262_147)  # enough for several threads
MOST_ELEMENTS = 70_000
DTYPES = (
    *(["float32"] * 8 + ["float64"] * 8 + ["float16"] * 2 + ["bfloat16"] * 2),
    *(["complex64"] * 2 + ["complex128"] * 2 + ["int64", "int32", "int8", "uint8", "int16"]),
    *("uint16", "uint32", "uint64", "bool"),
)
LAYOUTS = ("plain", "flipped", "transposed", "strided", "offset", "broadcast")


def dtype(rng: np.random.Generator) -> Any:
    return dt.as_dtype(str(rng.choice(DTYPES)))


def size(rng: np.random.Generator, most: int = MOST_ELEMENTS) -> int:
    fitting_sizes = [n for n in SIZES if n <= most]
    return int(rng.choice(fitting_sizes)) if rng.random() > 0.03 else 0


def shape(rng: np.random.Generator, ndim: int | None = None) -> tuple[int, ...]:
    """A shape of few enough elements: now and then empty, long, square, one row or one column."""
    if ndim is None:
        ndim = int(rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4)))
    if ndim == 1 and rng.random() < 0.06:
        return (int(rng.choice(LONG)),)
    if ndim == 2 and rng.random() < 0.35:
        n = size(rng, 257)
        return [(n, n), (1, n), (n, 1), (n, n)][int(rng.integers(4))]
    found: list[int] = []
    for _ in range(ndim):
        room = MOST_ELEMENTS // max(math.prod(found), 1)
        small = ndim > 2 and rng.random() < 0.8
        found.append(int(rng.choice(SMALL)) if small and room > 17 else size(rng, max(room, 1)))
    return tuple(int(n) for n in rng.permutation(found))


def array(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Ordinary numbers of a dtype: some whole, so that there are ties and zeros."""
    if dtype is pb.bool:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low = 0 if dtype.kind == "u" else -9
        return rng.integers(low, 10, shape).astype(dtype.numpy)
    x = rng.normal(0, 1.5, shape)
    if rng.random() < 0.3:
        x = np.round(x)
    if dtype.is_complex:
        x = x + 1j * rng.normal(0, 1.5, shape)
    return np.asarray(x).astype(dtype.numpy)


def fitting(rng: np.random.Generator, like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of the same dtype within the range of those of `like`, or some of these."""
    pool = like.reshape(-1)
    if not pool.size:
        return array(rng, dt.as_dtype(like.dtype), shape)
    first = rng.choice(pool, shape)
    if like.dtype.kind in "biu":
        return np.asarray(first, like.dtype)
    wide = np.complex128 if like.dtype.kind == "c" else np.float64
    first, second = first.astype(wide), np.asarray(rng.choice(pool, shape)).astype(wide)
    with np.errstate(all="ignore"):
        return np.asarray(first + rng.random(shape) * (second - first)).astype(like.dtype)


def sprinkle(rng: np.random.Generator, a: np.ndarray) -> np.ndarray:
    """The array with some elements replaced by special values of its dtype."""
    kind = dt.as_dtype(a.dtype)
    if kind is pb.bool or not a.size:
        return a
    if kind.is_integer:
        info = np.iinfo(a.dtype)
        special = [info.min, info.max, 0, 1]
    else:
        info = pb.finfo(kind.real)
        tiny = float(info.smallest_normal)
        special = [math.nan, math.inf, -math.inf, 0.0, -0.0, tiny, -tiny / 4]
        special += [float(info.max), float(info.min), float(info.eps), 1.0]
    flat = np.array(a).reshape(-1)
    count = int(rng.integers(1, max(2, flat.size // 4 + 1)))
    for i in rng.integers(0, flat.size, min(count, 50)):
        flat[i] = rng.choice(np.array(special, a.dtype))
    return flat.reshape(a.shape)
