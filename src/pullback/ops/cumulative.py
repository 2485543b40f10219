"""Running sums, products and extrema along an axis, and differences."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar
from pullback.ir.convert import as_array
from pullback.ir.convert import scalar as number
from pullback.ir.lowering import Fold, Reduction
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr, select
from pullback.ops.exponential import exp
from pullback.ops.extrema import lowest, ordered, search_key
from pullback.ops.families import composite, normalise_axis, primitive
from pullback.ops.indexing import take_along_axis
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.parts import astype, cc
from pullback.ops.recurrences import along_last, recurrence, shifted
from pullback.ops.reductions import joined, prod_fold, sum_fold, wide_sum_dtype
from pullback.ops.selection import where
from pullback.ops.statistics import log_sum_fold

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff",
    "logcumsumexp",
]  # fmt: skip


# -- what they share -----------------------------------------------------------------------------


def _prepared(name: str, x: Any, axis: Any, dtype: Any = None) -> tuple[Any, int]:
    """The operand, flattened if the axis is None, and the axis."""
    x = as_array(x, name)
    if dtype is not None:
        x = astype(x, as_dtype(dtype, name))
    if axis is None:
        return reshape(x, (x._aval.size,)), 0
    return x, normalise_axis(name, axis, x._aval.ndim)


def _narrowed(x: Any, dtype: Any) -> Any:
    return x if dtype is None else astype(x, as_dtype(dtype))


def _running_infer(x: Aval, axis: int, reverse: bool) -> tuple[tuple[int, ...], DType]:
    return x.shape, wide_sum_dtype(x.dtype)


def _axis_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(2, 3),), {"axis": 0.5}, DTypeError, "axis must be an integer"),
        Bad((object(),), {"axis": 0}, DTypeError, "expected an array"),
    ]


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(5),), {"axis": 0}),
        Sample((d.real(3, 4),), {"axis": 0}),
        Sample((d.real(2, 3, 2),), {"axis": -2}),
        Sample((d.real(0, 3),), {"axis": 0}),
        Sample((d.real(1),), {"axis": 0}),
    ]


def _total_samples(d: Draw) -> list[Sample]:
    return [
        *_samples(d),
        Sample((d.real(2, 2),)),
        Sample((d.real(2, 4),), {"axis": 1, "reverse": True}),
        Sample((d.integers(6, low=-3, high=4, dtype=np.int8),), {"axis": 0}),
        Sample((d.mask(5),), {"axis": 0}),
        Sample((d.integers(5, dtype=np.uint8),), {"axis": 0, "dtype": dt.float64}),
    ]


def _total_oracle(accumulate: Any) -> Callable[..., Any]:
    def oracle(x: Any, axis: Any = None, *, dtype: Any = None, reverse: bool = False) -> Any:
        if dtype is None:
            dtype = wide_sum_dtype(as_dtype(x.dtype))
        exact = {"f": np.float64, "c": np.complex128}.get(dtype.kind, dtype.numpy)
        x = x.reshape(-1) if axis is None else x
        axis = 0 if axis is None else axis
        x = np.flip(x, axis) if reverse else x
        out = accumulate(x.astype(dtype.numpy), axis=axis, dtype=exact).astype(dtype.numpy)
        return np.flip(out, axis) if reverse else out

    return oracle


# -- sums and products ---------------------------------------------------------------------------


@primitive(
    "x",
    infer=_running_infer,
    lowering=Fold(lambda x, axis, reverse: sum_fold(x), keep=True),
    vjp={"x": lambda g, axis, reverse: bind(cumsum.op, g, axis=axis, reverse=not reverse)},
    jvp="linear",
    oracle=_total_oracle(np.cumsum),
    samples=_total_samples,
    errors=_axis_errors,
    methods=("cumsum",),
    front=1,
)
def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None, reverse: bool = False) -> Any:
    """The running sum along `axis` (None: of the flattened array), from the end with `reverse`.

    >>> pb.cumsum(pb.tensor([1.0, 2.0, 3.0]))
    tensor([1., 3., 6.], float32, cpu)
    """
    x, axis = _prepared("cumsum", x, axis, dtype)
    return _narrowed(bind(cumsum.op, x, axis=axis, reverse=bool(reverse)), dtype)


def _cumprod_vjp(g: Any, x: Any, axis: int, reverse: bool) -> Any:
    """The product before an element, times `s[i] = g[i] + x[i + 1] * s[i + 1]`: no division."""

    def rule(g: Any, x: Any) -> Any:
        before = shifted(bind(cumprod.op, x, axis=x._aval.ndim - 1, reverse=False), 1)
        after = recurrence(shifted(x[..., ::-1], 1), g[..., ::-1])[..., ::-1]
        return before * after

    return along_last(rule, axis, reverse, g, cc(x))


def _cumprod_jvp(t: Any, x: Any, axis: int, reverse: bool) -> Any:
    def rule(t: Any, x: Any) -> Any:
        before = shifted(bind(cumprod.op, x, axis=x._aval.ndim - 1, reverse=False), 1)
        return recurrence(x, t * before)

    return along_last(rule, axis, reverse, t, x)


@primitive(
    "x",
    infer=_running_infer,
    lowering=Fold(lambda x, axis, reverse: prod_fold(x), keep=True),
    vjp={"x": _cumprod_vjp},
    jvp={"x": _cumprod_jvp},
    oracle=_total_oracle(np.cumprod),
    samples=lambda d: [
        *_total_samples(d),
        Sample((np.asarray([2.0, 0.0, 3.0, 0.0, 1.5]),), {"axis": 0}),
        Sample((np.asarray([0.0, 0.0]),), {"axis": 0, "reverse": True}),
    ],
    errors=_axis_errors,
    methods=("cumprod",),
    front=1,
)
def cumprod(x: Any, /, axis: int | None = None, *, dtype: Any = None, reverse: bool = False) -> Any:
    """The running product along `axis` (None: of the flattened array), from the end with `reverse`.

    Its derivatives are right where elements are zero.

    >>> pb.cumprod(pb.tensor([1.0, 2.0, 3.0]))
    tensor([1., 2., 6.], float32, cpu)
    """
    x, axis = _prepared("cumprod", x, axis, dtype)
    return _narrowed(bind(cumprod.op, x, axis=axis, reverse=bool(reverse)), dtype)


def _standard(
    name: str, running: Any, first: int, x: Any, axis: Any, dtype: Any, include_initial: bool
) -> Any:
    """The Array API's form of a running sum or product."""
    x = as_array(x, name)
    if axis is None and x._aval.ndim != 1:
        raise ShapeError(
            f"{name}: an array with {x._aval.ndim} dimensions needs an axis, got None."
        )
    axis = normalise_axis(name, 0 if axis is None else axis, x._aval.ndim)
    out = running(x, axis, dtype=dtype)
    if not include_initial:
        return out
    shape = tuple(1 if d == axis else n for d, n in enumerate(out._aval.shape))
    start = broadcast_to(number(first, out._aval.dtype, out._aval.device), shape)
    return concat([start, out], axis=axis)


