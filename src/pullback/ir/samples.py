"""Sample inputs: how an operation's block says what to test it with, without building anything at
import.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Bad", "Draw", "Sample"]


class Sample(NamedTuple):
    """A good call: arrays are NumPy arrays, given to the operation as tensors and to the oracle as
    they are.

    `order` caps the order of derivatives tested, for calls at points where higher ones do not
    exist.
    """

    args: tuple
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (never written)
    order: int = 3


class Bad(NamedTuple):
    """A call that must raise `error`; its message names the operation and contains `match`."""

    args: tuple
    kwargs: dict[str, Any]
    error: type[Exception]
    match: str


class Draw:
    """A source of sample arrays: the same numbers every time for one operation."""

    def __init__(self, seed: int, dtype: np.dtype | type = np.float64):
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)

    def real(self, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Floats (or complex numbers, if that is the dtype asked for) spread over [low, high], not
        next to 0.
        """
        x = self.rng.uniform(low, high, shape)
        x = np.where(
            np.abs(x) < 0.05, 0.05 + np.abs(x), x
        )  # many operations have a kink or a pole at 0
        if self.dtype.kind == "c":
            x = x + 1j * self.rng.uniform(low, high, shape)
        return np.asarray(x).astype(self.dtype)

    def positive(self, *shape: int, low: float = 0.3, high: float = 3.0) -> np.ndarray:
        """Floats away from zero."""
        return self.real(*shape, low=low, high=high)

    def distinct(self, *shape: int) -> np.ndarray:
        """Floats that differ from each other by at least 0.1, in random order: no ties, no kinks
        nearby.
        """
        size = int(np.prod(shape))
        x = (self.rng.permutation(size) - size / 2) * 0.25 + self.rng.uniform(0.02, 0.1, size)
        return np.asarray(x.reshape(shape)).astype(self.dtype)

    def with_nan(self, *shape: int) -> np.ndarray:
        """Distinct floats, but for a NaN in the second place; integers have none."""
        x = self.distinct(*shape)
        if self.dtype.kind not in "iu":
            x.reshape(-1)[1] = np.nan
        return x

    def integers(
        self, *shape: int, low: int = 0, high: int = 10, dtype: Any = np.int64
    ) -> np.ndarray:
        """Integers in [low, high)."""
        return self.rng.integers(low, high, shape).astype(dtype)

    def mask(self, *shape: int) -> np.ndarray:
        """Booleans, about half of them true."""
        return self.rng.random(shape) < 0.5
