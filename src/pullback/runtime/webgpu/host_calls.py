"""Functions of the host in the middle of a program: the host waits for their operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pullback.compile.program.host_calls import HostFunction, called, fetched_array
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval
from pullback.runtime.webgpu.gpu import Gpu, PooledBuffer
from pullback.runtime.webgpu.stages import stage

__all__ = ["call_stages", "read_array"]


def read_array(gpu: Gpu, memory: PooledBuffer, offset: int, av: Aval) -> np.ndarray:
    """The contents of an array that starts at a byte of a memory, when they are computed."""
    return fetched_array(av, lambda start, count: gpu.download(memory, offset + start, count))


def call_stages(
    function: HostFunction, operands: Sequence[Place], area: Area, code: int, out: int | None
) -> list[Stage]:
    """The stages of a call, for `host_routines`."""
    return stage(called(function, operands, code, out))