def _standard_oracle(accumulate: Any, first: int) -> Callable[..., Any]:
    def oracle(
        x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
    ) -> Any:
        out = _total_oracle(accumulate)(x, 0 if axis is None else axis, dtype=dtype)
        if include_initial:
            start = np.full_like(np.take(out, [], axis=axis or 0), first)
            shape = [1 if d == (axis or 0) % x.ndim else n for d, n in enumerate(out.shape)]
            out = np.concatenate([np.full(shape, first, start.dtype), out], axis=axis or 0)
        return out

    return oracle


def _standard_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(4),)),
        Sample((d.real(2, 3),), {"axis": -1, "include_initial": True}),
        Sample((d.real(2, 3),), {"axis": 0, "include_initial": True}),
        Sample((d.integers(4, dtype=np.int16),), {"dtype": dt.int32}),
    ]


def _standard_errors(d: Draw) -> list[Bad]:
    return [*_axis_errors(d), Bad((d.real(2, 3),), {}, ShapeError, "needs an axis")]


@composite(
    oracle=_standard_oracle(np.cumsum, 0), samples=_standard_samples, errors=_standard_errors
)
def cumulative_sum(
    x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The running sum along `axis`, with a 0 first if `include_initial`; 1-D arrays need no axis.

    >>> pb.cumulative_sum(pb.tensor([1.0, 2.0, 3.0]), include_initial=True)
    tensor([0., 1., 3., 6.], float32, cpu)
    """
    return _standard("cumulative_sum", cumsum, 0, x, axis, dtype, include_initial)


@composite(
    oracle=_standard_oracle(np.cumprod, 1), samples=_standard_samples, errors=_standard_errors
)
def cumulative_prod(
    x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The running product along `axis`, after a 1 if `include_initial`; 1-D arrays need no axis.

    >>> pb.cumulative_prod(pb.tensor([1.0, 2.0, 3.0]), include_initial=True)
    tensor([1., 1., 2., 6.], float32, cpu)
    """
    return _standard("cumulative_prod", cumprod, 1, x, axis, dtype, include_initial)


# -- extrema -------------------------------------------------------------------------------------


def _running_position_fold(x: Expr, axis: int, reverse: bool, sense: int) -> Reduction:
    key = search_key(x, sense)

    def pick(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        earlier = a[0] > b[0]
        return select(earlier, a[0], b[0]), select(earlier, a[1], b[1])

    fold = joined((key, scalar.index()), (lowest(key.dtype), scalar.const(0, dt.int64)), pick)
    return fold._replace(finish=fold.finish[1:])


def _running_position_oracle(x: Any, axis: int, sense: int = 1) -> Any:
    rows = np.moveaxis(x, axis, -1)
    out = np.zeros(rows.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        best = 0
        for i, v in enumerate(rows[at]):
            top = rows[at][best]
            if v != v or (top == top and v * sense >= top * sense):
                best = i
            out[(*at, i)] = best
    return np.moveaxis(out, -1, axis)


@primitive(
    "x",
    infer=lambda x, axis, reverse, sense: (x.shape, dt.int64),
    lowering=Fold(_running_position_fold, keep=True),
    no_gradient="positions are integers",
    oracle=_running_position_oracle,
    samples=lambda d: [
        Sample((d.distinct(5), 0)),
        Sample((d.distinct(3, 4), -2), {"sense": -1}),
        Sample((d.integers(3, 9, high=4), 1)),
        Sample((np.asarray([1.0, np.nan, 2.0, np.nan, 3.0]), 0)),
        Sample((np.asarray([-np.inf, -np.inf, 1.0, 1.0]), 0)),
    ],
    errors=lambda d: [Bad((d.real(2), 1), {}, ShapeError, "axis 1 is out of range")],
    namespace="primitive",
    front=1,
)
def running_position(x: Any, /, axis: int, *, sense: int = 1) -> Any:
    """Where the maximum (`sense` 1) or minimum (-1) so far was last attained along `axis`.

    >>> pb.primitive.running_position(pb.tensor([1.0, 3.0, 2.0, 3.0]), 0)
    tensor([0, 1, 1, 3], int64, cpu)
    """
    x = ordered("running_position", x)
    axis = normalise_axis("running_position", axis, x._aval.ndim)
    return bind(running_position.op, x, axis=axis, reverse=False, sense=sense)


def _running_extremum(name: str, x: Any, axis: Any, sense: int) -> Any:
    x = ordered(name, x)
    axis = normalise_axis(name, axis, x._aval.ndim)
    where_from = bind(running_position.op, x, axis=axis, reverse=False, sense=sense)
    return take_along_axis(x, where_from, axis=axis)


def _extremum_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(6),), {"axis": 0}),
        Sample((d.distinct(3, 4),), {"axis": -1}),
        Sample((d.distinct(3, 4),), {"axis": 0}),
        Sample((d.integers(3, 9, high=4),), {"axis": 1}),
        Sample((np.asarray([1.0, np.nan, 2.0]),), {"axis": 0}, order=0),
    ]


