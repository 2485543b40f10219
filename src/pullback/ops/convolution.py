"""Convolution: one trilinear form in input, weight and output, and its three partial derivatives.

    T(x, w, y) = sum over n, o, q, c, k of  y[n, o, q] * w[o, c, k] * x[n, c, q * stride + k *
    dilation - padding]

`conv` is the derivative of T by y, `conv_dx` by x, `conv_dw` by w. T is linear in each, so that
the derivative of any of the three is made of the other two. Spatial axes are 1, 2 or 3; weights
always are (out channels, in channels of a group, *kernel).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.cost import convolution_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.examples import batches, groups
from pullback.ops.families import primitive
from pullback.ops.parts import astype, imag, real
from pullback.ops.promotion import same_dtype

__all__ = ["Window", "conv", "conv_dw", "conv_dx", "per_axis", "window_of", "window_pads"]

LAYOUTS = ("channels_first", "channels_last")
Shape = tuple[int, ...]


class Window(NamedTuple):
    """How a kernel moves over the spatial axes."""

    stride: Shape
    padding: tuple[tuple[int, int], ...]  # before and after each axis
    dilation: Shape
    groups: int
    last: bool  # whether channels are the last axis

    def spatial(self, shape: Shape) -> Shape:
        """The spatial part of a shape."""
        return shape[1:-1] if self.last else shape[2:]

    def channels(self, shape: Shape) -> int:
        return shape[-1] if self.last else shape[1]

    def shape(self, batch: int, channels: int, spatial: Shape) -> Shape:
        """The shape of an array with these axes."""
        return (batch, *spatial, channels) if self.last else (batch, channels, *spatial)

    def counts(self, spatial: Shape, kernel: Shape) -> Shape:
        """How many places a kernel has on each axis."""
        axes = zip(spatial, kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + sum(p) - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)


def per_axis(name: str, what: str, value: Any, axes: int, least: int) -> Shape:
    """A number, or one for each spatial axis, as a tuple."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(given) == 1:
        given *= axes
    whole = [isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in given]
    if len(given) != axes or not all(whole):
        raise ShapeError(
            f"{name}: {what} is an integer or {axes} integers, one for each spatial axis,"
            f" got {value!r}."
        )
    if min(given) < least:
        raise ShapeError(f"{name}: {what} must be at least {least}, got {value!r}.")
    return tuple(int(v) for v in given)


