"""Arrays joined, cut and turned: functions made of the movement primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.ops.families import composite, normalise_axes, normalise_axis
from pullback.ops.movement import common_dtype, concat, cut, permute_dims, reshape

__all__ = [
    "expand_dims", "flatten", "flip", "moveaxis", "roll", "split", "squeeze", "stack", "swapaxes",
    "unstack",
]  # fmt: skip


def part(x: Any, axis: int, start: int, size: int, step: int = 1) -> Any:
    """`size` elements of one axis from `start` on, `step` apart, and all of the others."""
    shape = x._aval.shape
    ndim = len(shape)
    return cut(
        x,
        tuple(start if d == axis else 0 for d in range(ndim)),
        tuple(size if d == axis else n for d, n in enumerate(shape)),
        tuple(step if d == axis else 1 for d in range(ndim)),
    )


def axis_errors(*more: Any) -> Any:
    return lambda d: [
        Bad((d.real(2, 3), *more), {"axis": 2}, ShapeError, "out of range"),
        Bad((d.real(2, 3), *more), {"axis": 0.5}, DTypeError, "integer"),
    ]


@composite(
    oracle=lambda x, axis=0: np.expand_dims(x, axis),
    samples=lambda d: [
        Sample((d.real(2, 3),)),
        Sample((d.real(2, 3),), {"axis": -1}),
        Sample((d.real(),), {"axis": 0}),
        Sample((d.real(2, 3),), {"axis": (0, 2)}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3),), {"axis": 3}, ShapeError, "out of range"),
        Bad((d.real(2, 3),), {"axis": (0, 0)}, ShapeError, "twice"),
    ],
    methods=("unsqueeze",),
)
def expand_dims(x: Any, /, axis: Any = 0) -> Any:
    """The array with new axes of size 1; `axis` is where they are in the result.

    >>> pb.expand_dims(pb.tensor([1, 2]), axis=1).shape
    (2, 1)
    """
    x = as_array(x, "expand_dims")
    count = 1 if isinstance(axis, (int, np.integer)) else len(axis)
    axes = normalise_axes("expand_dims", axis, x._aval.ndim + count)
    sizes = iter(x._aval.shape)
    shape = tuple(1 if d in axes else next(sizes) for d in range(x._aval.ndim + count))
    return bind(reshape.op, x, shape=shape)


@composite(
    oracle=np.squeeze,
    samples=lambda d: [
        Sample((d.real(2, 1, 3, 1),)),
        Sample((d.real(2, 1, 3, 1), 1)),
        Sample((d.real(2, 1, 3, 1), (1, -1))),
        Sample((d.real(1, 1),)),
    ],
    errors=lambda d: [
        Bad((d.real(2, 1), 0), {}, ShapeError, "size 1"),
        Bad((d.real(2, 1), 2), {}, ShapeError, "out of range"),
    ],
    methods=("squeeze",),
)
def squeeze(x: Any, /, axis: Any = None) -> Any:
    """The array without the axes of size 1 that `axis` names, or (without `axis`) without any.

    >>> pb.squeeze(pb.zeros((2, 1, 3)), 1).shape
    (2, 3)
    """
    x = as_array(x, "squeeze")
    shape = x._aval.shape
    if axis is None:
        axes = tuple(d for d, n in enumerate(shape) if n == 1)
    else:
        axes = normalise_axes("squeeze", axis, len(shape))
    for d in axes:
        if shape[d] != 1:
            raise ShapeError(f"squeeze: only axes of size 1 can go, got axis {d} of shape {shape}.")
    return bind(reshape.op, x, shape=tuple(n for d, n in enumerate(shape) if d not in axes))


def _flatten_oracle(x: np.ndarray, start_axis: int = 0, end_axis: int = -1) -> np.ndarray:
    if x.ndim == 0:
        return x.reshape(1)
    first, last = start_axis % x.ndim, end_axis % x.ndim
    return x.reshape(
        *x.shape[:first], np.prod(x.shape[first : last + 1], dtype=int), *x.shape[last + 1 :]
    )


@composite(
    oracle=_flatten_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3, 2),)),
        Sample((d.real(2, 3, 2), 1)),
        Sample((d.real(2, 3, 2), 0, -2)),
        Sample((d.real(),)),
        Sample((d.real(0, 3),)),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), 2), {}, ShapeError, "out of range"),
        Bad((d.real(2, 3), 1, 0), {}, ShapeError, "after"),
    ],
    methods=("flatten", "ravel"),
)
def flatten(x: Any, /, start_axis: int = 0, end_axis: int = -1) -> Any:
    """The array with the axes from `start_axis` to `end_axis` joined into one.

    >>> pb.flatten(pb.tensor([[1, 2], [3, 4]]))
    tensor([1, 2, 3, 4], int64, cpu)
    """
    x = as_array(x, "flatten")
    shape = x._aval.shape or (1,)
    first = normalise_axis("flatten", start_axis, len(shape))
    last = normalise_axis("flatten", end_axis, len(shape))
    if first > last:
        raise ShapeError(f"flatten: start_axis {start_axis} comes after end_axis {end_axis}.")
    size = 1
    for n in shape[first : last + 1]:
        size *= n
    return bind(reshape.op, x, shape=(*shape[:first], size, *shape[last + 1 :]))


@composite(
    oracle=np.moveaxis,
    samples=lambda d: [
        Sample((d.real(2, 3, 4), 0, -1)),
        Sample((d.real(2, 3, 4), (0, 1), (2, 0))),
        Sample((d.real(2, 3, 4), 2, 1)),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), 0, 2), {}, ShapeError, "out of range"),
        Bad((d.real(2, 3), (0, 1), 0), {}, ShapeError, "as many"),
        Bad((d.real(2, 3), (0, 0), (0, 1)), {}, ShapeError, "twice"),
    ],
    methods=("moveaxis",),
)
def moveaxis(x: Any, source: Any, destination: Any, /) -> Any:
    """The array with the axes `source` moved to the positions `destination`, the others in order.

    >>> pb.moveaxis(pb.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_array(x, "moveaxis")
    ndim = x._aval.ndim
    ends = []
    for given in (source, destination):
        axes = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
        normalise_axes("moveaxis", axes, ndim)  # checks that none is named twice
        ends.append([normalise_axis("moveaxis", a, ndim) for a in axes])
    if len(ends[0]) != len(ends[1]):
        raise ShapeError(
            f"moveaxis: needs as many sources as destinations, got {source}, {destination}."
        )
    order = [d for d in range(ndim) if d not in ends[0]]
    for to, axis in sorted(zip(ends[1], ends[0], strict=True)):
        order.insert(to, axis)
    return bind(permute_dims.op, x, axes=tuple(order))


@composite(
    oracle=np.swapaxes,
    samples=lambda d: [Sample((d.real(2, 3, 4), 0, -1)), Sample((d.real(2, 3), 1, 1))],
    errors=lambda d: [Bad((d.real(2, 3), 0, 2), {}, ShapeError, "out of range")],
    methods=("swapaxes",),
)
def swapaxes(x: Any, axis1: int, axis2: int, /) -> Any:
    """The array with two axes exchanged.

    >>> pb.swapaxes(pb.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_array(x, "swapaxes")
    order = list(range(x._aval.ndim))
    a, b = (normalise_axis("swapaxes", k, len(order)) for k in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return bind(permute_dims.op, x, axes=tuple(order))


@composite(
    oracle=lambda arrays, axis=0: np.stack(arrays, axis),
    samples=lambda d: [
        Sample(([d.real(2, 3), d.real(2, 3)],)),
        Sample(([d.real(2, 3), d.real(2, 3)],), {"axis": -1}),
        Sample(([d.real()],)),
    ],
    errors=lambda d: [
        Bad(([],), {}, ShapeError, "at least one"),
        Bad(([d.real(2), d.real(3)],), {}, ShapeError, "same shape"),
        Bad(([d.real(2)],), {"axis": 2}, ShapeError, "out of range"),
    ],
    chain=True,
)
def stack(arrays: Sequence[Any], /, axis: int = 0) -> Any:
    """The arrays, of one shape, side by side along a new axis.

    >>> pb.stack([pb.tensor([1, 2]), pb.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]], int64, cpu)
    """
    xs = common_dtype("stack", arrays)
    shape = xs[0]._aval.shape
    for x in xs:
        if x._aval.shape != shape:
            raise ShapeError(f"stack: arrays need the same shape, got {shape} and {x._aval.shape}.")
    axis = normalise_axis("stack", axis, len(shape) + 1)
    if axis == 0 and shape:
        return bind(reshape.op, bind(concat.op, *xs, axis=0), shape=(len(xs), *shape))
    wide = (*shape[:axis], 1, *shape[axis:])
    return bind(concat.op, *[bind(reshape.op, x, shape=wide) for x in xs], axis=axis)


@composite(
    oracle=lambda x, axis=0: tuple(np.moveaxis(x, axis, 0)),
    samples=lambda d: [Sample((d.real(2, 3),)), Sample((d.real(2, 3),), {"axis": -1})],
    errors=axis_errors(),
)
def unstack(x: Any, /, axis: int = 0) -> tuple:
    """The slices of the array along an axis, as a tuple.

    >>> pb.unstack(pb.tensor([[1, 2], [3, 4]]))
    (tensor([1, 2], int64, cpu), tensor([3, 4], int64, cpu))
    """
    x = as_array(x, "unstack")
    axis = normalise_axis("unstack", axis, x._aval.ndim)
    shape = tuple(n for d, n in enumerate(x._aval.shape) if d != axis)
    count = x._aval.shape[axis]
    return tuple(bind(reshape.op, part(x, axis, i, 1), shape=shape) for i in range(count))


@composite(
    oracle=lambda x, sections, axis=0: np.split(x, sections, axis),
    samples=lambda d: [
        Sample((d.real(4, 3), 2)),
        Sample((d.real(2, 5), [1, 3]), {"axis": 1}),
        Sample((d.real(4), [2, 2, 9])),
        Sample((d.real(4), [-1])),
    ],
    errors=lambda d: [
        Bad((d.real(4, 3), 3), {}, ShapeError, "equal"),
        *axis_errors(1)(d),
    ],
    methods=("split",),
)
def split(x: Any, indices_or_sections: Any, /, axis: int = 0) -> list:
    """The array cut along an axis: into equal parts, or before each of the positions given.

    >>> pb.split(pb.tensor([1, 2, 3]), [1])
    [tensor([1], int64, cpu), tensor([2, 3], int64, cpu)]
    """
    x = as_array(x, "split")
    axis = normalise_axis("split", axis, x._aval.ndim)
    n = x._aval.shape[axis]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if count < 1 or n % count:
            raise ShapeError(f"split: an axis of size {n} has no {count} equal parts.")
        cuts = [k * (n // count) for k in range(1, count)]
    else:
        cuts = [range(n)[: int(c)].stop for c in indices_or_sections]
    ends = zip([0, *cuts], [*cuts, n], strict=True)
    return [part(x, axis, a if b > a else 0, max(0, b - a)) for a, b in ends]


@composite(
    oracle=lambda x, axis=None: np.flip(x, axis),
    samples=lambda d: [
        Sample((d.real(2, 3),)),
        Sample((d.real(2, 3),), {"axis": -1}),
        Sample((d.real(2, 3, 2),), {"axis": (0, 2)}),
        Sample((d.real(0, 2),)),
        Sample((d.real(),)),
    ],
    errors=axis_errors(),
    methods=("flip",),
)
def flip(x: Any, /, axis: Any = None) -> Any:
    """The array with the order of elements reversed along the axes given; along all by default.

    >>> pb.flip(pb.tensor([1, 2, 3]))
    tensor([3, 2, 1], int64, cpu)
    """
    x = as_array(x, "flip")
    if isinstance(axis, float):
        normalise_axis("flip", axis, x._aval.ndim)
    axes = normalise_axes("flip", axis, x._aval.ndim)
    shape = x._aval.shape
    turned = [d in axes and n > 1 for d, n in enumerate(shape)]
    starts = tuple(n - 1 if t else 0 for n, t in zip(shape, turned, strict=True))
    return cut(x, starts, shape, tuple(-1 if t else 1 for t in turned))


@composite(
    oracle=lambda x, shift, axis=None: np.roll(x, shift, axis),
    samples=lambda d: [
        Sample((d.real(5), 2)),
        Sample((d.real(2, 3), -1)),
        Sample((d.real(2, 3), 7), {"axis": 1}),
        Sample((d.real(2, 3), (1, -1)), {"axis": (0, 1)}),
        Sample((d.real(3, 2), (1, 1)), {"axis": (0, 0)}),
        Sample((d.real(0, 2), 1), {"axis": 0}),
    ],
    errors=lambda d: [
        *axis_errors(1)(d),
        Bad((d.real(2, 3), (1, 2)), {"axis": 0}, ShapeError, "as many"),
    ],
    methods=("roll",),
)
def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    """The array moved along an axis, what leaves at the end coming back at the start.

    >>> pb.roll(pb.tensor([1, 2, 3, 4]), 1)
    tensor([4, 1, 2, 3], int64, cpu)

    Without `axis` the elements move through the flattened array.
    """
    x = as_array(x, "roll")
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,)
    for s in shifts:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)):
            raise DTypeError(f"roll: a shift must be an integer, got {type(s).__name__}.")
    if axis is None and len(shifts) == 1:
        flat = bind(reshape.op, x, shape=(x._aval.size,))
        return bind(reshape.op, _rolled(flat, int(shifts[0]), 0), shape=x._aval.shape)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: needs as many shifts as axes, got {shift} and {axis}.")
    for s, a in zip(shifts, axes, strict=True):
        x = _rolled(x, int(s), normalise_axis("roll", a, x._aval.ndim))
    return x


def _rolled(x: Any, shift: int, axis: int) -> Any:
    n = x._aval.shape[axis]
    first = -shift % n if n else 0
    if first == 0:
        return part(x, axis, 0, n)
    return bind(concat.op, part(x, axis, first, n - first), part(x, axis, 0, first), axis=axis)
