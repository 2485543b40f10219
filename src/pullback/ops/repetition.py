"""Arrays repeated: slice by slice, as a whole, along each other's axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import as_array, from_numpy, shape_of, to_numpy
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import axis_errors
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.indexing import take
from pullback.ops.movement import broadcast_to, common_dtype, reshape

__all__ = ["broadcast_arrays", "meshgrid", "repeat", "tile"]


def _repeat_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(2, 3), 2)),
        Sample((d.real(2, 3), 2), {"axis": 0}),
        Sample((d.real(2, 3), [1, 0, 3]), {"axis": -1}),
        Sample((d.real(3), np.array([2, 0, 1]))),
        Sample((d.real(3), 0)),
    ]


@composite(
    oracle=lambda x, repeats, axis=None: np.repeat(x, repeats, axis),
    samples=_repeat_samples,
    errors=lambda d: [
        *axis_errors(1)(d),
        Bad((d.real(3), -1), {}, ShapeError, "negative"),
        Bad((d.real(3), [1, 2]), {}, ShapeError, "one number for each"),
    ],
    methods=("repeat",),
)
def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
    """Each element (or slice along `axis`) repeated in place, all or each its own number of times.

    >>> pb.repeat(pb.tensor([1, 2]), 2)
    tensor([1, 1, 2, 2], int64, cpu)
    """
    x = as_array(x, "repeat")
    if axis is None:
        x, axis = bind(reshape.op, x, shape=(x._aval.size,)), 0
    axis = normalise_axis("repeat", axis, x._aval.ndim)
    counts = np.asarray(to_numpy(repeats) if isinstance(repeats, Array) else repeats)
    if counts.dtype.kind not in "iu":
        raise DTypeError(f"repeat: repeats must be integers, got {repeats!r}.")
    if (counts < 0).any():
        raise ShapeError(f"repeat: repeats must not be negative, got {repeats!r}.")
    n = x._aval.shape[axis]
    if counts.size == 1:
        return _repeated(x, int(counts.reshape(())), axis)
    if counts.shape != (n,):
        raise ShapeError(f"repeat: needs one number for each of {n} slices, got {counts.shape}.")
    if sum(counts.tolist()) >= 1 << 62:
        raise ShapeError(f"repeat: the result would be too large, got {repeats!r}.")
    positions = np.repeat(np.arange(n), counts)
    return take(x, from_numpy(positions, x._aval.device, copy=False), axis)


def _repeated(x: Any, count: int, axis: int) -> Any:
    """Each slice `count` times: a new axis, broadcast and joined to the one before."""
    shape = x._aval.shape
    before, after = shape[: axis + 1], shape[axis + 1 :]
    wide = broadcast_to(bind(reshape.op, x, shape=(*before, 1, *after)), (*before, count, *after))
    return bind(reshape.op, wide, shape=(*shape[:axis], shape[axis] * count, *after))


@composite(
    oracle=np.tile,
    samples=lambda d: [
        Sample((d.real(2, 3), (2, 1))),
        Sample((d.real(2, 3), 2)),
        Sample((d.real(3), (2, 2))),
        Sample((d.real(3), (0,))),
    ],
    errors=lambda d: [
        Bad((d.real(2), (-1,)), {}, ShapeError, "negative"),
        Bad((d.real(2), (0.5,)), {}, DTypeError, "integers"),
    ],
    methods=("tile",),
)
def tile(x: Any, repetitions: Any, /) -> Any:
    """The whole array repeated along each axis.

    >>> pb.tile(pb.tensor([1, 2]), (2, 2))
    tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]], int64, cpu)
    """
    x = as_array(x, "tile")
    counts = shape_of(repetitions, "tile")
    ndim = max(len(counts), x._aval.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x._aval.ndim) + x._aval.shape
    pairs = list(zip(counts, shape, strict=True))
    narrow = bind(reshape.op, x, shape=tuple(k for _, n in pairs for k in (1, n)))
    wide = broadcast_to(narrow, tuple(k for pair in pairs for k in pair))
    return bind(reshape.op, wide, shape=tuple(c * n for c, n in pairs))


@composite(
    oracle=lambda *arrays: list(np.broadcast_arrays(*arrays)),
    samples=lambda d: [Sample((d.real(2, 1), d.real(3))), Sample((d.real(2),))],
    errors=lambda d: [Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast")],
)
def broadcast_arrays(*arrays: Any) -> tuple:
    """The arrays, each broadcast to the shape that all of them broadcast to.

    >>> [x.shape for x in pb.broadcast_arrays(pb.zeros((2, 1)), pb.zeros(3))]
    [(2, 3), (2, 3)]
    """
    xs = [as_array(a, "broadcast_arrays") for a in arrays]
    if not xs:
        return ()
    shape = broadcast_shapes("broadcast_arrays", *[x._aval.shape for x in xs])
    return tuple(broadcast_to(x, shape) for x in xs)


@composite(
    oracle=lambda *arrays, indexing="xy": list(np.meshgrid(*arrays, indexing=indexing)),
    samples=lambda d: [
        Sample((d.real(2), d.real(3))),
        Sample((d.real(2), d.real(3), d.real(2)), {"indexing": "ij"}),
        Sample((d.real(2), d.real(3), d.real(1))),
        Sample((d.real(2),)),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(3)), {"indexing": "yx"}, ShapeError, "indexing"),
        Bad((d.real(2, 2),), {}, ShapeError, "1-D"),
    ],
)
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple:
    """The coordinates of a grid whose axes are the given 1-D arrays.

    >>> pb.meshgrid(pb.tensor([1, 2]), pb.tensor([3, 4]))[0]
    tensor([[1, 2],
            [1, 2]], int64, cpu)

    With `indexing="xy"` the first two axes of the results are exchanged, with "ij" they are not.
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f'meshgrid: indexing must be "xy" or "ij", got {indexing!r}.')
    xs = common_dtype("meshgrid", arrays) if arrays else []
    for x in xs:
        if x._aval.ndim > 1:
            raise ShapeError(f"meshgrid: takes 1-D arrays, got shape {x._aval.shape}.")
    axes = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        axes[:2] = [1, 0]
    sizes = [0] * len(xs)
    for x, axis in zip(xs, axes, strict=True):
        sizes[axis] = x._aval.size
    lines = [
        bind(reshape.op, x, shape=tuple(n if d == a else 1 for d, n in enumerate(sizes)))
        for x, a in zip(xs, axes, strict=True)
    ]
    return tuple(broadcast_to(x, tuple(sizes)) for x in lines)