def _extremum_errors(d: Draw) -> list[Bad]:
    bad = Bad((np.ones(2, np.complex64),), {"axis": 0}, DTypeError, "no order")
    return [*_axis_errors(d), bad]


@composite(
    oracle=lambda x, axis: np.maximum.accumulate(x, axis=axis),
    samples=_extremum_samples,
    errors=_extremum_errors,
)
def cummax(x: Any, /, axis: int) -> Any:
    """The maximum so far along `axis`, NaN from the first NaN on.

    The latest of the elements that tie for it gets its derivative.

    >>> pb.cummax(pb.tensor([1.0, 3.0, 2.0]), 0)
    tensor([1., 3., 3.], float32, cpu)
    """
    return _running_extremum("cummax", x, axis, 1)


@composite(
    oracle=lambda x, axis: np.minimum.accumulate(x, axis=axis),
    samples=_extremum_samples,
    errors=_extremum_errors,
)
def cummin(x: Any, /, axis: int) -> Any:
    """The minimum so far along `axis`, NaN from the first NaN on.

    The latest of the elements that tie for it gets its derivative.

    >>> pb.cummin(pb.tensor([2.0, 3.0, 1.0]), 0)
    tensor([2., 2., 1.], float32, cpu)
    """
    return _running_extremum("cummin", x, axis, -1)


# -- sums of exponentials ------------------------------------------------------------------------


def _finite_base(y: Any) -> Any:
    """Totals to subtract: an empty one (-inf) is replaced by 0, since -inf - -inf is NaN."""
    return where(y == -inf, 0.0, y)


