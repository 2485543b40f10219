"""The errors a user can cause. Every message reads `op: fact, got X. Hint.`"""

from __future__ import annotations

__all__ = [
    "AxisError",
    "CopyError",
    "DTypeError",
    "DeviceError",
    "ExchangeError",
    "FileFormatError",
    "GradientError",
    "PullbackError",
    "RetraceWarning",
    "ShapeError",
    "TraceError",
]


class PullbackError(Exception):
    """Base of every error that pullback raises on purpose, besides `IndexError`."""


class ShapeError(PullbackError, ValueError):
    """Shapes, axes or sizes that do not fit the operation."""


class AxisError(ShapeError, IndexError):
    """An axis that the array does not have."""


class DTypeError(PullbackError, TypeError):
    """A dtype, or a kind of argument, that the operation does not take."""


class TraceError(DTypeError):
    """A traced value used for its contents or after its trace; a function that can't be traced."""


class DeviceError(PullbackError, RuntimeError):
    """Operands on different devices, or a device that is not there."""


class ExchangeError(PullbackError, BufferError):
    """Memory that can't be shared with another library in the way that was asked for."""


class CopyError(ExchangeError, ValueError):
    """A copy that is needed, where `copy=False` forbids one."""


class GradientError(PullbackError, RuntimeError):
    """A derivative that was asked for and can't be had."""


class IndexOutOfRange(PullbackError, IndexError):
    """An index outside its axis."""


class FileFormatError(PullbackError, ValueError):
    """A file that is damaged, of another format, or does not hold what was asked for."""


class RetraceWarning(UserWarning):
    """A jitted function is traced again and again; the message says what changes."""
