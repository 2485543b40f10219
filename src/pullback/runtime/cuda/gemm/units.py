"""Whether the matrix units of a GPU add up in the order of k, which no manual promises.

On an H200 they do: an element is then a chain of fused multiply-adds, to the bit. A GPU is asked
once, by sums of random products of widely spread magnitude.
"""

from __future__ import annotations

import ctypes

import numpy as np

from pullback.core import dtypes as dt
from pullback.runtime.cuda.gemm.sources import kernel_source
from pullback.runtime.cuda.gpu import Gpu

__all__ = ["Units"]

BLOCKS = 64  # of 128 sums each
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
        files = ("multiply", "order")
        source = kernel_source(name, files, dt.float64, dt.float64, {})
        gpu.load([source])
        with gpu.current() as stream:
            count = gpu.empty(4)
            gpu.clear(count.address, 4, stream)
            address = ctypes.c_uint64(count.address)
            arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
            at = ctypes.addressof(arguments)
            gpu.enqueue(gpu.function(source, name), BLOCKS, 1, 1, 32, 1, 1, 0, stream, at, 0)
            return int(gpu.download(count.address, 4, stream).view(np.int32)[0])
