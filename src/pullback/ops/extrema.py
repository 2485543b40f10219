"""The largest and smallest elements along axes, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Fold, Reduction
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr, const, select
from pullback.ops.families import normalise_axes, primitive
from pullback.ops.parts import astype
from pullback.ops.reductions import axis_errors, joined, reduced_shape, spread, sum

__all__ = ["argmax", "argmin", "max", "min"]


def lowest(dtype: DType) -> Expr:
    """The identity of max."""
    if dtype.kind == "f":
        return const(-np.inf, dtype)
    return const(False if dtype.kind == "b" else int(np.iinfo(dtype.numpy).min), dtype)


def highest(dtype: DType) -> Expr:
    """The identity of min."""
    if dtype.kind == "f":
        return const(np.inf, dtype)
    return const(True if dtype.kind == "b" else int(np.iinfo(dtype.numpy).max), dtype)


def _ahead(a: Expr, b: Expr, sense: int) -> Expr:
    """What is ahead in the search for the maximum (sense 1) or minimum (-1): NaN, and b of equals.

    The comparison chooses between what it compares, which is one instruction of processors.
    """
    if a.dtype.kind == "b":
        return select(a & ~b if sense > 0 else b & ~a, a, b)
    ahead = select(a > b if sense > 0 else a < b, a, b)
    return select(a != a, a, ahead) if a.dtype.kind == "f" else ahead


def _extremum_fold(sense: int) -> Callable[..., Reduction]:
    def build(x: Expr, axes: tuple[int, ...], keepdims: bool) -> Reduction:
        identity = lowest(x.dtype) if sense > 0 else highest(x.dtype)
        return joined((x,), (identity,), lambda a, b: (_ahead(a[0], b[0], sense),))

    return build


def _share(x: Any, out: Any, axes: tuple[int, ...]) -> Any:
    """The part of the derivative that each element gets: ties share it evenly."""
    attained = astype(x == spread(out, x._aval, axes), x._aval.dtype)
    return attained / sum(attained, axis=axes, keepdims=True)


def _extremum_vjp(g: Any, x: Any, out: Any, axes: tuple[int, ...]) -> Any:
    return spread(g, x._aval, axes) * _share(x, out, axes)


def _extremum_jvp(t: Any, x: Any, out: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return sum(t * _share(x, out, axes), axis=axes, keepdims=keepdims)


def ordered(name: str, x: Any) -> Any:
    x = as_array(x, name)
    if x._aval.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no order, got {x._aval.dtype.name}.")
    return x


def _not_empty(name: str, x: Any, axes: tuple[int, ...]) -> None:
    if size_of(x._aval.shape[d] for d in axes) == 0:
        raise ShapeError(
            f"{name}: an empty reduction has no value, got shape {x._aval.shape} and axes {axes}."
        )


def _extremum(op: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    x = ordered(op.name, x)
    axes = normalise_axes(op.name, axis, x._aval.ndim)
    _not_empty(op.name, x, axes)
    return bind(op, x, axes=axes, keepdims=bool(keepdims)) if axes else x


def _extremum_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(3, 4),)),
        Sample((d.distinct(2, 3, 4),), {"axis": (0, -1)}),
        Sample((d.distinct(2, 3),), {"axis": -1, "keepdims": True}),
        Sample((d.distinct(3),), {"axis": ()}),
        Sample((d.distinct(0, 3),), {"axis": 1}),
        Sample((np.asarray([1.0, 3.0, -2.0, 3.0, -2.0]),), order=1),
        Sample((np.asarray([1.0, np.nan, 3.0]),), order=0),
        Sample((np.asarray([-np.inf, -np.inf]),), order=0),
        Sample((d.integers(3, 5, low=-9),), {"axis": 0}),
        Sample((d.mask(5),)),
    ]


def _extremum_errors(d: Draw) -> list[Bad]:
    return [
        *axis_errors(d),
        Bad((np.zeros((0, 3)),), {"axis": 0}, ShapeError, "empty reduction"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
    ]


def _extremum_infer(x: Aval, axes: tuple[int, ...], keepdims: bool) -> tuple:
    return reduced_shape(x.shape, axes, keepdims), x.dtype


@primitive(
    "x",
    infer=_extremum_infer,
    lowering=Fold(_extremum_fold(1)),
    vjp={"x": _extremum_vjp},
    jvp={"x": _extremum_jvp},
    oracle=lambda x, *, axis=None, keepdims=False: np.max(x, axis=axis, keepdims=keepdims),
    samples=_extremum_samples,
    errors=_extremum_errors,
    methods=("max",),
    front=1,
)
def max(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The largest element along `axis` (None: all axes), NaN if there is one.

    Elements that tie for it share its derivative evenly.

    >>> pb.max(pb.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=0)
    tensor([3., 5.], float32, cpu)
    """
    return _extremum(max.op, x, axis, keepdims)


