"""Windows over the spatial axes of (batch, channels, *spatial): the largest element, and elements
at places that integer arrays give, which carry its derivatives.

An index counts through the spatial axes of its own batch and channel.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, default_float
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.convolution import LAYOUTS, Shape, Window, check_extents, per_axis, window_of
from pullback.ops.examples import batches
from pullback.ops.families import primitive
from pullback.ops.parts import astype

__all__ = ["pick", "place", "window_argmax", "window_max"]


def _counts(name: str, window: Window, spatial: Shape, kernel: Shape) -> Shape:
    """How many windows there are on each axis, if each has an element."""
    counts = check_extents(name, window, spatial, kernel)
    for size, k, count, stride, (before, _), dilation in zip(
        spatial, kernel, counts, window.stride, window.padding, window.dilation, strict=True
    ):
        if dilation <= size:  # else it may step over the whole axis
            continue
        places = range(0, k * dilation, dilation)
        for start in range(-before, count * stride - before, stride):
            if not any(0 <= start + at < size for at in places):
                raise ShapeError(
                    f"{name}: a window has no element, got a dilation of {dilation} on an axis of"
                    f" {size} with a padding of {before}. Dilate or pad less."
                )
    return counts


def _max_infer(x: Aval, kernel: Shape, window: Window) -> tuple[Shape, DType]:
    counts = _counts("window_max", window, window.spatial(x.shape), kernel)
    return window.shape(x.shape[0], window.channels(x.shape), counts), x.dtype


def _argmax_infer(x: Aval, kernel: Shape, window: Window) -> tuple[Shape, DType]:
    return _max_infer(x, kernel, window)[0], dt.int64 if x.dtype is dt.float64 else dt.int32


def _window_batch(op: Any, x: Any, kernel: Shape, window: Window) -> Any:
    return batches(op, x, kernel=kernel, window=window)


def ordered_image(name: str, x: Any) -> Any:
    """The array in a dtype with an order, and with 1 to 3 spatial axes."""
    x = as_array(x, name)
    dtype = x._aval.dtype
    if dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no order, got {dtype.name}.")
    if not 3 <= x._aval.ndim <= 5:
        raise ShapeError(
            f"{name}: takes a batch, channels and 1 to 3 spatial axes, got shape {x._aval.shape}."
        )
    return x if dtype.is_inexact else astype(x, default_float())


def widest(x: Any) -> Any:
    """Halves as float32, in which they are compared and added."""
    return astype(x, dt.float32) if x._aval.dtype in (dt.float16, dt.bfloat16) else x


def _max_vjp(g: Any, x: Any, kernel: Shape, window: Window) -> Any:
    where_from = bind(window_argmax.op, x, kernel=kernel, window=window)
    size = window.spatial(x._aval.shape)
    return bind(place.op, g, where_from, size=size, last=window.last)


def _max_jvp(t: Any, x: Any, kernel: Shape, window: Window) -> Any:
    where_from = bind(window_argmax.op, x, kernel=kernel, window=window)
    return bind(pick.op, t, where_from, last=window.last)


def _windows_by_numpy(x: np.ndarray, options: dict[str, Any], index: bool) -> np.ndarray:
    options = dict(options)
    if options.pop("layout", LAYOUTS[0]) == LAYOUTS[1]:
        moved = _windows_by_numpy(np.moveaxis(x, -1, 1), options, index)
        return np.moveaxis(moved, 1, -1)
    axes = x.ndim - 2
    kernel, stride, dilation = (
        np.broadcast_to(options.get(k, 1), axes) for k in ("kernel", "stride", "dilation")
    )
    padding = np.broadcast_to(options.get("padding", 0), axes)
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, d, p in zip(x.shape[2:], kernel, stride, dilation, padding, strict=True)
    ]
    best = np.full((*x.shape[:2], *counts), -np.inf, x.dtype)
    where_from = np.full(best.shape, -1)
    for k in product(*map(range, kernel)):
        places = [
            np.arange(q) * s + j * d - p
            for q, s, j, d, p in zip(counts, stride, k, dilation, padding, strict=True)
        ]
        inside = reduce(
            np.logical_and.outer,
            [(i >= 0) & (i < n) for i, n in zip(places, x.shape[2:], strict=True)],
        )
        grid = np.ix_(*(np.clip(i, 0, n - 1) for i, n in zip(places, x.shape[2:], strict=True)))
        values, flat = x[(..., *grid)], np.ravel_multi_index(grid, x.shape[2:])
        wins = inside & ((where_from < 0) | (values > best) | np.isnan(values))
        best, where_from = np.where(wins, values, best), np.where(wins, flat, where_from)
    return where_from if index else best


def _max_samples(d: Draw) -> list[Sample]:
    options = {"kernel": 3, "stride": 2, "padding": 1}
    return [
        Sample((d.distinct(2, 2, 7),), options),
        Sample((d.distinct(1, 2, 4, 5),), {"kernel": (2, 3), "dilation": (2, 1)}),
        Sample((d.distinct(1, 4, 5, 3),), {**options, "layout": "channels_last"}),
        Sample((d.distinct(1, 1, 3, 2, 3),), {"kernel": 2}),
        Sample((np.asarray([[[1.0, 3.0, 3.0, 2.0]]]),), {"kernel": 3}, order=0),
        Sample((d.with_nan(1, 1, 5),), {"kernel": 2}, order=0),
        Sample((np.full((1, 1, 4), -np.inf),), {"kernel": 3, "padding": 1}, order=0),
        Sample((d.distinct(0, 2, 5),), {"kernel": 2}),
    ]


def _max_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3, 4),), {"kernel": 2}, ShapeError, "1 to 3 spatial axes"),
        Bad((d.real(1, 2, 4),), {"kernel": 5}, ShapeError, "larger than the padded input"),
        Bad((d.real(1, 2, 4),), {"kernel": 0}, ShapeError, "kernel must be at least 1"),
        Bad((d.real(1, 2, 4),), {"kernel": 2, "padding": 2}, ShapeError, "half of the kernel"),
        Bad((np.ones((1, 1, 3), np.complex64),), {"kernel": 2}, DTypeError, "no order"),
        Bad((d.real(1, 2, 2),), {"kernel": 2, "padding": 1, "dilation": 3}, ShapeError,
            "a window has no element"),
    ]  # fmt: skip


def extremum_window(name: str, x: Any, kernel: Any, options: dict[str, Any]) -> tuple:
    """The array, kernel and window of `window_max`, checked."""
    x = ordered_image(name, x)
    axes = x._aval.ndim - 2
    kernel = per_axis(name, "kernel", kernel, axes, 1)
    window = window_of(name, axes, groups=1, **options)
    _counts(name, window, window.spatial(x._aval.shape), kernel)
    for k, d, pads in zip(kernel, window.dilation, window.padding, strict=True):
        if 2 * max(pads) > d * (k - 1) + 1:
            raise ShapeError(
                f"{name}: padding is at most half of the kernel, got {max(pads)} for a kernel of"
                f" {k} with dilation {d}."
            )
    return x, kernel, window


@primitive(
    "x",
    infer=_max_infer,
    lowering=Intrinsic("window_max"),
    vjp={"x": _max_vjp},
    jvp={"x": _max_jvp},
    batch=_window_batch,
    oracle=lambda x, **options: _windows_by_numpy(x, options, False),
    samples=_max_samples,
    errors=_max_errors,
    namespace="primitive",
)
def window_max(
    x: Any, /, *, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The largest element under each place of a window; NaN if there is one.

    The derivative goes to the first of equal elements.

    >>> pb.primitive.window_max(pb.tensor([[[1.0, 3.0, 2.0]]]), kernel=2)
    tensor([[[3., 3.]]], float32, cpu)
    """
    options = {"stride": stride, "padding": padding, "dilation": dilation, "layout": layout}
    x, kernel, window = extremum_window("window_max", x, kernel, options)
    out = bind(window_max.op, widest(x), kernel=kernel, window=window)
    return astype(out, x._aval.dtype)


