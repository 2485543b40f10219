"""Convolutions in 1, 2 and 3 dimensions."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import inexact, option
from pullback.ops.convolution import (
    Shape,
    Window,
    check_extents,
    check_weight,
    conv,
    trilinear,
    window_of,
    window_pads,
)
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.padding import pad

__all__ = ["batched", "check_weight_rank", "conv1d", "conv2d", "conv3d", "unbatched", "with_bias"]

# What torch calls a mode of padding, and what `pad` calls it.
PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# -- arguments -------------------------------------------------------------------------------------


def batched(name: str, x: Any, axes: int) -> tuple[Any, bool]:
    """The array with a batch, and whether it had one."""
    ndim = x._aval.ndim
    if ndim == axes + 1:
        return reshape(x, (1, *x._aval.shape)), False
    if ndim != axes + 2:
        raise ShapeError(
            f"{name}: takes {axes + 2} dimensions (batch, channels and {axes} spatial), or"
            f" {axes + 1} without a batch, got shape {x._aval.shape}."
        )
    return x, True


def unbatched(x: Any, had_batch: bool) -> Any:
    """The array without the batch that `batched` added."""
    return x if had_batch else reshape(x, x._aval.shape[1:])


def _same_padding(size: Shape, kernel: Shape, stride: Shape, dilation: Shape) -> list:
    """Padding that gives an output of ceil(size / stride); an odd one is larger at the end."""
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        pads.append((total // 2, total - total // 2))
    return pads


def _pads(name: str, padding: Any, window: Window, size: Shape, kernel: Shape) -> tuple:
    if not isinstance(padding, str):
        return window_pads(name, padding, len(kernel))
    option(name, "padding, if a word,", padding, ("same", "valid"))
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    return tuple(_same_padding(size, kernel, window.stride, window.dilation))


def _with_edges(name: str, x: Any, window: Window, mode: str) -> tuple[Any, Window]:
    """The input padded by a mode that is not zeros, and the window that is left to do."""
    for n, p in zip(window.spatial(x._aval.shape), window.padding, strict=True):
        most = {"reflect": n - 1, "circular": n}.get(mode)
        if most is not None and max(p) > most:
            raise ShapeError(
                f"{name}: padding with {mode!r} takes at most {most} here, got {p} for an axis of"
                f" size {n}."
            )
    widths = [(0, 0), *window.padding, (0, 0)] if window.last else [(0, 0), (0, 0), *window.padding]
    x = pad(x, tuple(widths), mode=PADDING_MODES[mode])
    return x, window._replace(padding=((0, 0),) * len(window.padding))


def with_bias(name: str, out: Any, bias: Any, window: Window) -> Any:
    """The output with a bias for each channel."""
    if bias is None:
        return out
    channels = window.channels(out._aval.shape)
    if bias._aval.shape != (channels,):
        raise ShapeError(
            f"{name}: bias has one element for each of {channels} output channels,"
            f" got shape {bias._aval.shape}."
        )
    tail = () if window.last else (1,) * len(window.stride)
    return out + reshape(bias, (channels, *tail))


def check_weight_rank(name: str, weight: Any, axes: int) -> None:
    """Whether a weight has as many spatial axes as it should."""
    if weight._aval.ndim != axes + 2:
        raise ShapeError(
            f"{name}: a weight has {axes + 2} dimensions, got shape {weight._aval.shape}."
        )


@lru_cache(4096, typed=True)
def _checked(
    name: str, shape: Shape, weight: Shape, stride: Any, padding: Any, dilation: Any, groups: Any,
    layout: str,
) -> Window:  # fmt: skip
    """The window of a convolution of these shapes."""
    axes, kernel = len(weight) - 2, weight[2:]
    window = window_of(name, axes, stride, 0, dilation, groups, layout)
    size = window.spatial(shape)
    window = window._replace(padding=_pads(name, padding, window, size, kernel))
    check_weight(name, window, weight[0], window.channels(shape), weight)
    check_extents(name, window, size, kernel)
    return window


def _frozen(value: Any) -> Any:
    """Lists as tuples, at any depth, so that options can be looked up."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _convolution(
    axes: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: int, padding_mode: str, layout: str,
) -> Any:  # fmt: skip
    name = f"conv{axes}d"
    input, weight, bias = inexact(name, input, weight, bias)
    option(name, "padding_mode", padding_mode, tuple(PADDING_MODES))
    check_weight_rank(name, weight, axes)
    x, had_batch = batched(name, input, axes)
    window = _checked(
        name, x._aval.shape, weight._aval.shape, _frozen(stride), _frozen(padding),
        _frozen(dilation), groups, layout,
    )  # fmt: skip
    if padding_mode != "zeros":
        x, window = _with_edges(name, x, window, padding_mode)
    out = trilinear(conv.op, x, weight, window=window)
    return unbatched(with_bias(name, out, bias, window), had_batch)


