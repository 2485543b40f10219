"""GPUs through WebGPU: their memory, and their kernels as the compiler asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.compile.program.launched import LaunchedTarget
from pullback.compile.program.rows import row_stages
from pullback.compile.program.stages import Program, Stage
from pullback.compile.program.target import Area, Fault, Routine, Target
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowPlan
from pullback.core.avals import Aval
from pullback.core.dtypes import ALL, complex128, float64
from pullback.core.errors import ExchangeError
from pullback.ir.op import Op
from pullback.ir.plans import Plan
from pullback.runtime.base import DeviceRuntime
from pullback.runtime.webgpu import (
    folds,
    folds_by_index,
    indexing,
    maps,
    products,
    programs,
    stages,
)
from pullback.runtime.webgpu.arithmetic import (
    COUNT,
    DOUBLE_PROBE,
    LEAST_NORMAL,
    LONG_LOOP,
    LOOP_PROBE,
    PROBE,
    SAFE,
    double_operands,
    exact_doubles,
    probe_words,
    probed,
    wide_probe,
)
from pullback.runtime.webgpu.gpu import Buffer, Gpu, wgpu_module
from pullback.runtime.webgpu.host_calls import read_array
from pullback.runtime.webgpu.printer import MISSING, check_dtype
from pullback.runtime.webgpu.routines import ROUTINES
from pullback.runtime.webgpu.stages import At, Binding, Dispatch

__all__ = ["WebgpuRuntime", "WebgpuTarget"]

# What users read of the arithmetic that an adapter has exactly.
NAMES = {"double": "float64", "double_fma": "fma of float64", "wide_fma": "fma through float64"}
DLPACK_KIND = 15  # of WebGPU's memory, as DLPack numbers it


class WebgpuTarget(LaunchedTarget):
    """Kernels as WGSL, dispatched one after the other."""

    routines: Mapping[str, Routine] = ROUTINES
    map = staticmethod(maps.map_stages)
    box = staticmethod(maps.box_stage)
    reduce = staticmethod(folds.reduce_stages)
    accumulate = staticmethod(folds.accumulate_stages)
    product_rows = staticmethod(products.product_row_stages)
    gather = staticmethod(indexing.gather_stages)
    scatter = staticmethod(folds_by_index.scatter_stages)

    def __init__(self, gpu: Gpu):
        super().__init__(stages.stage)
        self._gpu = gpu

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
        return row_stages(self, plan, rows, length, slot, area)

    def encode(
        self, program: Program, faults: Sequence[tuple[str, Fault]] = (), /
    ) -> Callable[..., Any]:
        return programs.encode(self._gpu, program, faults)

    def view(self, buffer: Buffer, nbytes: int, /) -> Buffer:
        owner = buffer.owner or buffer
        return Buffer(buffer.memory, buffer.offset + nbytes, buffer.nbytes - nbytes, owner)

    def empty(self, nbytes: int, /) -> Buffer:
        return self._gpu.empty(nbytes)


class WebgpuRuntime(DeviceRuntime):
    """The memory of one GPU."""

    name = "webgpu"
    dtypes = tuple(d for d in ALL if d not in MISSING)
    names_classes = True

    def __init__(self, index: int):
        super().__init__()
        self._gpu = Gpu(index)
        self.dlpack_device = (DLPACK_KIND, index)
        self.target: Target = WebgpuTarget(self._gpu)
        self._ask()

    def _ask(self) -> None:
        """Let the adapter show which of its operations are exact, and whether loops end early."""
        given = probe_words()
        arrays = (Binding(At(0), "u32", "write"), Binding(At(1), "u32"))
        step = Dispatch(PROBE, arrays, (COUNT,), stages.linear_groups(COUNT, 64))
        program = Program(1, given.nbytes, (), (), stages.stage(step))
        found = programs.encode(self._gpu, program)(self._gpu.uploaded(given))
        words = self._gpu.download(found.memory, 0, given.nbytes).view(np.uint32)
        own = probed(given, words)._replace(**self._doubles())
        self._gpu.arithmetic = own
        if own.double and not own.fma:
            step = step._replace(source=wide_probe())
            found = programs.encode(self._gpu, program._replace(stages=stages.stage(step)))(
                self._gpu.uploaded(given)
            )
            words = self._gpu.download(found.memory, 0, given.nbytes).view(np.uint32)
            self._gpu.arithmetic = own._replace(wide_fma=probed(given, words).fma)
        loop = Dispatch(LOOP_PROBE, arrays[:1], (LONG_LOOP,), 1)
        found = programs.encode(self._gpu, Program(0, 8, (), (), stages.stage(loop)))()
        rounds, least = self._gpu.download(found.memory, 0, 8).view(np.uint32).tolist()
        self._gpu.most_rounds = rounds if rounds < LONG_LOOP else None
        self._gpu.flushes = least != LEAST_NORMAL

    def _doubles(self) -> dict[str, bool]:
        """Let the adapter show whether it computes float64 exactly, if it has it."""
        gpu = self._gpu
        if not gpu.has_doubles:
            return {}
        given = double_operands()
        arrays = (Binding(At(0), "u64", "write"), Binding(At(1), "u64"))
        step = Dispatch(DOUBLE_PROBE, arrays, (COUNT,), stages.linear_groups(COUNT, 64))
        program = Program(1, 2 * given.nbytes, (), (), stages.stage(step))
        gpu.arithmetic = SAFE._replace(double=True, double_fma=True)
        found = programs.encode(gpu, program)(gpu.uploaded(given))
        gpu.arithmetic = SAFE
        words = gpu.download(found.memory, 0, 2 * given.nbytes)
        return exact_doubles(given, words.view(np.float64).reshape(COUNT, 6))

    def plan(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any], out: Aval) -> Plan:
        """The operation as a program of its own."""
        check_dtype(op.name, out.dtype)
        return super().plan(op, avals, static, out)

    def from_numpy(self, array: np.ndarray, copy: bool) -> Buffer:
        """The buffer of a C-contiguous array: always a copy."""
        if array.dtype in (np.float64, np.complex128):
            check_dtype("tensor", float64 if array.dtype == np.float64 else complex128)
        return self._gpu.uploaded(array)

    def to_numpy(self, buf: Buffer, av: Aval) -> np.ndarray:
        """The contents as a read-only NumPy array, when the device has computed them."""
        self._gpu.faults.look()
        found = read_array(self._gpu, buf.memory, buf.offset, av)
        found.flags.writeable = False
        return found

    def exported(
        self, buf: Buffer, av: Aval, stream: Any, max_version: tuple[int, int] | None, copy: bool
    ) -> Any:
        """No other library can look at it either."""
        raise ExchangeError(
            "__dlpack__: nobody else can use the memory of WebGPU. Move the tensor to the CPU with"
            ' to_device("cpu").'
        )

    def imported(self, producer: Any, copy: bool | None) -> tuple[Any, Any, Any]:
        """Nor is there memory of others."""
        raise ExchangeError("from_dlpack: the memory of WebGPU can't be exchanged.")

    def origin(self, buf: Buffer) -> Buffer:
        """The buffer that a view sees a part of; any other is its own."""
        return buf.owner or buf

    def has_one_owner(self, buf: Buffer) -> bool:
        """Whether one handle, which the caller holds, is all that has the memory of a buffer."""
        # The references are that handle's, the one of this call, and that of `getrefcount` itself.
        return buf.owner is None and sys.getrefcount(buf) <= 3

    def shares(self, buf: Buffer) -> bool:
        """Nobody else's memory is used."""
        return False

    def capabilities(self) -> dict[str, str]:
        """The adapter, and what it computes exactly by itself."""
        info, own = self._gpu.info, self._gpu.arithmetic
        exact = [NAMES.get(name, name) for name in own._fields if getattr(own, name)]
        return {
            "adapter": str(info["device"]),
            "backend": str(info["backend_type"]),
            "wgpu": wgpu_module().__version__,
            "exact": ", ".join(exact) or "sums and products",
            "subnormal": "flushed to zero" if self._gpu.flushes else "kept",
            "loops": f"{self._gpu.most_rounds} rounds" if self._gpu.most_rounds else "any length",
        }
