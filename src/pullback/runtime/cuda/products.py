"""Matrix products in the order of `order.product`, as on the CPU.

Products are added up in chunks of k that are joined in sequence; k is never cut elsewhere, nor
padded with what could change a sum. Floats of 16 bits are copied to float32 first; complex products
are four real ones, of each part with each part, which are then joined.

Tensor cores, where they may be used, have an order of their own: see `gemm/tensor_cores.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pullback.compile.program.products import Matrices, Sides, matmul_steps
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Ending, Place, Strides
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.precision import DEFAULT, HIGHEST
from pullback.runtime.cuda.gemm.endings import End, end_of
from pullback.runtime.cuda.gemm.kinds import Kind, kind_of
from pullback.runtime.cuda.gemm.sources import kernel_source, wide_of
from pullback.runtime.cuda.gemm.steps import Operand, may_end, row_steps, tile_steps, widened_steps
from pullback.runtime.cuda.gemm.tensor_cores import Cores
from pullback.runtime.cuda.gemm.units import Units
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.launch import THREADS, grid_of
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = ["Products"]

MOST_SIDE = 1 << 30  # of a matrix for tensor cores, which count in 32 bits
ROW_BYTES = 1 << 17  # of a matrix: a row times a larger one is bound by memory


def _is_row(dtype: DType, batch: Sequence[int], sides: Sides) -> bool:
    """Whether a product is one of rows by a matrix that is bound by memory."""
    m, n, k = sides
    return min(m, n) == 1 and math.prod(batch) * max(m, n) * k * wide_of(dtype).itemsize > ROW_BYTES


class Products:
    """The products of one GPU."""

    def __init__(self, gpu: Gpu):
        self._units, self._cores = Units(gpu), Cores(gpu)

    def stages(
        self,
        operands: Sequence[Place],
        static: Mapping[str, Any],
        result: Place,
        area: Area,
        _: int,
    ) -> list[Stage]:
        """The stages of a batch of products of matrices."""
        precision = static.get("precision", DEFAULT)
        kernels = partial(self.steps, precision=precision)
        return stage(*matmul_steps(kernels, operands, result, area))

    def ended(
        self,
        operands: Sequence[Place],
        static: Mapping[str, Any],
        result: Aval,
        ending: Ending,
        area: Area,
    ) -> list[Stage] | None:
        """The stages of products whose kernel ends with a map: see `Routine.ended`."""
        precision, end = static.get("precision", DEFAULT), end_of(ending)
        *batch, m, n = result.shape
        sides = m, n, operands[0][1].shape[-1]
        if end is None or not self._may_end(result.dtype, batch, sides, precision):
            return None
        kernels = partial(self.steps, precision=precision, end=end)
        return stage(*matmul_steps(kernels, operands, (ending.outs[0], result), area))

    def _may_end(self, dtype: DType, batch: Sequence[int], sides: Sides, precision: str) -> bool:
        """Whether products are made by one kernel that elements come from."""
        if self._kind(dtype, sides, precision) is not None:
            return True
        if dtype.is_complex or _is_row(dtype, batch, sides):
            return False
        wide = wide_of(dtype)
        return may_end(wide, batch, sides, units=self._by_units(wide))

    def rows(
        self,
        dtype: DType,
        sides: tuple[int, int, int],
        a: tuple[int, Strides],
        b: tuple[int, Strides],
        out_slot: int,
        area: Area,
        /,
    ) -> list[Stage] | None:
        """See `Target.product_rows`: the whole product, in the order of one of many rows."""
        left, right = ((At(slot), strides) for slot, strides in (a, b))
        return stage(*self.steps(dtype, (), sides, left, right, At(out_slot), area))

    def steps(
        self,
        dtype: DType,
        batch: Sequence[int],
        sides: Sides,
        a: Matrices,
        b: Matrices,
        out: At,
        area: Area,
        precision: str = HIGHEST,
        end: End | None = None,
    ) -> list[Step | Either]:
        """The launches of products (m, k) @ (k, n); the output is dense, or that of an end."""
        (a_at, (*a_batch, a_line, a_k)), (b_at, (*b_batch, b_k, b_line)) = a, b
        left = Operand(a_at, tuple(a_batch), a_line, a_k)
        right = Operand(b_at, tuple(b_batch), b_line, b_k)
        kind = self._kind(dtype, sides, precision)
        if kind is not None:
            return self._cores.steps(kind, dtype, tuple(batch), sides, left, right, out, area, end)
        if dtype.is_complex:
            return self._complex(dtype, tuple(batch), sides, left, right, out, area)
        return self._real(dtype, tuple(batch), sides, left, right, out, area, end)

    def _kind(self, dtype: DType, sides: Sides, precision: str) -> Kind | None:
        """What tensor cores multiply, where they make a product."""
        able = sides[2] > 0 and max(sides) < MOST_SIDE and self._cores.are_there()
        return kind_of(dtype, precision) if able else None

    def _by_units(self, wide: DType) -> bool:
        """Whether matrix units make products in the order of the CPU."""
        return wide.itemsize == 8 and self._units.keep_order()

    def _real(
        self,
        dtype: DType,
        batch: tuple[int, ...],
        sides: Sides,
        a: Operand,
        b: Operand,
        out: At,
        area: Area,
        end: End | None = None,
    ) -> list[Step | Either]:
        m, n, k = sides
        wide = wide_of(dtype)
        if _is_row(dtype, batch, sides):
            if m > 1:
                a, b = b, a
            return row_steps(dtype, batch, max(m, n), k, a, b, out, area)
        steps: list[Step | Either] = []
        if wide is not dtype and k > 0:  # else nothing is read
            step, a, b = widened_steps(dtype, batch, sides, a, b, area)
            steps.append(step)
        units = self._by_units(wide)
        made = tile_steps(wide, batch, sides, a, b, out, area, stored=dtype, units=units, end=end)
        return steps + made

    def _complex(
        self,
        dtype: DType,
        batch: tuple[int, ...],
        sides: Sides,
        a: Operand,
        b: Operand,
        out: At,
        area: Area,
    ) -> list[Step | Either]:
        """Parts lie side by side: they are two more axes of the batch."""
        count = math.prod(batch) * sides[0] * sides[1]
        part = dtype.real
        left, right = (
            Operand(x.at, (*own, *(2 * s for s in x.batch)), 2 * x.line, 2 * x.k)
            for x, own in ((a, (1, 0)), (b, (0, 1)))
        )
        parts = At(area(4 * count * part.itemsize))
        made = self._real(part, (2, 2, *batch), sides, left, right, parts, area)
        name = f"product_{part.name}"
        source = kernel_source(name, ("join",), part, part, {})
        given = (out, parts, count)
        return [*made, Step(source, f"{name}_parts", (grid_of(count), 1), THREADS, given)]
