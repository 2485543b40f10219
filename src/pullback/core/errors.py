"""The errors a user can cause. Every message reads `op: fact, got X. Hint.`"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import local
from types import FrameType, TracebackType
from typing import Any

import numpy as np

__all__ = [
    "CAUSED",
    "AxisError",
    "CopyError",
    "DTypeError",
    "DeviceError",
    "ExchangeError",
    "FileFormatError",
    "GradientError",
    "LinAlgError",
    "MemoryBudgetError",
    "NonFiniteError",
    "PullbackError",
    "ReportedBy",
    "RetraceWarning",
    "ShapeError",
    "TraceError",
    "briefly",
    "called_name",
    "expect_function",
    "renamed",
    "shorten",
    "shorten_caused",
]

WHOLE = os.environ.get("PULLBACK_TRACEBACK") == "full"  # for who works on the library


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


class LinAlgError(PullbackError, np.linalg.LinAlgError):
    """A matrix for which what was asked does not exist: singular, not positive definite."""


class MemoryBudgetError(PullbackError, MemoryError):
    """A budget of memory in which a function can't run; it takes `least_bytes` at least."""

    def __init__(self, message: str, least_bytes: int = 0):
        super().__init__(message)
        self.least_bytes = least_bytes


class NonFiniteError(PullbackError, FloatingPointError):
    """A NaN or an infinity that `debug.nan` has found: `op` made it, called at `line`."""

    def __init__(self, message: str, op: str = "", line: str = ""):
        super().__init__(message)
        self.op = op
        self.line = line


class IndexOutOfRange(PullbackError, IndexError):
    """An index outside its axis."""


class _Calling(local):
    name = ""


_calling = _Calling()


def called_name() -> str:
    """The function that the user called, where indices are looked at later than in the call."""
    return _calling.name


def renamed(error: BaseException, name: str) -> BaseException:
    """An error of an index as a function of that name reports it."""
    if not name or not isinstance(error, IndexOutOfRange):
        return error
    return IndexOutOfRange(f"{name}:{str(error).partition(':')[2]}")


class ReportedBy:
    """A block in which indices out of range are reported under the name given."""

    __slots__ = ("_before", "_name")

    def __init__(self, name: str):
        self._name, self._before = name, _calling.name

    def __enter__(self) -> None:
        _calling.name = self._before or self._name

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        _calling.name = self._before
        if isinstance(error, IndexOutOfRange):
            raise renamed(error, self._name) from None


class FileFormatError(PullbackError, ValueError):
    """A file that is damaged, of another format, or does not hold what was asked for."""


class RetraceWarning(UserWarning):
    """A jitted function is traced again and again; the message says what changes."""


# -- tracebacks ------------------------------------------------------------------------------------


def shorten(error: Exception) -> None:
    """Take the frames of the library out of the traceback of an error that is raised again.

    A mistake is in the call, and in the functions of the user that the library called. What the
    library itself had caught on the way says nothing either.
    """
    if WHOLE:
        return
    while (caught := error.__context__) is not None:
        if caught.__traceback__ is None or not _is_own(caught.__traceback__.tb_frame):
            break
        error.__context__ = caught.__context__
    kept = []
    at = error.__traceback__
    while at is not None:
        if not _is_own(at.tb_frame):
            kept.append(at)
        at = at.tb_next
    trace = None
    for at in reversed(kept):
        trace = TracebackType(trace, at.tb_frame, at.tb_lasti, at.tb_lineno)
    error.__traceback__ = trace


# What a call can cause beside our own errors: wrong arguments, files, too little memory.
CAUSED = (PullbackError, TypeError, OSError, MemoryError)


def shorten_caused(error: Exception) -> None:
    """`shorten` an error that a call can cause, or that a function of the user raised."""
    if isinstance(error, CAUSED) or _is_of_user(error):
        shorten(error)


def briefly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function whose errors show no frames of the library below it: errors that a call
    can cause, and all that functions of the user raise.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten_caused(error)
            raise error

    return call


def expect_function(name: str, f: Any, what: str = "expected") -> None:
    """Refuse what can't be called; `name` is the function that asks, `what` the argument's part."""
    if not callable(f):
        raise DTypeError(f"{name}: {what} a function, got {type(f).__name__}.")


def _is_own(frame: FrameType) -> bool:
    return _home(frame) == "pullback"


def _home(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _is_of_user(error: Exception) -> bool:
    """Whether an error was raised by code that is neither ours nor what we are made of."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and _home(at.tb_frame) not in ("pullback", "numpy", "llvmlite")
