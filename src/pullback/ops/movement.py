"""Elements in another arrangement: views, and arrays assembled from boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType
from pullback.core.errors import CopyError, DTypeError, ShapeError
from pullback.ir.convert import as_array, scalar, shape_of
from pullback.ir.lowering import Boxes, Placement, View
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import broadcast_shapes, normalise_axis, primitive, sum_to
from pullback.ops.promotion import same_dtype
from pullback.ops.remembered import SEQUENCE

__all__ = ["broadcast_to", "concat", "embed", "permute_dims", "reshape", "slice"]

Place = tuple[int, tuple[int, ...], tuple[int, ...]]
Inferred = tuple[tuple[int, ...], DType]


def _reshape_place(av: Aval, shape: tuple[int, ...]) -> Place | None:
    if av.dense:
        return 0, shape, dense_strides(shape)
    assert av.strides is not None
    chunks: list[tuple[int, int]] = []  # axes that lie one inside the other, merged: (size, stride)
    for n, s in zip(av.shape, av.strides, strict=True):
        if n != 1 and chunks and chunks[-1][1] == n * s:
            chunks[-1] = (chunks[-1][0] * n, s)
        elif n != 1:
            chunks.append((n, s))
    strides = [0] * len(shape)
    axis = len(shape) - 1
    for size, stride in reversed(chunks):
        while size > 1:
            n = shape[axis]
            if size % n:
                return None
            strides[axis] = stride
            size, stride, axis = size // n, stride * n, axis - 1
    return 0, shape, tuple(strides)


def _reshape_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(2, 6), (3, 4))),
        Sample((d.real(2, 6), (-1,))),
        Sample((d.real(2, 3, 4), (2, -1))),
        Sample((d.real(3, 4).T, (2, 6))),
        Sample((d.real(), (1, 1))),
        Sample((d.real(0, 3), (3, 0))),
    ]


@primitive(
    "x",
    infer=lambda x, shape: (shape, x.dtype),
    lowering=View(_reshape_place),
    vjp={"x": lambda g, x_aval: bind(reshape.op, g, shape=x_aval.shape)},
    jvp="linear",
    batch=lambda op, x, shape, examples: bind(op, x, shape=(examples, *shape)),
    oracle=lambda x, shape: np.reshape(x, shape),
    samples=_reshape_samples,
    errors=lambda d: [
        Bad((d.real(2, 3), (4, 2)), {}, ShapeError, "6 elements"),
        Bad((d.real(2, 3), (4, -1)), {}, ShapeError, "6 elements"),
        Bad((d.real(2, 3), (-1, -1)), {}, ShapeError, "one size"),
        Bad((d.real(2, 3), (2, -3)), {}, ShapeError, "negative"),
        Bad((d.real(2, 3), (2, 3.0)), {}, DTypeError, "integers"),
    ],
    methods=("reshape", "view"),
    front=1,
)
def reshape(x: Any, /, shape: Any, *more: int, copy: bool | None = None) -> Any:
    """The same elements, in row-major order, with another shape; one size may be -1: the rest.

    >>> pb.reshape(pb.tensor([1, 2, 3, 4]), (2, -1))
    tensor([[1, 2],
            [3, 4]], int64, cpu)

    Contents never change, so whether memory is shared can't be seen. `copy=False` raises where it
    would have to be copied; a traced array has none.
    """
    x = as_array(x, "reshape")
    shape = _completed_shape(x._aval, (shape, *more) if more else shape)
    if copy is False and not x._aval.is_symbolic and _reshape_place(x._aval, shape) is None:
        raise CopyError(
            f"reshape: elements that lie in another order must be copied, got strides"
            f" {x._aval.strides} of shape {x._aval.shape} and the new shape {shape}."
        )
    return bind(reshape.op, x, shape=shape)


def _completed_shape(av: Aval, shape: Any) -> tuple[int, ...]:
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    free = [d for d, n in enumerate(dims) if isinstance(n, (int, np.integer)) and n == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape: only one size may be -1, got {dims}.")
    known = shape_of([1 if d in free else n for d, n in enumerate(dims)], "reshape")
    size = prod(known)
    if free and size and av.size % size == 0:
        return tuple(av.size // size if d in free else n for d, n in enumerate(known))
    if free or size != av.size:
        raise ShapeError(
            f"reshape: an array of shape {av.shape} has {av.size} elements,"
            f" which do not fill the shape {dims}."
        )
    return known


def _permute_place(av: Aval, axes: tuple[int, ...]) -> Place:
    assert av.strides is not None
    return 0, tuple(av.shape[a] for a in axes), tuple(av.strides[a] for a in axes)


def _permute_vjp(g: Any, axes: tuple[int, ...]) -> Any:
    inverse = [0] * len(axes)
    for position, axis in enumerate(axes):
        inverse[axis] = position
    return bind(permute_dims.op, g, axes=tuple(inverse))


@primitive(
    "x",
    infer=lambda x, axes: (tuple(x.shape[a] for a in axes), x.dtype),
    lowering=View(_permute_place),
    vjp={"x": _permute_vjp},
    jvp="linear",
    batch=lambda op, x, axes: bind(op, x, axes=(0, *[a + 1 for a in axes])),
    oracle=np.transpose,
    samples=lambda d: [
        Sample((d.real(2, 3, 4), (1, 2, 0))),  # a 3-cycle: its inverse is another permutation
        Sample((d.real(2, 3, 4), (2, 0, 1))),
        Sample((d.real(2, 3), (-1, 0))),
        Sample((d.real(2, 0), (1, 0))),
        Sample((d.real(), ())),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), (0,)), {}, ShapeError, "every axis once"),
        Bad((d.real(2, 3), (0, 0)), {}, ShapeError, "every axis once"),
        Bad((d.real(2, 3), (0, 2)), {}, ShapeError, "out of range"),
    ],
    methods=("permute",),
    front=1,
)
def permute_dims(x: Any, /, axes: Any, *more: int) -> Any:
    """The array with its axes reordered: axis k of the result is axis `axes[k]` of `x`.

    >>> pb.permute_dims(pb.zeros((2, 3, 4)), (1, 2, 0)).shape
    (3, 4, 2)
    """
    x = as_array(x, "permute_dims")
    ndim = x._aval.ndim
    given = (axes, *more) if isinstance(axes, (int, np.integer)) else tuple(axes)
    order = tuple(normalise_axis("permute_dims", a, ndim) for a in given)
    if len(order) != ndim or len(set(order)) != ndim:
        raise ShapeError(
            f"permute_dims: axes must name every axis once, got {given} for {ndim} dimensions."
        )
    return bind(permute_dims.op, x, axes=order)


def _broadcast_place(av: Aval, shape: tuple[int, ...]) -> Place:
    assert av.strides is not None
    lead = len(shape) - av.ndim
    own = zip(av.shape, av.strides, shape[lead:], strict=True)
    return 0, shape, (0,) * lead + tuple(0 if n == 1 and m != 1 else s for n, s, m in own)


def aligned(x: Any, ndim: int) -> Any:
    """Examples of arrays with `ndim` axes each; new ones come first and have size 1."""
    first, *rest = x._aval.shape
    if len(rest) == ndim:
        return x
    return bind(reshape.op, x, shape=(first, *(1,) * (ndim - len(rest)), *rest))


def both_aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Examples of two arrays with as many axes each."""
    ndim = max(x._aval.ndim, y._aval.ndim) - 1
    return aligned(x, ndim), aligned(y, ndim)


