"""From an operation's lowering and the dtypes at hand to a kernel: where storage dtypes become
compute dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from pullback.compile.kernel.forms import Accumulate, Gather, Map, Reduce, Scatter
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, bool_
from pullback.ir.lowering import Elementwise, Fold, ScatterRows, compute_dtype, operand, parts
from pullback.ir.scalar import Complex, Expr, Value, acc, cast, const, load

__all__ = [
    "broadcast_strides",
    "copy_kernel",
    "fold_kernel",
    "gather_kernel",
    "map_kernel",
    "scatter_kernel",
    "zero_kernel",
]


def _accumulated(side: str, dtype: DType) -> Value:
    part = compute_dtype(dtype)
    if dtype.is_complex:
        return Complex(acc(side, 0, part), acc(side, 1, part))
    return acc(side, 0, part)


def _stored(value: Value, dtype: DType) -> tuple[Expr, ...]:
    return tuple(cast(p, dtype.real) for p in parts(value))


def map_kernel(
    low: Elementwise, inputs: Sequence[DType], static: dict[str, Any], out: DType
) -> Map:
    """The kernel of an elementwise operation."""
    return _map_kernel(low, tuple(inputs), tuple(static.items()), out)


# Kernels know no shapes: an operation on ever new shapes finds its kernel here.
@lru_cache(4096)
def _map_kernel(
    low: Elementwise, inputs: tuple[DType, ...], static: tuple[tuple[str, Any], ...], out: DType
) -> Map:
    value = low.body(*[operand(i, d) for i, d in enumerate(inputs)], **dict(static))
    return Map(inputs, out, _stored(value, out))


@cache
def copy_kernel(dtype: DType) -> Map:
    """The kernel that copies elements as they are, NaN payloads included."""
    value = operand(0, dtype) if dtype.is_complex else load(0, dtype)
    return Map((dtype,), dtype, parts(value))


@cache
def zero_kernel(dtype: DType) -> Map:
    """The kernel that writes zeros."""
    part = const(False if dtype is bool_ else 0, dtype.real)
    return Map((), dtype, (part, part) if dtype.is_complex else (part,))


def fold_kernel(low: Fold, av: Aval, static: dict[str, Any], out: DType) -> Any:
    """The kernel of a reduction, or of a running fold."""
    fold = low.build(operand(0, av.dtype), **static)
    finish = tuple(cast(e, out.real) for e in fold.finish)
    form = Accumulate if low.keep else Reduce
    return form((av.dtype,), out, fold.init, fold.element, fold.combine, finish, fold.step)


def gather_kernel(avals: Sequence[Aval]) -> Gather:
    """The kernel that reads rows of the first operand at the positions given by the others."""
    return Gather(avals[0].dtype, tuple(a.dtype for a in avals[1:]))


def scatter_kernel(low: ScatterRows, avals: Sequence[Aval]) -> Scatter:
    """The kernel that folds updates into rows of a copy of the first operand."""
    dtype = avals[0].dtype
    value = low.combine(_accumulated("a", dtype), _accumulated("b", dtype))
    indices = tuple(a.dtype for a in avals[2:])
    return Scatter(dtype, indices, parts(value), low.sums, low.exact, low.fold)


def broadcast_strides(av: Aval, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an operand over the shape that it broadcasts to: 0 where it repeats."""
    assert av.strides is not None
    if av.shape == shape:
        return av.strides
    lead = len(shape) - av.ndim
    own = [
        0 if n == 1 and m != 1 else s
        for n, s, m in zip(av.shape, av.strides, shape[lead:], strict=True)
    ]
    return (0,) * lead + tuple(own)
