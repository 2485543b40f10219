"""Stages that call functions of the host: Python, in the middle of a compiled program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import bfloat16
from pullback.runtime.cpu.native import Stage

__all__ = ["HostFunction", "host_stage"]

_WORD = 8


class _Held(int):
    """A parameter that keeps an object alive as long as there is a program with it."""

    owner: Any


class HostFunction:
    """A function of the host and where it finds its arrays: pairs of a slot and what is there.

    It is an entry of the table of errors too: what the function raises is raised by the call of the
    program.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], None],
        places: Sequence[tuple[int, Aval]],
        code: int,
    ):
        self._function = function
        self._places = places
        self._code = code
        self._raised: dict[int, BaseException] = {}
        self._numbers = count()

    def run(self, pointers: int, error: int) -> None:
        """Call the function; an error is left to the program, by number."""
        try:
            self._function([_copied(pointers + _WORD * slot, av) for slot, av in self._places])
        except BaseException as raised:  # an interrupt too: nothing may pass through native code
            number = next(self._numbers)
            self._raised[number] = raised
            words = (ctypes.c_int64 * 3).from_address(error)
            words[2] = number
            words[0] = self._code

    def error(self, name: str, position: int, value: int) -> BaseException:
        """What the function raised."""
        return self._raised.pop(value)


def _copied(address: int, av: Aval) -> np.ndarray:
    """The array whose address is stored there, copied: the program goes on to use its memory."""
    size = av.dtype.itemsize
    assert av.strides is not None
    if av.size == 0:
        return np.empty(av.shape, av.dtype.numpy)
    start = ctypes.c_void_p.from_address(address).value
    last = sum((n - 1) * s for n, s in zip(av.shape, av.strides, strict=True) if s > 0)
    first = sum((n - 1) * s for n, s in zip(av.shape, av.strides, strict=True) if s < 0)
    assert start is not None
    memory = (ctypes.c_char * ((last - first + 1) * size)).from_address(start + first * size)
    dtype = np.dtype(np.uint16) if av.dtype is bfloat16 else av.dtype.numpy
    strides = tuple(s * size for s in av.strides)
    seen = np.ndarray(av.shape, dtype, memoryview(memory), -first * size, strides).copy()
    return seen.view(bfloat16.numpy) if av.dtype is bfloat16 else seen


_functions: WeakValueDictionary[int, HostFunction] = WeakValueDictionary()
_next_number = count().__next__


@ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
def _kernel(params: int, pointers: int, first: int, last: int, error: int) -> None:
    _functions[ctypes.c_int64.from_address(params).value].run(pointers, error)


_ADDRESS = ctypes.cast(_kernel, ctypes.c_void_p).value or 0


def host_stage(function: HostFunction) -> Stage:
    """The stage that calls the function once."""
    number = _Held(_next_number())
    number.owner = function
    _functions[int(number)] = function
    return Stage(_ADDRESS, 1, 1, (number,))
