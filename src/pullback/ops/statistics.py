"""Statistics of the elements along axes: means, variances, and sums of exponentials."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType, default_float
from pullback.core.errors import DTypeError
from pullback.ir import mathfun, scalar
from pullback.ir.convert import as_array
from pullback.ir.lowering import Fold, Reduction
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr, acc, const, select
from pullback.ops.exponential import exp, sqrt
from pullback.ops.families import composite, normalise_axes, primitive
from pullback.ops.parts import astype, conj, real
from pullback.ops.reductions import axis_errors, reduced_shape, spread, sum
from pullback.ops.selection import where

__all__ = ["count_nonzero", "logsumexp", "mean", "std", "var"]


def _inexact(name: str, x: Any) -> Any:
    """The operand as a floating or complex array."""
    x = as_array(x, name)
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4),)),
        Sample((d.real(2, 3, 4),), {"axis": (0, -1)}),
        Sample((d.real(2, 3),), {"axis": -1, "keepdims": True}),
        Sample((d.real(5),), {"axis": 0}),
    ]


def _wide(x: Any) -> Any:
    """Half precision as float32, so that long sums do not overflow."""
    return astype(x, dt.float32) if x._aval.dtype in (dt.float16, dt.bfloat16) else x


@composite(
    oracle=lambda x, *, axis=None, keepdims=False: np.asarray(
        np.mean(x, axis=axis, keepdims=keepdims, dtype=np.result_type(x, np.float64))
    ).astype(x.dtype if x.dtype.kind in "fcV" else default_float().numpy),
    samples=lambda d: [
        *_samples(d),
        Sample((d.real(2, 3),), {"axis": ()}),
        Sample((d.real(),)),
        Sample((d.integers(4),)),
        Sample((d.mask(4),)),
    ],
    errors=axis_errors,
    methods=("mean",),
)
def mean(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The mean of the elements along `axis` (None: all axes); NaN where there are none.

    >>> pb.mean(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    tensor([1.5, 3.5], float32, cpu)
    """
    x = _inexact("mean", x)
    axes = normalise_axes("mean", axis, x._aval.ndim)
    if not axes:
        return x
    count = size_of(x._aval.shape[d] for d in axes)
    return astype(sum(_wide(x), axis=axes, keepdims=keepdims) / float(count), x._aval.dtype)


