"""GPUs through WebGPU: their memory, and their kernels as the compiler asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.compile.program.clock import HostClock
from pullback.compile.program.index_plans import PlanCache
from pullback.compile.program.rows import row_stages
from pullback.compile.program.stages import Program, Stage
from pullback.compile.program.target import (
    Area,
    Clock,
    Fault,
    Routine,
    Target,
    Tuning,
    WantedPlan,
    no_flat_programs,
)
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowPlan
from pullback.core.avals import Aval
from pullback.core.dtypes import ALL, DType, complex128, float64
from pullback.core.errors import DeviceError, ExchangeError
from pullback.ir.op import Op
from pullback.ir.plans import Plan
from pullback.runtime.base import Runtime
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
from pullback.runtime.webgpu.stages import Array, At, Dispatch

__all__ = ["WebgpuRuntime", "WebgpuTarget"]

DLPACK_KIND = 15  # of WebGPU's memory, as DLPack numbers it


class WebgpuTarget:
    """Kernels as WGSL, dispatched one after the other."""

    kept = None
    flat = staticmethod(no_flat_programs)
    # Groups are the same as on the CPU, up to how much of a row is kept in scratch memory.
    tuning = Tuning(
        block_bytes=1 << 17,
        local_bytes=1 << 19,
        line=64,
        task_elements=1 << 16,
        task_work=400_000,
        least_rows=8,
        rows_together=4,
        copied_bytes=1 << 20,
        light_elements=1 << 16,
        light_bytes=1 << 16,
        light_values=1 << 15,
    )
    routines: Mapping[str, Routine] = ROUTINES
    map = staticmethod(maps.map_stages)
    box = staticmethod(maps.box_stage)
    reduce = staticmethod(folds.reduce_stages)
    accumulate = staticmethod(folds.accumulate_stages)
    product_rows = staticmethod(products.product_row_stages)
    gather = staticmethod(indexing.gather_stages)
    scatter = staticmethod(folds_by_index.scatter_stages)

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def scalar_loop(self, *given: Any) -> list[Stage] | None:
        """Loops are run stage by stage."""

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

    def gather_plan(self, *given: Any) -> WantedPlan | None:
        """Indices are looked at again on every read."""

    def scatter_plan(self, *given: Any) -> WantedPlan | None:
        """Indices are sorted anew for every sum."""

    def plan_arrays(self, indices: Any, dtype: DType, wanted: WantedPlan) -> Sequence[Any] | None:
        """There are no plans."""

    def clock(self) -> Clock:
        """A clock that waits for the device."""
        return HostClock(stages.stage)

    def together(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Kernels are compiled when their program is encoded."""
        return function(*args)

    def encode(
        self, program: Program, faults: Sequence[tuple[str, Fault]] = (), /
    ) -> Callable[..., Any]:
        return programs.encode(self._gpu, program, faults)

    def view(self, buffer: Buffer, nbytes: int, /) -> Buffer:
        owner = buffer.owner or buffer
        return Buffer(buffer.memory, buffer.offset + nbytes, buffer.nbytes - nbytes, owner)

    def empty(self, nbytes: int, /) -> Buffer:
        return self._gpu.empty(nbytes)


class WebgpuRuntime(Runtime):
    """The memory of one GPU."""

    name = "webgpu"
    dtypes = tuple(d for d in ALL if d not in MISSING)
    names_classes = True

    def __init__(self, index: int):
        self._gpu = Gpu(index)
        self.dlpack_device = (DLPACK_KIND, index)
        self.target: Target = WebgpuTarget(self._gpu)
        self._plans = PlanCache(lambda *_: (0, 0, 0), lambda _: True)
        self._ask()

    def _ask(self) -> None:
        """Let the adapter show which of its operations are exact, and whether loops end early."""
        given = probe_words()
        arrays = (Array(At(0), "u32", "write"), Array(At(1), "u32"))
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
        arrays = (Array(At(0), "u64", "write"), Array(At(1), "u64"))
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

    def memory(self, buf: Buffer, av: Aval, *, writable: bool) -> np.ndarray:
        """NumPy can't look at the memory of a GPU."""
        raise DeviceError(
            "webgpu: the host can't share the memory of a GPU. Move the tensor to the CPU with"
            ' to_device("cpu").'
        )

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

    def index_plan(self, buf: Buffer, av: Aval, size: int, by: object) -> None:
        """Indices are arranged anew for every sum."""

    def index_plans(self) -> PlanCache:
        """All index plans that are kept: none."""
        return self._plans

    def capabilities(self) -> dict[str, str]:
        """The adapter, and what it computes exactly by itself."""
        info, own = self._gpu.info, self._gpu.arithmetic
        exact = [name for name in own._fields if getattr(own, name)]
        return {
            "adapter": str(info["device"]),
            "backend": str(info["backend_type"]),
            "wgpu": wgpu_module().__version__,
            "exact": ", ".join(exact) or "sums and products",
            "subnormal": "flushed to zero" if self._gpu.flushes else "kept",
            "loops": f"{self._gpu.most_rounds} rounds" if self._gpu.most_rounds else "any length",
        }
