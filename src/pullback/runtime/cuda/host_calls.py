"""Functions of the host in the middle of a program: the host waits for their operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Fault, Place
from pullback.core.avals import Aval
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.stages import HostCall, Run, stage

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


def read_array(gpu: Gpu, address: int, av: Aval, stream: int) -> np.ndarray:
    """The contents of an array, when the device has computed them."""
    assert av.strides is not None
    if av.size == 0:
        return np.empty(av.shape, av.dtype.numpy)
    spans = [(n - 1) * s for n, s in zip(av.shape, av.strides, strict=True)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    item = av.dtype.itemsize
    raw = gpu.download(address + low * item, (1 + high - low) * item, stream)
    first = raw.view(av.dtype.numpy)[-low:]
    strides = [s * item for s in av.strides]
    return np.lib.stride_tricks.as_strided(first, av.shape, strides)


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
        gpu, slots, stream = run.gpu, run.slots, run.stream
        arrays = [np.array(read_array(gpu, slots[s], av, stream), order="C") for s, av in operands]
        try:
            found = function(arrays)
        except Exception as exception:
            number = next(_numbers)
            _exceptions[number] = exception
            return code, number, 0
        if out is not None:
            gpu.upload(slots[out], np.ascontiguousarray(found), stream)
        return None

    return stage(HostCall(call))
