"""Functions of the host, called in the middle of a program.

A stage may be an address that Python made. Programs with such a stage let other threads run: the
one that calls takes Python's lock for the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.compile.kernel.lower import zero_kernel
from pullback.compile.program.host_calls import HostFunction, called_function, keep_exception
from pullback.compile.program.stages import Branch, Node
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval
from pullback.core.dtypes import bool_
from pullback.runtime.cpu import native
from pullback.runtime.cpu.loops import map_stages
from pullback.runtime.cpu.native import Stage

__all__ = ["HostKernel", "call_stages", "host_program", "host_stage"]

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


class HostKernel:
    """A function of copies of arrays, as a kernel; what it returns is written to slot `out`, and a
    byte that is not 0 to slot `flag` when it has been called.

    As an integer it is the address of the kernel, which it keeps alive.
    """

    def __init__(
        self,
        function: HostFunction,
        operands: Sequence[tuple[int, Aval]],
        code: int,
        out: int | None = None,
        flag: int | None = None,
    ):
        self._function, self._operands, self._out = function, operands, out
        self.code, self._flag = code, flag
        self._kernel = KERNEL(self._run)
        self._address = ctypes.cast(self._kernel, ctypes.c_void_p).value or 0

    def __index__(self) -> int:
        return self._address

    def _run(self, params: Any, ptrs: Any, lo: int, hi: int, error: Any) -> None:
        try:
            found = self._function([_read(ptrs[slot] or 0, av) for slot, av in self._operands])
            if self._out is not None:
                ctypes.memmove(ptrs[self._out], found.ctypes.data, found.nbytes)
            if self._flag is not None:
                ctypes.memset(ptrs[self._flag], 1, 1)
        except BaseException as exception:  # it can't pass through native code
            error[1], error[2], error[0] = keep_exception(exception), 0, self.code


def host_stage(call: HostKernel) -> Stage:
    """The stage of a call."""
    return Stage(call, 1, 1, ())


def call_stages(
    function: HostFunction, operands: Sequence[Place], area: Area, code: int, out: int | None
) -> list[Node]:
    """The stages of a call that notice if it was not made.

    Python handles signals when a function starts, before any `try`: what a handler raises there,
    as Ctrl-C does, is lost in native code. Then the byte at `flag` is still 0.
    """
    flag = area(1)
    clear = map_stages.map_stages(CLEARED, (), [flag], [()], [], [])
    call = HostKernel(function, operands, code, out, flag)
    missed = HostKernel(_interrupted, (), code)
    return [*clear, host_stage(call), Branch(flag, [], [host_stage(missed)])]


CLEARED = zero_kernel(bool_)


def _interrupted(arrays: list[Any]) -> None:
    raise KeyboardInterrupt


def host_program(avals: Sequence[Aval], static: dict[str, Any], out: Aval) -> Callable[..., Any]:
    """The function of buffers for one call."""
    function = called_function(static)

    def run(*bufs: Any) -> Any:
        return _buffer(function([_read(b.address, av) for b, av in zip(bufs, avals, strict=True)]))

    return run


def _buffer(array: np.ndarray) -> Any:
    buffer = native.empty(array.nbytes)
    ctypes.memmove(buffer.address, array.ctypes.data, array.nbytes)
    return buffer
