"""Functions of the host in the middle of a program: the host waits for their operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pullback.compile.program.host_calls import (
    HostFunction,
    called_effect,
    called_function,
    keep_exception,
)
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval
from pullback.runtime.webgpu.gpu import Gpu, Memory
from pullback.runtime.webgpu.programs import Run
from pullback.runtime.webgpu.stages import HostCall, stage

__all__ = ["effect_stages", "host_stages", "read_array"]


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
    return _called(called_function(static), operands, code, slot) if out.size else []


def effect_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
) -> list[Stage]:
    """The stages of an effect, whose token nobody reads."""
    return _called(*called_effect(operands, static), code, None)


def _called(
    function: HostFunction, operands: Sequence[Place], code: int, out: int | None
) -> list[Stage]:
    def call(run: Run) -> tuple[int, int, int] | None:
        given = [(*run.memory(slot), av) for slot, av in operands]
        arrays = [np.array(read_array(run.gpu, *own), order="C") for own in given]
        try:
            found = function(arrays)
        except Exception as exception:
            return code, keep_exception(exception), 0
        if out is not None:
            run.write(out, np.ascontiguousarray(found))
        return None

    return stage(HostCall(call))
