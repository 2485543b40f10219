"""The host's processor: its buffers, and its kernels as the compiler asks for them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from struct import Struct, pack_into
from struct import error as StructError
from typing import Any

import numpy as np

from pullback.compile.program.index_plans import PlanCache
from pullback.compile.program.indexing import IndexedAxis
from pullback.compile.program.resized import Encoding, Resizing
from pullback.compile.program.target import Target, Tuning, WantedPlan
from pullback.core.avals import Aval
from pullback.core.dtypes import ALL, DType, bfloat16, float32, float64
from pullback.runtime.base import Runtime
from pullback.runtime.cpu import native
from pullback.runtime.cpu.clock import Clock
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.indexing import gather_stages
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.loops import fold_stages, map_stages, row_stages, scalar_code
from pullback.runtime.cpu.native import stages
from pullback.runtime.cpu.native.stored import Programs
from pullback.runtime.cpu.routines import ROUTINES
from pullback.runtime.cpu.scatter import plans, scatter_stages, strategies

__all__ = ["TARGET", "CpuRuntime", "CpuTarget"]


class CpuTarget:
    """Kernels through LLVM, run by the native core."""

    tuning = Tuning(
        block_bytes=1 << 17,
        local_bytes=stages.LOCAL_BYTES,
        line=64,
        task_elements=1 << 16,
        task_work=400_000,
        least_rows=8,
        rows_together=4,
        copied_bytes=1 << 20,
        light_elements=map_stages.INLINE,
        light_bytes=1 << 16,
        light_values=1 << 15,
        slots_in_params=True,
    )
    routines = ROUTINES
    map = staticmethod(map_stages.map_stages)
    flat = staticmethod(map_stages.flat_program)
    box = staticmethod(map_stages.map_stage)
    reduce = staticmethod(fold_stages.reduce_stages)
    accumulate = staticmethod(fold_stages.accumulate_stages)
    rows = staticmethod(row_stages.row_stages)
    scalar_loop = staticmethod(scalar_code.scalar_loop_stages)
    product_rows = staticmethod(matmul.matmul_row_stages)
    gather = staticmethod(gather_stages.gather_stages)
    gather_plan = staticmethod(plans.gather_wants_plan)
    scatter = staticmethod(scatter_stages.scatter_stages)
    scatter_plan = staticmethod(strategies.wants_plan)
    together = staticmethod(jit.together)
    encode = staticmethod(stages.encode)
    kept = Programs(strategies.Wanted)
    clock = Clock
    view = staticmethod(native.view)
    empty = staticmethod(native.empty)

    def plan_arrays(
        self, indices: native.Buffer, dtype: DType, wanted: WantedPlan
    ) -> Sequence[native.Buffer] | None:
        """The arrays of the plan of a buffer of indices, if there is one by now."""
        found = plans.PLANS.find(indices, dtype, wanted)
        return None if found is None else found.arrays


TARGET: Target = CpuTarget()


# How Python writes numbers, and up to which it does so as NumPy does: it makes floats of integers.
_LAYOUTS = {
    ("float32", float): Struct("f"), ("float32", int): Struct("f"),
    ("float64", float): Struct("d"), ("float64", int): Struct("d"),
    ("int32", int): Struct("i"), ("int64", int): Struct("q"),
    ("uint32", int): Struct("I"), ("uint64", int): Struct("Q"), ("bool", bool): Struct("?"),
}  # fmt: skip
_ELEMENTS = {
    name: layout for (name, kind), layout in _LAYOUTS.items() if (kind is float) == (name[0] == "f")
}
_EXACT = 1 << 53  # integers up to it are exact as float64s, either way
_TILE = 1 << 18  # elements for each thread: with 4 or 8 bytes each a megabyte or two
_FEW = 64  # numbers in a list: NumPy is quicker with longer ones


class CpuRuntime(Runtime):
    """The host's processor."""

    name = "cpu"
    dlpack_device = (1, 0)
    target = TARGET
    dtypes = ALL

    def __init__(self) -> None:
        encoding = Encoding(stages.words, native.run_array, native.get_threads)
        self.resized = Resizing(TARGET, encoding).plan  # type: ignore[method-assign]

    @property
    def tile_elements(self) -> int:  # type: ignore[override]
        """A megabyte or two for each thread: what stays in its second-level cache."""
        return _TILE * native.get_threads()

    def from_numpy(self, array: np.ndarray, copy: bool) -> native.Buffer:
        """The buffer of a C-contiguous array."""
        if not copy:
            return native.wrap(array.__array_interface__["data"][0], array.nbytes, array)
        buf = native.empty(array.nbytes)
        if array.nbytes:
            np.frombuffer(memoryview(buf), np.uint8)[:] = array.reshape(-1).view(np.uint8)
        return buf

    def scalar(self, value: Any, dtype: DType) -> native.Buffer:
        """See `Memory.scalar`: for the most common dtypes by Python alone, which is quicker."""
        layout = _LAYOUTS.get((dtype.name, value.__class__))
        if layout is None or not -_EXACT <= value <= _EXACT:
            return super().scalar(value, dtype)
        buf = native.empty(dtype.itemsize)
        layout.pack_into(buf, 0, value)
        return buf

    def put(self, buf: native.Buffer, at: int, value: Any, dtype: DType) -> bool:
        """See `Memory.put`: what `scalar` writes."""
        layout = _LAYOUTS.get((dtype.name, value.__class__))
        if layout is None or not -_EXACT <= value <= _EXACT:
            return False
        try:
            layout.pack_into(buf, at, value)
        except StructError:  # of integers that the dtype can't hold
            return False
        return True

    def vector(self, values: Sequence[float], dtype: DType) -> native.Buffer:
        """See `Memory.vector`: a few by Python alone, which is quicker."""
        if len(values) <= _FEW and dtype in (float32, float64):
            buf = native.empty(dtype.itemsize * len(values))
            try:
                pack_into(f"{len(values)}{'f' if dtype is float32 else 'd'}", buf, 0, *values)
            except OverflowError:  # of a float32, which is infinite then
                return super().vector(values, dtype)
            return buf
        return super().vector(values, dtype)

    def to_numpy(self, buf: native.Buffer, av: Aval) -> np.ndarray:
        """The contents as a read-only NumPy array: a view of the buffer, but of one element a copy.

        Kept constants have one element, and some who take NumPy arrays write to them all the same.
        """
        array = self.memory(buf, av, writable=False)
        if av.size and buf.nbytes == av.dtype.itemsize:
            array = np.array(array)
            array.flags.writeable = False
        return array

    def element(self, buf: native.Buffer, av: Aval) -> Any:
        """See `Memory.element`: of the most common dtypes by Python alone, which is quicker."""
        layout = _ELEMENTS.get(av.dtype.name)
        return super().element(buf, av) if layout is None else layout.unpack_from(buf)[0]

    def memory(self, buf: native.Buffer, av: Aval, *, writable: bool) -> np.ndarray:
        """The memory itself as a NumPy array."""
        if av.size == 0:
            return np.empty(av.shape, av.dtype.numpy)
        array = np.asarray(_Exported(buf, av, writable))
        return array.view(bfloat16.numpy) if av.dtype is bfloat16 else array

    def origin(self, buf: native.Buffer) -> native.Buffer:
        """The buffer that a view sees a part of; any other is its own."""
        return buf.owner if isinstance(buf.owner, native.Buffer) else buf

    def has_one_owner(self, buf: native.Buffer) -> bool:
        """Whether one handle, which the caller holds, is all that has the memory of a buffer, and
        may write to it.
        """
        # The references are that handle's, the one of this call, and that of `getrefcount` itself.
        owner = buf.owner
        if isinstance(owner, np.ndarray) and not owner.flags.writeable:
            return False
        return type(owner) is not native.Buffer and sys.getrefcount(buf) <= 3

    def may_change(self, buf: native.Buffer) -> bool:
        # as above, and what belongs to others is not written to
        if buf.owner is not None or sys.getrefcount(buf) > 3:
            return False
        plans.PLANS.forget(buf)
        return True

    def shares(self, buf: native.Buffer) -> bool:
        """Whether the memory of a buffer belongs to somebody else, who may write to it."""
        return native.is_foreign(buf)

    def index_plan(self, buf: native.Buffer, av: Aval, size: int, by: object) -> None:
        """Check and arrange dense indices into `size` places, and keep that while `by` lives."""
        wanted = strategies.held_plan(av.size, size)
        made = plans.build(buf, av.dtype, wanted)
        if isinstance(made, tuple):
            _, position, value = made
            raise IndexedAxis(size, av.dtype, (av.size,), 1).error("scatter_plan", position, value)
        plans.PLANS.hold(buf, by)
        plans.PLANS.keep(buf, av.dtype, wanted, made)

    def index_plans(self) -> PlanCache:
        """All index plans that are kept."""
        return plans.PLANS

    def capabilities(self) -> dict[str, str]:
        """Which library carries which intrinsic, and how many threads there are."""
        return {
            "matmul": "LLVM",
            "sort": "native radix sort",
            "threads": str(native.get_threads()),
        }


class _Exported:
    """Lets NumPy look at a buffer in place; the array it makes keeps this object, and so the
    buffer, alive.
    """

    def __init__(self, buf: native.Buffer, av: Aval, writable: bool):
        size = av.dtype.itemsize
        kind = "V" if av.dtype is bfloat16 else av.dtype.numpy.kind
        self.buf = buf
        self.__array_interface__ = {
            "version": 3,
            "data": (buf.address, not writable),
            "shape": av.shape,
            "strides": None if av.dense else tuple([s * size for s in av.strides or ()]),
            "typestr": "|b1" if kind == "b" else f"<{kind}{size}",
        }
