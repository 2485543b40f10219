"""Reductions over axes: sums, products, truth. Extrema and statistics have files of their own."""

from __future__ import annotations

from collections.abc import Callable
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.convert import scalar as number
from pullback.ir.lowering import Fold, Reduction
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Expr, Value, acc, const
from pullback.ops.families import normalise_axes, primitive
from pullback.ops.movement import broadcast_to, concat, permute_dims, reshape
from pullback.ops.parts import astype, cc

__all__ = ["all", "any", "prod", "sum"]


# -- what reductions share -----------------------------------------------------------------------


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction over `axes`."""
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def spread(g: Any, x_aval: Aval, axes: tuple[int, ...]) -> Any:
    """The result of a reduction over `axes`, repeated along them."""
    kept = reduced_shape(x_aval.shape, axes, True)
    if g._aval.shape != kept:
        g = bind(reshape.op, g, shape=kept)
    return g if kept == x_aval.shape else bind(broadcast_to.op, g, shape=x_aval.shape)


def joined(
    parts: tuple[Expr, ...], identity: tuple[Expr, ...], combine: Callable[..., tuple[Expr, ...]]
) -> Reduction:
    """A fold whose accumulators are what it returns."""
    first = tuple(acc("a", i, p.dtype) for i, p in enumerate(parts))
    later = tuple(acc("b", i, p.dtype) for i, p in enumerate(parts))
    return Reduction(identity, parts, combine(first, later), first)


def parts_of(x: Value) -> tuple[Expr, ...]:
    return (x.re, x.im) if isinstance(x, Complex) else (x,)


def wide_sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum or product: integers are added up in 64 bits."""
    if dtype.kind in "bi":
        return dt.int64
    return dt.uint64 if dtype.kind == "u" else dtype


def widened(x: Value) -> tuple[Expr, ...]:
    return tuple(scalar.cast(p, wide_sum_dtype(p.dtype)) for p in parts_of(x))


def _total_infer(x: Aval, axes: tuple[int, ...], keepdims: bool) -> tuple[tuple[int, ...], DType]:
    return reduced_shape(x.shape, axes, keepdims), wide_sum_dtype(x.dtype)


def _total(op: Any, x: Any, axis: Any, dtype: Any, keepdims: bool) -> Any:
    """The call of `sum` or `prod` in the dtype asked for."""
    x = as_array(x, op.name)
    if dtype is not None:
        dtype = as_dtype(dtype, op.name)
        x = astype(x, dtype)
    axes = normalise_axes(op.name, axis, x._aval.ndim)
    if axes:
        x = bind(op, x, axes=axes, keepdims=bool(keepdims))
    else:
        x = astype(x, wide_sum_dtype(x._aval.dtype))
    return x if dtype is None else astype(x, dtype)


def _total_oracle(reduce: Any) -> Callable[..., Any]:
    def oracle(x: Any, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        if dtype is None:
            dtype = wide_sum_dtype(as_dtype(x.dtype))
        x = x.astype(dtype.numpy)
        exact = {"f": np.float64, "c": np.complex128}.get(dtype.kind, dtype.numpy)
        return reduce(x, axis=axis, dtype=exact, keepdims=keepdims).astype(dtype.numpy)

    return oracle


def _total_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4),)),
        Sample((d.real(2, 3, 4),), {"axis": (0, -1)}),
        Sample((d.real(2, 3),), {"axis": -1, "keepdims": True}),
        Sample((d.real(2, 3),), {"axis": ()}),
        Sample((d.real(),)),
        Sample((d.real(0, 3),), {"axis": 0}),
        Sample((d.integers(4, low=-3, high=4, dtype=np.int8),)),
        Sample((d.mask(2, 5),), {"axis": 1}),
        Sample((d.integers(4, dtype=np.uint8),), {"dtype": dt.float32}),
    ]


