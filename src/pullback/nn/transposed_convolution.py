"""Transposed convolutions in 1, 2 and 3 dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import inexact
from pullback.nn.convolution import batched, check_weight_rank, unbatched, with_bias
from pullback.ops.convolution import (
    Shape,
    Window,
    check_weight,
    conv_dx,
    per_axis,
    trilinear,
    window_of,
)
from pullback.ops.families import composite

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def _numbers(value: Any, axes: int) -> list[int]:
    return [int(v) for v in np.broadcast_to(value, (axes,))]


def _transposed(
    axes: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any, layout: str,
) -> Any:  # fmt: skip
    name = f"conv_transpose{axes}d"
    input, weight, bias = inexact(name, input, weight, bias)
    check_weight_rank(name, weight, axes)
    y, had_batch = batched(name, input, axes)
    window = window_of(name, axes, stride, padding, dilation, groups, layout)
    extra = per_axis(name, "output_padding", output_padding, axes, 0)
    for n, s, d in zip(extra, window.stride, window.dilation, strict=True):
        if n >= max(s, d):
            raise ShapeError(
                f"{name}: output_padding must be smaller than stride or dilation, got {n} with"
                f" stride {s} and dilation {d}."
            )
    shape, w = y._aval.shape, weight._aval.shape
    check_weight(name, window, window.channels(shape), w[1] * window.groups, w)
    size = _transposed_size(name, window, window.spatial(shape), w[2:], extra)
    # The end of the output is moved by the padding after it, which may become negative.
    pads = tuple((a, b - n) for (a, b), n in zip(window.padding, extra, strict=True))
    window = window._replace(padding=pads)
    out = trilinear(conv_dx.op, y, weight, size=size, window=window)
    return unbatched(with_bias(name, out, bias, window), had_batch)


def _transposed_size(
    name: str, window: Window, places: Shape, kernel: Shape, extra: Shape
) -> Shape:
    if 0 in places or 0 in kernel:
        raise ShapeError(
            f"{name}: spatial axes must not be empty, got an input of {places} and a kernel of"
            f" {kernel}."
        )
    axes = zip(places, kernel, window.stride, window.padding, window.dilation, extra, strict=True)
    size = tuple((n - 1) * s - sum(p) + d * (k - 1) + e + 1 for n, k, s, p, d, e in axes)
    if min(size) < 1:
        raise ShapeError(f"{name}: padding leaves no output, got a size of {size}. Pad less.")
    return size


# -- oracle and samples ---------------------------------------------------------------------------


def _transposed_oracle(
    y: np.ndarray, w: np.ndarray, b: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    """Input by input: the weight is added to the output around its place."""
    axes = w.ndim - 2
    if y.ndim == axes + 1:
        more = (b, stride, padding, output_padding, groups, dilation, layout)
        return _transposed_oracle(y[None], w, *more)[0]
    y = np.moveaxis(y, -1, 1) if layout == "channels_last" else y
    s, d, p, e = (_numbers(v, axes) for v in (stride, dilation, padding, output_padding))
    rows = list(zip(y.shape[2:], w.shape[2:], s, d, p, e, strict=True))
    full = [(n - 1) * a + c * (k - 1) + 1 + max(f, 0) for n, k, a, c, _, f in rows]
    ins, outs = w.shape[0] // groups, w.shape[1]
    out = np.zeros((y.shape[0], outs * groups, *full), np.result_type(y, w))
    for c in range(w.shape[0]):
        first = c // ins * outs
        for q in np.ndindex(*y.shape[2:]):
            cut = tuple(
                slice(i * a, i * a + g * (k - 1) + 1, g)
                for i, (_, k, a, g, _, _) in zip(q, rows, strict=True)
            )
            value = y[(slice(None), c, *q)].reshape(-1, *[1] * (axes + 1))
            out[(slice(None), slice(first, first + outs), *cut)] += value * w[c]
    size = [(n - 1) * a - 2 * f + c * (k - 1) + g + 1 for n, k, a, c, f, g in rows]
    ends = [slice(f, f + n) for f, n in zip(p, size, strict=True)]
    out = out[(..., *ends)]
    if b is not None:
        out = out + b.reshape(-1, *[1] * axes)
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


LAST = {"layout": "channels_last"}


def _transposed_samples_1d(d: Draw) -> list[Sample]:
    y, w, b = d.real(2, 4, 3), d.real(4, 2, 3), d.real(2)
    return [
        Sample((y, w, b)),
        Sample((y, w, b), {"stride": 2, "padding": 1, "output_padding": 1}),
        Sample((y, w, d.real(4)), {"groups": 2, "stride": 3, "dilation": 2}),
        Sample((y, w), {"stride": 1, "dilation": 3, "output_padding": 2, "padding": 1}),
        Sample((d.real(4, 3), w, b), {"stride": 2}),
        Sample((d.real(1, 3, 4), w, b), {"stride": 2, "padding": 1, **LAST}),
        Sample((d.real(0, 4, 3), w)),
    ]


def _transposed_samples_2d(d: Draw) -> list[Sample]:
    y, w, b = d.real(1, 2, 2, 3), d.real(2, 3, 3, 2), d.real(3)
    options = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}
    return [
        Sample((y, w, b), options),
        Sample((y, d.real(2, 1, 2, 2)), {"groups": 2, "stride": 3}),
        Sample((d.real(1, 2, 3, 2), w, b), {**options, **LAST}),
    ]


def _transposed_samples_3d(d: Draw) -> list[Sample]:
    y, w = d.real(1, 2, 1, 2, 2), d.real(2, 2, 2, 1, 2)
    options = {"stride": (1, 2, 2), "output_padding": (0, 1, 1)}
    return [
        Sample((y, w, d.real(2)), options),
        Sample((d.real(1, 1, 2, 2, 2), w), {"padding": (0, 0, 1), **LAST}),
    ]


def _transposed_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        y, w = d.real(1, 2, *[3] * axes), d.real(2, 2, *[3] * axes)
        return [
            Bad((d.real(4), w), {}, ShapeError, f"takes {axes + 2} dimensions"),
            Bad((y, d.real(2, 2)), {}, ShapeError, f"a weight has {axes + 2} dimensions"),
            Bad((y, d.real(3, 2, *[3] * axes)), {}, ShapeError, "gives 3 output channels"),
            Bad((y, w, d.real(3)), {}, ShapeError, "bias has one element"),
            Bad((y, w), {"stride": 0}, ShapeError, "stride must be at least 1, got 0"),
            Bad((y, w), {"output_padding": 1}, ShapeError, "smaller than stride or dilation"),
            Bad((y, w), {"padding": 3}, ShapeError, "leaves no output"),
            Bad((y, w), {"groups": 3}, ShapeError, "groups must divide"),
            Bad((d.real(1, 2, *[0] * axes), w), {}, ShapeError, "must not be empty"),
        ]

    return errors


@composite(
    oracle=_transposed_oracle,
    samples=_transposed_samples_1d,
    errors=_transposed_errors(1),
    namespace="nn",
)
def conv_transpose1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1, *,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The transpose of `conv1d` with a weight (channels, out channels of a group, kernel).

    Its length is `(length - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1`.

    >>> x = pb.tensor([[[1.0, 2.0]]])
    >>> pb.nn.conv_transpose1d(x, pb.tensor([[[1.0, 10.0]]]), stride=2)
    tensor([[[ 1., 10.,  2., 20.]]], float32, cpu)
    """
    return _transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@composite(
    oracle=_transposed_oracle,
    samples=_transposed_samples_2d,
    errors=_transposed_errors(2),
    namespace="nn",
)
def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1, *,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The transpose of `conv2d`; see `conv_transpose1d`.

    >>> pb.nn.conv_transpose2d(pb.ones((1, 1, 2, 2)), pb.ones((1, 1, 2, 2)))
    tensor([[[[1., 2., 1.],
              [2., 4., 2.],
              [1., 2., 1.]]]], float32, cpu)
    """
    return _transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@composite(
    oracle=_transposed_oracle,
    samples=_transposed_samples_3d,
    errors=_transposed_errors(3),
    namespace="nn",
)
def conv_transpose3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1, *,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The transpose of `conv3d`; see `conv_transpose1d`.

    >>> pb.nn.conv_transpose3d(pb.ones((1, 1, 1, 1, 1)), pb.ones((1, 2, 1, 1, 2)))
    tensor([[[[[1., 1.]]],
    <BLANKLINE>
    <BLANKLINE>
             [[[1., 1.]]]]], float32, cpu)
    """
    return _transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )
