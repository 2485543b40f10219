"""How the CPU runs each kind of lowering: strides and shapes become the arguments of a native
program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from pullback.compile.kernel.lower import (
    broadcast_strides,
    copy_kernel,
    fold_kernel,
    gather_kernel,
    map_kernel,
    scatter_kernel,
)
from pullback.core.avals import Aval, aval, dense_strides
from pullback.core.dtypes import ALL, DType, bfloat16, bool_, float32
from pullback.ir.graph import Graph
from pullback.ir.lowering import Boxes, Elementwise, Fold, GatherRows, Intrinsic, ScatterRows, View
from pullback.ir.op import Op, Plan
from pullback.ops.families import broadcast_shapes
from pullback.runtime.cpu import native
from pullback.runtime.cpu.convolution import conv_stages, pool_stages
from pullback.runtime.cpu.fft import fft_stages
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.graph_program import Executable
from pullback.runtime.cpu.host_calls import host_program
from pullback.runtime.cpu.indexing import index_stages
from pullback.runtime.cpu.indexing.index_stages import IndexedAxis, indexed_axes
from pullback.runtime.cpu.linalg import linalg_stages
from pullback.runtime.cpu.loops import fold_stages, map_stages
from pullback.runtime.cpu.scatter import plans, scatter_stages
from pullback.runtime.cpu.sort import sort_stages

__all__ = ["CpuRuntime"]

Static = dict[str, Any]
Avals = tuple[Aval, ...]
HEAVY_BYTES = 1 << 16  # from here on a launch lets other Python threads run


class CpuRuntime:
    """The host's processor."""

    name = "cpu"
    dtypes = ALL

    def plan(self, op: Op, avals: Avals, static: Static, out: Aval) -> Plan:
        """Prepare `op`; see `runtime.base.Runtime`."""
        return _PLANNERS[type(op.lowering)](op, avals, static, out)

    def compile(self, graph: Graph) -> Executable:
        """The whole graph as one native program."""
        return Executable(graph)

    def from_numpy(self, array: np.ndarray, copy: bool) -> native.Buffer:
        """The buffer of a C-contiguous array."""
        if not copy:
            return native.wrap(array.__array_interface__["data"][0], array.nbytes, array)
        buf = native.empty(array.nbytes)
        if array.nbytes:
            np.frombuffer(memoryview(buf), np.uint8)[:] = array.reshape(-1).view(np.uint8)
        return buf

    def to_numpy(self, buf: native.Buffer, av: Aval) -> np.ndarray:
        """The contents as a read-only NumPy array: a view of the buffer, but of one element a copy.

        Kept constants have one element, and some who take NumPy arrays write to them all the same.
        """
        array = self.memory(buf, av, writable=False)
        if av.size and buf.nbytes == av.dtype.itemsize:
            array = np.array(array)
            array.flags.writeable = False
        return array

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

    def shares(self, buf: native.Buffer) -> bool:
        """Whether the memory of a buffer belongs to somebody else, who may write to it."""
        return native.is_foreign(buf)

    def index_plan(self, buf: native.Buffer, av: Aval, size: int, by: object) -> None:
        """Check and arrange dense indices into `size` places, and keep that while `by` lives."""
        wanted = scatter_stages.held_plan(av.size, size)
        made = plans.build(buf, av.dtype, wanted)
        if isinstance(made, tuple):
            _, position, value = made
            raise IndexedAxis(size, av.dtype, (av.size,), 1).error("scatter_plan", position, value)
        plans.PLANS.hold(buf, by)
        plans.PLANS.keep(buf, av.dtype, wanted, made)

    def index_plans(self) -> plans.PlanCache:
        """All index plans that are kept."""
        return plans.PLANS

    def capabilities(self) -> dict[str, str]:
        """Which library carries which intrinsic, and how many threads there are."""
        return {
            "matmul": matmul.library(float32),
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
            "strides": tuple(s * size for s in av.strides or ()),
            "typestr": "|b1" if kind == "b" else f"<{kind}{size}",
        }


