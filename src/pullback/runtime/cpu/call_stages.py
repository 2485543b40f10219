"""Stages of the operations that are no fused loop nests: indexing, sorting, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pullback.compile.kernel.lower import broadcast_strides, gather_kernel, scatter_kernel
from pullback.compile.schedule.groups import CallGroup, Region
from pullback.core.avals import Aval, dense_strides
from pullback.core.errors import PullbackError
from pullback.ir.lowering import GatherRows, Intrinsic, ScatterRows
from pullback.runtime.cpu.convolution import conv_stages, pool_stages
from pullback.runtime.cpu.fft import fft_stages
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.host_calls import HostCall, host_stages
from pullback.runtime.cpu.indexing import index_stages
from pullback.runtime.cpu.indexing.index_stages import indexed_axes
from pullback.runtime.cpu.linalg import linalg_stages
from pullback.runtime.cpu.native import Stage
from pullback.runtime.cpu.scatter import scatter_stages
from pullback.runtime.cpu.sort import sort_stages

if TYPE_CHECKING:
    from pullback.runtime.cpu.assembly import Frame

__all__ = ["call_stages", "product_row_stages"]


def call_stages(frame: Frame, group: CallGroup) -> list[Stage]:
    """The stages of one operation, reading and writing where the frame has its values."""
    low = getattr(group.equation.op, "lowering", None)
    if isinstance(low, Intrinsic):
        build: Any = _INTRINSICS[low.name]
    elif type(low) in _BUILDERS:
        build = _BUILDERS[type(low)]
    else:
        raise PullbackError(f"cpu: {group.label} can't be compiled into a graph.")
    return build(frame, group)


def _slot(frame: Frame, r: Region) -> int:
    return frame.slot(r.stored, r.offset)


def _layout(r: Region) -> tuple[Aval, tuple[int, ...]]:
    assert r.aval.strides is not None
    return r.aval, r.aval.strides


def _first_code(
    frame: Frame,
    name: str,
    sizes: Sequence[int],
    indices: Sequence[Region],
    places: Aval,
    lead: int,
) -> int:
    """The error code of the first of these axes, which indices go into."""
    axes = indexed_axes(sizes, [i.aval for i in indices], places.shape, lead)
    frame.table.errors += [(name, axis) for axis in axes]
    return len(frame.table.errors) - len(sizes) + 1


def _gather(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    x, strides = _layout(group.operands[0])
    indices = group.operands[1:]
    shape, n = result.aval.shape, len(indices)
    if result.aval.size == 0:
        return []
    lead = len(shape) - (x.ndim - n)
    kernel = gather_kernel([r.aval for r in group.operands])
    x_strides = (0,) * lead + strides[n:]
    index_strides = [broadcast_strides(r.aval, shape) for r in indices]
    slots = [_slot(frame, r) for r in indices]
    wanted = index_stages.gather_wants_plan(kernel, shape, x_strides, index_strides, x.shape[0])
    return index_stages.gather_stages(
        kernel,
        shape,
        _slot(frame, group.operands[0]),
        x_strides,
        slots,
        index_strides,
        list(zip(x.shape[:n], strides[:n], strict=True)),
        frame.slot(result),
        _first_code(frame, group.label, x.shape[:n], indices, result.aval, lead),
        frame.table.plan(slots[0], kernel.indices[0], wanted),
    )


def _scatter(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    base, updates, *indices = group.operands
    x, x_strides = _layout(base)
    new, new_strides = _layout(updates)
    n = len(indices)
    dense = dense_strides(x.shape)
    if x.size == 0 and new.size == 0:
        return []
    kernel = scatter_kernel(group.equation.op.lowering, [r.aval for r in group.operands])
    index_strides = [broadcast_strides(r.aval, new.shape) for r in indices]
    slots = [_slot(frame, r) for r in indices]
    wanted = scatter_stages.wants_plan(kernel, x.shape, new.shape, index_strides)
    return index_stages.scatter_stages(
        kernel,
        (x.shape, _slot(frame, base), x_strides),
        (new.shape, _slot(frame, updates), new_strides),
        (frame.slot(result), (0,) * (new.ndim - (x.ndim - n)) + dense[n:]),
        slots,
        index_strides,
        list(zip(x.shape[:n], dense[:n], strict=True)),
        frame.scratch,
        _first_code(frame, group.label, x.shape[:n], indices, new, new.ndim - (x.ndim - n)),
        frame.table.plan(slots[0], kernel.indices[0], wanted),
    )


def _matmul(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    a, b = group.operands
    *batch, m, n = result.aval.shape
    if result.aval.size == 0:
        return []
    return matmul.matmul_stages(
        result.dtype,
        batch,
        m,
        n,
        a.aval.shape[-1],
        _slot(frame, a),
        broadcast_strides(a.aval, (*batch, *a.aval.shape[-2:])),
        _slot(frame, b),
        broadcast_strides(b.aval, (*batch, *b.aval.shape[-2:])),
        frame.slot(result),
        frame.scratch,
    )


def product_row_stages(frame: Frame, group: CallGroup) -> list[Stage]:
    """The stages of a product of matrices; the last one has a unit for each row."""
    (result,) = group.results
    (a, a_strides), (b, b_strides) = map(_layout, group.operands)
    x, y = (_slot(frame, r) for r in group.operands)
    m, n = result.aval.shape
    out = frame.slot(result)
    found = matmul.matmul_row_stages(
        result.dtype, m, n, a.shape[1], x, a_strides, y, b_strides, out, frame.scratch
    )
    if found is None:
        raise PullbackError(f"cpu: no kernel makes the rows of a product of {a} and {b}.")
    return found


def _argsort(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    (x,) = group.operands
    av, strides = _layout(x)
    return sort_stages.argsort_stages(
        av.dtype,
        av.shape[:-1],
        strides[:-1],
        av.shape[-1],
        strides[-1],
        group.equation.static["descending"],
        _slot(frame, x),
        frame.slot(result),
        frame.scratch,
    )


def _searchsorted(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    row, values = group.operands
    row_aval, row_strides = _layout(row)
    av, strides = _layout(values)
    return sort_stages.searchsorted_stages(
        av.dtype,
        row_aval.shape[0],
        row_strides[0],
        av.shape,
        strides,
        group.equation.static["side"],
        _slot(frame, row),
        _slot(frame, values),
        frame.slot(result),
    )


def _convolution(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    return conv_stages.conv_stages(
        group.equation.op.lowering.name,
        [(_slot(frame, r), r.aval) for r in group.operands],
        group.equation.static,
        (frame.slot(result), result.aval),
        frame.scratch,
    )


def _pooling(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    name, static = group.equation.op.lowering.name, group.equation.static
    avals = [r.aval for r in group.operands]
    indexed = name in pool_stages.INDEXED
    sizes = [pool_stages.plane_size(name, avals, static)] if indexed else []
    numbers = group.operands[1:] if indexed else []
    return pool_stages.pooling_stages(
        name,
        [(_slot(frame, r), r.aval) for r in group.operands],
        static,
        (frame.slot(result), result.aval),
        frame.scratch,
        _first_code(frame, name, sizes, numbers, avals[-1], avals[-1].ndim),
    )


def _linalg(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    name, static = group.equation.op.lowering.name, group.equation.static
    avals = [r.aval for r in group.operands]
    frame.table.errors.append(linalg_stages.failure(name, avals, static, result.aval))
    return linalg_stages.linalg_stages(
        name,
        [(_slot(frame, r), r.aval) for r in group.operands],
        static,
        (frame.slot(result), result.aval),
        frame.scratch,
        len(frame.table.errors),
    )


def _fft(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,), (x,) = group.results, group.operands
    return fft_stages.fft_stages(
        group.equation.op.lowering.name,
        (_slot(frame, x), x.aval),
        group.equation.static,
        (frame.slot(result), result.aval),
        frame.scratch,
    )


def _host(frame: Frame, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    static = group.equation.static

    def function(arrays: list[Any]) -> Any:
        return static["host"].result(static["position"], arrays, static["lead"])

    if result.aval.size == 0:
        return []
    return _host_call(frame, "pure_callback", group.operands, function, frame.slot(result))


def _effect(frame: Frame, group: CallGroup) -> list[Stage]:
    receiver = group.equation.static["receiver"]
    values = group.operands[len(group.operands) - receiver.count :]
    return _host_call(frame, group.label, values, receiver)


def _host_call(
    frame: Frame,
    name: str,
    operands: Sequence[Region],
    function: Callable[[list[Any]], Any],
    out: int | None = None,
) -> list[Stage]:
    errors = frame.table.errors
    places = [(_slot(frame, r), r.aval) for r in operands]
    flag = frame.scratch(1)
    call = HostCall(function, places, len(errors) + 1, out, flag)
    errors.append((name, call))
    return host_stages(call, flag)


_BUILDERS = {GatherRows: _gather, ScatterRows: _scatter}
_INTRINSICS = {
    "host": _host,
    **dict.fromkeys(fft_stages.NAMES, _fft),
    "effect": _effect,
    "matmul": _matmul,
    "argsort": _argsort,
    "searchsorted": _searchsorted,
    **dict.fromkeys(conv_stages.NAMES, _convolution),
    **dict.fromkeys(pool_stages.NAMES, _pooling),
    **dict.fromkeys(linalg_stages.NAMES, _linalg),
}