# -- oracles and samples ---------------------------------------------------------------------------


def _numbers(value: Any, axes: int) -> list[int]:
    return [int(v) for v in np.broadcast_to(value, (axes,))]


def _numpy_pads(padding: Any, n: tuple, k: tuple, s: list, d: list) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(k)
    if padding == "same":
        wanted = [int(np.ceil(a / b)) for a, b in zip(n, s, strict=True)]
        spans = [(w - 1) * b + c * (e - 1) + 1 for w, b, c, e in zip(wanted, s, d, k, strict=True)]
        both = [max(0, span - a) for span, a in zip(spans, n, strict=True)]
        return [(b // 2, b - b // 2) for b in both]
    given = [padding] * len(k) if isinstance(padding, int) else list(padding)
    return [(p, p) if isinstance(p, int) else tuple(p) for p in given]


def _conv_oracle(
    x: np.ndarray, w: np.ndarray, b: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    """Output by output: the window is cut from the padded input and multiplied with the weight."""
    axes = w.ndim - 2
    if x.ndim == axes + 1:
        more = (b, stride, padding, dilation, groups, padding_mode, layout)
        return _conv_oracle(x[None], w, *more)[0]
    x = np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    s, d = _numbers(stride, axes), _numbers(dilation, axes)
    mode = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}.get(
        padding_mode, "reflect"
    )
    pads = _numpy_pads(padding, x.shape[2:], w.shape[2:], s, d)
    x = np.pad(x, [(0, 0), (0, 0), *pads], mode)  # pyright: ignore[reportCallIssue,reportArgumentType]
    reach = [c * (k - 1) + 1 for c, k in zip(d, w.shape[2:], strict=True)]
    counts = [(n - r) // a + 1 for n, r, a in zip(x.shape[2:], reach, s, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *counts), np.result_type(x, w))
    ins, outs = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        first = o // outs * ins
        for q in np.ndindex(*counts):
            spans = zip(q, s, reach, d, strict=True)
            cut = tuple(slice(i * a, i * a + r, c) for i, a, r, c in spans)
            piece = x[(slice(None), slice(first, first + ins), *cut)]
            out[(slice(None), o, *q)] = (piece * w[o]).reshape(len(x), prod(w.shape[1:])).sum(1)
    if b is not None:
        out = out + b.reshape(-1, *[1] * axes)
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


LAST = {"layout": "channels_last"}


def _samples_1d(d: Draw) -> list[Sample]:
    x, w, b = d.real(2, 2, 6), d.real(4, 2, 3), d.real(4)
    return [
        Sample((x, w, b), {"padding": 1}),
        Sample((x, w), {"stride": 2, "padding": "same"}),
        Sample((x, d.real(4, 1, 2), b), {"dilation": 2, "groups": 2, "padding": ((2, 0),)}),
        Sample((x, w), {"padding": 2, "padding_mode": "reflect"}),
        Sample((x, w), {"padding": 2, "padding_mode": "replicate"}),
        Sample((x, w), {"padding": 2, "padding_mode": "circular", "stride": 2}),
        Sample((d.real(2, 6), w, b), {"padding": "valid"}),
        Sample((d.real(1, 6, 2), w, b), {"stride": (3,), "padding": (2,), **LAST}),
        Sample((d.real(0, 2, 6), w, b)),
    ]


def _samples_2d(d: Draw) -> list[Sample]:
    x, w, b = d.real(1, 2, 4, 5), d.real(4, 2, 3, 2), d.real(4)
    options = {"stride": 2, "dilation": 2, "padding": (2, 1)}
    return [
        Sample((x, w, b), {"padding": 1}),
        Sample((x, w, b), options),
        Sample((x, d.real(2, 1, 3, 3), d.real(2)), {"groups": 2, "padding": "same"}),
        Sample((x, w), {"padding": ((1, 0), (2, 1)), "padding_mode": "circular"}),
        Sample((d.real(1, 4, 5, 2), w, b), {"padding": "same", "stride": (2, 1), **LAST}),
        Sample((d.real(2, 4, 5), w)),
    ]


def _samples_3d(d: Draw) -> list[Sample]:
    w, b = d.real(2, 2, 2, 1, 2), d.real(2)
    return [
        Sample((d.real(1, 2, 2, 3, 3), w, b), {"padding": (1, 0, 1), "stride": (1, 2, 2)}),
        Sample((d.real(1, 3, 2, 3, 2), w, b), {"dilation": (2, 1, 1), **LAST}),
        Sample((d.real(1, 2, 2, 2, 2), d.real(2, 1, 2, 2, 2)), {"groups": 2, "padding": 1}),
    ]


def _conv_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        x, w = d.real(1, 2, *[4] * axes), d.real(2, 2, *[3] * axes)
        return [
            Bad((d.real(4), w), {}, ShapeError, f"takes {axes + 2} dimensions"),
            Bad((x, d.real(2, 2)), {}, ShapeError, f"a weight has {axes + 2} dimensions"),
            Bad((x, d.real(2, 3, *[3] * axes)), {}, ShapeError, "takes 3 input"),
            Bad((x, w, d.real(3)), {}, ShapeError, "bias has one element"),
            Bad((x, d.real(2, 2, *[5] * axes)), {}, ShapeError, "larger than the padded input"),
            Bad((x, w), {"stride": -1}, ShapeError, "stride must be at least 1, got -1"),
            Bad((x, w), {"groups": 3}, ShapeError, "groups must divide"),
            Bad((x, w), {"padding": "full"}, DTypeError, "same, valid"),
            Bad((x, w), {"padding": 4, "padding_mode": "reflect"}, ShapeError, "at most 3"),
            Bad((x, w), {"padding_mode": "mirror"}, DTypeError, "padding_mode is one of"),
            Bad((d.real(1, 2, *[0] * axes), w), {"padding": 3}, ShapeError, "must not be empty"),
            Bad((x, w), {"layout": "NHWC"}, DTypeError, "layout is one of"),
        ]

    return errors


@composite(oracle=_conv_oracle, samples=_samples_1d, errors=_conv_errors(1), namespace="nn")
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, *, padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The convolution (without flipping the kernel) of (batch, channels, length) with a weight
    (out channels, channels of a group, kernel).

    `padding` is a number, a pair in a tuple, "same" (an output of ceil(length / stride)) or
    "valid"; `padding_mode` says what it is filled with: zeros, reflect, replicate or circular.

    >>> x = pb.tensor([[[1.0, 2.0, 3.0]]])
    >>> pb.nn.conv1d(x, pb.tensor([[[1.0, 10.0]]]), padding="same")
    tensor([[[21., 32.,  3.]]], float32, cpu)
    """
    return _convolution(
        1, input, weight, bias, stride, padding, dilation, groups, padding_mode, layout
    )


@composite(oracle=_conv_oracle, samples=_samples_2d, errors=_conv_errors(2), namespace="nn")
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, *, padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The convolution of (batch, channels, height, width) with a weight (out channels, channels of
    a group, height, width); see `conv1d` for the options.

    >>> pb.nn.conv2d(pb.ones((1, 1, 3, 3)), pb.ones((1, 1, 2, 2)))
    tensor([[[[4., 4.],
              [4., 4.]]]], float32, cpu)
    """
    return _convolution(
        2, input, weight, bias, stride, padding, dilation, groups, padding_mode, layout
    )


@composite(oracle=_conv_oracle, samples=_samples_3d, errors=_conv_errors(3), namespace="nn")
def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, *, padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The convolution of (batch, channels, depth, height, width); see `conv1d` for the options.

    >>> pb.nn.conv3d(pb.ones((1, 2, 2, 2, 2)), pb.ones((1, 2, 2, 2, 2)))
    tensor([[[[[16.]]]]], float32, cpu)
    """
    return _convolution(
        3, input, weight, bias, stride, padding, dilation, groups, padding_mode, layout
    )