def _elementwise(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    kernel = map_kernel(op.lowering, avals, static, out.dtype)
    strides = [broadcast_strides(a, out.shape) for a in avals]
    return Plan(map_stages.map_program(kernel, out.shape, strides), out)


def _view(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    (av,) = avals
    placed = op.lowering.place(av, **static)
    if placed is None:
        dense = _dense(av)
        run, placed = dense.run, op.lowering.place(dense.aval, **static)
        offset, shape, strides = placed
        assert offset == 0
        return Plan(run, aval(shape, av.dtype, av.device, strides))
    offset, shape, strides = placed
    new = aval(shape, av.dtype, av.device, strides)
    if offset == 0 or new.size == 0:
        return Plan(_same, new)
    nbytes = offset * av.dtype.itemsize
    return Plan(lambda buf: native.view(buf, nbytes), new)


def _same(buf: native.Buffer) -> native.Buffer:
    return buf


def _dense(av: Aval) -> Plan:
    """The plan of a row-major copy."""
    assert av.strides is not None
    run = map_stages.map_program(copy_kernel(av.dtype), av.shape, [av.strides])
    return Plan(run, aval(av.shape, av.dtype, av.device))


def _fold(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    (av,) = avals
    assert av.strides is not None
    kernel = fold_kernel(op.lowering, av, static, out.dtype)
    if op.lowering.keep:
        axis = static["axis"]
        order = [d for d in range(av.ndim) if d != axis] + [axis]
        dense = dense_strides(out.shape)
        run = fold_stages.accumulate_program(
            kernel,
            tuple(av.shape[d] for d in order[:-1]),
            av.shape[axis],
            [tuple(av.strides[d] for d in order)],
            tuple(dense[d] for d in order),
            static["reverse"],
        )
        return Plan(run, out)
    axes = static["axes"]
    kept = [d for d in range(av.ndim) if d not in axes]
    run = fold_stages.reduce_program(
        kernel,
        tuple(av.shape[d] for d in kept),
        tuple(av.shape[d] for d in axes),
        [tuple(av.strides[d] for d in (*kept, *axes))],
    )
    return Plan(run, out)


def _boxes(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    dense = dense_strides(out.shape)
    kernel = copy_kernel(out.dtype)
    stages = []
    for p in op.lowering.place(*avals, **static):
        offset = sum(b * s for b, s in zip(p.start, dense, strict=True))
        steps = tuple(t * s for t, s in zip(p.step, dense, strict=True))
        source = broadcast_strides(avals[p.operand], p.shape)
        if 0 not in p.shape:
            stages.append(
                map_stages.map_stage(kernel, p.shape, 0, offset, steps, [p.operand + 1], [source])
            )
    heavy = out.nbytes > HEAVY_BYTES
    return Plan(native.program(len(avals), out.nbytes, (), stages, heavy), out)


def _gather(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    x, *indices = avals
    assert x.strides is not None
    n = len(indices)
    lead = out.ndim - (x.ndim - n)
    sizes = x.shape[:n]
    if out.size == 0:
        return _inspection(op, sizes, indices, out)
    kernel = gather_kernel(avals)
    layout = (
        kernel,
        out.shape,
        (0,) * lead + x.strides[n:],
        [broadcast_strides(i, out.shape) for i in indices],
    )
    indexed = list(zip(sizes, x.strides[:n], strict=True))
    run = index_stages.gather_program(*layout, indexed)
    wanted = index_stages.gather_wants_plan(*layout, sizes[0])
    if wanted is not None:
        planned = cache(lambda: index_stages.gather_program(*layout, indexed, planned=True))
        run = _by_plan(run, planned, indices[0].dtype, wanted)
    return Plan(_checked(op.name, run, indexed_axes(sizes, indices, out.shape, lead)), out)


def _scatter(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    x, updates, *indices = avals
    assert x.strides is not None and updates.strides is not None
    n = len(indices)
    lead = updates.ndim - (x.ndim - n)
    dense = dense_strides(x.shape)
    sizes = x.shape[:n]
    if out.size == 0 and updates.size == 0:
        return _inspection(op, sizes, indices, out)
    kernel = scatter_kernel(op.lowering, avals)
    index_strides = [broadcast_strides(i, updates.shape) for i in indices]
    layout = (
        kernel,
        x.shape,
        x.strides,
        updates.shape,
        (0,) * lead + dense[n:],
        index_strides,
        updates.strides,
        list(zip(sizes, dense[:n], strict=True)),
    )
    program = index_stages.scatter_program(*layout)
    axes = indexed_axes(sizes, indices, updates.shape, lead)

    wanted = scatter_stages.wants_plan(kernel, x.shape, updates.shape, index_strides)
    if wanted is not None:
        arrays = len(wanted.sizes())
        planned = cache(lambda: index_stages.scatter_program(*layout, arrays))
        program = _by_plan(program, planned, indices[0].dtype, wanted)

    def run(x: Any, updates: Any, *indices: Any) -> Any:
        return program(x, *indices, updates)

    return Plan(_checked(op.name, run, axes), out)


def _inspection(op: Any, sizes: Sequence[int], indices: Sequence[Aval], out: Aval) -> Plan:
    """The plan of an empty result: all that is done is to look at the indices."""
    shape = broadcast_shapes(op.name, *[i.shape for i in indices])
    if 0 in shape:
        return Plan(lambda *bufs: native.empty(0), out)
    table = aval(tuple(sizes), bool_, out.device, (0,) * len(sizes))
    look = _gather(op, (table, *indices), {}, aval(shape, bool_, out.device)).run
    byte = native.empty(1)  # it is read, and never looked at

    def run(*bufs: Any) -> Any:
        look(byte, *bufs[-len(indices) :])
        return native.empty(0)

    return Plan(run, out)


def _by_plan(
    program: Callable[..., Any],
    planned: Callable[[], Callable[..., Any]],
    index: DType,
    wanted: scatter_stages.Wanted,
) -> Callable[..., Any]:
    """A program of x and indices, or if there is a plan of these, of x and its arrays."""

    def run(x: Any, indices: Any, *rest: Any) -> Any:
        found = plans.PLANS.find(indices, index, wanted)
        if found is None:
            return program(x, indices, *rest)
        return planned()(x, *found.arrays, *rest)

    return run


def _checked(
    name: str, program: Callable[..., Any], axes: Sequence[IndexedAxis]
) -> Callable[..., Any]:
    """The program with its error word turned into an exception."""

    def run(*bufs: Any) -> Any:
        result = program(*bufs)
        if type(result) is tuple:
            code, position, value = result
            raise axes[code - 1].error(name, position, value)
        return result

    return run


def _matmul(avals: Avals, static: Static, out: Aval) -> Callable[..., Any]:
    a, b = avals
    batch = out.shape[:-2]
    return matmul.matmul_program(
        out.dtype,
        batch,
        out.shape[-2],
        out.shape[-1],
        a.shape[-1],
        broadcast_strides(a, (*batch, *a.shape[-2:])),
        broadcast_strides(b, (*batch, *b.shape[-2:])),
    )


def _argsort(avals: Avals, static: Static, out: Aval) -> Callable[..., Any]:
    (x,) = avals
    assert x.strides is not None
    *outer, length = x.shape
    *steps, stride = x.strides
    return sort_stages.argsort_program(x.dtype, outer, steps, length, stride, static["descending"])


def _searchsorted(avals: Avals, static: Static, out: Aval) -> Callable[..., Any]:
    row, values = avals
    assert row.strides is not None and values.strides is not None
    return sort_stages.searchsorted_program(
        values.dtype,
        row.shape[0],
        row.strides[0],
        values.shape,
        values.strides,
        static["side"],
    )


def _pooling(name: str, avals: Avals, static: Static, out: Aval) -> Callable[..., Any]:
    program = pool_stages.pooling_program(name, avals, static, out)
    if name not in pool_stages.INDEXED:
        return program
    size = pool_stages.plane_size(name, avals, static)
    return _checked(name, program, indexed_axes([size], avals[1:], avals[1].shape, avals[1].ndim))


def _intrinsic(op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    return Plan(_INTRINSICS[op.lowering.name](avals, static, out), out)


_INTRINSICS = {
    "host": host_program,
    **{name: partial(fft_stages.fft_program, name) for name in fft_stages.NAMES},
    "matmul": _matmul,
    "argsort": _argsort,
    "searchsorted": _searchsorted,
    **{name: partial(conv_stages.conv_program, name) for name in conv_stages.NAMES},
    **{name: partial(_pooling, name) for name in pool_stages.NAMES},
    **{name: partial(linalg_stages.linalg_program, name) for name in linalg_stages.NAMES},
}
_PLANNERS = {
    Elementwise: _elementwise,
    View: _view,
    Fold: _fold,
    Boxes: _boxes,
    GatherRows: _gather,
    ScatterRows: _scatter,
    Intrinsic: _intrinsic,
}
