"""The table of intrinsics: operands as the compiler has them, for the kernels that do the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.program import matrices
from pullback.compile.program.convolution import bad_places
from pullback.compile.program.host_calls import host_routines
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Fault, Place, Routine
from pullback.core.avals import Aval
from pullback.ir import cost
from pullback.runtime.cpu import host_calls
from pullback.runtime.cpu.convolution import conv_stages, pool_stages
from pullback.runtime.cpu.fft import fft_stages
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.linalg import linalg_stages
from pullback.runtime.cpu.sort import sort_stages

__all__ = ["ROUTINES"]
__tuning__ = ("LIGHT_WORK",)

Static = Mapping[str, Any]
LIGHT_WORK = 200_000  # operations, up to which other Python threads can wait: some 20 us


def _matmul(
    operands: Sequence[Place], static: Static, result: Place, area: Area, _: int
) -> list[Stage]:
    (a_slot, a), (b_slot, b) = operands
    slot, out = result
    *batch, m, n = out.shape
    a_strides, b_strides = (broadcast_strides(x, (*batch, *x.shape[-2:])) for x in (a, b))
    given = (a_slot, a_strides, b_slot, b_strides)
    return matmul.matmul_stages(out.dtype, batch, m, n, a.shape[-1], *given, slot, area)


def _argsort(
    operands: Sequence[Place], static: Static, result: Place, area: Area, _: int
) -> list[Stage]:
    ((slot, x),) = operands
    assert x.strides is not None
    *outer, length = x.shape
    *steps, stride = x.strides
    descending = static["descending"]
    return sort_stages.argsort_stages(
        x.dtype, outer, steps, length, stride, descending, slot, result[0], area
    )


def _searchsorted(
    operands: Sequence[Place], static: Static, result: Place, area: Area, _: int
) -> list[Stage]:
    (row_slot, row), (slot, x) = operands
    assert row.strides is not None and x.strides is not None
    given = (row.shape[0], row.strides[0], x.shape, x.strides, static["side"])
    return sort_stages.searchsorted_stages(x.dtype, *given, row_slot, slot, result[0])


def _convolution(
    name: str, operands: Sequence[Place], static: Static, result: Place, area: Area, _: int
) -> list[Stage]:
    return conv_stages.conv_stages(name, operands, dict(static), result, area)


def _pooling(
    name: str, operands: Sequence[Place], static: Static, result: Place, area: Area, code: int
) -> list[Stage]:
    return pool_stages.pooling_stages(name, operands, dict(static), result, area, code)


def _fourier(
    name: str, operands: Sequence[Place], static: Static, result: Place, area: Area, _: int
) -> list[Stage]:
    (operand,) = operands
    return fft_stages.fft_stages(name, operand, dict(static), result, area)


def _has_large_tables(name: str, avals: Sequence[Aval], static: Static, out: Aval) -> bool:
    """Whether it is a long transform."""
    axis = static["axis"]
    return (out if name == "irfft" else avals[0]).shape[axis] > fft_order.LONGEST


def _linalg(
    name: str, operands: Sequence[Place], static: Static, result: Place, area: Area, code: int
) -> list[Stage]:
    return linalg_stages.linalg_stages(name, operands, dict(static), result, area, code)


def _failures(
    name: str, avals: Sequence[Aval], static: Static, result: Aval
) -> list[tuple[str, Fault]]:
    """What is wrong with a matrix."""
    return [matrices.failure(name, avals, static, result)]


def _is_heavy(avals: Sequence[Aval], out: Aval) -> bool:
    """Whether a routine that only passes over its operands takes long."""
    return cost.passing_work(avals, out) > LIGHT_WORK


def _is_heavy_product(avals: Sequence[Aval], out: Aval) -> bool:
    return cost.product_work(avals, out) > LIGHT_WORK


def _is_heavy_convolution(avals: Sequence[Aval], out: Aval) -> bool:
    return cost.convolution_work(avals, out) > LIGHT_WORK


def _is_heavy_matrix(avals: Sequence[Aval], out: Aval) -> bool:
    return cost.matrix_work(avals, out) > LIGHT_WORK


ROUTINES: Mapping[str, Routine] = {
    "matmul": Routine(_matmul, _is_heavy_product),
    "argsort": Routine(_argsort, _is_heavy),
    "searchsorted": Routine(_searchsorted, _is_heavy),
    **{n: Routine(partial(_convolution, n), _is_heavy_convolution) for n in conv_stages.NAMES},
    **{n: Routine(partial(_pooling, n), _is_heavy) for n in ("window_max", "window_argmax")},
    **{
        n: Routine(partial(_pooling, n), _is_heavy, partial(bad_places, n))
        for n in pool_stages.INDEXED
    },
    **{
        n: Routine(partial(_fourier, n), _is_heavy, large=partial(_has_large_tables, n))
        for n in fft_stages.NAMES
    },
    **host_routines(host_calls.call_stages, lambda avals, out: True, host_calls.host_program),
    **{
        n: Routine(partial(_linalg, n), _is_heavy_matrix, partial(_failures, n))
        for n in matrices.NAMES
    },
    "require": Routine(partial(_linalg, "require"), _is_heavy, partial(_failures, "require")),
}
