"""Reading and writing at computed positions: `gather`, and the scatters that are its counterparts.

All of them share one form. `x` has k indexed axes and then the rest r. The k index arrays have the
rank of the rows i and the rest together, and broadcast over both:

    gather       out[i, r] = x[idx_1[i, r], ..., idx_k[i, r], r]
    scatter_*    out = x, then updates[i, r] is folded into out[idx_1[i, r], ..., idx_k[i, r], r],
                 in row-major order of (i, r)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType, promote
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.lowering import GatherRows, ScatterRows
from pullback.ir.op import REGISTRY, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Value, select
from pullback.ops.creation import constant
from pullback.ops.families import broadcast_shapes, primitive
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.parts import astype, cc
from pullback.ops.ranges import positions
from pullback.ops.selection import maximum, where

__all__ = ["gather", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_set"]

Inferred = tuple[tuple[int, ...], DType]


def _gather_infer(x: Aval, *indices: Aval) -> Inferred:
    rest = x.shape[len(indices) :]
    lead = indices[0].ndim - len(rest)
    return broadcast_shapes("gather", *[i.shape for i in indices])[:lead] + rest, x.dtype


def _zeros(av: Aval) -> Any:
    return constant(0, av.shape, av.dtype, av.device)


def _gather_vjp(g: Any, x_aval: Aval, indices: tuple) -> Any:
    return bind(scatter_add.op, _zeros(x_aval), g, *indices)


def _gather_oracle(x: np.ndarray, *indices: np.ndarray) -> np.ndarray:
    return x[_numpy_key(x, indices)]


def _numpy_key(x: np.ndarray, indices: Sequence[np.ndarray]) -> tuple:
    """The same positions for NumPy, with the rest of the axes spelled out."""
    rest = np.indices(x.shape[len(indices) :], sparse=True)
    lead = indices[0].ndim - len(rest)
    spread = [np.reshape(r, (1,) * lead + r.shape) for r in rest]
    return (*indices, *spread)


def _gather_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(4), np.array([1, 1, 1, 2, -4]))),
        Sample((d.real(4, 3), np.array([[2], [0], [2]]))),
        Sample((d.real(4, 3), np.array([[2, 0, 1], [0, 0, -1]], np.int8))),
        Sample((d.real(4, 3), np.array([3, 0, 3, 3]), np.array([2, 1, 2, 2], np.uint8))),
        Sample((d.real(3, 2, 2), np.array([[[[2]], [[0]]]]), np.array([[[[1]]], [[[0]]]]))),
        Sample((d.real(4, 2), np.zeros((0, 1), np.int64))),
        Sample((d.real(3), np.array(2))),
    ]


def _index_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(4), np.array([0, 4])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(4), np.array([-5])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(4), d.real(2)), {}, DTypeError, "integer"),
        Bad((d.real(4, 3, 2), np.array([0])), {}, ShapeError, "rank"),
        Bad((d.real(4, 3), np.zeros((2, 2), np.int64)), {}, ShapeError, "broadcast"),
    ]


@primitive(
    "x *indices",
    infer=_gather_infer,
    lowering=GatherRows(),
    vjp={"x": _gather_vjp},
    jvp="linear",
    oracle=_gather_oracle,
    samples=_gather_samples,
    errors=_index_errors,
    namespace="primitive",
)
def gather(x: Any, /, *indices: Any) -> Any:
    """`x` read at the positions that integer arrays give; negative ones count from the end.

    >>> pb.primitive.gather(pb.tensor([5, 6, 7]), pb.tensor([2, 0, -1]))
    tensor([7, 5, 7], int64, cpu)
    """
    x = as_array(x, "gather")
    return bind(gather.op, x, *checked_indices("gather", x._aval, indices)[0])


def checked_indices(
    name: str, x: Aval, indices: Sequence[Any]
) -> tuple[list[Any], tuple[int, ...]]:
    """The index arrays, and the shape that they select from `x`."""
    arrays = [as_array(i, name, dev=x.device) for i in indices]
    if not 1 <= len(arrays) <= x.ndim:
        raise ShapeError(f"{name}: takes 1 to {x.ndim} index arrays here, got {len(arrays)}.")
    for i in arrays:
        if not i._aval.dtype.is_integer:
            raise DTypeError(f"{name}: indices must be integer arrays, got {i._aval.dtype.name}.")
    rest = x.shape[len(arrays) :]
    ranks = {i._aval.ndim for i in arrays}
    rank = ranks.pop()
    if ranks or rank < len(rest):
        raise ShapeError(
            f"{name}: index arrays must share one rank that covers the {len(rest)} axes"
            f" left alone, got {[i._aval.shape for i in arrays]}."
        )
    lead = rank - len(rest)
    whole = broadcast_shapes(name, *[i._aval.shape for i in arrays])
    if any(n not in (1, m) for n, m in zip(whole[lead:], rest, strict=True)):
        raise ShapeError(f"{name}: indices of shape {whole} do not broadcast over rows {rest}.")
    return arrays, whole[:lead] + rest


# -- scatter ---------------------------------------------------------------------------------------


def scatter_infer(x: Aval, updates: Aval, *indices: Aval) -> Inferred:
    return x.shape, x.dtype


def scatter_oracle(fold: Callable[..., Any]) -> Callable[..., Any]:
    def oracle(x: np.ndarray, updates: np.ndarray, *indices: np.ndarray) -> np.ndarray:
        out = np.array(x)
        key = [np.broadcast_to(k, updates.shape) for k in _numpy_key(x, indices)]
        for place in np.ndindex(updates.shape):
            at = tuple(int(k[place]) for k in key)
            out[at] = fold(out[at], updates[place])
        return out

    return oracle


def scatter_samples(order: int) -> Callable[[Draw], list[Sample]]:
    def samples(d: Draw) -> list[Sample]:
        twice = np.array([1, 1, 1, 2, -4])
        rows = np.array([[2], [0], [2]])
        each = np.array([[2, 0, 1], [0, 0, -1]], np.int8)
        pair = (np.array([3, 0, 3, 3]), np.array([2, 1, 2, 2], np.uint8))
        cases = [
            ((4,), (5,), (twice,)),
            ((4, 3), (3, 3), (rows,)),
            ((4, 3), (2, 3), (each,)),
            ((4, 3), (4,), pair),
            ((3, 2), (0, 2), (np.zeros((0, 1), np.int64),)),
            ((3,), (), (np.array(2),)),
        ]
        drawn = []
        for x, u, indices in cases:
            values = d.distinct(prod(x) + prod(u))  # all apart: no ties between x and updates
            both = values[: prod(x)].reshape(x), values[prod(x) :].reshape(u)
            drawn.append(Sample((*both, *indices), order=order))
        return drawn

    return samples


def scatter_errors(d: Draw) -> list[Bad]:
    i = np.array([0, 3])
    return [
        Bad((d.real(4), d.real(2), np.array([0, 4])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(4), d.real(3), i), {}, ShapeError, "updates"),
        Bad((d.real(4), d.integers(2), i), {}, DTypeError, "same dtype"),
        Bad((d.real(4), d.real(2), d.real(2)), {}, DTypeError, "integer"),
    ]


def scattered(op: Any, x: Any, updates: Any, indices: Sequence[Any]) -> Any:
    name = op.name
    x = as_array(x, name)
    updates = as_array(updates, name, dev=x._aval.device)
    if x._aval.dtype is not updates._aval.dtype:
        raise DTypeError(
            f"{name}: operands need the same dtype, got {x._aval} and {updates._aval}."
        )
    arrays, shape = checked_indices(name, x._aval, indices)
    if updates._aval.shape != shape:
        raise ShapeError(
            f"{name}: updates must have the shape of what is selected, {shape},"
            f" got {updates._aval.shape}."
        )
    return bind(op, x, updates, *arrays)


def add(a: Any, b: Any) -> Value:
    return a + b if isinstance(a, Complex) or a.dtype.kind != "b" else a | b


@primitive(
    "x updates *indices",
    infer=scatter_infer,
    lowering=ScatterRows(add, sums=True),
    vjp={
        "x": lambda g: g,
        "updates": lambda g, indices: bind(gather.op, g, *indices),
    },
    jvp="linear",
    oracle=scatter_oracle(np.add),
    samples=scatter_samples(3),
    errors=scatter_errors,
    namespace="primitive",
)
def scatter_add(x: Any, updates: Any, /, *indices: Any) -> Any:
    """`x` with the updates added at the positions given; sums are taken in order, always the same.

    >>> pb.primitive.scatter_add(pb.tensor([0, 0, 0]), pb.tensor([1, 2, 4]), pb.tensor([1, 1, 2]))
    tensor([0, 3, 4], int64, cpu)
    """
    return scattered(scatter_add.op, x, updates, indices)


def _survivors(x: Aval, updates: Aval, indices: Sequence[Any]) -> Any:
    """Which updates are still there after all were written: the last one at each place."""
    k = len(indices)
    lead = updates.ndim - (x.ndim - k)
    places, rows = x.shape[k:], updates.shape[lead:]
    if all(n == 1 for i in indices for n in i._aval.shape[lead:]):
        places = rows = (1,) * len(rows)  # whole rows are written: one decision for each
    shape = updates.shape[:lead] + rows
    order = reshape(positions(prod(shape), x.device), shape)
    table = constant(0, x.shape[:k] + places, dt.int64, x.device)
    last = bind(scatter_set.op, table, order, *indices)
    return bind(gather.op, last, *indices) == order


def _set_x_vjp(g: Any, updates_aval: Aval, indices: tuple) -> Any:
    return bind(scatter_set.op, g, _zeros(updates_aval), *indices)


def _set_updates_vjp(g: Any, x_aval: Aval, updates_aval: Aval, indices: tuple) -> Any:
    return where(_survivors(x_aval, updates_aval, indices), bind(gather.op, g, *indices), 0.0)


@primitive(
    "x updates *indices",
    infer=scatter_infer,
    lowering=ScatterRows(lambda a, b: b),
    vjp={
        "x": _set_x_vjp,
        "updates": _set_updates_vjp,
    },
    jvp="linear",
    oracle=scatter_oracle(lambda a, b: b),
    samples=scatter_samples(3),
    errors=scatter_errors,
    namespace="primitive",
)
def scatter_set(x: Any, updates: Any, /, *indices: Any) -> Any:
    """`x` with the updates written at the positions given; the last of several writes stays.

    >>> pb.primitive.scatter_set(pb.tensor([0, 0, 0]), pb.tensor([1, 2, 4]), pb.tensor([1, 1, 2]))
    tensor([0, 2, 4], int64, cpu)
    """
    return scattered(scatter_set.op, x, updates, indices)


# -- extrema: the derivative is shared evenly among all that attain the result ---------------------


def _larger(a: Any, b: Any) -> Any:
    return a | b if a.dtype.kind == "b" else select((b > a) | (b != b), b, a)


def _smaller(a: Any, b: Any) -> Any:
    return a & b if a.dtype.kind == "b" else select((b < a) | (b != b), b, a)


def _shares(x: Any, updates: Any, out: Any, indices: tuple) -> tuple[Any, Any, Any]:
    """Which elements of x and of updates attain the result, and one over their number there."""
    dtype = x._aval.dtype
    counting = promote(dtype, dt.float32)  # a half can't count beyond 2048
    from_x, from_updates = x == out, updates == bind(gather.op, out, *indices)
    count = bind(scatter_add.op, astype(from_x, counting), astype(from_updates, counting), *indices)
    share = astype(1.0 / maximum(count, 1.0), dtype)
    return astype(from_x, dtype), astype(from_updates, dtype), share


def _extremum_x_vjp(g: Any, x: Any, updates: Any, out: Any, indices: tuple) -> Any:
    from_x, _, share = _shares(x, updates, out, indices)
    return g * share * from_x


def _extremum_updates_vjp(g: Any, x: Any, updates: Any, out: Any, indices: tuple) -> Any:
    _, from_updates, share = _shares(x, updates, out, indices)
    return bind(gather.op, g * share, *indices) * from_updates


def _ordered(op: Any, x: Any, updates: Any, indices: Sequence[Any]) -> Any:
    x = as_array(x, op.name)
    if x._aval.dtype.is_complex:
        raise DTypeError(f"{op.name}: complex numbers have no order, got {x._aval.dtype.name}.")
    return scattered(op, x, updates, indices)


_EXTREMUM = {
    "infer": scatter_infer,
    "vjp": {"x": _extremum_x_vjp, "updates": _extremum_updates_vjp},
    "jvp": "transpose",
    "samples": scatter_samples(3),
    "errors": lambda d: [
        *scatter_errors(d),
        Bad((np.ones(2, complex), np.ones(1, complex), np.array([0])), {}, DTypeError, "order"),
    ],
    "namespace": "primitive",
}


@primitive(
    "x updates *indices",
    lowering=ScatterRows(_larger, fold="max"),
    oracle=scatter_oracle(np.maximum),
    **_EXTREMUM,
)
def scatter_max(x: Any, updates: Any, /, *indices: Any) -> Any:
    """The largest of `x` and the updates at each place; a NaN wins.

    >>> pb.primitive.scatter_max(pb.tensor([3, 0, 0]), pb.tensor([1, 2, 4]), pb.tensor([0, 1, 1]))
    tensor([3, 4, 0], int64, cpu)
    """
    return _ordered(scatter_max.op, x, updates, indices)


@primitive(
    "x updates *indices",
    lowering=ScatterRows(_smaller, fold="min"),
    oracle=scatter_oracle(np.minimum),
    **_EXTREMUM,
)
def scatter_min(x: Any, updates: Any, /, *indices: Any) -> Any:
    """The smallest of `x` and the updates at each place; a NaN wins.

    >>> pb.primitive.scatter_min(pb.tensor([3, 9, 9]), pb.tensor([1, 2, 4]), pb.tensor([0, 1, 1]))
    tensor([1, 2, 9], int64, cpu)
    """
    return _ordered(scatter_min.op, x, updates, indices)


# -- products: never divided by a factor, so that zeros are like any other number ------------------


def _mul(a: Any, b: Any) -> Value:
    return a * b if isinstance(a, Complex) or a.dtype.kind != "b" else a & b


def _targets(x: Aval, updates: Aval, indices: Sequence[Any]) -> Any:
    """The row-major position in `x` that each element of updates goes to, as a 1-D array."""
    k = len(indices)
    strides = dense_strides(x.shape)
    total: Any = 0
    for i, n, s in zip(indices, x.shape, strides, strict=False):
        i = astype(i, dt.int64)
        total = where(i < 0, i + n, i) * s + total
    for d in range(k, x.ndim):
        along = reshape(positions(x.shape[d], x.device), (-1,) + (1,) * (x.ndim - 1 - d))
        total = total + along * strides[d]
    return reshape(broadcast_to(total, updates.shape), (-1,))


def _products_before(u: Any, group: Any) -> Any:
    """For each element of a 1-D array sorted by group, the product of those before it there."""
    size = u._aval.size
    one = constant(1, (1,), u._aval.dtype, u._aval.device)
    same = group[1:] == group[:-1]
    result = concat([one, where(same, u[:-1], 1.0)])
    step = 1
    while step < size:  # doubles the reach of each product, as far as its group goes
        same = group[step:] == group[:-step]
        longer = result[step:] * where(same, result[:-step], 1.0)
        result = concat([result[:step], longer])
        step *= 2
    return result


def _products_of_others(x: Aval, updates: Any, indices: Sequence[Any]) -> Any:
    """For each update the product of all other updates of the same place."""
    if updates._aval.size < 2:
        return constant(1, updates._aval.shape, updates._aval.dtype, updates._aval.device)
    target = _targets(x, updates._aval, indices)
    order = REGISTRY["argsort"].function(target, stable=True)
    u = bind(gather.op, reshape(updates, (-1,)), order)
    group = bind(gather.op, target, order)
    before = _products_before(u, group)
    after = _products_before(u[::-1], group[::-1])[::-1]
    count = positions(u._aval.size, x.device)
    back = bind(scatter_set.op, count, count, order)
    return reshape(bind(gather.op, before * after, back), updates._aval.shape)


def _mul_x_vjp(g: Any, x_aval: Aval, updates: Any, indices: tuple) -> Any:
    one = constant(1, x_aval.shape, x_aval.dtype, x_aval.device)
    return g * cc(bind(scatter_mul.op, one, updates, *indices))


def _mul_updates_vjp(g: Any, x: Any, updates: Any, indices: tuple) -> Any:
    others = _products_of_others(x._aval, updates, indices)
    return bind(gather.op, g * cc(x), *indices) * cc(others)


def _mul_samples(d: Draw) -> list[Sample]:
    zeros = d.positive(5)
    zeros[[0, 2]] = 0.0
    return [
        *scatter_samples(3)(d),
        Sample((d.real(4), zeros, np.array([1, 1, 1, 2, 2]))),
    ]


@primitive(
    "x updates *indices",
    infer=scatter_infer,
    lowering=ScatterRows(_mul, fold="mul"),
    vjp={"x": _mul_x_vjp, "updates": _mul_updates_vjp},
    jvp="transpose",
    oracle=scatter_oracle(np.multiply),
    samples=_mul_samples,
    errors=scatter_errors,
    namespace="primitive",
)
def scatter_mul(x: Any, updates: Any, /, *indices: Any) -> Any:
    """`x` multiplied by the updates at the positions given.

    >>> pb.primitive.scatter_mul(pb.tensor([2, 2, 2]), pb.tensor([3, 4, 5]), pb.tensor([1, 1, 2]))
    tensor([ 2, 24, 10], int64, cpu)
    """
    return scattered(scatter_mul.op, x, updates, indices)
