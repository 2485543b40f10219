"""Functions of the host in the middle of a program: what is called, and how it fails.

An exception of such a function can't pass through a program. It is kept until the program has
ended; the position that the program's error names is its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pullback.compile.program.target import Fault, Place
from pullback.core.avals import Aval

__all__ = ["HostFunction", "called_effect", "called_function", "effect_faults", "host_faults"]
__all__ += ["keep_exception"]

HostFunction: TypeAlias = Callable[[list[np.ndarray]], Any]

_exceptions: dict[int, BaseException] = {}
_numbers = itertools.count()


def keep_exception(exception: BaseException) -> int:
    """The number of an exception, by which `HostFault` finds it once."""
    number = next(_numbers)
    _exceptions[number] = exception
    return number


class HostFault:
    """The exception of a call that failed."""

    def error(self, name: str, position: int, value: int) -> BaseException:
        return _exceptions.pop(position)


def host_faults(
    avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What the error code of a function among operations stands for."""
    return [("pure_callback", HostFault())]


def effect_faults(
    avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What the error code of an effect stands for."""
    return [("effect", HostFault())]


def called_function(static: Mapping[str, Any]) -> HostFunction:
    """What an equation of a function among operations calls; it returns the result."""

    def function(arrays: list[np.ndarray]) -> np.ndarray:
        return static["host"].result(static["position"], arrays, static["lead"])

    return function


def called_effect(
    operands: Sequence[Place], static: Mapping[str, Any]
) -> tuple[HostFunction, Sequence[Place]]:
    """What an equation of an effect calls, and with which operands; the others order the calls."""
    receiver = static["receiver"]
    return receiver, operands[len(operands) - receiver.count :]