def window_pads(name: str, value: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """The padding of each axis as a pair: from a number, numbers, or pairs."""
    given = list(value) if isinstance(value, (tuple, list)) else [value] * axes
    if len(given) == 1:
        given *= axes
    pairs = [p if isinstance(p, (tuple, list)) else (p, p) for p in given]
    if len(pairs) != axes or any(len(p) != 2 for p in pairs):
        raise ShapeError(
            f"{name}: padding is an integer, or an integer or a pair for each of {axes} spatial"
            f" axes, got {value!r}."
        )
    flat = per_axis(name, "padding", [n for p in pairs for n in p], 2 * axes, 0)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def window_of(
    name: str, axes: int, stride: Any, padding: Any, dilation: Any, groups: Any, layout: str
) -> Window:
    """The options of a convolution, checked."""
    if layout not in LAYOUTS:
        raise DTypeError(f"{name}: layout is one of {', '.join(LAYOUTS)}, got {layout!r}.")
    return Window(
        per_axis(name, "stride", stride, axes, 1),
        window_pads(name, padding, axes),
        per_axis(name, "dilation", dilation, axes, 1),
        per_axis(name, "groups", groups, 1, 1)[0],
        layout == "channels_last",
    )


def check_weight(name: str, window: Window, outs: int, ins: int, weight: Shape) -> None:
    """Whether a weight connects `ins` channels with `outs` in groups."""
    groups = window.groups
    if outs % groups or ins % groups:
        raise ShapeError(
            f"{name}: groups must divide the channels, got {groups} groups for {ins} input and"
            f" {outs} output channels."
        )
    if weight[0] != outs or weight[1] * groups != ins:
        raise ShapeError(
            f"{name}: a weight of shape {weight} with {groups} groups takes {weight[1] * groups}"
            f" input and gives {weight[0]} output channels, got {ins} and {outs}."
        )


def check_extents(name: str, window: Window, spatial: Shape, kernel: Shape) -> Shape:
    """The places of a kernel, if it has any."""
    if 0 in spatial or 0 in kernel:
        raise ShapeError(
            f"{name}: spatial axes must not be empty, got an input of {spatial} and a kernel of"
            f" {kernel}."
        )
    counts = window.counts(spatial, kernel)
    if min(counts) < 1:
        padded = tuple(n + sum(p) for n, p in zip(spatial, window.padding, strict=True))
        reach = tuple(d * (k - 1) + 1 for d, k in zip(window.dilation, kernel, strict=True))
        raise ShapeError(
            f"{name}: the kernel is larger than the padded input, got an extent of {reach} on"
            f" {padded}. Pad more, or dilate less."
        )
    return counts


def check_rank(name: str, shape: Shape, weight: Shape) -> int:
    """How many spatial axes there are."""
    if len(shape) != len(weight) or not 3 <= len(shape) <= 5:
        raise ShapeError(
            f"{name}: takes arrays of one rank: batch, channels and 1 to 3 spatial axes,"
            f" got shapes {shape} and {weight}."
        )
    return len(shape) - 2


def _conv_infer(x: Aval, w: Aval, window: Window) -> tuple[Shape, DType]:
    check_weight("conv", window, w.shape[0], window.channels(x.shape), w.shape)
    counts = check_extents("conv", window, window.spatial(x.shape), w.shape[2:])
    return window.shape(x.shape[0], w.shape[0], counts), x.dtype


def _dx_infer(y: Aval, w: Aval, size: Shape, window: Window) -> tuple[Shape, DType]:
    ins = w.shape[1] * window.groups
    check_weight("conv_dx", window, window.channels(y.shape), ins, w.shape)
    _check_places("conv_dx", window, size, w.shape[2:], y.shape)
    return window.shape(y.shape[0], ins, size), y.dtype


def _dw_infer(x: Aval, y: Aval, kernel: Shape, window: Window) -> tuple[Shape, DType]:
    ins, outs = window.channels(x.shape), window.channels(y.shape)
    shape = (outs, ins // window.groups, *kernel)
    check_weight("conv_dw", window, outs, ins, shape)
    if x.shape[0] != y.shape[0]:
        raise ShapeError(f"conv_dw: the batches differ, got shapes {x.shape} and {y.shape}.")
    _check_places("conv_dw", window, window.spatial(x.shape), kernel, y.shape)
    return shape, x.dtype


def _check_places(name: str, window: Window, size: Shape, kernel: Shape, y: Shape) -> None:
    counts, own = check_extents(name, window, size, kernel), window.spatial(y)
    if counts != own:
        raise ShapeError(
            f"{name}: a kernel of {kernel} has {counts} places on an input of {size}, got {own}."
        )


def trilinear(op: Any, a: Any, b: Any, **static: Any) -> Any:
    """A primitive of the family in any dtype.

    Halves are computed in float32 and rounded once, complex arrays by their parts.
    """
    dtype = a._aval.dtype
    if dtype.is_complex:
        (p, q), (r, s) = ((real(v), imag(v)) for v in (a, b))
        straight = bind(op, p, r, **static) - bind(op, q, s, **static)
        return straight + (bind(op, p, s, **static) + bind(op, q, r, **static)) * 1j
    if dtype in (dt.float16, dt.bfloat16):
        wide = bind(op, astype(a, dt.float32), astype(b, dt.float32), **static)
        return astype(wide, dtype)
    return bind(op, a, b, **static)


def _prepared(name: str, a: Any, b: Any, *options: Any) -> tuple[Any, Any, Window]:
    """Two operands in one dtype with a derivative, and the window of their options."""
    a, b = same_dtype(name, a, b)
    if not a._aval.dtype.is_inexact:
        a, b = (astype(v, default_float()) for v in (a, b))
    axes = check_rank(name, a._aval.shape, b._aval.shape)
    return a, b, window_of(name, axes, *options)


# -- many examples ---------------------------------------------------------------------------------


def _channel_axis(x: Any, window: Window) -> int:
    """The axis of the channels in an example of images."""
    return x._aval.ndim - 2 if window.last else 1


def _conv_batch(x: Any, w: Any, window: Window, examples: int) -> Any:
    if w._aval.shape[0] == 1:
        return batches(conv.op, x, shared=(w,), window=window)
    axis = _channel_axis(x, window)
    return groups(conv.op, (x, w), (axis, 0, axis), window, examples)


def _dx_batch(y: Any, w: Any, size: Shape, window: Window, examples: int) -> Any:
    if w._aval.shape[0] == 1:
        return batches(conv_dx.op, y, shared=(w,), size=size, window=window)
    axis = _channel_axis(y, window)
    return groups(conv_dx.op, (y, w), (axis, 0, axis), window, examples, size=size)


def _dw_batch(x: Any, y: Any, kernel: Shape, window: Window, examples: int) -> Any:
    axis = _channel_axis(x, window)
    return groups(conv_dw.op, (x, y), (axis, axis, 0), window, examples, kernel=kernel)


# -- samples ---------------------------------------------------------------------------------------

OPTIONS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (  # of x, of w
    ((2, 4, 5), (3, 4, 3), {}),
    ((2, 4, 7), (6, 2, 2), {"stride": 2, "padding": ((2, 1),), "dilation": 3, "groups": 2}),
    ((1, 2, 4, 5), (3, 2, 3, 2), {"stride": (2, 1), "padding": (1, (0, 2))}),
    ((1, 3, 4, 4), (6, 1, 2, 3), {"groups": 3, "padding": 1, "stride": (1, 2)}),
    ((2, 2, 3, 2, 3), (2, 2, 2, 1, 3), {"padding": ((1, 0), 0, 1), "stride": (1, 2, 1)}),
    ((0, 2, 4), (3, 2, 3), {}),
)


def _laid(shape: Shape, last: bool) -> Shape:
    return (shape[0], *shape[2:], shape[1]) if last else shape


def _cases() -> list[tuple[Shape, Shape, Shape, Shape, Window, dict[str, Any]]]:
    """Shapes of x, w and y, the input's extents, the window and the options, in both layouts."""
    found = []
    for position, (x, w, options) in enumerate(OPTIONS):
        last = position % 2 == 1
        given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **options}
        layout = LAYOUTS[last]
        window = window_of("conv", len(x) - 2, layout=layout, **given)
        counts = window.counts(x[2:], w[2:])
        y = window.shape(x[0], w[0], counts)
        found.append((_laid(x, last), w, y, x[2:], window, {**options, "layout": layout}))
    return found


def _conv_samples(d: Draw) -> list[Sample]:
    return [Sample((d.real(*x), d.real(*w)), options) for x, w, _, _, _, options in _cases()]


def _dx_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(*y), d.real(*w)), {"size": size, **options})
        for _, w, y, size, _, options in _cases()
    ]


