"""NVIDIA GPUs: their memory, and their kernels as the compiler asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.launched import DEVICE_TUNING, LaunchedTarget
from pullback.compile.program.stages import Program, Stage
from pullback.compile.program.target import Area, Fault, Routine, Target
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowPlan
from pullback.core.avals import Aval, aval, dense_strides, device
from pullback.core.dtypes import ALL, DType, as_dtype, bfloat16
from pullback.ir import dlpack
from pullback.runtime.base import DeviceRuntime
from pullback.runtime.cuda import (
    folds_by_index,
    indexing,
    loops,
    nvrtc,
    programs,
)
from pullback.runtime.cuda.attention.attention_stages import has_units
from pullback.runtime.cuda.attention.attention_stages import shared_bytes as block_bytes
from pullback.runtime.cuda.gemm.tensor_cores import Cores
from pullback.runtime.cuda.gpu import Buffer, Gpu, cupy_module, gpu_of
from pullback.runtime.cuda.host_calls import read_array
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.routines import routines_of
from pullback.runtime.cuda.row_kernels import Walk, row_kernel_stages, shared_bytes
from pullback.runtime.cuda.row_passes import LongRows
from pullback.runtime.cuda.stages import stage

__all__ = ["CudaRuntime", "CudaTarget"]


class CudaTarget(LaunchedTarget):
    """Kernels as CUDA C, launched one after the other."""

    tuning = replace(DEVICE_TUNING, whole_rows=True, side_by_side=True)  # a block keeps a row
    map = staticmethod(loops.map_stages)
    box = staticmethod(loops.box_stage)
    reduce = staticmethod(loops.reduce_stages)
    accumulate = staticmethod(loops.accumulate_stages)
    gather = staticmethod(indexing.gather_stages)
    scatter = staticmethod(folds_by_index.scatter_stages)

    def __init__(self, gpu: Gpu):
        super().__init__(stage)
        self._gpu = gpu
        products = Products(gpu)
        self.routines: Mapping[str, Routine] = routines_of(products, gpu.architecture)
        self.product_rows = products.rows

    def rows(
        self,
        plan: RowPlan,
        rows: int,
        length: int,
        slot: Callable[[Stored, int], int],
        area: Area,
        /,
    ) -> list[Stage]:
        """See `Target.rows`."""
        most = shared_bytes(self._gpu.architecture)
        name = self._gpu.architecture
        walk = Walk(block_bytes(name) if has_units(name) else most, self._gpu.processors)
        stages = row_kernel_stages(plan, rows, length, slot, area, most, walk)
        if stages is None:
            return LongRows(self, plan, rows, length, slot, area).stages()
        return stages

    def encode(
        self, program: Program, faults: Sequence[tuple[str, Fault]] = (), /
    ) -> Callable[..., Any]:
        return programs.encode(self._gpu, program, faults)

    def view(self, buffer: Buffer, nbytes: int, /) -> Buffer:
        owner = buffer.owner if isinstance(buffer.owner, Buffer) else buffer
        return Buffer(buffer.address + nbytes, buffer.nbytes - nbytes, owner)

    def empty(self, nbytes: int, /) -> Buffer:
        return self._gpu.empty(nbytes)


class _Foreign:
    """Memory that another library has, and may write to."""

    def __init__(self, array: Any):
        self.array = array


class CudaRuntime(DeviceRuntime):
    """The memory of one GPU."""

    name = "cuda"
    dtypes = ALL
    tile_elements = 1 << 26  # 256 MB: every kernel has work for a whole GPU

    def __init__(self, index: int):
        super().__init__()
        self._gpu = gpu_of(index)
        self.dlpack_device = (dlpack.CUDA, index)
        self.target: Target = CudaTarget(self._gpu)
        self.has_fast_products = Cores(self._gpu).are_there()

    def from_numpy(self, array: np.ndarray, copy: bool) -> Buffer:
        """The buffer of a C-contiguous array: always a copy."""
        with self._gpu.current() as stream:
            buffer = self._gpu.empty(array.nbytes)
            if array.nbytes:
                self._gpu.upload(buffer.address, array, stream)
        return buffer

    def to_numpy(self, buf: Buffer, av: Aval) -> np.ndarray:
        """The contents as a read-only NumPy array, when the device has computed them."""
        with self._gpu.current() as stream:
            found = read_array(self._gpu, buf.address, av, stream)
        found.flags.writeable = False
        return found

    def exported(
        self, buf: Buffer, av: Aval, stream: Any, max_version: tuple[int, int] | None, copy: bool
    ) -> Any:
        """A DLPack capsule of the memory, or of a dense copy, on a stream of the consumer's."""
        assert av.strides is not None
        with self._gpu.current() as own:
            self._gpu.faults.look(own)
        if copy:
            buf, av = self._copied(buf, av), aval(av.shape, av.dtype, av.device)
        cuda, size = cupy_module().cuda, av.dtype.itemsize
        memory = cuda.UnownedMemory(buf.address, buf.nbytes, buf, self._gpu.index)
        dtype = np.dtype(np.uint16) if av.dtype is bfloat16 else av.dtype.numpy
        strides = [s * size for s in av.strides or ()]
        array = cupy_module().ndarray(
            av.shape, dtype, cuda.MemoryPointer(memory, 0), strides=strides
        )
        capsule = array.__dlpack__(stream=stream, max_version=max_version)
        return dlpack.label_bfloat16(capsule) if av.dtype is bfloat16 else capsule

    def imported(self, producer: Any, copy: bool | None) -> tuple[Buffer, DType, Any]:
        """The buffer, the dtype and shape with strides of what a producer of DLPack offers here."""
        given = dlpack.Relabelled(producer)
        with self._gpu.current():
            array = cupy_module().from_dlpack(given)
        dtype = bfloat16 if given.is_bfloat16 else as_dtype(array.dtype)
        strides = tuple(s // dtype.itemsize for s in array.strides)
        buf = Buffer(int(array.data.ptr), array.nbytes, _Foreign(array))
        if not copy:
            return buf, dtype, (array.shape, strides)
        av = aval(tuple(array.shape), dtype, device(f"cuda:{self._gpu.index}"), strides)
        return self._copied(buf, av), dtype, (av.shape, dense_strides(av.shape))

    def _copied(self, buf: Buffer, av: Aval) -> Buffer:
        """A dense copy."""
        dense, own = dense_strides(av.shape), av.strides or ()
        copies = loops.map_stages(copy_kernel(av.dtype), av.shape, [0], [dense], [1], [own])
        return programs.encode(self._gpu, Program(1, av.nbytes, (), (), copies))(buf)

    def origin(self, buf: Buffer) -> Buffer:
        """The buffer that a view sees a part of; any other is its own."""
        return buf.owner if isinstance(buf.owner, Buffer) else buf

    def has_one_owner(self, buf: Buffer) -> bool:
        """Whether one handle, which the caller holds, is all that has the memory of a buffer."""
        # The references are that handle's, the one of this call, and that of `getrefcount` itself.
        return not isinstance(buf.owner, (Buffer, _Foreign)) and sys.getrefcount(buf) <= 3

    def shares(self, buf: Buffer) -> bool:
        """Whether the memory of a buffer belongs to somebody else, who may write to it."""
        return isinstance(self.origin(buf).owner, _Foreign)

    def capabilities(self) -> dict[str, str]:
        """The GPU, and the libraries that drive it."""
        major, minor = nvrtc.version()
        return {
            "GPU": self._gpu.product,
            "architecture": self._gpu.architecture,
            "CuPy": cupy_module().__version__,
            "NVRTC": f"{major}.{minor}",
        }