def axis_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(2, 3),), {"axis": (0, 0)}, ShapeError, "named twice"),
        Bad((d.real(2, 3),), {"axis": (0.5,)}, DTypeError, "axis must be an integer"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


# -- sums and products ---------------------------------------------------------------------------


def sum_fold(x: Value) -> Reduction:
    parts = widened(x)
    zero = tuple(const(0, p.dtype) for p in parts)
    return joined(parts, zero, lambda a, b: tuple(p + q for p, q in zip(a, b, strict=True)))


@primitive(
    "x",
    infer=_total_infer,
    lowering=Fold(lambda x, axes, keepdims: sum_fold(x)),
    vjp={"x": lambda g, x_aval, axes: spread(g, x_aval, axes)},
    jvp="linear",
    oracle=_total_oracle(np.sum),
    samples=_total_samples,
    errors=axis_errors,
    methods=("sum",),
    front=1,
)
def sum(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum of the elements along `axis` (None: all axes); integers and bools add up in 64 bits.

    >>> pb.sum(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    tensor([4., 6.], float32, cpu)
    """
    return _total(sum.op, x, axis, dtype, keepdims)


def prod_fold(x: Value) -> Reduction:
    parts = widened(x)
    one = tuple(const(1 - i, p.dtype) for i, p in enumerate(parts))

    def times(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return parts_of(Complex(*a) * Complex(*b)) if len(a) == 2 else (a[0] * b[0],)

    return joined(parts, one, times)


def _others_product(x: Any) -> Any:
    """The product of all other elements along the last axis, without dividing by any of them.

    Going up a tree, pairs are multiplied; going down, what is outside a pair is multiplied by its
    other half.
    """
    *lead, n = x._aval.shape
    one = number(1, x._aval.dtype, x._aval.device)
    if n <= 1:
        return broadcast_to(one, (*lead, n))
    if n % 2:
        x = concat([x, broadcast_to(one, (*lead, 1))], axis=-1)
    pairs = reshape(x, (*lead, (n + 1) // 2, 2))
    left, right = pairs[..., 0:1], pairs[..., 1:2]
    outside = reshape(
        _others_product(reshape(left * right, pairs._aval.shape[:-1])), left._aval.shape
    )
    both = reshape(concat([outside * right, outside * left], axis=-1), (*lead, n + n % 2))
    return both[..., :n] if n % 2 else both


def _prod_others(x: Any, axes: tuple[int, ...]) -> Any:
    """For each element the product of the others that it is reduced with."""
    av = x._aval
    order = tuple(d for d in range(av.ndim) if d not in axes) + axes
    moved = permute_dims(x, order)
    kept = moved._aval.shape[: av.ndim - len(axes)]
    rows = reshape(moved, (*kept, size_of(av.shape[d] for d in axes)))
    back = reshape(_others_product(rows), moved._aval.shape)
    return permute_dims(back, tuple(order.index(d) for d in range(av.ndim)))


def _prod_vjp(g: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return spread(g, x._aval, axes) * cc(_prod_others(x, axes))


def _prod_jvp(t: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return sum(t * _prod_others(x, axes), axis=axes, keepdims=keepdims)


@primitive(
    "x",
    infer=_total_infer,
    lowering=Fold(lambda x, axes, keepdims: prod_fold(x)),
    vjp={"x": _prod_vjp},
    jvp={"x": _prod_jvp},
    oracle=_total_oracle(np.prod),
    samples=lambda d: [
        *_total_samples(d),
        Sample((np.asarray([2.0, 0.0, 3.0]),)),
        Sample((np.asarray([[2.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 1.5]]),), {"axis": 1}),
        Sample((d.real(7),)),
    ],
    errors=axis_errors,
    methods=("prod",),
    front=1,
)
def prod(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """The product of the elements along `axis` (None: all axes), differentiable at zeros too.

    >>> pb.prod(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    tensor([ 2., 12.], float32, cpu)
    """
    return _total(prod.op, x, axis, dtype, keepdims)


# -- truth ---------------------------------------------------------------------------------------


def _truth(x: Value) -> Expr:
    if isinstance(x, Complex):
        return (x.re != 0.0) | (x.im != 0.0)
    return x if x.dtype.kind == "b" else x != 0


def _any_fold(x: Value, axes: tuple[int, ...], keepdims: bool) -> Reduction:
    return joined((_truth(x),), (const(False, dt.bool_),), lambda a, b: (a[0] | b[0],))


def _all_fold(x: Value, axes: tuple[int, ...], keepdims: bool) -> Reduction:
    return joined((_truth(x),), (const(True, dt.bool_),), lambda a, b: (a[0] & b[0],))


def _truth_infer(x: Aval, axes: tuple[int, ...], keepdims: bool) -> tuple:
    return reduced_shape(x.shape, axes, keepdims), dt.bool_


def _truth_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.mask(3, 4),)),
        Sample((d.mask(3, 4),), {"axis": 1, "keepdims": True}),
        Sample((d.integers(4, 3, high=2),), {"axis": (0,)}),
        Sample((np.asarray([0.0, np.nan]),)),
        Sample((np.asarray([0.0, 1j]),)),
        Sample((np.zeros((0, 2)),), {"axis": 0}),
        Sample((d.mask(3),), {"axis": ()}),
    ]


def _decision(op: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    x = as_array(x, op.name)
    axes = normalise_axes(op.name, axis, x._aval.ndim)
    return bind(op, x, axes=axes, keepdims=bool(keepdims)) if axes else astype(x, dt.bool_)


@primitive(
    "x",
    infer=_truth_infer,
    lowering=Fold(_any_fold),
    no_gradient="the result is bool",
    oracle=lambda x, *, axis=None, keepdims=False: np.any(x, axis=axis, keepdims=keepdims),
    samples=_truth_samples,
    errors=axis_errors,
    methods=("any",),
    front=1,
)
def any(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Whether an element along `axis` (None: all axes) is true, that is not 0.

    >>> pb.any(pb.tensor([[False, True], [False, False]]), axis=1)
    tensor([ True, False], bool, cpu)
    """
    return _decision(any.op, x, axis, keepdims)


@primitive(
    "x",
    infer=_truth_infer,
    lowering=Fold(_all_fold),
    no_gradient="the result is bool",
    oracle=lambda x, *, axis=None, keepdims=False: np.all(x, axis=axis, keepdims=keepdims),
    samples=_truth_samples,
    errors=axis_errors,
    methods=("all",),
    front=1,
)
def all(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Whether every element along `axis` (None: all axes) is true, that is not 0.

    >>> pb.all(pb.tensor([[False, True], [True, True]]), axis=1)
    tensor([False,  True], bool, cpu)
    """
    return _decision(all.op, x, axis, keepdims)
