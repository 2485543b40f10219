"""Writing elements by index: named functions over the scatters. Each returns a new array.

`scatter` is the counterpart of `take`, and `put_along_axis` that of `take_along_axis`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import promote
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, is_number
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops import gather_scatter
from pullback.ops.creation import constant
from pullback.ops.exact_sums import scatter_add_exact
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.index_plans import as_indices
from pullback.ops.indexing import along_axis, bind_named, from_front, to_front
from pullback.ops.movement import broadcast_to, permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype

__all__ = ["index_add", "put", "put_along_axis", "scatter", "scatter_add", "scatter_along"]


_OPS = {
    "set": gather_scatter.scatter_set,
    "add": gather_scatter.scatter_add,
    "add_exact": scatter_add_exact,
    "max": gather_scatter.scatter_max,
    "min": gather_scatter.scatter_min,
    "mul": gather_scatter.scatter_mul,
    "mean": gather_scatter.scatter_add,
}
_FOLDS: dict[str, Callable[..., Any]] = {
    "set": lambda a, b: b,
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "mean": np.add,
}


def _without_self(name: str, mode: str, x: Any, updates: Any, *indices: Any) -> Any:
    """The array with the element that changes nothing at every place that an update goes to."""
    dtype = x._aval.dtype
    if mode not in _OPS or mode == "set":
        return x
    if mode in ("max", "min") and not dtype.is_complex:
        neutral: Any = -inf if mode == "max" else inf
        if dtype is dt.bool_:
            neutral = mode == "min"
        elif not dtype.is_float:
            limits = np.iinfo(dtype.numpy)
            neutral = limits.min if mode == "max" else limits.max
    else:
        neutral = 1 if mode == "mul" else 0
    fill = constant(neutral, updates._aval.shape, dtype, x._aval.device)
    return bind_named(name, gather_scatter.scatter_set.op, x, fill, *indices)


def _folded(
    name: str, mode: str, x: Any, updates: Any, *indices: Any, include_self: bool = True
) -> Any:
    """Scatter in one of the modes; the mean counts the element of `x` too if `include_self`."""
    if mode not in _OPS:
        raise DTypeError(f"{name}: mode must be one of {', '.join(_FOLDS)}, got {mode!r}.")
    op = _OPS[mode].op
    if mode in ("max", "min") and x._aval.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no order, got {x._aval.dtype.name}.")
    if not include_self:
        x = _without_self(name, mode, x, updates, *indices)
    result = bind_named(name, op, x, updates, *indices)
    if mode != "mean":
        return result
    if not x._aval.dtype.is_inexact:
        raise DTypeError(f"{name}: a mean needs a floating dtype, got {x._aval.dtype.name}.")
    counting = promote(x._aval.dtype.real, dt.float32)
    once = constant(1, x._aval.shape, counting, x._aval.device)
    each = constant(1, updates._aval.shape, counting, x._aval.device)
    if not include_self:
        once = _without_self(name, mode, once, each, *indices)
    count = bind(gather_scatter.scatter_add.op, once, each, *indices)
    return result / astype(count, x._aval.dtype)


def _values(name: str, x: Any, updates: Any, shape: tuple[int, ...]) -> Any:
    """The updates in the dtype of `x`, broadcast to the shape of what they replace."""
    _, updates = same_dtype(name, x, updates)
    if promote(x._aval.dtype, updates._aval.dtype) is not x._aval.dtype:
        raise DTypeError(
            f"{name}: updates of dtype {updates._aval.dtype.name} can't be put into an array of"
            f" {x._aval.dtype.name}. Cast one with astype."
        )
    updates = astype(updates, x._aval.dtype)
    if broadcast_shapes(name, updates._aval.shape, shape) != shape:
        raise ShapeError(f"{name}: updates must broadcast to {shape}, got {updates._aval.shape}.")
    return updates if updates._aval.shape == shape else broadcast_to(updates, shape)


def _scatter_oracle(
    x: np.ndarray,
    indices: Any,
    updates: Any,
    axis: int = 0,
    mode: str = "set",
    include_self: bool = True,
) -> np.ndarray:
    indices = np.asarray(indices)
    axis %= x.ndim
    out = np.moveaxis(x, axis, 0).copy()
    count = np.ones(out.shape)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    updates = np.broadcast_to(updates, shape)
    rows = np.moveaxis(updates, range(axis, axis + indices.ndim), range(indices.ndim))
    seen: set[int] = set()
    for place in np.ndindex(indices.shape):
        i = indices[place] % x.shape[axis]
        fresh = not include_self and i not in seen
        out[i] = rows[place] if fresh else _FOLDS[mode](out[i], rows[place])
        count[i] += 0 if fresh else 1
        seen.add(i)
    return np.moveaxis((out / count).astype(x.dtype) if mode == "mean" else out, 0, axis)


def _scatter_samples(d: Draw) -> list[Sample]:
    i = np.array([2, 0, -1, 2])
    x, u = d.distinct(6, 2)[:3], d.distinct(9, 2)[5:]
    modes = [m for m in _FOLDS if d.dtype.kind != "c" or m not in ("max", "min")]
    cases = [Sample((x, i, u), {"mode": m}) for m in modes]
    return [
        *cases,
        Sample((d.real(2, 3), i, d.real(2, 4)), {"axis": 1, "mode": "add"}),
        Sample((d.real(2, 3, 2), i.reshape(2, 2), d.real(2, 2, 2, 2)), {"axis": -2}),
        Sample((d.real(3), np.array([0, 1]), d.real())),
        *[Sample((x, i, u), {"mode": m, "include_self": False}) for m in modes],
    ]


def _scatter_errors(d: Draw) -> list[Bad]:
    i = np.array([0, 1])
    return [
        Bad((d.real(3), np.array([3]), d.real(1)), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), i, d.real(3)), {}, ShapeError, "broadcast"),
        Bad((d.real(3), d.real(2), d.real(2)), {}, DTypeError, "integers"),
        Bad((np.arange(3), i, d.real(2)), {}, DTypeError, "astype"),
        Bad((d.real(3), i, d.real(2)), {"axis": 1}, ShapeError, "out of range"),
    ]


@composite(
    oracle=_scatter_oracle,
    samples=_scatter_samples,
    errors=lambda d: [
        *_scatter_errors(d),
        Bad((d.real(3), np.array([0]), d.real(1)), {"mode": "xor"}, DTypeError, "mode"),
    ],
    methods=("scatter",),
)
def scatter(
    x: Any,
    indices: Any,
    updates: Any,
    /,
    axis: int = 0,
    mode: str = "set",
    *,
    include_self: bool = True,
) -> Any:
    """A copy of `x` with `updates` put at `indices` along `axis`: what `take` reads is written.

    >>> pb.scatter(pb.tensor([1, 2, 3]), pb.tensor([0, 2, 0]), pb.tensor([5, 6, 7]), mode="add")
    tensor([13,  2,  9], int64, cpu)

    `updates` broadcasts to the shape of `take(x, indices, axis)`. `mode` says what happens to the
    element there: "set" (the last of several stays), "add", "mul", "max", "min", or "mean" (of it
    and all its updates); without `include_self` to the updates alone, where there are any. Ties in
    "max" and "min" share the derivative evenly.
    """
    return scatter_along("scatter", x, indices, updates, axis, mode, include_self)


def scatter_along(
    name: str,
    x: Any,
    indices: Any,
    updates: Any,
    axis: int,
    mode: str,
    include_self: bool = True,
) -> Any:
    """`scatter` on behalf of the function `name`."""
    x = as_array(x, name)
    axis = normalise_axis(name, axis, x._aval.ndim)
    indices = as_indices(name, indices, x._aval.device, x._aval.shape[axis])
    shape, own = x._aval.shape, indices._aval.shape
    updates = _values(name, x, updates, shape[:axis] + own + shape[axis + 1 :])
    aligned = reshape(indices, own + (1,) * (len(shape) - 1))
    count = len(own)
    if axis:
        order = (*range(axis, axis + count), *range(axis), *range(axis + count, updates._aval.ndim))
        updates = bind(permute_dims.op, updates, axes=order)
    front = to_front(x, axis)
    result = _folded(name, mode, front, updates, aligned, include_self=include_self)
    return from_front(result, 1, axis)


@composite(
    oracle=lambda x, indices, updates, axis=0, exact=False: _scatter_oracle(
        x, indices, updates, axis, "add"
    ),
    samples=lambda d: [
        Sample((d.real(4), np.array([1, 1, 1, 2]), d.real(4))),
        Sample((d.real(2, 3), np.array([2, 0, 2, 2]), d.real(2, 4)), {"axis": 1}),
        Sample((d.real(4), np.array([1, 1, 1, 2]), d.real(4)), {"exact": True}),
    ],
    errors=_scatter_errors,
    methods=("scatter_add",),
)
def scatter_add(
    x: Any, indices: Any, updates: Any, /, axis: int = 0, *, exact: bool = False
) -> Any:
    """A copy of `x` with `updates` added at `indices` along `axis`; every duplicate counts.

    >>> pb.scatter_add(pb.zeros(4), pb.tensor([1, 1, 1, 2]), pb.tensor([1.0, 2.0, 4.0, 8.0]))
    tensor([0., 7., 8., 0.], float32, cpu)

    Sums are taken in a wider type, in an order that depends on shapes only: the same bits on every
    run, for any number of threads. With `exact` they are exact before they are rounded (float32 and
    narrower, complex64), so that the bits are also the same on every device.
    """
    mode = "add_exact" if exact else "add"
    return scatter_along("scatter_add", x, indices, updates, axis, mode)


@composite(
    oracle=lambda x, indices, updates, axis=0, alpha=1: _scatter_oracle(
        x, indices, updates * alpha, axis, "add"
    ),
    samples=lambda d: [
        Sample((d.real(4, 2), np.array([1, 1, 2]), d.real(3, 2))),
        Sample((d.real(2, 3), np.array([2, 0]), d.real(2, 2)), {"axis": 1, "alpha": -2.0}),
    ],
    errors=_scatter_errors,
)
def index_add(x: Any, indices: Any, updates: Any, /, axis: int = 0, alpha: Any = 1) -> Any:
    """`scatter_add` of `alpha * updates`.

    >>> pb.index_add(pb.tensor([1, 1]), pb.tensor([0, 0]), pb.tensor([3, 4]), alpha=2)
    tensor([15,  1], int64, cpu)
    """
    updates = updates if is_number(updates) else as_array(updates, "index_add")
    scaled = updates if isinstance(alpha, int) and alpha == 1 else updates * alpha
    return scatter_along("index_add", x, indices, scaled, axis, "add")


def _put_oracle(x: np.ndarray, indices: Any, values: Any, mode: str = "set") -> np.ndarray:
    return _scatter_oracle(x.reshape(-1), indices, values, 0, mode).reshape(x.shape)


@composite(
    oracle=_put_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), np.array([4, 0, 4, -1]), d.real(4))),
        Sample((d.real(2, 3), np.array([[4, 0], [4, 1]]), d.real()), {"mode": "add"}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), np.array([6]), d.real(1)), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2, 3), d.real(1), d.real(1)), {}, DTypeError, "integers"),
    ],
)
def put(x: Any, indices: Any, values: Any, /, mode: str = "set") -> Any:
    """A copy of `x` with `values` at the row-major positions `indices`; modes as in `scatter`.

    >>> pb.put(pb.tensor([[1, 2], [3, 4]]), pb.tensor([3, 0]), pb.tensor([8, 9]))
    tensor([[9, 2],
            [3, 8]], int64, cpu)
    """
    x = as_array(x, "put")
    flat = scatter_along("put", reshape(x, (-1,)), indices, values, 0, mode)
    return reshape(flat, x._aval.shape)


def _put_along_oracle(
    x: np.ndarray, indices: Any, values: Any, axis: int = -1, mode: str = "set"
) -> np.ndarray:
    out, count = np.array(x), np.ones(x.shape)
    shape = tuple(indices.shape[d] if d == axis % x.ndim else n for d, n in enumerate(x.shape))
    indices, values = np.broadcast_to(indices, shape), np.broadcast_to(values, shape)
    for place in np.ndindex(shape):
        at = list(place)
        at[axis] = indices[place]
        out[tuple(at)] = _FOLDS[mode](out[tuple(at)], values[place])
        count[tuple(at)] += 1
    return (out / count).astype(x.dtype) if mode == "mean" else out


@composite(
    oracle=_put_along_oracle,
    samples=lambda d: [
        Sample((d.real(3, 4), np.array([[2, 0, -1, 2], [2, 0, 1, 1]]), d.real(2, 4)), {"axis": 0}),
        Sample((d.real(2, 3), np.array([[0, 0], [2, 1]]), d.real(2, 1)), {"mode": "add"}),
        Sample((d.real(5), np.array([4, 4]), d.real())),
    ],
    errors=lambda d: [
        Bad((d.real(3), np.array([3]), d.real(1)), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), np.array([[0]]), d.real()), {}, ShapeError, "dimensions"),
        Bad((d.real(3), np.array([0]), d.real(2)), {}, ShapeError, "broadcast"),
    ],
)
def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int = -1, mode: str = "set") -> Any:
    """A copy of `x` with `values` where `take_along_axis` would read; modes as in `scatter`.

    >>> pb.put_along_axis(pb.tensor([[1, 2], [3, 4]]), pb.tensor([[1], [0]]), 9)
    tensor([[1, 9],
            [9, 4]], int64, cpu)
    """
    name = "put_along_axis"
    x = as_array(x, name)
    shape = x._aval.shape
    wide, indices, axis = along_axis(name, x, indices, axis)
    if wide._aval.shape != shape:
        raise ShapeError(f"{name}: indices {indices._aval.shape} do not broadcast to {shape}.")
    length = indices._aval.shape[axis]
    values = _values(name, x, values, (*shape[:axis], length, *shape[axis + 1 :]))
    front = [to_front(a, axis) for a in (x, values, indices)]
    return from_front(_folded(name, mode, *front), 1, axis)