@primitive(
    "x",
    infer=_extremum_infer,
    lowering=Fold(_extremum_fold(-1)),
    vjp={"x": _extremum_vjp},
    jvp={"x": _extremum_jvp},
    oracle=lambda x, *, axis=None, keepdims=False: np.min(x, axis=axis, keepdims=keepdims),
    samples=_extremum_samples,
    errors=_extremum_errors,
    methods=("min",),
    front=1,
)
def min(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The smallest element along `axis` (None: all axes), NaN if there is one.

    Elements that tie for it share its derivative evenly.

    >>> pb.min(pb.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=0)
    tensor([1., 4.], float32, cpu)
    """
    return _extremum(min.op, x, axis, keepdims)


def search_key(x: Expr, sense: int) -> Expr:
    """An integer that is largest where x is largest (sense 1) or smallest (-1).

    -0 and 0 have the same key, and NaN has the largest.
    """
    if x.dtype.kind == "b":
        x = scalar.cast(x, dt.uint8)
    if x.dtype.kind != "f":
        return x if sense > 0 else ~x
    whole = dt.int32 if x.dtype is dt.float32 else dt.int64
    bits = scalar.bitcast(x + 0.0, whole)
    top = int(np.iinfo(whole.numpy).max)
    key = bits ^ ((bits >> (8 * whole.itemsize - 1)) & top)  # negative numbers in reverse
    return select(x == x, key if sense > 0 else ~key, scalar.const(top, whole))


def _position_fold(sense: int) -> Callable[..., Reduction]:
    """The accumulators are a key and its position; among equal keys the first position wins.

    A step leaves the position open as long as all keys are the lowest: the first element has it.
    """

    def build(x: Expr, axes: tuple[int, ...], keepdims: bool) -> Reduction:
        def pick(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
            later = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
            return select(later, b[0], a[0]), select(later, b[1], a[1])

        key = search_key(x, sense)
        nowhere = highest(dt.int64)
        fold = joined((key, scalar.index()), (lowest(key.dtype), nowhere), pick)
        (a, position), (b, own) = (
            [scalar.acc(side, n, e.dtype) for n, e in enumerate(fold.element)] for side in "ab"
        )
        step = select(b > a, b, a), select(b > a, own, position)
        found = select(position == nowhere, const(0, dt.int64), position)
        return fold._replace(finish=(found,), step=step)

    return build


def _position(op: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    x = ordered(op.name, x)
    if axis is not None and not isinstance(axis, (int, np.integer)):
        raise DTypeError(f"{op.name}: axis must be an integer or None, got {axis!r}.")
    axes = normalise_axes(op.name, axis, x._aval.ndim)
    _not_empty(op.name, x, axes)
    return bind(op, x, axes=axes, keepdims=bool(keepdims))


def _position_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(3, 4),)),
        Sample((d.distinct(2, 3, 4),), {"axis": 1}),
        Sample((d.distinct(2, 3),), {"axis": -1, "keepdims": True}),
        Sample((np.asarray([1.0, np.nan, 3.0, np.nan]),)),
        Sample((np.asarray([-np.inf, np.inf, -np.inf, np.inf]),)),
        Sample((d.integers(4, 9, high=3),), {"axis": 1}),
        Sample((d.integers(40, high=2, dtype=np.uint8),)),
        Sample((d.mask(9),)),
        Sample((d.real(),)),
    ]


def _position_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(2, 3),), {"axis": (0, 1)}, DTypeError, "integer or None"),
        Bad((np.zeros((0, 3)),), {"axis": 0}, ShapeError, "empty reduction"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
    ]


def _position_infer(x: Aval, axes: tuple[int, ...], keepdims: bool) -> tuple:
    return reduced_shape(x.shape, axes, keepdims), dt.int64


@primitive(
    "x",
    infer=_position_infer,
    lowering=Fold(_position_fold(1)),
    no_gradient="positions are integers",
    oracle=lambda x, *, axis=None, keepdims=False: np.argmax(x, axis=axis, keepdims=keepdims),
    samples=_position_samples,
    errors=_position_errors,
    methods=("argmax",),
    front=1,
)
def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The position of the first largest element along `axis` (None: of the flattened array).

    NaN counts as the largest.

    >>> pb.argmax(pb.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1)
    tensor([1, 1], int64, cpu)
    """
    return _position(argmax.op, x, axis, keepdims)


@primitive(
    "x",
    infer=_position_infer,
    lowering=Fold(_position_fold(-1)),
    no_gradient="positions are integers",
    oracle=lambda x, *, axis=None, keepdims=False: np.argmin(x, axis=axis, keepdims=keepdims),
    samples=_position_samples,
    errors=_position_errors,
    methods=("argmin",),
    front=1,
)
def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """The position of the first smallest element along `axis` (None: of the flattened array).

    NaN counts as the smallest.

    >>> pb.argmin(pb.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1)
    tensor([0, 0], int64, cpu)
    """
    return _position(argmin.op, x, axis, keepdims)
