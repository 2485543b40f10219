"""Products of matrices as kernels of a target: what "matmul" launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.program.stages import At
from pullback.compile.program.target import Area, Place, Strides
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError

__all__ = ["Matrices", "ProductKernels", "Sides", "matmul_steps"]

S_co = TypeVar("S_co", covariant=True)  # a step of the target
Sides: TypeAlias = tuple[int, int, int]  # m, n, k of (m, k) @ (k, n)
Matrices: TypeAlias = tuple[At, Strides]  # where they are, strides of the batch and of two sides


class ProductKernels(Protocol[S_co]):
    """The kernels that a target has."""

    def __call__(
        self,
        dtype: DType,
        batch: Sequence[int],
        sides: Sides,
        a: Matrices,
        b: Matrices,
        out: At,
        area: Area,
    ) -> Sequence[S_co]:
        """Makes a batch of products; the output is dense."""
        ...


def matmul_steps(
    kernels: ProductKernels[S_co], operands: Sequence[Place], result: Place, area: Area
) -> Sequence[S_co]:
    """The launches; the result is dense."""
    (a_slot, a), (b_slot, b) = operands
    slot, out = result
    if not out.dtype.is_inexact:
        raise DTypeError(f"matmul: takes floats and complex numbers, got {out.dtype.name}.")
    if out.size == 0:
        return []
    *batch, m, n = out.shape
    k = a.shape[-1]
    a_strides, b_strides = (broadcast_strides(x, (*batch, *x.shape[-2:])) for x in (a, b))
    given = (At(a_slot), a_strides), (At(b_slot), b_strides), At(slot)
    return kernels(out.dtype, batch, (m, n, k), *given, area)
