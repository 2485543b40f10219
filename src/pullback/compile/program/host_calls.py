"""Functions of the host in the middle of a program: what is called, and how it fails.

An exception of such a function can't pass through a program. It is kept until the program has
ended; the position that the program's error names is its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from pullback.compile.program.stages import Node
from pullback.compile.program.target import Area, Fault, Place, Routine
from pullback.core.avals import Aval

__all__ = [
    "HostCall",
    "HostFunction",
    "HostRun",
    "called",
    "called_function",
    "fetched_array",
    "host_routines",
    "keep_exception",
]

HostFunction: TypeAlias = Callable[[list[np.ndarray]], Any]
Heavy: TypeAlias = Callable[[Sequence[Aval], Aval], bool]
Direct: TypeAlias = Callable[[Sequence[Aval], "dict[str, Any]", Aval], Callable[..., Any]]

_exceptions: dict[int, BaseException] = {}
_numbers = itertools.count()


def keep_exception(exception: BaseException) -> int:
    """The number of an exception, by which `HostFault` finds it once."""
    number = next(_numbers)
    _exceptions[number] = exception
    return number


class HostRun(Protocol):
    """A program that runs behind the host, as a function of the host finds it."""

    def read(self, slot: int, av: Aval) -> np.ndarray:
        """The contents of an array, when they are computed."""
        ...

    def write(self, slot: int, array: np.ndarray) -> None:
        """Put a C-contiguous array at a slot."""
        ...

    def wait(self) -> None:
        """Return when all that was launched is done."""
        ...


class HostCall(NamedTuple):
    """A function of the host as a step of a target that runs behind it.

    It gives (code, position, value) of an error, or None.
    """

    function: Callable[[HostRun], tuple[int, int, int] | None]


def called(
    function: HostFunction, operands: Sequence[Place], code: int, out: int | None
) -> HostCall:
    """The call of a function of copies of arrays."""

    def call(run: HostRun) -> tuple[int, int, int] | None:
        arrays = [np.array(run.read(slot, av), order="C") for slot, av in operands]
        try:
            found = function(arrays)
        except Exception as exception:
            return code, keep_exception(exception), 0
        if out is not None:
            run.write(out, np.ascontiguousarray(found))
        return None

    return HostCall(call)


class HostFault:
    """The exception of a call that failed."""

    def error(self, name: str, position: int, value: int) -> BaseException:
        return _exceptions.pop(position)


Call: TypeAlias = Callable[[HostFunction, Sequence[Place], Area, int, "int | None"], Sequence[Node]]


def host_routines(call: Call, heavy: Heavy, direct: Direct | None = None) -> dict[str, Routine]:
    """The intrinsics that call functions: "host", one among operations, and "effect".

    `call(function, operands, area, code, out)` are the nodes that call one and write its result to
    the slot `out`, if there is one, or fail with the error code.
    """

    def host(
        operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
    ) -> Sequence[Node]:
        slot, out = result
        return call(called_function(static), operands, area, code, slot) if out.size else []

    def effect(
        operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
    ) -> Sequence[Node]:
        """Nobody reads the token; operands before those of the call order the calls."""
        receiver = static["receiver"]
        given = operands[len(operands) - receiver.count :]
        return call(receiver, given, area, code, None)

    return {
        "host": Routine(
            host, heavy, partial(_faults, "pure_callback"), calls_python=True, direct=direct
        ),
        "effect": Routine(effect, heavy, partial(_faults, "effect"), calls_python=True),
    }


def _faults(
    name: str, avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What the error code of a call stands for."""
    return [(name, HostFault())]


def called_function(static: Mapping[str, Any]) -> HostFunction:
    """What an equation of a function among operations calls; it returns the result."""

    def function(arrays: list[np.ndarray]) -> np.ndarray:
        return static["host"].result(static["position"], arrays, static["lead"])

    return function


def fetched_array(av: Aval, fetch: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """The contents of an array from memory that is not the host's.

    `fetch(start, count)` gives so many bytes as uint8s, from a byte on that is counted from the
    first element.
    """
    assert av.strides is not None
    if av.size == 0:
        return np.empty(av.shape, av.dtype.numpy)
    spans = [(n - 1) * s for n, s in zip(av.shape, av.strides, strict=True)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    item = av.dtype.itemsize
    first = fetch(low * item, (1 + high - low) * item).view(av.dtype.numpy)[-low:]
    return np.lib.stride_tricks.as_strided(first, av.shape, [s * item for s in av.strides])
