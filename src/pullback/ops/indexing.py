"""Reading elements by index: named functions over gather, and positions found by value.

An index below zero counts from the end, and an index out of range is an `IndexError`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, IndexOutOfRange, ReportedBy, ShapeError
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ir.op import Op, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.gather_scatter import gather
from pullback.ops.index_plans import as_indices
from pullback.ops.movement import broadcast_to, permute_dims, reshape

__all__ = ["gather_nd", "masked_select", "nonzero", "take", "take_along_axis"]


def bind_named(name: str, op: Op, *arrays: Any) -> Any:
    """Run `op`; an index out of range is reported by the function that the user called."""
    with ReportedBy(name):
        return bind(op, *arrays)


def to_front(x: Any, axis: int) -> Any:
    if axis == 0:
        return x
    return bind(permute_dims.op, x, axes=(axis, *[d for d in range(x._aval.ndim) if d != axis]))


def from_front(x: Any, count: int, axis: int) -> Any:
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
    """The slices of `x` at `indices` along `axis`; without an axis, elements of the flat array.

    >>> pb.take(pb.tensor([[1, 2], [3, 4]]), pb.tensor([1, 0]), axis=1)
    tensor([[2, 1],
            [4, 3]], int64, cpu)
    """
    x = as_array(x, "take")
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = normalise_axis("take", axis, x._aval.ndim)
    indices = as_indices("take", indices, x._aval.device, x._aval.shape[axis])
    own = indices._aval.shape
    aligned = reshape(indices, own + (1,) * (x._aval.ndim - 1))
    rows = bind_named("take", gather.op, to_front(x, axis), aligned)
    return from_front(rows, len(own), axis)


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
    x, indices, axis = along_axis("take_along_axis", x, indices, axis)
    rows = bind_named("take_along_axis", gather.op, to_front(x, axis), to_front(indices, axis))
    return from_front(rows, 1, axis)


def along_axis(name: str, x: Any, indices: Any, axis: int) -> tuple[Any, Any, int]:
    """The array and the indices, broadcast against each other on every axis but one."""
    x = as_array(x, name)
    indices = as_indices(name, indices, x._aval.device)
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
    indices = as_indices("gather_nd", indices, x._aval.device)
    depth = indices._aval.shape[-1] if indices._aval.ndim else 0
    if not 1 <= depth <= x._aval.ndim:
        raise ShapeError(
            f"gather_nd: the last axis of indices must hold 1 to {x._aval.ndim} positions,"
            f" got indices of shape {indices._aval.shape}."
        )
    lead = indices._aval.shape[:-1]
    aligned = [reshape(indices[..., k], lead + (1,) * (x._aval.ndim - depth)) for k in range(depth)]
    return bind_named("gather_nd", gather.op, x, *aligned)


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
