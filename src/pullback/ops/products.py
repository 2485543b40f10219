"""Products of matrices and vectors, and their general form `einsum`'s building block, `tensordot`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import broadcast_shapes, composite, normalise_axis, primitive, sum_to
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.parts import astype, cc, conj
from pullback.ops.reductions import sum as sum_

__all__ = ["kron", "matmul", "matrix_transpose", "outer", "tensordot", "trace", "vecdot"]

MOST_PRODUCTS = 1 << 22  # elements of the intermediate array of an integer matmul


def promoted(name: str, *xs: Any) -> list[Any]:
    """The operands as arrays of one dtype."""
    arrays = [as_array(x, name) for x in xs]
    dtype = arrays[0]._aval.dtype
    for a in arrays[1:]:
        dtype = dt.promote(dtype, a._aval.dtype)
    return [astype(a, dtype) for a in arrays]


def _matmul_infer(x: Aval, y: Aval) -> tuple[tuple[int, ...], DType]:
    if x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"matmul: the inner sizes differ, got shapes {x.shape} and {y.shape}."
            " The last axis of the left operand meets the second last of the right one."
        )
    batch = broadcast_shapes("matmul", x.shape[:-2], y.shape[:-2])
    return (*batch, x.shape[-2], y.shape[-1]), x.dtype


def _matmul_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4), d.real(4, 2))),
        Sample((d.real(3), d.real(3))),
        Sample((d.real(3), d.real(3, 2))),
        Sample((d.real(2, 3), d.real(3))),
        Sample((d.real(2, 1, 3, 2), d.real(3, 2, 2))),
        Sample((d.real(2, 2, 3), d.real(3))),
        Sample((d.real(0, 3), d.real(3, 2))),
        Sample((d.real(2, 0), d.real(0, 3))),
        Sample((d.integers(3, 4), d.integers(4, 2))),
        Sample((d.integers(3, 4, dtype=np.int8), d.integers(4, 2, dtype=np.int8))),
        Sample((d.mask(3, 4), d.mask(4, 2))),
    ]


def _matmul_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3), d.real(2, 3)), {}, ShapeError, "inner sizes differ, got shapes (2, 3)"),
        Bad((d.real(3), d.real(2)), {}, ShapeError, "inner sizes differ"),
        Bad((d.real(2, 2, 2), d.real(3, 2, 2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(), d.real(3)), {}, ShapeError, "at least one dimension"),
        Bad((object(), d.real(3)), {}, DTypeError, "expected an array"),
    ]


def _transposed(x: Any) -> Any:
    n = x._aval.ndim
    return permute_dims(x, (*range(n - 2), n - 1, n - 2))


def _matmul_vjp_left(g: Any, y: Any, x_aval: Aval) -> Any:
    gx = bind(matmul.op, g, _transposed(cc(y)))
    return gx if gx._aval.shape == x_aval.shape else sum_to(gx, x_aval.shape)


def _matmul_vjp_right(g: Any, x: Any, y_aval: Aval) -> Any:
    gy = bind(matmul.op, _transposed(cc(x)), g)
    return gy if gy._aval.shape == y_aval.shape else sum_to(gy, y_aval.shape)


@primitive(
    "x y",
    infer=_matmul_infer,
    lowering=Intrinsic("matmul"),
    vjp={"x": _matmul_vjp_left, "y": _matmul_vjp_right},
    jvp="multilinear",
    oracle=np.matmul,
    samples=_matmul_samples,
    errors=_matmul_errors,
    methods=("__matmul__", "__rmatmul__"),
)
def matmul(x: Any, y: Any, /) -> Any:
    """The product of matrices in the last two axes, over broadcast batches; a 1-D operand is a row (left) or a column (right).

    >>> pb.matmul(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), pb.tensor([10.0, 1.0]))
    tensor([12., 34.])
    """
    x, y = promoted("matmul", x, y)
    a, b = x._aval, y._aval
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"matmul: operands need at least one dimension, got shapes {a.shape} and {b.shape}."
            " Multiply by scalars with *."
        )
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ShapeError(f"matmul: the inner sizes differ, got shapes {a.shape} and {b.shape}.")
    if a.ndim == 1:
        x = reshape(x, (1, *a.shape))
    if b.ndim == 1:
        y = reshape(y, (*b.shape, 1))
    out = bind(matmul.op, x, y) if a.dtype.is_inexact else _whole_matmul(x, y)
    if a.ndim > 1 and b.ndim > 1:
        return out
    shape = out._aval.shape
    rows = shape[:-2] if a.ndim == 1 else shape[:-1]
    return reshape(out, rows if b.ndim == 1 else (*rows, shape[-1]))


def _whole_matmul(x: Any, y: Any) -> Any:
    """The product of integer or bool matrices: in float64 where that is exact, else as sums of products."""
    (shape, dtype), k = _matmul_infer(x._aval, y._aval), x._aval.shape[-1]
    if dtype.itemsize <= 2:
        out = bind(matmul.op, astype(x, dt.float64), astype(y, dt.float64))
        return astype(out if dtype is dt.bool_ else astype(out, dt.int64), dtype)
    step = max(1, min(k, MOST_PRODUCTS // max(1, size_of(shape))))
    total = None
    for k0 in range(0, max(k, 1), step):
        part = sum_(x[..., :, k0 : k0 + step, None] * y[..., None, k0 : k0 + step, :], axis=-2)
        total = part if total is None else total + part
    return astype(total, dtype)