def _spread_oracle(reduce: Any) -> Callable[..., Any]:
    def oracle(x: Any, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
        wide = x.astype(np.result_type(x, np.float64))
        with np.errstate(divide="ignore", invalid="ignore"):
            axes = tuple(range(x.ndim)) if axis is None else axis
            centre = wide - wide.mean(axis=axes, keepdims=True)
            total = np.sum(np.abs(centre) ** 2, axis=axes, keepdims=keepdims)
            count = size_of(np.atleast_1d(np.asarray(x.shape)[np.asarray(axes, int)]).tolist())
            result = reduce(total / np.maximum(count - correction, 0.0))
        return np.asarray(result).astype(
            x.real.dtype if x.dtype.kind in "fcV" else default_float().numpy
        )

    return oracle


def _spread_samples(d: Draw) -> list[Sample]:
    return [
        *_samples(d),
        Sample((d.real(3, 4),), {"axis": 1, "correction": 1}),
        Sample((d.real(3),), {"correction": 3}, order=0),
        Sample((d.integers(6),)),
    ]


def _spread_errors(d: Draw) -> list[Bad]:
    return [
        *axis_errors(d),
        Bad((d.real(2),), {"correction": "n"}, DTypeError, "correction must be a number"),
    ]


def _variance(name: str, x: Any, axis: Any, correction: float, keepdims: bool) -> tuple[Any, DType]:
    """The variance as computed, and the dtype that it is to have."""
    x = _inexact(name, x)
    if not isinstance(correction, (int, float)):
        raise DTypeError(f"{name}: correction must be a number, got {correction!r}.")
    axes = normalise_axes(name, axis, x._aval.ndim)
    dtype, x = x._aval.dtype.real, _wide(x)
    count = size_of(x._aval.shape[d] for d in axes)
    centred = x - mean(x, axis=axes, keepdims=True)
    squares = real(centred * conj(centred)) if x._aval.dtype.is_complex else centred * centred
    degrees = count - correction
    total = sum(squares, axis=axes, keepdims=keepdims)
    return total / float(degrees if degrees > 0 else 0), dtype


def safe_sqrt(x: Any) -> Any:
    """The square root whose derivatives at 0 are 0."""
    zero = x == 0.0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


@composite(
    oracle=_spread_oracle(np.positive),
    samples=_spread_samples,
    errors=_spread_errors,
    methods=("var",),
)
def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The sum of squared distances to the mean along `axis` (None: all), over n - `correction`.

    >>> pb.var(pb.tensor([1.0, 2.0, 6.0]), correction=1)
    tensor(7., float32, cpu)
    """
    value, dtype = _variance("var", x, axis, correction, keepdims)
    return astype(value, dtype)


@composite(
    oracle=_spread_oracle(np.sqrt),
    samples=_spread_samples,
    errors=_spread_errors,
    methods=("std",),
)
def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The standard deviation, the square root of `var`; where it is 0 so is its derivative.

    >>> pb.std(pb.tensor([1.0, 2.0, 3.0]), correction=1)
    tensor(1., float32, cpu)
    """
    value, dtype = _variance("std", x, axis, correction, keepdims)
    return astype(safe_sqrt(value), dtype)


# -- sums of exponentials ------------------------------------------------------------------------


def log_sum_fold(x: Expr) -> Reduction:
    """The accumulators of log(sum(exp(x))): the maximum so far, and the sum of exp(x - maximum)."""
    top, later = acc("a", 0, x.dtype), acc("b", 0, x.dtype)
    total, addend = acc("a", 1, x.dtype), acc("b", 1, x.dtype)
    # equal maxima may both be infinite, where their difference is NaN
    ratio = select(top == later, 1.0, mathfun.exp(-scalar.abs_(top - later)))
    keep = (top >= later) | (top != top)
    combine = (
        select(keep, top, later),
        select(keep, scalar.fma(addend, ratio, total), scalar.fma(total, ratio, addend)),
    )
    identity = (const(-inf, x.dtype), const(0.0, x.dtype))
    return Reduction(identity, (x, const(1.0, x.dtype)), combine, (top + mathfun.log(total),))


def _softmax(x: Any, out: Any) -> Any:
    """exp(x - out), the derivative of log(sum(exp(x))); 0 where the whole sum is empty of mass."""
    return exp(x - where(out == -inf, 0.0, out))


def _logsumexp_vjp(g: Any, x: Any, out: Any, axes: tuple[int, ...]) -> Any:
    return spread(g, x._aval, axes) * _softmax(x, spread(out, x._aval, axes))


def _logsumexp_jvp(t: Any, x: Any, out: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return sum(t * _softmax(x, spread(out, x._aval, axes)), axis=axes, keepdims=keepdims)


@primitive(
    "x",
    infer=lambda x, axes, keepdims: (reduced_shape(x.shape, axes, keepdims), x.dtype),
    lowering=Fold(lambda x, axes, keepdims: log_sum_fold(x)),
    vjp={"x": _logsumexp_vjp},
    jvp={"x": _logsumexp_jvp},
    oracle="scipy.special.logsumexp",
    samples=lambda d: [
        *_samples(d),
        Sample((np.asarray([1000.0, 1000.5, -2000.0]),), order=1),
        Sample((np.asarray([-np.inf, 0.5, -np.inf]),), order=0),
        Sample((np.asarray([-np.inf, -np.inf]),), order=0),
    ],
    errors=lambda d: [
        *axis_errors(d),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "got complex64"),
    ],
    front=1,
)
def logsumexp(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """`log(sum(exp(x)))` along `axis` (None: all axes), without overflow.

    >>> pb.logsumexp(pb.tensor([1000.0, 1000.0]))
    tensor(1000.6932, float32, cpu)
    """
    x = _inexact("logsumexp", x)
    if x._aval.dtype.is_complex:
        raise DTypeError(f"logsumexp: expected a floating dtype, got {x._aval.dtype.name}.")
    axes = normalise_axes("logsumexp", axis, x._aval.ndim)
    return bind(logsumexp.op, x, axes=axes, keepdims=bool(keepdims)) if axes else x


# -- counts and norms ----------------------------------------------------------------------------


@composite(
    oracle=lambda x, *, axis=None, keepdims=False: np.count_nonzero(
        x, axis=axis, keepdims=keepdims
    ),
    samples=lambda d: [
        Sample((d.integers(4, 5, high=2),)),
        Sample((d.integers(4, 5, high=2),), {"axis": 0, "keepdims": True}),
        Sample((d.mask(3, 2),), {"axis": -1}),
    ],
    errors=axis_errors,
    differentiable=False,
)
def count_nonzero(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    """How many elements along `axis` (None: all axes) are not 0.

    >>> pb.count_nonzero(pb.tensor([[0, 3], [2, 1]]), axis=0)
    tensor([1, 2], int64, cpu)
    """
    x = as_array(x, "count_nonzero")
    axes = normalise_axes("count_nonzero", axis, x._aval.ndim)
    return sum(x != 0, axis=axes, keepdims=keepdims)


def powers(size: Any, p: float) -> Any:
    """`size ** p`, whose derivatives at 0 are 0 where they would be infinite."""
    if p >= 2 and p == int(p):
        return size ** int(p)
    zero = size == 0.0
    return where(zero, 0.0 if p > 0 else inf, where(zero, 1.0, size) ** float(p))