def repeated(x: Any, examples: int) -> Any:
    """One array for each example, of examples that may share one."""
    shape = (examples, *x._aval.shape[1:])
    return x if x._aval.shape == shape else bind(broadcast_to.op, x, shape=shape)


def _broadcast_batch(x: Any, shape: tuple[int, ...], examples: int) -> Any:
    return bind(broadcast_to.op, aligned(x, len(shape)), shape=(examples, *shape))


@primitive(
    "x",
    infer=lambda x, shape: (shape, x.dtype),
    lowering=View(_broadcast_place),
    vjp={"x": lambda g, x_aval: sum_to(g, x_aval.shape)},
    jvp="linear",
    batch=_broadcast_batch,
    oracle=np.broadcast_to,
    samples=lambda d: [
        Sample((d.real(3), (2, 3))),
        Sample((d.real(2, 1, 3), (4, 2, 5, 3))),
        Sample((d.real(), (2, 2))),
        Sample((d.real(2, 1), (2, 0))),
        Sample((d.real(2, 3), (2, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(3), (2, 4)), {}, ShapeError, "does not broadcast"),
        Bad((d.real(2, 3), (3,)), {}, ShapeError, "does not broadcast"),
        Bad((d.real(1), (-2,)), {}, ShapeError, "negative"),
    ],
    methods=("broadcast_to",),
    front=1,
)
def broadcast_to(x: Any, /, shape: Any) -> Any:
    """The array repeated along new and size-1 axes until it has `shape`; it takes no memory.

    >>> pb.broadcast_to(pb.tensor([1, 2]), (2, 2))
    tensor([[1, 2],
            [1, 2]], int64, cpu)
    """
    x = as_array(x, "broadcast_to")
    shape = shape_of(shape, "broadcast_to")
    own = x._aval.shape
    lead = len(shape) - len(own)
    if lead < 0 or any(n not in (1, m) for n, m in zip(own, shape[lead:], strict=True)):
        raise ShapeError(f"broadcast_to: an array of shape {own} does not broadcast to {shape}.")
    return bind(broadcast_to.op, x, shape=shape)


# -- boxes: a strided part of an array, and an array with such a part replaced ---------------------


def _ints(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _box(
    name: str, whole: tuple[int, ...], starts: Sequence[int], shape: Sequence[int], steps: Any
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Starts, sizes and steps of a box, checked to lie inside an array of shape `whole`."""
    starts, shape = _ints(starts), _ints(shape)
    steps = (1,) * len(whole) if steps is None else _ints(steps)
    if not len(starts) == len(shape) == len(steps) == len(whole):
        raise ShapeError(
            f"{name}: starts, sizes and steps need one entry for each of {len(whole)} axes,"
            f" got {starts}, {shape} and {steps}."
        )
    for n, first, count, step in zip(whole, starts, shape, steps, strict=True):
        last = first + (count - 1) * step
        if count < 0 or (count and not (0 <= first < n and 0 <= last < n)):
            raise ShapeError(
                f"{name}: the box does not lie inside the array, got {count} elements"
                f" from {first} with step {step} on an axis of size {n}."
            )
    return starts, shape, steps


def cut(x: Any, starts: Any, shape: Any, steps: Any, to: Any = None) -> Any:
    """The box of `x`, unchecked; `to` is its shape with axes of size 1 added or left out."""
    to = shape if to is None else to
    return bind(slice.op, x, starts=starts, shape=shape, steps=steps, to=to)


def _slice_place(av: Aval, starts: Any, shape: Any, steps: Any, to: Any) -> Place:
    assert av.strides is not None
    offset = sum(b * s for b, s in zip(starts, av.strides, strict=True))
    strides = [t * s for t, s in zip(steps, av.strides, strict=True)]
    if to != shape:
        long = iter([s for n, s in zip(shape, strides, strict=True) if n != 1])
        strides = [1 if n == 1 else next(long) for n in to]
    return offset, to, tuple(strides)


def _slice_vjp(g: Any, x_aval: Aval, starts: Any, shape: Any, steps: Any, to: Any) -> Any:
    zero = scalar(0, x_aval.dtype, x_aval.device)
    if to != shape:
        g = bind(reshape.op, g, shape=shape)
    return bind(embed.op, zero, g, shape=x_aval.shape, starts=starts, steps=steps)


def _slice_batch(x: Any, starts: Any, shape: Any, steps: Any, to: Any, examples: int) -> Any:
    return cut(x, (0, *starts), (examples, *shape), (1, *steps), (examples, *to))


def _slice_oracle(x: np.ndarray, starts: Any, shape: Any, steps: Any = None) -> np.ndarray:
    steps = steps or (1,) * x.ndim
    spans = zip(starts, shape, steps, strict=True)
    return x[np.ix_(*[b + t * np.arange(n) for b, n, t in spans])] if x.ndim else x


@primitive(
    "x",
    infer=lambda x, starts, shape, steps, to: (to, x.dtype),
    lowering=View(_slice_place),
    vjp={"x": _slice_vjp},
    jvp="linear",
    batch=_slice_batch,
    oracle=_slice_oracle,
    samples=lambda d: [
        Sample((d.real(5, 4), (1, 0), (3, 2), (1, 2))),
        Sample((d.real(5, 4), (4, 3), (3, 4), (-2, -1))),
        Sample((d.real(7), (2,), (4,))),
        Sample((d.real(5, 4), (5, 0), (0, 4))),
        Sample((d.real(), (), ())),
    ],
    errors=lambda d: [
        Bad((d.real(5), (3,), (4,)), {}, ShapeError, "inside"),
        Bad((d.real(5), (3,), (3,), (-2,)), {}, ShapeError, "inside"),
        Bad((d.real(5, 2), (3,), (3,)), {}, ShapeError, "one entry"),
    ],
    namespace="primitive",
)
def slice(x: Any, /, starts: Any, shape: Any, steps: Any = None) -> Any:
    """The box of `x` from `starts` with `shape` elements, `steps` apart (negative: backwards).

    >>> pb.primitive.slice(pb.tensor([0, 1, 2, 3, 4]), (4,), (2,), (-2,))
    tensor([4, 2], int64, cpu)
    """
    x = as_array(x, "slice")
    starts, shape, steps = _box("slice", x._aval.shape, starts, shape, steps)
    return cut(x, starts, shape, steps)


def _embed_boxes(base: Aval, x: Aval, shape: Any, starts: Any, steps: Any) -> list[Placement]:
    ndim = len(shape)
    everything = Placement(0, (0,) * ndim, (1,) * ndim, shape)
    return [everything, Placement(1, starts, steps, x.shape)]


def _embed_base_vjp(
    g: Any, base_aval: Aval, x_aval: Aval, shape: Any, starts: Any, steps: Any
) -> Any:
    zero = bind(broadcast_to.op, scalar(0, g._aval.dtype, g._aval.device), shape=x_aval.shape)
    outside = bind(embed.op, g, zero, shape=shape, starts=starts, steps=steps)
    return outside if base_aval.shape == shape else sum_to(outside, base_aval.shape)


def _embed_vjp(g: Any, x_aval: Aval, starts: Any, steps: Any) -> Any:
    return cut(g, starts, x_aval.shape, steps)


def _embed_batch(base: Any, x: Any, shape: Any, starts: Any, steps: Any, examples: int) -> Any:
    base, x = aligned(base, len(shape)), repeated(x, examples)
    whole = (examples, *shape)
    return bind(embed.op, base, x, shape=whole, starts=(0, *starts), steps=(1, *steps))


def _embed_oracle(
    base: np.ndarray, x: np.ndarray, shape: Any, starts: Any, steps: Any = None
) -> np.ndarray:
    out = np.broadcast_to(base, shape).copy()
    spans = zip(starts, x.shape, steps or (1,) * x.ndim, strict=True)
    out[np.ix_(*[b + t * np.arange(n) for b, n, t in spans]) if x.ndim else ()] = x
    return out


@primitive(
    "base x",
    infer=lambda base, x, shape, starts, steps: (shape, x.dtype),
    lowering=Boxes(_embed_boxes),
    vjp={"base": _embed_base_vjp, "x": _embed_vjp},
    jvp="linear",
    batch=_embed_batch,
    oracle=_embed_oracle,
    samples=lambda d: [
        Sample((d.real(), d.real(2, 2), (5, 4), (1, 0), (2, 3))),
        Sample((d.real(5, 4), d.real(2, 4), (5, 4), (4, 3), (-2, -1))),
        Sample((d.real(3, 1), d.real(3, 2), (3, 4), (0, 1))),
        Sample((d.real(3), d.real(0), (3,), (1,))),
        Sample((d.real(), d.real(), (), ())),
    ],
    errors=lambda d: [
        Bad((d.real(), d.real(3), (5,), (3,)), {}, ShapeError, "inside"),
        Bad((d.real(2), d.real(3), (5,), (0,)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(), d.integers(3), (5,), (0,)), {}, DTypeError, "same dtype"),
    ],
    namespace="primitive",
)
def embed(base: Any, x: Any, /, shape: Any, starts: Any, steps: Any = None) -> Any:
    """`base` broadcast to `shape`, with `x` in the box from `starts` with the given steps.

    >>> pb.primitive.embed(pb.tensor(0), pb.tensor([7, 8]), (5,), (1,), (2,))
    tensor([0, 7, 0, 8, 0], int64, cpu)
    """
    base, x = as_array(base, "embed"), as_array(x, "embed")
    if base._aval.dtype is not x._aval.dtype:
        raise DTypeError(f"embed: operands need the same dtype, got {base._aval} and {x._aval}.")
    shape = shape_of(shape, "embed")
    if broadcast_shapes("embed", base._aval.shape, shape) != shape:
        raise ShapeError(f"embed: the base {base._aval.shape} does not broadcast to {shape}.")
    starts, _, steps = _box("embed", shape, starts, x._aval.shape, steps)
    return bind(embed.op, base, x, shape=shape, starts=starts, steps=steps)


def _concat_infer(*xs: Aval, axis: int) -> Inferred:
    first = xs[0].shape
    total = sum(x.shape[axis] for x in xs)
    return (*first[:axis], total, *first[axis + 1 :]), xs[0].dtype


def _concat_boxes(*xs: Aval, axis: int) -> list[Placement]:
    steps = (1,) * xs[0].ndim
    placements, at = [], 0
    for k, x in enumerate(xs):
        start = tuple(at if d == axis else 0 for d in range(x.ndim))
        placements.append(Placement(k, start, steps, x.shape))
        at += x.shape[axis]
    return placements


def _concat_vjp(g: Any, xs_avals: tuple[Aval, ...], axis: int, position: int) -> Any:
    own = xs_avals[position].shape
    before = sum(a.shape[axis] for a in xs_avals[:position])
    starts = tuple(before if d == axis else 0 for d in range(len(own)))
    return cut(g, starts, own, (1,) * len(own))


def _concat_batch(xs: Sequence[Any], axis: int, examples: int) -> Any:
    return bind(concat.op, *[repeated(x, examples) for x in xs], axis=axis + 1)


@primitive(
    "*xs",
    infer=_concat_infer,
    lowering=Boxes(_concat_boxes),
    vjp={"xs": _concat_vjp},
    jvp="linear",
    batch=_concat_batch,
    oracle=lambda arrays, axis=0: np.concatenate(arrays, axis),
    samples=lambda d: [
        Sample(([d.real(2, 3), d.real(1, 3)],)),
        Sample(([d.real(2, 3), d.real(2, 1), d.real(2, 0)],), {"axis": -1}),
        Sample(([d.real(2, 3), d.real(4)],), {"axis": None}),
        Sample(([d.real(3)],)),
    ],
    errors=lambda d: [
        Bad(([],), {}, ShapeError, "at least one"),
        Bad(([d.real(2, 3), d.real(3)],), {}, ShapeError, "same number of dimensions"),
        Bad(([d.real(2, 3), d.real(2, 4)],), {}, ShapeError, "agree"),
        Bad(([d.real(2), d.real(2)],), {"axis": 1}, ShapeError, "out of range"),
    ],
    front=SEQUENCE,
)
def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    """The arrays joined along an axis, in their common dtype; `axis=None` flattens them first.

    >>> pb.concat([pb.tensor([1, 2]), pb.tensor([3])])
    tensor([1, 2, 3], int64, cpu)
    """
    xs = common_dtype("concat", arrays)
    if axis is None:
        xs = [reshape(x, (-1,)) for x in xs]
        axis = 0
    first = xs[0]._aval
    if any(x._aval.ndim != first.ndim for x in xs):
        shapes = ", ".join(str(x._aval.shape) for x in xs)
        raise ShapeError(f"concat: arrays need the same number of dimensions, got {shapes}.")
    axis = normalise_axis("concat", axis, first.ndim)
    for x in xs[1:]:
        for d, (n, m) in enumerate(zip(first.shape, x._aval.shape, strict=True)):
            if d != axis and n != m:
                raise ShapeError(
                    f"concat: sizes must agree on every axis but {axis},"
                    f" got {first.shape} and {x._aval.shape}."
                )
    return bind(concat.op, *xs, axis=axis)


def common_dtype(name: str, arrays: Sequence[Any]) -> list[Any]:
    """The arrays, at least one, cast to the dtype that they promote to."""
    if not isinstance(arrays, Iterable):
        raise DTypeError(f"{name}: expected a sequence of arrays, got {type(arrays).__name__}.")
    xs = list(arrays)
    if not xs:
        raise ShapeError(f"{name}: needs at least one array, got an empty sequence.")
    return same_dtype(name, *xs)
