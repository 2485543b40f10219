"""Taking and putting elements by index: named functions over gather and scatter.

`take` and `scatter` are counterparts, and so are `take_along_axis` and `put_along_axis`. The functions that
put return a new array; in all of them an index below zero counts from the end, and an index out
of range is an `IndexError`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import promote
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ir.op import Op, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops import gather_scatter
from pullback.ops.creation import constant
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.gather_scatter import gather
from pullback.ops.movement import broadcast_to, permute_dims, reshape
from pullback.ops.parts import astype

__all__ = [
    "gather_nd", "index_add", "masked_select", "nonzero", "put", "put_along_axis", "scatter", "scatter_add",
    "segment_sum", "take", "take_along_axis",
]  # fmt: skip


def _indices(name: str, indices: Any, dev: Any) -> Any:
    array = as_array(indices, name, dev=dev)
    if isinstance(indices, (list, tuple)) and array._aval.size == 0:
        array = astype(array, dt.int64)
    if not array._aval.dtype.is_integer:
        raise DTypeError(f"{name}: indices must be integers, got {array._aval.dtype.name}.")
    return array


def _bind_named(name: str, op: Op, *arrays: Any) -> Any:
    """Run `op`; an index out of range is reported by the function that the user called."""
    try:
        return bind(op, *arrays)
    except IndexOutOfRange as error:
        raise IndexOutOfRange(str(error).replace(f"{op.name}:", f"{name}:", 1)) from None


def _to_front(x: Any, axis: int) -> Any:
    if axis == 0:
        return x
    return bind(permute_dims.op, x, axes=(axis, *[d for d in range(x._aval.ndim) if d != axis]))


def _from_front(x: Any, count: int, axis: int) -> Any:
    """Move the first `count` axes to where `axis` others come before them."""
    if axis == 0:
        return x
    ends = range(count, count + axis), range(count), range(count + axis, x._aval.ndim)
    return bind(permute_dims.op, x, axes=tuple(d for r in ends for d in r))


def _take_samples(d: Draw) -> list[Sample]:
    i = np.array([2, 0, -1, 2])
    return [
        Sample((d.real(3, 4), i), {"axis": 0}),
        Sample((d.real(2, 3, 2), i.astype(np.int16).reshape(2, 2)), {"axis": 1}),
        Sample((d.real(2, 3), i), {"axis": -1}),
        Sample((d.real(5), i)),
        Sample((d.real(2, 3), i)),
        Sample((d.real(3, 2), np.array(1)), {"axis": 0}),
        Sample((d.real(3, 2), np.zeros(0, np.int64)), {"axis": 0}),
    ]


def _take_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3), np.array([3])), {"axis": 0}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), np.array([-4])), {"axis": 0}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), d.real(1)), {"axis": 0}, DTypeError, "integers"),
        Bad((d.real(3), np.array([0])), {"axis": 1}, ShapeError, "out of range"),
    ]


@composite(
    oracle=lambda x, indices, axis=None: np.take(x, indices, axis),
    samples=_take_samples,
    errors=_take_errors,
    methods=("take",),
)
def take(x: Any, indices: Any, /, axis: int | None = None) -> Any:
    """The slices of `x` at `indices` along `axis`; without an axis the elements of the flattened array.

    >>> pb.take(pb.tensor([[1, 2], [3, 4]]), pb.tensor([1, 0]), axis=1)
    tensor([[2, 1],
            [4, 3]], int64, cpu)
    """
    x = as_array(x, "take")
    indices = _indices("take", indices, x._aval.device)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = normalise_axis("take", axis, x._aval.ndim)
    own = indices._aval.shape
    aligned = reshape(indices, own + (1,) * (x._aval.ndim - 1))
    rows = _bind_named("take", gather.op, _to_front(x, axis), aligned)
    return _from_front(rows, len(own), axis)


def _along_samples(d: Draw) -> list[Sample]:
    i = np.array([[2, 0, -1, 2], [0, 0, 1, 1]])
    return [
        Sample((d.real(3, 4), i), {"axis": 0}),
        Sample((d.real(2, 3), i.astype(np.int32))),
        Sample((d.real(3, 4), i[:, :1]), {"axis": 0}),
        Sample((d.real(5), np.array([4, 4]))),
    ]


def _along_oracle(x: np.ndarray, indices: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.take_along_axis(x, indices, axis)


@composite(
    oracle=_along_oracle,
    samples=_along_samples,
    errors=lambda d: [
        Bad((d.real(3), np.array([3])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), np.array([[0]])), {}, ShapeError, "dimensions"),
        Bad((d.real(3, 2), np.zeros((3, 3), int)), {"axis": 0}, ShapeError, "broadcast"),
        Bad((d.real(3), d.real(1)), {}, DTypeError, "integers"),
    ],
)
def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    """`out[i, j, k] = x[i, indices[i, j, k], k]` (here along axis 1): one index for each element.

    >>> pb.take_along_axis(pb.tensor([[1, 2], [3, 4]]), pb.tensor([[1], [0]]))
    tensor([[2],
            [3]], int64, cpu)
    """
    x, indices, axis = _along("take_along_axis", x, indices, axis)
    rows = _bind_named("take_along_axis", gather.op, _to_front(x, axis), _to_front(indices, axis))
    return _from_front(rows, 1, axis)


def _along(name: str, x: Any, indices: Any, axis: int) -> tuple[Any, Any, int]:
    """The array and the indices, broadcast against each other on every axis but one."""
    x = as_array(x, name)
    indices = _indices(name, indices, x._aval.device)
    if x._aval.ndim != indices._aval.ndim:
        raise ShapeError(
            f"{name}: indices need as many dimensions as the array, {x._aval.ndim},"
            f" got {indices._aval.ndim}."
        )
    axis = normalise_axis(name, axis, x._aval.ndim)
    sizes = [list(a._aval.shape) for a in (x, indices)]
    own = [s.pop(axis) for s in sizes]
    common = broadcast_shapes(name, *map(tuple, sizes))
    shape = (*common[:axis], own[0], *common[axis:])
    return x if x._aval.shape == shape else broadcast_to(x, shape), indices, axis


@composite(
    oracle=lambda x, indices: x[tuple(np.moveaxis(indices, -1, 0))],
    samples=lambda d: [
        Sample((d.real(3, 4), np.array([[2, 1], [0, -1], [2, 1]]))),
        Sample((d.real(3, 4), np.array([[[2], [0]]]))),
        Sample((d.real(3, 4), np.array([1, 3]))),
    ],
    errors=lambda d: [
        Bad((d.real(3, 4), np.array([[3, 0]])), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(3), np.array([[0, 0]])), {}, ShapeError, "last axis"),
        Bad((d.real(3), d.real(1)), {}, DTypeError, "integers"),
    ],
)
def gather_nd(x: Any, indices: Any, /) -> Any:
    """`x[indices[..., 0], indices[..., 1], ...]`: the last axis of `indices` holds positions.

    >>> pb.gather_nd(pb.tensor([[1, 2], [3, 4]]), pb.tensor([[0, 1], [1, 0]]))
    tensor([2, 3], int64, cpu)
    """
    x = as_array(x, "gather_nd")
    indices = _indices("gather_nd", indices, x._aval.device)
    depth = indices._aval.shape[-1] if indices._aval.ndim else 0
    if not 1 <= depth <= x._aval.ndim:
        raise ShapeError(
            f"gather_nd: the last axis of indices must hold 1 to {x._aval.ndim} positions,"
            f" got indices of shape {indices._aval.shape}."
        )
    lead = indices._aval.shape[:-1]
    aligned = [reshape(indices[..., k], lead + (1,) * (x._aval.ndim - depth)) for k in range(depth)]
    return _bind_named("gather_nd", gather.op, x, *aligned)


# -- putting ---------------------------------------------------------------------------------------

_MODES = ("set", "add", "max", "min", "mul", "mean")
_FOLDS: dict[str, Callable[..., Any]] = {
    "set": lambda a, b: b,
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "mean": np.add,
}


def _folded(name: str, mode: str, x: Any, updates: Any, *indices: Any) -> Any:
    """Scatter in one of the modes; the mean counts the element of `x` too."""
    if mode not in _MODES:
        raise DTypeError(f"{name}: mode must be one of {', '.join(_MODES)}, got {mode!r}.")
    op = getattr(gather_scatter, f"scatter_{'add' if mode == 'mean' else mode}").op
    if mode in ("max", "min") and x._aval.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no order, got {x._aval.dtype.name}.")
    result = _bind_named(name, op, x, updates, *indices)
    if mode != "mean":
        return result
    if not x._aval.dtype.is_inexact:
        raise DTypeError(f"{name}: a mean needs a floating dtype, got {x._aval.dtype.name}.")
    counting = promote(x._aval.dtype.real, dt.float32)
    once = constant(1, x._aval.shape, counting, x._aval.device)
    each = constant(1, updates._aval.shape, counting, x._aval.device)
    count = bind(gather_scatter.scatter_add.op, once, each, *indices)
    return result / astype(count, x._aval.dtype)


def _values(name: str, x: Any, updates: Any, shape: tuple[int, ...]) -> Any:
    """The updates in the dtype of `x`, broadcast to the shape of what they replace."""
    updates = as_array(updates, name, dev=x._aval.device)
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
    x: np.ndarray, indices: Any, updates: Any, axis: int = 0, mode: str = "set"
) -> np.ndarray:
    indices = np.asarray(indices)
    axis %= x.ndim
    out = np.moveaxis(x, axis, 0).copy()
    count = np.ones(out.shape)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    updates = np.broadcast_to(updates, shape)
    rows = np.moveaxis(updates, range(axis, axis + indices.ndim), range(indices.ndim))
    for place in np.ndindex(indices.shape):
        i = indices[place]
        out[i] = _FOLDS[mode](out[i], rows[place])
        count[i] += 1
    return np.moveaxis(out / count if mode == "mean" else out, 0, axis)


def _scatter_samples(d: Draw) -> list[Sample]:
    i = np.array([2, 0, -1, 2])
    x, u = d.distinct(6, 2)[:3], d.distinct(9, 2)[5:]
    cases = [Sample((x, i, u), {"mode": m}) for m in _MODES]
    return [
        *cases,
        Sample((d.real(2, 3), i, d.real(2, 4)), {"axis": 1, "mode": "add"}),
        Sample((d.real(2, 3, 2), i.reshape(2, 2), d.real(2, 2, 2, 2)), {"axis": -2}),
        Sample((d.real(3), np.array([0, 1]), d.real())),
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
def scatter(x: Any, indices: Any, updates: Any, /, axis: int = 0, mode: str = "set") -> Any:
    """A copy of `x` with `updates` put at `indices` along `axis`: what `take` reads is written.

    >>> pb.scatter(pb.tensor([1, 2, 3]), pb.tensor([0, 2, 0]), pb.tensor([5, 6, 7]), mode="add")
    tensor([13,  2,  9], int64, cpu)

    `updates` broadcasts to the shape of `take(x, indices, axis)`. `mode` says what happens to the
    element there: "set" (the last of several stays), "add", "mul", "max", "min", or "mean" (of it and all
    its updates). Ties in "max" and "min" share the derivative evenly.
    """
    return _scatter("scatter", x, indices, updates, axis, mode)


def _scatter(name: str, x: Any, indices: Any, updates: Any, axis: int, mode: str) -> Any:
    x = as_array(x, name)
    indices = _indices(name, indices, x._aval.device)
    axis = normalise_axis(name, axis, x._aval.ndim)
    shape, own = x._aval.shape, indices._aval.shape
    updates = _values(name, x, updates, shape[:axis] + own + shape[axis + 1 :])
    aligned = reshape(indices, own + (1,) * (len(shape) - 1))
    count = len(own)
    if axis:
        order = (*range(axis, axis + count), *range(axis), *range(axis + count, updates._aval.ndim))
        updates = bind(permute_dims.op, updates, axes=order)
    result = _folded(name, mode, _to_front(x, axis), updates, aligned)
    return _from_front(result, 1, axis)


@composite(
    oracle=lambda x, indices, updates, axis=0: _scatter_oracle(x, indices, updates, axis, "add"),
    samples=lambda d: [
        Sample((d.real(4), np.array([1, 1, 1, 2]), d.real(4))),
        Sample((d.real(2, 3), np.array([2, 0, 2, 2]), d.real(2, 4)), {"axis": 1}),
    ],
    errors=_scatter_errors,
    methods=("scatter_add",),
)
def scatter_add(x: Any, indices: Any, updates: Any, /, axis: int = 0) -> Any:
    """A copy of `x` with `updates` added at `indices` along `axis`; every duplicate counts.

    >>> pb.scatter_add(pb.zeros(4), pb.tensor([1, 1, 1, 2]), pb.tensor([1.0, 2.0, 4.0, 8.0]))
    tensor([0., 7., 8., 0.], float32, cpu)

    The sum of each place is taken in the order of the updates: the same bits on every run.
    """
    return _scatter("scatter_add", x, indices, updates, axis, "add")


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
    updates = as_array(updates, "index_add")
    scaled = updates if isinstance(alpha, int) and alpha == 1 else updates * alpha
    return _scatter("index_add", x, indices, scaled, axis, "add")


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
    flat = _scatter("put", reshape(x, (-1,)), indices, values, 0, mode)
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
    return out / count if mode == "mean" else out


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
    wide, indices, axis = _along(name, x, indices, axis)
    if wide._aval.shape != shape:
        raise ShapeError(f"{name}: indices {indices._aval.shape} do not broadcast to {shape}.")
    length = indices._aval.shape[axis]
    values = _values(name, x, values, (*shape[:axis], length, *shape[axis + 1 :]))
    front = [_to_front(a, axis) for a in (x, values, indices)]
    return _from_front(_folded(name, mode, *front), 1, axis)


@composite(
    oracle=lambda x, ids, count: _scatter_oracle(
        np.zeros((count, *x.shape[1:]), x.dtype), ids, x, 0, "add"
    ),
    samples=lambda d: [
        Sample((d.real(5), np.array([1, 1, 0, 3, 1]), 4)),
        Sample((d.real(4, 2), np.array([1, 1, 0, 3]), 5)),
    ],
    errors=lambda d: [
        Bad((d.real(2), np.array([0, 3]), 3), {}, IndexOutOfRange, "out of range"),
        Bad((d.real(2), np.array([0]), 3), {}, ShapeError, "one segment"),
        Bad((d.real(2), d.real(2), 3), {}, DTypeError, "integers"),
    ],
)
def segment_sum(x: Any, segment_ids: Any, /, num_segments: int) -> Any:
    """The sums of the rows of `x` that share a segment: `out[s]` adds the rows with `segment_ids == s`.

    >>> pb.segment_sum(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 1, 0]), 3)
    tensor([4., 3., 0.], float32, cpu)
    """
    x = as_array(x, "segment_sum")
    ids = _indices("segment_sum", segment_ids, x._aval.device)
    if x._aval.ndim == 0 or ids._aval.shape != x._aval.shape[:1]:
        raise ShapeError(
            "segment_sum: every row needs one segment, got"
            f" {ids._aval.shape} for an array of shape {x._aval.shape}."
        )
    shape = (int(num_segments), *x._aval.shape[1:])
    start = constant(0, shape, x._aval.dtype, x._aval.device)
    return _scatter("segment_sum", start, ids, x, 0, "add")


# -- results whose shape depends on values ---------------------------------------------------------


def _host(name: str, x: Any) -> np.ndarray:
    if x._aval.is_symbolic:
        raise DTypeError(
            f"{name}: the shape of the result depends on values, which a traced array does not"
            " have yet. Use where inside traced functions."
        )
    return to_numpy(x)


@composite(
    oracle=lambda x: tuple(np.nonzero(x)),
    samples=lambda d: [
        Sample((d.mask(3, 4),)),
        Sample((d.integers(7, high=2),)),
        Sample((np.zeros((2, 3)),)),
        Sample((np.zeros((0, 3)),)),
    ],
    errors=lambda d: [Bad((np.float64(1.0),), {}, ShapeError, "0-d")],
    differentiable=False,
)
def nonzero(x: Any, /) -> tuple:
    """The positions of the elements that are not zero, in row-major order: an array for each axis.

    >>> pb.nonzero(pb.tensor([0.0, 3.0, 4.0]))
    (tensor([1, 2], int64, cpu),)
    """
    x = as_array(x, "nonzero")
    if x._aval.ndim == 0:
        raise ShapeError("nonzero: a 0-d array has no positions. Reshape it to (1,) first.")
    found = np.nonzero(_host("nonzero", x))
    return tuple(from_numpy(i, x._aval.device, copy=False) for i in found)


@composite(
    oracle=lambda x, mask: np.broadcast_arrays(x, mask)[0][np.broadcast_arrays(x, mask)[1]],
    samples=lambda d: [
        Sample((d.real(3, 4), d.mask(3, 4))),
        Sample((d.real(3, 4), d.mask(4))),
        Sample((d.real(4), d.mask(3, 4))),
        Sample((d.real(3), np.zeros(3, bool))),
    ],
    errors=lambda d: [
        Bad((d.real(3), d.real(3)), {}, DTypeError, "boolean"),
        Bad((d.real(3), d.mask(4)), {}, ShapeError, "broadcast"),
    ],
    methods=("masked_select",),
)
def masked_select(x: Any, mask: Any, /) -> Any:
    """The elements of `x` where `mask` is true, in row-major order; both broadcast.

    >>> pb.masked_select(pb.tensor([1, 2, 3]), pb.tensor([True, False, True]))
    tensor([1, 3], int64, cpu)
    """
    x = as_array(x, "masked_select")
    mask = as_array(mask, "masked_select", dev=x._aval.device)
    if mask._aval.dtype is not dt.bool_:
        raise DTypeError(f"masked_select: the mask must be boolean, got {mask._aval.dtype.name}.")
    shape = broadcast_shapes("masked_select", x._aval.shape, mask._aval.shape)
    chosen = np.flatnonzero(np.broadcast_to(_host("masked_select", mask), shape))
    flat = reshape(broadcast_to(x, shape), (prod(shape),))
    return bind(gather.op, flat, from_numpy(chosen, x._aval.device, copy=False))