def _logcumsumexp_vjp(g: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    """`exp(x[i] - y[i]) * s[i]`, with `s[i] = g[i] + exp(y[i] - y[i + 1]) * s[i + 1]`.

    Totals grow along the axis, so that no factor exceeds 1.
    """

    def rule(g: Any, x: Any, y: Any) -> Any:
        base = _finite_base(y)
        back = base[..., ::-1]
        step = exp(y[..., ::-1] - shifted(back, inf))
        return exp(x - base) * recurrence(step, g[..., ::-1])[..., ::-1]

    return along_last(rule, axis, reverse, g, x, out)


def _logcumsumexp_jvp(t: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    def rule(t: Any, x: Any, y: Any) -> Any:
        base = _finite_base(y)
        return recurrence(exp(shifted(y, -inf) - base), t * exp(x - base))

    return along_last(rule, axis, reverse, t, x, out)


def _logcumsumexp_oracle(x: Any, axis: int, *, reverse: bool = False) -> Any:
    wide = np.flip(x, axis).astype(np.float64) if reverse else x.astype(np.float64)
    out = np.logaddexp.accumulate(wide, axis=axis).astype(x.dtype)
    return np.flip(out, axis) if reverse else out


@primitive(
    "x",
    infer=lambda x, axis, reverse: (x.shape, x.dtype),
    lowering=Fold(lambda x, axis, reverse: log_sum_fold(x), keep=True),
    vjp={"x": _logcumsumexp_vjp},
    jvp={"x": _logcumsumexp_jvp},
    oracle=_logcumsumexp_oracle,
    samples=lambda d: [
        *_samples(d),
        Sample((d.real(2, 4),), {"axis": 1, "reverse": True}),
        Sample((np.asarray([-np.inf, 0.5, -np.inf, 1.0]),), {"axis": 0}, order=0),
        Sample((np.asarray([1000.0, 1001.0, -1000.0]),), {"axis": 0}, order=1),
    ],
    errors=lambda d: [
        *_axis_errors(d),
        Bad((np.ones(2, np.complex64),), {"axis": 0}, DTypeError, "got complex64"),
    ],
    front=1,
)
def logcumsumexp(x: Any, /, axis: int, *, reverse: bool = False) -> Any:
    """The running `log(sum(exp(x)))` along `axis`, from the end with `reverse`, without overflow.

    >>> pb.logcumsumexp(pb.tensor([1000.0, 1000.0]), 0)
    tensor([1000.    , 1000.6932], float32, cpu)
    """
    x, axis = _prepared("logcumsumexp", x, axis)
    if x._aval.dtype.is_complex:
        raise DTypeError(f"logcumsumexp: expected a floating dtype, got {x._aval.dtype.name}.")
    if not x._aval.dtype.is_float:
        x = astype(x, default_float())
    return bind(logcumsumexp.op, x, axis=axis, reverse=bool(reverse))


# -- differences ---------------------------------------------------------------------------------


def _diff_oracle(x: Any, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None):
    extra = {k: v for k, v in (("prepend", prepend), ("append", append)) if v is not None}
    return np.diff(x, n=n, axis=axis, **extra)


@composite(
    oracle=_diff_oracle,
    samples=lambda d: [
        Sample((d.real(5),)),
        Sample((d.real(3, 4),), {"axis": 0}),
        Sample((d.real(2, 5),), {"n": 2}),
        Sample((d.real(2),), {"n": 3}),
        Sample((d.real(2, 3),), {"prepend": d.real(2, 1), "append": d.real(2, 2)}),
        Sample((d.mask(5),)),
        Sample((d.real(3),), {"n": 0}),
        Sample((d.real(3),), {"n": 0, "append": d.real(2)}),
    ],
    errors=lambda d: [
        *_axis_errors(d),
        Bad((d.real(3),), {"n": -1}, ShapeError, "n must be"),
        Bad((d.real(),), {}, ShapeError, "out of range"),
    ],
)
def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """The `n`-th differences `x[i + 1] - x[i]` along `axis`, of `prepend`, `x` and `append` joined
    (with `n=0` it is `x`).

    >>> pb.diff(pb.tensor([1.0, 4.0, 9.0]))
    tensor([3., 5.], float32, cpu)
    """
    x = as_array(x, "diff")
    axis = normalise_axis("diff", axis, x._aval.ndim)
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ShapeError(f"diff: n must be a non-negative integer, got {n!r}.")
    if n == 0:
        return x
    parts = [as_array(p, "diff") for p in (prepend, x, append) if p is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    lead = (slice(None),) * axis
    for _ in range(n):
        later, earlier = x[(*lead, slice(1, None))], x[(*lead, slice(None, -1))]
        x = later != earlier if x._aval.dtype is dt.bool_ else later - earlier
    return x
