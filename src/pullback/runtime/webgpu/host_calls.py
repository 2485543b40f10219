"""Functions of the host in the middle of a program: the host waits for their operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Fault, Place
from pullback.core.avals import Aval
from pullback.runtime.webgpu.gpu import Gpu, Memory
from pullback.runtime.webgpu.stages import HostCall, Run, stage

__all__ = ["effect_faults", "effect_stages", "host_faults", "host_stages", "read_array"]

_exceptions: dict[int, Exception] = {}  # of calls that failed, until their program has ended
_numbers = itertools.count()


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


def read_array(gpu: Gpu, memory: Memory, offset: int, av: Aval) -> np.ndarray:
    """The contents of an array that starts at a byte of a memory, when they are computed."""
    assert av.strides is not None
    if av.size == 0:
        return np.empty(av.shape, av.dtype.numpy)
    spans = [(n - 1) * s for n, s in zip(av.shape, av.strides, strict=True)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    size = av.dtype.itemsize
    raw = gpu.download(memory, offset + low * size, (1 + high - low) * size)
    first = raw.view(av.dtype.numpy)[-low:]
    return np.lib.stride_tricks.as_strided(first, av.shape, [s * size for s in av.strides])


def host_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
) -> list[Stage]:
    """The stages of a function among operations."""
    slot, out = result

    def function(arrays: list[np.ndarray]) -> np.ndarray:
        return static["host"].result(static["position"], arrays, static["lead"])

    return _called(function, operands, code, slot) if out.size else []


def effect_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
) -> list[Stage]:
    """The stages of an effect, whose token nobody reads."""
    receiver = static["receiver"]
    return _called(receiver, operands[len(operands) - receiver.count :], code, None)


def _called(
    function: Callable[[list[np.ndarray]], Any],
    operands: Sequence[Place],
    code: int,
    out: int | None,
) -> list[Stage]:
    def call(run: Run) -> tuple[int, int, int] | None:
        given = [(*run.memory(slot), av) for slot, av in operands]
        arrays = [np.array(read_array(run.gpu, *own), order="C") for own in given]
        try:
            found = function(arrays)
        except Exception as exception:
            number = next(_numbers)
            _exceptions[number] = exception
            return code, number, 0
        if out is not None:
            run.write(out, np.ascontiguousarray(found))
        return None

    return stage(HostCall(call))
