"""The errors a user can cause. Every message reads `op: fact, got X. Hint.`"""

from __future__ import annotations

import numpy as np

__all__ = [
    "DTypeError",
    "DeviceError",
    "GradientError",
    "LinAlgError",
    "PullbackError",
    "RetraceWarning",
    "ShapeError",
    "TraceError",
]


class PullbackError(Exception):
    """Base of every error that pullback raises on purpose, besides `IndexError`."""


class ShapeError(PullbackError, ValueError):
    """Shapes, axes or sizes that do not fit the operation."""


class DTypeError(PullbackError, TypeError):
    """A dtype, or a kind of argument, that the operation does not take."""


class TraceError(DTypeError):
    """A traced value used for its contents or after its trace; a function that can't be traced."""


class DeviceError(PullbackError, RuntimeError):
    """Operands on different devices, or a device that is not there."""


class GradientError(PullbackError, RuntimeError):
    """A derivative that was asked for and can't be had."""


class LinAlgError(PullbackError, np.linalg.LinAlgError):
    """A matrix for which what was asked does not exist: singular, not positive definite."""


class IndexOutOfRange(PullbackError, IndexError):
    """An index outside its axis."""


class RetraceWarning(UserWarning):
    """A jitted function is traced again and again; the message says what changes."""