@primitive(
    "x",
    infer=_argmax_infer,
    lowering=Intrinsic("window_argmax"),
    batch=_window_batch,
    no_gradient="indices are integers",
    oracle=lambda x, **options: _windows_by_numpy(x, options, True),
    samples=_max_samples,
    errors=_max_errors,
    namespace="primitive",
)
def window_argmax(
    x: Any, /, *, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The index of the largest element under each place of a window, the first of equal ones.

    >>> pb.primitive.window_argmax(pb.tensor([[[1.0, 3.0, 2.0]]]), kernel=2)
    tensor([[[1, 1]]], int32, cpu)
    """
    options = {"stride": stride, "padding": padding, "dilation": dilation, "layout": layout}
    x, kernel, window = extremum_window("window_argmax", x, kernel, options)
    return bind(window_argmax.op, widest(x), kernel=kernel, window=window)


# -- elements at places ----------------------------------------------------------------------------


def _spatial(shape: Shape, last: bool) -> Shape:
    return shape[1:-1] if last else shape[2:]


def _rest(shape: Shape, last: bool) -> Shape:
    return (shape[0], shape[-1] if last else shape[1])


def _pick_infer(x: Aval, index: Aval, last: bool) -> tuple[Shape, DType]:
    return index.shape, x.dtype


def _place_infer(y: Aval, index: Aval, size: Shape, last: bool) -> tuple[Shape, DType]:
    batch, channels = _rest(y.shape, last)
    return ((batch, *size, channels) if last else (batch, channels, *size)), y.dtype


def _operands(name: str, x: Any, index: Any, layout: str) -> tuple[Any, Any, bool]:
    x, index = as_array(x, name), as_array(index, name)
    if layout not in LAYOUTS:
        raise DTypeError(f"{name}: layout is one of {', '.join(LAYOUTS)}, got {layout!r}.")
    last = layout == LAYOUTS[1]
    a, b = x._aval, index._aval
    if not b.dtype.is_integer:
        raise DTypeError(f"{name}: indices must be integers, got {b.dtype.name}.")
    if a.ndim < 3 or b.ndim < 3 or _rest(a.shape, last) != _rest(b.shape, last):
        raise ShapeError(
            f"{name}: batch and channels of the array and of the indices must be the same,"
            f" got shapes {a.shape} and {b.shape}."
        )
    if b.dtype not in (dt.int32, dt.int64):
        index = astype(index, dt.int64)
    return (x if a.dtype.is_inexact else astype(x, default_float())), index, last


def _by_parts(op: Any, x: Any, index: Any, **static: Any) -> Any:
    dtype = x._aval.dtype
    if dtype.is_complex:
        raise DTypeError(f"{op.name}: expected a floating dtype, got {dtype.name}.")
    out = bind(op, widest(x), index, **static)
    return astype(out, dtype)


def _pick_oracle(x: np.ndarray, index: np.ndarray, *, layout: str = LAYOUTS[0]) -> np.ndarray:
    if layout == LAYOUTS[1]:
        return np.moveaxis(_pick_oracle(np.moveaxis(x, -1, 1), np.moveaxis(index, -1, 1)), 1, -1)
    out = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        out[at] = x[at[:2]].reshape(-1)[index[at]]
    return out


def _place_oracle(
    y: np.ndarray, index: np.ndarray, *, size: Any, layout: str = LAYOUTS[0]
) -> np.ndarray:
    if layout == LAYOUTS[1]:
        moved = _place_oracle(np.moveaxis(y, -1, 1), np.moveaxis(index, -1, 1), size=size)
        return np.moveaxis(moved, 1, -1)
    size = (size,) if isinstance(size, int) else tuple(size)
    out = np.zeros((*y.shape[:2], prod(size)), y.dtype)
    for at in np.ndindex(*index.shape):
        out[(*at[:2], index[at])] += y[at]
    return out.reshape(*y.shape[:2], *size)


def _index_errors(d: Draw, options: dict[str, Any]) -> list[Bad]:
    x, bad = d.real(1, 2, 4), np.full((1, 2, 4), 9)
    return [
        Bad((x, bad), options, IndexOutOfRange, "index 9 is out of range"),
        Bad((x, -np.ones((1, 2, 4), np.int64)), options, IndexOutOfRange, "index -1 is out"),
        Bad((x, d.real(1, 2, 4)), options, DTypeError, "indices must be integers"),
        Bad((x, d.integers(1, 3, 4)), options, ShapeError, "must be the same"),
        Bad((np.ones((1, 2, 4), np.complex64), d.integers(1, 2, 4, high=4)), options, DTypeError,
            "expected a floating dtype"),
    ]  # fmt: skip


@primitive(
    "x index",
    infer=_pick_infer,
    lowering=Intrinsic("pick", raises=True),
    vjp={
        "x": lambda g, index, x_aval, last: bind(
            place.op, g, index, size=_spatial(x_aval.shape, last), last=last
        )
    },
    jvp="linear",
    batch=lambda op, x, index, last: batches(op, x, index, last=last),
    oracle=_pick_oracle,
    samples=lambda d: [
        Sample((d.real(2, 2, 5), d.integers(2, 2, 3, high=5))),
        Sample((d.real(1, 2, 3, 2), d.integers(1, 3, 1, 2, high=6)), {"layout": "channels_last"}),
        Sample((d.real(0, 2, 5), d.integers(0, 2, 3))),
    ],
    errors=lambda d: _index_errors(d, {}),
    namespace="primitive",
)
def pick(x: Any, index: Any, /, *, layout: str = "channels_first") -> Any:
    """The elements of each batch and channel of `x` at the places that `index` gives.

    >>> pb.primitive.pick(pb.tensor([[[1.0, 3.0, 2.0]]]), pb.tensor([[[2, 0]]]))
    tensor([[[2., 1.]]], float32, cpu)
    """
    x, index, last = _operands("pick", x, index, layout)
    return _by_parts(pick.op, x, index, last=last)


@primitive(
    "y index",
    infer=_place_infer,
    lowering=Intrinsic("place", raises=True),
    vjp={"y": lambda g, index, last: bind(pick.op, g, index, last=last)},
    jvp="linear",
    batch=lambda op, y, index, size, last: batches(op, y, index, size=size, last=last),
    oracle=_place_oracle,
    samples=lambda d: [
        Sample((d.real(2, 2, 5), d.integers(2, 2, 5, high=4)), {"size": 4}),
        Sample((d.real(1, 3, 1, 2), d.integers(1, 3, 1, 2, high=6)),
               {"size": (2, 3), "layout": "channels_last"}),
        Sample((d.real(0, 2, 5), d.integers(0, 2, 5)), {"size": 4}),
    ],
    errors=lambda d: [
        *_index_errors(d, {"size": 5}),
        Bad((d.real(1, 2, 4), d.integers(1, 2, 3)), {"size": 9}, ShapeError, "one place for each"),
    ],
    namespace="primitive",
)  # fmt: skip
def place(y: Any, index: Any, /, *, size: Any, layout: str = "channels_first") -> Any:
    """Zeros with spatial axes of `size`, and `y` added at the places that `index` gives.

    >>> pb.primitive.place(pb.tensor([[[1.0, 2.0, 4.0]]]), pb.tensor([[[1, 1, 0]]]), size=3)
    tensor([[[4., 3., 0.]]], float32, cpu)
    """
    y, index, last = _operands("place", y, index, layout)
    if y._aval.shape != index._aval.shape:
        raise ShapeError(
            f"place: takes one place for each element, got shapes {y._aval.shape} and"
            f" {index._aval.shape}."
        )
    given = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    return _by_parts(place.op, y, index, size=per_axis("place", "size", given, len(given), 1),
                     last=last)  # fmt: skip
