"""Functions of the host in the middle of a program: the host waits for their operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pullback.compile.program.host_calls import HostFunction, fetched_array, keep_exception
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval
from pullback.runtime.webgpu.gpu import Gpu, Memory
from pullback.runtime.webgpu.programs import Run
from pullback.runtime.webgpu.stages import HostCall, stage

__all__ = ["call_stages", "read_array"]


def read_array(gpu: Gpu, memory: Memory, offset: int, av: Aval) -> np.ndarray:
    """The contents of an array that starts at a byte of a memory, when they are computed."""
    return fetched_array(av, lambda start, count: gpu.download(memory, offset + start, count))


def call_stages(
    function: HostFunction, operands: Sequence[Place], area: Area, code: int, out: int | None
) -> list[Stage]:
    """The stages of a call, for `host_routines`."""

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