def _dw_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(*x), d.real(*y)), {"kernel": w[2:], **options})
        for x, w, y, _, _, options in _cases()
    ]


def _first(a: np.ndarray, layout: str) -> np.ndarray:
    return np.moveaxis(a, -1, 1) if layout == "channels_last" else a


def _numpy_form(
    x: np.ndarray, w: np.ndarray, y: np.ndarray, wanted: str, options: dict[str, Any]
) -> np.ndarray:
    """A partial derivative of the form, by a loop over the kernel, for channels first."""
    axes, groups = x.ndim - 2, options.get("groups", 1)
    stride, dilation = (np.broadcast_to(options.get(k, 1), axes) for k in ("stride", "dilation"))
    given = options.get("padding", 0)
    each = given if isinstance(given, tuple) else (given,) * axes
    pads = [(p, p) if isinstance(p, int) else p for p in each]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = y.reshape(y.shape[0], groups, y.shape[1] // groups, *y.shape[2:])
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    out = {"x": x, "w": w, "y": y}[wanted]
    for k in product(*map(range, w.shape[3:])):
        cut = tuple(
            slice(i * d, i * d + (n - 1) * s + 1, s)
            for i, d, s, n in zip(k, dilation, stride, y.shape[3:], strict=True)
        )
        part, tap = x[(..., *cut)], w[(..., *k)]
        if wanted == "y":
            out += np.einsum("ngc...,goc->ngo...", part, tap)
        elif wanted == "x":
            part += np.einsum("ngo...,goc->ngc...", y, tap)
        else:
            out[(..., *k)] += np.einsum(
                "ngcq,ngoq->goc",
                part.reshape(*part.shape[:3], math.prod(part.shape[3:])),
                y.reshape(*y.shape[:3], math.prod(y.shape[3:])),
            )
    if wanted == "x":
        ends = [slice(p[0], n - p[1]) for n, p in zip(x.shape[3:], pads, strict=True)]
        out = out[(..., *ends)]
    return out


def _conv_oracle(x: np.ndarray, w: np.ndarray, **options: Any) -> np.ndarray:
    layout = options.pop("layout", LAYOUTS[0])
    x = _first(x, layout)
    window = window_of(
        "conv", x.ndim - 2, layout=LAYOUTS[0],
        **{"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **options},
    )  # fmt: skip
    counts = window.counts(x.shape[2:], w.shape[2:])
    y = np.zeros((x.shape[0], w.shape[0], *counts), np.result_type(x, w))
    y = _numpy_form(x, w, y, "y", options).reshape(y.shape)
    return np.moveaxis(y, 1, -1) if layout == "channels_last" else y


def _dx_oracle(y: np.ndarray, w: np.ndarray, *, size: Shape, **options: Any) -> np.ndarray:
    layout, groups = options.pop("layout", LAYOUTS[0]), options.get("groups", 1)
    y = _first(y, layout)
    x = np.zeros((y.shape[0], w.shape[1] * groups, *size), np.result_type(y, w))
    x = _numpy_form(x, w, y, "x", options).reshape(x.shape)
    return np.moveaxis(x, 1, -1) if layout == "channels_last" else x


def _dw_oracle(x: np.ndarray, y: np.ndarray, *, kernel: Shape, **options: Any) -> np.ndarray:
    layout, groups = options.pop("layout", LAYOUTS[0]), options.get("groups", 1)
    x, y = _first(x, layout), _first(y, layout)
    w = np.zeros((y.shape[1], x.shape[1] // groups, *kernel), np.result_type(x, y))
    return _numpy_form(x, w, y, "w", options).reshape(w.shape)


def _conv_errors(d: Draw) -> list[Bad]:
    x, w = d.real(1, 4, 6), d.real(2, 4, 3)
    return [
        Bad((d.real(4, 6), w), {}, ShapeError, "arrays of one rank"),
        Bad((x, d.real(2, 3, 3)), {}, ShapeError, "takes 3 input"),
        Bad((x, d.real(2, 4, 7)), {}, ShapeError, "larger than the padded input"),
        Bad((x, w), {"stride": 0}, ShapeError, "stride must be at least 1, got 0"),
        Bad((x, w), {"stride": -1}, ShapeError, "stride must be at least 1"),
        Bad((x, w), {"padding": -1}, ShapeError, "padding must be at least 0"),
        Bad((x, w), {"padding": (1, 1)}, ShapeError, "padding is an integer"),
        Bad((x, w), {"dilation": 1.5}, ShapeError, "dilation is an integer"),
        Bad((x, w), {"groups": 3}, ShapeError, "groups must divide"),
        Bad((d.real(1, 4, 0), w), {"padding": 3}, ShapeError, "must not be empty"),
        Bad((x, w), {"layout": "last"}, DTypeError, "layout is one of"),
    ]


# -- the family ------------------------------------------------------------------------------------


@primitive(
    "x w",
    infer=_conv_infer,
    lowering=Intrinsic("conv", work=convolution_work),
    vjp={
        "x": lambda g, w, x_aval, window: bind(
            conv_dx.op, g, w, size=window.spatial(x_aval.shape), window=window
        ),
        "w": lambda g, x, w_aval, window: bind(
            conv_dw.op, x, g, kernel=w_aval.shape[2:], window=window
        ),
    },
    jvp="multilinear",
    batch=_conv_batch,
    oracle=_conv_oracle,
    samples=_conv_samples,
    errors=_conv_errors,
    namespace="primitive",
)
def conv(
    x: Any,
    w: Any,
    /,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Any:
    """The sums of `x` under a kernel at all its places: `dT/dy`.

    >>> x, w = pb.tensor([[[1.0, 2.0, 3.0]]]), pb.tensor([[[1.0, 10.0]]])
    >>> pb.primitive.conv(x, w)
    tensor([[[21., 32.]]], float32, cpu)
    """
    x, w, window = _prepared("conv", x, w, stride, padding, dilation, groups, layout)
    return trilinear(conv.op, x, w, window=window)


@primitive(
    "y w",
    infer=_dx_infer,
    lowering=Intrinsic("conv_dx", work=convolution_work),
    vjp={
        "y": lambda g, w, window: bind(conv.op, g, w, window=window),
        "w": lambda g, y, w_aval, window: bind(
            conv_dw.op, g, y, kernel=w_aval.shape[2:], window=window
        ),
    },
    jvp="multilinear",
    batch=_dx_batch,
    oracle=_dx_oracle,
    samples=_dx_samples,
    errors=lambda d: [
        Bad((d.real(1, 2), d.real(2, 1, 3)), {"size": 4}, ShapeError, "arrays of one rank"),
        Bad((d.real(1, 3, 2), d.real(2, 1, 3)), {"size": 4}, ShapeError, "gives 2 output"),
        Bad((d.real(1, 2, 2), d.real(2, 1, 3)), {"size": 5}, ShapeError, "has (3,) places"),
        Bad((d.real(1, 2, 2), d.real(2, 1, 3)), {"size": 2}, ShapeError, "larger than"),
    ],
    namespace="primitive",
)
def conv_dx(
    y: Any,
    w: Any,
    /,
    *,
    size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Any:
    """The transpose of `conv` for inputs with spatial axes of `size`: `dT/dx`.

    >>> y, w = pb.tensor([[[1.0, 2.0]]]), pb.tensor([[[1.0, 10.0]]])
    >>> pb.primitive.conv_dx(y, w, size=3)
    tensor([[[ 1., 12., 20.]]], float32, cpu)
    """
    y, w, window = _prepared("conv_dx", y, w, stride, padding, dilation, groups, layout)
    extents = per_axis("conv_dx", "size", size, len(window.stride), 0)
    return trilinear(conv_dx.op, y, w, size=extents, window=window)


@primitive(
    "x y",
    infer=_dw_infer,
    lowering=Intrinsic("conv_dw", work=convolution_work),
    vjp={
        "x": lambda g, y, x_aval, window: bind(
            conv_dx.op, y, g, size=window.spatial(x_aval.shape), window=window
        ),
        "y": lambda g, x, window: bind(conv.op, x, g, window=window),
    },
    jvp="multilinear",
    batch=_dw_batch,
    oracle=_dw_oracle,
    samples=_dw_samples,
    errors=lambda d: [
        Bad((d.real(1, 4), d.real(1, 2, 4)), {"kernel": 3}, ShapeError, "arrays of one rank"),
        Bad((d.real(1, 1, 6), d.real(2, 2, 4)), {"kernel": 3}, ShapeError, "batches differ"),
        Bad((d.real(1, 1, 6), d.real(1, 2, 4)), {"kernel": 2}, ShapeError, "has (5,) places"),
    ],
    namespace="primitive",
)
def conv_dw(
    x: Any,
    y: Any,
    /,
    *,
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Any:
    """The sums of products of `x` and `y` for every place in a kernel of that shape: `dT/dw`.

    >>> x, y = pb.tensor([[[1.0, 2.0, 3.0]]]), pb.tensor([[[1.0, 10.0]]])
    >>> pb.primitive.conv_dw(x, y, kernel=2)
    tensor([[[21., 32.]]], float32, cpu)
    """
    x, y, window = _prepared("conv_dw", x, y, stride, padding, dilation, groups, layout)
    extents = per_axis("conv_dw", "kernel", kernel, len(window.stride), 0)
    return trilinear(conv_dw.op, x, y, kernel=extents, window=window)
