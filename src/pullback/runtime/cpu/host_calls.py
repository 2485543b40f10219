"""Functions of the host, called in the middle of a program.

A stage may be an address that Python made. Programs with such a stage let other threads run: the
one that calls takes Python's lock for the call. An exception waits until the program has ended.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.compile.kernel.forms import Map
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, bool_
from pullback.ir.scalar import const
from pullback.runtime.cpu import native
from pullback.runtime.cpu.loops import map_stages
from pullback.runtime.cpu.native import Stage, stages

__all__ = ["HostCall", "host_program", "host_stage", "host_stages"]

Words = ctypes.POINTER(ctypes.c_int64)
KERNEL = ctypes.CFUNCTYPE(
    None, Words, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64, Words
)


class _Memory:
    """Memory of a program as an array of raw elements, read at once."""

    def __init__(self, at: int, av: Aval):
        assert av.strides is not None
        item = av.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (at, True),
            "shape": av.shape,
            "typestr": f"|V{item}",
            "strides": tuple([s * item for s in av.strides]),
        }


def _read(at: int, av: Aval) -> np.ndarray:
    """A copy of an array in memory."""
    dtype = av.dtype.numpy
    if av.size == 0:
        return np.zeros(av.shape, dtype)
    raw = np.array(_Memory(at, av), order="C")
    return raw.reshape(-1).view(dtype).reshape(av.shape)


_exceptions: dict[int, BaseException] = {}  # of programs that are about to end
_number = itertools.count().__next__


class HostCall:
    """A function of copies of arrays, as a kernel; what it returns is written to slot `out`, and a
    byte that is not 0 to slot `flag` when it has been called.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        operands: Sequence[tuple[int, Aval]],
        code: int,
        out: int | None = None,
        flag: int | None = None,
    ):
        self._function, self._operands, self._out = function, operands, out
        self.code, self._flag = code, flag
        self._kernel = KERNEL(self._run)
        self.address = ctypes.cast(self._kernel, ctypes.c_void_p).value or 0

    def _run(self, params: Any, ptrs: Any, lo: int, hi: int, error: Any) -> None:
        try:
            found = self._function([_read(ptrs[slot] or 0, av) for slot, av in self._operands])
            if self._out is not None:
                ctypes.memmove(ptrs[self._out], found.ctypes.data, found.nbytes)
            if self._flag is not None:
                ctypes.memset(ptrs[self._flag], 1, 1)
        except BaseException as exception:  # it can't pass through native code
            number = _number()
            _exceptions[number] = exception
            error[1], error[2], error[0] = number, 0, self.code

    def error(self, name: str, position: int, value: int) -> BaseException:
        """The exception of a call that failed."""
        return _exceptions.pop(position)


class _Held(int):
    """A parameter that keeps the call alive as long as there is a program with its stage."""

    call: HostCall


def host_stage(call: HostCall) -> Stage:
    """The stage of a call."""
    held = _Held(0)
    held.call = call
    return Stage(call.address, 1, 1, (held,))


def host_stages(call: HostCall, flag: int) -> list[Stage]:
    """The stages of a call that notice if it was not made.

    Python handles signals when a function starts, before any `try`: what a handler raises there,
    as Ctrl-C does, is lost in native code. Then the byte at `flag` is still 0.
    """
    clear = map_stages.map_stages(CLEARED, (), [flag], [()], [], [])
    missed = HostCall(_interrupted, (), call.code)
    return [*clear, host_stage(call), stages.branch_stage(flag, [], [host_stage(missed)])]


CLEARED = Map((), bool_, (const(False, bool_),))


def _interrupted(arrays: list[Any]) -> None:
    raise KeyboardInterrupt


def host_program(avals: Sequence[Aval], static: dict[str, Any], out: Aval) -> Callable[..., Any]:
    """The function of buffers for one call."""
    host, dtype = static["host"], out.dtype

    def run(*bufs: Any) -> Any:
        arrays = [_read(b.address, av) for b, av in zip(bufs, avals, strict=True)]
        found = host.result(static["position"], arrays, static["lead"])
        return _buffer(found, dtype)

    return run


def _buffer(array: np.ndarray, dtype: DType) -> Any:
    buffer = native.empty(array.nbytes)
    ctypes.memmove(buffer.address, array.ctypes.data, array.nbytes)
    return buffer
