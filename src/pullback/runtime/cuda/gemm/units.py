"""Whether the matrix units of a GPU add up in the order of k, which no manual promises.

On an H200 they do: an element is then a chain of fused multiply-adds, to the bit. A GPU is asked
once, by sums of random products of widely spread magnitude.
"""

from __future__ import annotations

import numpy as np

from pullback.compile.program.stages import Program
from pullback.core import dtypes as dt
from pullback.runtime.cuda import programs
from pullback.runtime.cuda.gemm.sources import kernel_source
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.stages import At, Step, stage

__all__ = ["Units"]

BLOCKS, WARP = 64, 32  # thread blocks, and threads of each, which have 4 sums
LEAST_ARCHITECTURE = 90  # whose units take 16 x 8 x 4 doubles


class Units:
    """The matrix units of a GPU."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._answer: bool | None = None

    def keep_order(self) -> bool:
        """Whether their float64 sums are those of `order.chain`."""
        if self._answer is None:
            known = int(self._gpu.architecture.removeprefix("sm_")) >= LEAST_ARCHITECTURE
            self._answer = known and self._wrong_sums() == 0
        return self._answer

    def _wrong_sums(self) -> int:
        name, gpu = "units_order", self._gpu
        source = kernel_source(name, ("multiply", "order"), dt.float64, dt.float64, {})
        stages = stage(Step(source, name, (BLOCKS, 1), WARP, (At(0),)))
        nbytes = 4 * WARP * BLOCKS
        counts = programs.encode(gpu, Program(0, nbytes, (), (), stages))()
        with gpu.current() as stream:
            return int(gpu.download(counts.address, nbytes, stream).view(np.int32).sum())
