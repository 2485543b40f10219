"""What the normalisations share: arrays brought to mean 0 and variance 1, and scaled by channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import ShapeError
from pullback.ops.exponential import rsqrt
from pullback.ops.movement import reshape
from pullback.ops.parts import astype, real
from pullback.ops.statistics import mean

__all__ = [
    "numpy_back", "numpy_channels", "numpy_first", "numpy_standardised", "scaled", "squared",
    "standardised", "widened",
]  # fmt: skip


def widened(x: Any) -> Any:
    """Halves as float32: means of squares leave their range."""
    return astype(x, dt.float32) if x._aval.dtype.itemsize == 2 else x


def squared(x: Any) -> Any:
    return real(x * x.conj()) if x._aval.dtype.is_complex else x * x


def standardised(x: Any, axes: tuple[int, ...], eps: Any) -> tuple[Any, Any, Any]:
    """`(x - mean) / sqrt(var + eps)` over some axes, with mean and variance."""
    centre = mean(x, axis=axes, keepdims=True)
    x = x - centre
    spread = mean(squared(x), axis=axes, keepdims=True)
    return x * rsqrt(spread + eps), centre, spread


def scaled(name: str, x: Any, weight: Any, bias: Any, axis: int) -> Any:
    """`x * weight + bias` for each channel."""
    channels = x._aval.shape[axis]
    shape = tuple(channels if d == axis else 1 for d in range(x._aval.ndim))
    for what, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        if value._aval.shape != (channels,):
            raise ShapeError(
                f"{name}: the {what} must have shape ({channels},), one for each channel,"
                f" got {value._aval.shape}."
            )
        value = reshape(astype(value, x._aval.dtype), shape)
        x = x * value if what == "weight" else x + value
    return x


def numpy_standardised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    x = x - x.mean(axes, keepdims=True)
    return x / np.sqrt((np.abs(x) ** 2).mean(axes, keepdims=True) + eps)


def numpy_first(x: np.ndarray, layout: str) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if layout == "channels_last" else x


def numpy_back(x: np.ndarray, layout: str) -> np.ndarray:
    return np.moveaxis(x, 1, -1) if layout == "channels_last" else x


def numpy_channels(x: np.ndarray, weight: Any, bias: Any) -> np.ndarray:
    shape = (-1,) + (1,) * (x.ndim - 2)
    x = x if weight is None else x * np.reshape(weight, shape)
    return x if bias is None else x + np.reshape(bias, shape)
